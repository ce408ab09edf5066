"""Trains layers with a gated (selective) recurrence, with four maps, at increasing learning rates of the recurrent
weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import torch

from stablessm import tasks
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.survival import Survival, entropy
from stablessm.experiments.frame.user_training import trained
from stablessm.experiments.frame.words import listed
from stablessm.instruments.modes import recurrent_modules
from stablessm.models import for_task
from stablessm.report.figure import Figure, Panel, Series
from stablessm.tasks.base import Task
from stablessm.training import TrainingConfig

TASKS = ("copying", "recall", "language")
STABLE = ("exp", "softplus", "best")
OURS = "beyond the papers"
Found: TypeAlias = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class GatedConfig:
    """Settings of ``ext-gated``: tasks, model, maps, learning rates, training, and thresholds of the claims."""

    tasks: tuple[str, ...] = TASKS
    maps: tuple[str, ...] = ("direct", "exp", "softplus", "best")
    rates: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    """Learning rates of the recurrent weights."""
    seeds: int = 3
    copying: tuple[int, ...] = (44, 8, 4)
    """Length, vocabulary and copied tokens of selective copying."""
    recall: tuple[int, ...] = (48, 17, 4)
    """Length, vocabulary and pairs of multi-query recall, with as many queries as pairs."""
    text: str = "tinyshakespeare"
    """A text of the task ``lm``, read by characters; ``copies`` means selective copying instead, which needs no
    file."""
    length: int = 64
    mixer: str = "selective"
    d_model: int = 32
    n_layers: int = 2
    d_state: int = 8
    base: float = 0.01
    """Learning rate of the other weights."""
    steps: int = 150
    batch: int = 16
    worse: float = 0.1
    """A training run has failed if its loss ends more than this number of nats above the entropy of the targets."""
    close: float = 0.05
    """Test losses that differ by at most this number of nats count as equal."""

    def task(self, name: str) -> Task:
        """Return the task with this name. Its sizes, such as length and vocabulary, are the sizes in these settings."""
        if name == "recall":
            length, vocabulary, pairs = self.recall
            return tasks.get(
                "multi-query-recall", length=length, vocabulary=vocabulary, pairs=pairs, queries=pairs,
                test_examples=256, valid_examples=64,
            )  # fmt: skip
        if name == "language" and self.text != "copies":
            return tasks.get("lm", text=self.text, level="char", length=self.length)
        length, vocabulary, copied = self.copying
        sizes = {"test_examples": 256, "valid_examples": 64}
        return tasks.get("selective-copying", length=length, vocabulary=vocabulary, copied=copied, **sizes)


@stage("{task}-{map}-{rate}", over=lambda config: product(config.tasks, config.maps, config.rates))
def training(config: GatedConfig, run: Run, task: str, map: str, rate: float) -> Found:
    """Train one model per seed with the given task, map and learning rate of the recurrent weights.

    Return a dict of arrays (seeds,). ``diverged``: the step at which training diverged, or -1. ``final``: the mean
    training loss over the last tenth of the steps. ``test``: the loss on the test split, NaN after divergence.
    ``largest``: the largest eigenvalue λ of the trained recurrences. The dict also contains the ``entropy`` of the
    targets, a single number.
    """
    data = config.task(task)
    rows = []
    for seed in range(config.seeds):
        torch.manual_seed(seed)
        model = for_task(
            data.inputs, data.outputs, "lm-tiny" if data.carries else "tiny", mixer=config.mixer, map=map,
            d_model=config.d_model, n_layers=config.n_layers, d_state=config.d_state,
        )  # fmt: skip
        settings = TrainingConfig(
            steps=config.steps, batch_size=config.batch, lr=config.base, recurrent_lr=rate, warmup=0.1, seed=seed,
            select="last", evaluate_every=config.steps, log_every=max(1, config.steps // 10),
        )  # fmt: skip
        result = trained(model, data, settings, run, f"{training.name(task, map, rate)}/{seed}")
        test = result.scores["test"]["loss"] if result.diverged is None else np.nan
        with torch.no_grad():
            largest = max(float(module.eigenvalues().max()) for _, module in recurrent_modules(model))
        last = -1 if result.diverged is None else result.diverged.step
        rows.append((last, result.losses[-1, 1] if len(result.losses) else np.nan, test, largest))
    columns = np.array(rows, dtype=float).T
    return {
        **dict(zip(("diverged", "final", "test", "largest"), columns, strict=True)),
        "entropy": np.array(entropy(data, 64, batches=16)),
    }


def figures(config: GatedConfig, stages: Stages) -> Figures:
    """Yield a figure of the final training losses against the learning rate."""
    panels = []
    for task in config.tasks:
        lines, tables = [], _tables(config, stages, task)
        for map, found in tables.items():
            finals = np.median(np.where(found["diverged"] < 0, found["final"], np.nan), axis=1)
            lines.append(Series(map, config.rates, finals, "solid", map))
        lines.append(Series("without the input", config.rates, tables[config.maps[0]]["entropy"], "dashed"))
        panels.append(Panel(task, "learning rate of the recurrent weights", "cross-entropy [nats]", lines, "log"))
    yield Figure(
        "losses",
        "Training loss over the last tenth of the steps, the median of the seeds. A line ends where a training of the "
        "median diverged; above the dashed line a model is worse than one that ignores its input.",
        panels,
    )


def claims(config: GatedConfig, stages: Stages) -> Claims:
    """Yield one claim with its verdict for each hypothesis in the README of the experiment, in the same order."""
    stable = [map for map in STABLE if map in config.maps]
    found = {task: _survival(config, _tables(config, stages, task)) for task in config.tasks}
    for task in config.tasks:
        yield _more_than_direct(task, stable, found[task])
    yield _best(stable, found)
    for task in config.tasks:
        yield _losses(task, stable, found[task])
    yield _unstable(found)


def _tables(config: GatedConfig, stages: Stages, task: str) -> dict[str, dict[str, np.ndarray]]:
    """Return the results of the training runs on one task: a dict from each map to a dict from the name of a result to
    an array (rates, seeds). The entropy of the targets is an exception: it does not depend on the seed and is an array
    (rates,).
    """
    names = ("diverged", "final", "test", "largest", "entropy")
    runs = {map: [training(stages, task, map, rate) for rate in config.rates] for map in config.maps}
    return {map: {name: np.stack([one[name] for one in found]) for name in names} for map, found in runs.items()}


def _survival(config: GatedConfig, found: dict[str, dict[str, np.ndarray]]) -> Survival:
    """Return which training runs survived: those that neither diverge nor end with a loss clearly above the entropy of
    the targets. ``found`` is the result of :func:`_tables`.
    """
    limits = {map: one["entropy"][:, None] + config.worse for map, one in found.items()}
    alive = {map: (one["diverged"] < 0) & (one["final"] <= limits[map]) for map, one in found.items()}
    return Survival(config, found, alive)


def _more_than_direct(task: str, stable: list[str], found: Survival) -> Claim:
    pairs = [(map, "direct") for map in stable]
    return Claim(
        f"{task}: stable maps survive larger rates of the recurrent weights than direct",
        OURS,
        f"largest surviving rates: {found.edges()}",
        rules.ours(found.ahead(pairs)),
        f"{sum(found.clearly(*pair) for pair in pairs)} of {len(pairs)} stable maps are apart from direct with every "
        f"seed. Rates: {listed(found.config.rates, 'g')}; 0: not even the smallest; {found.config.seeds} seeds.",
    )


def _best(stable: list[str], found: dict[str, Survival]) -> Claim:
    behind = [task for task, one in found.items() if not all(one.no_less("best", map) for map in stable)]
    undecided = sum(one.undecided for one in found.values())
    return Claim(
        "best survives no less than exp and softplus",
        OURS,
        f"behind on {', '.join(behind) or 'no task'}",
        rules.ours(rules.seen(undecided, len(found), rules.graded(not behind))),
        " · ".join(f"{task}: {one.edges(stable)}" for task, one in found.items()) + ".",
    )


def _losses(task: str, stable: list[str], found: Survival) -> Claim:
    """Return a claim with its verdict: each stable map, at its own best learning rate, has about the same test loss as
    the map with the smallest test loss.
    """
    config, losses = found.config, {}
    for map, table in found.found.items():
        medians = np.where(np.isnan(table["test"]).any(1), np.inf, np.median(table["test"], axis=1))
        losses[map] = float(medians.min())
    gap = max(losses[map] for map in stable) - min(losses.values())
    return Claim(
        f"{task}: at its best rate, every stable map is about as good as the best of all maps",
        OURS,
        f"test losses {listed(losses, '.3f')}",
        rules.ours(rules.graded(gap <= config.close)),
        f"The largest gap is {gap:.3f} nats; up to {config.close:g} does not count. Medians over {config.seeds} seeds.",
    )


def _unstable(found: dict[str, Survival]) -> Claim:
    """Return a claim with its verdict: in most failed training runs with the direct map, the recurrence has become
    unstable, which means that its largest eigenvalue λ is positive.
    """
    failed = [(one.found["direct"]["largest"], ~one.survived["direct"]) for one in found.values()]
    count = sum(int(lost.sum()) for _, lost in failed)
    grew = sum(int(((largest > 0) | np.isnan(largest))[lost].sum()) for largest, lost in failed)
    verdict = rules.decided(count > 0, rules.graded(2 * grew >= count))
    return Claim(
        "where direct fails, its recurrence has become unstable",
        OURS,
        f"{grew} of {count} failed trainings end with a positive λ",
        rules.ours(verdict),
        "A positive λ makes the state grow at every step, whatever the gate is. At least half of the trainings count "
        "as yes.",
    )


LARGE = GatedConfig(
    copying=(256, 16, 16), recall=(256, 65, 8), length=512, d_model=64, d_state=16, base=0.003, steps=3000, batch=64
)
SMOKE = GatedConfig(
    tasks=("copying", "language"), maps=("direct", "exp", "best"), rates=(0.01, 10.0), seeds=2, copying=(8, 5, 2),
    text="copies", d_model=8, n_layers=1, d_state=2, steps=4, batch=4,
)  # fmt: skip

EXPERIMENT = described(
    __file__, computing(training), figures, claims, smoke=SMOKE, reduced=GatedConfig(), large=LARGE,
    minutes=(0.1, 11.0, 120.0), jobs=training.jobs,
)  # fmt: skip
