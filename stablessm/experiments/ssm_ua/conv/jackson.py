"""Bounds how fast sums of m exponentials approximate a kernel: theorem A.3 of IAT with an explicit constant. The sums
are polynomials in s = e^(-βt/(α+1)); the kernel and its first α derivatives decay at least as fast as e^(-βt).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Analytic: TypeAlias = Callable[[Any], Any]
"""A kernel ρ as a function of complex times."""


def _airy(t: Any) -> Any:
    from scipy.special import airy

    return airy(t - 4)[0]


KERNELS: dict[str, Analytic] = {
    "tempered power": lambda t: (1 + t) ** -1.1 * np.exp(-t),
    "1/cosh": lambda t: 1 / np.cosh(t),
    "airy": _airy,
}
"""Kernels that decay at least as fast as e^(-t) with all derivatives, and are not finite sums of exponentials."""

END = 40.0
"""A time after which all kernels are below 1e-17."""
TIMES = np.linspace(0, END, 2001)
"""Times at which suprema and integrals are computed."""
_RADIUS, _CIRCLE = 0.5, 32
_BETAS = np.geomspace(0.05, 0.95, 40)  # below 1: e^(βt) ρ must go to 0


def derivatives(rho: Analytic, alpha: int, times: np.ndarray = TIMES) -> np.ndarray:
    """Return the kernel ρ and its first α derivatives at the given times, (α+1, times). The derivatives are computed by
    Cauchy's integral formula, on a circle around each time.

    >>> derivatives(np.exp, 2, np.array([1.0])).round(12).ravel() == np.exp(1.0).round(12)
    array([ True,  True,  True])
    """
    turns = np.exp(2j * np.pi * np.arange(_CIRCLE) / _CIRCLE)
    values = rho(times[:, None] + _RADIUS * turns)
    return np.array([math.factorial(k) / _RADIUS**k * (values * turns**-k).mean(1).real for k in range(alpha + 1)])


def gamma(rows: np.ndarray, beta: float, unit: float) -> float:
    """Return γ, the constant of theorem A.3 of IAT: the supremum of |e^(βt) y^(k)(t)| / β^k over t ≥ 0 and k = 1 … α+1,
    if time is measured in units of ``unit``. Here y is an integral of the kernel ρ.

    ``rows`` are the :func:`derivatives` of ρ: the derivative y^(k) of order k is the derivative of ρ of order k - 1.
    """
    powers = np.arange(1, len(rows) + 1)[:, None]
    return float((np.abs(rows) * unit**powers * np.exp(beta / unit * TIMES) / beta**powers).max())


def bound(rows: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Return for each order m an upper bound on the error ∫ |ρ - ρ̂| dt of a suitable sum ρ̂ of m exponentials. The
    bound is minimized over β, and is inf for m ≤ α. ``rows`` are the :func:`derivatives` of the kernel ρ up to order α.

    With s = e^(-βt/(α+1)), let q(s) = ρ(t)/s for s in [0, 1]. By Jackson's inequality a polynomial p of degree m - 1
    exists with::

        sup |q - p| ≤ (π/4)^α sup |q^(α)| / (m (m-1) … (m-α+1))

    Then ρ̂ = s p(s) is a sum of m exponentials, and its error is ∫ s |q - p| dt ≤ (α+1)/β sup |q - p|.
    """
    alpha = len(rows) - 1
    scale = min((alpha + 1) / beta * _curvature(rows, beta) for beta in _BETAS)
    falling = np.array([math.perm(int(m), alpha) for m in orders])
    return np.where(orders > alpha, (math.pi / 4) ** alpha * scale / np.maximum(falling, 1), np.inf)


def _curvature(rows: np.ndarray, beta: float) -> float:
    """Return sup |q^(α)|, the supremum of the derivative of order α of q(s) = ρ(t)/s, where s = e^(-βt/(α+1)). ``rows``
    are the :func:`derivatives` ρ, ρ', …, ρ^(α).

    With θ = s d/ds = -((α+1)/β) d/dt, the derivative is q^(α) = s^(-α-1) (θ-1)(θ-2)…(θ-α) ρ, where s^(-α-1) = e^(βt).
    """
    factors = np.polynomial.Polynomial([1.0])
    for j in range(1, len(rows)):
        factors *= np.polynomial.Polynomial([-j, -len(rows) / beta])
    return float(np.abs(factors.coef @ rows * np.exp(beta * TIMES)).max())


def polynomial_error(rho: Analytic, alpha: int, beta: float, order: int) -> float:
    """Return the error ∫ |ρ - ρ̂| dt of the sum ρ̂ of ``order`` exponentials that the proof of theorem A.3 of IAT
    constructs for the kernel ρ.

    With s = e^(-βt/(α+1)) the sum is ρ̂ = s p(s), where p is a polynomial of degree ``order`` - 1. Here p interpolates
    ρ(t)/s at the Chebyshev points of [0, 1]. The theorem assumes that ρ and its first α derivatives decay at least as
    fast as e^(-βt).
    """

    def q(s: np.ndarray) -> np.ndarray:
        return np.real(rho(-(alpha + 1) / beta * np.log(s))) / s

    p = np.polynomial.Chebyshev.interpolate(q, order - 1, domain=[0, 1])
    s = np.exp(-beta / (alpha + 1) * TIMES)
    return float(np.trapezoid(s * np.abs(q(s) - p(s)), TIMES))
