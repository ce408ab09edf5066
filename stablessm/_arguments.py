"""Checks arguments that are numbers or words. This module does not import torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from numbers import Real
from typing import Any

from stablessm._errors import ArgumentError, quoted, unknown_name


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    """Return ``value`` if it is one of the words in ``allowed``; otherwise raise an ArgumentError.

    >>> one_of("mode", "scan", ("scan", "conv"))
    'scan'
    """
    if not isinstance(value, str) or value not in allowed:
        raise unknown_name(name, allowed, value, f"one of {', '.join(map(repr, allowed))}")
    return value


MOST = 2**31
"""Upper limit of sizes: a larger size is a mistake and would overflow in some library."""


def whole_number(name: str, value: Any, least: int = 1, most: int = MOST) -> int:
    """Return ``value`` converted to int if it is a whole number of any type except bool, at least ``least`` and below
    ``most``; otherwise raise an ArgumentError.

    >>> import numpy as np
    >>> whole_number("order", np.int64(3))
    3
    """
    expected = f"a whole number, at least {least}"
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError) as error:  # tensors raise a RuntimeError
        raise ArgumentError(name, expected, quoted(value)) from error
    if isinstance(value, bool) or not least <= number < most:
        raise ArgumentError(name, expected if number < most else f"{expected} and below {most}", quoted(value))
    return number


def real_number(name: str, value: Any, low: float, high: float = math.inf, *, include_low: bool = False) -> float:
    """Return ``value`` converted to float if it is between ``low`` and ``high``; otherwise raise an ArgumentError.

    Both ends are excluded; with ``include_low``, ``low`` is included.

    >>> import numpy as np
    >>> real_number("tol", np.float32(0.5), 0, 1)
    0.5
    """
    number: Any = value
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not (low < number < high or (include_low and number == low)):
        above = "" if low == -math.inf else f" not below {low:g}" if include_low else f" above {low:g}"
        between = f"from {low:g} to below {high:g}" if include_low else f"between {low:g} and {high:g}"
        expected = f"a number {between}" if high < math.inf else f"a finite number{above}"
        raise ArgumentError(name, expected, quoted(value))
    return float(value)
