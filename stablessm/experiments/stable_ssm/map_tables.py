"""Trains one image or recall classifier for every scheme, learning rate and seed; shared by tables 4 to 6 of StableSSM.

A scheme is a map with its options. The models are trained in stacks; the models of a stack are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any, TypeAlias, final

import numpy as np
import torch

from stablessm._errors import ArgumentError, quoted
from stablessm.experiments.frame import Claim, Panel, Run, Series, Stages, rules
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.stable_ssm import stacked_training
from stablessm.experiments.stable_ssm.stacked_classifier import StackedClassifier
from stablessm.experiments.stable_ssm.stacked_training import StackTraining
from stablessm.layers import S4D
from stablessm.models import SequenceClassifier, for_task
from stablessm.tasks.base import Split, Task

RELEASED = "direct-as-released"
"""The scheme that starts at Re λ = +1/2 instead of -1/2, as the authors' code does."""
SCHEMES: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "direct": ("direct", {}),
    "clip": ("clip", {}),
    "relu": ("relu", {}),
    "exp": ("exp", {}),
    "softplus": ("softplus", {}),
    "best-0.5": ("best", {"b": 0.5}),
    "best-1": ("best", {"b": 1.0}),
    RELEASED: ("direct", {}),
}
"""Schemes: a map and its options. All but the last start from the same eigenvalues."""
BEST = ("best-0.5", "best-1")
STABLE = ("exp", "softplus", *BEST)
RATES = (0.001, 0.002, 0.005, 0.01, 0.05)
_SPLITS: tuple[Split, ...] = ("valid", "test")
Start: TypeAlias = Callable[[str, float, int], SequenceClassifier]


@dataclass(frozen=True)
class Grid:
    """The models that are compared: one for each scheme, learning rate and seed. A scheme is a reparameterization map
    with its options.
    """

    schemes: tuple[str, ...] = tuple(SCHEMES)
    rates: tuple[float, ...] = RATES
    seeds: int = 3
    at_once: int = 40
    """Largest number of models in one stack, limited by memory."""

    def __post_init__(self) -> None:
        for name in self.schemes:
            if name not in SCHEMES:
                raise ArgumentError("schemes", f"some of {', '.join(SCHEMES)}", quoted(name))

    @property
    def parts(self) -> int:
        """Return the number of stacks into which the models of one seed are divided."""
        return -(-len(self.cells()) // self.at_once)

    def cells(self) -> list[tuple[str, float]]:
        """Return the pairs (scheme, learning rate) of all models of one seed."""
        return [(scheme, rate) for scheme in self.schemes for rate in self.rates]


def start(task: Task, preset: str, scheme: str, seed: int, **changes: Any) -> SequenceClassifier:
    """Return an untrained model. For a given seed, the untrained models of all schemes compute the same function. The
    scheme ``RELEASED`` is an exception: it starts from unstable eigenvalues, as the code of the authors does.
    """
    torch.manual_seed(seed)
    map, options = SCHEMES[scheme]
    model = for_task(task.inputs, task.outputs, preset, map=map, map_options=options, **changes)
    assert isinstance(model, SequenceClassifier)
    for module in model.modules():
        if scheme == RELEASED and isinstance(module, S4D):
            module.w.data.neg_()
    return model


@final
@dataclass(frozen=True, eq=False)
class Scores:
    """Accuracies, losses and divergences of all models of a grid. Arrays have the axes (schemes, learning rates, seeds)
    unless stated otherwise.
    """

    grid: Grid
    arrays: Mapping[str, np.ndarray]
    """``valid``, ``test``: accuracies; ``valid_loss``, ``test_loss``; ``diverged``: the step, or -1; ``losses`` and
    ``accuracies`` (…, rows) of the training."""

    @cached_property
    def chosen(self) -> dict[str, int]:
        """Return a dict from each scheme to the index of the learning rate with the highest accuracy on validation
        examples, averaged over the seeds.
        """
        means = self.arrays["valid"].mean(2)
        return {scheme: int(means[i].argmax()) for i, scheme in enumerate(self.grid.schemes)}

    def of(self, scheme: str, rate: int | None = None, name: str = "test") -> np.ndarray:
        """Return the score ``name`` of a scheme for all seeds, (seeds,). ``rate`` is the index of a learning rate
        (default: the index in :attr:`chosen`).
        """
        at = self.chosen[scheme] if rate is None else rate
        return np.asarray(self.arrays[name][self.grid.schemes.index(scheme), at])

    def diverged(self, scheme: str) -> np.ndarray:
        """Return a boolean array (rates, seeds) that marks the models of a scheme that diverged."""
        return np.asarray(self.arrays["diverged"][self.grid.schemes.index(scheme)] >= 0)

    def told(self, *schemes: str) -> str:
        """Return as text, for each scheme at its chosen learning rate: the test accuracy in percent (mean and standard
        deviation over the seeds), the learning rate, and the number of training runs that diverged.
        """

        def one(scheme: str) -> str:
            found, lost = self.of(scheme), int(self.diverged(scheme)[self.chosen[scheme]].sum())
            note = f", {lost} of {found.size} diverged" if lost else ""
            return f"{scheme} {percent(found)} at {self.grid.rates[self.chosen[scheme]]:g}{note}"

        return "; ".join(map(one, schemes))

    def columns(self, scheme: str) -> dict[str, np.ndarray]:
        """Return the four columns of the paper's tables for a scheme at its chosen learning rate: accuracy in percent
        and loss, in training and in the test. Each column is an array (seeds,).
        """
        last = {name: self.of(scheme, name=name)[:, -1] for name in ("accuracies", "losses")}
        return {
            "train accuracy": 100 * last["accuracies"], "train loss": last["losses"],
            "test accuracy": 100 * self.of(scheme), "test loss": self.of(scheme, name="test_loss"),
        }  # fmt: skip

    def named(self, schemes: Sequence[str]) -> list[str]:
        """Return the given schemes that are in the grid, in the given order."""
        return [scheme for scheme in schemes if scheme in self.grid.schemes]

    def best(self) -> str:
        """Return the more accurate of the two schemes with the map ``best`` (b = 0.5 or b = 1), on validation
        examples.
        """
        valid = {scheme: self.of(scheme, name="valid").mean() for scheme in self.named(BEST)}
        return max(valid, key=lambda scheme: valid[scheme])


@final
@dataclass(frozen=True, eq=False)
class Study:
    """A grid of models that are trained and scored on one task."""

    label: str
    grid: Grid
    task: Callable[[], Task]
    """Returns the task; called only if a stage is missing."""
    start: Start
    """Returns the untrained model of a scheme, a rate and a seed."""
    training: StackTraining

    def train(self, run: Run) -> None:
        """Train and score the models of the grid, one stack at a time."""
        for job in self.jobs().values():
            job(run)

    def scores(self, stages: Stages) -> Scores:
        """Return the scores that :meth:`train` computed and stored."""
        grid, found = self.grid, dict[str, list[np.ndarray]]()
        for seed in range(grid.seeds):
            parts = [stages[f"scores-{self.label}-{seed}-{part}"] for part in range(grid.parts)]
            for name in parts[0]:
                found.setdefault(name, []).append(np.concatenate([part[name] for part in parts]))
        stacked = {name: np.stack(seeds, 1) for name, seeds in found.items()}
        shape = (len(grid.schemes), len(grid.rates))
        return Scores(grid, {name: array.reshape(*shape, *array.shape[1:]) for name, array in stacked.items()})

    def jobs(self) -> dict[str, Callable[[Run], object]]:
        """Return one job for each stack of models."""
        places = [(part, seed) for seed in range(self.grid.seeds) for part in range(self.grid.parts)]
        return {f"{self.label}-{seed}-{part}": partial(self._part, part=part, seed=seed) for part, seed in places}

    def trained(self, stages: Stages, scheme: str, rate: float, seed: int) -> SequenceClassifier:
        """Return the trained model of a scheme, learning rate and seed."""
        part, row = divmod(self.grid.cells().index((scheme, rate)), self.grid.at_once)
        model = self.start(scheme, rate, seed)
        return StackedClassifier([model]).model(
            0, torch.from_numpy(stages[self._name(part, seed)]["weights"][row : row + 1])
        )

    def _name(self, part: int, seed: int) -> str:
        return f"training-{self.label}-{seed}-{part}"

    def _part(self, run: Run, part: int, seed: int) -> None:
        """Train and score one stack of models. The weights are stored in one stage of the run, the scores in
        another.
        """

        def compute() -> Mapping[str, np.ndarray]:
            cells, task = self.grid.cells()[self.grid.at_once * part :][: self.grid.at_once], self.task()
            models = [self.start(scheme, rate, seed) for scheme, rate in cells]
            rates = [rate for _, rate in cells]
            found = stacked_training.train(run, self._name(part, seed), models, rates, task, self.training, seed)
            arrays = {"diverged": found["diverged"], "losses": found["losses"].T, "accuracies": found["accuracies"].T}
            for split in _SPLITS:
                scored = stacked_training.evaluate(models, found["weights"], task, split, self.training)
                arrays |= {split: scored["accuracy"], f"{split}_loss": scored["loss"]}
            return arrays

        run.stage(f"scores-{self.label}-{seed}-{part}", compute)


def sensitivity(scores: Scores, title: str) -> Panel:
    """Return a panel of the test accuracy against the learning rate, averaged over seeds."""
    means = dict(zip(scores.grid.schemes, 100 * scores.arrays["test"].mean(2), strict=True))
    return Panel(title, "learning rate", "test accuracy, percent", lines(scores.grid.rates, means, "both"), "log")


def losses(scores: Scores, title: str) -> Panel:
    """Return a panel of the training loss of each scheme at its chosen learning rate, averaged over the seeds."""
    curves = {scheme: scores.of(scheme, name="losses").mean(0) for scheme in scores.grid.schemes}
    drawn = [Series(name, np.arange(1, len(y) + 1), y) for name, y in curves.items()]
    return Panel(title, "share of the training", "cross-entropy", drawn, y_scale="log")


def ahead_in_columns(scores: Scores, first: Sequence[str], others: Sequence[str], paper: str, errors: float) -> Claim:
    """Return a claim with its verdict: in all columns of the table (accuracies and losses in training and test), each
    scheme in ``first`` is better than every scheme in ``others`` by more than ``errors`` standard errors. ``paper`` is
    the statement of the paper.
    """
    found = {scheme: scores.columns(scheme) for scheme in (*first, *others)}
    pairs = [
        _gap(own if "accuracy" in name else -own, other if "accuracy" in name else -other, errors)
        for a, b in product(first, others)
        for (name, own), other in zip(found[a].items(), found[b].values(), strict=True)
    ]
    gaps, margins = zip(*pairs, strict=True)
    told = (
        f"{scheme} " + ", ".join(f"{name} {own.mean():.4g} ({own.std():.2g})" for name, own in columns.items())
        for scheme, columns in found.items()
    )
    clear = sum(gap > margin for gap, margin in zip(gaps, margins, strict=True))
    return Claim(
        f"{' and '.join(first)} ahead of {' and '.join(others)} in training and test, accuracy and loss",
        paper,
        "; ".join(told),
        rules.ahead(gaps, margins),
        f"Mean (deviation) over {scores.grid.seeds} seeds at the chosen rate. {clear} of {len(gaps)} differences are "
        f"as claimed by more than {errors:g} standard errors. Training columns are those of the last part of the "
        "training, before each update.",
    )


def _gap(first: np.ndarray, second: np.ndarray, errors: float) -> tuple[float, float]:
    """Return the difference of the means of ``first`` and ``second`` over the seeds, and a margin of ``errors``
    standard errors of this difference. A difference within the margin is a tie. If only one of the arrays contains
    values that are not finite, the returned difference favors the other array.
    """
    lost = [not np.isfinite(values).all() for values in (first, second)]
    if any(lost):
        return float(lost[1]) - float(lost[0]), 0.0
    gap, error = gap_of_means(first, second)
    return gap, errors * error


def gap_of_means(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return the difference of the means of two sets of values over the seeds, and the standard error of this
    difference. The error is infinite if there is only one seed.
    """
    error = np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / first.size) if first.size > 1 else np.inf
    return float(first.mean() - second.mean()), float(error)


def percent(values: np.ndarray) -> str:
    """Return as text the mean of the values over the seeds and, in brackets, their standard deviation, both in percent.

    >>> percent(np.array([0.99, 0.992]))
    '99.10 (0.14)'
    """
    deviation = values.std(ddof=1) if values.size > 1 else 0.0
    return f"{100 * values.mean():.2f} ({100 * deviation:.2f})"
