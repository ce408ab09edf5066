"""Placements of the eigenvalues of a recurrence for decoding its past inputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stablessm._checked import Seed, Size, checked
from stablessm._errors import ArgumentError


@checked
def uniform_ring(count: Size, r_min: float, r_max: float = 1.0, *, seed: Seed = 0) -> Tensor:
    """Draw N = ``count`` eigenvalues, complex128, uniformly in area from the ring r_min ≤ |λ| ≤ r_max (LRU-UA lemma 6).

    The first n eigenvalues are the same as those of ``uniform_ring(n, …)`` with the same seed.

    >>> bool((uniform_ring(100, 0.9, 0.95).abs() - 0.925).abs().max() <= 0.025)
    True
    """
    if not 0 <= r_min <= r_max < math.inf:
        raise ArgumentError("r_min, r_max", "0 <= r_min <= r_max", f"{r_min}, {r_max}")
    draws = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    squared = r_min**2 + (r_max**2 - r_min**2) * draws[:, 0]
    return torch.polar(squared.sqrt(), 2 * math.pi * draws[:, 1])


@checked
def roots_of_unity(count: Size) -> Tensor:
    """Return the N = ``count`` roots of unity λ_n = e^(2πi n/N), n = 0 … N-1, as eigenvalues (N,), complex128.

    The condition number for decoding N inputs is 1 (LRU-UA section 3.1).

    >>> roots_of_unity(4).real.round(decimals=12).tolist()
    [1.0, 0.0, -1.0, -0.0]
    """
    angle = 2 * math.pi * (torch.arange(count, dtype=torch.float64) / count)
    return torch.polar(torch.ones_like(angle), angle)
