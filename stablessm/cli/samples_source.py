"""Reading the samples of ``stablessm fit --from``: a text file with one row per time."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from stablessm import _cells
from stablessm._errors import ArgumentError

_UNEVEN = 1e-6  # as a fraction of a step: how far rounded times may be from even spacing


@final
@dataclass(frozen=True, eq=False)
class SampleFile:
    """The content of the file."""

    values: np.ndarray
    """(n,), or (n, d_out, 1) for several outputs."""
    times: np.ndarray | None
    """(n,) if there is a column of them that is not 0, dt, 2dt, …; None otherwise."""
    dt: float | None
    """The spacing of the column of times, if it is even; None if there is no such column."""


def read_samples(path: Path, rows: int | None = None) -> SampleFile:
    """Read ``path``: one column is values, evenly spaced; two are t and value; more are t and one value per output.

    Columns are separated by semicolons, tabs, bars, commas or spaces; a comma that is no separator is a decimal comma.
    Complex values are written as NumPy writes them, ``(0.5+0.25j)``. A first line of names, empty lines and text after
    a ``#`` are skipped. ``rows``: how many to read; all by default.
    """
    try:
        lines = [line.split("#")[0].strip() for line in _cells.decoded(path.read_bytes()).splitlines()]
        body = "\n".join(list(filter(None, lines))[1:])  # the first line may be names
        separator = _cells.separator_of(body)
        split = _cells.split("\n".join(lines), separator)
    except (OSError, ValueError, csv.Error) as error:
        raise ArgumentError("--from", "a text file of numbers", f"{path} ({error})") from error
    table: list[list[complex]] = []
    for place, (number, row) in enumerate(split):
        cells = [cell for cell in (row if separator else row[0].split()) if cell]
        if separator != ",":
            cells = [cell.replace(",", ".") for cell in cells]
        if place == 0 and not any(map(_is_number, cells)):
            continue
        if rows is not None and len(table) == rows:
            break
        table.append([_number(path, number, cell) for cell in cells])
        if len(table[-1]) != len(table[0]):
            raise ArgumentError("--from", f"{len(table[0])} columns in each line", f"{len(cells)} in {path}:{number}")
    if len(table) < max(2, rows or 0):
        raise ArgumentError("--from", f"{rows or 'two'} or more lines of numbers", f"{len(table)} in {path}")
    whole = np.array(table)
    return _columns(path, whole if whole.imag.any() else whole.real)


def _columns(path: Path, table: np.ndarray) -> SampleFile:
    if table.shape[1] == 1:
        return SampleFile(table[:, 0], None, None)
    if table[:, 0].imag.any():
        raise ArgumentError("--from", "real times in the first column", f"complex numbers in {path}")
    times, values = table[:, 0].real, table[:, 1] if table.shape[1] == 2 else table[:, 1:, None]
    steps = np.diff(times)
    if times[0] < 0 or not (steps > 0).all():
        row = 0 if times[0] < 0 else int(np.argmax(steps <= 0)) + 1
        expected = "times that increase, from 0 up, in the first column"
        raise ArgumentError("--from", expected, f"{times[row]:g} in {path}")
    dt = float(times[-1] / (len(times) - 1))
    even = bool(np.abs(times - dt * np.arange(len(times))).max() <= _UNEVEN * dt)
    return SampleFile(values, None, dt) if even else SampleFile(values, times, None)


def _number(path: Path, line: int, cell: str) -> complex:
    if not _is_number(cell) or not np.isfinite(complex(cell)):
        expected = "finite numbers (with a column of times samples may be uneven: leave out lines that have none)"
        raise ArgumentError("--from", expected, f"{cell!r} in {path}:{line}")
    return complex(cell)


def _is_number(cell: str) -> bool:
    try:
        complex(cell)
    except ValueError:
        return False
    return True
