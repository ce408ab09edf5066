"""The GPU backend: hands PyTorch tensors to the kernels of :mod:`.triton_kernels`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stablessm.scan import triton_kernels as kernels
from stablessm.scan.triton_launch import launch


class Tile(NamedTuple):
    """What a program, one warp, holds at once."""

    lane_bytes: int
    """What a lane reads at once where the array allows it."""
    row_bytes: int
    rows: int
    stages: int
    """Tiles in flight: the next ones are fetched while this one is computed."""


WHOLE = {2: Tile(16, 64, 32, 4), 4: Tile(16, 128, 32, 3), 8: Tile(16, 256, 16, 4), 16: Tile(16, 256, 8, 4)}
"""For a walk over all of time, by the bytes of a number."""
CHUNK = {2: Tile(4, 128, 16, 4), 4: Tile(8, 256, 8, 4), 8: Tile(8, 256, 8, 4), 16: Tile(16, 512, 4, 4)}
"""For a walk over a chunk: a row as wide as its 32 lanes, so that a lane has its channels to itself."""
FULL = 1024
"""Warps that keep a GPU's memory busy: a cut in time makes about so many."""
ENOUGH = 256
"""Warps from which on time is not cut: the second reading would cost more than the idle lanes."""
SHORTEST = 64
"""Steps of the shortest chunk."""
SHORT = 2048
"""Up to so many steps time is not cut: two more launches would take longer."""
LARGEST_LANE = 64
"""No lane reads more bytes of any array at once."""


def forward(decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool) -> Tensor:
    """All states; shapes as in :func:`stablessm.scan.op.scan_op`."""
    states = torch.empty(drive.shape, dtype=drive.dtype, device=drive.device)
    forward_into(states, decay, drive, initial, reset, reverse)
    return states


def forward_into(
    states: Tensor, decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool
) -> None:
    """All states into an array that is there, which may be ``drive`` itself."""
    if states.numel():
        decay, initial = _as_drive(decay, drive), None if initial is None else _as_drive(initial, drive).contiguous()
        plan = _plan(decay, drive, states)
        inputs = (*_rows(decay, reverse), *_rows(drive, reverse), *_cuts(reset, states, reverse))
        carries = _carries(plan, inputs, initial, reset, shift=0) if plan.chunks > 1 else initial
        launch(
            kernels.forward_kernel,
            (plan.programs,),
            (*inputs, _flat(states if carries is None else carries), *_rows(states, reverse), *plan.sizes),
            {"CARRIES": carries is not None, "CUTS": reset is not None, **plan.constants},
            1,
        )


def backward(
    grad: Tensor, decay: Tensor, states: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of decay (in its own shape), drive and initial."""
    batch, _, channels = states.shape
    d_drive = torch.empty(states.shape, dtype=states.dtype, device=states.device)
    d_initial = torch.empty(batch, channels, dtype=states.dtype, device=states.device)
    if not states.numel():
        return torch.zeros_like(decay), d_drive, d_initial.zero_()
    given, decay = decay, _as_drive(decay, states)
    initial = None if initial is None else _as_drive(initial, states).contiguous()
    plan = _plan(decay, grad, states)
    per_step = plan.constants["PER_STEP"]
    if per_step:
        d_decay = torch.empty(batch, *decay.shape[1:], dtype=_wide(decay, batch), device=states.device)
    else:
        d_decay = plan.scratch()
    back = not reverse
    inputs = (*_rows(decay, back), *_rows(grad, back), *_cuts(reset, states, back))
    carries = _carries(plan, inputs, None, reset, shift=1) if plan.chunks > 1 else None
    launch(
        kernels.backward_kernel,
        (plan.programs,),
        (
            *inputs,
            _flat(states if carries is None else carries),
            *_rows(states, back),
            _flat(states if initial is None else initial),
            *_rows(d_decay, back and per_step),
            *_rows(d_drive, back),
            _flat(d_initial),
            *plan.sizes,
        ),
        {
            "CARRIES": carries is not None,
            "INITIAL": initial is not None,
            "CUTS": reset is not None,
            **plan.constants,
        },
        1,
    )
    if not per_step:
        d_decay = _summed(d_decay, decay)
    elif decay.shape[0] != batch:
        d_decay = d_decay.sum(0, keepdim=True)
    if given.dtype != d_decay.dtype:
        d_decay = (d_decay if given.is_complex() else d_decay.real).to(given.dtype)
    return d_decay, d_drive, d_initial


@dataclass(frozen=True)
class _Plan:
    """How a scan is cut into chunks and columns."""

    batch: int
    chunks: int
    sizes: tuple[int, int, int, int]
    programs: int
    constants: dict[str, Any]
    scratch_dtype: torch.dtype
    device: torch.device

    def scratch(self) -> Tensor:
        """A number for each column, in double precision."""
        return torch.empty(self.batch, self.chunks, self.sizes[1], dtype=self.scratch_dtype, device=self.device)


def _plan(decay: Tensor, drive: Tensor, states: Tensor) -> _Plan:
    starts = tuple(array.data_ptr() % LARGEST_LANE for array in (decay, drive, states))
    strides = (decay.stride(), drive.stride(), states.stride())
    return _plan_of(states.shape, decay.shape, states.dtype, decay.element_size(), states.device, strides, starts)


@functools.lru_cache(maxsize=1024)
def _plan_of(
    shape: torch.Size,
    decay_shape: torch.Size,
    dtype: torch.dtype,
    decay_size: int,
    device: torch.device,
    strides: tuple[tuple[int, ...], ...],
    starts: tuple[int, ...],
) -> _Plan:
    """Time is cut where few channels would walk it for long: a cut reads twice and launches three kernels."""
    (batch, steps, channels), size = shape, dtype.itemsize
    tile, wanted = WHOLE[size], 1
    if steps > SHORT and batch * channels * size < ENOUGH * tile.row_bytes:
        tile = CHUNK[size]
        wanted = max(1, min(FULL * tile.row_bytes // (batch * channels * size), steps // SHORTEST))
    rows, lane, block = tile.rows, tile.lane_bytes // size, tile.row_bytes // size
    if wanted == 1:  # no lanes for channels that are not there
        block = min(block, max(8, 1 << (channels - 1).bit_length()))
    arrays = zip((decay_shape, shape, shape), strides, starts, (decay_size, size, size), strict=True)
    if not all(_reads_at_once(lane, *array) for array in arrays):
        lane = 1
    length = rows * -(-steps // (wanted * rows))
    chunks = -(-steps // length)
    constants = {
        "PER_STEP": decay_shape[1] > 1,
        "IS_COMPLEX": dtype.is_complex,
        "DOUBLE": size > 2,
        "LANE": lane,
        "EVEN": chunks * length == steps and chunks * channels % block == 0,
        "BLOCK_T": rows,
        "BLOCK": block,
        "STAGES": tile.stages,
    }
    programs = batch * -(-chunks * channels // block)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return _Plan(batch, chunks, (steps, channels, length, chunks), programs, constants, wide, device)


def _reads_at_once(lane: int, shape: torch.Size, stride: tuple[int, ...], start: int, size: int) -> bool:
    """Whether a lane can read so many neighbouring channels of an array at once."""
    rows = zip(shape[:2], stride, strict=False)
    contiguous = shape[2] % lane == 0 and (stride[2] == 1 or shape[2] == 1)
    aligned = all(count == 1 or step % lane == 0 for count, step in rows) and start % (lane * size) == 0
    return lane == 1 or (contiguous and aligned)


def _carries(
    plan: _Plan, inputs: tuple[Any, ...], initial: Tensor | None, reset: Tensor | None, *, shift: int
) -> Tensor:
    """The state before every chunk."""
    decays, states, carries = plan.scratch(), plan.scratch(), plan.scratch()
    cuts = _flat(decays)
    if reset is not None:
        cuts = torch.empty(decays.shape, dtype=torch.int32, device=plan.device)
    totals = (_flat(decays), _flat(states), cuts)
    launch(
        kernels.aggregate_kernel,
        (plan.programs,),
        (*inputs, *totals, *plan.sizes),
        {"SHIFT": shift, "CUTS": reset is not None, **plan.constants},
        1,
    )
    channels = plan.sizes[1]
    chunks = 1 << (plan.chunks - 1).bit_length()
    block = max(1, min(2048 // chunks, 1 << (channels - 1).bit_length()))
    launch(
        kernels.carry_kernel,
        (plan.batch * -(-channels // block),),
        (*totals, _flat(states if initial is None else initial), _flat(carries), channels, plan.chunks),
        {
            "INITIAL": initial is not None,
            "CUTS": reset is not None,
            "IS_COMPLEX": plan.constants["IS_COMPLEX"],
            "CHUNKS": chunks,
            "BLOCK": block,
        },
        4,
    )
    return carries


def _summed(parts: Tensor, decay: Tensor) -> Tensor:
    """The gradient of a per-channel decay from its columns (batch, chunk, channel), in a fixed order."""
    batch = decay.shape[0]
    total = torch.empty(decay.shape, dtype=decay.dtype, device=decay.device)
    if batch > 1:
        return parts.sum(1, keepdim=True).to(decay.dtype)
    flat = _flat(parts).flatten(0, 1).flatten(1)
    rows, channels = flat.shape
    sizes = {"ROWS": 128, "BLOCK": 32}
    launch(kernels.reduce_kernel, (-(-channels // 32),), (flat, _flat(total), rows, channels), sizes, 4)
    return total


def _wide(decay: Tensor, batch: int) -> torch.dtype:
    return decay.dtype if decay.shape[0] == batch else torch.promote_types(decay.dtype, torch.float32)


def _as_drive(tensor: Tensor, drive: Tensor) -> Tensor:
    """A real tensor beside a complex drive becomes complex; precision is the kernels' affair."""
    return tensor if tensor.is_complex() == drive.is_complex() else tensor.to(drive.dtype)


def _flat(array: Tensor) -> Tensor:
    return torch.view_as_real(array.resolve_conj()) if array.is_complex() else array


def _cuts(reset: Tensor | None, states: Tensor, reverse: bool) -> tuple[Any, ...]:
    if reset is None:
        return _flat(states), 0, 0
    return _rows(reset.view(torch.uint8)[..., None], reverse)[:3]


def _rows(array: Tensor, reverse: bool) -> tuple[Tensor, int, int, int]:
    """The (batch, time, channel) array as the kernels walk it: in reverse, from the last row by a negative stride."""
    array = array.resolve_conj().resolve_neg()
    (batch, time, channel), size = array.stride(), array.shape
    batch, time, channel = batch if size[0] > 1 else 0, time if size[1] > 1 else 0, channel if size[2] > 1 else 0
    if reverse and time:
        array, time = array[:, -1:], -time
    return _flat(array), batch, time, channel
