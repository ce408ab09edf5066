"""Tensor shapes, as comments the type checker accepts.

Legend of letters, the same in every docstring:

========  ==========================================================
``B``     batch
``T``     time, in steps
``C``     channels of a scan
``D``     features of an input (``d_input``) or output (``d_output``)
``N``     states (``d_state``)
``H``     independent channels of an S4D layer
========  ==========================================================
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from stablessm._checked import Rule
from stablessm._errors import ArgumentError

T = TypeVar("T")

Time: TypeAlias = Literal["continuous", "discrete"]
"""Which kind of eigenvalue: continuous is stable for Re λ < 0, discrete for |λ| < 1."""


def _is_device(name: Any) -> bool:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        return False
    return True


def _are_times(times: Tensor) -> bool:
    real = times.dtype != torch.bool and not times.is_complex()
    return times.dim() == 1 and real and bool(times.isfinite().all())


def takes_tensor(method: Callable[..., T], *, square: bool = False) -> Callable[..., T]:
    """Decorate a method of one tensor: it raises an ArgumentError for anything else; traced by ``torch.compile``.

    Args:
        square: True where the tensor holds square matrices (…, m, m).
    """
    name = list(inspect.signature(method).parameters)[1]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> T:
        value = args[0] if args else options.get(name)
        if not isinstance(value, Tensor) or value.layout != torch.strided or not value.is_floating_point():
            raise ArgumentError(name, "a real floating-point tensor", getattr(value, "dtype", type(value).__name__))
        if square and (value.dim() < 2 or value.shape[-1] != value.shape[-2]):
            raise ArgumentError(name, "square matrices (…, m, m)", f"shape {tuple(value.shape)}")
        return method(self, *args, **options)

    return call


Device: TypeAlias = Annotated[torch.device | str, Rule(_is_device, "a device that PyTorch has here")]
Times: TypeAlias = Annotated[Tensor, Rule(_are_times, "finite real times (T,)")]
Sequence: TypeAlias = Tensor
"""(B, T, D)"""

State: TypeAlias = Tensor
"""(B, N), or (B, H, N) for S4D; complex where the recurrence is."""

Lengths: TypeAlias = Tensor | None
"""(B,) whole numbers: how many steps of each right-padded sequence are real; all by default."""

Reset: TypeAlias = Tensor | None
"""(T,) or (B, T) bool: True at the first step of a new episode; none by default."""

Dt: TypeAlias = float | Tensor | None
"""The time since the previous sample: a number, (T,) or (B, T); the layer's own step by default."""
