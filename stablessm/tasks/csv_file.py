"""CSV files: numbers by column, and errors that name the file, the line and the column."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.tasks import sources

_EXPECTED = "a CSV file with a line of column names and a row or more"


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Cells of a CSV file as text."""

    file: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    """Where each row ends in the file, counted from 1."""

    def column(self, name: str, option: str) -> int:
        """Where a column is; ``option``: who asks for it."""
        if name not in self.header:
            raise ArgumentError(option, f"a column of {self.file}: {', '.join(self.header)}", repr(name))
        return self.header.index(name)

    def numeric(self) -> tuple[str, ...]:
        """The columns whose first cell is a number."""
        return tuple(name for name, cell in zip(self.header, self.rows[0], strict=True) if _number(cell) is not None)

    def numbers(self, names: Sequence[str], option: str) -> np.ndarray:
        """Columns as float64, (rows, columns). A cell that is empty or no finite number is an error."""
        places = [self.column(name, option) for name in names]
        found = np.empty((len(self.rows), len(places)))
        for i, row in enumerate(self.rows):
            for j, place in enumerate(places):
                value = _number(row[place])
                if value is None or not math.isfinite(value):
                    where = f"{self.file}, line {self.lines[i]}, column {names[j]}"
                    raise ArgumentError(where, "a finite number", repr(row[place]))
                found[i, j] = value
        return found


def read(path: Path, expected: str = _EXPECTED) -> Table:
    """A CSV file, packed by gzip or not, with a line of names first; commas, semicolons or tabs between cells."""
    content = sources.text(path, expected)
    first = re.sub('"[^"]*"', "", content.split("\n", 1)[0])
    reader = csv.reader(content.splitlines(keepends=True), delimiter=max(",;\t", key=first.count), strict=True)
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if row:
                rows.append(tuple(cell.strip() for cell in row))
                lines.append(reader.line_num)
    except csv.Error as error:
        raise ArgumentError(f"{path}, line {reader.line_num}", expected, str(error)) from error
    if len(rows) < 2:
        raise ArgumentError(str(path), expected, f"{len(rows)} lines")
    header = rows[0]
    if doubled := [name for name in header if header.count(name) > 1]:
        raise ArgumentError(str(path), f"{expected}, names all different", f"{doubled[0]!r} twice")
    for cells, line in zip(rows, lines, strict=True):
        if len(cells) != len(header):
            raise ArgumentError(f"{path}, line {line}", f"{len(header)} cells, as many as column names", len(cells))
    return Table(str(path), header, tuple(rows[1:]), tuple(lines[1:]))


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
