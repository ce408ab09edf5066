"""Checks of the arrays that callers pass to constructions. This module does not import torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from stablessm._errors import ArgumentError


def array(name: str, value: Any) -> np.ndarray:
    """Convert a number, list, array or tensor to a NumPy array; a tensor may be on any device and require gradients."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.double() if value.is_floating_point() else value  # NumPy has no bfloat16
        found = np.ma.filled(value.astype(np.float64), np.nan) if np.ma.is_masked(value) else np.asarray(value)
        return _numbers(found) if found.dtype == object else found
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:  # ragged lists, tensors without values
        raise ArgumentError(name, "an array of numbers", f"{type(value).__name__} ({error})") from error


def _numbers(found: np.ndarray) -> np.ndarray:
    """Convert an array of Python objects that are numbers, such as fractions, to float64 or complex128.

    Other arrays are returned unchanged.
    """
    for kind, method in ((np.float64, "__float__"), (np.complex128, "__complex__")):
        if all(hasattr(entry, method) for entry in found.flat):
            return np.array([kind(entry) for entry in found.flat]).reshape(found.shape)
    return found


def real_array(name: str, value: Any) -> np.ndarray:
    """Convert a real number, list, array or tensor to a new contiguous float64 array.

    Complex numbers raise an error; an imaginary part is never dropped.

    >>> real_array("x", [1, 2]).tolist()
    [1.0, 2.0]
    >>> real_array("x", [1j])
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: x: expected real numbers, got complex128
    """
    found = array(name, value)
    if found.dtype.kind not in "biuf":
        raise ArgumentError(name, "real numbers", found.dtype)
    return np.array(found, dtype=np.float64, order="C")
