"""Checks that a model gives the same output for the same input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError

_MORE = 64
"""Number of calls of a function that draws random numbers but returned equal outputs at first."""


class NoisyError(ArgumentError):
    """Raised if a model gives different outputs for the same input."""

    def __init__(self, change: float, cause: str) -> None:
        cure = "switch off dropout and noise (model.eval(), training=False) or fix the seed within the function"
        expected = f"the same output for the same input; {cure}"
        super().__init__("model", expected, f"noise: two calls differ by {change:.2g} ({cause})")


def require_repeatable(run: Callable[[], Tensor], calls: int) -> None:
    """Raise a NoisyError that states the cause if the results of several calls with the same input differ.

    A function that draws random numbers of PyTorch or NumPy is called more often, because its noise may be rare.
    """
    before = torch.random.get_rng_state(), _numpy_state()
    first, done, drew = run(), 1, False
    # equal calls on a CPU have equal bits; on a GPU, sums may be taken in another order
    least = 0.0 if first.device.type == "cpu" else torch.finfo(first.dtype).eps ** 0.5
    while done < (_MORE if drew else calls):
        other, done = run(), done + 1
        drew = drew or not torch.equal(before[0], torch.random.get_rng_state()) or before[1] != _numpy_state()
        if not alike(first, other, first, least):
            cause = "it draws random numbers" if drew else "random numbers of its own, or a state kept between calls"
            raise NoisyError(float((first - other).abs().nan_to_num(torch.inf).max()), cause)


def alike(a: Tensor, b: Tensor, scale: Tensor, least: float = 0.0) -> bool:
    """Return True if two tensors agree up to a relative tolerance.

    The tolerance is the larger of ``least`` and the size of rounding errors. Differences are relative to the
    largest entry of ``scale``.
    """
    relative = max(100 * torch.finfo(scale.dtype).eps, least)
    tolerance = relative * (1e-30 + float(scale.nan_to_num().abs().max()))
    return torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)


def _numpy_state() -> tuple[bytes, int]:
    state: Any = np.random.get_state()
    return state[1].tobytes(), state[2]
