"""Addresses and strides of tensors, as arguments of the CPU kernels."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from stablessm._errors import ArgumentError


def places(arrays: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the fields of a kernel that say where arrays (batch, time, …) are in memory: the address ``NAME`` and the
    strides ``NAME_batch`` and ``NAME_time`` of each array.
    """
    values = {}
    for name, array in arrays.items():
        values[name] = address(name, array)
        values.update(zip((f"{name}_batch", f"{name}_time"), array.stride(), strict=False))
    return values


def address(name: str, array: Tensor) -> int:
    """Return the address of a tensor's first number; raise an error if the tensor has no memory."""
    found = array.data_ptr()
    if not found and array.numel():
        raise ArgumentError(name, "a tensor with memory", "a tensor whose memory was freed or never allocated")
    return found
