"""GPU scan kernels: a program, one warp, walks time tile by tile and carries the state from each to the next.

Where batch × channels alone cannot fill the GPU, time is cut into chunks of ``length`` steps. A *column* is a chunk of
one channel; the columns of a sequence lie chunk after chunk, and a program walks BLOCK of them. Three passes then:
``aggregate_kernel`` finds what a chunk does to whatever enters it (h ↦ A h + X), ``carry_kernel`` composes these from
chunk to chunk, ``forward_kernel`` or ``backward_kernel`` walks again from the right start. With one chunk the last pass
is all.

Rows of a tile lie in the registers of one lane or of a few, which exchange what they found; the caller chooses, by the
bytes a lane reads at once and the width of a row. Everything is accumulated in float64 (short floats in float32), so
that a memory of a million steps adds up no rounding. Numbers are pairs (re, im), so that real and complex share the
kernels; of a real number ``im`` is never looked at.

A reset *cuts* the recurrence: what stands before it is dropped by a choice, not by a product with zero, because
0 · NaN is NaN.

An array comes as a pointer to its first row in the order of the walk and three strides (batch, time, channel), counted
in numbers; offsets are 64 bits wide. LANE neighbouring channels belong to a lane, and the caller vouches that they can
be read at once. EVEN says that every tile is full.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations as its own; tl.constexpr is the one it knows.)

from __future__ import annotations

import triton
import triton.language as tl

NUMBERS = (
    *(
        f"{array}_{stride}"
        for array in ("decay", "drive", "grad", "states", "d_decay", "d_drive", "reset")
        for stride in "btc"
    ),
    *("steps", "channels", "length", "chunks", "rows"),
)
"""Arguments whose values no compiled form depends on."""


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
def _scan(a_re, a_im, x_re, x_im, cut, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """The maps y ↦ a y + x composed row by row from the first: (a, x) of every beginning."""
    if CUTS:
        if IS_COMPLEX:
            parts = (a_re, a_im, x_re, x_im, cut)
            a_re, a_im, x_re, x_im, _ = tl.associative_scan(parts, 0, _join_complex_cut)
        else:
            a_re, x_re, _ = tl.associative_scan((a_re, x_re, cut), 0, _join_cut)
    elif IS_COMPLEX:
        a_re, a_im, x_re, x_im = tl.associative_scan((a_re, a_im, x_re, x_im), 0, _join_complex)
    else:
        a_re, x_re = tl.associative_scan((a_re, x_re), 0, _join)
    return a_re, a_im, x_re, x_im


@triton.jit
def _row(value, which: tl.constexpr):
    """One row of a tile: the sum of it and of negative zeros, which change nothing."""
    rows: tl.constexpr = value.shape[0]
    return tl.sum(tl.where(tl.arange(0, rows)[:, None] == which, value, -0.0), 0, keep_dims=True)


@triton.jit
def _last(re, im, IS_COMPLEX: tl.constexpr):
    """The last row of a tile of numbers."""
    which: tl.constexpr = re.shape[0] - 1
    re = _row(re, which)
    return re, _row(im, which) if IS_COMPLEX else tl.zeros_like(re)


@triton.jit
def _walk(a_re, a_im, x_re, x_im, cut, y_re, y_im, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """y[i] = a[i] y[i-1] + x[i] over a tile from a row y[-1]; where ``cut`` is not 0, y[i] = x[i]."""
    rows: tl.constexpr = x_re.shape[0]
    enters = tl.arange(0, rows)[:, None] == 0
    if CUTS:
        enters = enters & (cut == 0)
    re, im = _product(a_re, a_im, y_re, y_im, IS_COMPLEX)
    x_re = tl.where(enters, re + x_re, x_re)
    if IS_COMPLEX:
        x_im = tl.where(enters, im + x_im, x_im)
    _, _, y_re, y_im = _scan(a_re, a_im, x_re, x_im, cut, CUTS, IS_COMPLEX)
    return y_re, y_im


@triton.jit
def _base(batch, step, channel, per_batch, per_step, per_channel):
    """Where a column begins, at ``step``: (1, BLOCK)."""
    return batch * per_batch + step.to(tl.int64) * per_step + channel * per_channel


@triton.jit
def _rows(base, within, per_step, LANE: tl.constexpr):
    """Where the rows ``within`` of a column are. Lanes lie along channels (2 says so), and LANE can be read at once."""
    offset = base + within.to(tl.int64) * per_step  # made here: the compiler takes hints where a value_re is made
    return tl.max_contiguous(tl.multiple_of(offset, (1, LANE)), (1, max(2, LANE)))


@triton.jit
def _pairs(offset, LANE: tl.constexpr):
    """Where the parts of complex numbers are: (rows, 2 BLOCK)."""
    parts = 2 * offset[:, :, None] + tl.arange(0, 2)[None, None, :]
    parts = parts.reshape(offset.shape[0], 2 * offset.shape[1])
    return tl.max_contiguous(tl.multiple_of(parts, (1, 2 * LANE)), (1, 2 * LANE))


@triton.jit
def _twice(mask, offset):
    """The mask of numbers as that of their parts."""
    rows: tl.constexpr = offset.shape[0]
    columns: tl.constexpr = offset.shape[1]
    both = tl.broadcast_to(tl.broadcast_to(mask, [rows, columns])[:, :, None], [rows, columns, 2])
    return tl.max_constancy(both.reshape(rows, 2 * columns), (1, 2))


@triton.jit
def _load(
    start, offset, mask, OTHER: tl.constexpr, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr,
    LANE: tl.constexpr,
):  # fmt: skip
    """Numbers, OTHER where masked."""
    if IS_COMPLEX:
        at = start + _pairs(offset, LANE)
        raw = tl.load(at, _twice(mask, offset), 0.0) if MASKED else tl.load(at)
        re, im = tl.split(raw.to(WIDE).reshape(offset.shape[0], offset.shape[1], 2))
        if MASKED and OTHER != 0.0:
            re = tl.where(mask, re, OTHER)
    else:
        raw = tl.load(start + offset, mask, OTHER) if MASKED else tl.load(start + offset)
        if raw.dtype.primitive_bitwidth == 16:  # which the interpreter widens in two steps only
            raw = raw.to(tl.float32)
        re = raw.to(WIDE)
        im = tl.zeros_like(re)
    return re, im


@triton.jit
def _store(
    re, im, start, offset, mask, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, LANE: tl.constexpr
):  # fmt: skip
    DTYPE: tl.constexpr = start.dtype.element_ty
    if IS_COMPLEX:
        at = start + _pairs(offset, LANE)
        pair = tl.join(re, im).to(DTYPE).reshape(at.shape)
        if MASKED:
            tl.store(at, pair, _twice(mask, offset))
        else:
            tl.store(at, pair)
    else:
        if DTYPE.primitive_bitwidth == 16:
            re = re.to(tl.float32)
        if MASKED:
            tl.store(start + offset, re.to(DTYPE), mask)
        else:
            tl.store(start + offset, re.to(DTYPE))


@triton.jit
def _place(steps, channels, length, chunks, LANE: tl.constexpr, BLOCK: tl.constexpr):
    """The columns of this program: sequence, chunk, channel, place among all columns, and how many steps they have."""
    columns = chunks * channels
    blocks = tl.cdiv(columns, BLOCK)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]
    chunk = tl.max_constancy(column // channels, (1, LANE))
    inside = tl.max_constancy(column < columns, (1, LANE))
    count = tl.where(inside, tl.minimum(length, steps - chunk * length), 0)
    return batch, chunk, (column % channels).to(tl.int64), batch * columns + column, tl.max_constancy(count, (1, LANE))


@triton.jit
def _every(
    decay, decay_b, decay_c, batch, channel, count,
    SHIFT: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr, LANE: tl.constexpr,
):  # fmt: skip
    """The decay of a channel (at the first step), conjugated for the adjoint."""
    offset = batch * decay_b + channel * decay_c
    offset = tl.max_contiguous(tl.multiple_of(offset, (1, LANE)), (1, max(2, LANE)))
    a_re, a_im = _load(decay, offset, count > 0, 1.0, True, IS_COMPLEX, WIDE, LANE)
    if SHIFT:
        a_im = -a_im
    return a_re, a_im


@triton.jit
def _tile(
    decay, decay_at, decay_t, drive, drive_at, drive_t, reset, reset_at, reset_t,
    begin, row, chunk, count, every_re, every_im,
    SHIFT: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """A tile of a, x and the cuts.

    SHIFT is 0, or 1 for the adjoint, in which a (conjugated) and the cuts are those of the step before in the order of
    the walk. Where there is none, and past the end, a = 1 and x = 0 hand on what came.
    """
    within = begin + row
    mask = within < count
    there = mask
    if SHIFT:
        there = (row > 0) | ((begin > 0) | (chunk > 0))
        if not EVEN:
            there = there & mask
    if PER_STEP:
        offset = _rows(decay_at, within - SHIFT, decay_t, LANE)
        a_re, a_im = _load(decay, offset, there, 1.0, (not EVEN) or SHIFT, IS_COMPLEX, WIDE, LANE)
        if SHIFT:
            a_im = -a_im
    elif EVEN and not SHIFT:
        a_re, a_im = tl.broadcast_to(every_re, mask.shape), tl.broadcast_to(every_im, mask.shape)
    else:
        a_re, a_im = tl.where(there, every_re, 1.0), tl.where(there, every_im, 0.0)
    x_re, x_im = _load(drive, _rows(drive_at, within, drive_t, LANE), mask, 0.0, not EVEN, IS_COMPLEX, WIDE, LANE)
    cut = tl.zeros(a_re.shape, tl.int32)
    if CUTS:
        cut += tl.load(reset + _rows(reset_at, within - SHIFT, reset_t, 1), there & mask, 0).to(tl.int32)
    return a_re, a_im, x_re, x_im, cut


@triton.jit(do_not_specialize=NUMBERS)
def aggregate_kernel(
    decay, decay_b, decay_t, decay_c, drive, drive_b, drive_t, drive_c, reset, reset_b, reset_t,
    total_decay, total_state, total_cut, steps, channels, length, chunks,
    SHIFT: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, DOUBLE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What every chunk does: its last state is A h + X, h before it, or X alone if it holds a cut."""
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, chunk, channel, at, count = _place(steps, channels, length, chunks, LANE, BLOCK)
    decay_at = _base(batch, chunk * length, channel, decay_b, decay_t, decay_c)
    drive_at = _base(batch, chunk * length, channel, drive_b, drive_t, drive_c)
    reset_at = _base(batch, chunk * length, channel, reset_b, reset_t, 0)
    every_re, every_im = _every(decay, decay_b, decay_c, batch, channel, count, SHIFT, IS_COMPLEX, WIDE, LANE)
    zeros = tl.zeros([1, BLOCK], WIDE)
    A_re, A_im, X_re, X_im = zeros + 1.0, zeros, zeros, zeros
    any_cut = tl.zeros([1, BLOCK], tl.int32)
    row = tl.arange(0, BLOCK_T)[:, None]
    for begin in tl.range(0, length, BLOCK_T, num_stages=STAGES):
        a_re, a_im, x_re, x_im, cut = _tile(
            decay, decay_at, decay_t, drive, drive_at, drive_t, reset, reset_at, reset_t,
            begin, row, chunk, count, every_re, every_im, SHIFT, CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE, EVEN,
        )  # fmt: skip
        a_re, a_im, x_re, x_im = _scan(a_re, a_im, x_re, x_im, cut, CUTS, IS_COMPLEX)
        a_re, a_im = _last(a_re, a_im, IS_COMPLEX)
        x_re, x_im = _last(x_re, x_im, IS_COMPLEX)
        if CUTS:
            cut = tl.max(cut, 0, keep_dims=True)
            A_re, A_im, X_re, X_im, any_cut = _join_complex_cut(
                A_re, A_im, X_re, X_im, any_cut, a_re, a_im, x_re, x_im, cut
            )
        elif IS_COMPLEX:
            A_re, A_im, X_re, X_im = _join_complex(A_re, A_im, X_re, X_im, a_re, a_im, x_re, x_im)
        else:
            A_re, X_re = _join(A_re, X_re, a_re, x_re)
    _store(A_re, A_im, total_decay, at, count > 0, True, IS_COMPLEX, LANE)
    _store(X_re, X_im, total_state, at, count > 0, True, IS_COMPLEX, LANE)
    if CUTS:
        tl.store(total_cut + at, any_cut, count > 0)


@triton.jit(do_not_specialize=NUMBERS)
def carry_kernel(
    total_decay, total_state, total_cut, initial, carries, channels, chunks,
    INITIAL: tl.constexpr, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The state before every chunk: ``initial`` (or zero) before the first."""
    blocks = tl.cdiv(channels, BLOCK)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel = ((tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]).to(tl.int64)
    inside = channel < channels
    chunk = tl.arange(0, CHUNKS)[:, None].to(tl.int64)
    mask = inside & (chunk < chunks)
    before = mask & (chunk > 0)
    at = (batch * chunks + chunk) * channels + channel
    a_re, a_im = _load(total_decay, at - channels, before, 1.0, True, IS_COMPLEX, tl.float64, 1)
    x_re, x_im = _load(total_state, at - channels, before, 0.0, True, IS_COMPLEX, tl.float64, 1)
    if INITIAL:
        first_re, first_im = _load(initial, batch * channels + channel, inside, 0.0, True, IS_COMPLEX, tl.float64, 1)
        x_re, x_im = tl.where(chunk == 0, first_re, x_re), tl.where(chunk == 0, first_im, x_im)
    cut = tl.zeros([CHUNKS, BLOCK], tl.int32)
    if CUTS:
        cut += tl.load(total_cut + (at - channels), before, 0)
    _, _, y_re, y_im = _scan(a_re, a_im, x_re, x_im, cut, CUTS, IS_COMPLEX)
    _store(y_re, y_im, carries, at, mask, True, IS_COMPLEX, 1)


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    decay, decay_b, decay_t, decay_c, drive, drive_b, drive_t, drive_c, reset, reset_b, reset_t,
    carries, states, states_b, states_t, states_c, steps, channels, length, chunks,
    CARRIES: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, DOUBLE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """h[t] = a[t] h[t-1] + x[t] in every chunk from its row of ``carries``, or from zero."""
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, chunk, channel, at, count = _place(steps, channels, length, chunks, LANE, BLOCK)
    decay_at = _base(batch, chunk * length, channel, decay_b, decay_t, decay_c)
    drive_at = _base(batch, chunk * length, channel, drive_b, drive_t, drive_c)
    reset_at = _base(batch, chunk * length, channel, reset_b, reset_t, 0)
    states_at = _base(batch, chunk * length, channel, states_b, states_t, states_c)
    every_re, every_im = _every(decay, decay_b, decay_c, batch, channel, count, 0, IS_COMPLEX, WIDE, LANE)
    h_re, h_im = tl.zeros([1, BLOCK], WIDE), tl.zeros([1, BLOCK], WIDE)
    if CARRIES:
        h_re, h_im = _load(carries, at, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    row = tl.arange(0, BLOCK_T)[:, None]
    for begin in tl.range(0, length, BLOCK_T, num_stages=STAGES):
        a_re, a_im, x_re, x_im, cut = _tile(
            decay, decay_at, decay_t, drive, drive_at, drive_t, reset, reset_at, reset_t,
            begin, row, chunk, count, every_re, every_im, 0, CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE, EVEN,
        )  # fmt: skip
        y_re, y_im = _walk(a_re, a_im, x_re, x_im, cut, h_re, h_im, CUTS, IS_COMPLEX)
        within = begin + row
        _store(y_re, y_im, states, _rows(states_at, within, states_t, LANE), within < count, not EVEN, IS_COMPLEX, LANE)
        h_re, h_im = _last(y_re, y_im, IS_COMPLEX)


@triton.jit(do_not_specialize=NUMBERS)
def backward_kernel(
    decay, decay_b, decay_t, decay_c, grad, grad_b, grad_t, grad_c, reset, reset_b, reset_t,
    carries, states, states_b, states_t, states_c, initial, d_decay, d_decay_b, d_decay_t, d_decay_c,
    d_drive, d_drive_b, d_drive_t, d_drive_c, d_initial, steps, channels, length, chunks,
    CARRIES: tl.constexpr, INITIAL: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr,
    DOUBLE: tl.constexpr, LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """λ[t] = g[t] + conj(a[t+1]) λ[t+1] from the last step to the first; dx = λ; da[t] = λ[t] conj(h[t-1]).

    All rows are in the order of this walk: row i is step ``steps - 1 - i``. dh[-1] = conj(a[0]) λ[0]. A per-channel
    decay sums its gradient over a column, in float64; ``reduce_kernel`` adds the columns.
    """
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, chunk, channel, at, count = _place(steps, channels, length, chunks, LANE, BLOCK)
    decay_at = _base(batch, chunk * length, channel, decay_b, decay_t, decay_c)
    grad_at = _base(batch, chunk * length, channel, grad_b, grad_t, grad_c)
    reset_at = _base(batch, chunk * length, channel, reset_b, reset_t, 0)
    states_at = _base(batch, chunk * length, channel, states_b, states_t, states_c)
    d_decay_at = _base(batch, chunk * length, channel, d_decay_b, d_decay_t, d_decay_c)
    d_drive_at = _base(batch, chunk * length, channel, d_drive_b, d_drive_t, d_drive_c)
    every_re, every_im = _every(decay, decay_b, decay_c, batch, channel, count, 1, IS_COMPLEX, WIDE, LANE)
    follows_re, follows_im = tl.zeros([1, BLOCK], WIDE), tl.zeros([1, BLOCK], WIDE)
    if CARRIES:
        follows_re, follows_im = _load(carries, at, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    first_re, first_im = tl.zeros([1, BLOCK], WIDE), tl.zeros([1, BLOCK], WIDE)
    if INITIAL:
        first_re, first_im = _load(initial, batch * channels + channel, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    total_re, total_im = tl.zeros([1, BLOCK], tl.float64), tl.zeros([1, BLOCK], tl.float64)
    row = tl.arange(0, BLOCK_T)[:, None]
    for begin in tl.range(0, length, BLOCK_T, num_stages=STAGES):
        a_re, a_im, x_re, x_im, cut = _tile(
            decay, decay_at, decay_t, grad, grad_at, grad_t, reset, reset_at, reset_t,
            begin, row, chunk, count, every_re, every_im, 1, CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE, EVEN,
        )  # fmt: skip
        y_re, y_im = _walk(a_re, a_im, x_re, x_im, cut, follows_re, follows_im, CUTS, IS_COMPLEX)
        within = begin + row
        mask = within < count
        _store(y_re, y_im, d_drive, _rows(d_drive_at, within, d_drive_t, LANE), mask, not EVEN, IS_COMPLEX, LANE)
        follows_re, follows_im = _last(y_re, y_im, IS_COMPLEX)
        if EVEN:
            ends = (row == BLOCK_T - 1) & ((begin + BLOCK_T == length) & (chunk == chunks - 1))
            held = ends == 0
        else:
            ends = (within == count - 1) & (chunk == chunks - 1)
            held = mask & (ends == 0)
        h_re, h_im = _load(
            states, _rows(states_at, within + 1, states_t, LANE), held, 0.0, True, IS_COMPLEX, WIDE, LANE
        )
        if INITIAL:
            h_re, h_im = tl.where(ends, first_re, h_re), tl.where(ends, first_im, h_im)
        d_re, d_im = _product(y_re, y_im, h_re, -h_im, IS_COMPLEX)
        counts = mask
        if CUTS:
            counts = tl.load(reset + _rows(reset_at, within, reset_t, 1), mask, 1) == 0
        if CUTS or not (EVEN or PER_STEP):
            d_re, d_im = tl.where(counts, d_re, 0.0), tl.where(counts, d_im, 0.0)
        if PER_STEP:
            _store(
                d_re,
                d_im,
                d_decay,
                _rows(d_decay_at, within, d_decay_t, LANE),
                mask,
                not EVEN,
                IS_COMPLEX,
                LANE,
            )
        else:
            total_re += tl.sum(d_re, 0, keep_dims=True).to(tl.float64)
            if IS_COMPLEX:
                total_im += tl.sum(d_im, 0, keep_dims=True)
    if not PER_STEP:
        _store(total_re, total_im, d_decay, at, count > 0, True, IS_COMPLEX, LANE)
    if INITIAL:
        ends = (count > 0) & (chunk == chunks - 1)
        if PER_STEP:
            every_re, every_im = _load(
                decay, _rows(decay_at, count - 1, decay_t, LANE), ends, 0.0, True, IS_COMPLEX, WIDE, LANE
            )
            every_im = -every_im
        d_re, d_im = _product(follows_re, follows_im, every_re, every_im, IS_COMPLEX)
        if CUTS:
            kept = tl.load(reset + _rows(reset_at, count - 1, reset_t, 1), ends, 0) == 0
            d_re, d_im = tl.where(kept, d_re, 0.0), tl.where(kept, d_im, 0.0)
        _store(
            d_re,
            d_im,
            d_initial,
            batch * channels + channel,
            ends,
            True,
            IS_COMPLEX,
            LANE,
        )


@triton.jit(do_not_specialize=NUMBERS)
def reduce_kernel(parts, total, rows, channels, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of a (rows, channels) array over its rows, in one order."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = channel < channels
    row = tl.arange(0, ROWS)[:, None].to(tl.int64)
    partial = tl.zeros([ROWS, BLOCK], tl.float64)
    for begin in range(0, rows, ROWS):
        there = inside & (begin + row < rows)
        partial += tl.load(parts + ((begin + row) * channels + channel), there, 0.0)
    tl.store(total + channel, tl.sum(partial, 0, keep_dims=True).to(total.dtype.element_ty), inside)
