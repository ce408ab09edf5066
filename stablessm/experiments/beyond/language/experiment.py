"""Trains two language models of a size that is used in practice. One reads byte pairs of Wikipedia articles, the other
reads words of WikiText-2.
"""

from __future__ import annotations

import bz2
import lzma
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.user_training import trained
from stablessm.experiments.stable_ssm.language_study import memories, remembered
from stablessm.models import for_task, sample_tokens
from stablessm.report.figure import Figure, Panel, Series
from stablessm.tasks.base import SPLITS
from stablessm.tasks.text import LanguageModeling, TextOptions
from stablessm.tasks.tokenizers import Level
from stablessm.training import TrainingConfig, perplexity
from stablessm.training.perplexity import Perplexity

SYNTHETIC = "synthetic"
LSTM = {"Grave et al. 2016": 99.3, "AWD-LSTM, Merity et al. 2017": 65.8}
"""Test perplexities of LSTMs on WikiText-2, without a cache or a pointer."""


@dataclass(frozen=True)
class Trained:
    """Settings of one language model: its text, tokens, network and training."""

    text: str
    """A text of the task ``lm``, or ``synthetic``: random sentences, for a quick test."""
    level: Level
    length: int
    training: TrainingConfig
    preset: str = "lm-small"
    d_model: int | None = None
    """Replaces the value of the preset."""
    n_layers: int | None = None
    """Replaces the value of the preset."""
    dropout: float = 0.1
    edge_dropout: float = 0.0
    timescales: tuple[float, ...] = (1.0, 100.0)
    """The shortest and the longest initial time scale, in tokens."""
    prompt: str = "The city"
    tokens: int = 300
    """Number of tokens that are sampled after the prompt."""
    horizon: int = 1024
    """Number of repetitions of a token in the measurement of the memory."""

    def task(self) -> LanguageModeling:
        """Return the task ``lm`` with the text that these settings name."""
        return _loaded(self.text, self.level, self.length)


@dataclass(frozen=True)
class Config:
    """Settings of ``ext-language``: a model of byte pairs, a model of words, and thresholds of the claims."""

    pieces: Trained = field(
        default_factory=lambda: Trained(
            "wikifa", "bpe", 1024,
            TrainingConfig(
                steps=8000, batch_size=32, lr=0.003, weight_decay=0.1, autocast=True, graph=True, evaluate_every=800
            ),
        )
    )  # fmt: skip
    words: Trained = field(
        default_factory=lambda: Trained(
            "wikitext2", "word", 256,
            TrainingConfig(epochs=40, batch_size=32, lr=0.002, weight_decay=0.1, autocast=True, graph=True),
            d_model=320, n_layers=4, dropout=0.3, edge_dropout=0.5, timescales=(1.0, 50.0),
        )
    )  # fmt: skip

    fair: float = 1.25
    """A perplexity up to this multiple of an LSTM's perplexity gets the verdict ``partly``."""
    clear: float = 0.01
    """Smallest gain by carrying the state, in nats per token, that counts as a gain."""

    def models(self) -> dict[str, Trained]:
        """Return a dict from the name of each model to its settings."""
        return {"pieces": self.pieces, "words": self.words}


@cache
def _loaded(text: str, level: Level, length: int) -> LanguageModeling:
    if text != SYNTHETIC:
        return LanguageModeling(TextOptions(text=text, level=level, length=length))
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(["the", "city", "was", "old", "and", "green", "a", "river"], 6)) for _ in range(9)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.txt"
        path.write_text("\n".join(rng.choice(sentences, 600)), encoding="utf-8")
        return LanguageModeling(TextOptions(text=str(path), level=level, length=length))


@stage("{name}", over=lambda config: config.models())
def one(config: Config, run: Run, name: str) -> dict[str, Any]:
    """Train the language model ``name`` with the public training loop. Return its losses, its scores, a generated text
    and its memory function.

    The dict has the following entries. ``losses`` (rows, 2): the logged steps and losses. ``steps`` and ``parameters``:
    the number of training steps and of parameters. ``diverged``: the step at which training diverged, or -1.
    ``SPLIT-carried`` and ``SPLIT-windows``: the fields nats, tokens, words, bytes and lost of ``Perplexity`` on a
    split. For ``carried``, the state is carried from window to window; for ``windows``, the state is zero at the start
    of each window. ``sample``: the generated text, empty after divergence. ``memory`` and ``floor``: the memory
    function and its rounding level. ``compressed``: the bits per byte that a general-purpose compressor needs for the
    test text.
    """
    own = config.models()[name]
    task = own.task()
    torch.manual_seed(own.training.seed)
    sizes = {"d_model": own.d_model, "n_layers": own.n_layers}
    model = for_task(
        task.inputs, task.outputs, own.preset, dropout=own.dropout, edge_dropout=own.edge_dropout,
        mixer_options={"time": "discrete", "timescales": list(own.timescales)},
        **{key: value for key, value in sizes.items() if value is not None},
    )  # fmt: skip
    result = trained(model, task, own.training, run, name)
    last = -1 if result.diverged is None else result.diverged.step
    read = {}
    for split, how in product(SPLITS[1:], ("carried", "windows")):
        found = perplexity(model, task, split, carry=how == "carried", autocast=own.training.autocast)
        read[f"{split}-{how}"] = np.array([found.nats, found.tokens, found.words, found.bytes, found.lost])
    return {
        "losses": result.losses,
        "steps": result.steps,
        "diverged": last,
        "parameters": sum(p.numel() for p in model.parameters()),
        "sample": "" if last >= 0 else sampled(own, model, task),
        "compressed": compressed(task),
        **read,
        **remembered(model, task, 8, own.horizon, {"diverged": np.array(last)}),
    }


def sampled(own: Trained, model: Any, task: LanguageModeling) -> str:
    """Return the prompt of the settings ``own`` with a continuation that the model generates. Each token is sampled at
    temperature 0.8 from the 40 most likely tokens.
    """
    tokenizer = task.tokenizer
    prompt = tokenizer.encode(own.prompt).tolist()
    begin = torch.tensor([tokenizer.border, *prompt])
    drawn = sample_tokens(model, begin, count=own.tokens, temperature=0.8, top_k=40, never=[tokenizer.border], seed=0)
    return tokenizer.decode([*prompt, *drawn])


def compressed(task: LanguageModeling) -> float:
    """Return the bits per byte that the better of the compressors bz2 and xz needs for the test text."""
    text = task.decode(torch.from_numpy(task.streams["test"].tokens.astype(np.int64))).encode()
    return 8 * min(len(bz2.compress(text, 9)), len(lzma.compress(text, preset=9))) / max(len(text), 1)


def scored(found: Mapping[str, np.ndarray], split: str, how: str) -> Perplexity:
    """Return the perplexity on a split from the results ``found`` of :func:`one`. ``how`` is ``carried`` if the state
    was carried between windows, and ``windows`` if not.
    """
    nats, *counts = found[f"{split}-{how}"].tolist()
    tokens, words, bytes, lost = map(int, counts)
    return Perplexity(nats, tokens, words, bytes, lost, how == "carried")


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure with two panels: the training losses and the memory functions of all models."""
    found = {f"{own.text}, {name}": one(stages, name) for name, own in config.models().items()}
    lines = [Series(label, *cell["losses"].T) for label, cell in found.items()]
    yield Figure(
        "training",
        "Left: the training loss. Right: how much the output of each trained model still changes after t repetitions "
        "of a token, the largest over eight.",
        [Panel("loss", "step", "cross-entropy [nats]", lines), memories("memory", found)],
    )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on the bits per byte, the perplexity per word, and the gain from carrying the
    state between windows.
    """
    found = one.all(config, stages)
    made = [
        (found["pieces"], fewer_bits(config.pieces, found["pieces"])),
        (found["words"], like_an_lstm(config, found["words"])),
        *((found[name], carries(config, name, found[name])) for name in found),
    ]
    for cell, claim in made:
        yield claim if int(cell["diverged"]) < 0 else _lost(claim, int(cell["diverged"]))


def _lost(claim: Claim, step: int) -> Claim:
    """Return the claim with a negative verdict, and with a remark that the training diverged at the step ``step``."""
    verdict, why = cast("rules.Verdict", claim.verdict), "The model was measured with its best weights."
    return replace(claim, ours=f"diverged at step {step}", verdict=rules.given(False, verdict), why=why)


def fewer_bits(own: Trained, found: Mapping[str, np.ndarray]) -> Claim:
    """Return a claim with its verdict: on the test text, the model needs fewer bits per byte than a general-purpose
    compressor. The compressor does not know the training text. ``own`` are the settings of the model, ``found`` its
    results.
    """
    score, needed = scored(found, "test", "carried"), float(found["compressed"])
    return Claim(
        f"{own.text} is predicted in fewer bits than a compressor needs",
        "no number of a paper",
        f"{score.bits_per_byte:.3f} bits per byte of the test text; bz2 or xz, without the training text, {needed:.3f}",
        rules.ours(rules.graded(score.bits_per_byte < needed)),
        f"{_told(own, found)} Perplexity {score.per_token:.4g} per token, {score.per_word:.4g} per word. A sample: "
        f"{' '.join(str(found['sample']).split())}",
    )


def like_an_lstm(config: Config, found: Mapping[str, np.ndarray]) -> Claim:
    """Return a claim with its verdict: the model's perplexity per word is close to the published perplexities of
    LSTMs.
    """
    own = config.words
    test, valid = (scored(found, split, "carried").per_token for split in ("test", "valid"))
    published = ", ".join(f"{value} ({source})" for source, value in LSTM.items())
    worst = max(LSTM.values())
    return Claim(
        f"words of {own.text} are predicted as well as by an LSTM",
        f"{published}, without a cache or a pointer",
        f"perplexity {test:.4g} on test, {valid:.4g} on valid",
        rules.graded(test <= worst, test <= config.fair * worst),
        f"'Reproduced' is {worst:g} or less, 'partly' {config.fair:g} times that or less. {_told(own, found)}",
    )


def carries(config: Config, name: str, found: Mapping[str, np.ndarray]) -> Claim:
    """Return a claim with its verdict: the perplexity of a model is lower if its state is carried from window to
    window.
    """
    own, clear = config.models()[name], config.clear
    carried, windows = (scored(found, "test", how) for how in ("carried", "windows"))
    gain = (windows.nats - carried.nats) / windows.tokens
    return Claim(
        f"on {own.text} ({name}) a state carried past the {own.length} tokens of a training window helps",
        "a recurrent model has no longest context",
        f"test perplexity {carried.per_token:.4g} carried, {windows.per_token:.4g} in windows",
        rules.graded(gain > clear, gain > -clear),
        f"{gain:+.3f} nats per token; 'reproduced' requires more than {clear:g}, a smaller difference is 'partly'. "
        "Windows that begin without a state know less of the preceding text.",
    )


def _told(own: Trained, found: Mapping[str, np.ndarray]) -> str:
    return (
        f"{int(found['parameters']):,} parameters, {int(found['steps']):,} steps of {own.training.batch_size} x "
        f"{own.length} tokens, the best weights on the validation text; one seed."
    )


SMALL = Trained(
    SYNTHETIC, "char", 24, TrainingConfig(steps=8, batch_size=8, lr=0.01, device="cpu"), "lm-tiny",
    timescales=(2.0, 20.0), prompt="the", tokens=8, horizon=24,
)  # fmt: skip

SMOKE = Config(SMALL, replace(SMALL, level="word", n_layers=1))
run = computing(one)
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.1, 10000.0), jobs=one.jobs
)
