"""Computes or draws the initial eigenvalues of layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stablessm._errors import ArgumentError


def timescales(count: int, shortest: float, longest: float) -> Tensor:
    """Return ``count`` time scales from ``shortest`` to ``longest``, evenly spaced in their logarithm.

    >>> timescales(3, 1.0, 100.0).round(decimals=4).tolist()
    [1.0, 10.0, 100.0]
    """
    return shortest * (longest / shortest) ** torch.linspace(0, 1, count, dtype=torch.float64)


def spread_rates(count: int, dt: float, fastest: float) -> Tensor:
    """Return ``count`` rates -1/τ for time scales τ that span a factor of 1000, evenly spaced in their logarithm.

    The shortest time scale is ``dt``, or slightly above -1/fastest if this is longer, where ``fastest`` is the fastest
    rate that the map can represent.

    >>> spread_rates(4, 0.1, -torch.inf).round(decimals=4).tolist()
    [-10.0, -1.0, -0.1, -0.01]
    """
    shortest = max(dt, -1.1 / fastest)
    return -1 / timescales(count, shortest, 1000 * shortest)


def ring(count: int, r_min: float, r_max: float, max_phase: float) -> Tensor:
    """Draw complex eigenvalues, uniformly in area, from the ring r_min ≤ |λ| ≤ r_max with phases 0 ≤ arg λ ≤ max_phase.

    This is the initialization of the LRU and of LRU-UA (section 3.1, appendix E): |λ|² is uniformly distributed between
    r_min² and r_max².
    """
    if not 0 <= r_min <= r_max <= 1:
        raise ArgumentError("r_min, r_max", "0 <= r_min <= r_max <= 1", f"{r_min}, {r_max}")
    squared = r_min**2 + (r_max**2 - r_min**2) * torch.rand(count, dtype=torch.float64)
    return torch.polar(squared.sqrt(), max_phase * torch.rand(count, dtype=torch.float64))


def s4d_lin(count: int) -> Tensor:
    """Return the S4D-Lin eigenvalues λ_n = -1/2 + iπn, n = 0 … count - 1."""
    return -0.5 + 1j * math.pi * torch.arange(count, dtype=torch.float64)


def s4d_inv(count: int) -> Tensor:
    """Return the S4D-Inv eigenvalues λ_n = -1/2 + i (N/π)(N/(2n+1) - 1), n = 0 … count - 1, with N = 2 count."""
    n, size = torch.arange(count, dtype=torch.float64), 2 * count
    return -0.5 + 1j * size / math.pi * (size / (2 * n + 1) - 1)


def s4d_legs(count: int) -> Tensor:
    """Return the ``count`` S4D-LegS eigenvalues.

    The HiPPO-LegS matrix of size 2 count is the sum of a normal matrix -1/2 + S, with a skew-symmetric S, and a matrix
    of rank one. The function returns those eigenvalues of the normal matrix that have positive imaginary parts.
    """
    p = (2 * torch.arange(2 * count, dtype=torch.float64) + 1).sqrt()
    lower = torch.tril(torch.outer(p, p), -1)
    return -0.5 + 1j * torch.linalg.eigvalsh(1j * (lower - lower.T) / 2)[count:]


S4D = {"lin": s4d_lin, "inv": s4d_inv, "legs": s4d_legs}
"""The initializations of an S4D layer, by name."""
