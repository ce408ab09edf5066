"""Exact linearization of a model at rest, by forward-mode differentiation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from stablessm.instruments.systems import System


@contextmanager
def tangents() -> Iterator[None]:
    """Return a context manager for forward-mode differentiation, in which linearized systems can run."""
    # fused attention and the fused LSTM of oneDNN have no forward derivative
    with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch 2.13 warns about another flag, which stays as it is
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def linearized(system: System) -> System | None:
    """Return the linearization of a system at zero input, as a system.

    For an input x, the linearization returns the derivative of the outputs at zero input in the direction x. The result
    is None if the model does not support forward-mode differentiation, or if the derivative is zero.
    """

    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = system.call(forward_ad.make_dual(torch.zeros_like(x), x), state)
        tangent = forward_ad.unpack_dual(y).tangent
        return torch.zeros_like(y) if tangent is None else tangent, state

    try:
        with tangents():
            y, _ = call(torch.ones(2, 3, system.d_input, device=system.device, dtype=system.dtype), None)
    except (RuntimeError, TypeError):  # an operation without a forward derivative, or not of PyTorch
        return None
    return replace(system, model=None, call=call) if bool(y.any()) else None
