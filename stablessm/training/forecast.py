"""Forecasts of a trained model in the units of the data, with intervals, and the errors of forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._arguments import real_number, whole_number
from stablessm._display import Result
from stablessm._errors import ArgumentError, NumericalError, quoted
from stablessm.tasks.base import Batch, Split
from stablessm.tasks.new_data import Data, SeriesReader
from stablessm.tasks.windows import WindowTask
from stablessm.training.evaluate import apply, evaluation_mode


@final
@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Result):
    """A forecast of the next rows of a series, in the units of the data."""

    columns: tuple[str, ...]
    values: np.ndarray
    """Forecast values (horizon, columns)."""
    lower: np.ndarray | None
    """Lower ends of the intervals (horizon, columns); None if there are no intervals."""
    upper: np.ndarray | None
    """Upper ends of the intervals (horizon, columns); None if there are no intervals."""
    past: np.ndarray
    """The rows before the forecast (window, columns)."""
    note: str
    """States which cells of the data were filled or dropped, and what the intervals are or why there are none."""

    def header(self) -> list[str]:
        """Return the column names of the table that :meth:`rows` yields."""
        parts = ("",) if self.lower is None else ("", " lower", " upper")
        return ["step", *(f"{name}{part}" for name in self.columns for part in parts)]

    def rows(self) -> Iterator[list[Any]]:
        """Yield one row per forecast step: the number of the step (from 1), then each column's forecast
        and interval.
        """
        parts = [part for part in (self.values, self.lower, self.upper) if part is not None]
        for step, row in enumerate(np.stack(parts, -1).reshape(len(self.values), -1).tolist(), 1):
            yield [step, *row]

    def plain(self) -> dict[str, Any]:
        """Return the forecast as a dictionary of plain values, for JSON."""
        parts = {"forecast": self.values, "lower": self.lower, "upper": self.upper}
        told = {name: None if part is None else part.tolist() for name, part in parts.items()}
        return {"columns": list(self.columns), **told, "note": self.note}


def forecast(
    model: nn.Module,
    reader: SeriesReader,
    data: Data,
    *,
    task: WindowTask | None,
    missing: str,
    horizon: int | None,
    level: float,
    batch_size: int,
    autocast: bool,
) -> Forecast:
    """Forecast the rows that follow the last row of ``data``, with intervals, in the units of the data.

    Args:
        model: The trained model.
        reader: Reader of new data for this model.
        data: A file or an array.
        task: The data that the model was trained on, for intervals; None for no intervals.
        missing: The reason why there is no ``task``.
        horizon: Number of rows to forecast (default: as in training). In a longer forecast, the rows that are already
            forecast become inputs, which requires a model that forecasts every column.
        level: Fraction of the validation errors that the intervals cover.
        batch_size, autocast: As for :func:`forecast_errors`.
    """
    horizon = whole_number("horizon", reader.horizon if horizon is None else horizon)
    level = real_number("level", level, 0, 1)
    rows, notes = reader.rows(data)
    rows = rows[-reader.window :]
    x = reader.standardized(rows)[None].to(next(model.parameters()).device)
    values = reader.in_units(_ahead(model, reader, x, horizon, autocast))[0]
    require_finite_outputs(values, "the forecast")
    lower = upper = None
    windows = 0 if task is None else task.windows("valid", horizon)
    if task is not None and windows:
        ends = (1 - level) / 2, (1 + level) / 2
        found = forecast_errors(model, task, "valid", horizon=horizon, batch_size=batch_size, autocast=autocast)
        errors = np.quantile(found, ends, axis=0)
        lower, upper = values + errors[0], values + errors[1]
        note = (
            f"Intervals: the forecast plus the {ends[0]:.4g} and {ends[1]:.4g} quantiles of the model's errors at the "
            f"same step over {windows} windows of the validation split."
        )
        if outside := int(((values < lower) | (values > upper)).any(-1).sum()):
            note += (
                f" {outside} of {horizon} forecasts are outside their own interval: on the validation split, the "
                f"model's errors at these steps nearly all have one sign."
            )
    else:
        short = f"no window of the validation split has {horizon} rows after it"
        note = f"No intervals: {missing if task is None else short}."
    past = rows[:, [reader.columns.index(name) for name in reader.targets]]
    return Forecast(reader.targets, values, lower, upper, past, "\n".join([*notes, note]))


@torch.no_grad()
def forecast_errors(
    model: nn.Module,
    task: WindowTask,
    split: Split = "test",
    *,
    horizon: int | None = None,
    batch_size: int = 64,
    autocast: bool = False,
) -> np.ndarray:
    """Return the forecast errors (data minus forecast) for every window of a split, in the units of the data.

    The shape is (windows, horizon, targets).
    """
    if not isinstance(task, WindowTask):
        raise ArgumentError("task", "a task that forecasts a series", type(task).__name__)
    steps = task.outputs.size // len(task.targets)
    reader = SeriesReader(task.columns, task.targets, task.inputs.length, steps, task.mean, task.deviation)
    horizon, task = horizon or steps, task.to(next(model.parameters()).device)
    deviation = reader.deviation[[reader.columns.index(name) for name in reader.targets]]
    parts = []
    for indices in torch.arange(task.windows(split, horizon)).split(batch_size):
        x, after = task.ahead(split, indices, horizon)
        off = after.double() - _ahead(model, reader, x, horizon, autocast).double()
        parts.append(off.cpu().numpy() * deviation)
    if not parts:
        raise ArgumentError("split", f"a split with windows and {horizon} rows after them", quoted(split))
    return np.concatenate(parts)


def require_finite_outputs(values: np.ndarray, what: str) -> None:
    """Raise an error if predicted values are not all finite; ``what`` is the name of the values in the error
    message.
    """
    if not np.isfinite(values).all():
        remedy = "predict data of the size of the training data, or train again with a lower learning rate"
        raise NumericalError(f"{what} is not finite ({values[~np.isfinite(values)][0]})", remedy)


def unit_scores(errors: np.ndarray, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the root mean square error and the mean absolute error of each column, in the units of the data.

    >>> unit_scores(np.array([[[3.0]], [[-4.0]], [[5.0]], [[0.0]]]), ["load"])
    {'load': {'rmse': 3.5355339059327378, 'mae': 3.0}}
    """
    rmse, mae = np.sqrt(np.square(errors).mean((0, 1))), np.abs(errors).mean((0, 1))
    return {name: {"rmse": float(rmse[i]), "mae": float(mae[i])} for i, name in enumerate(names)}


@torch.no_grad()
def _ahead(model: nn.Module, reader: SeriesReader, x: Tensor, horizon: int, autocast: bool) -> Tensor:
    """Compute standardized forecasts (B, horizon, targets) from standardized windows (B, window, columns)."""
    if horizon > reader.horizon and set(reader.targets) != set(reader.columns):
        others = ", ".join(name for name in reader.columns if name not in reader.targets)
        expected = f"at most {reader.horizon}, as in training, since the model does not forecast {others}"
        raise ArgumentError("horizon", expected, horizon)
    with evaluation_mode(model):
        parts = [_steps(model, reader, x, autocast)]
        while len(parts) * reader.horizon < horizon:
            fed = parts[-1][..., [reader.targets.index(name) for name in reader.columns]]
            x = torch.cat([x, fed.to(x.dtype)], 1)[:, -reader.window :]
            parts.append(_steps(model, reader, x, autocast))
    return torch.cat(parts, 1)[:, :horizon]


def _steps(model: nn.Module, reader: SeriesReader, x: Tensor, autocast: bool) -> Tensor:
    return apply(model, Batch(x, x), autocast=autocast).view(len(x), reader.horizon, len(reader.targets))
