"""Products of matrices, channel by channel, on tensor cores with float32's accuracy.

A float32 number is the sum of three bfloat16 numbers; of the nine products of two such sums the six largest make
float32's mantissa. cuBLAS has no such mode and multiplies float32 without tensor cores.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads a kernel's annotations as its own; tl.constexpr is the one it knows.)

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from stablessm.scan.triton_launch import Launch

ROWS, COLUMNS, TERMS = 64, 64, 32
"""Of a tile, at most. More terms would not fit into the registers from which tensor cores before sm_90 take them."""
WARPS = 4


@triton.jit(do_not_specialize=("rows", "a_h", "b_h", "c_h"))
def product_kernel(
    a, b, c, rows, a_h, b_h, c_h,
    A_R: tl.constexpr, B_K: tl.constexpr, B_N: tl.constexpr, C_R: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    ADD: tl.constexpr, PRECISION: tl.constexpr, ALIGNED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """c = a b, or c + a b: (rows, K) and (K, N) of every channel; ALIGNED divides the distances between channels."""
    columns: tl.constexpr = (N + COLUMNS - 1) // COLUMNS
    tiles = tl.cdiv(rows, ROWS) * columns
    tile = tl.program_id(0) % tiles
    channel = (tl.program_id(0) // tiles).to(tl.int64)
    row = (tile // columns * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tile % columns * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    term = tl.arange(0, TERMS)
    a += tl.multiple_of(channel * a_h, ALIGNED)
    b += tl.multiple_of(channel * b_h, ALIGNED)
    c += tl.multiple_of(channel * c_h, ALIGNED)
    there = (row < rows) & (column < N)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in tl.range(0, K, TERMS, num_stages=2):
        k = first + term
        left = tl.load(a + (row * A_R + k[None, :]), (row < rows) & (k < K)[None, :], 0.0)
        right = tl.load(b + (k[:, None] * B_K + column * B_N), (k < K)[:, None] & (column < N), 0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    at = c + (row * C_R + column)
    if ADD:
        total += tl.load(at, there, 0.0)
    tl.store(at, total, there)


def multiply(a: Tensor, b: Tensor, out: Tensor, *, add: bool = False) -> None:
    """out = a b, or out + a b, for (H, R, K) and (H, K, N) in float32; columns of ``a`` and ``out`` are contiguous.

    Where TF32 is allowed, by ``torch.set_float32_matmul_precision("high")`` or otherwise, cuBLAS does it.
    """
    if torch.backends.cuda.matmul.fp32_precision != "tf32":
        precision = "ieee" if a.device.type == "cpu" else "bf16x6"  # the interpreter knows no other
        _launch(a.shape, a.stride(), b.shape[2], b.stride(), out.stride(), add, precision)(a, b, out)
    elif add:
        out.baddbmm_(a, b)
    else:
        torch.bmm(a, b, out=out)


@functools.lru_cache(maxsize=1024)  # four for each layer that is kept
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
    block = {"ROWS": ROWS, "COLUMNS": _tile(columns, COLUMNS), "TERMS": _tile(terms, TERMS)}
    return Launch(
        product_kernel,
        channels * triton.cdiv(rows, block["ROWS"]) * triton.cdiv(columns, block["COLUMNS"]),
        (rows, a[0], b[0], out[0]),
        {
            "A_R": a[1], "B_K": b[1], "B_N": b[2], "C_R": out[1], "K": terms, "N": columns,
            "ADD": add, "PRECISION": precision, "ALIGNED": math.gcd(16, a[0], b[0], out[0]), **block,
        },
        warps=WARPS,
    )  # fmt: skip


def _tile(size: int, most: int) -> int:
    return max(16, min(most, 1 << (size - 1).bit_length()))
