"""GPU scan kernels: one program walks one sequence and a block of its channels, tile by tile of time.

Inside a tile of BLOCK_T steps the recurrence y[i] = a[i] y[i-1] + x[i] is an associative scan of the maps
y ↦ a y + x, composed as (a₂, x₂) ∘ (a₁, x₁) = (a₂ a₁, a₂ x₁ + x₂); from tile to tile the last y is carried in
float64 registers. Forward and backward are this same recurrence, walked from the two ends of time.

Numbers are pairs (re, im) everywhere, so that real and complex share the kernels; of a real number ``im`` is a
zero, which the compiler drops. A reset *cuts* the recurrence: what stands left of it is dropped by a choice, not by
a product with zero, because 0 · NaN is NaN. Offsets are 64 bits wide, for arrays of more than 2³¹ numbers.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations as its own; tl.constexpr is the one it knows.)

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Rows(NamedTuple):
    """A (batch, time, channel) array: its first row in the order of the scan, and its strides in numbers."""

    start: Any
    batch: int
    time: int
    channel: int


@triton.jit
def _product(u_re, u_im, v_re, v_im, IS_COMPLEX: tl.constexpr):
    """u v."""
    re, im = u_re * v_re, u_im
    if IS_COMPLEX:
        re, im = re - u_im * v_im, u_re * v_im + u_im * v_re
    return re, im


@triton.jit
def _join(a1, x1, a2, x2):
    """(a₂ a₁, a₂ x₁ + x₂)."""
    return a2 * a1, a2 * x1 + x2


@triton.jit
def _join_complex(a1_re, a1_im, x1_re, x1_im, a2_re, a2_im, x2_re, x2_im):
    """(a₂ a₁, a₂ x₁ + x₂)."""
    a_re, a_im = _product(a2_re, a2_im, a1_re, a1_im, True)
    x_re, x_im = _product(a2_re, a2_im, x1_re, x1_im, True)
    return a_re, a_im, x_re + x2_re, x_im + x2_im


@triton.jit
def _join_cut(a1, x1, cut1, a2, x2, cut2):
    """The same, but nothing passes a part that holds a cut; its ``a`` is then never looked at."""
    a, x = _join(a1, x1, a2, x2)
    return a, tl.where(cut2 != 0, x2, x), cut1 | cut2


@triton.jit
def _join_complex_cut(
    a1_re, a1_im, x1_re, x1_im, cut1, a2_re, a2_im, x2_re, x2_im, cut2
):  # fmt: skip
    """The same, but nothing passes a part that holds a cut; its ``a`` is then never looked at."""
    a_re, a_im, x_re, x_im = _join_complex(a1_re, a1_im, x1_re, x1_im, a2_re, a2_im, x2_re, x2_im)
    keep = cut2 == 0
    return a_re, a_im, tl.where(keep, x_re, x2_re), tl.where(keep, x_im, x2_im), cut1 | cut2


@triton.jit
def _choose(condition, re, im):
    """The number, or 0 where the condition does not hold."""
    return tl.where(condition, re, 0.0), tl.where(condition, im, 0.0)


@triton.jit
def _sum(re, im, IS_COMPLEX: tl.constexpr):
    """The sum of a tile's rows, as one row."""
    re = tl.sum(re, 0, keep_dims=True)
    im = tl.sum(im, 0, keep_dims=True) if IS_COMPLEX else tl.zeros_like(re)
    return re, im


@triton.jit
def _last(re, im, IS_COMPLEX: tl.constexpr):
    """The last row of a tile; adding zeros to it is exact, and a NaN in another row is not added."""
    rows: tl.constexpr = re.shape[0]
    re, im = _choose(tl.arange(0, rows)[:, None] == rows - 1, re, im)
    return _sum(re, im, IS_COMPLEX)


@triton.jit
def _multiply(u, v):
    return u * v


@triton.jit
def _multiply_complex(u_re, u_im, v_re, v_im):
    return _product(u_re, u_im, v_re, v_im, True)


@triton.jit
def _total(a_re, a_im, IS_COMPLEX: tl.constexpr):
    """The product of a tile's rows in float64, as one row (a product may be reordered, which ``reduce`` does)."""
    if IS_COMPLEX:
        re, im = tl.reduce((a_re.to(tl.float64), a_im.to(tl.float64)), 0, _multiply_complex, keep_dims=True)
    else:
        re = tl.reduce(a_re.to(tl.float64), 0, _multiply, keep_dims=True)
        im = tl.zeros_like(re)
    return re, im


@triton.jit
def _recurrence(a_re, a_im, x_re, x_im, cut, before_re, before_im, IS_COMPLEX: tl.constexpr):
    """y[i] = a[i] y[i-1] + x[i] over a tile, y[-1] = before; ``cut`` (or None) marks where y[i] = x[i].

    Returns y and, as a row in float64, its last value. That one is carried: an error of the tile's total decay would
    be the same in every tile, and a memory of N steps would add it up N / BLOCK_T times.
    """
    DTYPE: tl.constexpr = x_re.dtype
    total_re, total_im = _total(a_re, a_im, IS_COMPLEX)
    after_re, after_im = _product(total_re, total_im, before_re, before_im, IS_COMPLEX)
    before_re, before_im = before_re.to(DTYPE), before_im.to(DTYPE)
    if cut is None:
        if IS_COMPLEX:
            a_re, a_im, x_re, x_im = tl.associative_scan((a_re, a_im, x_re, x_im), 0, _join_complex)
        else:
            a_re, x_re = tl.associative_scan((a_re, x_re), 0, _join)
        y_re, y_im = _product(a_re, a_im, before_re, before_im, IS_COMPLEX)
    else:
        after_re, after_im = _choose(tl.max(cut, 0, keep_dims=True) == 0, after_re, after_im)
        cut = tl.broadcast_to(cut, x_re.shape)
        if IS_COMPLEX:
            parts = (a_re, a_im, x_re, x_im, cut)
            a_re, a_im, x_re, x_im, cut = tl.associative_scan(parts, 0, _join_complex_cut)
        else:
            a_re, x_re, cut = tl.associative_scan((a_re, x_re, cut), 0, _join_cut)
        y_re, y_im = _product(a_re, a_im, before_re, before_im, IS_COMPLEX)
        y_re, y_im = _choose(cut == 0, y_re, y_im)
    last_re, last_im = _last(x_re, x_im, IS_COMPLEX)
    return y_re + x_re, y_im + x_im, after_re + last_re, after_im + last_im


@triton.jit
def _address(rows, batch, step, channel, IS_COMPLEX: tl.constexpr):
    """Where the numbers at step × channel lie; complex ones are interleaved pairs."""
    offset = batch * rows.batch + step * rows.time + channel * rows.channel
    if IS_COMPLEX:
        offset *= 2
    return rows.start + offset


@triton.jit
def _load(
    rows, batch, step, channel, mask, OTHER: tl.constexpr, DTYPE: tl.constexpr, IS_COMPLEX: tl.constexpr
):  # fmt: skip
    """The numbers at step × channel, OTHER where masked; widened at once, before any arithmetic."""
    at = _address(rows, batch, step, channel, IS_COMPLEX)
    re = tl.load(at, mask, OTHER).to(DTYPE)
    im = tl.zeros_like(re)
    if IS_COMPLEX:
        im = tl.load(at + 1, mask, 0.0).to(DTYPE)
    return re, im


@triton.jit
def _store(re, im, rows, batch, step, channel, mask, IS_COMPLEX: tl.constexpr):
    at = _address(rows, batch, step, channel, IS_COMPLEX)
    tl.store(at, re, mask)
    if IS_COMPLEX:
        tl.store(at + 1, im, mask)


@triton.jit
def _cuts(reset, batch, step, mask):
    """1 where the scan restarts, else 0, one for each step."""
    return tl.load(_address(reset, batch, step, 0, False), mask, 0).to(tl.int32)


@triton.jit
def _place(channels, BLOCK_C: tl.constexpr):
    """Which sequence and which channels this program works on."""
    blocks = tl.cdiv(channels, BLOCK_C)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    block = (tl.program_id(0) % blocks).to(tl.int64)
    return batch, block * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]


@triton.jit
def _kahan(total, lost, term):
    """total + term, and what that sum lost to rounding, to be made good with the next term."""
    corrected = term - lost
    new = total + corrected
    return new, (new - total) - corrected


@triton.jit
def forward_kernel(
    decay, drive, initial, reset, states, steps, channels,
    PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """h[t] = a[t] h[t-1] + x[t]; ``initial`` (h[-1]) and ``reset`` may be None."""
    DTYPE: tl.constexpr = decay.start.dtype.element_ty
    batch, channel = _place(channels, BLOCK_C)
    inside = channel < channels
    if initial is None:
        h_re, h_im = tl.zeros([1, BLOCK_C], tl.float64), tl.zeros([1, BLOCK_C], tl.float64)
    else:
        h_re, h_im = _load(initial, batch, 0, channel, inside, 0.0, tl.float64, IS_COMPLEX)
    if not PER_STEP:
        a_re, a_im = _load(decay, batch, 0, channel, inside, 0.0, DTYPE, IS_COMPLEX)
        a_re, a_im = tl.broadcast_to(a_re, [BLOCK_T, BLOCK_C]), tl.broadcast_to(a_im, [BLOCK_T, BLOCK_C])
    for begin in tl.range(0, steps, BLOCK_T, num_stages=STAGES):
        # Steps past the end come last: what is computed there reaches no state.
        step = begin + tl.arange(0, BLOCK_T).to(tl.int64)[:, None]
        mask = (step < steps) & inside
        if PER_STEP:
            a_re, a_im = _load(decay, batch, step, channel, mask, 0.0, DTYPE, IS_COMPLEX)
        x_re, x_im = _load(drive, batch, step, channel, mask, 0.0, DTYPE, IS_COMPLEX)
        cut = None if reset is None else _cuts(reset, batch, step, step < steps)
        y_re, y_im, h_re, h_im = _recurrence(a_re, a_im, x_re, x_im, cut, h_re, h_im, IS_COMPLEX)
        _store(y_re, y_im, states, batch, step, channel, mask, IS_COMPLEX)


@triton.jit
def backward_kernel(
    grad, decay, states, initial, reset, d_decay, d_drive, d_initial,
    steps, channels,
    PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """λ[t] = g[t] + conj(a[t+1]) λ[t+1] from the last step to the first; dx = λ; da[t] = λ[t] conj(h[t-1]).

    dh[-1] = conj(a[0]) λ[0]. A per-channel decay sums its gradient over time: in a tile as a tree, and from tile to
    tile with Kahan's compensation, so that float32 stays accurate over any length.
    """
    DTYPE: tl.constexpr = decay.start.dtype.element_ty
    batch, channel = _place(channels, BLOCK_C)
    inside = channel < channels
    zeros = tl.zeros([1, BLOCK_C], DTYPE)
    first_re, first_im = _load(decay, batch, 0, channel, inside, 0.0, DTYPE, IS_COMPLEX)  # a[0], or every a
    if initial is not None:
        start_re, start_im = _load(initial, batch, 0, channel, inside, 0.0, DTYPE, IS_COMPLEX)
    next_re, next_im = zeros.to(tl.float64), zeros.to(tl.float64)
    total_re, total_im, lost_re, lost_im = zeros, zeros, zeros, zeros
    for begin in tl.range(0, steps, BLOCK_T, num_stages=STAGES):
        step = steps - 1 - begin - tl.arange(0, BLOCK_T).to(tl.int64)[:, None]
        valid = step >= 0
        mask = valid & inside
        # λ past the last step is zero; steps before the first hand λ[0] on unchanged: there a = 1 and g = 0.
        follows = valid & (step + 1 < steps)
        if PER_STEP:
            a_re, a_im = _load(decay, batch, step + 1, channel, follows & inside, 1.0, DTYPE, IS_COMPLEX)
        else:
            a_re, a_im = tl.where(follows, first_re, 1.0), tl.where(follows, first_im, 0.0)
        g_re, g_im = _load(grad, batch, step, channel, mask, 0.0, DTYPE, IS_COMPLEX)
        cut = None if reset is None else _cuts(reset, batch, step + 1, follows)
        counts = valid if reset is None else valid & (_cuts(reset, batch, step, valid) == 0)
        adjoint_re, adjoint_im, next_re, next_im = _recurrence(
            a_re, -a_im, g_re, g_im, cut, next_re, next_im, IS_COMPLEX
        )
        _store(adjoint_re, adjoint_im, d_drive, batch, step, channel, mask, IS_COMPLEX)
        h_re, h_im = _load(states, batch, step - 1, channel, (step > 0) & inside, 0.0, DTYPE, IS_COMPLEX)
        if initial is not None:
            h_re, h_im = tl.where(step == 0, start_re, h_re), tl.where(step == 0, start_im, h_im)
        d_re, d_im = _product(adjoint_re, adjoint_im, h_re, -h_im, IS_COMPLEX)
        d_re, d_im = _choose(counts, d_re, d_im)
        if PER_STEP:
            _store(d_re, d_im, d_decay, batch, step, channel, mask, IS_COMPLEX)
        else:
            d_re, d_im = _sum(d_re, d_im, IS_COMPLEX)
            total_re, lost_re = _kahan(total_re, lost_re, d_re)
            total_im, lost_im = _kahan(total_im, lost_im, d_im)
    if not PER_STEP:
        _store(total_re, total_im, d_decay, batch, 0, channel, inside, IS_COMPLEX)
    d_re, d_im = _product(next_re.to(DTYPE), next_im.to(DTYPE), first_re, -first_im, IS_COMPLEX)
    if reset is not None:
        d_re, d_im = _choose(_cuts(reset, batch, 0, True) == 0, d_re, d_im)
    _store(d_re, d_im, d_initial, batch, 0, channel, inside, IS_COMPLEX)
