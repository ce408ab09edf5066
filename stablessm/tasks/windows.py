"""The base class of tasks that forecast a series from windows of its past."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError
from stablessm.tasks import sources
from stablessm.tasks.base import SPLITS, Batch, Inputs, Outputs, Split, Task
from stablessm.tasks.scoring import best_constant, score


class WindowTask(Task):
    """The base class of forecasting tasks: from ``window`` rows of a series, predict some of its columns in the next
    ``horizon`` rows.

    For a series with d columns, of which k are predicted, inputs are (B, window, d) and targets (B, horizon · k). The
    splits follow one another in time. Every column is standardized by the mean and standard deviation of the training
    rows, and scores are of standardized values, as usual in the literature. A window of the validation or test split
    may begin before the split; only the rows that are forecast must belong to the split. The output lists all predicted
    columns of the first step, then of the second step, and so on.
    """

    def _slide(
        self,
        series: np.ndarray,
        columns: Sequence[str],
        targets: Sequence[str],
        parts: Mapping[Split, int],
        window: int,
        horizon: int,
    ) -> None:
        """Set up the task from a ``series`` (rows, columns); ``parts`` has the number of rows of each split."""
        window, horizon = whole_number("window", window), whole_number("horizon", horizon)
        self.content, self.unscaled = sources.content_digest(series), series
        seen = series[: parts["train"]]
        with np.errstate(over="ignore", invalid="ignore"):
            self.mean, deviation = seen.mean(0), seen.std(0)
        if not np.isfinite(deviation).all():
            name = columns[int(np.argmin(np.isfinite(deviation)))]
            raise ArgumentError(
                f"column {name}", "numbers with a finite standard deviation", f"up to {abs(seen).max():g}"
            )
        self.deviation = np.where(deviation > 0, deviation, 1.0)
        self.columns, self.targets = tuple(columns), tuple(targets)
        self._tensors = {
            "series": self._standardized(),
            "window": torch.arange(window),
            "horizon": torch.arange(window, window + horizon),
            "targets": torch.tensor([self.columns.index(name) for name in targets]),
        }
        self._first, self.sizes, end = {}, {}, 0
        for split in SPLITS:
            begin, end = end, end + parts[split]
            self._first[split] = max(begin - window, 0)
            self.sizes[split] = max(end - window - horizon + 1 - self._first[split], 0)
        for split in ("train", "test"):
            if not self.sizes[split]:
                expected = f"a window and a horizon that fit into the {parts[split]} rows of {split}"
                raise ArgumentError("window, horizon", expected, f"{window}, {horizon}")
        self.inputs = Inputs("values", len(self.columns), window)
        names = tuple(f"{name}+{step}" for step in range(1, horizon + 1) for name in targets)
        self.outputs = Outputs("values", len(names), per_step=False, names=names)

    @cached_property
    def chance(self) -> float:
        """Metric of the best constant forecast on the test split."""
        return best_constant(self.metric, self._targets("test", torch.arange(self.sizes["test"])))

    @cached_property
    def naive(self) -> float:
        """Metric of the naive forecast on the test split. The naive forecast repeats the last row of each window."""
        indices, steps = torch.arange(self.sizes["test"]), len(self._tensors["horizon"])
        last = self._after("test", indices, self._tensors["window"][-1:])
        total, count = score(self.metric, last.repeat(1, steps, 1).flatten(1), self._targets("test", indices), None)
        return (total / count).item()

    @property
    def baselines(self) -> dict[str, float]:
        """Metrics, on the test split, of simple forecasts without a model: a dict from a description of the forecast to
        its metric.
        """
        return {**super().baselines, "repeating the last row": self.naive}

    def describe(self) -> dict[str, Any]:
        """Return the description of the task, including the scale of the columns and the columns that are forecast."""
        pairs = zip(self.mean.tolist(), self.deviation.tolist(), strict=True)
        scale = {name: {"mean": m, "deviation": s} for name, (m, s) in zip(self.columns, pairs, strict=True)}
        return {**super().describe(), "scale": scale, "targets": list(self.targets)}

    def as_trained(self, description: Mapping[str, Any]) -> Self:
        """Return this task with every column standardized by the mean and standard deviation of the training task."""
        scale = description["scale"]
        if tuple(scale) != self.columns:
            raise ArgumentError("columns", f"{', '.join(scale)}, as in training", ", ".join(self.columns))
        task = copy.copy(self)
        for name in ("chance", "naive"):
            task.__dict__.pop(name, None)  # these scores depend on the scale of the targets
        task.mean, task.deviation = (np.array([s[of] for s in scale.values()]) for of in ("mean", "deviation"))
        task._tensors = {**self._tensors, "series": task._standardized().to(self.device)}
        return task

    def _standardized(self) -> Tensor:
        return torch.from_numpy((self.unscaled - self.mean) / self.deviation).float()

    def ahead(self, split: Split, indices: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
        """Return the windows (B, window, columns) with the given indices, and the rows (B, horizon, targets) that
        follow each window, both standardized.
        """
        later = len(self._tensors["window"]) + torch.arange(horizon, device=self.device)
        return self._rows(split, indices, self._tensors["window"]), self._after(split, indices, later)

    def windows(self, split: Split, horizon: int) -> int:
        """Return the number of windows of a split that have ``horizon`` rows of the split after them."""
        return max(self.sizes[split] + len(self._tensors["horizon"]) - horizon, 0) if self.sizes[split] else 0

    def _examples(self, split: Split, indices: Tensor, seed: int, epoch: int) -> Batch:
        return Batch(self._rows(split, indices, self._tensors["window"]), self._targets(split, indices))

    def _targets(self, split: Split, indices: Tensor) -> Tensor:
        return self._after(split, indices, self._tensors["horizon"]).flatten(1)

    def _after(self, split: Split, indices: Tensor, steps: Tensor) -> Tensor:
        return self._rows(split, indices, steps)[..., self._tensors["targets"]]

    def _rows(self, split: Split, indices: Tensor, steps: Tensor) -> Tensor:
        """Return the rows (B, steps, columns) of the series at the given steps, counted from the start of each window
        with the given indices.
        """
        first = (indices + self._first[split]).to(self.device, non_blocking=True)
        return self._tensors["series"][first[:, None] + steps]
