"""GPU scan kernels: a program walks time tile by tile and carries the state from each to the next.

Where batch × channels alone cannot fill the GPU, time is cut into chunks of ``length`` steps. A *column* is a chunk of
one channel; the columns of a sequence lie chunk after chunk, and a program walks BLOCK of them. Three passes then:
``aggregate_kernel`` finds what a chunk does to whatever enters it (h ↦ A h + X), ``carry_kernel`` composes these from
chunk to chunk, ``forward_kernel`` or ``backward_kernel`` walks again from the right start. With one chunk the last pass
is all.

SPREAD lanes share a column, as follows from the bytes a lane reads at once and the width of a row: each walks a stretch
of a tile's time, and they exchange where they ended. Everything is accumulated in float64 (short floats in float32), so
that a memory of a million steps adds up no rounding. :mod:`.tiles` has what is done with a tile.

An array comes as a pointer to its first row in the order of the walk and three strides (batch, time, channel), counted
in numbers; offsets are 64 bits wide. EVEN says that every tile is full.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations as its own; tl.constexpr is the one it knows.)

from __future__ import annotations

import triton
import triton.language as tl

from stablessm.scan.triton.tiles import (
    all_rows,
    base,
    compose,
    join,
    join_complex,
    join_complex_cut,
    last,
    load,
    order,
    product,
    rows_at,
    store,
    stretches,
    walk,
)

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
    SHIFT: tl.constexpr, SPREAD: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr, LANE: tl.constexpr,
):  # fmt: skip
    """The decay of a channel (at the first step), conjugated for the adjoint: (SPREAD, BLOCK), as lanes hold a tile."""
    offset = rows_at(batch * decay_b + channel * decay_c, tl.zeros([SPREAD, 1], tl.int32), 0, LANE)
    a_re, a_im = load(decay, offset, count > 0, 1.0, True, IS_COMPLEX, WIDE, LANE)
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
        there = (row > 0) | (((chunk > 0) | (begin > 0)) != 0)
        if not EVEN:
            there = there & mask
    if PER_STEP:
        offset = rows_at(decay_at, within - SHIFT, decay_t, LANE)
        a_re, a_im = load(decay, offset, there, 1.0, (not EVEN) or SHIFT, IS_COMPLEX, WIDE, LANE)
        if SHIFT:
            a_im = -a_im
    else:
        a_re, a_im = all_rows(every_re, row.shape[0]), all_rows(every_im, row.shape[0])
        if SHIFT or not EVEN:
            a_re, a_im = tl.where(there, a_re, 1.0), tl.where(there, a_im, 0.0)
    x_re, x_im = load(drive, rows_at(drive_at, within, drive_t, LANE), mask, 0.0, not EVEN, IS_COMPLEX, WIDE, LANE)
    cut = tl.zeros(a_re.shape, tl.int32)
    if CUTS:
        cut += tl.load(reset + rows_at(reset_at, within - SHIFT, reset_t, 1), there & mask, 0).to(tl.int32)
    return a_re, a_im, x_re, x_im, cut


@triton.jit(do_not_specialize=NUMBERS)
def aggregate_kernel(
    decay, drive, reset, total_decay, total_state, total_cut,
    decay_b, decay_t, decay_c, drive_b, drive_t, drive_c, reset_b, reset_t, steps, channels, length, chunks,
    SHIFT: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, DOUBLE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, SPREAD: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """What every chunk does: its last state is A h + X, h before it, or X alone if it holds a cut.

    Tiles are read from the last to the first: the next pass begins with the first, and finds them in the cache.
    """
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, chunk, channel, at, count = _place(steps, channels, length, chunks, LANE, BLOCK)
    decay_at = base(batch, chunk * length, channel, decay_b, decay_t, decay_c)
    drive_at = base(batch, chunk * length, channel, drive_b, drive_t, drive_c)
    reset_at = base(batch, chunk * length, channel, reset_b, reset_t, 0)
    every_re, every_im = _every(decay, decay_b, decay_c, batch, channel, count, SHIFT, SPREAD, IS_COMPLEX, WIDE, LANE)
    zeros = tl.zeros([1, BLOCK], WIDE)
    A_re, A_im, X_re, X_im = zeros + 1.0, zeros, zeros, zeros
    any_cut = tl.zeros([1, BLOCK], tl.int32)
    row = order(BLOCK_T, SPREAD)
    for done in tl.range(0, length, BLOCK_T, num_stages=STAGES):
        begin = length - BLOCK_T - done
        a_re, a_im, x_re, x_im, cut = _tile(
            decay, decay_at, decay_t, drive, drive_at, drive_t, reset, reset_at, reset_t,
            begin, row, chunk, count, every_re, every_im, SHIFT, CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE, EVEN,
        )  # fmt: skip
        _, _, _, _, _, a_re, a_im, x_re, x_im, cut = compose(a_re, a_im, x_re, x_im, cut, SPREAD, CUTS, IS_COMPLEX)
        a_re, a_im = last(a_re)[None], last(a_im)[None]
        x_re, x_im = last(x_re)[None], last(x_im)[None]
        if CUTS:
            cut = tl.max(cut, 0, keep_dims=True)
            A_re, A_im, X_re, X_im, any_cut = join_complex_cut(
                a_re, a_im, x_re, x_im, cut, A_re, A_im, X_re, X_im, any_cut
            )
        elif IS_COMPLEX:
            A_re, A_im, X_re, X_im = join_complex(a_re, a_im, x_re, x_im, A_re, A_im, X_re, X_im)
        else:
            A_re, X_re = join(a_re, x_re, A_re, X_re)
    store(A_re, A_im, total_decay, at, count > 0, True, IS_COMPLEX, LANE)
    store(X_re, X_im, total_state, at, count > 0, True, IS_COMPLEX, LANE)
    if CUTS:
        tl.store(total_cut + at, any_cut, count > 0)


@triton.jit(do_not_specialize=NUMBERS)
def carry_kernel(
    total_decay, total_state, total_cut, initial, carries, channels, chunks,
    INITIAL: tl.constexpr, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
    SPREAD: tl.constexpr,
):  # fmt: skip
    """The state before every chunk: ``initial`` (or zero) before the first."""
    blocks = tl.cdiv(channels, BLOCK)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel = ((tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]).to(tl.int64)
    inside = channel < channels
    chunk = order(CHUNKS, SPREAD).to(tl.int64)
    mask = inside & (chunk < chunks)
    before = mask & (chunk > 0)
    at = (batch * chunks + chunk) * channels + channel
    a_re, a_im = load(total_decay, at - channels, before, 1.0, True, IS_COMPLEX, tl.float64, 1)
    x_re, x_im = load(total_state, at - channels, before, 0.0, True, IS_COMPLEX, tl.float64, 1)
    if INITIAL:
        first_re, first_im = load(initial, batch * channels + channel, inside, 0.0, True, IS_COMPLEX, tl.float64, 1)
        x_re, x_im = tl.where(chunk == 0, first_re, x_re), tl.where(chunk == 0, first_im, x_im)
    cut = tl.zeros([CHUNKS, BLOCK], tl.int32)
    if CUTS:
        cut += tl.load(total_cut + (at - channels), before, 0)
    zeros = tl.zeros([SPREAD, BLOCK], tl.float64)
    y_re, y_im, _, _ = walk(a_re, a_im, x_re, x_im, cut, zeros, zeros, CUTS, IS_COMPLEX)
    store(y_re, y_im, carries, at, mask, True, IS_COMPLEX, 1)


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    decay, drive, reset, carries, states,
    decay_b, decay_t, decay_c, drive_b, drive_t, drive_c, reset_b, reset_t, states_b, states_t, states_c,
    steps, channels, length, chunks,
    CARRIES: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, DOUBLE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, SPREAD: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """h[t] = a[t] h[t-1] + x[t] in every chunk from its row of ``carries``, or from zero."""
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, chunk, channel, at, count = _place(steps, channels, length, chunks, LANE, BLOCK)
    decay_at = base(batch, chunk * length, channel, decay_b, decay_t, decay_c)
    drive_at = base(batch, chunk * length, channel, drive_b, drive_t, drive_c)
    reset_at = base(batch, chunk * length, channel, reset_b, reset_t, 0)
    states_at = base(batch, chunk * length, channel, states_b, states_t, states_c)
    every_re, every_im = _every(decay, decay_b, decay_c, batch, channel, count, 0, SPREAD, IS_COMPLEX, WIDE, LANE)
    h_re, h_im = tl.zeros([1, BLOCK], WIDE), tl.zeros([1, BLOCK], WIDE)
    if CARRIES:
        h_re, h_im = load(carries, at, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    h_re, h_im = tl.broadcast_to(h_re, [SPREAD, BLOCK]), tl.broadcast_to(h_im, [SPREAD, BLOCK])
    row = order(BLOCK_T, SPREAD)
    for begin in tl.range(0, length, BLOCK_T, num_stages=STAGES):
        a_re, a_im, x_re, x_im, cut = _tile(
            decay, decay_at, decay_t, drive, drive_at, drive_t, reset, reset_at, reset_t,
            begin, row, chunk, count, every_re, every_im, 0, CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE, EVEN,
        )  # fmt: skip
        y_re, y_im, h_re, h_im = walk(a_re, a_im, x_re, x_im, cut, h_re, h_im, CUTS, IS_COMPLEX)
        within = begin + row
        places = rows_at(states_at, within, states_t, LANE)
        store(y_re, y_im, states, places, within < count, not EVEN, IS_COMPLEX, LANE, LEAVES=CARRIES)


@triton.jit(do_not_specialize=NUMBERS)
def backward_kernel(
    decay, grad, reset, carries, states, initial, d_decay, d_drive, d_initial,
    decay_b, decay_t, decay_c, grad_b, grad_t, grad_c, reset_b, reset_t, states_b, states_t, states_c,
    d_decay_b, d_decay_t, d_decay_c, d_drive_b, d_drive_t, d_drive_c, steps, channels, length, chunks,
    CARRIES: tl.constexpr, INITIAL: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr,
    DOUBLE: tl.constexpr, LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr,
    SPREAD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """λ[t] = g[t] + conj(a[t+1]) λ[t+1] from the last step to the first; dx = λ; da[t] = λ[t] conj(h[t-1]).

    All rows are in the order of this walk: row i is step ``steps - 1 - i``. dh[-1] = conj(a[0]) λ[0]. A per-channel
    decay sums its gradient over a column, in float64; ``reduce_kernel`` adds the columns.
    """
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, chunk, channel, at, count = _place(steps, channels, length, chunks, LANE, BLOCK)
    decay_at = base(batch, chunk * length, channel, decay_b, decay_t, decay_c)
    grad_at = base(batch, chunk * length, channel, grad_b, grad_t, grad_c)
    reset_at = base(batch, chunk * length, channel, reset_b, reset_t, 0)
    states_at = base(batch, chunk * length, channel, states_b, states_t, states_c)
    d_decay_at = base(batch, chunk * length, channel, d_decay_b, d_decay_t, d_decay_c)
    d_drive_at = base(batch, chunk * length, channel, d_drive_b, d_drive_t, d_drive_c)
    every_re, every_im = _every(decay, decay_b, decay_c, batch, channel, count, 1, SPREAD, IS_COMPLEX, WIDE, LANE)
    follows_re, follows_im = tl.zeros([1, BLOCK], WIDE), tl.zeros([1, BLOCK], WIDE)
    if CARRIES:
        follows_re, follows_im = load(carries, at, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    follows_re = tl.broadcast_to(follows_re, [SPREAD, BLOCK])
    follows_im = tl.broadcast_to(follows_im, [SPREAD, BLOCK])
    first_re, first_im = tl.zeros([1, BLOCK], WIDE), tl.zeros([1, BLOCK], WIDE)
    if INITIAL:
        first_re, first_im = load(initial, batch * channels + channel, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    total_re, total_im = tl.zeros([SPREAD, BLOCK], tl.float64), tl.zeros([SPREAD, BLOCK], tl.float64)
    row = order(BLOCK_T, SPREAD)
    for begin in tl.range(0, length, BLOCK_T, num_stages=STAGES):
        a_re, a_im, x_re, x_im, cut = _tile(
            decay, decay_at, decay_t, grad, grad_at, grad_t, reset, reset_at, reset_t,
            begin, row, chunk, count, every_re, every_im, 1, CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE, EVEN,
        )  # fmt: skip
        y_re, y_im, follows_re, follows_im = walk(a_re, a_im, x_re, x_im, cut, follows_re, follows_im, CUTS, IS_COMPLEX)
        within = begin + row
        mask = within < count
        places = rows_at(d_drive_at, within, d_drive_t, LANE)
        store(y_re, y_im, d_drive, places, mask, not EVEN, IS_COMPLEX, LANE, LEAVES=CARRIES)
        if EVEN:
            ends = (row == BLOCK_T - 1) & ((begin + BLOCK_T == length) & (chunk == chunks - 1))
            held = ends == 0
        else:
            ends = (within == count - 1) & (chunk == chunks - 1)
            held = mask & (ends == 0)
        h_re, h_im = load(
            states, rows_at(states_at, within + 1, states_t, LANE), held, 0.0, True, IS_COMPLEX, WIDE, LANE
        )
        if INITIAL:
            h_re, h_im = tl.where(ends, first_re, h_re), tl.where(ends, first_im, h_im)
        d_re, d_im = product(y_re, y_im, h_re, -h_im, IS_COMPLEX)
        counts = mask
        if CUTS:
            counts = tl.load(reset + rows_at(reset_at, within, reset_t, 1), mask, 1) == 0
        if CUTS or not (EVEN or PER_STEP):
            d_re, d_im = tl.where(counts, d_re, 0.0), tl.where(counts, d_im, 0.0)
        if PER_STEP:
            places = rows_at(d_decay_at, within, d_decay_t, LANE)
            store(d_re, d_im, d_decay, places, mask, not EVEN, IS_COMPLEX, LANE, LEAVES=CARRIES)
        else:
            total_re += tl.sum(stretches(d_re, SPREAD), 0).to(tl.float64)
            if IS_COMPLEX:
                total_im += tl.sum(stretches(d_im, SPREAD), 0)
    if not PER_STEP:
        total_re, total_im = tl.sum(total_re, 0, keep_dims=True), tl.sum(total_im, 0, keep_dims=True)
        store(total_re, total_im, d_decay, at, count > 0, True, IS_COMPLEX, LANE)
    if INITIAL:
        ends = (count > 0) & (chunk == chunks - 1)
        if PER_STEP:
            every_re, every_im = load(
                decay, rows_at(decay_at, count - 1, decay_t, LANE), ends, 0.0, True, IS_COMPLEX, WIDE, LANE
            )
            every_im = -every_im
        d_re, d_im = product(follows_re, follows_im, every_re, every_im, IS_COMPLEX)
        d_re, d_im = last(d_re)[None], last(d_im)[None]
        if CUTS:
            kept = tl.load(reset + rows_at(reset_at, count - 1, reset_t, 1), ends, 0) == 0
            d_re, d_im = tl.where(kept, d_re, 0.0), tl.where(kept, d_im, 0.0)
        store(d_re, d_im, d_initial, batch * channels + channel, ends, True, IS_COMPLEX, LANE)


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
    found = tl.sum(partial, 0, keep_dims=True)
    if total.dtype.element_ty.primitive_bitwidth == 16:  # to which the interpreter rounds in two steps only
        found = found.to(tl.float32)
    tl.store(total + channel, found.to(total.dtype.element_ty), inside)
