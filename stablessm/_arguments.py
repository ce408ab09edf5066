"""Numbers and words that callers pass, of whatever type, or an error that says what was wrong. No torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from numbers import Real
from typing import Any

from stablessm._errors import ArgumentError, unknown_name


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    """One of some words.

    >>> one_of("mode", "scan", ("scan", "conv"))
    'scan'
    """
    if not isinstance(value, str) or value not in allowed:
        raise unknown_name(name, allowed, value, f"one of {', '.join(map(repr, allowed))}")
    return value


MOST = 2**31
"""Sizes stay below this: a larger one is a mistake, and overflows in one library or another."""


def whole_number(name: str, value: Any, least: int = 1, most: int = MOST) -> int:
    """A whole number of any type, not a bool.

    >>> import numpy as np
    >>> whole_number("order", np.int64(3))
    3
    """
    expected = f"a whole number, at least {least}"
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError) as error:  # the latter from tensors
        raise ArgumentError(name, expected, repr(value)) from error
    if isinstance(value, bool) or not least <= number < most:
        raise ArgumentError(name, expected if number < most else f"{expected} and below {most}", repr(value))
    return number


def real_number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """A number of any type between two others, not one of them.

    >>> import numpy as np
    >>> real_number("tol", np.float32(0.5), 0, 1)
    0.5
    """
    number: Any = value
    if not isinstance(value, Real) or isinstance(value, bool) or not low < number < high:
        above = f" above {low:g}" if low > -math.inf else ""
        expected = f"a number between {low:g} and {high:g}" if high < math.inf else f"a finite number{above}"
        raise ArgumentError(name, expected, repr(value))
    return float(value)
