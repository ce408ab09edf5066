"""What the GPU kernels do with a tile of numbers: read, write, walk, and compose its rows.

Numbers are pairs (re, im), so that real and complex share the code; of a real number ``im`` is never looked at. LANE
neighboring channels belong to a lane, and the caller vouches that they can be read at once.

A reset *cuts* the recurrence: what stands before it is dropped by a choice, not by a product with zero, because
0 · NaN is NaN.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations as its own; tl.constexpr is the one it knows.)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(u_re, u_im, v_re, v_im, IS_COMPLEX: tl.constexpr):
    """u v."""
    re, im = u_re * v_re, u_im
    if IS_COMPLEX:
        re, im = re - u_im * v_im, u_re * v_im + u_im * v_re
    return re, im


@triton.jit
def join(a1, x1, a2, x2):
    """(a₂ a₁, a₂ x₁ + x₂)."""
    return a2 * a1, a2 * x1 + x2


@triton.jit
def join_complex(a1_re, a1_im, x1_re, x1_im, a2_re, a2_im, x2_re, x2_im):
    """(a₂ a₁, a₂ x₁ + x₂)."""
    a_re, a_im = product(a2_re, a2_im, a1_re, a1_im, True)
    x_re, x_im = product(a2_re, a2_im, x1_re, x1_im, True)
    return a_re, a_im, x_re + x2_re, x_im + x2_im


@triton.jit
def join_cut(a1, x1, cut1, a2, x2, cut2):
    """The same, but nothing passes a part that holds a cut; its ``a`` is then never looked at."""
    a, x = join(a1, x1, a2, x2)
    return a, tl.where(cut2 != 0, x2, x), cut1 | cut2


@triton.jit
def join_complex_cut(
    a1_re, a1_im, x1_re, x1_im, cut1, a2_re, a2_im, x2_re, x2_im, cut2
):  # fmt: skip
    """The same, but nothing passes a part that holds a cut; its ``a`` is then never looked at."""
    a_re, a_im, x_re, x_im = join_complex(a1_re, a1_im, x1_re, x1_im, a2_re, a2_im, x2_re, x2_im)
    keep = cut2 == 0
    return a_re, a_im, tl.where(keep, x_re, x2_re), tl.where(keep, x_im, x2_im), cut1 | cut2


@triton.jit
def scan(a_re, a_im, x_re, x_im, cut, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """The maps y ↦ a y + x composed along the first dimension: (a, x) of every beginning, and whether it has a cut."""
    if CUTS:
        if IS_COMPLEX:
            parts = (a_re, a_im, x_re, x_im, cut)
            a_re, a_im, x_re, x_im, cut = tl.associative_scan(parts, 0, join_complex_cut)
        else:
            a_re, x_re, cut = tl.associative_scan((a_re, x_re, cut), 0, join_cut)
    elif IS_COMPLEX:
        a_re, a_im, x_re, x_im = tl.associative_scan((a_re, a_im, x_re, x_im), 0, join_complex)
    else:
        a_re, x_re = tl.associative_scan((a_re, x_re), 0, join)
    return a_re, a_im, x_re, x_im, cut


@triton.jit
def order(ROWS: tl.constexpr, SPREAD: tl.constexpr):
    """When the rows of a tile are, (ROWS, 1): every SPREAD-th row belongs to the same stretch of time.

    Where SPREAD lanes share a column, each has a stretch to itself, and they exchange no more than its end.
    """
    row = tl.arange(0, ROWS)[:, None]
    return row % SPREAD * (ROWS // SPREAD) + row // SPREAD


@triton.jit
def stretches(tile, SPREAD: tl.constexpr):
    """The rows of a tile as (time in a stretch, stretch)."""
    return tile.reshape(tile.shape[0] // SPREAD, SPREAD, tile.shape[1])


@triton.jit
def all_rows(value, ROWS: tl.constexpr):
    """(SPREAD, BLOCK) at every time of a stretch: a tile."""
    SPREAD: tl.constexpr = value.shape[0]
    BLOCK: tl.constexpr = value.shape[1]
    return tl.broadcast_to(value[None], [ROWS // SPREAD, SPREAD, BLOCK]).reshape(ROWS, BLOCK)


@triton.jit
def last(value):
    """The last of the first dimension: the sum of it and of negative zeros, which change nothing."""
    count: tl.constexpr = value.shape[0]
    place = tl.arange(0, count)[:, None]
    if len(value.shape) == 3:
        place = place[:, :, None]
    return tl.sum(tl.where(place == count - 1, value, -0.0), 0)


@triton.jit
def compose(a_re, a_im, x_re, x_im, cut, SPREAD: tl.constexpr, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """What a tile does to a state that enters it, (a, x, cut) up to every row, and up to the end of every stretch.

    The first five are (time in a stretch, stretch, BLOCK) and begin with their stretch, the others (stretch, BLOCK) and
    begin with the tile.
    """
    a_re, x_re = stretches(a_re, SPREAD), stretches(x_re, SPREAD)
    a_im, x_im = stretches(a_im, SPREAD), stretches(x_im, SPREAD)
    if CUTS:
        cut = stretches(cut, SPREAD)
    a_re, a_im, x_re, x_im, cut = scan(a_re, a_im, x_re, x_im, cut, CUTS, IS_COMPLEX)
    A_re, A_im, X_re, X_im, any_cut = last(a_re), last(a_im), last(x_re), last(x_im), cut
    if CUTS:
        any_cut = tl.max(cut, 0)
    if SPREAD > 1:
        A_re, A_im, X_re, X_im, any_cut = scan(A_re, A_im, X_re, X_im, any_cut, CUTS, IS_COMPLEX)
    return a_re, a_im, x_re, x_im, cut, A_re, A_im, X_re, X_im, any_cut


@triton.jit
def after(a_re, a_im, x_re, x_im, cut, y_re, y_im, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """a y + x, or x alone after a cut."""
    re, im = product(a_re, a_im, y_re, y_im, IS_COMPLEX)
    re += x_re
    if IS_COMPLEX:
        im += x_im
    if CUTS:
        re, im = tl.where(cut == 0, re, x_re), tl.where(cut == 0, im, x_im)
    return re, im


@triton.jit
def exchange(first, ends):
    """What enters every stretch, the first with ``first``, the others with the end of the one before; and the last."""
    stretch = tl.arange(0, ends.shape[0])[:, None]
    before = tl.gather(ends, tl.broadcast_to(tl.maximum(stretch - 1, 0), ends.shape), 0)
    return tl.where(stretch == 0, first, before), tl.broadcast_to(last(ends)[None], ends.shape)


@triton.jit
def walk(a_re, a_im, x_re, x_im, cut, y_re, y_im, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """y[t] = a[t] y[t-1] + x[t] over a tile; where ``cut`` is not 0, y[t] = x[t]. All of y, and its last.

    The y before the tile, as the last one after it, is (SPREAD, BLOCK): each stretch has it.
    """
    SPREAD: tl.constexpr = y_re.shape[0]
    rows: tl.constexpr = x_re.shape
    a_re, a_im, x_re, x_im, cut, A_re, A_im, X_re, X_im, any_cut = compose(
        a_re, a_im, x_re, x_im, cut, SPREAD, CUTS, IS_COMPLEX
    )
    end_re, end_im = after(A_re, A_im, X_re, X_im, any_cut, y_re, y_im, CUTS, IS_COMPLEX)
    if SPREAD > 1:
        y_re, end_re = exchange(y_re, end_re)
        if IS_COMPLEX:
            y_im, end_im = exchange(y_im, end_im)
    re, im = after(a_re, a_im, x_re, x_im, cut, y_re[None], y_im[None], CUTS, IS_COMPLEX)
    return re.reshape(rows), im.reshape(rows), end_re, end_im


@triton.jit
def walk_from(a_re, a_im, x_re, x_im, cut, y_re, y_im, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """The same from the y before every stretch, (SPREAD, BLOCK). All of y."""
    SPREAD: tl.constexpr = y_re.shape[0]
    rows: tl.constexpr = x_re.shape
    a_re, x_re = stretches(a_re, SPREAD), stretches(x_re, SPREAD)
    a_im, x_im = stretches(a_im, SPREAD), stretches(x_im, SPREAD)
    if CUTS:
        cut = stretches(cut, SPREAD)
    re, im = after(a_re, a_im, x_re, x_im, cut, y_re[None], y_im[None], CUTS, IS_COMPLEX)
    begins = tl.arange(0, rows[0] // SPREAD)[:, None, None] == 0
    x_re, x_im = tl.where(begins, re, x_re), tl.where(begins, im, x_im)
    _, _, re, im, _ = scan(a_re, a_im, x_re, x_im, cut, CUTS, IS_COMPLEX)
    return re.reshape(rows), im.reshape(rows)


@triton.jit
def base(batch, step, channel, per_batch, per_step, per_channel):
    """Where channels begin, at ``step`` (64 bits wide): (1, BLOCK)."""
    return batch * per_batch + step * per_step + channel * per_channel


@triton.jit
def rows_at(base, within, per_step, LANE: tl.constexpr):
    """Where the rows ``within`` of a column are. Lanes lie along channels (2 says so), and LANE can be read at once."""
    offset = base + within.to(tl.int64) * per_step  # made here: the compiler takes hints where a value is made
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
def fetch(start, offset, mask, OTHER: tl.constexpr, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, LANE: tl.constexpr):
    """Return numbers as they are in memory, OTHER where masked; of complex numbers the parts, 0 where masked."""
    if IS_COMPLEX:
        at = start + _pairs(offset, LANE)
        raw = tl.load(at, _twice(mask, offset), 0.0) if MASKED else tl.load(at)
    else:
        raw = tl.load(start + offset, mask, OTHER) if MASKED else tl.load(start + offset)
    return raw


@triton.jit
def widen(raw, mask, OTHER: tl.constexpr, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr):
    """Return the numbers that :func:`fetch` has read."""
    if IS_COMPLEX:
        re, im = tl.split(raw.to(WIDE).reshape(raw.shape[0], raw.shape[1] // 2, 2))
        if MASKED and OTHER != 0.0:
            re = tl.where(mask, re, OTHER)
    else:
        if raw.dtype.primitive_bitwidth == 16:  # which the interpreter widens in two steps only
            raw = raw.to(tl.float32)
        re = raw.to(WIDE)
        im = tl.zeros_like(re)
    return re, im


@triton.jit
def load(
    start, offset, mask, OTHER: tl.constexpr, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr,
    LANE: tl.constexpr,
):  # fmt: skip
    """Numbers, OTHER where masked."""
    raw = fetch(start, offset, mask, OTHER, MASKED, IS_COMPLEX, LANE)
    return widen(raw, mask, OTHER, MASKED, IS_COMPLEX, WIDE)


@triton.jit
def store(
    re, im, start, offset, mask, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, LANE: tl.constexpr
):  # fmt: skip
    """Numbers to where the mask says, rounded to what the array holds."""
    DTYPE: tl.constexpr = start.dtype.element_ty
    if IS_COMPLEX:
        at = start + _pairs(offset, LANE)
        value, mask = tl.join(re, im).to(DTYPE).reshape(at.shape), _twice(mask, offset)
    else:
        at = start + offset
        value = (re.to(tl.float32) if DTYPE.primitive_bitwidth == 16 else re).to(DTYPE)
    if MASKED:
        tl.store(at, value, mask)
    else:
        tl.store(at, value)
