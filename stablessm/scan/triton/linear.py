"""The GPU backend of the linear scan: passes PyTorch tensors to the kernels of :mod:`.linear_kernels`.

A call first collects the layouts of its arrays in a ``_Plan``. Everything that depends only on the plan (the division
of time into tiles, the kernels, and their arguments except the pointers) is computed once and cached.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeAlias

import torch
import triton
from torch import Tensor

from stablessm.scan.protocol import Recurrence
from stablessm.scan.triton import chain_kernels, linear_kernels
from stablessm.scan.triton.board import board
from stablessm.scan.triton.forms import Task, block, choose
from stablessm.scan.triton.launch import Launch

COMPILED = isinstance(chain_kernels.forward_chain_kernel, triton.JITFunction)
"""False in Triton's interpreter, which supports no inline assembly and runs one program after the other."""
LARGEST_LANE = 64
"""Largest number of bytes that a lane loads with one instruction."""

Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int]
"""Shape, strides and dtype of an array, and its address modulo LARGEST_LANE."""


def forward(recurrence: Recurrence, drive: Tensor) -> Tensor:
    """Compute all states (B, T, C) of the recurrence h[t] = decay[t] h[t-1] + drive[t]."""
    states = torch.empty(drive.shape, dtype=drive.dtype, device=drive.device)
    forward_into(states, recurrence, drive)
    return states


def forward_into(states: Tensor, recurrence: Recurrence, drive: Tensor) -> None:
    """Compute all states and write them into an array, which may be ``drive`` itself."""
    if not states.numel():
        return
    decay, drive = _readable(recurrence.decay, drive), _readable(drive, drive)
    initial, reset = recurrence.initial, recurrence.reset
    first = states if initial is None else _readable(initial, drive).contiguous()
    walk = _forward(_plan(decay, drive, states, reset, initial is not None, recurrence.reverse))
    walk(decay, drive, states if reset is None else reset.view(torch.uint8), first, states)


def backward(recurrence: Recurrence, states: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the gradients with respect to decay, drive and initial.

    The gradient of initial is None if there is no initial state.
    """
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
    walk = _backward(_plan(decay, grad, states, reset, initial is not None, reverse))
    reset = states if reset is None else reset.view(torch.uint8)
    d_decay = torch.empty(walk.d_decay_shape, dtype=walk.d_decay_dtype, device=states.device)
    first, d_first = (states if tensor is None else tensor for tensor in (initial, d_initial))
    walk(decay, grad, reset, states, first, d_decay, d_drive, d_first)
    if walk.reduce is not None:
        parts, d_decay = d_decay, torch.empty(decay.shape, dtype=decay.dtype, device=states.device)
        walk.reduce(parts, d_decay)
    elif d_decay.shape != decay.shape:
        d_decay = d_decay.sum(0 if decay.shape[1] > 1 else 1, keepdim=True)
    if given.dtype != d_decay.dtype:
        d_decay = (d_decay if given.is_complex() else d_decay.real).to(given.dtype)
    return d_decay, d_drive, d_initial


class _Plan(NamedTuple):
    """The layouts and options that determine the launches of a scan; calls with an equal plan reuse cached launches."""

    decay: Layout
    drive: Layout
    """Layout of the drive; in a backward pass, of the gradient of the states."""
    states: Layout
    cuts: tuple[int, ...] | None
    """Strides of the resets; None without resets."""
    initial: bool
    reverse: bool
    device: torch.device


def _plan(decay: Tensor, drive: Tensor, states: Tensor, reset: Tensor | None, initial: bool, reverse: bool) -> _Plan:
    cuts = None if reset is None else reset.stride()
    return _Plan(_layout(decay), _layout(drive), _layout(states), cuts, initial, reverse, states.device)


class _Grid(NamedTuple):
    """The division of a scan into GPU programs, and the constants of its kernels."""

    window: int
    registers: int | None
    steps: int
    channels: int
    levels: int
    strips: int
    warps: int
    constants: dict[str, Any]

    def launch(self, kernels: tuple[Any, Any], strides: tuple[int, ...], initial: bool, cuts: bool,
               offsets: tuple[int, ...]) -> Launch:  # fmt: skip
        """Return a launch of one of two ``kernels``: the walk kernel or, if several programs share a sequence, the
        chain kernel.

        ``strides`` and ``offsets`` are the strides and byte offsets of the arrays; ``initial`` and ``cuts`` state
        whether there are an initial state and resets.
        """
        flags, sizes = {"INITIAL": initial, "CUTS": cuts}, (self.steps, self.channels)
        if not self.window:
            constants = {**flags, **self.constants}
            return Launch(kernels[0], self.strips, (*strides, *sizes), constants, offsets=offsets, warps=self.warps)
        constants = {**flags, **self.constants}
        numbers, places = (*strides, *sizes, self.levels, self.strips), (*offsets, 0)
        programs = self.levels * self.strips
        return Launch(
            kernels[1], programs, numbers, constants, offsets=places, warps=self.warps, registers=self.registers
        )

    def words(self, cuts: bool) -> int:
        """Return the size of the board that the chain kernel requires, in 64-bit words; 0 for the walk kernel."""
        if not self.window:
            return 0
        parts, step = 2 if self.constants["IS_COMPLEX"] else 1, self.strips * self.constants["BLOCK"]
        totals = self.levels * (4 * parts + cuts) if self.window > 1 else 0
        return chain_kernels.FIRST + step * (2 * parts * ((self.levels - 1) // self.window) + totals)


class _Launches(NamedTuple):
    """The kernel launches of one scan: the scan itself and, if required, the sum of the gradient of the decay over
    sequences and tiles.
    """

    launch: Launch
    words: int
    """Number of words of the board of a chain; 0 without a chain."""
    reduce: Launch | None = None
    d_decay_shape: tuple[int, ...] = ()
    d_decay_dtype: torch.dtype = torch.float64

    def __call__(self, *arrays: Tensor) -> None:
        """Launch the kernel with these arrays; the chain kernel also receives a board for the exchange of states."""
        if self.words:
            self.launch(*arrays, board(arrays[0].device, self.words))
        else:
            self.launch(*arrays)


@functools.lru_cache(maxsize=1024)
def _forward(plan: _Plan) -> _Launches:
    decay, drive, states, cuts, initial, reverse, _ = plan
    grid = _grid(plan, backward=False)
    offsets, strides = _rows(reverse, decay, drive, _reset(cuts, states))
    (to,), state_strides = _rows(reverse, states)
    kernels = linear_kernels.forward_kernel, chain_kernels.forward_chain_kernel
    strides, offsets = (*strides[:-1], *state_strides), (*offsets, 0, to)
    return _Launches(grid.launch(kernels, strides, initial, cuts is not None, offsets), grid.words(cuts is not None))


@functools.lru_cache(maxsize=1024)
def _backward(plan: _Plan) -> _Launches:
    decay, grad, states, cuts, initial, reverse, _ = plan
    grid, back, per_step = _grid(plan, backward=True), not reverse, decay[0][1] > 1
    batch, steps, channels = states[0]
    offsets, strides = _rows(back, decay, grad, _reset(cuts, states))
    shape, dtype = (batch, grid.levels, channels), torch.complex128 if states[2].is_complex else torch.float64
    if per_step:
        shape, dtype = (batch, steps, channels), decay[2]
        if decay[0][0] != batch:
            dtype = torch.promote_types(dtype, torch.float32)
    d_decay = (shape, _contiguous(shape) if per_step else (0, 0, 0), dtype, 0)
    d_drive = (states[0], _contiguous(states[0]), states[2], 0)
    (of_states, of_decay, of_drive), output_strides = _rows(back, states, d_decay, d_drive)
    strides, offsets = (*strides[:-1], *output_strides), (*offsets, of_states, 0, of_decay, of_drive, 0)
    kernels = linear_kernels.backward_kernel, chain_kernels.backward_chain_kernel
    launch = grid.launch(kernels, strides, initial, cuts is not None, offsets)
    reduce = None
    if not per_step and decay[0][0] == 1:
        rows, numbers = batch * grid.levels, channels * (2 if dtype.is_complex else 1)
        sizes = {"ROWS": 128, "BLOCK": 32}
        reduce = Launch(linear_kernels.reduce_kernel, -(-numbers // 32), (rows, numbers), sizes, warps=4)
    return _Launches(launch, grid.words(cuts is not None), reduce, shape, dtype)


def _grid(plan: _Plan, *, backward: bool) -> _Grid:
    (batch, steps, channels), _, dtype, _ = plan.states
    per_step = plan.decay[0][1] > 1
    tile, window, registers = choose(Task((batch, steps, channels), dtype, per_step, backward, plan.device))
    size, width = dtype.itemsize, block(tile, dtype, channels)
    rows, lane = tile.rows, tile.lane_bytes // size
    if plan.cuts is not None and rows > 16 and (window or size == 2 or dtype.is_complex):  # saves registers
        rows //= 2
    if not all(_reads_at_once(lane, array) for array in plan[:3]):
        lane = 1
    constants = {
        "PER_STEP": per_step,
        "IS_COMPLEX": dtype.is_complex,
        "DOUBLE": size > 2,
        "LANE": lane,
        "EVEN": steps % rows == 0 and channels % width == 0,
        "BLOCK_T": rows,
        "BLOCK": width,
        "SPREAD": min(rows, max(1, 32 * tile.warps * lane // width)),
    }
    constants |= (
        {"WINDOW": window, "LANES": 32 * tile.warps, "COMPILED": COMPILED} if window else {"STAGES": tile.stages}
    )
    levels, strips = -(-steps // rows) if window else 1, batch * -(-channels // width)
    registers = None if plan.cuts is not None else registers
    return _Grid(window, registers, steps, channels, levels, strips, tile.warps, constants)


def _reads_at_once(lane: int, array: Layout) -> bool:
    """Return True if a thread can load ``lane`` neighboring channels of an array with one instruction."""
    shape, stride, dtype, start = array
    rows = zip(shape[:2], stride, strict=False)
    contiguous = shape[2] % lane == 0 and (stride[2] == 1 or shape[2] == 1)
    aligned = all(count == 1 or step % lane == 0 for count, step in rows) and start % (lane * dtype.itemsize) == 0
    return lane == 1 or (contiguous and aligned)


def _rows(reverse: bool, *arrays: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two tuples for arrays (batch, time, channel): byte offsets, and strides in the order of the scan.

    The offset of an array is the offset of the row that is computed first. In reverse, this is the last row, and the
    stride of time is negative. The stride of a dimension of size 1 is 0.
    """
    offsets, strides = [], []
    for shape, stride, dtype, _ in arrays:
        batch, time, channel = (step if size > 1 else 0 for size, step in zip(shape, stride, strict=True))
        offsets.append((shape[1] - 1) * time * dtype.itemsize if reverse else 0)
        strides += [batch, -time if reverse else time, channel]
    return tuple(offsets), tuple(strides)


def _reset(cuts: tuple[int, ...] | None, states: Layout) -> Layout:
    """Return the layout of the resets as a (batch, time, channel) array.

    ``cuts`` are the strides of the resets in batch and time. If ``cuts`` is None, there are no resets, and all strides
    are 0.
    """
    batch, steps, _ = states[0]
    return (batch, steps, 1), (0, 0, 0) if cuts is None else (*cuts, 0), torch.uint8, 0


def _contiguous(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return shape[1] * shape[2], shape[2], 1


def _layout(array: Tensor) -> Layout:
    return array.shape, array.stride(), array.dtype, array.data_ptr() % LARGEST_LANE


def _readable(tensor: Tensor, drive: Tensor) -> Tensor:
    """Return a tensor that kernels can read: complex if the drive is complex, without lazy conjugation or negation."""
    if tensor.dtype != drive.dtype and tensor.is_complex() != drive.is_complex():
        tensor = tensor.to(drive.dtype)
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor
