"""GPU scan kernels in which a program computes the tiles of a sequence one after the other and keeps the state.

Each program computes a *strip* (BLOCK neighboring channels of one sequence) over all time steps. If there are too few
strips to fill a GPU, the kernels of :mod:`.chain_kernels` are used, which call the functions of this module.
:mod:`.tiles` defines tiles, lanes, segments and cuts, and the operations on a tile.

States are accumulated in float64 (float16 and bfloat16 in float32), so that rounding errors do not add up over long
sequences.

An array NAME is passed as a pointer to the row that is computed first, and three strides NAME_b, NAME_t and NAME_c
(batch, time, channel), counted in elements. Offsets have 64 bits. EVEN means that every tile is full.
"""

# mypy: allow-untyped-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import triton
import triton.language as tl

from stablessm.scan.triton.tiles import (
    all_rows,
    base,
    fetch,
    last,
    load,
    product,
    rows_at,
    segments,
    step_of_row,
    store,
    walk,
    widen,
)

NUMBERS = (
    *(
        f"{array}_{stride}"
        for array in ("decay", "drive", "grad", "states", "d_decay", "d_drive", "reset")
        for stride in "btc"
    ),
    *("steps", "channels", "levels", "rows"),
)
"""Arguments on whose values Triton must not specialize the compiled kernels."""


@triton.jit
def place(strip, steps, channels, BLOCK: tl.constexpr, LANE: tl.constexpr):
    """Return the sequence and the channels of strip number ``strip``, and the number of steps of each channel.

    A strip is BLOCK neighboring channels of one sequence. The number of steps is 0 past the last channel.
    """
    blocks = tl.cdiv(channels, BLOCK)
    channel = (strip % blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = tl.max_constancy(channel < channels, (1, LANE))
    count = tl.max_constancy(tl.where(inside, steps, 0), (1, LANE))
    return (strip // blocks).to(tl.int64), channel.to(tl.int64), count


@triton.jit
def every_step(
    decay, decay_b, decay_c, batch, channel, count,
    SHIFT: tl.constexpr, SPREAD: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr, LANE: tl.constexpr,
):  # fmt: skip
    """Load the decay of each channel if it is the same at every step; return a copy for each of SPREAD segments.

    ``count`` is the number of steps of each channel: 0 past the last channel, where the result is 1. With SHIFT, the
    result is the complex conjugate of the decay.
    """
    offset = rows_at(batch * decay_b + channel * decay_c, tl.zeros([SPREAD, 1], tl.int32), 0, LANE)
    a_re, a_im = load(decay, offset, count > 0, 1.0, True, IS_COMPLEX, WIDE, LANE)
    if SHIFT:
        a_im = -a_im
    return a_re, a_im


@triton.jit
def fetch_tile(
    decay, decay_at, decay_t, drive, drive_at, drive_t, within, begins, count,
    SHIFT: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, LANE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Load a tile of decays (a) and of drives (x) in the dtype of their arrays; return both, and a mask of valid rows.

    ``within`` are the indices of the rows, and ``count`` is the number of steps of each channel. The mask is True at
    rows that have a decay a. SHIFT is 0 in a forward pass and 1 in a backward pass, in which a row uses the decay and
    the cut of the row before it. In a backward pass, ``begins`` is True at the row of the first step of the sequence:
    this row has no row before it and therefore no decay.
    """
    mask = within < count
    there = mask
    if SHIFT:
        there = begins == 0
        if not EVEN:
            there = there & mask
    if PER_STEP:
        offset = rows_at(decay_at, within - SHIFT, decay_t, LANE)
        a = fetch(decay, offset, there, 1.0, (not EVEN) or SHIFT, IS_COMPLEX, LANE)
    x = fetch(drive, rows_at(drive_at, within, drive_t, LANE), mask, 0.0, not EVEN, IS_COMPLEX, LANE)
    if not PER_STEP:
        a = x
    return a, x, there


@triton.jit
def widen_tile(
    a, x, there, every_re, every_im, reset, reset_at, reset_t, within, count,
    SHIFT: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Convert a tile from :func:`fetch_tile` to the dtype WIDE; return the tile, and a mask of the rows that are resets
    (cuts).

    In rows without a decay (where the mask ``there`` is False), a becomes 1 and x becomes 0, so that these rows do not
    change the state. ``every_re`` and ``every_im`` are the result of :func:`every_step`.
    """
    if PER_STEP:
        a_re, a_im = widen(a, there, 1.0, (not EVEN) or SHIFT, IS_COMPLEX, WIDE)
        if SHIFT:
            a_im = -a_im
    else:
        a_re, a_im = all_rows(every_re, within.shape[0]), all_rows(every_im, within.shape[0])
        if SHIFT or not EVEN:
            a_re, a_im = tl.where(there, a_re, 1.0), tl.where(there, a_im, 0.0)
    x_re, x_im = widen(x, there, 0.0, not EVEN, IS_COMPLEX, WIDE)
    cut = tl.zeros(a_re.shape, tl.int32)
    if CUTS:
        there = there & (within < count)
        cut += tl.load(reset + rows_at(reset_at, within - SHIFT, reset_t, 1), there, 0).to(tl.int32)
    return a_re, a_im, x_re, x_im, cut


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    decay, drive, reset, initial, states,
    decay_b, decay_t, decay_c, drive_b, drive_t, drive_c, reset_b, reset_t, states_b, states_t, states_c,
    steps, channels,
    INITIAL: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, DOUBLE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, SPREAD: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute h[t] = a[t] h[t-1] + x[t] over all steps, for BLOCK channels of one sequence.

    a is the decay, x the drive, and h the states.
    """
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, channel, count = place(tl.program_id(0), steps, channels, BLOCK, LANE)
    decay_at = base(batch, 0, channel, decay_b, decay_t, decay_c)
    drive_at = base(batch, 0, channel, drive_b, drive_t, drive_c)
    reset_at = base(batch, 0, channel, reset_b, reset_t, 0)
    states_at = base(batch, 0, channel, states_b, states_t, states_c)
    every_re, every_im = every_step(decay, decay_b, decay_c, batch, channel, count, 0, SPREAD, IS_COMPLEX, WIDE, LANE)
    h_re, h_im = tl.zeros([1, BLOCK], WIDE), tl.zeros([1, BLOCK], WIDE)
    if INITIAL:
        h_re, h_im = load(initial, batch * channels + channel, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    h_re, h_im = tl.broadcast_to(h_re, [SPREAD, BLOCK]), tl.broadcast_to(h_im, [SPREAD, BLOCK])
    row = step_of_row(BLOCK_T, SPREAD)
    for begin in tl.range(0, steps, BLOCK_T, num_stages=STAGES):
        within = begin + row
        a, x, there = fetch_tile(
            decay, decay_at, decay_t, drive, drive_at, drive_t, within, within == 0, count,
            0, PER_STEP, IS_COMPLEX, LANE, EVEN,
        )  # fmt: skip
        a_re, a_im, x_re, x_im, cut = widen_tile(
            a, x, there, every_re, every_im, reset, reset_at, reset_t, within, count,
            0, CUTS, PER_STEP, IS_COMPLEX, WIDE, EVEN,
        )  # fmt: skip
        y_re, y_im, h_re, h_im = walk(a_re, a_im, x_re, x_im, cut, h_re, h_im, CUTS, IS_COMPLEX)
        store(
            y_re, y_im, states, rows_at(states_at, within, states_t, LANE), within < count, not EVEN, IS_COMPLEX, LANE
        )


@triton.jit
def store_gradients(
    y_re, y_im, states, states_at, states_t, reset, reset_at, reset_t, d_decay, d_decay_at, d_decay_t,
    d_drive, d_drive_at, d_drive_t, first_re, first_im, within, ends, count,
    INITIAL: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a tile: dx = λ and, if the decay varies in time, da[t] = λ[t] conj(h[t-1]); return da.

    ``y_re`` and ``y_im`` are λ, as in :func:`backward_kernel`. Rows run from the last step to the first. ``ends`` is
    True at the last row, whose h[t-1] is the initial state.
    """
    mask = within < count
    store(y_re, y_im, d_drive, rows_at(d_drive_at, within, d_drive_t, LANE), mask, not EVEN, IS_COMPLEX, LANE)
    held = ends == 0
    if not EVEN:
        held = held & mask
    h_re, h_im = load(states, rows_at(states_at, within + 1, states_t, LANE), held, 0.0, True, IS_COMPLEX, WIDE, LANE)
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
        store(d_re, d_im, d_decay, places, mask, not EVEN, IS_COMPLEX, LANE)
    return d_re, d_im


@triton.jit
def store_initial_gradient(
    y_re, y_im, decay, decay_at, decay_t, every_re, every_im, reset, reset_at, reset_t, d_initial, at, final, there,
    CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr, LANE: tl.constexpr,
):  # fmt: skip
    """Store the gradient of the initial state, dh[-1] = conj(a[0]) λ[0].

    ``y_re`` and ``y_im`` are λ[0], (1, BLOCK), as in :func:`backward_kernel`, and a[0] is the decay at row ``final``.
    """
    if PER_STEP:
        offset = rows_at(decay_at, final, decay_t, LANE)
        a_re, a_im = load(decay, offset, there, 0.0, True, IS_COMPLEX, WIDE, LANE)
        a_im = -a_im
    else:
        a_re, a_im = last(every_re)[None], last(every_im)[None]
    d_re, d_im = product(y_re, y_im, a_re, a_im, IS_COMPLEX)
    if CUTS:
        kept = tl.load(reset + rows_at(reset_at, final, reset_t, 1), there, 0) == 0
        d_re, d_im = tl.where(kept, d_re, 0.0), tl.where(kept, d_im, 0.0)
    store(d_re, d_im, d_initial, at, there, True, IS_COMPLEX, LANE)


@triton.jit(do_not_specialize=NUMBERS)
def backward_kernel(
    decay, grad, reset, states, initial, d_decay, d_drive, d_initial,
    decay_b, decay_t, decay_c, grad_b, grad_t, grad_c, reset_b, reset_t, states_b, states_t, states_c,
    d_decay_b, d_decay_t, d_decay_c, d_drive_b, d_drive_t, d_drive_c, steps, channels,
    INITIAL: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, DOUBLE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, SPREAD: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of drive, decay and initial state from the gradient g (``grad``) of the states h.

    With the adjoint λ[t] = g[t] + conj(a[t+1]) λ[t+1], the gradients are dx = λ, da[t] = λ[t] conj(h[t-1]) and dh[-1] =
    conj(a[0]) λ[0]. Time runs backward: row i is step ``steps - 1 - i``. The gradient of a decay per channel is summed
    over time in float64; ``reduce_kernel`` sums it over the sequences.
    """
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    batch, channel, count = place(tl.program_id(0), steps, channels, BLOCK, LANE)
    decay_at = base(batch, 0, channel, decay_b, decay_t, decay_c)
    grad_at = base(batch, 0, channel, grad_b, grad_t, grad_c)
    reset_at = base(batch, 0, channel, reset_b, reset_t, 0)
    states_at = base(batch, 0, channel, states_b, states_t, states_c)
    d_decay_at = base(batch, 0, channel, d_decay_b, d_decay_t, d_decay_c)
    d_drive_at = base(batch, 0, channel, d_drive_b, d_drive_t, d_drive_c)
    every_re, every_im = every_step(decay, decay_b, decay_c, batch, channel, count, 1, SPREAD, IS_COMPLEX, WIDE, LANE)
    follows_re, follows_im = tl.zeros([SPREAD, BLOCK], WIDE), tl.zeros([SPREAD, BLOCK], WIDE)
    first_re, first_im = tl.zeros([1, BLOCK], WIDE), tl.zeros([1, BLOCK], WIDE)
    if INITIAL:
        first_re, first_im = load(initial, batch * channels + channel, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    total_re, total_im = tl.zeros([SPREAD, BLOCK], tl.float64), tl.zeros([SPREAD, BLOCK], tl.float64)
    row = step_of_row(BLOCK_T, SPREAD)
    for begin in tl.range(0, steps, BLOCK_T, num_stages=STAGES):
        within = begin + row
        a, x, there = fetch_tile(
            decay, decay_at, decay_t, grad, grad_at, grad_t, within, within == 0, count,
            1, PER_STEP, IS_COMPLEX, LANE, EVEN,
        )  # fmt: skip
        a_re, a_im, x_re, x_im, cut = widen_tile(
            a, x, there, every_re, every_im, reset, reset_at, reset_t, within, count,
            1, CUTS, PER_STEP, IS_COMPLEX, WIDE, EVEN,
        )  # fmt: skip
        y_re, y_im, follows_re, follows_im = walk(a_re, a_im, x_re, x_im, cut, follows_re, follows_im, CUTS, IS_COMPLEX)
        d_re, d_im = store_gradients(
            y_re, y_im, states, states_at, states_t, reset, reset_at, reset_t, d_decay, d_decay_at, d_decay_t,
            d_drive, d_drive_at, d_drive_t, first_re, first_im, within, within == steps - 1, count,
            INITIAL, CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE, EVEN,
        )  # fmt: skip
        if not PER_STEP:
            total_re += tl.sum(segments(d_re, SPREAD), 0).to(tl.float64)
            if IS_COMPLEX:
                total_im += tl.sum(segments(d_im, SPREAD), 0)
    at, there = batch * channels + channel, count > 0
    if not PER_STEP:
        total_re, total_im = tl.sum(total_re, 0, keep_dims=True), tl.sum(total_im, 0, keep_dims=True)
        store(total_re, total_im, d_decay, at, there, True, IS_COMPLEX, LANE)
    if INITIAL:
        store_initial_gradient(
            last(follows_re)[None], last(follows_im)[None], decay, decay_at, decay_t, every_re, every_im,
            reset, reset_at, reset_t, d_initial, at, count - 1, there, CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE,
        )  # fmt: skip


@triton.jit(do_not_specialize=NUMBERS)
def reduce_kernel(parts, total, rows, channels, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the sum ``total`` of the array ``parts`` (rows, channels) over its rows, always in the same order."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = channel < channels
    row = tl.arange(0, ROWS)[:, None].to(tl.int64)
    partial = tl.zeros([ROWS, BLOCK], tl.float64)
    for begin in range(0, rows, ROWS):
        there = inside & (begin + row < rows)
        partial += tl.load(parts + ((begin + row) * channels + channel), there, 0.0)
    found = tl.sum(partial, 0, keep_dims=True)
    if total.dtype.element_ty.primitive_bitwidth == 16:  # Triton's interpreter has no direct conversion
        found = found.to(tl.float32)
    tl.store(total + channel, found.to(total.dtype.element_ty), inside)
