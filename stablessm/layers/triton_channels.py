"""One step of S4D on a GPU as one Triton kernel: the recurrence of all channels and the readout.

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

from stablessm.layers.factor_kind import NO_KIND, Kind
from stablessm.layers.factors import Weights
from stablessm.layers.triton_factors import computed, constants_of
from stablessm.scan.triton.launch import Launch

TILE, WARPS = 512, 4
"""Number of states of a tile, and warps per program."""


@triton.jit(do_not_specialize=("dt", "p", "q"))
def step_kernel(
    x, decay, gain, log_dt, C, D, state, y, new, dt, p, q,
    H: tl.constexpr, N: tl.constexpr, HELD: tl.constexpr, MAP: tl.constexpr, CONTINUOUS: tl.constexpr,
    COMPLEX: tl.constexpr, LOG: tl.constexpr, GAIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the next states and the output for ROWS channels of one sequence.

    The next states are written to ``new``. If HELD, ``decay`` and ``gain`` point to a and g; otherwise they point to w
    and the frequencies, from which a and g are computed (:func:`.triton_factors.computed`).
    """
    tiles: tl.constexpr = (H + ROWS - 1) // ROWS
    channel = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)[:, None]
    exists = channel < H
    place = (tl.program_id(0) // tiles).to(tl.int64) * H + channel
    n = tl.arange(0, BLOCK)[None, :]
    inside = exists & (n < N)
    of, at = 2 * (channel * N + n), 2 * (place * N + n)
    signal = tl.load(x + place, exists, 0.0).to(tl.float32)
    if HELD:
        a, b = tl.load(decay + of, inside, 0.0), tl.load(decay + of + 1, inside, 0.0)
        g, e = tl.load(gain + of, inside, 0.0), tl.load(gain + of + 1, inside, 0.0)
    else:
        a, b, g, e = computed(
            decay, gain, log_dt, channel, channel * N + n, exists, inside, dt, p, q, MAP, CONTINUOUS, COMPLEX, LOG,
            GAIN,
        )  # fmt: skip
        a, b, g, e = a.to(tl.float32), b.to(tl.float32), g.to(tl.float32), e.to(tl.float32)
    h, i = tl.load(state + at, inside, 0.0), tl.load(state + at + 1, inside, 0.0)
    re, im = a * h - b * i + g * signal, a * i + b * h + e * signal
    tl.store(new + at, re, inside)
    tl.store(new + at + 1, im, inside)
    c, d = tl.load(C + of, inside, 0.0).to(tl.float32), tl.load(C + of + 1, inside, 0.0).to(tl.float32)
    total = 2.0 * tl.sum(c * re - d * im, 1, keep_dims=True)
    total += tl.load(D + channel, exists, 0.0).to(tl.float32) * signal
    tl.store(y + place, total.to(y.dtype.element_ty), exists)


def step(
    x: Tensor, factors: tuple[Tensor, Tensor] | Weights, C: Tensor, D: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the output y (B, H) in the dtype of x, and the next states h' (B, H, N) in complex64.

    Args:
        x: inputs (B, H).
        factors: a and g, (H, N) complex64 each, or the weights from which they are computed.
        C: readout (H, N, 2), as real and imaginary parts.
        D: direct term (H,).
        state: present states h (B, H, N), complex64.
    """
    y, new = torch.empty_like(x), torch.empty(state.shape, dtype=state.dtype, device=x.device)
    if isinstance(factors, Weights):
        _launch(*state.shape, factors.kind)(x, factors.w, factors.imag, factors.log_dt, C, D, state, y, new)  # type: ignore[arg-type]
    else:
        decay, gain = (factor.contiguous() for factor in factors)
        _launch(*state.shape, None)(x, decay, gain, x, C, D, state, y, new)
    return y, new


@functools.lru_cache(maxsize=1024)
def _launch(batch: int, channels: int, states: int, kind: Kind | None) -> Launch:
    block = triton.next_power_of_2(states)
    height = min(max(1, TILE // block), triton.next_power_of_2(channels))
    known = kind or NO_KIND
    sizes, tile = {"H": channels, "N": states, "HELD": kind is None}, {"ROWS": height, "BLOCK": block}
    constants = {**sizes, **constants_of(known, True, True), **tile}
    numbers = (known.dt, *known.options)
    return Launch(step_kernel, batch * triton.cdiv(channels, height), numbers, constants, warps=WARPS)
