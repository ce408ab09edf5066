"""The CPU backend of the fused layer: tables for the kernels of :mod:`.ssm_kernels`, and what comes back."""

from __future__ import annotations

import functools
import math
import os
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from stablessm.llvm.emitter import VECTOR_BYTES
from stablessm.llvm.kernel import Kernel, compiled
from stablessm.scan.cpu import ssm_kernels, ssm_tables
from stablessm.scan.cpu.chunk_emitter import CHUNKS, PARTS, Spec
from stablessm.scan.cpu.ssm_kernels import BACKWARD_FIELDS, FORWARD_FIELDS
from stablessm.scan.cpu.ssm_tables import GRADIENT_FIELDS, MAKE_FIELDS
from stablessm.scan.protocol import DiagonalSSM

STREAM_BYTES = 8 << 20
"""Results past this size bypass the cache: they would not stay in it anyway."""
SERIAL_STATES = 1 << 16
"""Below this many states (all steps together) one thread is done before a second wakes up."""
UNITS = 16
"""Sequences are put in groups, whose gradients are summed together, until there are no more units than this."""
CORES = os.cpu_count() or 1
"""Nor more groups than give each core its share. Of the machine, not of PyTorch: results do not depend on threads."""
GROUP_STEPS = 1024
"""A group has at least so many steps: its sums are as many numbers as 2 L steps of states, and want to be paid for."""


class Layout(NamedTuple):
    """How channels and states are cut into vectors."""

    dtype: torch.dtype
    """float32 or float64, of a kernel's vectors"""
    channels: int
    states: int
    complex: bool

    @property
    def lanes(self) -> int:
        """Channels in a vector."""
        return VECTOR_BYTES // self.dtype.itemsize

    @property
    def tiles(self) -> int:
        """Vectors of channels."""
        return -(-self.channels // self.lanes)

    @property
    def groups(self) -> int:
        """PARTS real numbers of state at a time."""
        return -(-self.states * (2 if self.complex else 1) // PARTS)

    @property
    def length(self) -> int:
        """L, the steps in a chunk: a longer one carries states less often, but its inner convolution costs L / 2."""
        return 16

    def spec(self, *, backward: bool) -> Spec:
        """The options of a kernel for it."""
        return Spec(backward, self.dtype == torch.float64, self.complex, self.length)

    def pack(self, values: Tensor) -> Tensor:
        """(R, H, N), real or complex -> (R, tiles, groups, PARTS, lanes), zeros where there is no channel or state.

        A view where nothing is missing: who needs a copy in another dtype makes both in one pass.
        """
        parts = torch.view_as_real(values.resolve_conj()).flatten(2) if values.is_complex() else values
        lack = (0, self.groups * PARTS - parts.shape[2], 0, self.tiles * self.lanes - self.channels)
        parts = pad(parts, lack) if any(lack) else parts
        return parts.unflatten(2, (self.groups, PARTS)).unflatten(1, (self.tiles, self.lanes)).permute(0, 1, 3, 4, 2)

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of :meth:`pack`, in the layout's dtype; no view, which ``torch.compile`` may not understand."""
        parts = packed.permute(0, 1, 4, 2, 3).flatten(3).flatten(1, 2)[:, : self.channels]
        dtype = self.dtype.to_complex() if self.complex else self.dtype
        found = torch.empty((len(packed), self.channels, self.states), dtype=dtype)
        if self.complex:
            torch.view_as_real(found).copy_(parts[..., : 2 * self.states].unflatten(2, (self.states, 2)))
        else:
            found.copy_(parts[..., : self.states])
        return found


def checkpoint_shape(layer: DiagonalSSM) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of the checkpoints: the state before every block of steps."""
    layout, (batch, steps, _) = _layout(layer.decay), layer.x.shape
    cells = -(-steps // (CHUNKS * layout.length))
    return (batch, cells, layout.tiles, layout.groups, PARTS, layout.lanes), layout.dtype


def forward(layer: DiagonalSSM) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the final state and checkpoints."""
    x, layout = layer.x, _layout(layer.decay)
    shape, dtype = checkpoint_shape(layer)
    checkpoints = torch.empty(shape, dtype=dtype)
    y = _results(layer, dtype)
    carry = _carry(layer.initial, x, layout)
    if y.numel():
        arrays = {"x": _rows(x, dtype), "y": y, "carry": carry, "checkpoints": checkpoints}
        _run(layout, FORWARD_FIELDS, arrays | _tables(layer, layout), layer, len(x))
    return y.to(x.dtype), layout.unpack(carry), checkpoints


def backward(
    layer: DiagonalSSM, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of x, decay, B, C, D and initial (None, where there is none)."""
    x, layout, dtype, wide = layer.x, _layout(layer.decay), checkpoints.dtype, torch.float64
    tiles, groups, length, lanes = layout.tiles, layout.groups, layout.length, layout.lanes
    d_x = _results(layer, dtype)
    carry = _carry(d_final, x, layout)
    batches = _groups(tiles, *x.shape[:2])
    units = batches * tiles
    room = torch.empty if d_x.numel() else torch.zeros  # the kernel, where it runs, clears its sums
    sums = room(units, 2, groups, length, PARTS, lanes, dtype=wide)
    arrays = _tables(layer, layout) | {
        "x": _rows(x, dtype), "d_y": _rows(d_y, dtype), "d_x": d_x, "carry": carry,
        "checkpoints": checkpoints.contiguous(),
        "d_tables_wide": sums, "d_tables": sums if dtype == wide else room(sums.shape, dtype=dtype),
        "d_kernel": room(units, length, lanes, dtype=wide),
        "d_powers": room(units, groups, length + 1, PARTS, lanes, dtype=wide),
    }  # fmt: skip
    if d_x.numel():
        _run(layout, BACKWARD_FIELDS, arrays, layer, batches)
    results = arrays["results"] = torch.empty_like(arrays["parameters"])
    arrays["d_tables"] = sums
    kernel = compiled(ssm_tables.build, layout.spec(backward=True))
    work = length * layout.channels * layout.states
    _call(kernel, GRADIENT_FIELDS, arrays, layout, units=tiles, work=work, groups=batches)
    # An operator's results may not share memory.
    d_decay, d_B, d_C = (gradient.clone() for gradient in layout.unpack(results.permute(2, 0, 1, 3, 4)))
    d_D = arrays["d_kernel"][:, 0].unflatten(0, (batches, tiles)).sum(0).flatten()[: layout.channels]
    d_initial = None if layer.initial is None else layout.unpack(carry)
    return d_x.to(x.dtype), d_decay, d_B, d_C, d_D.to(dtype), d_initial


def _groups(tiles: int, batch: int, steps: int) -> int:
    """How many groups of sequences a backward pass works on side by side."""
    tiles = max(1, tiles)
    return max(1, min(batch, UNITS // tiles, CORES // math.gcd(tiles, CORES), batch * steps // GROUP_STEPS))


def _layout(decay: Tensor) -> Layout:
    channels, states = decay.shape
    return Layout(decay.real.dtype, channels, states, decay.is_complex())


def _results(layer: DiagonalSSM, dtype: torch.dtype) -> Tensor:
    """Room for what is shaped as x: zeros where kernels leave out the padding."""
    return (torch.empty if layer.lengths is None else torch.zeros)(layer.x.shape, dtype=dtype)


def _tables(layer: DiagonalSSM, layout: Layout) -> dict[str, Tensor]:
    """What the kernels multiply with, made by a kernel: see :mod:`.ssm_tables`."""
    tiles, lanes, length, wide = layout.tiles, layout.lanes, layout.length, torch.float64
    table = (tiles, layout.groups, length, PARTS, lanes)
    skip = torch.zeros(tiles * lanes, dtype=wide)
    if layer.D is not None:
        skip[: layout.channels] = layer.D
    packed = layout.pack(torch.stack([layer.decay, layer.B, layer.C])).permute(1, 2, 0, 3, 4)
    arrays = {
        "parameters": packed.to(wide, memory_format=torch.contiguous_format).contiguous(),
        "skip": skip,
        "into": torch.empty(table, dtype=layout.dtype),
        "out": torch.empty(table, dtype=layout.dtype),
        "kernel": torch.empty(tiles, length, lanes, dtype=layout.dtype),
        "powers": torch.empty(tiles, layout.groups, length + 2, PARTS, lanes, dtype=wide),
    }
    kernel = compiled(ssm_tables.build, layout.spec(backward=False))
    _call(kernel, MAKE_FIELDS, arrays, layout, units=tiles, work=length * layout.channels * layout.states)
    return arrays


def _carry(state: Tensor | None, x: Tensor, layout: Layout) -> Tensor:
    """A copy of the state (B, H, N), or zeros, as the kernels carry it."""
    shape = (len(x), layout.tiles, layout.groups, PARTS, layout.lanes)
    if state is None:
        return torch.zeros(shape, dtype=torch.float64)
    return torch.empty(shape, dtype=torch.float64).copy_(layout.pack(state))


def _rows(array: Tensor, dtype: torch.dtype) -> Tensor:
    """The array (B, T, H) in the kernel's dtype, channels adjacent."""
    array = array.to(dtype).resolve_neg()
    return array if array.stride(-1) == 1 or array.shape[-1] <= 1 else array.contiguous()


def _blocks(batch: int, steps: int, size: int, reset: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """(first step, steps, restarts here) of every block, and where each sequence's blocks begin in that list.

    A block begins at every multiple of ``size`` and at every reset.
    """
    if reset is None and lengths is None:
        return _even_blocks(batch, steps, size)
    time = torch.arange(steps)
    end = torch.full((batch,), steps) if lengths is None else lengths
    starts = (time % size == 0).expand(batch, steps) if reset is None else (time % size == 0) | reset
    sequence, first = (starts & (time < end[:, None])).nonzero(as_tuple=True)
    fresh = torch.zeros_like(first) if reset is None else reset[sequence, first].long()
    rows = torch.zeros(batch + 1, dtype=torch.int64)
    rows[1:] = torch.bincount(sequence, minlength=batch).cumsum(0)
    following = torch.cat([first[1:], first[:1]])
    last = torch.ones_like(first, dtype=torch.bool)
    last[:-1] = sequence[1:] != sequence[:-1]
    count = torch.where(last, end[sequence], following) - first
    return torch.stack([first, count, fresh], 1), rows


@functools.lru_cache(maxsize=64)
def _even_blocks(batch: int, steps: int, size: int) -> tuple[Tensor, Tensor]:
    first = torch.arange(0, steps, size)
    one = torch.stack([first, (steps - first).clamp(max=size), torch.zeros_like(first)], 1)
    return one.repeat(batch, 1), len(first) * torch.arange(batch + 1)


def _run(layout: Layout, names: tuple[str, ...], arrays: dict[str, Tensor], layer: DiagonalSSM, groups: int) -> None:
    """Run a kernel over every block of every sequence, in units of a tile and one of ``groups`` of sequences."""
    batch, steps, channels = arrays["x"].shape
    blocks, rows = _blocks(batch, steps, CHUNKS * layout.length, layer.reset, layer.lengths)
    arrays = arrays | {"blocks": blocks, "rows": rows}
    counts = {"tiles": layout.tiles, "groups": groups, "batch": batch, "channels": channels}
    counts["cells"] = arrays["checkpoints"].shape[1]
    work = batch * steps * channels * layout.states
    spec = layout.spec(backward=names is BACKWARD_FIELDS)
    result = arrays["d_x" if spec.backward else "y"]
    aligned = (result.data_ptr() | channels * result.element_size()) % VECTOR_BYTES == 0
    stream = aligned and result.numel() * result.element_size() >= STREAM_BYTES
    kernel = compiled(ssm_kernels.build, spec._replace(stream=stream))
    _call(kernel, names, arrays, layout, work=work, units=groups * layout.tiles, **counts)


def _call(
    kernel: Kernel, names: tuple[str, ...], arrays: dict[str, Tensor], layout: Layout, *, units: int, work: int,
    **counts: int,
) -> None:  # fmt: skip
    values = {**counts, "units": units, "states": layout.groups}
    for name in names:
        if (array := arrays.get(name)) is not None:
            values[name] = array.data_ptr()
            if f"{name}_batch" in names:
                values[f"{name}_batch"], values[f"{name}_time"] = array.stride()[:2]
    if units:
        kernel(names, values, units, workers=1 if work < SERIAL_STATES else torch.get_num_threads())
