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
from stablessm.experiments.beyond.gated.claims import claims
from stablessm.experiments.frame import Figure, Figures, Panel, Run, Series, Stages, computing, described, stage
from stablessm.experiments.frame.survival import entropy
from stablessm.experiments.frame.user_training import trained
from stablessm.instruments.modes import recurrent_modules
from stablessm.models import for_task
from stablessm.tasks.base import Task
from stablessm.training import TrainingConfig

TASKS = ("copying", "recall", "language")
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
        lines, level = [], float(training(stages, task, config.maps[0], config.rates[0])["entropy"])
        for map in config.maps:
            found = [training(stages, task, map, rate) for rate in config.rates]
            finals = [np.median(np.where(one["diverged"] < 0, one["final"], np.nan)) for one in found]
            lines.append(Series(map, config.rates, finals, "solid", map))
        lines.append(Series("without the input", config.rates, [level] * len(config.rates), "dashed"))
        panels.append(Panel(task, "learning rate of the recurrent weights", "cross-entropy [nats]", lines, "log"))
    yield Figure(
        "losses",
        "Training loss over the last tenth of the steps, the median of the seeds. A line ends where a training of the "
        "median diverged; above the dashed line a model is worse than one that ignores its input.",
        panels,
    )


LARGE = GatedConfig(
    copying=(256, 16, 16), recall=(256, 65, 8), length=512, d_model=64, d_state=16, base=0.003, steps=3000, batch=64
)
SMOKE = GatedConfig(
    tasks=("copying", "language"), maps=("direct", "exp", "best"), rates=(0.01, 10.0), seeds=2, copying=(8, 5, 2),
    text="copies", d_model=8, n_layers=1, d_state=2, steps=4, batch=4,
)  # fmt: skip

EXPERIMENT = described(
    __file__, computing(training), figures, lambda config, stages: claims(training, config, stages), smoke=SMOKE,
    reduced=GatedConfig(), large=LARGE, minutes=(0.1, 11.0, 120.0), jobs=training.jobs,
)  # fmt: skip
