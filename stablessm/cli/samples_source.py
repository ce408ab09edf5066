"""Where ``stablessm fit --from`` finds samples: a text file with one row per time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from stablessm._errors import ArgumentError

_UNEVEN = 1e-6  # of a step: what the rounding of printed times may do to an even spacing


@final
@dataclass(frozen=True, eq=False)
class SampleFile:
    """What the file says."""

    values: np.ndarray
    """(n,), or (n, d_out, 1) for several outputs."""
    times: np.ndarray | None
    """(n,) if there is a column of them that is not 0, dt, 2dt, …; None otherwise."""
    dt: float | None
    """The spacing of the column of times, if it is even; None if there is no such column."""


def read_samples(path: Path, rows: int | None = None) -> SampleFile:
    """Read ``path``: one column is values, evenly spaced; two are t and value; more are t and one value per output.

    Columns are separated by commas, semicolons, tabs or spaces. A first line of names, empty lines and what follows a
    ``#`` are skipped. ``rows``: how many to read; all by default.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError("--from", "a text file of numbers", f"{path} ({error})") from error
    table: list[list[float]] = []
    started = False
    for number, line in enumerate(lines, 1):
        cells = [cell for cell in re.split(r"\s*[,;\t]\s*|\s+", line.split("#")[0].strip()) if cell]
        names = not started and not any(map(_is_number, cells))
        started = started or bool(cells)
        if not cells or names:
            continue
        if rows is not None and len(table) == rows:
            break
        table.append([_number(path, number, cell) for cell in cells])
        if len(table[-1]) != len(table[0]):
            raise ArgumentError("--from", f"{len(table[0])} columns in each line", f"{len(cells)} in {path}:{number}")
    if len(table) < max(2, rows or 0):
        raise ArgumentError("--from", f"{rows or 'two'} or more lines of numbers", f"{len(table)} in {path}")
    return _columns(path, np.array(table))


def _columns(path: Path, table: np.ndarray) -> SampleFile:
    if table.shape[1] == 1:
        return SampleFile(table[:, 0], None, None)
    times, values = table[:, 0], table[:, 1] if table.shape[1] == 2 else table[:, 1:, None]
    steps = np.diff(times)
    if times[0] < 0 or not (steps > 0).all():
        row = 0 if times[0] < 0 else int(np.argmax(steps <= 0)) + 1
        expected = "times that increase, from 0 up, in the first column"
        raise ArgumentError("--from", expected, f"{times[row]:g} in {path}")
    dt = float(times[-1] / (len(times) - 1))
    even = bool(np.abs(times - dt * np.arange(len(times))).max() <= _UNEVEN * dt)
    return SampleFile(values, None, dt) if even else SampleFile(values, times, None)


def _number(path: Path, line: int, cell: str) -> float:
    if not _is_number(cell) or not np.isfinite(float(cell)):
        expected = "finite numbers (with a column of times samples may be uneven: leave out lines that have none)"
        raise ArgumentError("--from", expected, f"{cell!r} in {path}:{line}")
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
