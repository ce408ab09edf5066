"""What every construction asks of its arguments. No torch."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from stablessm._errors import ArgumentError


def real_array(name: str, value: Any) -> np.ndarray:
    """A float64 array of our own, contiguous, from numbers, arrays or tensors (on any device, with or without a graph).

    Complex numbers are refused, not cut to their real part.

    >>> real_array("x", [1, 2]).tolist()
    [1.0, 2.0]
    >>> real_array("x", [1j])
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: x: expected real numbers, got complex128
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_floating_point():
            value = value.double()  # NumPy has no bfloat16
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists
        raise ArgumentError(name, "an array of real numbers", f"{type(value).__name__} ({error})") from error
    if array.dtype.kind not in "biuf":
        raise ArgumentError(name, "real numbers", array.dtype)
    return np.array(array, dtype=np.float64, order="C")


def whole_number(name: str, value: Any, least: int) -> int:
    """A whole number of any type, not a bool.

    >>> whole_number("order", np.int64(3), 1)
    3
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ArgumentError(name, f"a whole number, at least {least}", repr(value))
    return int(value)


def real_number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """A number of any type between two others, not one of them.

    >>> real_number("tol", np.float32(0.5), 0, 1)
    0.5
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not low < float(value) < high:
        above = f" above {low:g}" if low > -math.inf else ""
        expected = f"a number between {low:g} and {high:g}" if high < math.inf else f"a finite number{above}"
        raise ArgumentError(name, expected, repr(value))
    return float(value)
