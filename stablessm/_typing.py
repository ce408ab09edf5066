"""Type aliases that document tensor shapes, and checks of devices and times.

Every docstring uses the same letters for dimensions:

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

import collections.abc
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
"""Kind of time: a continuous-time eigenvalue is stable if Re λ < 0, a discrete-time eigenvalue if |λ| < 1."""


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
    """Decorate a method that takes one tensor, so that a wrong number or type of arguments raises an ArgumentError.

    ``torch.compile`` can trace the decorated method.

    Args:
        square: whether the tensor must consist of square matrices (…, m, m).
    """
    name = list(inspect.signature(method).parameters)[1]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> T:
        value = args[0] if args else options.get(name)
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_nested:
            got = value.layout if isinstance(value, Tensor) and not value.is_nested else type(value).__name__
            raise ArgumentError(name, "a real floating-point tensor, dense", got)
        if not value.is_floating_point() or value.dtype.itemsize < 2:
            raise ArgumentError(name, "a real floating-point tensor (not float8)", value.dtype)
        if square and (value.dim() < 2 or value.shape[-1] != value.shape[-2]):
            raise ArgumentError(name, "square matrices (…, m, m)", f"shape {tuple(value.shape)}")
        return method(self, *args, **options)

    return call


Device: TypeAlias = Annotated[torch.device | str, Rule(_is_device, "a device that PyTorch has here")]
Times: TypeAlias = Annotated[Tensor, Rule(_are_times, "finite real times (T,)")]
Sequence: TypeAlias = Tensor
"""(B, T, D)"""

State: TypeAlias = Tensor
"""(B, N), or (B, H, N) for S4D; complex if the recurrence is complex."""

Lengths: TypeAlias = Tensor | collections.abc.Sequence[int] | None
"""(B,) whole numbers, as a tensor or a list: the number of real steps of each right-padded sequence (default: all)."""

Reset: TypeAlias = Tensor | None
"""(T,) or (B, T) bool: True at the first step of a new episode (default: no resets)."""

Dt: TypeAlias = float | Tensor | None
"""The time since the previous sample: a number, (T,) or (B, T) (default: the layer's own time step)."""
