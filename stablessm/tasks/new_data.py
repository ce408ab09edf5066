"""Prepares new data for a trained model: reads data that need no labels, and scales them like the training data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.scan.padding import without_padding
from stablessm.tasks import csv_file, own, own_csv, sources

Data: TypeAlias = str | Path | np.ndarray | Tensor
"""New data: an array, or the name of a file."""


_FAR = 10
"""New data are far from the training data if their median is more than this many standard deviations away."""


@final
@dataclass(frozen=True, eq=False)
class SeriesReader:
    """A reader of new data for a forecasting model, with the columns and the scale of the training data.

    >>> scale = {"load": {"mean": 10.0, "deviation": 2.0}, "wind": {"mean": 1.0, "deviation": 4.0}}
    >>> options = {"target": "load", "window": 2, "horizon": 1}
    >>> reader = SeriesReader.of({"task": "series", "options": options, "scale": scale})
    >>> reader.standardized(np.array([[12.0, 5.0]])).tolist(), reader.in_units(torch.tensor([[1.5]])).tolist()
    ([[1.0, 1.0]], [[13.0]])
    """

    columns: tuple[str, ...]
    targets: tuple[str, ...]
    """Columns that the model forecasts."""
    window: int
    horizon: int
    mean: np.ndarray
    """Mean of each column in the training data (columns,)."""
    deviation: np.ndarray
    """Standard deviation of each column in the training data (columns,)."""
    missing: csv_file.Missing = "refuse"
    """Treatment of missing cells of a file."""
    seconds: float | None = None
    """Time between the rows of the training data in seconds, if they had dates."""

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """Create the reader for a model from ``describe()`` of the task on which the model was trained."""
        scale, options = description["scale"], description["options"]
        mean, deviation = (np.array([column[part] for column in scale.values()]) for part in ("mean", "deviation"))
        targets = tuple(description.get("targets") or own_csv.names_in(options.get("target", ""), scale) or scale)
        missing = options.get("missing", "refuse")
        sizes = options["window"], options["horizon"]
        return cls(tuple(scale), targets, *sizes, mean, deviation, missing, description.get("seconds"))

    def rows(self, data: Data) -> tuple[np.ndarray, tuple[str, ...]]:
        """Read the rows (n, columns) of a file or an array, in the units of the data; also return notes on cells that
        were filled.
        """
        notes: tuple[str, ...] = ()
        if isinstance(data, str | Path) and Path(data).suffix != ".npy":
            table, order = csv_file.read(Path(data)).oldest_first()
            table = dataclasses.replace(table, unit=self.seconds)
            _require_columns(table, self.columns)
            rows, kept = table.complete(self.columns, "columns", self.missing)
            notes = order + table.gaps(self.columns, self.missing) + table.unknown(self.columns)
            notes += own_csv.other_steps(kept, self.seconds, "dt" in self.columns)
        else:
            rows = np.asarray(own.array("data", data if not isinstance(data, Path) else str(data)), dtype=float)
            rows = rows[:, None] if rows.ndim == 1 else rows
            if rows.ndim != 2 or rows.shape[1] != len(self.columns):
                raise ArgumentError("data", f"(rows, {len(self.columns)}): {', '.join(self.columns)}", rows.shape)
            if not np.isfinite(rows).all():
                raise ArgumentError("data", "finite numbers", f"{rows[~np.isfinite(rows)][0]}")
        if len(rows) < self.window:
            raise ArgumentError("data", f"at least {self.window} rows, the window of the model", len(rows))
        return rows, notes + _far(rows[-self.window :], self.columns, self.mean, self.deviation)

    def standardized(self, rows: np.ndarray) -> Tensor:
        """Standardize rows by the mean and standard deviation of the training data."""
        return torch.from_numpy((rows - self.mean) / self.deviation).float()

    def in_units(self, outputs: Tensor) -> np.ndarray:
        """Convert standardized outputs (..., targets) of the model to the units of the data."""
        places = [self.columns.index(name) for name in self.targets]
        return np.asarray(outputs.double().cpu().numpy() * self.deviation[places] + self.mean[places])


def _far(values: np.ndarray, names: Sequence[str], mean: Any, deviation: Any) -> tuple[str, ...]:
    """Return a note for each column of ``values`` that is far from the training data, as if it had another unit."""
    found = zip(names, np.median(values, 0), mean, deviation, strict=True)
    far = [(name, f"{now:.4g}", f"{m:.4g} ± {d:.2g}") for name, now, m, d in found if abs(now - m) > _FAR * d]
    return tuple(f"the median of {name} is {now}, and in training {was}; check its unit" for name, now, was in far)


def _require_columns(table: csv_file.Table, columns: Sequence[str]) -> None:
    """Raise an error if a table lacks columns of the training data; the error names the missing columns."""
    if lacking := [name for name in columns if not table.has(name)]:
        dates = " (dt requires dates in every row that do not decrease)" if "dt" in lacking else ""
        expected = f"the columns of the training data ({', '.join(columns)})"
        raise ArgumentError("data", expected, f"{table.file} without {', '.join(lacking)}{dates}")


def sequences(
    description: Mapping[str, Any], data: Data
) -> tuple[tuple[str, ...], Tensor, Tensor | None, tuple[str, ...]]:
    """Read new sequences for a classifier or regressor, and return their names, standardized inputs and lengths, and
    notes on cells that were filled.

    Args:
        description: The result of ``describe()`` of the training task, which is a task ``sequences`` or ``arrays``.
        data: For ``sequences``, a CSV file, in which the column of labels may be missing. For ``arrays``, an array, an
            .npy file, or an .npz file with ``inputs`` and optionally ``lengths``.
    """
    lengths, notes = None, tuple[str, ...]()
    if isinstance(data, str | Path) and Path(data).suffix not in (".npy", ".npz"):
        if description["task"] != "sequences":
            raise ArgumentError("data", f"an .npy or .npz file, as in training of task {description['task']}", data)
        table, sequence = csv_file.read(Path(data)), description["options"]["sequence"]
        columns, missing = description["columns"], description["options"].get("missing", "refuse")
        _require_columns(table, [sequence, *columns])
        notes = table.gaps(columns, missing) + table.unknown(columns)
        values, _, rows = own_csv.complete_sequences(table, columns, table.column(sequence, "sequence"), missing)
        notes += _far(values, columns, *description["scale"].values())
        inputs, lengths = own_csv.padded(values, list(rows.values()))
        names = tuple(rows)
    else:
        if isinstance(data, str | Path) and Path(data).suffix == ".npz":
            inputs, *given = sources.arrays(Path(data), ("inputs",), "lengths")
            lengths = given[0] if given else None
        else:
            inputs = own.array("data", str(data) if isinstance(data, Path) else data)
        names = tuple(map(str, range(len(inputs))))
    x, scale = own.inputs_from(inputs), description["scale"]
    if x.is_floating_point() and scale:
        mean, deviation = (torch.tensor(scale[part]) for part in ("mean", "deviation"))
        if len(mean) != x.shape[-1]:
            raise ArgumentError("data", f"{len(mean)} channels, as in training", x.shape[-1])
        x = (x - mean) / deviation
    n = None if lengths is None else own.lengths_of(lengths, x)
    x = without_padding(x, n)
    own.require_finite("data", x)
    return names, x, n, notes
