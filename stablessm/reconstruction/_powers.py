"""Powers of complex numbers, accurate to the last digit for any exponent.

A squaring doubles the relative error of a number. Repeated squaring in double precision would lose four digits of
λ^16384, and the solution of an ill-conditioned system would magnify this error. Here the squares are stored as sums of
two doubles, so that each power is rounded only once per bit of its exponent.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SPLIT = 2.0**27 + 1

Pair = tuple[Tensor, Tensor]
"""A number as an unevaluated sum of a double and a much smaller double."""


def powers(base: Tensor, inner: int, outer: int) -> tuple[Tensor, Tensor]:
    """Return two arrays of powers of N numbers: base^b for all b < 2^inner, and base^(a 2^inner) for all a < outer.

    The shapes of the two arrays are (N, 2^inner) and (N, outer). ``base`` is (N,), complex128, with |base| ≤ 1. For
    |base| > 1, compute powers of 1/base instead: pass the result of :func:`reciprocal` to :func:`powers_of_pair`.

    >>> fine, coarse = powers(torch.tensor([0.5 + 0j]).to(torch.complex128), 2, 3)
    >>> fine.real.tolist(), coarse.real.tolist()
    ([[1.0, 0.5, 0.25, 0.125]], [[1.0, 0.0625, 0.00390625]])
    """
    return powers_of_pair((base, torch.zeros_like(base)), inner, outer)


def powers_of_pair(base: Pair, inner: int, outer: int) -> tuple[Tensor, Tensor]:
    """Return the results of :func:`powers` for a base that is given as a sum of two doubles."""
    fine, square = _doubled(base, inner)
    coarse, _ = _doubled(square, max(outer - 1, 0).bit_length())
    return fine, coarse[:, :outer]


def reciprocal(base: Tensor) -> Pair:
    """Return 1/base in twice double precision, as a pair of doubles whose sum is the result."""
    first = base.reciprocal()
    product = _multiply((base, torch.zeros_like(base)), (first, torch.zeros_like(first)))
    return first, first * ((1 - product[0]) - product[1])


def _doubled(base: Pair, bits: int) -> tuple[Tensor, Pair]:
    """Return the powers base^b for b < 2^bits, (N, 2^bits), and base^(2^bits) as a sum of two doubles."""
    result = torch.ones_like(base[0])[:, None]
    for _ in range(bits):
        result = torch.cat([result, result * base[0][:, None]], 1)
        base = _multiply(base, base)
    return result, base


def _multiply(x: Pair, y: Pair) -> Pair:
    (a, b), (a_low, b_low), (c, d), (c_low, d_low) = (torch.view_as_real(part).unbind(-1) for part in (*x, *y))
    re_high, re_low = _sum_of_products(a, c, -b, d)
    im_high, im_low = _sum_of_products(a, d, b, c)
    re_low = re_low + (a * c_low + a_low * c - b * d_low - b_low * d)
    im_low = im_low + (a * d_low + a_low * d + b * c_low + b_low * c)
    re_high, re_low = _two_sum(re_high, re_low)
    im_high, im_low = _two_sum(im_high, im_low)
    return torch.complex(re_high, im_high), torch.complex(re_low, im_low)


def _sum_of_products(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Pair:
    """Compute a b + c d in twice double precision; return two doubles whose sum is the result."""
    p, p_low = _two_product(a, b)
    q, q_low = _two_product(c, d)
    s, s_low = _two_sum(p, q)
    return s, s_low + (p_low + q_low)


def _two_sum(a: Tensor, b: Tensor) -> Pair:
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def _two_product(a: Tensor, b: Tensor) -> Pair:
    p = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(a: Tensor) -> Pair:
    scaled = _SPLIT * a
    high = scaled - (scaled - a)
    return high, a - high
