"""Formats numbers as text for the claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def listed(values: Mapping[Any, Any] | Iterable[Any], digits: str = ".3g", between: str = ", ") -> str:
    """Return numbers as text in a format, each preceded by its name if it has one.

    >>> listed({"exp": 0.25, "best": 1 / 3}), listed([0.25, 1 / 3], ".1%", " and ")
    ('exp 0.25, best 0.333', '25.0% and 33.3%')
    """
    if isinstance(values, Mapping):
        return between.join(f"{name} {value:{digits}}" for name, value in values.items())
    return between.join(f"{value:{digits}}" for value in values)


def each(template: str, rows: Iterable[tuple[Any, ...]], between: str = ", ") -> str:
    """Return the text of a format string filled in for each row.

    >>> each("{} of {} at N = {}", [(1, 3, 16), (3, 3, 32)])
    '1 of 3 at N = 16, 3 of 3 at N = 32'
    """
    return between.join(template.format(*row) for row in rows)


def span(values: Iterable[float]) -> str:
    """Return the smallest and the largest of some numbers, as text.

    >>> span([0.25, 1.0, 0.5])
    '0.25 to 1'
    """
    found = list(values)
    return f"{min(found):.3g} to {max(found):.3g}" if found else "none"
