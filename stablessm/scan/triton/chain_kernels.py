"""GPU scan kernels for few channels: time is divided among programs, which pass states to each other in one launch.

A *strip* is BLOCK neighboring channels of one sequence, a *level* is BLOCK_T steps of all strips, and a *tile* is where
a strip and a level meet. Every program takes a *ticket*, a number that determines the level and strip of its tile. The
program loads its tile once, composes the tile's steps to one map of the incoming state (h ↦ A h + X), receives the
incoming state from the programs of earlier levels, and computes the states of its tile.

Every WINDOW levels form a group. The last tile of a group publishes the state after the group as soon as it has
received the state before the group. The other tiles publish A and X, which the later tiles of the group compose. A
state thus passes through levels / WINDOW programs in sequence. The order of all operations depends only on the shape,
so results are bitwise reproducible.

A program waits only for programs with lower tickets. Those programs have started and will finish, so there is no
deadlock, whatever else the GPU runs.

Programs exchange numbers in the array ``board`` of 64-bit words (:mod:`.board`). Word 0 counts tickets in its lower 24
bits and launches in the other bits. Published numbers start at word FIRST. A float64 takes two words: the upper half of
each holds half of the float64, and the lower half holds the number of the launch. A reader waits until it finds the
number of its own launch, so no flags are needed, no word has to be cleared, and words may arrive in any order. Launches
that share a board must not overlap.
"""

# mypy: allow-untyped-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import triton
import triton.language as tl

from stablessm.scan.triton.linear_kernels import (
    NUMBERS,
    every_step,
    fetch_tile,
    place,
    store_gradients,
    store_initial_gradient,
    widen_tile,
)
from stablessm.scan.triton.tiles import (
    apply_map,
    base,
    compose,
    exchange,
    last,
    load,
    rows_at,
    scan,
    step_of_row,
    store,
    walk_from,
)

FIRST = 16
"""Index of the first word of a board that holds published numbers."""


@triton.jit
def _ticket(board):
    """Return the number of programs of this launch that started before this program, and the number of the launch.

    Launches on the board are numbered 1, 2, 3, ….
    """
    taken = tl.atomic_add(board, 1, sem="relaxed", scope="gpu")
    programs = tl.num_programs(0)
    ticket = (taken & 0xFFFFFF).to(tl.int32)
    if ticket == programs - 1:  # no other program of this launch takes a ticket
        tl.atomic_add(board, 16777216 - programs.to(tl.int64), sem="relaxed", scope="gpu")
    return ticket, (taken >> 24) + 1


@triton.jit
def _opaque(raw, zero):
    """Return ``raw`` unchanged, in a way that makes the compiler keep the numbers in their short dtype.

    ``zero`` is 0, but the compiler does not know this. Without this function, the compiler would keep the numbers in
    float64 until they are used again, which takes more registers.
    """
    BITS: tl.constexpr = raw.dtype.primitive_bitwidth
    if BITS == 64:
        again = (raw.to(tl.int64, bitcast=True) ^ zero).to(raw.dtype, bitcast=True)
    elif BITS == 32:
        again = (raw.to(tl.int32, bitcast=True) ^ zero.to(tl.int32)).to(raw.dtype, bitcast=True)
    else:
        again = (raw.to(tl.int16, bitcast=True) ^ zero.to(tl.int16)).to(raw.dtype, bitcast=True)
    return again


@triton.jit
def _arrived(word, at, number, COMPILED: tl.constexpr):
    """Wait until the lower half of every 64-bit word is ``number``, and return the words.

    ``word`` contains the words that the caller read from the addresses ``at``. A word whose lower half is not
    ``number`` is loaded again.
    """
    if COMPILED:
        word = tl.inline_asm_elementwise(
            """{
            .reg .pred done;
            .reg .b32 low, wanted;
            mov.b64 $0, $1;
            cvt.u32.u64 wanted, $3;
            AGAIN:
            cvt.u32.u64 low, $0;
            setp.eq.u32 done, low, wanted;
            @done bra ARRIVED;
            ld.relaxed.gpu.global.b64 $0, [$2];
            bra AGAIN;
            ARRIVED:
            }""",
            "=&l,l,l,l", [word, at.to(tl.int64), number], dtype=tl.int64, is_pure=False, pack=1,
        )  # fmt: skip
    return word


@triton.jit
def _publish(at, plane, value, launch):
    """Write float64 numbers to the board at the addresses ``at``, each as two words that are ``plane`` words apart.

    The lower half of each word is ``launch``, the number of the launch.
    """
    bits, number = value.to(tl.float64).to(tl.int64, bitcast=True), launch & 0xFFFFFFFF
    tl.atomic_xchg(at, (bits >> 32 << 32) | number, sem="relaxed", scope="gpu")
    tl.atomic_xchg(at + plane, (bits << 32) | number, sem="relaxed", scope="gpu")


@triton.jit
def _read(at, plane, there, launch):
    """Read the two words of each number at the addresses ``at``, without waiting until the words are written.

    The two words are ``plane`` words apart. Numbers where the mask ``there`` is False are not read and count as 0.
    """
    number = launch & 0xFFFFFFFF
    return tl.load(at, there, number, volatile=True), tl.load(at + plane, there, number, volatile=True)


@triton.jit
def _wait_for(high, low, at, plane, launch, COMPILED: tl.constexpr):
    """Wait until both words of each published number are written, and return the numbers as float64.

    ``high`` and ``low`` are the words that :func:`_read` returned for the same ``at``, ``plane`` and ``launch``.
    Numbers that ``_read`` did not read are 0.
    """
    number = launch & 0xFFFFFFFF
    high = _arrived(high, at, number, COMPILED)
    low = _arrived(low, at + plane, number, COMPILED)
    return ((high >> 32 << 32) | ((low >> 32) & 0xFFFFFFFF)).to(tl.float64, bitcast=True)


@triton.jit
def _wait_for_state(
    at, plane, launch, BLOCK: tl.constexpr, LANES: tl.constexpr, IS_COMPLEX: tl.constexpr, COMPILED: tl.constexpr
):
    """Wait until the state after a group of levels is published; return its real and imaginary parts, (1, BLOCK) each.

    The state is published at the address ``at`` (see :func:`_publish`). The array of words has at least one entry per
    lane. In a smaller array, the compiler would assign several words to every lane, which would wait for one word after
    the other.
    """
    WORDS: tl.constexpr = 4 if IS_COMPLEX else 2
    row = tl.arange(0, max(WORDS, LANES // BLOCK))[:, None]
    at = at + row * plane + tl.arange(0, BLOCK)[None, :]
    number = launch & 0xFFFFFFFF
    word = _arrived(tl.load(at, row < WORDS, number, volatile=True), at, number, COMPILED)
    half = tl.where(row % 2 == 0, word >> 32 << 32, (word >> 32) & 0xFFFFFFFF)
    re = tl.sum(tl.where(row < 2, half, 0), 0, keep_dims=True).to(tl.float64, bitcast=True)
    im = tl.zeros_like(re)
    if IS_COMPLEX:
        im = tl.sum(tl.where((row == 2) | (row == 3), half, 0), 0, keep_dims=True).to(tl.float64, bitcast=True)
    return re, im


@triton.jit
def _group(
    at, plane, within, step, launch,
    WINDOW: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr,
    COMPILED: tl.constexpr,
):  # fmt: skip
    """Compose the maps h ↦ a h + x of all earlier tiles in this tile's group; return a, x and the cut of the result.

    a and x are returned as real and imaginary parts. The function waits until the maps are published. ``at`` is the
    address at which the first of these tiles publishes (see :func:`_publish`, also for ``plane`` and ``launch``),
    ``step`` the distance from the address of each tile to the address of the next tile, and ``within`` the number of
    these tiles.
    """
    ROWS: tl.constexpr = max(WINDOW, LANES // BLOCK)
    row = tl.arange(0, ROWS)[:, None]
    there = (row < within) & (tl.arange(0, BLOCK)[None, :] >= 0)
    at = at + row * step
    a_high, a_low = _read(at, plane, there, launch)
    x_high, x_low = _read(at + 2 * plane, plane, there, launch)
    if IS_COMPLEX:
        b_high, b_low = _read(at + 4 * plane, plane, there, launch)
        z_high, z_low = _read(at + 6 * plane, plane, there, launch)
    a_re = tl.where(there, _wait_for(a_high, a_low, at, plane, launch, COMPILED), 1.0)
    x_re = _wait_for(x_high, x_low, at + 2 * plane, plane, launch, COMPILED)
    a_im, x_im, cut = tl.zeros_like(a_re), tl.zeros_like(a_re), tl.zeros([ROWS, BLOCK], tl.int32)
    if IS_COMPLEX:
        a_im = _wait_for(b_high, b_low, at + 4 * plane, plane, launch, COMPILED)
        x_im = _wait_for(z_high, z_low, at + 6 * plane, plane, launch, COMPILED)
    if CUTS:
        FLAG: tl.constexpr = 8 if IS_COMPLEX else 4
        flag = tl.load(at + FLAG * plane, there, launch & 0xFFFFFFFF, volatile=True)
        cut = (_arrived(flag, at + FLAG * plane, launch & 0xFFFFFFFF, COMPILED) >> 32).to(tl.int32)
    a_re, a_im, x_re, x_im, cut = scan(a_re, a_im, x_re, x_im, cut, CUTS, IS_COMPLEX)
    any_cut = tl.max(cut, 0, keep_dims=True)
    return last(a_re)[None], last(a_im)[None], last(x_re)[None], last(x_im)[None], any_cut


@triton.jit
def _chain(
    a_re, a_im, x_re, x_im, cut, first_re, first_im, board, launch, level, levels, strip, strips,
    SPREAD: tl.constexpr, WINDOW: tl.constexpr, LANES: tl.constexpr, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr,
    COMPILED: tl.constexpr,
):  # fmt: skip
    """Receive the state before this tile, publish this tile's result, and return the state before each segment."""
    WIDE: tl.constexpr = x_re.dtype
    BLOCK: tl.constexpr = x_re.shape[1]
    step = strips.to(tl.int64) * BLOCK  # distance between levels, and between groups
    plane, states_plane = step * levels, step * ((levels - 1) // WINDOW)
    first_state = board + 16 + strip.to(tl.int64) * BLOCK
    states = first_state + tl.arange(0, BLOCK)[None, :]
    group, within = level // WINDOW, level % WINDOW
    _, _, _, _, _, A_re, A_im, X_re, X_im, any_cut = compose(a_re, a_im, x_re, x_im, cut, SPREAD, CUTS, IS_COMPLEX)
    a_re, a_im, x_re, x_im = last(A_re)[None], last(A_im)[None], last(X_re)[None], last(X_im)[None]
    has_cut = tl.zeros([1, BLOCK], tl.int32)
    if CUTS:
        has_cut = tl.max(any_cut, 0, keep_dims=True)
    b_re, b_im = tl.zeros([1, BLOCK], tl.float64) + 1.0, tl.zeros([1, BLOCK], tl.float64)
    z_re, z_im = tl.zeros([1, BLOCK], tl.float64), tl.zeros([1, BLOCK], tl.float64)
    before_cut = tl.zeros([1, BLOCK], tl.int32)
    if WINDOW > 1:
        totals = states + (4 if IS_COMPLEX else 2) * states_plane + (level - within) * step
        if (within < WINDOW - 1) & (level < levels - 1):
            own = totals + within * step
            _publish(own, plane, a_re, launch)
            _publish(own + 2 * plane, plane, x_re, launch)
            if IS_COMPLEX:
                _publish(own + 4 * plane, plane, a_im, launch)
                _publish(own + 6 * plane, plane, x_im, launch)
            if CUTS:
                FLAG: tl.constexpr = 8 if IS_COMPLEX else 4
                word = (has_cut.to(tl.int64) << 32) | (launch & 0xFFFFFFFF)
                tl.atomic_xchg(own + FLAG * plane, word, sem="relaxed", scope="gpu")
        if within > 0:
            b_re, b_im, z_re, z_im, before_cut = _group(
                totals, plane, within, step, launch, WINDOW, BLOCK, LANES, CUTS, IS_COMPLEX, COMPILED
            )
    s_re, s_im = first_re.to(tl.float64), first_im.to(tl.float64)
    if group > 0:
        s_re, s_im = _wait_for_state(
            first_state + (group - 1) * step, states_plane, launch, BLOCK, LANES, IS_COMPLEX, COMPILED
        )
    y_re, y_im = s_re, s_im
    if WINDOW > 1:
        y_re, y_im = apply_map(b_re, b_im, z_re, z_im, before_cut, s_re, s_im, CUTS, IS_COMPLEX)
    y_re, y_im = y_re.to(WIDE), y_im.to(WIDE)
    if (within == WINDOW - 1) & (level < levels - 1):
        e_re, e_im = apply_map(a_re, a_im, x_re, x_im, has_cut, y_re, y_im, CUTS, IS_COMPLEX)
        _publish(states + group * step, states_plane, e_re, launch)
        if IS_COMPLEX:
            _publish(states + group * step + 2 * states_plane, states_plane, e_im, launch)
    y_re, y_im = tl.broadcast_to(y_re, [SPREAD, BLOCK]), tl.broadcast_to(y_im, [SPREAD, BLOCK])
    if SPREAD > 1:
        end_re, end_im = apply_map(A_re, A_im, X_re, X_im, any_cut, y_re, y_im, CUTS, IS_COMPLEX)
        y_re, _ = exchange(y_re, end_re)
        if IS_COMPLEX:
            y_im, _ = exchange(y_im, end_im)
    return y_re, y_im


@triton.jit(do_not_specialize=[*NUMBERS, "strips"])
def forward_chain_kernel(
    decay, drive, reset, initial, states, board,
    decay_b, decay_t, decay_c, drive_b, drive_t, drive_c, reset_b, reset_t, states_b, states_t, states_c,
    steps, channels, levels, strips,
    INITIAL: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, DOUBLE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, SPREAD: tl.constexpr,
    WINDOW: tl.constexpr, LANES: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    """Compute one tile of h[t] = a[t] h[t-1] + x[t], after receiving the state before the tile from earlier programs.

    a is the decay, x the drive, and h the states.
    """
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    ticket, launch = _ticket(board)
    level, strip = ticket // strips, ticket % strips
    batch, channel, count = place(strip, steps - level * BLOCK_T, channels, BLOCK, LANE)
    begin = (level * BLOCK_T).to(tl.int64)
    decay_at = base(batch, begin, channel, decay_b, decay_t, decay_c)
    drive_at = base(batch, begin, channel, drive_b, drive_t, drive_c)
    reset_at = base(batch, begin, channel, reset_b, reset_t, 0)
    states_at = base(batch, begin, channel, states_b, states_t, states_c)
    row = step_of_row(BLOCK_T, SPREAD)
    a, x, there = fetch_tile(
        decay, decay_at, decay_t, drive, drive_at, drive_t, row, row < 0, count, 0, PER_STEP, IS_COMPLEX, LANE, EVEN
    )
    every_re, every_im = every_step(decay, decay_b, decay_c, batch, channel, count, 0, SPREAD, IS_COMPLEX, WIDE, LANE)
    first_re, first_im = tl.zeros([1, BLOCK], WIDE), tl.zeros([1, BLOCK], WIDE)
    if INITIAL:
        first_re, first_im = load(initial, batch * channels + channel, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    a_re, a_im, x_re, x_im, cut = widen_tile(
        a, x, there, every_re, every_im, reset, reset_at, reset_t, row, count,
        0, CUTS, PER_STEP, IS_COMPLEX, WIDE, EVEN,
    )  # fmt: skip
    y_re, y_im = _chain(
        a_re, a_im, x_re, x_im, cut, first_re, first_im, board, launch, level, levels, strip, strips,
        SPREAD, WINDOW, LANES, CUTS, IS_COMPLEX, COMPILED,
    )  # fmt: skip
    zero = launch >> 40
    a_re, a_im, x_re, x_im, cut = widen_tile(
        _opaque(a, zero), _opaque(x, zero), there, _opaque(every_re, zero), _opaque(every_im, zero),
        reset, reset_at, reset_t, row, count,
        0, CUTS, PER_STEP, IS_COMPLEX, WIDE, EVEN,
    )  # fmt: skip
    y_re, y_im = walk_from(a_re, a_im, x_re, x_im, cut, y_re, y_im, CUTS, IS_COMPLEX)
    store(y_re, y_im, states, rows_at(states_at, row, states_t, LANE), row < count, not EVEN, IS_COMPLEX, LANE)


@triton.jit(do_not_specialize=[*NUMBERS, "strips"])
def backward_chain_kernel(
    decay, grad, reset, states, initial, d_decay, d_drive, d_initial, board,
    decay_b, decay_t, decay_c, grad_b, grad_t, grad_c, reset_b, reset_t, states_b, states_t, states_c,
    d_decay_b, d_decay_t, d_decay_c, d_drive_b, d_drive_t, d_drive_c, steps, channels, levels, strips,
    INITIAL: tl.constexpr, CUTS: tl.constexpr, PER_STEP: tl.constexpr, IS_COMPLEX: tl.constexpr, DOUBLE: tl.constexpr,
    LANE: tl.constexpr, EVEN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, SPREAD: tl.constexpr,
    WINDOW: tl.constexpr, LANES: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    """Compute one tile of the adjoint λ[t] = g[t] + conj(a[t+1]) λ[t+1], where g is ``grad``, and the gradients that
    depend on λ.

    Rows and results are defined as in ``linear_kernels.backward_kernel``. The gradient of a decay per channel is summed
    over each tile; ``reduce_kernel`` sums it over tiles and sequences.
    """
    WIDE: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    ticket, launch = _ticket(board)
    level, strip = ticket // strips, ticket % strips
    batch, channel, count = place(strip, steps - level * BLOCK_T, channels, BLOCK, LANE)
    begin = (level * BLOCK_T).to(tl.int64)
    decay_at = base(batch, begin, channel, decay_b, decay_t, decay_c)
    grad_at = base(batch, begin, channel, grad_b, grad_t, grad_c)
    reset_at = base(batch, begin, channel, reset_b, reset_t, 0)
    states_at = base(batch, begin, channel, states_b, states_t, states_c)
    d_decay_at = base(batch, begin, channel, d_decay_b, d_decay_t, d_decay_c)
    d_drive_at = base(batch, begin, channel, d_drive_b, d_drive_t, d_drive_c)
    row = step_of_row(BLOCK_T, SPREAD)
    begins = (row == 0) & (level == 0)
    a, x, there = fetch_tile(
        decay, decay_at, decay_t, grad, grad_at, grad_t, row, begins, count, 1, PER_STEP, IS_COMPLEX, LANE, EVEN
    )
    every_re, every_im = every_step(decay, decay_b, decay_c, batch, channel, count, 1, SPREAD, IS_COMPLEX, WIDE, LANE)
    none = tl.zeros([1, BLOCK], WIDE)
    a_re, a_im, x_re, x_im, cut = widen_tile(
        a, x, there, every_re, every_im, reset, reset_at, reset_t, row, count,
        1, CUTS, PER_STEP, IS_COMPLEX, WIDE, EVEN,
    )  # fmt: skip
    y_re, y_im = _chain(
        a_re, a_im, x_re, x_im, cut, none, none, board, launch, level, levels, strip, strips,
        SPREAD, WINDOW, LANES, CUTS, IS_COMPLEX, COMPILED,
    )  # fmt: skip
    zero = launch >> 40
    a_re, a_im, x_re, x_im, cut = widen_tile(
        _opaque(a, zero), _opaque(x, zero), there, _opaque(every_re, zero), _opaque(every_im, zero),
        reset, reset_at, reset_t, row, count,
        1, CUTS, PER_STEP, IS_COMPLEX, WIDE, EVEN,
    )  # fmt: skip
    y_re, y_im = walk_from(a_re, a_im, x_re, x_im, cut, y_re, y_im, CUTS, IS_COMPLEX)
    first_re, first_im = none, none
    if INITIAL:
        first_re, first_im = load(initial, batch * channels + channel, count > 0, 0.0, True, IS_COMPLEX, WIDE, LANE)
    ends = (level == levels - 1) & (row == steps - 1 - level * BLOCK_T)
    d_re, d_im = store_gradients(
        y_re, y_im, states, states_at, states_t, reset, reset_at, reset_t, d_decay, d_decay_at, d_decay_t,
        d_drive, d_drive_at, d_drive_t, first_re, first_im, row, ends, count,
        INITIAL, CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE, EVEN,
    )  # fmt: skip
    if not PER_STEP:
        d_re, d_im = tl.sum(d_re.to(tl.float64), 0, keep_dims=True), tl.sum(d_im.to(tl.float64), 0, keep_dims=True)
        store(d_re, d_im, d_decay, (batch * levels + level) * channels + channel, count > 0, True, IS_COMPLEX, LANE)
    if INITIAL:
        y_re = tl.sum(tl.where(ends, y_re, -0.0), 0, keep_dims=True)
        y_im = tl.sum(tl.where(ends, y_im, -0.0), 0, keep_dims=True)
        store_initial_gradient(
            y_re, y_im, decay, decay_at, decay_t, every_re, every_im, reset, reset_at, reset_t, d_initial,
            batch * channels + channel, count - 1, (count > 0) & (level == levels - 1),
            CUTS, PER_STEP, IS_COMPLEX, WIDE, LANE,
        )  # fmt: skip
