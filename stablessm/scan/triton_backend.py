"""The GPU backend: hands PyTorch tensors to the kernels of :mod:`.triton_kernels`."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from stablessm.scan.triton_kernels import Rows, backward_kernel, forward_kernel

BLOCK_T = 32
"""Steps in a tile."""
ROW_BYTES = 256
"""A row of a tile: 64 channels of float32, 16 of complex128, so that a tile of any dtype fits the registers."""
WARPS = 4
STAGES = 3
"""Tiles in flight: the next ones are fetched while this one is computed."""


def forward(decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool) -> Tensor:
    """All states; shapes as in :func:`stablessm.scan.op.scan_op`."""
    wide = torch.promote_types(drive.dtype, torch.float32)
    states = torch.empty(drive.shape, dtype=drive.dtype, device=drive.device)
    if states.numel():
        arrays = (
            decay.to(wide),
            drive,
            None if initial is None else initial.to(wide)[:, None],
            None if reset is None else reset[..., None].view(torch.uint8),
            states,
        )
        _launch(forward_kernel, arrays, decay, states, reverse)
    return states


def backward(
    grad: Tensor, decay: Tensor, states: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of decay (in its own shape), drive and initial."""
    wide = torch.promote_types(states.dtype, torch.float32)
    batch, _, channels = states.shape
    d_drive = torch.empty(states.shape, dtype=states.dtype, device=states.device)
    d_initial = torch.zeros(batch, channels, dtype=states.dtype, device=states.device)
    if not states.numel():
        return torch.zeros_like(decay), d_drive, d_initial
    d_decay = torch.empty(batch, *decay.shape[1:], dtype=wide, device=states.device)
    arrays = (
        grad,
        decay.to(wide),
        states,
        None if initial is None else initial.to(wide)[:, None],
        None if reset is None else reset[..., None].view(torch.uint8),
        d_decay,
        d_drive,
        d_initial[:, None],
    )
    _launch(backward_kernel, arrays, decay, states, reverse)
    reduced = d_decay if decay.shape[0] == batch else d_decay.sum(0, keepdim=True)
    return reduced.to(decay.dtype), d_drive, d_initial


def _launch(kernel: Any, arrays: tuple[Tensor | None, ...], decay: Tensor, states: Tensor, reverse: bool) -> None:
    batch, steps, channels = states.shape
    size = max(4, states.element_size())  # shorter floats are widened
    block = min(ROW_BYTES // size, triton.next_power_of_2(channels))
    with torch.cuda.device_of(states):  # Triton launches on the current device
        kernel[(batch * triton.cdiv(channels, block),)](
            *(None if array is None else _rows(array, reverse) for array in arrays),
            steps,
            channels,
            PER_STEP=decay.shape[1] > 1,
            IS_COMPLEX=states.is_complex(),
            BLOCK_T=BLOCK_T,
            BLOCK_C=block,
            STAGES=STAGES,
            num_warps=WARPS,
        )


def _rows(array: Tensor, reverse: bool) -> Rows:
    """The (batch, time, channel) array as the kernels walk it: in reverse, from the last row by a negative stride."""
    array = array.resolve_conj().resolve_neg()
    batch, time, channel = (
        0 if size == 1 else stride for size, stride in zip(array.shape, array.stride(), strict=True)
    )
    if reverse:
        array, time = array[:, -1:], -time
    return Rows(torch.view_as_real(array) if array.is_complex() else array, batch, time, channel)
