"""Formats numbers as text for the claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def listed(values: Mapping[Any, Any] | Iterable[Any], digits: str = ".3g", between: str = ", ") -> str:
    """Format numbers as text; with a mapping, each number is preceded by its name. ``digits`` is the format of a
    number, and ``between`` is the text between two numbers.

    >>> listed({"exp": 0.25, "best": 1 / 3}), listed([0.25, 1 / 3], ".1%", " and ")
    ('exp 0.25, best 0.333', '25.0% and 33.3%')
    """
    if isinstance(values, Mapping):
        return between.join(f"{name} {value:{digits}}" for name, value in values.items())
    return between.join(f"{value:{digits}}" for value in values)


def chosen(values: Mapping[Any, Any], names: Iterable[Any], digits: str = ".3g") -> str:
    """Format the values with the given names as :func:`listed` does, in the order of the names.

    >>> chosen({"exp": 0.25, "best": 1 / 3, "relu": 0.5}, ["relu", "exp"])
    'relu 0.5, exp 0.25'
    """
    return listed({name: values[name] for name in names}, digits)


def each(template: str, rows: Iterable[tuple[Any, ...]], between: str = ", ") -> str:
    """Fill in a format string for each row, and return the texts joined by ``between``.

    >>> each("{} of {} at N = {}", [(1, 3, 16), (3, 3, 32)])
    '1 of 3 at N = 16, 3 of 3 at N = 32'
    """
    return between.join(template.format(*row) for row in rows)


def span(values: Iterable[float]) -> str:
    """Return the range of some numbers as text: the smallest and the largest.

    >>> span([0.25, 1.0, 0.5])
    '0.25 to 1'
    """
    found = list(values)
    return f"{min(found):.3g} to {max(found):.3g}" if found else "none"
