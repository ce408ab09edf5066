"""The GPU backend: hands PyTorch tensors to the kernels of :mod:`.linear_kernels`.

A call first describes its arrays; everything that follows from that (how time is cut, which kernels are launched with
which numbers) is made once and kept.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from stablessm.scan.protocol import Recurrence
from stablessm.scan.triton import linear_kernels as kernels
from stablessm.scan.triton.launch import Launch


class Tile(NamedTuple):
    """What a program holds at once."""

    lane_bytes: int
    """What a lane reads at once where the array allows it."""
    row_bytes: int
    rows: int
    stages: int
    """Tiles in flight: the next ones are fetched while this one is computed."""
    warps: int
    """Of the program."""


_HALF, _FLOAT, _DOUBLE = torch.float16, torch.float32, torch.float64
_COMPLEX, _COMPLEX_DOUBLE = torch.complex64, torch.complex128
WHOLE = {
    _HALF: Tile(16, 256, 64, 3, 4),
    _FLOAT: Tile(16, 256, 32, 3, 2),
    _DOUBLE: Tile(16, 256, 32, 3, 2),
    _COMPLEX: Tile(16, 256, 8, 4, 1),
    _COMPLEX_DOUBLE: Tile(16, 128, 16, 4, 1),
}
"""For a walk over all of time, by dtype; bfloat16 is as float16."""
LIGHT = {
    _HALF: Tile(16, 128, 64, 4, 2),
    _FLOAT: Tile(16, 256, 32, 4, 2),
    _DOUBLE: Tile(16, 256, 32, 4, 2),
    _COMPLEX: Tile(16, 512, 16, 4, 2),
    _COMPLEX_DOUBLE: Tile(16, 128, 16, 4, 1),
}
"""The same where one array alone is read: more of it has to be in flight."""
NARROW = {
    _HALF: Tile(16, 32, 256, 3, 4),
    _FLOAT: Tile(16, 64, 128, 3, 4),
    _DOUBLE: Tile(16, 64, 64, 3, 2),
    _COMPLEX: Tile(16, 64, 128, 3, 4),
    _COMPLEX_DOUBLE: Tile(16, 64, 64, 3, 2),
}
"""The same where there are few channels: more programs, and more of time at once."""
CHUNK = {
    _HALF: Tile(16, 128, 32, 3, 1),
    _FLOAT: Tile(16, 256, 16, 3, 1),
    _DOUBLE: Tile(16, 256, 16, 3, 1),
    _COMPLEX: Tile(16, 256, 16, 3, 1),
    _COMPLEX_DOUBLE: Tile(16, 512, 4, 4, 1),
}
"""For a walk over a chunk."""
FULL = 1024
"""Warps that keep a GPU's memory busy: a cut in time makes about so many."""
FEW = 256
"""Warps below which rows are narrow."""
ENOUGH = {False: 2048, True: 8192}
"""Real or complex numbers of a step from which on time is not cut: the second reading would cost more than it wins."""
MOST = 2048
"""Chunks at most: one program finds the states before all those of a channel."""
SHORTEST = 64
"""Steps of the shortest chunk."""
SHORT = 2048
"""Up to so many steps time is not cut: two more launches would take longer."""
LARGEST_LANE = 64
"""No lane reads more bytes of any array at once."""

Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int]
"""Shape, strides and dtype of an array, and how many bytes past a multiple of LARGEST_LANE it starts."""


def forward(recurrence: Recurrence, drive: Tensor) -> Tensor:
    """Return all states."""
    states = torch.empty(drive.shape, dtype=drive.dtype, device=drive.device)
    forward_into(states, recurrence, drive)
    return states


def forward_into(states: Tensor, recurrence: Recurrence, drive: Tensor) -> None:
    """Write all states into an array, which may be ``drive`` itself."""
    if not states.numel():
        return
    decay, drive = _readable(recurrence.decay, drive), _readable(drive, drive)
    initial, reset = recurrence.initial, recurrence.reset
    carries = None if initial is None else _readable(initial, drive).contiguous()
    cuts = None if reset is None else reset.stride()
    plan = _Plan(_layout(decay), _layout(drive), _layout(states), cuts, initial is not None, recurrence.reverse)
    walk = _forward(plan)
    reset = states if reset is None else reset.view(torch.uint8)
    if walk.carry is not None:
        carries = walk.carry(decay, drive, reset, carries)
    walk.launch(decay, drive, reset, states if carries is None else carries, states)


def backward(recurrence: Recurrence, states: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of decay, drive and, if it was given, initial."""
    decay, initial, reset, reverse = recurrence
    batch, _, channels = states.shape
    d_drive = torch.empty(states.shape, dtype=states.dtype, device=states.device)
    d_initial = None
    if initial is not None:
        d_initial = torch.empty((batch, channels), dtype=states.dtype, device=states.device)
        initial = _readable(initial, states).contiguous()
    if not states.numel():
        return torch.zeros_like(decay), d_drive, None if d_initial is None else d_initial.zero_()
    given, decay, grad = decay, _readable(decay, states), _readable(grad, states)
    cuts = None if reset is None else reset.stride()
    walk = _backward(_Plan(_layout(decay), _layout(grad), _layout(states), cuts, initial is not None, reverse))
    reset = states if reset is None else reset.view(torch.uint8)
    carries = states if walk.carry is None else walk.carry(decay, grad, reset, None)
    d_decay = torch.empty(walk.d_decay_shape, dtype=walk.d_decay_dtype, device=states.device)
    first, d_first = (states if tensor is None else tensor for tensor in (initial, d_initial))
    walk.launch(decay, grad, reset, carries, states, first, d_decay, d_drive, d_first)
    if walk.reduce is not None:
        parts, d_decay = d_decay, torch.empty(decay.shape, dtype=decay.dtype, device=states.device)
        walk.reduce(parts, d_decay)
    elif d_decay.shape != decay.shape:
        d_decay = d_decay.sum(0 if decay.shape[1] > 1 else 1, keepdim=True)
    if given.dtype != d_decay.dtype:
        d_decay = (d_decay if given.is_complex() else d_decay.real).to(given.dtype)
    return d_decay, d_drive, d_initial


class _Plan(NamedTuple):
    """What the launches of a call depend on."""

    decay: Layout
    drive: Layout
    """Of the drive, or of the gradient that comes in."""
    states: Layout
    cuts: tuple[int, ...] | None
    """Strides of the resets."""
    initial: bool
    reverse: bool


class _Cut(NamedTuple):
    """How a scan is cut into chunks and columns."""

    shape: tuple[int, int, int]
    length: int
    chunks: int
    programs: int
    scratch: torch.dtype
    """Of a number for each column."""
    constants: dict[str, Any]
    warps: int

    def launch(self, kernel: Any, strides: tuple[int, ...], flags: dict[str, Any], offsets: tuple[int, ...]) -> Launch:
        """A kernel over all columns; what all kernels are told last is the same."""
        _, steps, channels = self.shape
        numbers, constants = (*strides, steps, channels, self.length, self.chunks), {**flags, **self.constants}
        return Launch(kernel, self.programs, numbers, constants, offsets=offsets, warps=self.warps)

    @property
    def columns(self) -> tuple[int, int, int]:
        """The shape of an array with a number for each column."""
        batch, _, channels = self.shape
        return batch, self.chunks, channels


class _Carry:
    """Finds the state before every chunk, in two launches."""

    def __init__(
        self, cut: _Cut, offsets: tuple[int, ...], strides: tuple[int, ...], cuts: bool, initial: bool, shift: int
    ) -> None:
        self._shape, self._dtype, self._cuts = (3, *cut.columns), cut.scratch, cuts
        flags = {"SHIFT": shift, "CUTS": cuts}
        self._aggregate = cut.launch(kernels.aggregate_kernel, strides, flags, (*offsets, 0, 0, 0))
        batch, _, channels = cut.shape
        chunks = 1 << (cut.chunks - 1).bit_length()
        block = max(1, min(2048 // chunks, 1 << (channels - 1).bit_length()))
        constants = {"INITIAL": initial, "CUTS": cuts, "IS_COMPLEX": cut.constants["IS_COMPLEX"]}
        constants |= {"CHUNKS": chunks, "BLOCK": block, "SPREAD": min(chunks, max(1, 128 // block))}
        programs = batch * -(-channels // block)
        self._carry = Launch(kernels.carry_kernel, programs, (channels, cut.chunks), constants, warps=4)

    def __call__(self, decay: Tensor, drive: Tensor, reset: Tensor, initial: Tensor | None) -> Tensor:
        """(batch, chunk, channel)."""
        decays, states, carries = torch.empty(self._shape, dtype=self._dtype, device=drive.device).unbind()
        cuts = torch.empty(decays.shape, dtype=torch.int32, device=drive.device) if self._cuts else decays
        self._aggregate(decay, drive, reset, decays, states, cuts)
        self._carry(decays, states, cuts, states if initial is None else initial, carries)
        return carries


class _Walk(NamedTuple):
    """The launches of one scan."""

    carry: _Carry | None
    launch: Launch
    reduce: Launch | None = None
    d_decay_shape: tuple[int, ...] = ()
    d_decay_dtype: torch.dtype = torch.float64


@functools.lru_cache(maxsize=1024)
def _forward(plan: _Plan) -> _Walk:
    decay, drive, states, cuts, initial, reverse = plan
    cut = _cut(plan, WHOLE if decay[0][1] > 1 else LIGHT)
    offsets, strides = _rows(reverse, decay, drive, _reset(cuts, states))
    carry = _Carry(cut, offsets, strides[:-1], cuts is not None, initial, shift=0) if cut.chunks > 1 else None
    (to,), state_strides = _rows(reverse, states)
    flags = {"CARRIES": initial or carry is not None, "CUTS": cuts is not None}
    return _Walk(carry, cut.launch(kernels.forward_kernel, (*strides[:-1], *state_strides), flags, (*offsets, 0, to)))


@functools.lru_cache(maxsize=1024)
def _backward(plan: _Plan) -> _Walk:
    decay, grad, states, cuts, initial, reverse = plan
    cut, back, per_step = _cut(plan, WHOLE), not reverse, decay[0][1] > 1
    batch, steps, channels = states[0]
    offsets, strides = _rows(back, decay, grad, _reset(cuts, states))
    carry = _Carry(cut, offsets, strides[:-1], cuts is not None, False, shift=1) if cut.chunks > 1 else None
    shape, dtype = cut.columns, cut.scratch
    if per_step:
        shape, dtype = (batch, steps, channels), decay[2]
        if decay[0][0] != batch:
            dtype = torch.promote_types(dtype, torch.float32)
    d_decay = (shape, _contiguous(shape), dtype, 0)
    d_drive = (states[0], _contiguous(states[0]), states[2], 0)
    (of_states, of_decay, of_drive), output_strides = _rows(
        back, states, d_decay if per_step else (shape, (0, 0, 0), dtype, 0), d_drive
    )
    flags = {"CARRIES": carry is not None, "INITIAL": initial, "CUTS": cuts is not None}
    offsets = (*offsets, 0, of_states, 0, of_decay, of_drive, 0)
    launch = cut.launch(kernels.backward_kernel, (*strides[:-1], *output_strides), flags, offsets)
    reduce = None
    if not per_step and decay[0][0] == 1:
        rows, numbers = batch * cut.chunks, channels * (2 if dtype.is_complex else 1)
        sizes = {"ROWS": 128, "BLOCK": 32}
        reduce = Launch(kernels.reduce_kernel, -(-numbers // 32), (rows, numbers), sizes, warps=4)
    return _Walk(carry, launch, reduce, shape, dtype)


def _cut(plan: _Plan, tiles: Mapping[torch.dtype, Tile]) -> _Cut:
    """Time is cut where few channels would walk it for long: a cut reads twice and launches three kernels."""
    shape, _, dtype, _ = plan.states
    (batch, steps, channels), size = shape, dtype.itemsize
    kind = _HALF if size == 2 else dtype
    tile, wanted, step_bytes = tiles[kind], 1, batch * channels * size
    if steps > SHORT and batch * channels < ENOUGH[dtype.is_complex]:
        tile = CHUNK[kind]
        wanted = max(1, min(FULL * tile.row_bytes // step_bytes, steps // SHORTEST, MOST))
    elif step_bytes * tile.warps < FEW * tile.row_bytes:
        tile = NARROW[kind]
    rows, lane, block = tile.rows, tile.lane_bytes // size, tile.row_bytes // size
    if plan.cuts is not None and rows > 16 and (size == 2 or dtype.is_complex):  # all would not fit into registers
        rows //= 2
    if wanted == 1:  # no lanes for channels that are not there
        block = min(block, max(8, 1 << (channels - 1).bit_length()))
    if not all(_reads_at_once(lane, array) for array in plan[:3]):
        lane = 1
    length = rows * -(-steps // (wanted * rows))
    chunks = -(-steps // length)
    constants = {
        "PER_STEP": plan.decay[0][1] > 1,
        "IS_COMPLEX": dtype.is_complex,
        "DOUBLE": size > 2,
        "LANE": lane,
        "EVEN": chunks * length == steps and chunks * channels % block == 0,
        "BLOCK_T": rows,
        "BLOCK": block,
        "SPREAD": min(rows, max(1, 32 * tile.warps * lane // block)),
        "STAGES": tile.stages,
    }
    programs = batch * -(-chunks * channels // block)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return _Cut((batch, steps, channels), length, chunks, programs, wide, constants, tile.warps)


def _reads_at_once(lane: int, array: Layout) -> bool:
    """Return True if a lane can read so many neighboring channels of an array at once."""
    shape, stride, dtype, start = array
    rows = zip(shape[:2], stride, strict=False)
    contiguous = shape[2] % lane == 0 and (stride[2] == 1 or shape[2] == 1)
    aligned = all(count == 1 or step % lane == 0 for count, step in rows) and start % (lane * dtype.itemsize) == 0
    return lane == 1 or (contiguous and aligned)


def _rows(reverse: bool, *arrays: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(batch, time, channel) arrays as the kernels walk them: bytes to the first row, and the strides of all.

    In reverse the first row is the last, and the stride of time is negative. A stride where there is one place is 0.
    """
    offsets, strides = [], []
    for shape, stride, dtype, _ in arrays:
        batch, time, channel = (step if size > 1 else 0 for size, step in zip(shape, stride, strict=True))
        offsets.append((shape[1] - 1) * time * dtype.itemsize if reverse else 0)
        strides += [batch, -time if reverse else time, channel]
    return tuple(offsets), tuple(strides)


def _reset(cuts: tuple[int, ...] | None, states: Layout) -> Layout:
    """The layout of the resets, with a channel; without resets, of something that is not read."""
    batch, steps, _ = states[0]
    return (batch, steps, 1), (0, 0, 0) if cuts is None else (*cuts, 0), torch.uint8, 0


def _contiguous(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return shape[1] * shape[2], shape[2], 1


def _layout(array: Tensor) -> Layout:
    return array.shape, array.stride(), array.dtype, array.data_ptr() % LARGEST_LANE


def _readable(tensor: Tensor, drive: Tensor) -> Tensor:
    """As the kernels read it: complex beside a complex drive, and nothing left to be conjugated or negated."""
    if tensor.dtype != drive.dtype and tensor.is_complex() != drive.is_complex():
        tensor = tensor.to(drive.dtype)
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor
