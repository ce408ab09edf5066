"""The Triton backend of the selective layer: prepares arrays for the kernels of :mod:`.selective_kernels`."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
from torch import Tensor

from stablessm.scan.protocol import Selective
from stablessm.scan.selective_states import by_states, gradients_by_states
from stablessm.scan.triton.launch import Launch
from stablessm.scan.triton.selective_kernels import selective_backward_kernel, selective_forward_kernel

CELL = 16
"""Number of steps per checkpoint."""
MOST_STATES = 128
"""Largest number of states per channel for which a program keeps a vector of channels in registers."""
TILE = 512
"""Number of states of a program."""


def forward(layer: Selective) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the layer's output, its final state, and the checkpoints that ``backward`` needs."""
    if not _supported(layer):
        return (*by_states(layer, "triton"), layer.x.new_empty(0))
    x, initial = layer.x, (layer.zero_state() if layer.initial is None else layer.initial).contiguous()
    cells = -(-x.shape[1] // CELL)
    y, final = torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty_like(initial)
    checkpoints = x.new_empty(len(x), cells, *layer.A.shape)
    tensors, reset, ends = _tensors(layer)
    _launch(selective_forward_kernel, layer, *tensors, initial, reset, ends, y, final, checkpoints)
    return y, final, checkpoints


def backward(layer: Selective, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients with respect to x, delta, A, B, C and initial."""
    if not _supported(layer):
        return gradients_by_states(layer, d_y, d_final, "triton")
    (batch, steps, channels), (block, padded) = layer.x.shape, _tile(layer)
    tensors, reset, ends = _tensors(layer)
    x, _, A, _, _ = tensors
    blocks = -(-channels // block)
    d_final = layer.zero_state() if d_final is None else d_final.contiguous()
    scratch = x.new_empty(batch * blocks, CELL, block, padded)
    d_x, d_delta = torch.empty_like(x), torch.empty_like(x)
    d_A, d_initial = torch.empty_like(d_final), torch.empty_like(d_final)
    d_B, d_C = (x.new_empty(blocks, batch, steps, A.shape[1]) for _ in range(2))
    _launch(
        selective_backward_kernel, layer, *tensors, reset, ends, checkpoints, d_y.contiguous(), d_final, scratch,
        d_x, d_delta, d_A, d_B, d_C, d_initial,
    )  # fmt: skip
    return d_x, d_delta, d_A.sum(0), d_B.sum(0), d_C.sum(0), d_initial


def _supported(layer: Selective) -> bool:
    """Return True if the Triton kernels support the sizes of this layer."""
    return layer.A.shape[1] <= MOST_STATES and layer.x.numel() > 0


def _tile(layer: Selective) -> tuple[int, int]:
    """Return the number of channels and the number of states that a program computes, both powers of two."""
    padded = triton.next_power_of_2(layer.A.shape[1])
    return max(1, min(TILE // padded, triton.next_power_of_2(layer.A.shape[0]))), padded


def _tensors(layer: Selective) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return the layer's tensors made contiguous, its resets as bytes, and the number of unpadded steps per sequence.

    Without resets, another tensor is returned in place of the resets; the kernels do not read it.
    """
    tensors = [tensor.contiguous() for tensor in layer[:5]]
    reset = tensors[0] if layer.reset is None else layer.reset.contiguous().view(torch.uint8)
    batch, steps = layer.x.shape[:2]
    ends = torch.full((batch,), steps, device=layer.x.device) if layer.lengths is None else layer.lengths
    return tensors, reset, ends.contiguous()


def _launch(kernel: Any, layer: Selective, *tensors: Tensor) -> None:
    (batch, steps, channels), (block, padded) = layer.x.shape, _tile(layer)
    limit = -torch.finfo(layer.A.dtype).eps / 2 if layer.below_one else math.inf
    numbers = (batch, steps, channels, layer.A.shape[1], -(-steps // CELL), limit)
    _launcher(kernel, numbers, layer.reset is not None, block, padded)(*tensors)


@functools.lru_cache(maxsize=256)
def _launcher(kernel: Any, numbers: tuple[float, ...], reset: bool, block: int, padded: int) -> Launch:
    """Return a launch of a kernel, which is cached for later calls with the same arguments.

    ``numbers`` are the batch size, the numbers of steps, channels, states and cells, and the largest allowed exponent.
    ``block`` and ``padded`` are the numbers of channels and of states that a program computes.
    """
    constants = {"RESET": reset, "CELL": CELL, "BLOCK": block, "STATES": padded}
    return Launch(kernel, int(numbers[0] * -(-numbers[2] // block)), numbers, constants, warps=2)
