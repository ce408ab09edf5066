"""Trains image classifiers that read one pixel per step, with each map; shared by tables 5 and 6 of StableSSM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from stablessm import tasks
from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Run, Stages, rules
from stablessm.experiments.frame.words import each, listed
from stablessm.experiments.stable_ssm import map_tables as tables
from stablessm.experiments.stable_ssm.stacked_training import StackTraining
from stablessm.models import SequenceClassifier
from stablessm.tasks.base import Task

SYNTHETIC = "synthetic"


@dataclass(frozen=True)
class ImageConfig:
    """Settings of the experiments on image classification: data, models, learning rates and training. Where StableSSM,
    appendix D.4 gives a value, this value is the default.
    """

    data: str = "mnist"
    """An image task, or ``synthetic``: waves, for a quick test."""
    valid: float = 0.05
    """Fraction of the training images that are held out to choose the learning rate of each map."""
    preset: str = "paper-images"
    dropout: float = 0.1
    grid: tables.Grid = field(default_factory=tables.Grid)
    """Grid of one-layer models."""
    deep: tables.Grid = field(
        default_factory=lambda: tables.Grid(("direct", "exp", "softplus", *tables.BEST), rates=(0.01,))
    )
    """Grid of deeper models."""
    layers: int = 6
    """Number of layers of the deeper models."""
    training: StackTraining = field(default_factory=lambda: StackTraining(batch=128, fast=True))
    failed: float = 0.2
    """A training run has failed if the accuracy, among ten classes, is below this value, whether the loss is finite or
    not."""
    errors: float = 2.0
    """Number of standard errors by which a map must be ahead of another."""


@cache
def loaded(data: str, valid: float) -> Task:
    """Return the image task with this name; ``valid`` is the fraction of the training images that are held out. The
    name ``synthetic`` stands for a task of :func:`waves`.
    """
    return waves() if data == SYNTHETIC else tasks.get(data, valid=valid)


def waves(examples: int = 400, length: int = 40, classes: int = 10) -> Task:
    """Return a synthetic task whose classes are sine waves of different frequencies, with random phases.

    >>> waves(50, 20).batch("train", 4).inputs.shape
    torch.Size([4, 20, 1])
    """
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(examples) % classes
    phase, times = 6.3 * torch.rand(examples, 1, generator=generator), torch.arange(length)
    x = torch.sin(0.15 * (1 + targets[:, None]) * times + phase)
    return tasks.get("arrays", inputs=x, targets=targets, test=0.3)


def studies(config: ImageConfig) -> dict[int, tables.Study]:
    """Return a dict from the number of layers to the grid of models with this number of layers. The models of a grid
    differ in map, learning rate and seed.
    """
    task = partial(loaded, config.data, config.valid)

    def first(layers: int, scheme: str, rate: float, seed: int) -> SequenceClassifier:
        return tables.start(task(), config.preset, scheme, seed, n_layers=layers, dropout=config.dropout)

    def study(layers: int, grid: tables.Grid) -> tables.Study:
        return tables.Study(f"layers-{layers}", grid, task, partial(first, layers), config.training)

    return {1: study(1, config.grid), config.layers: study(config.layers, config.deep)}


def jobs(config: ImageConfig) -> dict[str, Callable[[Run], object]]:
    """Return a dict from names to jobs. Each job trains one stack of models, which are computed together."""
    return {name: job for study in studies(config).values() for name, job in study.jobs().items()}


def run(config: ImageConfig, run: Run) -> None:
    """Train and score all models of the table."""
    for study in studies(config).values():
        study.train(run)


def figures(config: ImageConfig, stages: Stages) -> Figures:
    """Yield figures of the test accuracy against the learning rate, and of the training losses."""
    found = {named(layers): study.scores(stages) for layers, study in studies(config).items()}
    yield Figure(
        "learning-rates",
        f"{config.data}: test accuracy over the learning rate, the mean over seeds; a model that diverged is scored "
        "with its last finite weights.",
        [tables.sensitivity(scores, title) for title, scores in found.items()],
    )
    yield Figure(
        "trainings",
        "The training loss of each map at the rate that held-out images prefer, the mean over seeds.",
        [tables.losses(scores, title) for title, scores in found.items()],
    )


def claims(config: ImageConfig, stages: Stages, published: Mapping[str, float]) -> Claims:
    """Yield claims, with their verdicts: how accurate the models with each map are, in which order the maps are, and
    which training runs diverge. ``published`` maps each map to its test accuracy in the paper, in percent.
    """
    for layers, study in studies(config).items():
        scores, depth = study.scores(stages), named(layers)
        best = scores.named(tables.BEST)
        if best:
            yield reaches(scores, f"{config.data}, {depth}", published["best"])
        if best and scores.named(("exp", "softplus")):
            yield order(scores, depth, published, config.errors)
        for scheme in scores.named(("direct", tables.RELEASED)):
            yield diverges(scores, depth, scheme, published["direct"], config.failed)
        if best and len(best) < len(scores.grid.schemes):
            yield survives(scores, depth, config.errors)
        if config.training.clip is None:  # the paper's settings
            paper = "first in all columns of the table"
            yield tables.ahead_in_columns(scores, best, scores.named(("exp", "softplus")), paper, config.errors)


def named(layers: int) -> str:
    """Return a number of layers as text, such as "6 layers".

    >>> named(1), named(6)
    ('one layer', '6 layers')
    """
    return "one layer" if layers == 1 else f"{layers} layers"


def reaches(scores: tables.Scores, data: str, published: float) -> Claim:
    """Return a claim with its verdict: the map ``best`` reaches the published accuracy. ``data`` names the images and
    the number of layers.
    """
    name = scores.best()
    found = 100 * scores.of(name)
    return Claim(
        f"best reaches a test accuracy of {published:g} % on {data}",
        f"{published:g} %, on the paper's own split",
        scores.told(name),
        rules.graded(found.mean() >= published, found.max() >= published),
        f"Mean (deviation) over {found.size} seeds, {listed(found, '.2f')}, at the rate and with the b that held-out "
        f"training images prefer. All: {scores.told(*scores.grid.schemes)}.",
    )


def order(scores: tables.Scores, depth: str, published: Mapping[str, float], most: float) -> Claim:
    """Return a claim with its verdict: the map ``best`` is more accurate than exp, and exp is more accurate than
    softplus. A difference of up to ``most`` standard errors is a tie. ``depth`` is the number of layers as text.
    """
    ranks = [scores.best(), *scores.named(("exp", "softplus"))]
    gaps, errors = zip(*(ahead(scores.of(a), scores.of(b)) for a, b in pairwise(ranks)), strict=True)
    margins = [most * error for error in errors]
    clear = sum(gap > margin for gap, margin in zip(gaps, margins, strict=True))
    return Claim(
        f"best is ahead of exp, and exp of softplus ({depth})",
        listed({name: value for name, value in published.items() if name != "direct"}, "g"),
        scores.told(*ranks),
        rules.ahead(gaps, margins),
        f"The gaps are {each('{:+.2f} (standard error {:.2f})', zip(gaps, errors, strict=True), ' and ')} points: "
        f"{sum(gap > 0 for gap in gaps)} of {len(gaps)} as claimed, {clear} of them by more than {most:g} standard "
        "errors.",
    )


def ahead(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return the difference of the mean accuracies of two sets of models in percentage points, and the standard error
    of the difference.
    """
    gap, error = tables.gap_of_means(first, second)
    return 100 * gap, 100 * error


def diverges(scores: tables.Scores, depth: str, scheme: str, published: float, least: float) -> Claim:
    """Return a claim with its verdict: training with the direct map fails. ``scheme`` selects the initial eigenvalues:
    stable eigenvalues, or the unstable eigenvalues in the code of the authors. A training run fails if the test
    accuracy is below ``least``. ``depth`` is the number of layers as text.
    """
    test = scores.arrays["test"][scores.grid.schemes.index(scheme)]
    lost, failed = scores.diverged(scheme), test < least
    rates = scores.grid.rates
    stated = {tables.RELEASED: "direct, started at Re λ = +1/2 as in the authors' code, diverges"}
    return Claim(
        stated.get(scheme, "direct diverges from the stable eigenvalues that all maps start from") + f" ({depth})",
        f"diverged, {published:g} %",
        "; ".join(
            f"lr {r:g}: {tables.percent(test[i])}, {int(lost[i].sum())} of {lost[i].size} not finite"
            for i, r in enumerate(rates)
        ),
        rules.some(failed.ravel().tolist()),
        f"{int(failed.sum())} of {failed.size} runs end below {least:.0%}; {int(lost.sum())} runs have a "
        f"loss or gradient that is not finite. At its best rate: {scores.told(scheme)}.",
    )


def survives(scores: tables.Scores, depth: str, most: float) -> Claim:
    """Return a claim with its verdict: at the largest learning rate, training with the map ``best`` does not diverge,
    and ``best`` is more accurate than all other maps. A difference of up to ``most`` standard errors is a tie.
    ``depth`` is the number of layers as text.
    """
    last = len(scores.grid.rates) - 1
    found = {scheme: scores.of(scheme, last) for scheme in scores.grid.schemes}
    best = max(scores.named(tables.BEST), key=lambda scheme: found[scheme].mean())
    other = max((scheme for scheme in found if scheme not in tables.BEST), key=lambda scheme: found[scheme].mean())
    gap, error = ahead(found[best], found[other])
    lost = {scheme: int(scores.diverged(scheme)[last].sum()) for scheme in found}
    safe = all(lost[scheme] == 0 for scheme in scores.named(tables.BEST))
    return Claim(
        f"best is the most stable at the largest learning rate, {scores.grid.rates[last]:g} ({depth})",
        "figure 6 and table 3: its advantage grows with the rate",
        "; ".join(f"{scheme} {tables.percent(values)}" for scheme, values in found.items()),
        rules.given(safe, rules.ahead([gap], [most * error])),
        f"{best} is {gap:+.2f} points (standard error {error:.2f}) ahead of {other}, the best of the other maps. "
        f"Diverged, of {scores.grid.seeds}: {', '.join(f'{scheme} {n}' for scheme, n in lost.items() if n) or 'none'}.",
    )


PAPERS = ("direct", "exp", "softplus", "best-0.5")
"""The maps of the tables; best has the b of the text."""


def as_published(data: str) -> dict[str, Any]:
    """Return settings like those of the published table: the maps of the paper, the map ``best`` with a fixed value of
    its parameter b, and no gradient clipping.
    """
    return {
        "data": data, "grid": tables.Grid((*PAPERS, tables.RELEASED)), "deep": tables.Grid(PAPERS, rates=(0.01,)),
        "training": StackTraining(batch=128, clip=None, fast=True),
    }  # fmt: skip


SMOKE = ImageConfig(
    data=SYNTHETIC, preset="tiny", grid=tables.Grid(rates=(0.02, 0.1), seeds=2),
    deep=tables.Grid(("direct", *tables.BEST), rates=(0.02,), seeds=2), layers=2,
    training=StackTraining(batch=40, epochs=4, device="cpu"),
)  # fmt: skip
"""The smoke size, which takes seconds on a CPU."""
