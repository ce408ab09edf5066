"""GPU kernels of the fused layer: time in chunks of LENGTH steps, everything between their borders as matrix products.

For one channel and one chunk, with x its inputs, s the states that enter it (R real numbers: N, or N pairs) and k[j]
the impulse response (plus D at j = 0):

    y[i] = Σ_j T[j, i] x[j] + Σ_r W[i, r] s[r],      s' = decay^LENGTH s + Σ_j V[j, r] x[j]

T[j, i] = k[i-j] for j ≤ i, V[j] = B decay^(LENGTH-1-j), W[i] = C decay^(i+1). ``generate_kernel`` makes them in
float64, ``collect_kernel`` takes their gradients back to decay, B, C and D. The products themselves are cuBLAS's; for
them ``transpose_kernel`` brings inputs to (channel, time) order, in which a chunk is a row of memory.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations as its own; tl.constexpr is the one it knows.)

from __future__ import annotations

import triton
import triton.language as tl

NUMBERS = ("x_b", "x_t", "x_c", "batch", "steps", "channels", "states")
"""Arguments whose values no compiled form depends on."""


@triton.jit(do_not_specialize=NUMBERS)
def transpose_kernel(
    x, x_b, x_t, x_c, flat, batch, steps, channels, BACK: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """(batch, time, channel) to (channel, batch, time), or BACK. UNIT: neighbouring channels lie side by side."""
    blocks = tl.cdiv(channels, BLOCK)
    tile = tl.program_id(0) // batch
    time = tile // blocks * BLOCK + tl.arange(0, BLOCK)
    channel = tile % blocks * BLOCK + tl.arange(0, BLOCK)
    sequence = (tl.program_id(0) % batch).to(tl.int64)
    mask = (time < steps)[:, None] & (channel < channels)[None, :]
    along = channel[None, :] if UNIT else channel.to(tl.int64)[None, :] * x_c
    at = x + (sequence * x_b + time.to(tl.int64)[:, None] * x_t + along)
    turned = flat + ((channel.to(tl.int64)[:, None] * batch + sequence) * steps + time[None, :])
    if BACK:
        tl.store(at, tl.trans(tl.load(turned, tl.trans(mask))).to(x.dtype.element_ty), mask)
    else:
        tl.store(turned, tl.trans(tl.load(at, mask)).to(flat.dtype.element_ty), tl.trans(mask))


@triton.jit
def _load(start, offset, mask, IS_COMPLEX: tl.constexpr):
    """Numbers in float64 as (re, im), 0 where masked."""
    if IS_COMPLEX:
        re = tl.load(start + 2 * offset, mask, 0.0).to(tl.float64)
        im = tl.load(start + 2 * offset + 1, mask, 0.0).to(tl.float64)
    else:
        re = tl.load(start + offset, mask, 0.0).to(tl.float64)
        im = tl.zeros_like(re)
    return re, im


@triton.jit
def _store(re, im, start, offset, mask, IS_COMPLEX: tl.constexpr):
    DTYPE: tl.constexpr = start.dtype.element_ty
    if IS_COMPLEX:
        tl.store(start + 2 * offset, re.to(DTYPE), mask)
        tl.store(start + 2 * offset + 1, im.to(DTYPE), mask)
    else:
        tl.store(start + offset, re.to(DTYPE), mask)


@triton.jit
def _times(u_re, u_im, v_re, v_im):
    return u_re * v_re - u_im * v_im, u_re * v_im + u_im * v_re


@triton.jit
def _powers(a_re, a_im, ROWS: tl.constexpr):
    """decay^i and its derivative i decay^(i-1) for i < ROWS, as tiles; and both for i = ROWS, as rows."""
    row = tl.arange(0, ROWS)[:, None]
    p_re, p_im, s_re, s_im = (
        tl.full(a_re.shape, 1.0, tl.float64),
        tl.zeros_like(a_re),
        tl.zeros_like(a_re),
        tl.zeros_like(a_re),
    )
    zeros = tl.zeros([ROWS, a_re.shape[1]], tl.float64)
    P_re, P_im, S_re, S_im = zeros, zeros, zeros, zeros
    for i in tl.static_range(ROWS):
        here = row == i
        P_re, P_im = tl.where(here, p_re, P_re), tl.where(here, p_im, P_im)
        S_re, S_im = tl.where(here, s_re, S_re), tl.where(here, s_im, S_im)
        s_re, s_im = s_re * a_re - s_im * a_im + p_re, s_re * a_im + s_im * a_re + p_im
        p_re, p_im = _times(p_re, p_im, a_re, a_im)
    return P_re, P_im, S_re, S_im, p_re, p_im, s_re, s_im


@triton.jit(do_not_specialize=NUMBERS)
def generate_kernel(
    decay, B, C, D, response, T, V, W, jump, states,
    SKIP: tl.constexpr, IS_COMPLEX: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Of one channel: k (LENGTH,), T (LENGTH, LENGTH), V and W (LENGTH, R), decay^LENGTH."""
    channel = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, STATES)[None, :]
    mask = n < states
    at = channel * states + n
    a_re, a_im = _load(decay, at, mask, IS_COMPLEX)
    b_re, b_im = _load(B, at, mask, IS_COMPLEX)
    c_re, c_im = _load(C, at, mask, IS_COMPLEX)
    P_re, P_im, _, _, j_re, j_im, _, _ = _powers(a_re, a_im, ROWS)
    p_re, p_im = tl.full([1, STATES], 1.0, tl.float64), tl.zeros([1, STATES], tl.float64)
    column = tl.arange(0, LENGTH)[None, :]
    for begin in range(0, LENGTH, ROWS):
        k = begin + tl.arange(0, ROWS)[:, None]
        q_re, q_im = _times(P_re, P_im, p_re, p_im)
        v_re, v_im = _times(q_re, q_im, b_re, b_im)
        _store(v_re, v_im, V, (channel * LENGTH + (LENGTH - 1 - k)) * states + n, mask, IS_COMPLEX)
        direct = tl.sum(c_re * v_re - c_im * v_im, 1, keep_dims=True)
        if SKIP:
            direct += tl.where(k == 0, tl.load(D + channel).to(tl.float64), 0.0)
        tl.store(response + channel * LENGTH + k, direct.to(response.dtype.element_ty))
        q_re, q_im = _times(q_re, q_im, a_re, a_im)
        w_re, w_im = _times(q_re, q_im, c_re, c_im)
        _store(w_re, -w_im, W, (channel * LENGTH + k) * states + n, mask, IS_COMPLEX)
        p_re, p_im = _times(p_re, p_im, j_re, j_im)
    _store(p_re, p_im, jump, at, mask, IS_COMPLEX)
    tl.debug_barrier()  # k is read by other lanes than wrote it
    for begin in range(0, LENGTH, ROWS):
        j = begin + tl.arange(0, ROWS)[:, None]
        k = tl.load(response + channel * LENGTH + (column - j), column >= j, 0.0)
        tl.store(T + ((channel * LENGTH + j) * LENGTH + column), k)


@triton.jit
def _pull(sum_re, sum_im, g_re, g_im, z_re, z_im):
    """sum + Σ over rows of g conj(z)."""
    return (
        sum_re + tl.sum(g_re * z_re + g_im * z_im, 0, keep_dims=True),
        sum_im + tl.sum(g_im * z_re - g_re * z_im, 0, keep_dims=True),
    )


@triton.jit(do_not_specialize=NUMBERS)
def collect_kernel(
    decay, B, C, d_T, d_response, d_V, d_W, d_jump, d_decay, d_B, d_C, d_D, states,
    IS_COMPLEX: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Gradients of what ``generate_kernel`` was given, from those of what it made."""
    channel = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, STATES)[None, :]
    mask = n < states
    at = channel * states + n
    a_re, a_im = _load(decay, at, mask, IS_COMPLEX)
    b_re, b_im = _load(B, at, mask, IS_COMPLEX)
    c_re, c_im = _load(C, at, mask, IS_COMPLEX)
    zeros = tl.zeros([1, STATES], tl.float64)
    da_re, da_im, db_re, db_im, dc_re, dc_im = zeros, zeros, zeros, zeros, zeros, zeros
    P_re, P_im, S_re, S_im, j_re, j_im, l_re, l_im = _powers(a_re, a_im, ROWS)
    p_re, p_im, s_re, s_im = zeros + 1.0, zeros, zeros, zeros  # decay^begin and its derivative
    lag = tl.arange(0, LENGTH)[None, :]
    along = tl.zeros([ROWS, LENGTH], tl.float64)  # the diagonals of d_T, summed
    for begin in range(0, LENGTH, ROWS):
        j = begin + tl.arange(0, ROWS)[:, None]
        along += tl.load(d_T + ((channel * LENGTH + j) * LENGTH + j + lag), j + lag < LENGTH, 0.0).to(tl.float64)
    tl.store(d_response + channel * LENGTH + lag, tl.sum(along, 0, keep_dims=True))
    tl.debug_barrier()  # read below by other lanes than wrote it
    for begin in range(0, LENGTH, ROWS):
        k = begin + tl.arange(0, ROWS)[:, None]
        q_re, q_im = _times(P_re, P_im, p_re, p_im)
        first_re, first_im = _times(P_re, P_im, s_re, s_im)
        slope_re, slope_im = _times(S_re, S_im, p_re, p_im)
        slope_re, slope_im = slope_re + first_re, slope_im + first_im
        # V[LENGTH-1-k] = B q and the diagonals of T, Re Σ C B q
        v_re, v_im = _load(d_V, (channel * LENGTH + (LENGTH - 1 - k)) * states + n, mask, IS_COMPLEX)
        g = tl.load(d_response + channel * LENGTH + k)
        tl.store(d_D + channel + 0 * k, g.to(d_D.dtype.element_ty), k == 0)
        g_re, g_im = v_re + g * c_re, v_im - g * c_im  # of B q
        db_re, db_im = _pull(db_re, db_im, g_re, g_im, q_re, q_im)
        bs_re, bs_im = _times(b_re, b_im, slope_re, slope_im)
        da_re, da_im = _pull(da_re, da_im, g_re, g_im, bs_re, bs_im)
        bq_re, bq_im = _times(b_re, b_im, q_re, q_im)
        dc_re, dc_im = _pull(dc_re, dc_im, tl.broadcast_to(g, bq_re.shape), tl.zeros_like(bq_re), bq_re, bq_im)
        # W[k] = C q decay, its imaginary part negated
        w_re, w_im = _load(d_W, (channel * LENGTH + k) * states + n, mask, IS_COMPLEX)
        slope_re, slope_im = _times(slope_re, slope_im, a_re, a_im)
        slope_re, slope_im = slope_re + q_re, slope_im + q_im
        q_re, q_im = _times(q_re, q_im, a_re, a_im)
        dc_re, dc_im = _pull(dc_re, dc_im, w_re, -w_im, q_re, q_im)
        cs_re, cs_im = _times(c_re, c_im, slope_re, slope_im)
        da_re, da_im = _pull(da_re, da_im, w_re, -w_im, cs_re, cs_im)
        first_re, first_im = _times(s_re, s_im, j_re, j_im)
        s_re, s_im = _times(l_re, l_im, p_re, p_im)
        s_re, s_im = s_re + first_re, s_im + first_im
        p_re, p_im = _times(p_re, p_im, j_re, j_im)
    g_re, g_im = _load(d_jump, at, mask, IS_COMPLEX)
    da_re, da_im = _pull(da_re, da_im, g_re, g_im, s_re, s_im)
    _store(da_re, da_im, d_decay, at, mask, IS_COMPLEX)
    _store(db_re, db_im, d_B, at, mask, IS_COMPLEX)
    _store(dc_re, dc_im, d_C, at, mask, IS_COMPLEX)
