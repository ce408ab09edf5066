"""Trains and tests sentiment models and measures their memory for a repeated word, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import final

import numpy as np
import torch

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Run, Stages
from stablessm.experiments.iat.sentiment_models import Architecture, Classifier, WordLSTM
from stablessm.experiments.iat.sentiment_text import Source, reviews
from stablessm.experiments.iat.sentiment_training import Fitting, accuracy, fit, load
from stablessm.instruments import MemoryCurve
from stablessm.report.figure import Panel, Series, Style
from stablessm.tasks.corpus import Corpus, word_corpus

TRAINING = Fitting(epochs=5, batch=128, lr=2e-3)


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes of the experiments. The paper gives none."""

    data: Source = "imdb"
    reviews: int = 25_000
    """Number of training reviews, a tenth of which is held out; and of test reviews."""
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
    """A kind of model before training."""

    name: str
    corpus: Callable[[], Corpus]
    """Returns the corpus that the model reads."""
    build: Callable[[Corpus], Classifier]
    """Returns a model with weights from torch's random state."""
    fitting: Fitting
    positions: Callable[[], int] | None = None
    """Returns the largest number of tokens, including the start and end tokens; None if there is no limit."""


def recurrent(config: RecurrentConfig, run: Run) -> list[Subject]:
    """Return one recurrent model for each architecture."""

    @cache
    def corpus() -> Corpus:
        def made() -> Corpus:
            return word_corpus(*reviews(config.data, config.reviews), config.vocabulary, config.length)

        return Corpus.of(run.stage("reviews", lambda: made().arrays()))

    def build(architecture: Architecture, corpus: Corpus) -> Classifier:
        sizes = {"words": len(corpus.vocabulary), "embedding": config.embedding, "hidden": config.hidden}
        return WordLSTM(architecture, **sizes, dropout=config.dropout)

    return [Subject(name, corpus, partial(build, name), config.fitting) for name in config.architectures]


def study(run: Run, subjects: Sequence[Subject], seeds: int, words: Sequence[str], horizon: int) -> None:
    """Train and test every model with every seed, and measure the memory of the words.

    Weights are stages too, but too large for the record; they are not computed if the other stages are complete.
    """
    missing = [
        (subject, seed)
        for subject in subjects
        for seed in range(seeds)
        if not all(_stage(part, subject.name, seed) in run for part in ("learned", "memory"))
    ]
    for subject in dict.fromkeys(subject for subject, _ in missing):  # wrong arguments are found before the training
        subject.corpus().ids(words)
        if subject.positions is not None and horizon > (most := subject.positions() - 2):
            raise ArgumentError("horizon", f"at most the {most} repeats that {subject.name} can read", horizon)
    for subject, seed in missing:
        _study(run, subject, seed, words, horizon)


def _study(run: Run, subject: Subject, seed: int, words: Sequence[str], horizon: int) -> None:
    corpus, fitting = subject.corpus(), subject.fitting
    model = trained(run, subject, seed).to(fitting.chosen_device())
    seen = {key: run[_stage("weights", subject.name, seed)][key] for key in ("losses", "valid")}
    run.stage(
        _stage("learned", subject.name, seed), lambda: {**seen, "test": accuracy(model, corpus.test, fitting.batch)}
    )
    run.keep(_stage("memory", subject.name, seed), MemoryCurve, lambda: asked(model, corpus, words, horizon))


def trained(run: Run, subject: Subject, seed: int) -> Classifier:
    """Return the trained model; train it unless an earlier run in this folder did."""
    corpus, name = subject.corpus(), _stage("weights", subject.name, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = subject.build(corpus)
    return load(model, run.stage(name, lambda: fit(run, name, model, corpus, subject.fitting, seed)))


def asked(model: Classifier, corpus: Corpus, words: Sequence[str], horizon: int) -> MemoryCurve:
    """Return the memory of each word: M(k) = |score of k + 1 repeats - score of k repeats|."""
    return replace(model.memory(corpus, corpus.ids(words), horizon), inputs=tuple(words))


def remembered(stages: Stages, name: str, seeds: int) -> list[MemoryCurve]:
    """Return the memory for each seed that :func:`study` measured; ``.of(word)`` is the curve of one word."""
    return [stages.load(_stage("memory", name, seed), MemoryCurve) for seed in range(seeds)]


def accuracies(stages: Stages, name: str, seeds: int) -> list[float]:
    """Return the accuracy on the test reviews for each seed."""
    return [float(stages[_stage("learned", name, seed)]["test"]) for seed in range(seeds)]


def memory_panel(title: str, curves: Sequence[MemoryCurve]) -> Panel:
    """Return a panel of the memory of every word above rounding: one color per word, the first seed solid."""
    lines = []
    for word in curves[0].inputs or ():
        for seed, curve in enumerate(curve.of(word) for curve in curves):
            seen = np.where(curve.value > curve.floor, curve.value, np.nan)
            style: Style = "dotted" if seed else "solid"
            lines.append(Series(f"{word}, seed {seed}", curve.time.tolist(), seen.tolist(), style, word))
    return Panel(title, "repeats k", "|Δ score|", lines, y_scale="log")


def late(curve: MemoryCurve, lag: int) -> float:
    """Return the largest memory from ``lag`` to twice ``lag``, relative to the maximum.

    >>> round(late(MemoryCurve(np.arange(100.0), np.exp(-np.arange(100) / 10)), 20), 4)
    0.1353
    """
    top = curve.value.max()
    return float(curve.value[lag : 2 * lag].max() / top) if top > 0 else 0.0


def fluctuation(curve: MemoryCurve) -> float:
    """Return the mean change of log M per step, up or down, beyond its total fall.

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


def percent(values: Iterable[float]) -> str:
    """Return a range of shares in percent.

    >>> percent([0.861, 0.8749])
    '86.1 to 87.5 %'
    """
    found = sorted(values)
    return f"{100 * found[0]:.1f} to {100 * found[-1]:.1f} %"


def _stage(part: str, name: str, seed: int) -> str:
    return f"{part}-{name.lower().replace(' ', '-').replace('/', '-')}-{seed}"
