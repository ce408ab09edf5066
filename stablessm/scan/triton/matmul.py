"""Batched matrix products (one per channel) on tensor cores, with the accuracy of float32.

A float32 number is split into a sum of three bfloat16 numbers. Of the nine products of two such sums, the six largest
give the accuracy of float32. cuBLAS does not offer this mode: it multiplies float32 without tensor cores.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from stablessm.scan.triton.launch import Launch

ROWS, COLUMNS, TERMS = 64, 64, 32
"""Largest number of rows, columns and terms of a tile of a product. (Entry c_ij is a sum of K terms a_ik b_kj.)

Before sm_90, tensor cores read their operands from registers, which are too few for more terms."""
STAYS = 128
"""Largest number of terms for which a program on sm_90 loads its tile of b once and keeps it, split into bfloat16."""
TILES = 4
"""Number of row tiles of a that such a program multiplies by its tile of b."""
WARPS = 4
STAGES = 3
"""Number of pipeline stages of a loop over terms or rows; a program that keeps its tile of b uses one fewer."""
SUM_COLUMNS = 128
"""Largest number of columns of a tile in ``sum_kernel``."""
PART = 448, 4096
"""Smallest and largest number of rows that one program of ``sum_kernel`` sums."""
FEW = 1024
"""Largest number of rows for which cuBLAS is as fast as ``sum_kernel``."""
FULL = 512
"""Number of programs that are enough to occupy a GPU."""


@triton.jit
def _left(a, row, k, rows, A_R: tl.constexpr, K: tl.constexpr):
    return tl.load(a + (row * A_R + k[None, :]), (row < rows) & (k < K)[None, :], 0.0)


@triton.jit
def _right(b, k, column, B_K: tl.constexpr, B_N: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    return tl.load(b + (k[:, None] * B_K + column * B_N), (k < K)[:, None] & (column < N), 0.0)


@triton.jit(do_not_specialize=("rows", "a_h", "b_h", "c_h"))
def product_kernel(
    a, b, c, rows, a_h, b_h, c_h,
    A_R: tl.constexpr, B_K: tl.constexpr, B_N: tl.constexpr, C_R: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    ADD: tl.constexpr, PRECISION: tl.constexpr, ALIGNED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute c = a b, or c += a b with ADD, for a (rows, K) and b (K, N) of every channel.

    ``a_h``, ``b_h`` and ``c_h`` are the strides between channels, and ALIGNED is a number that divides these strides.
    TERMS is the number of columns of a that are multiplied at once. A program computes TILES tiles of rows, one after
    the other; TILES > 1 requires TERMS ≥ K.
    """
    columns: tl.constexpr = (N + COLUMNS - 1) // COLUMNS
    groups = tl.cdiv(rows, ROWS * TILES) * columns
    group = tl.program_id(0) % groups
    channel = (tl.program_id(0) // groups).to(tl.int64)
    column = (group % columns * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    begin = group // columns * (ROWS * TILES)
    term = tl.arange(0, TERMS)
    a += tl.multiple_of(channel * a_h, ALIGNED)
    b += tl.multiple_of(channel * b_h, ALIGNED)
    c += tl.multiple_of(channel * c_h, ALIGNED)
    if TILES > 1:
        right = _right(b, term, column, B_K, B_N, K, N)
        for first in tl.range(begin, begin + ROWS * TILES, ROWS, num_stages=STAGES):
            row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
            at, there = c + (row * C_R + column), (row < rows) & (column < N)
            total = tl.load(at, there, 0.0) if ADD else tl.zeros([ROWS, COLUMNS], tl.float32)
            left = _left(a, row, term, rows, A_R, K)
            tl.store(at, tl.dot(left, right, total, input_precision=PRECISION), there)
    else:
        row = (begin + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        at, there = c + (row * C_R + column), (row < rows) & (column < N)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for first in tl.range(0, K, TERMS, num_stages=STAGES):
            left = _left(a, row, first + term, rows, A_R, K)
            right = _right(b, first + term, column, B_K, B_N, K, N)
            total = tl.dot(left, right, total, input_precision=PRECISION)
        if ADD:
            total += tl.load(at, there, 0.0)
        tl.store(at, total, there)


@triton.jit(do_not_specialize=("rows", "part_rows", "channels", "a_h", "b_h"))
def sum_kernel(
    a, b, c, rows, part_rows, channels, a_h, b_h,
    A_R: tl.constexpr, B_R: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
    ALIGNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute c[part] = aᵀ b for one part of the rows, for a (rows, M) and b (rows, N) of every channel.

    Each part has ``part_rows`` rows; the last part may have fewer.
    """
    columns: tl.constexpr = (N + COLUMNS - 1) // COLUMNS
    tiles: tl.constexpr = (M + ROWS - 1) // ROWS * columns
    tile = tl.program_id(0) % tiles
    channel = (tl.program_id(0) // tiles % channels).to(tl.int64)
    part = (tl.program_id(0) // tiles // channels).to(tl.int64)
    m = tile // columns * ROWS + tl.arange(0, ROWS)
    n = (tile % columns * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    a += tl.multiple_of(channel * a_h, ALIGNED) + part * part_rows * A_R
    b += tl.multiple_of(channel * b_h, ALIGNED) + part * part_rows * B_R
    left_over = tl.minimum(rows - part * part_rows, part_rows).to(tl.int32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in tl.range(0, left_over, TERMS, num_stages=STAGES):
        row = (first + tl.arange(0, TERMS))[:, None]
        left = tl.load(a + (row * A_R + m[None, :]), (row < left_over) & (m < M)[None, :], 0.0)
        right = tl.load(b + (row * B_R + n), (row < left_over) & (n < N), 0.0)
        total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
    at = c + (((part * channels + channel) * M + m[:, None]) * N + n)
    tl.store(at, total, (m < M)[:, None] & (n < N))


def multiply(a: Tensor, b: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Compute out = a b, or out += a b with ``add``, for a (H, R, K) and b (H, K, N) in float32.

    The last dimension of ``a`` and ``out`` must have stride 1. cuBLAS is used if TF32 is allowed, for example by
    ``torch.set_float32_matmul_precision("high")``.
    """
    if precision := _precision(a):
        _launch(a.shape, a.stride(), b.shape[2], b.stride(), out.stride(), add, precision)(a, b, out)
    elif add:
        out.baddbmm_(a, b)
    else:
        torch.bmm(a, b, out=out)


def sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """Compute aᵀ b for a (H, R, M) and b (H, R, N) in float32, whose last dimensions have stride 1.

    Rows are summed in parts, so that a few channels with many rows also occupy a GPU. The parts are then added in a
    fixed order. cuBLAS is used for few rows, and for any number of rows if TF32 is allowed.
    """
    if precision := _precision(a):
        parts, launch = _sum_launch(a.shape, a.stride(), b.shape[2], b.stride(), precision)
        if parts > 1:
            found = torch.empty((parts, len(a), a.shape[2], b.shape[2]), dtype=a.dtype, device=a.device)
            launch(a, b, found)
            return found.sum(0)
    return torch.bmm(a.mT, b)


def _precision(tensor: Tensor) -> str | None:
    """Return the ``input_precision`` for Triton's ``tl.dot``, or None if PyTorch allows TF32.

    If the result is None, the caller uses cuBLAS.
    """
    if torch.backends.cuda.matmul.fp32_precision == "tf32":
        return None
    return "ieee" if tensor.device.type == "cpu" else "bf16x6"  # Triton's interpreter (CPU) supports no bf16x6.


@functools.lru_cache(maxsize=1024)  # A layer uses four, and ssm.py caches 256 layers.
def _launch(
    shape: tuple[int, ...],
    a: tuple[int, ...],
    columns: int,
    b: tuple[int, ...],
    out: tuple[int, ...],
    add: bool,
    precision: str,
) -> Launch:
    channels, rows, terms = shape
    stays = terms <= STAYS and _has_wgmma(precision)
    block = {"ROWS": ROWS, "COLUMNS": _tile(columns, COLUMNS), "TERMS": _tile(terms, STAYS if stays else TERMS)}
    block |= {"TILES": TILES, "STAGES": STAGES - 1} if stays else {"TILES": 1, "STAGES": STAGES}
    return Launch(
        product_kernel,
        channels * triton.cdiv(rows, ROWS * block["TILES"]) * triton.cdiv(columns, block["COLUMNS"]),
        (rows, a[0], b[0], out[0]),
        {
            "A_R": a[1], "B_K": b[1], "B_N": b[2], "C_R": out[1], "K": terms, "N": columns,
            "ADD": add, "PRECISION": precision, "ALIGNED": math.gcd(16, a[0], b[0], out[0]), **block,
        },
        warps=WARPS,
    )  # fmt: skip


@functools.lru_cache(maxsize=512)
def _sum_launch(
    shape: tuple[int, ...], a: tuple[int, ...], columns: int, b: tuple[int, ...], precision: str
) -> tuple[int, Launch]:
    """Return the number of parts into which the rows are divided, and a launch that sums the products of each part.

    ``shape`` is the shape of the first factor, ``a`` and ``b`` are the strides of the factors, and ``columns`` is the
    number of columns of the second.
    """
    channels, rows, terms = shape
    block = {"ROWS": _tile(terms, ROWS), "COLUMNS": _tile(columns, SUM_COLUMNS), "TERMS": TERMS, "STAGES": STAGES}
    tiles = channels * triton.cdiv(terms, block["ROWS"]) * triton.cdiv(columns, block["COLUMNS"])
    least, most = PART
    part_rows = min(most, max(least, TERMS * triton.cdiv(rows * tiles, FULL * TERMS)))
    parts = triton.cdiv(rows, part_rows) if rows > FEW else 1
    constants = {
        "A_R": a[1], "B_R": b[1], "M": terms, "N": columns,
        "PRECISION": precision, "ALIGNED": math.gcd(16, a[0], b[0]), **block,
    }  # fmt: skip
    return parts, Launch(sum_kernel, parts * tiles, (rows, part_rows, channels, a[0], b[0]), constants, warps=WARPS)


def _has_wgmma(precision: str) -> bool:
    """Return True if tensor cores can read the second factor of a product from shared memory: on GPUs with sm_90 or
    newer, and in Triton's interpreter.

    ``precision`` is the ``input_precision`` of ``tl.dot``; the value ``ieee`` means that Triton's interpreter runs.
    """
    return precision == "ieee" or driver.active.get_current_target().arch >= 90


def _tile(size: int, most: int) -> int:
    return max(16, min(most, 1 << (size - 1).bit_length()))
