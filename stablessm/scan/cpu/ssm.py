"""The CPU backend of the fused layer: prepares arrays for the kernels of :mod:`.ssm_kernels` and unpacks results."""

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
from stablessm.scan.cpu import results, ssm_kernels, ssm_tables
from stablessm.scan.cpu.arguments import places
from stablessm.scan.cpu.chunk_emitter import CHUNKS, PARTS, Spec
from stablessm.scan.protocol import DiagonalSSM

STREAM_BYTES = 8 << 20
"""Smallest size of results that bypass the cache; they would leave the cache before they are read."""
SERIAL_STATES = 1 << 16
"""Below this number of states (of all steps) one thread takes less time than waking a second one."""
UNITS = 16
"""Largest number of parallel units of a backward pass. Each unit sums the gradients of one group of sequences."""
CORES = os.cpu_count() or 1
"""Number of cores of the machine, which limits the number of groups. PyTorch's number of threads does not: results do
not depend on it."""
GROUP_STEPS = 1024
"""Smallest number of steps in a group of sequences, because its sums take as much memory as the states of 2 L steps."""


class Layout(NamedTuple):
    """The layout of states in memory: how channels and states are divided into vectors and padded."""

    dtype: torch.dtype
    """float32 or float64, the dtype of a kernel's vectors."""
    channels: int
    states: int
    complex: bool

    @property
    def lanes(self) -> int:
        """Return the number of channels in one SIMD vector of the kernel's dtype."""
        return VECTOR_BYTES // self.dtype.itemsize

    @property
    def tiles(self) -> int:
        """Return the number of SIMD vectors that hold all channels."""
        return -(-self.channels // self.lanes)

    @property
    def groups(self) -> int:
        """Return the number of groups of PARTS real numbers into which the states of a channel are divided."""
        return -(-self.states * (2 if self.complex else 1) // PARTS)

    @property
    def length(self) -> int:
        """Return L, the number of time steps in a chunk (16).

        With longer chunks, states are carried less often, but convolutions have more terms.
        """
        return 16

    def spec(self, *, backward: bool) -> Spec:
        """Return the options of a kernel for arrays in this layout."""
        return Spec(backward, self.dtype == torch.float64, self.complex, self.length)

    def pack(self, values: Tensor) -> Tensor:
        """Rearrange states (rows, H, N), real or complex, to (rows, tiles, groups, PARTS, lanes), padded with zeros.

        The H channels are divided into tiles of ``lanes`` channels, and the N states of a channel, as real numbers,
        into groups of PARTS numbers. ``rows`` is any number. If no padding is needed, the result is a view, so that the
        caller can copy and convert it to another dtype in one pass over the memory.
        """
        parts = torch.view_as_real(values.resolve_conj()).flatten(2) if values.is_complex() else values
        lack = (0, self.groups * PARTS - parts.shape[2], 0, self.tiles * self.lanes - self.channels)
        parts = pad(parts, lack) if any(lack) else parts
        return parts.unflatten(2, (self.groups, PARTS)).unflatten(1, (self.tiles, self.lanes)).permute(0, 1, 3, 4, 2)

    def unpack(self, packed: Tensor) -> Tensor:
        """Return packed states in the shape (rows, H, N): the inverse of :meth:`pack`.

        The result has the layout's dtype. It is never a view, because the result of an operator must not be a view of
        an input.
        """
        parts = packed.permute(0, 1, 4, 2, 3).flatten(3).flatten(1, 2)[:, : self.channels]
        dtype = self.dtype.to_complex() if self.complex else self.dtype
        found = results.empty((len(packed), self.channels, self.states), dtype)
        if self.complex:
            torch.view_as_real(found).copy_(parts[..., : 2 * self.states].unflatten(2, (self.states, 2)))
        else:
            found.copy_(parts[..., : self.states])
        return found


def checkpoint_shape(layer: DiagonalSSM) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of the checkpoints, which are the states before every block of steps."""
    layout, (batch, steps, _) = _layout(layer.decay), layer.x.shape
    cells = -(-steps // (CHUNKS * layout.length))
    return (batch, cells, layout.tiles, layout.groups, PARTS, layout.lanes), layout.dtype


def forward(layer: DiagonalSSM) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the layer's output, its final state, and the checkpoints that ``backward`` needs."""
    x, layout = layer.x, _layout(layer.decay)
    shape, dtype = checkpoint_shape(layer)
    checkpoints = results.empty(shape, dtype)
    y = _results(layer, dtype)
    carry = _carry(layer.initial, x, layout)
    if y.numel():
        arrays = {"x": results.rows(x, dtype), "y": y, "carry": carry, "checkpoints": checkpoints}
        _run(layout, arrays | _tables(layer, layout), layer, len(x))
    return results.converted(y, x.dtype), layout.unpack(carry), checkpoints


def backward(
    layer: DiagonalSSM, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Compute the gradients with respect to x, decay, B, C, D and initial.

    The gradient of initial is None if there is no initial state.
    """
    x, layout, dtype, wide = layer.x, _layout(layer.decay), checkpoints.dtype, torch.float64
    tiles, groups, length, lanes = layout.tiles, layout.groups, layout.length, layout.lanes
    d_x = _results(layer, dtype)
    carry = _carry(d_final, x, layout)
    batches = _groups(tiles, *x.shape[:2])
    units = batches * tiles
    room = results.empty if d_x.numel() else results.zeros  # without data, no kernel sets its sums to zero
    sums = room((units, 2, groups, length, PARTS, lanes), wide)
    arrays = _tables(layer, layout) | {
        "x": results.rows(x, dtype), "d_y": results.rows(d_y, dtype), "d_x": d_x, "carry": carry,
        "checkpoints": checkpoints.contiguous(),
        "d_tables_wide": sums, "d_tables": sums if dtype == wide else room(sums.shape, dtype),
        "d_kernel": room((units, length, lanes), wide),
        "d_powers": room((units, groups, length + 1, PARTS, lanes), wide),
    }  # fmt: skip
    if d_x.numel():
        _run(layout, arrays, layer, batches)
    found = arrays["results"] = torch.empty_like(arrays["parameters"])
    arrays["d_tables"] = sums
    kernel = compiled(ssm_tables.build, layout.spec(backward=True))
    work = length * layout.channels * layout.states
    _call(kernel, arrays, layout, units=tiles, work=work, groups=batches)
    # The results of an operator must not share memory.
    d_decay, d_B, d_C = (gradient.clone() for gradient in layout.unpack(found.permute(2, 0, 1, 3, 4)))
    d_D = arrays["d_kernel"][:, 0].unflatten(0, (batches, tiles)).sum(0).flatten()[: layout.channels]
    d_initial = None if layer.initial is None else layout.unpack(carry)
    return results.converted(d_x, x.dtype), d_decay, d_B, d_C, d_D.to(dtype), d_initial


def _groups(tiles: int, batch: int, steps: int) -> int:
    """Return the number of groups into which a backward pass divides the sequences.

    Each group sums its gradients separately, so that the groups can run in parallel.
    """
    tiles = max(1, tiles)
    return max(1, min(batch, UNITS // tiles, CORES // math.gcd(tiles, CORES), batch * steps // GROUP_STEPS))


def _layout(decay: Tensor) -> Layout:
    channels, states = decay.shape
    return Layout(decay.real.dtype, channels, states, decay.is_complex())


def _results(layer: DiagonalSSM, dtype: torch.dtype) -> Tensor:
    """Return a new tensor in the shape of x, to which the kernels write results.

    If sequences are padded, the tensor is filled with zeros, because the kernels skip padded steps.
    """
    return (results.empty if layer.lengths is None else results.zeros)(layer.x.shape, dtype)


def _tables(layer: DiagonalSSM, layout: Layout) -> dict[str, Tensor]:
    """Compute tables of powers of the decay, by which the kernels multiply inputs and states (see
    :mod:`.ssm_tables`).
    """
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
    _call(kernel, arrays, layout, units=tiles, work=length * layout.channels * layout.states)
    return arrays


def _carry(state: Tensor | None, x: Tensor, layout: Layout) -> Tensor:
    """Return a float64 copy of a state (B, H, N) in the layout that the kernels use; if the state is None, return
    zeros.
    """
    shape = (len(x), layout.tiles, layout.groups, PARTS, layout.lanes)
    if state is None:
        return results.zeros(shape, torch.float64)
    return results.empty(shape, torch.float64).copy_(layout.pack(state))


def _blocks(batch: int, steps: int, size: int, reset: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Divide all sequences into blocks of at most ``size`` steps.

    Return two tensors. The first contains three numbers for each block: its first step, its number of steps, and 1 if
    the scan restarts at its first step (otherwise 0). The second contains the index of the first block of each sequence
    and, at the end, the number of all blocks. A block begins at every multiple of ``size`` and at every reset.
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


def _run(layout: Layout, arrays: dict[str, Tensor], layer: DiagonalSSM, groups: int) -> None:
    """Run a forward or backward kernel over all blocks of all sequences.

    The sequences are divided into ``groups`` groups, and the channels into tiles (one vector of channels each). A work
    unit of the kernel computes one tile of channels for all sequences of one group.
    """
    batch, steps, channels = arrays["x"].shape
    blocks, rows = _blocks(batch, steps, CHUNKS * layout.length, layer.reset, layer.lengths)
    arrays = arrays | {"blocks": blocks, "rows": rows}
    counts = {"tiles": layout.tiles, "groups": groups, "batch": batch, "channels": channels}
    counts["cells"] = arrays["checkpoints"].shape[1]
    work = batch * steps * channels * layout.states
    spec = layout.spec(backward="d_x" in arrays)
    result = arrays["d_x" if spec.backward else "y"]
    aligned = (result.data_ptr() | channels * result.element_size()) % VECTOR_BYTES == 0
    stream = aligned and result.numel() * result.element_size() >= STREAM_BYTES
    kernel = compiled(ssm_kernels.build, spec._replace(stream=stream))
    _call(kernel, arrays, layout, work=work, units=groups * layout.tiles, **counts)


def _call(kernel: Kernel, arrays: dict[str, Tensor], layout: Layout, *, units: int, work: int, **counts: int) -> None:
    values = {**counts, "units": units, "states": layout.groups, **places(arrays)}
    if units:
        kernel(values, workers=1 if work < SERIAL_STATES else torch.get_num_threads())
