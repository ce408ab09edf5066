"""Operations of the GPU kernels on a tile of steps and channels: load, store, and the recurrence along its steps.

A *tile* has ROWS rows (steps) and BLOCK columns (channels). Numbers are pairs (re, im), so that real and complex
numbers share the code; ``im`` of a real number is not used. A *lane* is one thread of a warp. It holds LANE neighboring
channels; the caller ensures that one instruction can load them.

SPREAD lanes share a column. Each of them computes a *segment*, which is ROWS / SPREAD successive steps of the tile.

A *cut* is a step with a reset: nothing is carried into it. Cuts are applied by ``tl.where`` instead of a product with
zero, because 0 · NaN is NaN. CUTS is false if a call has no resets.
"""

# mypy: allow-untyped-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(u_re, u_im, v_re, v_im, IS_COMPLEX: tl.constexpr):
    """Return the product u v of two real or complex numbers, as its real and imaginary parts."""
    re, im = u_re * v_re, u_im
    if IS_COMPLEX:
        re, im = re - u_im * v_im, u_re * v_im + u_im * v_re
    return re, im


@triton.jit
def join(a1, x1, a2, x2):
    """Compose two maps of real numbers, first y ↦ a₁ y + x₁ and then y ↦ a₂ y + x₂: return (a₂ a₁, a₂ x₁ + x₂)."""
    return a2 * a1, a2 * x1 + x2


@triton.jit
def join_complex(a1_re, a1_im, x1_re, x1_im, a2_re, a2_im, x2_re, x2_im):
    """Compose two maps of complex numbers, first y ↦ a₁ y + x₁ and then y ↦ a₂ y + x₂."""
    a_re, a_im = product(a2_re, a2_im, a1_re, a1_im, True)
    x_re, x_im = product(a2_re, a2_im, x1_re, x1_im, True)
    return a_re, a_im, x_re + x2_re, x_im + x2_im


@triton.jit
def join_cut(a1, x1, cut1, a2, x2, cut2):
    """Compose two maps like :func:`join`. If the second map has a cut (a reset), the first map has no effect."""
    a, x = join(a1, x1, a2, x2)
    return a, tl.where(cut2 != 0, x2, x), cut1 | cut2


@triton.jit
def join_complex_cut(
    a1_re, a1_im, x1_re, x1_im, cut1, a2_re, a2_im, x2_re, x2_im, cut2
):  # fmt: skip
    """Compose two maps like :func:`join_complex`. If the second map has a cut (a reset), the first map
    has no effect.
    """
    a_re, a_im, x_re, x_im = join_complex(a1_re, a1_im, x1_re, x1_im, a2_re, a2_im, x2_re, x2_im)
    keep = cut2 == 0
    return a_re, a_im, tl.where(keep, x_re, x2_re), tl.where(keep, x_im, x2_im), cut1 | cut2


@triton.jit
def scan(a_re, a_im, x_re, x_im, cut, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """Compose the first 1, 2, 3, … maps y ↦ a y + x along dimension 0; return all results, and which of them have a
    cut.
    """
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
def step_of_row(ROWS: tl.constexpr, SPREAD: tl.constexpr):
    """Return which time step each row of a tile contains, (ROWS, 1).

    Row r belongs to segment r % SPREAD, so that the lanes of a column compute one segment each and exchange only the
    states at the ends of segments.
    """
    row = tl.arange(0, ROWS)[:, None]
    return row % SPREAD * (ROWS // SPREAD) + row // SPREAD


@triton.jit
def segments(tile, SPREAD: tl.constexpr):
    """Reshape a tile (ROWS, BLOCK) to (step of a segment, segment, channel)."""
    return tile.reshape(tile.shape[0] // SPREAD, SPREAD, tile.shape[1])


@triton.jit
def all_rows(value, ROWS: tl.constexpr):
    """Return a tile (ROWS, BLOCK) that repeats ``value[s]``, the values of segment s, in every row of segment s."""
    SPREAD: tl.constexpr = value.shape[0]
    BLOCK: tl.constexpr = value.shape[1]
    return tl.broadcast_to(value[None], [ROWS // SPREAD, SPREAD, BLOCK]).reshape(ROWS, BLOCK)


@triton.jit
def last(value):
    """Return the last entry along dimension 0, computed as a sum, because Triton cannot index a tensor."""
    count: tl.constexpr = value.shape[0]
    place = tl.arange(0, count)[:, None]
    if len(value.shape) == 3:
        place = place[:, :, None]
    return tl.sum(tl.where(place == count - 1, value, -0.0), 0)


@triton.jit
def compose(a_re, a_im, x_re, x_im, cut, SPREAD: tl.constexpr, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """Compose the maps y ↦ a y + x of the steps of a tile, first within each segment, then from segment to segment.

    Each composed map is five numbers: a (re, im), x (re, im) and the cut. The first five results, (step of a segment,
    segment, BLOCK), are the maps from the beginning of a segment to each of its steps. The other five, (segment,
    BLOCK), are the maps from the beginning of the tile to the end of each segment.
    """
    a_re, x_re = segments(a_re, SPREAD), segments(x_re, SPREAD)
    a_im, x_im = segments(a_im, SPREAD), segments(x_im, SPREAD)
    if CUTS:
        cut = segments(cut, SPREAD)
    a_re, a_im, x_re, x_im, cut = scan(a_re, a_im, x_re, x_im, cut, CUTS, IS_COMPLEX)
    A_re, A_im, X_re, X_im, any_cut = last(a_re), last(a_im), last(x_re), last(x_im), cut
    if CUTS:
        any_cut = tl.max(cut, 0)
    if SPREAD > 1:
        A_re, A_im, X_re, X_im, any_cut = scan(A_re, A_im, X_re, X_im, any_cut, CUTS, IS_COMPLEX)
    return a_re, a_im, x_re, x_im, cut, A_re, A_im, X_re, X_im, any_cut


@triton.jit
def apply_map(a_re, a_im, x_re, x_im, cut, y_re, y_im, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """Return a y + x, the state after the map (a, x) is applied to the state y; return x if the map has a cut."""
    re, im = product(a_re, a_im, y_re, y_im, IS_COMPLEX)
    re += x_re
    if IS_COMPLEX:
        im += x_im
    if CUTS:
        re, im = tl.where(cut == 0, re, x_re), tl.where(cut == 0, im, x_im)
    return re, im


@triton.jit
def exchange(first, ends):
    """Return the state before each segment of steps, and the state after the last segment, repeated for every segment.

    ``first`` is the state before the first segment, and ``ends`` are the states after each segment.
    """
    segment = tl.arange(0, ends.shape[0])[:, None]
    before = tl.gather(ends, tl.broadcast_to(tl.maximum(segment - 1, 0), ends.shape), 0)
    return tl.where(segment == 0, first, before), tl.broadcast_to(last(ends)[None], ends.shape)


@triton.jit
def walk(a_re, a_im, x_re, x_im, cut, y_re, y_im, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """Compute y[t] = a[t] y[t-1] + x[t] for all steps of a tile; return all y and the last y. At a cut, y[t] = x[t].

    The argument y (before the tile) and the last y (after it) have the shape (SPREAD, BLOCK): a copy for each segment.
    """
    SPREAD: tl.constexpr = y_re.shape[0]
    rows: tl.constexpr = x_re.shape
    a_re, a_im, x_re, x_im, cut, A_re, A_im, X_re, X_im, any_cut = compose(
        a_re, a_im, x_re, x_im, cut, SPREAD, CUTS, IS_COMPLEX
    )
    end_re, end_im = apply_map(A_re, A_im, X_re, X_im, any_cut, y_re, y_im, CUTS, IS_COMPLEX)
    if SPREAD > 1:
        y_re, end_re = exchange(y_re, end_re)
        if IS_COMPLEX:
            y_im, end_im = exchange(y_im, end_im)
    re, im = apply_map(a_re, a_im, x_re, x_im, cut, y_re[None], y_im[None], CUTS, IS_COMPLEX)
    return re.reshape(rows), im.reshape(rows), end_re, end_im


@triton.jit
def walk_from(a_re, a_im, x_re, x_im, cut, y_re, y_im, CUTS: tl.constexpr, IS_COMPLEX: tl.constexpr):
    """Compute y[t] = a[t] y[t-1] + x[t] for all steps of a tile, given the y before each segment of steps."""
    SPREAD: tl.constexpr = y_re.shape[0]
    rows: tl.constexpr = x_re.shape
    a_re, x_re = segments(a_re, SPREAD), segments(x_re, SPREAD)
    a_im, x_im = segments(a_im, SPREAD), segments(x_im, SPREAD)
    if CUTS:
        cut = segments(cut, SPREAD)
    re, im = apply_map(a_re, a_im, x_re, x_im, cut, y_re[None], y_im[None], CUTS, IS_COMPLEX)
    begins = tl.arange(0, rows[0] // SPREAD)[:, None, None] == 0
    x_re, x_im = tl.where(begins, re, x_re), tl.where(begins, im, x_im)
    _, _, re, im, _ = scan(a_re, a_im, x_re, x_im, cut, CUTS, IS_COMPLEX)
    return re.reshape(rows), im.reshape(rows)


@triton.jit
def base(batch, step, channel, per_batch, per_step, per_channel):
    """Return the offsets (1, BLOCK), in elements, of channels of a sequence at a step, from the strides ``per_…``."""
    return batch * per_batch + step * per_step + channel * per_channel


@triton.jit
def rows_at(base, within, per_step, LANE: tl.constexpr):
    """Return the offsets of rows in an array, with a hint to the compiler that LANE channels can be loaded at once.

    ``within`` are the indices of the rows, counted from the offset ``base``. The hint is at least 2, because the
    compiler then assigns neighboring channels to neighboring lanes.
    """
    offset = base + within.to(tl.int64) * per_step  # computed here, because hints only apply where a value is computed
    return tl.max_contiguous(tl.multiple_of(offset, (1, LANE)), (1, max(2, LANE)))


@triton.jit
def _offsets_of_parts(offset, LANE: tl.constexpr):
    """Return the offsets (rows, 2 BLOCK) of the real and imaginary parts of complex numbers, given the numbers'
    offsets.
    """
    parts = 2 * offset[:, :, None] + tl.arange(0, 2)[None, None, :]
    parts = parts.reshape(offset.shape[0], 2 * offset.shape[1])
    return tl.max_contiguous(tl.multiple_of(parts, (1, 2 * LANE)), (1, 2 * LANE))


@triton.jit
def _mask_of_parts(mask, offset):
    """Return a mask for the real and imaginary parts of complex numbers, given a mask of the numbers at ``offset``."""
    rows: tl.constexpr = offset.shape[0]
    columns: tl.constexpr = offset.shape[1]
    both = tl.broadcast_to(tl.broadcast_to(mask, [rows, columns])[:, :, None], [rows, columns, 2])
    return tl.max_constancy(both.reshape(rows, 2 * columns), (1, 2))


@triton.jit
def fetch(start, offset, mask, OTHER: tl.constexpr, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, LANE: tl.constexpr):
    """Load elements of an array at ``start`` + ``offset`` without conversion; where the mask is False, return OTHER.

    Complex numbers are returned as real and imaginary parts side by side, which are 0 where the mask is False.
    """
    if IS_COMPLEX:
        at = start + _offsets_of_parts(offset, LANE)
        raw = tl.load(at, _mask_of_parts(mask, offset), 0.0) if MASKED else tl.load(at)
    else:
        raw = tl.load(start + offset, mask, OTHER) if MASKED else tl.load(start + offset)
    return raw


@triton.jit
def widen(raw, mask, OTHER: tl.constexpr, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr):
    """Convert elements from :func:`fetch` to the dtype WIDE, and return their real and imaginary parts."""
    if IS_COMPLEX:
        re, im = tl.split(raw.to(WIDE).reshape(raw.shape[0], raw.shape[1] // 2, 2))
        if MASKED and OTHER != 0.0:
            re = tl.where(mask, re, OTHER)
    else:
        if raw.dtype.primitive_bitwidth == 16:  # Triton's interpreter has no direct conversion
            raw = raw.to(tl.float32)
        re = raw.to(WIDE)
        im = tl.zeros_like(re)
    return re, im


@triton.jit
def load(
    start, offset, mask, OTHER: tl.constexpr, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, WIDE: tl.constexpr,
    LANE: tl.constexpr,
):  # fmt: skip
    """Load the numbers at ``start`` + ``offset`` as real and imaginary parts, in the dtype WIDE.

    Where the mask is False, OTHER is returned instead.
    """
    raw = fetch(start, offset, mask, OTHER, MASKED, IS_COMPLEX, LANE)
    return widen(raw, mask, OTHER, MASKED, IS_COMPLEX, WIDE)


@triton.jit
def store(
    re, im, start, offset, mask, MASKED: tl.constexpr, IS_COMPLEX: tl.constexpr, LANE: tl.constexpr
):  # fmt: skip
    """Store numbers at ``start`` + ``offset``, where the mask is True, rounded to the dtype of the array."""
    DTYPE: tl.constexpr = start.dtype.element_ty
    if IS_COMPLEX:
        at = start + _offsets_of_parts(offset, LANE)
        value, mask = tl.join(re, im).to(DTYPE).reshape(at.shape), _mask_of_parts(mask, offset)
    else:
        at = start + offset
        value = (re.to(tl.float32) if DTYPE.primitive_bitwidth == 16 else re).to(DTYPE)
    if MASKED:
        tl.store(at, value, mask)
    else:
        tl.store(at, value)
