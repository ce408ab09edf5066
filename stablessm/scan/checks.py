"""The scan's arguments, checked before any backend sees them: every backend raises the same errors."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from stablessm._errors import ArgumentError

LOW_PRECISION = (torch.float16, torch.bfloat16)
REAL_DTYPE = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
"""What is computed in, and of which dtype its real part is; ``tensor.real.dtype`` takes four operations."""
DTYPES = (*LOW_PRECISION, *REAL_DTYPE)


def autocast_enabled(device: str) -> bool:
    """Whether autocast is on for a type of device; meta tensors have none."""
    return device != "meta" and torch.is_autocast_enabled(device)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context in which products of matrices are not shortened, for recurrences."""
    return torch.autocast(device, enabled=False) if autocast_enabled(device) else nullcontext()


def check_tensor(name: str, value: Tensor, rank: int | None = None, letters: str = "(batch, time, channel)") -> None:
    """Not a list, a number or an array; with ``rank`` dimensions, which ``letters`` name."""
    if not isinstance(value, Tensor):
        raise ArgumentError(name, "a tensor", type(value).__name__)
    if rank is not None and value.dim() != rank:
        raise ArgumentError(name, f"{rank} dimensions {letters}", f"shape {tuple(value.shape)}")


def check_dtype(name: str, value: Tensor, parameters: Iterable[Tensor | None]) -> None:
    """Of the dtype of one of the parameters; under autocast, of any but float64, which autocast does not convert."""
    dtypes = {parameter.dtype for parameter in parameters if parameter is not None and parameter.is_floating_point()}
    if value.dtype in dtypes or not dtypes:
        return
    if autocast_enabled(value.device.type) and torch.float64 not in (value.dtype, *dtypes):
        return
    own = min(dtypes, key=lambda dtype: dtype.itemsize)
    remedy = f"convert {name} with {name}.to({own}), or the module with .to({value.dtype})"
    raise ArgumentError(name, f"dtype {own}, as the parameters have ({remedy})", value.dtype)


def check_kinds(like: str, **tensors: Tensor | None) -> None:
    """Tensors of floating point or complex numbers, on the device of the one called ``like``, which comes first."""
    device = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        check_tensor(name, tensor)
        if tensor.dtype not in DTYPES:
            raise ArgumentError(name, "a floating point or complex dtype", tensor.dtype)
        device = device or tensor.device
        if tensor.device != device:
            raise ArgumentError(name, f"a tensor on {device} (as {like})", tensor.device)


def check_arguments(decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None) -> None:
    """Ranks, sizes, dtypes and devices that go together."""
    check_kinds("drive", drive=drive, decay=decay, initial=initial)
    for name, tensor in (("decay", decay), ("initial", initial)):
        if tensor is not None and tensor.is_complex() and not drive.is_complex():
            expected = f"a real dtype, because the states have drive's dtype {drive.dtype}"
            raise ArgumentError(name, expected, tensor.dtype)
    check_tensor("drive", drive, 3)
    batch, steps, channels = drive.shape
    allowed = {1: (channels,), 2: (steps, channels), 3: (batch, steps, channels)}
    if decay.shape != allowed.get(decay.dim()):
        expected = " or ".join(str(shape) for shape in allowed.values())
        raise ArgumentError("decay", f"shape {expected} to go with drive", f"shape {tuple(decay.shape)}")
    if initial is not None and initial.shape != (batch, channels):
        raise ArgumentError("initial", f"shape {(batch, channels)} (batch, channel)", f"shape {tuple(initial.shape)}")
    check_reset(reset, batch, steps)
    if reset is not None and reset.device != drive.device:
        raise ArgumentError("reset", f"a tensor on {drive.device} (as drive)", reset.device)


def check_reset(reset: Tensor | None, batch: int, steps: int) -> None:
    """Bool, (T,) or (B, T)."""
    if reset is None:
        return
    check_tensor("reset", reset)
    if reset.dtype != torch.bool:
        raise ArgumentError("reset", "dtype torch.bool", reset.dtype)
    if reset.shape not in ((steps,), (batch, steps)):
        raise ArgumentError("reset", f"shape {(steps,)} or {(batch, steps)}", f"shape {tuple(reset.shape)}")


def checked_lengths(lengths: Tensor | None, batch: int, steps: int) -> Tensor | None:
    """Whole numbers (B,) from 0 to T, as int64."""
    if lengths is None:
        return None
    check_tensor("lengths", lengths)
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise ArgumentError("lengths", "an integer dtype", lengths.dtype)
    if lengths.shape != (batch,):
        raise ArgumentError("lengths", f"shape {(batch,)} (batch,)", f"shape {tuple(lengths.shape)}")
    low, high = extremes(lengths) or (0, 0)
    if low < 0 or high > steps:
        raise ArgumentError("lengths", f"values from 0 to {steps} (time)", f"{low if low < 0 else high}")
    return lengths.long()  # a shorter dtype would overflow in index arithmetic


def extremes(values: Tensor) -> tuple[int, int] | None:
    """Return the smallest and the largest of whole numbers; None if there are none that the host can know.

    ``torch.compile`` and ``torch.vmap`` run a model without values.
    """
    if torch.compiler.is_compiling() or not values.numel():
        return None
    try:
        return int(values.min()), int(values.max())
    except RuntimeError:  # under torch.vmap
        return None


def check_all_finite(**tensors: Tensor | None) -> None:
    """No NaN and no infinity."""
    for name, tensor in tensors.items():
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            where = (~torch.isfinite(tensor)).nonzero()[0].tolist()
            raise ArgumentError(name, "finite values", f"{tensor[tuple(where)].item()} at index {tuple(where)}")
