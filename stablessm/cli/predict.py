"""``stablessm predict``: computes forecasts and class probabilities with a trained model."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from stablessm._errors import ArgumentError, NumericalError, printable
from stablessm.cli.options import DEVICE, argument, option, refusing
from stablessm.cli.output import note

if TYPE_CHECKING:
    from stablessm.report.figure import Figure
    from stablessm.training import Forecast, Predictions

_PANELS = 4
"""Columns or classes that a plot shows."""


def predict(
    folder: Path = argument(..., "Run folder that stablessm train wrote."),
    data: Path | None = argument(
        None, "CSV, .npy or .npz file without labels (default: training data for a forecast, else the test split)."
    ),
    horizon: int | None = option(None, "Number of rows to forecast (default: as in training).", min=1),
    level: float = option(0.9, "Fraction of the validation errors that the intervals of a forecast cover."),
    device: str = DEVICE,
    out: Path | None = option(None, "CSV file to write, together with a plot (default: print the CSV)."),
) -> Any:
    """Forecast a series, or classify sequences, with a trained model.

    A forecast is for the rows after the last row of the file, in the units of the data. The intervals of a forecast add
    quantiles of the model's errors on the validation split, taken separately for each step, to the forecast. With a
    horizon longer than in training, forecasts are fed back as inputs. Without a file, the forecast is for the rows
    after the training data.

    A classifier gives the most likely class and the probability of each class. Without a file, it classifies the test
    split.

    Examples:

      stablessm predict runs/load
      stablessm predict runs/load next-week.csv --horizon 24 --level 0.8
      stablessm predict runs/load --out forecast.csv
      stablessm predict runs/walks new-walks.csv --json
    """
    with refusing(NumericalError, cannot=f"predict with {folder}"):
        if out is not None and out.suffix != ".csv":
            raise ArgumentError("--out", "a file whose name ends in .csv", str(out))
        from stablessm import training

        found = training.TrainedModel(folder, device=device).predict(data, horizon=horizon, level=level)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found.header())
    writer.writerows(found.rows())
    if out is None:
        typer.echo(printable(text.getvalue()), nl=False)
        note(found.note, err=True)
    else:
        from stablessm import record

        with refusing(OSError, cannot=f"write to {out}"):
            with record.atomic(out) as temporary:
                temporary.write_text(text.getvalue(), encoding="utf-8")
            _figure(found, out.stem).save_pictures(out.parent)
        note(found.note)
        note(f"written: {out}, {out.stem}.png, {out.stem}.svg")
    return found.plain()


def _figure(found: Forecast | Predictions, name: str) -> Figure:
    """Draw the past, the forecast and its interval for each column; or the probabilities or values of the sequences."""
    from stablessm.report.figure import Figure, Panel, Series
    from stablessm.training import Forecast

    if not isinstance(found, Forecast):
        lines = [
            Series(column, [*range(len(found.values))], found.values[:, i].tolist(), "points")
            for i, column in enumerate(found.columns[:_PANELS])
        ]
        return Figure(name, found.note, [Panel("predictions", "sequence", "probability or value", lines)])
    panels, steps = [], [*range(1, len(found.values) + 1)]
    before = [*range(1 - len(found.past), 1)]
    for i, column in enumerate(found.columns[:_PANELS]):
        lines = [Series("data", before, found.past[:, i].tolist())]
        lines.append(Series("forecast", steps, found.values[:, i].tolist(), group="forecast"))
        for part, values in (("lower end", found.lower), ("upper end", found.upper)):
            if values is not None:
                lines.append(Series(part, steps, values[:, i].tolist(), "dotted", group="forecast"))
        panels.append(Panel(column, "step", column, lines))
    return Figure(name, found.note, panels)
