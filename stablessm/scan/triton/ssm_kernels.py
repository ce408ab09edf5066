"""GPU kernels of the fused layer, which divides time into chunks of LENGTH steps and uses matrix products in chunks.

For one channel and one chunk, let x be the inputs, s the states at the start of the chunk (R real numbers: N, or 2 N if
complex) and k[j] the impulse response (plus D at j = 0). Then

    y[i] = Σ_j T[j, i] x[j] + Σ_r W[i, r] s[r],      s' = decay^LENGTH s + Σ_j V[j, r] x[j]

with T[j, i] = k[i-j] for j ≤ i, V[j] = B decay^(LENGTH-1-j) and W[i] = C decay^(i+1). T and V are stored side by side
in one matrix M.

- ``transpose_kernel`` brings inputs to (channel, time) order, in which a chunk is a contiguous row, as the matrix
  products (:mod:`.matmul`) require.
- ``generate_kernel`` and ``toeplitz_kernel`` compute T, V and W, with powers in float64.
- ``enter_kernel`` computes the state at the start of every chunk; ``leave_kernel`` is its backward pass.
- ``diagonals_kernel`` and ``collect_kernel`` compute the gradients of decay, B, C and D from the gradients of T, V and
  W.

The last chunk may be short: its ``rest`` steps are followed by zeros. The state after it is the final state,
decay^rest s + Σ_j V[LENGTH - rest + j] x[j].
"""

# mypy: allow-untyped-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import triton
import triton.language as tl

from stablessm.scan.triton.tiles import last, load, product, rows_at, segments, step_of_row, store, walk

NUMBERS = (
    "x_b", "x_t", "x_c", "batch", "steps", "channels", "states", "width", "rest", "chunks", "per_row", "held",
    "per_batch",
)  # fmt: skip
"""Arguments on whose values Triton must not specialize the compiled kernels."""


@triton.jit(do_not_specialize=NUMBERS)
def transpose_kernel(
    x, flat, x_b, x_t, x_c, batch, steps, channels, chunks, width,
    BACK: tl.constexpr, UNIT: tl.constexpr, LENGTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy x (batch, time, channel) to rows of ``flat``, one per channel, sequence and chunk; with BACK, copy the rows
    to x.

    Steps after the end become zeros. UNIT states that the channels of x have stride 1.
    """
    blocks = tl.cdiv(channels, BLOCK)
    tile = tl.program_id(0) // batch
    time = tile // blocks * BLOCK + tl.arange(0, BLOCK)
    channel = tile % blocks * BLOCK + tl.arange(0, BLOCK)
    sequence = (tl.program_id(0) % batch).to(tl.int64)
    there = (time < steps)[:, None] & (channel < channels)[None, :]
    along = channel[None, :] if UNIT else channel.to(tl.int64)[None, :] * x_c
    at = x + (sequence * x_b + time.to(tl.int64)[:, None] * x_t + along)
    first = tile // blocks * BLOCK
    row = (channel.to(tl.int64)[:, None] * batch + sequence) * chunks + first // LENGTH
    turned = flat + (row * width + first % LENGTH + tl.arange(0, BLOCK)[None, :])
    inside = (channel < channels)[:, None]
    if BACK:
        tl.store(at, tl.trans(tl.load(turned, inside)).to(x.dtype.element_ty), there)
    else:
        tl.store(turned, tl.trans(tl.load(at, there, 0.0)).to(flat.dtype.element_ty), inside)


@triton.jit
def _power(a_re, a_im, exponent, BITS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """Return a^exponent by repeated squaring, for integer exponents from 0 to 2^BITS - 1."""
    exponent, _ = tl.broadcast(exponent, a_re)
    p_re, p_im = tl.full(exponent.shape, 1.0, tl.float64), tl.zeros(exponent.shape, tl.float64)
    for bit in tl.static_range(BITS):
        q_re, q_im = product(p_re, p_im, a_re, a_im, IS_COMPLEX)
        takes = ((exponent >> bit) & 1) != 0
        p_re, p_im = tl.where(takes, q_re, p_re), tl.where(takes, q_im, p_im)
        a_re, a_im = product(a_re, a_im, a_re, a_im, IS_COMPLEX)
    return p_re, p_im


@triton.jit
def _parameters(decay, B, C, at, mask, IS_COMPLEX: tl.constexpr):
    a_re, a_im = load(decay, at, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
    b_re, b_im = load(B, at, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
    c_re, c_im = load(C, at, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
    return a_re, a_im, b_re, b_im, c_re, c_im


@triton.jit(do_not_specialize=NUMBERS)
def generate_kernel(
    decay, B, C, D, response, V, W, jumps, channels, states, per_row, rest,
    SKIP: tl.constexpr, IS_COMPLEX: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Compute the impulse response k, and the matrices V (inputs to state) and W (state to outputs), of one channel at
    ROWS lags.

    The kernel also computes decay^LENGTH and decay^rest of the channel (``jumps``). Rows of V are ``per_row`` numbers
    apart. All powers are computed in float64.
    """
    LENGTH: tl.constexpr = 1 << BITS
    channel = (tl.program_id(0) // (LENGTH // ROWS)).to(tl.int64)
    k = tl.program_id(0) % (LENGTH // ROWS) * ROWS + tl.arange(0, ROWS)[:, None]
    n = tl.arange(0, STATES)[None, :]
    mask = n < states
    at = channel * states + n
    a_re, a_im, b_re, b_im, c_re, c_im = _parameters(decay, B, C, at, mask, IS_COMPLEX)
    q_re, q_im = _power(a_re, a_im, k, BITS, IS_COMPLEX)
    v_re, v_im = product(q_re, q_im, b_re, b_im, IS_COMPLEX)
    store(v_re, v_im, V, (channel * LENGTH + (LENGTH - 1 - k)) * per_row + n, mask, True, IS_COMPLEX, 1)
    direct = tl.sum(product(c_re, c_im, v_re, v_im, IS_COMPLEX)[0], 1, keep_dims=True)
    if SKIP:
        direct += tl.where(k == 0, tl.load(D + channel).to(tl.float64), 0.0)
    tl.store(response + channel * LENGTH + k, direct.to(response.dtype.element_ty))
    q_re, q_im = product(q_re, q_im, a_re, a_im, IS_COMPLEX)
    w_re, w_im = product(q_re, q_im, c_re, c_im, IS_COMPLEX)
    store(w_re, -w_im, W, (channel * LENGTH + k) * states + n, mask, True, IS_COMPLEX, 1)
    if tl.program_id(0) % (LENGTH // ROWS) == 0:
        for which in tl.static_range(2):
            exponent = tl.full([1, 1], LENGTH, tl.int32) if which == 0 else tl.zeros([1, 1], tl.int32) + rest
            p_re, p_im = _power(a_re, a_im, exponent, BITS + 1, IS_COMPLEX)
            store(p_re, p_im, jumps, (which * channels + channel) * states + n, mask, True, IS_COMPLEX, 1)


@triton.jit(do_not_specialize=NUMBERS)
def toeplitz_kernel(response, T, width, LENGTH: tl.constexpr, ROWS: tl.constexpr):
    """Fill ROWS rows of the Toeplitz matrix T[j, i] = k[i-j] of one channel's impulse response k.

    Rows are ``width`` numbers apart.
    """
    channel = (tl.program_id(0) // (LENGTH // ROWS)).to(tl.int64)
    j = tl.program_id(0) % (LENGTH // ROWS) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, LENGTH)[None, :]
    k = tl.load(response + (channel * LENGTH + i - j), i >= j, 0.0)
    tl.store(T + ((channel * LENGTH + j) * width + i), k)


@triton.jit
def _column(batch, chunks, states, BLOCK: tl.constexpr):
    """Return the channel, the sequence, the first row and the states that this program computes."""
    blocks = tl.cdiv(states, BLOCK)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    n = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)[None, :]
    return pair // batch, pair % batch, pair * chunks, n


@triton.jit(do_not_specialize=NUMBERS)
def enter_kernel(
    added, tail, initial, jumps, entering, final, batch, channels, chunks, states, per_row, held, per_batch,
    INITIAL: tl.constexpr, WHOLE: tl.constexpr, IS_COMPLEX: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    SPREAD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the states at chunk starts, s[c] = decay^LENGTH s[c-1] + added[c-1], and the final state.

    s[0] is ``initial``, and the final state is decay^rest s[chunks-1] + tail. WHOLE means that the last chunk is
    complete, so that ``added`` contains the tail. ``entering`` receives s. Rows of ``added`` are ``per_row`` numbers
    apart, and rows of ``entering`` are ``held`` numbers apart, also in ``leave_kernel``.
    """
    channel, sequence, first, n = _column(batch, chunks, states, BLOCK)
    mask = n < states
    at = channel * states + n
    j_re, j_im = load(jumps, at, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
    ends = sequence * per_batch + at
    s_re, s_im = tl.zeros([1, BLOCK], tl.float64), tl.zeros([1, BLOCK], tl.float64)
    if INITIAL:
        s_re, s_im = load(initial, ends, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
    s_re, s_im = tl.broadcast_to(s_re, [SPREAD, BLOCK]), tl.broadcast_to(s_im, [SPREAD, BLOCK])
    row = step_of_row(ROWS, SPREAD)
    for begin in tl.range(0, chunks, ROWS, num_stages=STAGES):
        c = begin + row
        moves = (c > 0) & (c < chunks)
        source = rows_at((first - 1) * per_row + n, c, per_row, 1)
        x_re, x_im = load(added, source, moves & mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
        a_re, a_im = tl.where(moves, j_re, 1.0), tl.where(moves, j_im, 0.0)
        y_re, y_im, s_re, s_im = walk(a_re, a_im, x_re, x_im, 0, s_re, s_im, False, IS_COMPLEX)
        store(y_re, y_im, entering, rows_at(first * held + n, c, held, 1), (c < chunks) & mask, True, IS_COMPLEX, 1)
    r_re, r_im = load(jumps, channels * states + at, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
    if WHOLE:
        x_re, x_im = load(added, (first + chunks - 1) * per_row + n, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
    else:
        x_re, x_im = load(tail, (channel * batch + sequence) * states + n, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
    s_re, s_im = product(last(s_re)[None], last(s_im)[None], r_re, r_im, IS_COMPLEX)
    store(s_re + x_re, s_im + x_im, final, ends, mask, True, IS_COMPLEX, 1)


@triton.jit(do_not_specialize=NUMBERS)
def leave_kernel(
    d_entering, entering, jumps, d_final, d_added, d_jumps, d_initial,
    batch, channels, chunks, states, per_row, held, per_batch,
    FINAL: tl.constexpr, INITIAL: tl.constexpr, IS_COMPLEX: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    SPREAD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the arguments of ``enter_kernel``, by a recurrence from the last chunk to the first.

    The recurrence is λ[c] = d_entering[c] + conj(decay^LENGTH) λ[c+1] with λ[chunks] = 0, and d_added[c] = λ[c+1]. The
    gradient d_final enters at the last chunk, as the additional term conj(decay^rest) d_final. Time runs backward: row
    i is chunk ``chunks - 1 - i``.
    """
    channel, sequence, first, n = _column(batch, chunks, states, BLOCK)
    mask = n < states
    at = channel * states + n
    ends = sequence * per_batch + at
    zeros = tl.zeros([1, BLOCK], tl.float64)
    j_re, j_im = load(jumps, at, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
    f_re, f_im, r_re, r_im = zeros, zeros, zeros, zeros
    if FINAL:
        g_re, g_im = load(d_final, ends, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
        e_re, e_im = load(entering, (first + chunks - 1) * held + n, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
        r_re, r_im = product(g_re, g_im, e_re, -e_im, IS_COMPLEX)
        p_re, p_im = load(jumps, channels * states + at, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
        f_re, f_im = product(g_re, g_im, p_re, -p_im, IS_COMPLEX)
    y_re, y_im = tl.zeros([SPREAD, BLOCK], tl.float64), tl.zeros([SPREAD, BLOCK], tl.float64)
    d_re, d_im = y_re, y_im
    row = step_of_row(ROWS, SPREAD)
    for begin in tl.range(0, chunks, ROWS, num_stages=STAGES):
        i = begin + row
        moves = (i > 0) & (i < chunks)
        source = rows_at((first + chunks) * states + n, -i, states, 1)
        x_re, x_im = load(d_entering, source, moves & mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
        if FINAL:
            starts = (i == 1) & moves
            x_re, x_im = tl.where(starts, x_re + f_re, x_re), tl.where(starts, x_im + f_im, x_im)
        a_re, a_im = tl.where(moves, j_re, 1.0), tl.where(moves, -j_im, 0.0)
        l_re, l_im, y_re, y_im = walk(a_re, a_im, x_re, x_im, 0, y_re, y_im, False, IS_COMPLEX)
        there = (i < chunks) & mask
        sink = rows_at((first + chunks - 1) * per_row + n, -i, per_row, 1)
        store(l_re, l_im, d_added, sink, there, True, IS_COMPLEX, 1)
        source = rows_at((first + chunks - 1) * held + n, -i, held, 1)
        h_re, h_im = load(entering, source, there, 0.0, True, IS_COMPLEX, tl.float64, 1)
        h_re, h_im = product(l_re, l_im, h_re, -h_im, IS_COMPLEX)
        d_re += tl.sum(segments(h_re, SPREAD), 0)
        if IS_COMPLEX:
            d_im += tl.sum(segments(h_im, SPREAD), 0)
    pair = channel * batch + sequence
    d_re, d_im = tl.sum(d_re, 0, keep_dims=True), tl.sum(d_im, 0, keep_dims=True)
    store(d_re, d_im, d_jumps, pair * states + n, mask, True, IS_COMPLEX, 1)
    store(r_re, r_im, d_jumps, (channels * batch + pair) * states + n, mask, True, IS_COMPLEX, 1)
    if INITIAL:
        x_re, x_im = load(d_entering, first * states + n, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
        if FINAL:
            x_re, x_im = tl.where(chunks == 1, x_re + f_re, x_re), tl.where(chunks == 1, x_im + f_im, x_im)
        y_re, y_im = product(last(y_re)[None], last(y_im)[None], j_re, -j_im, IS_COMPLEX)
        store(x_re + y_re, x_im + y_im, d_initial, ends, mask, True, IS_COMPLEX, 1)


@triton.jit(do_not_specialize=NUMBERS)
def diagonals_kernel(d_T, d_response, d_D, width, LENGTH: tl.constexpr, ROWS: tl.constexpr, LAGS: tl.constexpr):
    """Compute the gradient of the impulse response k at LAGS lags, by sums along the diagonals of the gradient of T.

    The sum at lag 0 is also d_D.
    """
    channel = (tl.program_id(0) // (LENGTH // LAGS)).to(tl.int64)
    lag = tl.program_id(0) % (LENGTH // LAGS) * LAGS + tl.arange(0, LAGS)[None, :]
    along = tl.zeros([ROWS, LAGS], tl.float64)
    for begin in range(0, LENGTH, ROWS):
        j = begin + tl.arange(0, ROWS)[:, None]
        along += tl.load(d_T + ((channel * LENGTH + j) * width + j + lag), j + lag < LENGTH, 0.0).to(tl.float64)
    total = tl.sum(along, 0, keep_dims=True)
    tl.store(d_response + channel * LENGTH + lag, total)
    tl.store(d_D + channel + 0 * lag, total.to(d_D.dtype.element_ty), lag == 0)


@triton.jit
def _pull(sum_re, sum_im, g_re, g_im, z_re, z_im, IS_COMPLEX: tl.constexpr):
    """Add Σ g conj(z), summed over rows, to ``sum``. The result is the gradient of w if g is the gradient of w z."""
    re, im = product(g_re, g_im, z_re, -z_im, IS_COMPLEX)
    sum_re += tl.sum(re, 0, keep_dims=True)
    if IS_COMPLEX:
        sum_im += tl.sum(im, 0, keep_dims=True)
    return sum_re, sum_im


@triton.jit(do_not_specialize=NUMBERS)
def collect_kernel(
    decay, B, C, d_response, d_V, d_W, d_jumps, d_decay, d_B, d_C, batch, channels, states, per_row, rest,
    IS_COMPLEX: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the backward pass of ``generate_kernel``: gradients of decay, B and C for BLOCK states of a channel."""
    LENGTH: tl.constexpr = 1 << BITS
    channel, _, _, n = _column(1, 0, states, BLOCK)
    mask = n < states
    at = channel * states + n
    a_re, a_im, b_re, b_im, c_re, c_im = _parameters(decay, B, C, at, mask, IS_COMPLEX)
    zeros = tl.zeros([1, BLOCK], tl.float64)
    da_re, da_im, db_re, db_im, dc_re, dc_im = zeros, zeros, zeros, zeros, zeros, zeros
    for begin in range(0, LENGTH, ROWS):
        k = begin + tl.arange(0, ROWS)[:, None]
        p_re, p_im = _power(a_re, a_im, tl.maximum(k - 1, 0), BITS, IS_COMPLEX)
        q_re, q_im = product(p_re, p_im, a_re, a_im, IS_COMPLEX)
        q_re, q_im = tl.where(k == 0, 1.0, q_re), tl.where(k == 0, 0.0, q_im)
        # With q = decay^k, V[LENGTH-1-k] is B q, and the k-th diagonal of T is Re Σ C B q.
        v_re, v_im = load(
            d_V, (channel * LENGTH + (LENGTH - 1 - k)) * per_row + n, mask, 0.0, True, IS_COMPLEX, tl.float64, 1
        )
        g = tl.load(d_response + channel * LENGTH + k)
        g_re, g_im = v_re + g * c_re, v_im - g * c_im  # gradient of B q
        db_re, db_im = _pull(db_re, db_im, g_re, g_im, q_re, q_im, IS_COMPLEX)
        z_re, z_im = product(b_re, b_im, p_re * k, p_im * k, IS_COMPLEX)
        da_re, da_im = _pull(da_re, da_im, g_re, g_im, z_re, z_im, IS_COMPLEX)
        z_re, z_im = product(b_re, b_im, q_re, q_im, IS_COMPLEX)
        dc_re, dc_im = _pull(dc_re, dc_im, tl.broadcast_to(g, z_re.shape), tl.zeros_like(z_re), z_re, z_im, IS_COMPLEX)
        # The forward pass stores W[k] = C q decay with its imaginary part negated.
        w_re, w_im = load(d_W, (channel * LENGTH + k) * states + n, mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
        z_re, z_im = product(c_re, c_im, q_re * (k + 1), q_im * (k + 1), IS_COMPLEX)
        da_re, da_im = _pull(da_re, da_im, w_re, -w_im, z_re, z_im, IS_COMPLEX)
        q_re, q_im = product(q_re, q_im, a_re, a_im, IS_COMPLEX)
        dc_re, dc_im = _pull(dc_re, dc_im, w_re, -w_im, q_re, q_im, IS_COMPLEX)
    for which in tl.static_range(2):
        steps = tl.full([1, 1], LENGTH, tl.int32) if which == 0 else tl.zeros([1, 1], tl.int32) + rest
        p_re, p_im = _power(a_re, a_im, steps - 1, BITS, IS_COMPLEX)
        g_re, g_im = zeros, zeros
        for begin in tl.range(0, batch, ROWS, num_stages=STAGES):
            sequence = begin + tl.arange(0, ROWS)[:, None]
            source = ((which * channels + channel) * batch + sequence) * states + n
            x_re, x_im = load(d_jumps, source, (sequence < batch) & mask, 0.0, True, IS_COMPLEX, tl.float64, 1)
            g_re += tl.sum(x_re, 0, keep_dims=True)
            if IS_COMPLEX:
                g_im += tl.sum(x_im, 0, keep_dims=True)
        da_re, da_im = _pull(da_re, da_im, g_re, g_im, p_re * steps, p_im * steps, IS_COMPLEX)
    store(da_re, da_im, d_decay, at, mask, True, IS_COMPLEX, 1)
    store(db_re, db_im, d_B, at, mask, True, IS_COMPLEX, 1)
    store(dc_re, dc_im, d_C, at, mask, True, IS_COMPLEX, 1)
