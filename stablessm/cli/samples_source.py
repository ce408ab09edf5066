"""Reads the samples of ``stablessm fit --from``: a text file with one row per time."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from stablessm import _cells, _dates
from stablessm._errors import ArgumentError
from stablessm._similar import did_you_mean

_UNEVEN = 1e-6  # as a fraction of a step: how far rounded times may be from a grid
_PRESENT = 0.5  # the least part of a grid that must be there; otherwise times count as irregular
_COMMENT = re.compile(r"\s*(#|%|//)")
_STARTS_NUMBER = re.compile(r'\s*["(]?[-+−.]?\d')
_SPACED_COMPLEX = re.compile(r"(?<=[\d.])\s*([-+])\s+(?=[\d.,]+(?:[eE][-+]?\d+)?[ij]\b)")  # 0.5 + 0.25i
_SIGN = re.compile(r"(?<=[\d.])(?=[-+−])")
_FORTRAN = re.compile(r"(?<=[\d.])[dD](?=[-+]?\d)")  # 1.5D-3
_PAIR = re.compile(r"\(([^,()]+),([^,()]+)\)")  # (0.5,0.25), as C++ writes complex numbers
_PLAIN_PAIR = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
_COMPLEX_COMMAS = re.compile(r"\(?{0}[-+]{0}[ij]\)?".format(r"[-+]?\d+(,\d+)?([eE][-+]?\d+)?"))
_NOISE = frozenset(
    {"noise", "std", "stdev", "stddev", "sd", "sigma", "σ", "stderr", "se", "err", "error", "uncertainty"}
)
_ROLES = {"noise": _NOISE, "weights": frozenset({"weight", "weights"})}
_PARTS = {"re": 0, "real": 0, "im": 1, "imag": 1, "imaginary": 1}
_KNOWN = _NOISE | _ROLES["weights"] | _PARTS.keys()


@final
@dataclass(frozen=True, eq=False)
class SampleFile:
    """The samples in a file, ordered by time."""

    values: np.ndarray
    """(n,), or (n, d_out, 1) for several outputs."""
    times: np.ndarray
    """(n,) increasing."""
    dt: float | None
    """Step of an even grid that contains all times; None if more than half of the grid points would be missing."""
    noise: np.ndarray | None = None
    """(n,) standard deviations, if a column is named for them."""
    weights: np.ndarray | None = None
    """(n,) weights, if a column is named for them or times occur more than once."""
    notes: tuple[str, ...] = ()
    """What was left out or changed."""

    @property
    def complete(self) -> bool:
        """True if the times are 0, dt, 2 dt, … without a gap."""
        return self.dt is not None and round(self.times[-1] / self.dt) == len(self.times) - 1


def read_samples(path: Path, rows: int | None = None, dt: float | None = None, *, average: bool = False) -> SampleFile:
    """Read the samples in the file ``path``.

    A file with one column contains values at evenly spaced times. Otherwise the first column is the time, and each
    other column contains the values of one output.

    Columns are separated by semicolons, tabs, bars, commas or spaces. A comma that does not separate columns is a
    decimal comma, or separates thousands if other numbers in the file have decimal points. Complex values are written
    as ``(0.5+0.25j)``, ``0.5+0.25i``, or in two columns named ``re`` and ``im`` (or ``x_re`` and ``x_im``). A column
    named ``noise``, ``sigma``, ``std`` or ``error`` contains standard deviations, and a column named ``weights``
    contains weights. Lines without a number before the data, notes below the data, empty lines and comments (``#``,
    ``%``, ``//``) are skipped. Lines with a missing value are left out, and times may be in any order. Dates are read
    as seconds since the first date.

    Args:
        path: the file.
        rows: number of samples to read (default: all). For times on an even grid, missing grid points count as samples.
        dt: time between the lines of a file without times (default: 1). A ``dt`` for a file with times raises an error.
        average: whether the values of a time that occurs more than once are averaged; otherwise, different values for
            one time raise an error.
    """
    names, numbers, table, notes = _table(path)
    present = np.isfinite(table).all(axis=1)
    if not present.all():
        first = numbers[int(np.argmin(present))]
        notes.append(f"lines without a finite value, left out: {(~present).sum()} (first: line {first})")
    columns = _named(path, names, table)
    step = None
    if "times" not in columns:
        step = 1.0 if dt is None else dt
        columns["times"] = step * np.arange(len(table))
    elif dt is not None:
        raise ArgumentError("--dt", "no --dt, because the file has times", f"{dt:g}")
    columns = {name: column[present] for name, column in columns.items()}
    if (columns["times"] < 0).any():
        raise ArgumentError("--from", "times from 0 up in the first column", f"{columns['times'].min():g} in {path}")
    if (np.diff(columns["times"]) < 0).any():
        notes.append("the lines were sorted by time")
    columns, repeated = _ordered(path, columns, average)
    if repeated:
        notes.append(f"times with several values, which were averaged: {repeated}")
    count, times = len(columns["times"]), columns["times"]
    step = _step(times) if step is None and count > 1 else step
    if step is not None:  # rounded times are put on the grid
        columns["times"] = times = step * np.rint(times / step)
    kept = np.ones(count, dtype=bool)
    if rows is not None:
        kept = np.arange(count) < rows if step is None else times < (rows - 0.5) * step
        count = count if step is None or not count else 1 + round(times[-1] / step)
    if count < max(2, rows or 0) or kept.sum() < 2:
        raise ArgumentError("--from", f"{rows or 'two'} or more lines of numbers", f"{count} in {path}")
    return SampleFile(**{name: column[kept] for name, column in columns.items()}, dt=step, notes=tuple(notes))


def _table(path: Path) -> tuple[list[str], list[int], np.ndarray, list[str]]:
    """Read a text file of numbers; return column names (empty if unknown), line numbers, cells (NaN if
    missing) and notes.
    """
    try:
        lines = [_SPACED_COMPLEX.sub(r"\1", line) for line in _cells.decoded(path.read_bytes()).splitlines()]
        plain = ["" if _COMMENT.match(line) else line.split("#")[0].rstrip() for line in lines]
        separator = _separator(plain)
        split, notes = _cells.below_preamble(_cells.split("\n".join(plain), separator))
    except (OSError, ValueError, csv.Error) as error:
        why = error if path.exists() else f"no such file{did_you_mean(path)}"
        raise ArgumentError("--from", "a text file of numbers", f"{path} ({why})") from error
    cut = [(number, row if separator else row[0].split()) for number, row in split]
    cells = [cell for _, row in cut for cell in row]
    commas, either = _cells.decimal_mark([part for cell in cells for part in _parts(cell)], separator)
    seen = [[_number(cell, commas) for cell in row] for _, row in cut]
    last = len(cut)
    while 2 * last > len(cut) and _is_note(cut[last - 1][1], seen[last - 1]):
        last -= 1
    if last < len(cut):
        notes.append(f"{_cells.skipped(cut[last][0], cut[-1][0])} below the samples")
        cut, seen = cut[:last], seen[:last]
    notes += _dates_to_seconds([row for _, row in cut], seen)
    is_data = (None not in row or any(v is not None and np.isfinite(v) for v in row) for row in seen)
    first = next((i for i, yes in enumerate(is_data) if yes), len(cut))
    body = cut[first:]
    if len(body) < 2:
        raise ArgumentError("--from", "two or more lines of numbers", f"{len(body)} in {path}")
    width = len(body[0][1])
    if width > 1 and all(len(row) < width or not row[-1] for _, row in body):  # every line ends with a separator
        width -= 1
    table = []
    for (number, row), values in zip(body, seen[first:], strict=True):
        cells = row[:width] if not any(row[width:]) else row
        if len(cells) != width:
            raise ArgumentError("--from", f"{width} columns in each line", f"{len(cells)} in {path}:{number}")
        table.append(values[:width])
        if None in table[-1]:
            raise ArgumentError("--from", "numbers", f"{cells[table[-1].index(None)]!r} in {path}:{number}")
    comments = (_COMMENT.sub("", line) for line in lines[: body[0][0] - 1] if _COMMENT.match(line))
    headers = [row for _, row in cut[:first]] + [line.split(separator) for line in comments]
    headers += [" ".join(row).split() for row in headers]  # names with spaces between them, above other separators
    fitting = [row[:width] for row in headers if len(row) >= width and not any(row[width:])]
    names = next((row for row in fitting if any(_KNOWN.intersection(_words(name)) for name in row)), [])
    notes += [_cells.reading(either, commas)] if either else []
    return names, [number for number, _ in body], np.array(table), notes


def _is_note(cells: Sequence[str], values: Sequence[complex | None]) -> bool:
    """Return True if a line, such as a mean below the samples, is a note: the first nonempty cell of the line is a word
    that does not stand for a missing value.
    """
    return next(
        (value is None and not _STARTS_NUMBER.match(cell) for cell, value in zip(cells, values, strict=True) if cell),
        False,
    )


def _dates_to_seconds(cells: Sequence[Sequence[str]], values: Sequence[list[complex | None]]) -> list[str]:
    """Replace dates in the first column of ``values``, in place, by seconds since the first date; return a note for the
    user, or no note if there are no dates. ``cells`` are the same rows as text.

    The rows above the first date, such as column names, are left alone.
    """
    first = next((i for i, row in enumerate(cells) if len(row) > 1 and _dates.dates(row[:1])), len(cells))
    dates = _dates.dates([row[0] for row in cells[first:]])
    there = [date for date in dates if date is not None]
    if not there:
        return []
    for row, date in zip(values[first:], dates, strict=True):
        row[0] = complex(np.nan if date is None else (date - min(there)).total_seconds())
    return [f"dates are read as seconds since {min(there)}"]


def _separator(lines: list[str]) -> str | None:
    """Return the character that separates columns, or None if columns are separated by spaces or there is only one
    column.
    """
    body = [line.strip() for line in lines if _STARTS_NUMBER.match(line)]
    separator = _cells.separator_of("\n".join(body))
    if separator != ",":
        return separator
    words = [line.split() for line in body]
    if all(len(row) > 1 and not any(word.strip(",") != word for word in row) for row in words):
        return None  # spaces separate, so that commas are decimal
    if all(_COMPLEX_COMMAS.fullmatch(line) for line in body):
        return None
    if all(_PLAIN_PAIR.fullmatch(line) for line in body):  # either two columns of whole numbers, or decimal commas
        heads = [line for line in lines[: lines.index(body[0])] if line] if body[0] in lines else []
        whole = [line.split(",")[0] for line in body]
        if (heads and "," not in heads[-1]) or len(set(whole)) < len(whole):
            return None
    return separator


def _named(path: Path, names: Sequence[str], table: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of a table by role: the values and, if present, times, noise and weights."""
    found: dict[str, np.ndarray] = {}
    columns: list[np.ndarray] = []
    real_parts: dict[tuple[str, ...], int] = {}
    for column, name in zip(table.T, names or [""] * table.shape[1], strict=True):
        words = _words(name)
        role = next((role for role, known in _ROLES.items() if known.issuperset(words[:1]) and words), None)
        part = next((_PARTS[word] for word in words if word in _PARTS), None)
        rest = tuple(word for word in words if word not in _PARTS)
        if role is not None and role not in found:
            found[role] = column.real
        elif part == 1 and rest in real_parts:
            at = real_parts.pop(rest)
            columns[at] = columns[at] + 1j * column.real
        else:
            real_parts |= {rest: len(columns)} if part == 0 else {}
            columns.append(column)
    if not columns:
        raise ArgumentError("--from", "a column of values", f"columns {', '.join(names)} in {path}")
    if len(columns) > 1:
        if np.nan_to_num(columns[0].imag).any():
            raise ArgumentError("--from", "real times in the first column", f"complex numbers in {path}")
        found["times"], columns = columns[0].real, columns[1:]
    values = np.stack(columns, axis=1)
    values = values if np.nan_to_num(values.imag).any() else values.real
    return {**found, "values": values[:, 0] if len(columns) == 1 else values[:, :, None]}


def _ordered(path: Path, columns: dict[str, np.ndarray], average: bool) -> tuple[dict[str, np.ndarray], int]:
    """Return the samples sorted by time, and the number of times that have several different values. Samples with equal
    times are merged; different values are averaged if ``average`` is True, and raise an error otherwise.
    """
    values = columns["values"]
    times, first, place, count = np.unique(columns["times"], return_index=True, return_inverse=True, return_counts=True)
    differ = np.unique(place[(values != values[first[place]]).reshape(len(place), -1).any(axis=1)])
    if not len(differ):
        return {name: column[first] for name, column in columns.items()}, 0
    if not average:
        got = f"{count[differ[0]]} different values at t = {times[differ[0]]:g} in {path}"
        raise ArgumentError("--from", "one value per time; --norm l2 averages several", got)
    precision = columns["noise"] ** -2.0 if "noise" in columns else columns.get("weights", np.ones(len(place)))
    total = np.bincount(place, precision)
    share = np.where(total[place] > 0, precision / np.where(total > 0, total, 1)[place], 1 / count[place])
    mean = np.zeros((len(times), *values.shape[1:]), dtype=values.dtype)
    np.add.at(mean, place, values * share.reshape(-1, *[1] * (values.ndim - 1)))
    counted = {"noise": total**-0.5} if "noise" in columns else {"weights": total}
    return {"times": times, "values": mean, **counted}, len(differ)


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", name.lower())


def _step(times: np.ndarray) -> float | None:
    """Return the time step of an even grid that contains all times; None if there is no such grid, or if fewer than
    half of its points are among the times.
    """
    step = float(np.diff(times).min())
    steps = np.rint(times / step)
    if not 0 < _PRESENT * steps[-1] <= len(times):
        return None
    step = float(times[-1] / steps[-1])  # has a smaller rounding error
    return step if np.abs(times - step * steps).max() <= _UNEVEN * step else None


def _parts(cell: str) -> list[str]:
    """Return the real numbers in a cell as texts: two for a complex number, otherwise one.

    >>> _parts("(1,040+2.5j)"), _parts("1.5D-3"), _parts("(5,25)")
    (['1,040', '+2.5'], ['1.5e-3'], ['(5,25)'])
    """
    cell = _FORTRAN.sub("e", cell)
    inner = cell.strip("()")
    return _SIGN.split(inner.rstrip("ijIJ*")) if inner.endswith(("i", "j", "I", "J")) else [cell]


def _number(cell: str, commas: bool) -> complex | None:
    """Return the number in a cell, NaN for a missing value, or None if the cell contains other text; ``commas`` states
    whether commas are decimal marks.
    """
    cell = _FORTRAN.sub("e", cell.strip().replace("−", "-"))
    real = _cells.number(cell, commas)
    if real is not None:
        return complex(real)
    pair = _PAIR.fullmatch(cell)
    try:
        if pair is not None:
            return complex(float(pair[1]), float(pair[2]))
        cell = cell.strip("()").replace(" ", "").replace("*", "")
        cell = cell.replace(",", ".") if commas else cell
        return complex(f"{cell[:-1]}j" if cell.endswith(("i", "I")) else cell)
    except ValueError:
        return None
