"""Search for bad values in a tensor: entries that are NaN, infinite or above a limit."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Order: TypeAlias = Literal["batch", "time"] | None
"""Which dimension of a sequence comes first; None for a tensor that is not a sequence."""


def is_bad(tensor: Tensor, limit: float | None) -> bool:
    """Return True if a tensor has an entry that is NaN or infinite or, with a limit, has a modulus above the limit."""
    tensor = tensor.detach()
    if limit is not None:
        return tensor.numel() > 0 and not bool(tensor.abs().amax() <= limit)  # a NaN fails this comparison, too
    # One pass without a temporary tensor. A sum of finite numbers may overflow, hence the second test.
    return not bool(tensor.sum().isfinite()) and not bool(tensor.isfinite().all())


def bad_entries(tensor: Tensor, limit: float | None) -> Tensor:
    """Return a mask of the bad entries of a tensor: NaN, infinite or, with a limit, above the limit in modulus."""
    return ~tensor.isfinite() if limit is None else ~(tensor.abs() <= limit)


def is_spoilt(tensor: Tensor, limit: float | None) -> bool:
    """Return True if a tensor has a bad entry (see :func:`bad_entries`) other than -∞, which attention masks contain on
    purpose.
    """
    tensor = (
        tensor.detach()
    )  # under activation checkpointing, the tensors saved for backward must not depend on the result
    if not is_bad(tensor, limit):
        return False
    return tensor.is_complex() or bool((bad_entries(tensor, limit) & (tensor != -math.inf)).any())


def is_mask(path: str, tensor: Tensor) -> bool:
    """Return True if a tensor that contains -∞ looks like an attention mask.

    This is the case if ``path``, the place of the tensor in the arguments of a module, contains "mask", or if all
    finite entries of the tensor are 0.
    """
    return "mask" in path or not bool(tensor[tensor.isfinite()].any())


def first_bad(bad: Tensor, order: Order, latest: bool) -> tuple[int, ...]:
    """Return the index of the first True entry of a mask.

    ``order`` is the name of the first axis, "batch" or "time", if the mask belongs to a sequence, and None for any
    other tensor. In a sequence, the index is that of an entry at the earliest time step with a True entry, or at the
    latest such step if ``latest`` is True.
    """
    if order is None:
        return _unravel(bad)
    times = bad.transpose(0, 1) if order == "batch" else bad
    time, *rest = _unravel(times.flip(0) if latest else times)
    time = len(times) - 1 - time if latest else time
    return (rest[0], time, rest[1]) if order == "batch" else (time, *rest)


def _unravel(bad: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(bad.flatten().byte().argmax(), bad.shape))
