"""Orthonormal bases of input sequences, as matrices whose columns are functions of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm.reconstruction import _checks
from stablessm.reconstruction._checks import Array


@checked
def haar(length: Size, functions: int | Sequence[int] | None = None) -> Tensor:
    """Return a basis of Haar wavelets (L, P), from coarse to fine.

    The first function is constant; each other function is positive on the first half of an interval and negative on the
    second half. If the length of an interval is odd, its first half is one step longer, and the two values are weighted
    so that the basis stays orthonormal. If L is a power of two, this is the usual Haar basis.

    Args:
        length: L.
        functions: P to take the first P functions, or a list of indices of functions (default: all L).

    >>> (haar(4) * 2).square().round().int().mT.tolist()
    [[1, 1, 1, 1], [1, 1, 1, 1], [2, 2, 0, 0], [0, 0, 2, 2]]
    """
    chosen = _chosen(functions, length)
    result = torch.zeros(length, len(chosen), dtype=torch.float64)
    intervals = _intervals(length, max(chosen) + 1)
    for column, index in enumerate(chosen):
        start, middle, stop = intervals[index]
        left, right = middle - start, stop - middle
        result[start:middle, column] = math.sqrt(right / (left * (left + right))) if right else 1 / math.sqrt(left)
        if right:
            result[middle:stop, column] = -math.sqrt(left / (right * (left + right)))
    return result


def _intervals(length: int, count: int) -> list[tuple[int, int, int]]:
    """Return (start, middle, end) of each of the first ``count`` Haar functions; the constant function comes first."""
    result, queue, head = [(0, length, length)], [(0, length)], 0
    while len(result) < count:
        start, stop = queue[head]
        head += 1
        if stop - start > 1:
            middle = (start + stop + 1) // 2
            result.append((start, middle, stop))
            queue += [(start, middle), (middle, stop)]
    return result


@checked
def fourier(length: Size, functions: int | Sequence[int] | None = None) -> Tensor:
    """Return the real Fourier basis (L, P): the constant function, then the cosine and sine of 1, 2, … periods.

    The arguments are as for :func:`haar`.

    >>> basis = fourier(8, 3)
    >>> torch.allclose(basis.mT @ basis, torch.eye(3, dtype=torch.float64))
    True
    """
    index = torch.tensor(_chosen(functions, length))
    periods = (index + 1) // 2
    angle = 2 * math.pi / length * (torch.arange(length)[:, None] * periods % length).to(torch.float64)
    result = torch.where(index % 2 == 1, angle.cos(), torch.where(index == 0, 1.0, angle.sin()))
    alone = (index == 0) | (2 * periods == length)  # the constant and the alternating function have no partner
    return result * torch.where(alone, 1.0, 2.0).to(torch.float64).div(length).sqrt()


@checked
def dct(length: Size, functions: int | Sequence[int] | None = None) -> Tensor:
    """Return the basis of the discrete cosine transform (DCT-II), (L, P), from low to high frequencies.

    The arguments are as for :func:`haar`.

    >>> basis = dct(6)
    >>> torch.allclose(basis.mT @ basis, torch.eye(6, dtype=torch.float64))
    True
    """
    index = torch.tensor(_chosen(functions, length))
    angle = math.pi / (2 * length) * ((2 * torch.arange(length)[:, None] + 1) * index % (4 * length)).to(torch.float64)
    return angle.cos() * torch.where(index == 0, 1.0, 2.0).to(torch.float64).div(length).sqrt()


@checked
def pca(data: Array, functions: Size) -> Tensor:
    """Compute a basis from example inputs by principal component analysis without centering (LRU-UA section 3.2).

    The basis spans the subspace of P dimensions with the least mean square residual. The mean is not subtracted,
    because the subspace must also contain the mean.

    Args:
        data: example inputs (samples, L), or (samples, L, M) for M channels.
        functions: P, at most the number of samples and the number of values of a sample.

    Returns:
        (L, P) or (L, M, P).

    >>> signals = torch.outer(torch.randn(20), torch.arange(5.0))
    >>> pca(signals, 1).abs().mul(30**0.5).squeeze().round(decimals=4).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    samples = _checks.finite("data", data)
    if samples.dim() not in (2, 3) or samples.is_complex() or not samples.numel():
        raise ArgumentError("data", "real, (samples, L) or (samples, L, M)", f"{samples.dtype}, {tuple(samples.shape)}")
    flat = samples.to(torch.float64).flatten(1)
    if functions > min(flat.shape):
        raise ArgumentError("functions", f"at most {min(flat.shape)} (samples, or values per sample)", functions)
    return torch.linalg.svd(flat, full_matrices=False)[2][:functions].mT.unflatten(0, samples.shape[1:])


def _chosen(functions: int | Sequence[int] | None, length: int) -> list[int]:
    count = length if functions is None else functions
    if isinstance(count, Iterable) and getattr(count, "ndim", None) != 0:
        chosen = [whole_number("functions", i, least=0) for i in count]
    else:
        chosen = list(range(whole_number("functions", cast(int, count))))
    if not chosen or not 0 <= min(chosen) <= max(chosen) < length or len(set(chosen)) < len(chosen):
        raise ArgumentError("functions", f"1 to {length}, or different indices below {length}", functions)
    return chosen
