"""One step of S4D on a GPU as one Triton kernel: the recurrence of every channel, and the readout.

h' = a h + g x and y = 2 Re Σ_n C_n h'_n + D x, for H channels with N complex states each. A program processes a tile of
channels of one sequence, in float32.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from stablessm.scan.triton.launch import Launch

TILE, WARPS = 512, 4
"""Number of states of a tile, and warps per program."""


@triton.jit
def step_kernel(
    x, decay, gain, C, D, state, y, new,
    H: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the next states and the output of ROWS channels of one sequence."""
    tiles: tl.constexpr = (H + ROWS - 1) // ROWS
    channel = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)[:, None]
    exists = channel < H
    place = (tl.program_id(0) // tiles).to(tl.int64) * H + channel
    n = tl.arange(0, BLOCK)[None, :]
    inside = exists & (n < N)
    of, at = 2 * (channel * N + n), 2 * (place * N + n)
    signal = tl.load(x + place, exists, 0.0).to(tl.float32)
    a, b = tl.load(decay + of, inside, 0.0), tl.load(decay + of + 1, inside, 0.0)
    h, i = tl.load(state + at, inside, 0.0), tl.load(state + at + 1, inside, 0.0)
    re = a * h - b * i + tl.load(gain + of, inside, 0.0) * signal
    im = a * i + b * h + tl.load(gain + of + 1, inside, 0.0) * signal
    tl.store(new + at, re, inside)
    tl.store(new + at + 1, im, inside)
    c, d = tl.load(C + of, inside, 0.0).to(tl.float32), tl.load(C + of + 1, inside, 0.0).to(tl.float32)
    total = 2.0 * tl.sum(c * re - d * im, 1, keep_dims=True)
    total += tl.load(D + channel, exists, 0.0).to(tl.float32) * signal
    tl.store(y + place, total.to(y.dtype.element_ty), exists)


def step(x: Tensor, decay: Tensor, gain: Tensor, C: Tensor, D: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output (B, H) in the dtype of x and the next states (B, H, N), complex64.

    Args:
        x: (B, H).
        decay, gain: a and g, (H, N) complex64.
        C: (H, N, 2).
        D: (H,).
        state: h, (B, H, N) complex64.
    """
    batch, channels, states = state.shape
    y, new = torch.empty_like(x), torch.empty(state.shape, dtype=state.dtype, device=x.device)
    _launch(batch, channels, states)(x, decay.contiguous(), gain.contiguous(), C, D, state.contiguous(), y, new)
    return y, new


@functools.lru_cache(maxsize=1024)
def _launch(batch: int, channels: int, states: int) -> Launch:
    block = triton.next_power_of_2(states)
    height = min(max(1, TILE // block), triton.next_power_of_2(channels))
    constants = {"H": channels, "N": states, "ROWS": height, "BLOCK": block}
    return Launch(step_kernel, batch * triton.cdiv(channels, height), (), constants, warps=WARPS)
