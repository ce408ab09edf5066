"""Theorem A.3 of IAT with an explicit constant: how fast polynomials in e^(-βt/(α+1)) approximate a kernel."""

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
    """Return the derivatives ρ, ρ', …, ρ^(α), (α+1, times), by Cauchy's integral over a circle around each time.

    >>> derivatives(np.exp, 2, np.array([1.0])).round(12).ravel() == np.exp(1.0).round(12)
    array([ True,  True,  True])
    """
    turns = np.exp(2j * np.pi * np.arange(_CIRCLE) / _CIRCLE)
    values = rho(times[:, None] + _RADIUS * turns)
    return np.array([math.factorial(k) / _RADIUS**k * (values * turns**-k).mean(1).real for k in range(alpha + 1)])


def gamma(rows: np.ndarray, beta: float, unit: float) -> float:
    """Return sup |e^(βt) y^(k)(t)| / β^k over t ≥ 0 and k = 1 … α+1, where y is an integral of ρ and time has the unit
    ``unit``.

    ``rows`` are :func:`derivatives`; y^(k) is the derivative of order k - 1 of ρ.
    """
    powers = np.arange(1, len(rows) + 1)[:, None]
    return float((np.abs(rows) * unit**powers * np.exp(beta / unit * TIMES) / beta**powers).max())


def bound(rows: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Return an upper bound on the error ∫ |ρ - ρ̂| dt of sums ρ̂ of m exponentials, minimized over β, for each order m
    > α; inf for other orders.

    With s = e^(-βt/(α+1)) let q(s) = ρ(t)/s on [0, 1]. Jackson: polynomials p of degree m - 1 come within
    (π/4)^α sup |q^(α)| / (m (m-1) … (m-α+1)) of it. Times s they are sums of m exponentials, and
    ∫ s |q - p| dt ≤ (α+1)/β sup |q - p|.
    """
    alpha = len(rows) - 1
    scale = min((alpha + 1) / beta * _curvature(rows, beta) for beta in _BETAS)
    falling = np.array([math.perm(int(m), alpha) for m in orders])
    return np.where(orders > alpha, (math.pi / 4) ** alpha * scale / np.maximum(falling, 1), np.inf)


def _curvature(rows: np.ndarray, beta: float) -> float:
    """Return the maximum of |q^(α)|, where q(s) is the function ρ(t)/s of s = e^(-βt/(α+1)), computed from the
    derivatives ρ, ρ', …, ρ^(α).

    θ = s d/ds is -((α+1)/β) d/dt, so that q^(α) = s^(-α-1) (θ-1)(θ-2)…(θ-α) ρ, and s^(-α-1) = e^(βt).
    """
    factors = np.polynomial.Polynomial([1.0])
    for j in range(1, len(rows)):
        factors *= np.polynomial.Polynomial([-j, -len(rows) / beta])
    return float(np.abs(factors.coef @ rows * np.exp(beta * TIMES)).max())


def polynomial_error(rho: Analytic, alpha: int, beta: float, order: int) -> float:
    """Return the error ∫ |ρ - ρ̂| dt of the sum of exponentials ρ̂ in the proof of theorem A.3, which is computed by
    polynomial interpolation at Chebyshev points, with degree order - 1.
    """

    def q(s: np.ndarray) -> np.ndarray:
        return np.real(rho(-(alpha + 1) / beta * np.log(s))) / s

    p = np.polynomial.Chebyshev.interpolate(q, order - 1, domain=[0, 1])
    s = np.exp(-beta / (alpha + 1) * TIMES)
    return float(np.trapezoid(s * np.abs(q(s) - p(s)), TIMES))
