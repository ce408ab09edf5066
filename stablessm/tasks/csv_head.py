"""Tells column names, units and data apart in the first lines of a CSV file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from stablessm import _cells, _dates


def units(rows: Sequence[tuple[str, ...]], commas: bool) -> bool:
    """Return True if the first row contains units: text above a column of numbers, and no numbers or dates.

    ``commas`` states whether commas are decimal marks.
    """
    kinds = [_kind(cell, commas) for cell in rows[0]]
    above = any(kind == "text" and _first_kind(rows, place, commas) == "number" for place, kind in enumerate(kinds))
    return above and not {"number", "date"} & set(kinds)


def alike(rows: Sequence[tuple[str, ...]], commas: bool) -> bool:
    """Return True if the first row has numbers, dates and words in the same columns as the rows after it.

    ``commas`` states whether commas are decimal marks.
    """
    pairs = [(_kind(a, commas), _first_kind(rows, place, commas)) for place, a in enumerate(rows[0])]
    return all(a in (b, "missing") for a, b in pairs) and any(a in ("number", "date") for a, _ in pairs)


def _first_kind(rows: Sequence[tuple[str, ...]], place: int, commas: bool) -> str:
    kinds = (_kind(row[place], commas) for row in rows[1:])
    return next((kind for kind in kinds if kind != "missing"), "missing")


def _kind(cell: str, commas: bool) -> str:
    value = _cells.number(cell, commas)
    if value is None:
        return "date" if _dates.dates([cell]) else "text"
    return "missing" if math.isnan(value) else "number"


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Make column names distinct: an empty name becomes ``column 2``, the second ``load`` becomes ``load (2)``."""
    found: list[str] = []
    for place, name in enumerate(names, 1):
        name = name or f"column {place}"
        copies = itertools.chain([name], (f"{name} ({count})" for count in itertools.count(2)))
        found.append(next(copy for copy in copies if copy not in found))
    return tuple(found)
