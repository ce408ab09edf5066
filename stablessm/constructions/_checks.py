"""Checks of the arrays that callers pass to a construction. Does not import torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from stablessm._errors import ArgumentError


def real_array(name: str, value: Any) -> np.ndarray:
    """Return a new contiguous float64 array from numbers, arrays or tensors (on any device, with or without a graph).

    Complex numbers raise an error; their imaginary part is never dropped.

    >>> real_array("x", [1, 2]).tolist()
    [1.0, 2.0]
    >>> real_array("x", [1j])
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: x: expected real numbers, got complex128
    """
    if hasattr(value, "detach") and not getattr(value, "is_meta", False) and not value.is_sparse:
        value = value.detach().cpu()
        if value.is_floating_point():
            value = value.double()  # NumPy has no bfloat16
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:  # ragged lists, no values
        raise ArgumentError(name, "an array of real numbers", f"{type(value).__name__} ({error})") from error
    if array.dtype.kind not in "biuf":
        raise ArgumentError(name, "real numbers", array.dtype)
    return np.array(array, dtype=np.float64, order="C")
