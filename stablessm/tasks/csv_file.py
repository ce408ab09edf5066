"""Reads CSV and Parquet files as tables of numbers; errors name the file, the line and the column."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np

from stablessm import _cells, _dates
from stablessm._errors import ArgumentError, MissingPackageError, quoted
from stablessm._optional import require
from stablessm._similar import did_you_mean
from stablessm.tasks import csv_head, csv_times, sources

Missing: TypeAlias = Literal["forward", "interpolate", "drop", "mask", "refuse"]
_EXPECTED = "a CSV file with a line of column names and at least one row"
_MOST_CATEGORIES = 30
_INDEX = re.compile(r"column \d+|Unnamed: \d+|index", re.IGNORECASE)
"""Names of columns that number the rows."""
_MARK = re.compile(r"-?9{2,}(\.9+|\.25)?")
"""Numbers that often mark missing values."""


@final
@dataclass(frozen=True, eq=False)
class Table:
    """A table read from a CSV or Parquet file: column names and the cells as text.

    Some further columns are computed from the columns of the file. ``dt`` is the time since the previous row, according
    to the first column of dates, divided by ``unit`` (in seconds). ``NAME missing`` is 1 where the cell of column NAME
    is missing, otherwise 0. ``NAME=TEXT`` is 1 where column NAME has this text, otherwise 0.
    """

    file: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    """Line number of each row in the file (of its last line), counted from 1."""
    decimal_commas: bool = False
    notes: tuple[str, ...] = ()
    """Sentences for the user about lines that were dropped and numbers that may be read in two ways."""
    unit: float | None = None
    """Unit of the column ``dt`` in seconds (default: the usual time between rows)."""

    def has(self, name: str) -> bool:
        """Return True if a column is in the file or can be computed from the columns of the file."""
        of, equals, _ = name.partition("=")
        known = {name, name.removesuffix(" missing"), of if equals else name} & {*self.header}
        return bool(known) or (name == "dt" and self.times.seconds is not None)

    def column(self, name: str, option: str) -> int:
        """Return the index of a column by its name; an error names ``option``, the option that selected the column."""
        if name not in self.header:
            raise ArgumentError(option, f"one of the columns of {self.file} ({', '.join(self.header)})", quoted(name))
        return self.header.index(name)

    def numeric(self) -> tuple[str, ...]:
        """Return the names of the numeric columns. A column is numeric if more than half of its cells, apart from
        missing cells, are numbers, unless these numbers are dates such as 20240131 or number the rows.
        """
        found = []
        for place, name in enumerate(self.header):
            values = [self._number(row[place]) for row in self.rows]
            numbers = sum(value is not None and not math.isnan(value) for value in values)
            if numbers > sum(value is None for value in values) and not self.times.at(name):
                found.append(name)
        return tuple(name for name in found if not self.numbers_rows(name)) or tuple(found)

    def numbers_rows(self, name: str) -> bool:
        """Return True for a column without a name of its own that numbers the rows, such as the index of pandas."""
        values = np.sort(self._column(name, "columns")) if _INDEX.fullmatch(name) else np.empty(0)
        return len(values) > 0 and np.array_equal(values, values[0] + np.arange(len(values)))

    def numbers(self, names: Sequence[str], option: str) -> np.ndarray:
        """Return the given columns as float64 (rows, columns), with NaN for a cell that is missing or not a number.

        An error about a column names ``option``, the option that selected the columns.
        """
        return np.stack([self._column(name, option) for name in names], 1)

    def complete(
        self, names: Sequence[str], option: str, missing: Missing = "refuse", groups: Sequence[Sequence[int]] = ()
    ) -> tuple[np.ndarray, Table]:
        """Return the given columns (rows, columns) with missing cells filled, and the table of these rows: with
        ``missing="drop"``, a table without the dropped rows, otherwise this table. A column ``dt`` is the time since
        the previous row that is kept.

        Args:
            names: Names of the columns.
            option: Name of the option that selected the columns, for error messages.
            missing: Treatment of missing cells.
            groups: Rows of each sequence; sequences are filled separately (default: one group of all rows).
        """
        values = self.numbers(names, option)
        self._require_readable(names)
        gaps = np.isnan(values)
        if not gaps.any():
            return values, self
        i, j = np.argwhere(gaps)[0]
        if missing == "refuse":
            where = f"{self.file}, line {self.lines[i]}, column {names[j]}"
            raise ArgumentError(where, "a finite number", repr(self.rows[i][self.column(names[j], option)]))
        if gaps.all(0).any():
            name = names[int(np.argmax(gaps.all(0)))]
            such = self.cells_that_are_no_numbers(name) or "empty cells"
            raise ArgumentError(f"{self.file}, column {name}", "a column with at least one number", such)
        if missing == "drop":
            kept = np.flatnonzero(~gaps.any(1)).tolist()
            if not kept:
                raise ArgumentError("missing", "a treatment that keeps at least one row, such as forward", "drop")
            table = self._with_rows(kept)
            return table.numbers(names, option), table
        means = np.nanmean(values, 0)
        for rows in groups or [range(len(values))]:
            for k in np.flatnonzero(gaps[rows].any(0)):
                values[rows, k] = _filled(values[rows, k], means[k], missing)
        return values, self

    def _require_readable(self, names: Sequence[str]) -> None:
        """Raise an error if two or more cells of a column contain digits in the same form but are not numbers. To fill
        such cells would replace values that the file states.
        """
        for name in filter(self.header.__contains__, names):
            forms: dict[str, list[tuple[int, str]]] = {}
            for line, cell in self._lost(name):
                if "0" in (form := re.sub(r"\d+", "0", re.sub(r"[^\W\d]+", "a", cell))):
                    forms.setdefault(form, []).append((line, cell))
            (line, cell), *others = max(forms.values(), key=len, default=[(0, "")])
            if others:
                where = f"{self.file}, line {line}, column {name}"
                expected = "a number (cells without a value must be empty; columns= selects other columns)"
                raise ArgumentError(where, expected, f"{quoted(cell)}, and {len(others)} more cells of this form")

    def _lost(self, name: str) -> list[tuple[int, str]]:
        """Return the line and the text of each cell of a column that is neither a number nor missing."""
        place = self.header.index(name)
        cells = ((line, row[place]) for line, row in zip(self.lines, self.rows, strict=True))
        return [(line, cell) for line, cell in cells if self._number(cell) is None]

    def gaps(self, names: Sequence[str], missing: Missing) -> tuple[str, ...]:
        """Return notes for the user: which lines were dropped, and how many cells of the given columns are missing."""
        how = {"drop": "their rows are dropped", "interpolate": "they are interpolated"}
        done, used = how.get(missing, "the previous value is repeated"), [name for name in names if name in self.header]
        counts = np.isnan(self.numbers(used, "columns")).sum(0) if used else ()
        return (
            self.notes
            + self._marks_of_gaps(used)
            + tuple(
                f"{self.file}: {count} of {len(self.rows)} cells of {name} are missing or not numbers{such}; {done}"
                for name, count in zip(used, counts, strict=True)
                if count
                for word in [self.cells_that_are_no_numbers(name)]
                for such in [f", such as {word}" if word else ""]
            )
        )

    def cells_that_are_no_numbers(self, name: str) -> str:
        """Return the first cell of a column that is neither a number nor missing, with its line, or an empty text."""
        return next((f"{quoted(cell)} in line {line}" for line, cell in self._lost(name)), "")

    def _marks_of_gaps(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return notes for the user on numbers such as -9999 that are far from all other numbers of their column."""
        found = []
        for name in names:
            values = np.unique(self._column(name, "columns"))
            values = values[np.isfinite(values)]
            for one, others in ((values[:1], values[1:]), (values[-1:], values[:-1])):
                if len(others) > 1 and _MARK.fullmatch(f"{one[0]:.15g}") and abs(others - one).min() > np.ptp(others):
                    found.append(f"{self.file}: {one[0]:.15g} in {name} is far from all other numbers; if it marks")
                    found[-1] += " missing values, leave these cells empty"
        return tuple(found)

    def unknown(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return notes for the user on words that the training data do not contain. For a column NAME of words,
        ``names`` contains one indicator column ``NAME=TEXT`` for each word TEXT of the training data.
        """
        notes, of = [], dict.fromkeys(name.partition("=")[0] for name in names if name not in self.header)
        for column in (name for name in of if name in self.header):
            place = self.header.index(column)
            words = [row[place] for row in self.rows if row[place].lower() not in _dates.MISSING]
            others = [word for word in words if f"{column}={word}" not in names]
            if others:
                notes.append(f"{self.file}: {len(others)} cells of {column} have a word missing from the training data")
                notes[-1] += f", such as {quoted(others[0])}; it counts as none of the known words"
        return tuple(notes)

    def unused(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return a note for the user that lists the columns of the file that are not in ``names``: a tuple with one
        sentence, or an empty tuple if there are no such columns.
        """
        others = [name for name in self.header if name not in {*names, *(each.partition("=")[0] for each in names)}]
        named = [f"{name}{self.times.remark(name, 'dt' in names)}" for name in others]
        return (f"{self.file}: not used: {', '.join(named)}",) if named else ()

    def categories(self, name: str, option: str) -> tuple[str, ...]:
        """Return the names ``NAME=TEXT`` of the indicator columns that replace a column of words, one for each word.

        An error about the column names ``option``, the option that selected it.
        """
        place = self.column(name, option)
        found = sorted({row[place] for row in self.rows if row[place].lower() not in _dates.MISSING})
        if not 1 < len(found) <= _MOST_CATEGORIES:
            expected = f"numbers, or 2 to {_MOST_CATEGORIES} different words, in column {name} of {self.file}"
            raise ArgumentError(option, expected, f"{len(found)} words")
        return tuple(f"{name}={text}" for text in found)

    @cached_property
    def times(self) -> csv_times.Times:
        """The times of the rows."""
        return csv_times.Times(self.header, self.rows)

    def oldest_first(self) -> tuple[Table, tuple[str, ...]]:
        """Return the table with the oldest row first, and notes for the user on the order of the rows."""
        places, notes = self.times.order()
        return self._with_rows(places.tolist()), tuple(f"{self.file}: {note}" for note in notes)

    def _with_rows(self, places: Sequence[int]) -> Table:
        rows, lines = (tuple(each[place] for place in places) for each in (self.rows, self.lines))
        return dataclasses.replace(self, rows=rows, lines=lines)  # type: ignore[arg-type]

    def _column(self, name: str, option: str) -> np.ndarray:
        of, equals, word = name.partition("=")
        if name in self.header:
            place = self.header.index(name)
            values = (self._number(row[place]) for row in self.rows)
            return np.array([math.nan if value is None else value for value in values])
        if name.endswith(" missing") and name.removesuffix(" missing") in self.header:
            return np.isnan(self._column(name.removesuffix(" missing"), option)).astype(float)
        if equals and of in self.header:
            place = self.header.index(of)
            return np.array([float(row[place] == word) for row in self.rows])
        if name == "dt" and (steps := self.times.increasing) is not None:
            return np.concatenate([[1.0], steps / (self.unit or self.times.seconds)])
        self.column(name, option)
        raise AssertionError

    def _number(self, cell: str) -> float | None:
        return _cells.number(cell, self.decimal_commas)


def read(path: Path, expected: str = _EXPECTED) -> Table:
    """Read a table from a CSV file, which may be compressed by gzip or xz, or from a Parquet file.

    A Parquet file requires pandas or polars. The encoding, the separator and the decimal mark of a CSV file follow from
    its content. Comments (lines starting with #) before the column names are skipped. Other text before the column
    names is skipped too, and a note says so. If the first line looks like the other lines, the columns are called
    ``column 1``, ``column 2`` and so on. ``expected`` describes the file for error messages.
    """
    if not path.exists():
        raise ArgumentError("file", "the name of a file", f"no such file: {path}{did_you_mean(path)}")
    if path.suffix == ".parquet":
        return _parquet(path)
    text = _cells.without_comments(sources.text(path, expected, _cells.decoded))
    separator = _cells.separator_of(text)
    try:
        found = _cells.split(text, separator)
        found, above = _cells.below_preamble(found if separator else _cells.joined(found))
        found, below = _cells.above_notes(found)
    except csv.Error as error:
        where, _, why = str(error).partition(": ")
        raise ArgumentError(f"{path}, {where}", expected, why) from error
    if len(found) < 2:
        raise ArgumentError(str(path), expected, f"{len(found)} lines")
    lines, rows = zip(*found, strict=True)
    width = len(rows[0])
    for cells, line in zip(rows, lines, strict=True):
        if len(cells) < width or any(cells[width:]):
            raise ArgumentError(f"{path}, line {line}", f"{width} cells, as many as column names", len(cells))
    kept = [place for place in range(width) if any(row[place] for row in rows)]
    body = [tuple(row[place] for place in kept) for row in rows]
    commas, either = _cells.decimal_mark([cell for row in body for cell in row], separator)
    commas, either = _thousands(body, commas, either)
    named = not csv_head.alike(body, commas)
    names = csv_head.distinct(body[0] if named else [""] * len(kept))
    first = named + (named and csv_head.units(body[1:], commas))
    notes = [*above, *below, *([f"line {lines[1]} is dropped as a line of units"] if first > named else [])]
    if not named:
        notes.append(f"line {lines[0]} is read as data, since it looks like the lines after it; columns have no names")
    if either:
        column = next(name for place, name in enumerate(names) if any(row[place] == either for row in body))
        notes.append(f"{column}: {_cells.reading(either, commas)}")
    return Table(str(path), names, tuple(body[first:]), lines[first:], commas, tuple(f"{path}: {n}" for n in notes))


def _thousands(rows: Sequence[tuple[str, ...]], commas: bool, either: str) -> tuple[bool, str]:
    """Return whether commas are decimal marks in the file, and an ambiguous cell (see ``_cells.decimal_mark``).

    ``commas`` and ``either`` are the result of ``decimal_mark``, which is corrected here if a column shows that the
    mark separates thousands.
    """
    if not either and any(_cells.decides(cell) for row in rows[1:] for cell in row):
        return commas, either
    marks = {_cells.separates_thousands([row[place] for row in rows[1:]]) for place in range(len(rows[0]))} - {""}
    return (marks == {"."}, "") if len(marks) == 1 else (commas, either)


def _filled(values: np.ndarray, mean: float, how: Missing) -> np.ndarray:
    """Fill the missing values (NaN) of a column: by linear interpolation (``how="interpolate"``) or otherwise by the
    previous known value. Values before the first known value become the first known value; if no value is known, all
    become ``mean``.
    """
    there = np.flatnonzero(~np.isnan(values))
    if not len(there):
        return np.full_like(values, mean)
    places = np.arange(len(values))
    if how == "interpolate":
        return np.interp(places, there, values[there])
    return np.asarray(values[there[np.maximum(np.searchsorted(there, places, side="right") - 1, 0)]])


def _parquet(path: Path) -> Table:
    try:
        library: Any = require("polars", "a Parquet file")
    except MissingPackageError:
        library = require("pandas", "a Parquet file")
    try:
        frame = library.read_parquet(path)
        if type(getattr(frame, "index", None)).__name__ not in ("NoneType", "RangeIndex"):
            frame = frame.reset_index()  # in pandas, the dates of the rows are often the index
        columns = {str(name): frame[name].to_list() for name in frame.columns}
    except Exception as error:
        raise ArgumentError(str(path), "a whole Parquet file", f"{type(error).__name__}: {error}") from error
    cells = zip(*columns.values(), strict=True)
    rows = tuple(tuple("" if cell is None else str(cell) for cell in row) for row in cells)
    if not rows:
        raise ArgumentError(str(path), "a Parquet file with at least one row", "none")
    return Table(str(path), tuple(columns), rows, tuple(range(1, len(rows) + 1)))
