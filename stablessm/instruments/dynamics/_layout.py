"""Conversion of states of any structure to rows of real numbers, and back. A row contains all numbers of one state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.instruments._states import numbers_in, rebuilt
from stablessm.instruments.adapters.stateful import Stateful

Place: TypeAlias = Literal["single", "first", "last", "axis 0", "axis 1"]
"""Axis of a state for several rows: none (one row), a new first or last axis, or an axis that had length 1."""


@final
@dataclass(frozen=True)
class Leaf:
    """The shape, dtype and kind of one part of a state, where a part is a tensor, an array or a number."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Literal["tensor", "array", "number"]
    device: torch.device
    namespace: Any = None
    """Module that makes arrays of this kind, such as NumPy or ``jax.numpy``."""

    @property
    def size(self) -> int:
        """Return the number of real numbers in this part of a state; a complex number counts twice."""
        return math.prod(self.shape) * (2 if self.dtype.is_complex else 1)


@final
@dataclass(frozen=True)
class Layout:
    """The layout of a state: the shapes and dtypes of its parts, without the axis of the rows."""

    leaves: tuple[Leaf, ...]

    @property
    def size(self) -> int:
        """Return the number of real numbers in a state."""
        return sum(leaf.size for leaf in self.leaves)

    @property
    def differentiable(self) -> bool:
        """Return True if all parts are tensors, so that PyTorch can differentiate with respect to the state."""
        return all(leaf.kind == "tensor" for leaf in self.leaves)

    def complex_parts(self) -> Tensor:
        """Return the indices, in a row, of the real parts of complex numbers; each imaginary part is the next entry."""
        starts = np.cumsum([0, *(leaf.size for leaf in self.leaves)])
        found = [
            range(a, a + leaf.size, 2) for a, leaf in zip(starts, self.leaves, strict=False) if leaf.dtype.is_complex
        ]
        return torch.tensor([i for part in found for i in part], dtype=torch.long)

    def pack(self, state: Any, place: Place) -> Tensor:
        """Convert a state to rows (R, n) of real numbers; ``place`` says where the rows are in the state."""
        found = list(numbers_in(state))
        if len(found) != len(self.leaves):
            raise ArgumentError("model", f"a state with {len(self.leaves)} parts, as before", f"{len(found)} parts")
        rows = []
        for leaf, part in zip(self.leaves, found, strict=True):
            value = _rows_first(_tensor(part), place)
            if tuple(value.shape[1:]) != leaf.shape:
                expected = f"a state of one size: {leaf.shape}, as before (an attention cache grows)"
                raise ArgumentError("model", expected, f"shape {tuple(value.shape[1:])}")
            if value.is_complex() and not leaf.dtype.is_complex:
                raise ArgumentError("model", f"a state of {leaf.dtype}, as before", value.dtype)
            value = value.to(leaf.dtype)
            value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
            rows.append(value.reshape(len(value), -1).to("cpu"))
        return torch.cat(rows, 1)

    def unpack(self, rows: Tensor, frame: Any, place: Place) -> Any:
        """Convert rows (R, n) of real numbers to a state of R rows.

        The structure of the state, and everything in it that is not a floating-point number, is copied from ``frame``.
        """
        parts = iter(rows.split([leaf.size for leaf in self.leaves], 1))
        leaves = iter(self.leaves)

        def made(_: Any) -> Any:
            leaf, part = next(leaves), next(parts)
            if leaf.dtype.is_complex:
                part = torch.view_as_complex(part.reshape(len(part), -1, 2))
            value = _placed(part.reshape(len(part), *leaf.shape).to(leaf.device, leaf.dtype), place)
            if leaf.kind == "tensor":
                return value.clone()  # the model may overwrite its state
            if leaf.kind == "number":
                return value.item()
            array = value.numpy(force=True).copy()
            return array if leaf.namespace in (None, np) else leaf.namespace.asarray(array)

        return rebuilt(frame, made, Tensor.clone)


def place_of(adapter: Stateful) -> Place:
    """Return the batch axis of the states of an adapter, as "axis 0" or "axis 1"."""
    return "axis 1" if adapter.batch_axis else "axis 0"


def layout_of(state: Any, place: Place, precise: bool) -> Layout:
    """Return the layout of a state: the shapes and dtypes of all parts, with double precision if ``precise``."""
    leaves = []
    for part in numbers_in(state):
        kind: Any = (
            "tensor"
            if isinstance(part, Tensor)
            else "number"
            if not hasattr(part, "shape") or isinstance(part, np.generic)
            else "array"
        )
        namespace = part.__array_namespace__() if kind == "array" and hasattr(part, "__array_namespace__") else None
        value = _tensor(part)
        wide = torch.complex128 if value.is_complex() else torch.float64
        dtype = wide if precise or kind == "number" else value.dtype
        leaves.append(Leaf(tuple(_rows_first(value, place).shape[1:]), dtype, kind, value.device, namespace))
    return Layout(tuple(leaves))


def _tensor(part: Any) -> Tensor:
    return part if isinstance(part, Tensor) else torch.as_tensor(np.array(part))  # a number in double precision


def _rows_first(value: Tensor, place: Place) -> Tensor:
    if place == "single":
        return value[None]
    if place in ("first", "last"):
        return value.movedim(0 if place == "first" else -1, 0)
    axis = int(place[-1])
    if value.dim() <= axis:
        raise ArgumentError("model", "a state with a batch axis", f"shape {tuple(value.shape)}")
    return value.movedim(axis, 0)


def _placed(value: Tensor, place: Place) -> Tensor:
    if place == "single":
        return value[0]
    return value.movedim(0, {"first": 0, "last": -1}.get(place, int(place[-1]) if place[-1].isdigit() else 0))


def repeated(state: Any, rows: int, axis: int) -> Any:
    """Return a state with ``rows`` equal rows, from a state with one row; ``axis`` is the axis of the rows."""

    def wide(value: Any) -> Any:
        tensor = torch.as_tensor(value)
        return tensor.repeat_interleave(rows, axis) if tensor.dim() > axis and tensor.shape[axis] == 1 else value

    return rebuilt(state, wide, wide)
