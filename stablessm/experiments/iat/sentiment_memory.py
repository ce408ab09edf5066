"""Trains and tests sentiment models with several seeds, and measures how long they remember a repeated word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any, final

import numpy as np
import torch

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Figure, Panel, Run, Series, Stages
from stablessm.experiments.frame.training import device_called
from stablessm.experiments.iat.sentiment_models import Architecture, Classifier, WordLSTM
from stablessm.experiments.iat.sentiment_text import Source, reviews
from stablessm.experiments.iat.sentiment_training import Fitting, accuracy, fit, load
from stablessm.instruments import MemoryCurve
from stablessm.tasks.corpus import Corpus, word_corpus

TRAINING = Fitting(epochs=5, batch=128, lr=2e-3)


@dataclass(frozen=True)
class RecurrentConfig:
    """Settings of the experiments with sentiment models: reviews, models, training and repeated words. The paper gives
    no values.
    """

    data: Source = "imdb"
    reviews: int = 25_000
    """Number of training reviews (a tenth of them is held out), and number of test reviews."""
    vocabulary: int = 20_000
    length: int = 400
    """Number of words of a review that are read, including the start token."""
    architectures: tuple[Architecture, ...] = ("LSTM", "BiLSTM", "stacked BiLSTM")
    embedding: int = 128
    hidden: int = 128
    dropout: float = 0.3
    fitting: Fitting = TRAINING
    seeds: int = 3
    words: tuple[str, ...] = ("good", "bad", "ha")
    """The repeated words; the models must know them."""
    horizon: int = 400
    """Number of repeats."""

    def __post_init__(self) -> None:
        for name in ("reviews", "vocabulary", "length", "embedding", "hidden", "seeds", "horizon"):
            if getattr(self, name) < 1:
                raise ArgumentError(name, "at least 1", getattr(self, name))
        if not 0 <= self.dropout < 1:
            raise ArgumentError("dropout", "a number from 0 to below 1", self.dropout)
        if not self.architectures:
            raise ArgumentError("architectures", "at least one", "none")


@final
@dataclass(frozen=True)
class Subject:
    """A sentiment model to study: functions that build it and load its training data, and the options of its
    training.
    """

    name: str
    corpus: Callable[[], Corpus]
    """Returns the corpus that the model reads."""
    build: Callable[[Corpus], Classifier]
    """Returns a model with weights from torch's random state."""
    fitting: Fitting
    positions: Callable[[], int] | None = None
    """Returns the largest number of tokens, including the start and end tokens; None if there is no limit."""


SMOKE: dict[str, Any] = {
    "data": "synthetic", "reviews": 200, "vocabulary": 64, "length": 24, "embedding": 8, "hidden": 8, "seeds": 1,
    "horizon": 60, "fitting": Fitting(epochs=4, batch=20, lr=0.02, device="cpu"),
}  # fmt: skip
"""Settings of the smoke size, which takes seconds on a CPU."""


def recurrent(config: RecurrentConfig, run: Run) -> list[Subject]:
    """Return the recurrent sentiment models to train: one :class:`Subject` for each architecture in the settings."""

    @cache
    def corpus() -> Corpus:
        def made() -> Corpus:
            return word_corpus(*reviews(config.data, config.reviews), config.vocabulary, config.length)

        return Corpus.of(run.stage("reviews", lambda: made().arrays()))

    def build(architecture: Architecture, corpus: Corpus) -> Classifier:
        sizes = {"words": len(corpus.vocabulary), "embedding": config.embedding, "hidden": config.hidden}
        return WordLSTM(architecture, **sizes, dropout=config.dropout)

    return [Subject(name, corpus, partial(build, name), config.fitting) for name in config.architectures]


def study(config: RecurrentConfig, run: Run, subjects: Sequence[Subject]) -> None:
    """Train and test every sentiment model with every seed, and measure how long the model remembers the repeated
    words.

    The trained weights are stages too, but they are too large to be kept with the results. If the other stages are
    complete, the weights are not computed again.
    """
    missing = [
        (subject, seed)
        for subject, seed in product(subjects, range(config.seeds))
        if not all(_stage(part, subject.name, seed) in run for part in ("learned", "memory"))
    ]
    for subject in dict.fromkeys(subject for subject, _ in missing):  # wrong arguments are found before the training
        subject.corpus().ids(config.words)
        if subject.positions is not None and config.horizon > (most := subject.positions() - 2):
            raise ArgumentError("horizon", f"at most the {most} repeats that {subject.name} can read", config.horizon)
    for subject, seed in missing:
        _study(config, run, subject, seed)


def _study(config: RecurrentConfig, run: Run, subject: Subject, seed: int) -> None:
    learned, memory, weights = (_stage(part, subject.name, seed) for part in ("learned", "memory", "weights"))
    corpus, fitting, model = subject.corpus(), subject.fitting, trained(run, subject, seed)
    seen, model = {key: run[weights][key] for key in ("losses", "valid")}, model.to(device_called(fitting.device))
    run.stage(learned, lambda: {**seen, "test": accuracy(model, corpus.test, fitting.batch)})
    run.keep(memory, MemoryCurve, lambda: asked(model, corpus, config.words, config.horizon))


def trained(run: Run, subject: Subject, seed: int) -> Classifier:
    """Return the sentiment model ``subject``, trained with this seed. If the run folder has its weights, load them;
    otherwise train the model.
    """
    corpus, name = subject.corpus(), _stage("weights", subject.name, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = subject.build(corpus)
    return load(model, run.stage(name, lambda: fit(run, name, model, corpus, subject.fitting, seed)))


def asked(model: Classifier, corpus: Corpus, words: Sequence[str], horizon: int) -> MemoryCurve:
    """Return the memory function of each word, M(k) = |score of k + 1 repeats - score of k repeats|, for k up to
    ``horizon``.
    """
    return replace(model.memory(corpus, corpus.ids(words), horizon), inputs=tuple(words))


def memories(config: RecurrentConfig, stages: Stages, names: Sequence[str]) -> dict[str, list[MemoryCurve]]:
    """Return a dict from the name of each sentiment model to its memory curves, one per seed. Each curve covers all
    words; ``.of(word)`` selects one word.
    """
    seeds = range(config.seeds)
    return {name: [stages.load(_stage("memory", name, seed), MemoryCurve) for seed in seeds] for name in names}


def accuracies(config: RecurrentConfig, stages: Stages, name: str) -> list[float]:
    """Return the accuracy of a sentiment model on the test reviews, as a list with one entry per seed."""
    return [float(stages[_stage("learned", name, seed)]["test"]) for seed in range(config.seeds)]


def accuracy_of(config: RecurrentConfig, stages: Stages, name: str) -> str:
    """Return as text the smallest and the largest test accuracy over the seeds, in percent."""
    low, *_, high = sorted(accuracies(config, stages, name) * 2)
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def memory_figure(name: str, found: Mapping[str, Sequence[MemoryCurve]], note: str = "") -> Figure:
    """Return a figure of memory functions with one panel per sentiment model and one color per word. The line of the
    first seed is solid; the lines of the other seeds are dotted. ``note`` is inserted into the caption.
    """
    panels = []
    for title, curves in found.items():
        lines = []
        for word, (seed, curve) in product(curves[0].inputs or (), enumerate(curves)):
            one = curve.of(word)
            seen = np.where(one.value > one.floor, one.value, np.nan)
            lines.append(Series(f"{word}, seed {seed}", one.time, seen, "dotted" if seed else "solid", word))
        panels.append(Panel(title, "repeats k", "|Δ score|", lines, y_scale="log"))
    caption = (
        "How much one more repeat of a word moves the score (the log-odds of a positive review) after k repeats, down "
        f"to rounding. {note}Solid: seed 0; dotted: other seeds."
    )
    return Figure(name, caption, panels)


def late(curve: MemoryCurve, lag: int) -> float:
    """Return the maximum of a memory function between ``lag`` and twice ``lag``, divided by its overall maximum.

    >>> round(late(MemoryCurve(np.arange(100.0), np.exp(-np.arange(100) / 10)), 20), 4)
    0.1353
    """
    top = curve.value.max()
    return float(curve.value[lag : 2 * lag].max() / top) if top > 0 else 0.0


def fluctuation(curve: MemoryCurve) -> float:
    """Return how much the memory function fluctuates per step, beyond its overall fall: the mean of |log M(k + 1) - log
    M(k)| over the steps, minus |log M(end) - log M(start)| divided by the number of steps.

    It is zero for a curve that only falls. Values below the rounding level are left out.

    >>> t = np.arange(100.0)
    >>> round(fluctuation(MemoryCurve(t, np.exp(-t))), 6), round(fluctuation(MemoryCurve(t, np.exp(-(t % 2)))), 2)
    (0.0, 0.99)
    """
    log = np.log(curve.value[curve.value > curve.floor])
    if len(log) < 2:
        return 0.0
    beyond = np.abs(np.diff(log)).sum() - abs(log[-1] - log[0])
    return max(0.0, float(beyond) / (len(log) - 1))


def _stage(part: str, name: str, seed: int) -> str:
    return f"{part}-{name.lower().replace(' ', '-').replace('/', '-')}-{seed}"
