"""Fit of Volterra kernels by products of exponential sums, all with the same exponentials. This module does not import
torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from stablessm._errors import NumericalError
from stablessm.constructions.series._kernels import SampledKernel, strata
from stablessm.constructions.series._tensor import powers
from stablessm.constructions.sums._modes import Domain, stable_rates, unit_columns
from stablessm.constructions.sums.result import ExponentialSum

_MOST_STATES = 200
_ROWS, _COLUMNS, _SHIFTS = 512, 4096, 128
_RING = 1e-4  # |λ|^(T + 1) on the ring: the response past the horizon, and the inverse of the condition number
_ROUNDING = 1e-14
_NEAR_ZERO = 0.1  # several |λ| below this represent a response that ends
_SHARES = {"span": 0.2, "states": 0.5, "terms": 0.6}
"""Fraction of the tolerance for each step of the fit; the squares add up to less than one."""


@final
@dataclass(frozen=True, eq=False)
class Factors:
    """The factors φ_r of a Volterra model Σ_r c_r (φ_r * x)^{n_r}, with their powers n_r and weights c_r."""

    sum: ExponentialSum
    """The factors φ_r, as one exponential sum of shape (R, 1)."""
    orders: np.ndarray
    """Powers n_r (R,)."""
    weights: np.ndarray
    """Weights c_r (R,)."""
    condition: float
    """Condition number of the exponentials."""

    @classmethod
    def none(cls, horizon: int, dt: float) -> Factors:
        """Return the factors for a Volterra model whose kernels are all zero."""
        nothing = ExponentialSum(np.array([-1.0 / dt]), np.zeros((1, 1, 1)), dt=dt, horizon=horizon)
        return cls(nothing, np.ones(1, dtype=np.int64), np.zeros(1), 1.0)


@final
@dataclass(frozen=True, eq=False)
class Modes:
    """The exponential modes of a fit on the steps 0..horizon, with an orthonormal basis of the space they span."""

    domain: Domain
    rates: np.ndarray
    basis: np.ndarray
    """Orthonormal basis (horizon + 1, m) of the span."""
    triangle: np.ndarray
    """Triangular matrix (m, m) such that the modes, scaled to norm one, are basis @ triangle."""
    scale: np.ndarray
    """Norms of the modes (m,)."""

    @classmethod
    def of(cls, rates: np.ndarray, horizon: int, dt: float) -> Modes:
        """Create modes from rates; a conjugate pair r, r̄ gives two real modes, Re e^{rt} and -Im e^{rt}."""
        domain = Domain(dt, discrete=True, real=False, positive=False, slowest=0.0)
        unit, scale = unit_columns(domain.matrix(rates, dt * np.arange(horizon + 1)))
        basis, triangle = np.linalg.qr(unit)
        lost = np.abs(np.diag(triangle)) < _ROUNDING  # equal rates: the system stays solvable, with a large error
        triangle[lost, lost] = _ROUNDING
        return cls(domain, rates, basis, triangle, scale)

    @property
    def condition(self) -> float:
        """Return the condition number of the matrix of the exponential modes, each scaled to norm one."""
        return float(np.linalg.cond(self.triangle))

    def weights(self, coefficients: np.ndarray) -> np.ndarray:
        """Convert coefficients (m, R) of the basis to the weights w (len(rates), R) of the sum Re Σ w e^{rate t}."""
        from scipy.linalg import solve_triangular

        real = solve_triangular(self.triangle, coefficients) / self.scale[:, None]
        return self.domain.weights(np.asarray(real), self.rates)

    def factors(self, terms: Sequence[tuple[int, np.ndarray, np.ndarray]], horizon: int, dt: float) -> Factors:
        """Return the factors of a Volterra model from its terms.

        ``terms`` contains three values for each order: the order; the factors, given by the coefficients (R, m) of R
        functions in the orthonormal basis; and the weights (R,) of the powers of these functions.
        """
        orders, directions, weights = zip(*terms, strict=True)
        values = self.weights(np.concatenate(directions).T)[:, :, None]
        shared = ExponentialSum(self.rates * (self.domain.dt / dt), values, dt=dt, horizon=horizon)
        each = np.repeat(orders, [len(found) for found in directions])
        return Factors(shared, each, np.concatenate(weights), self.condition)


def fit(kernels: Sequence[SampledKernel], tol: float) -> Factors:
    """Fit all kernels by sums of products of exponential sums; all these exponential sums have the same exponentials.

    The relative error of each kernel in the Frobenius norm is about ``tol``.
    """
    spans = [kernel.span(_SHARES["span"] * tol) for kernel in kernels]
    present = [(kernel, norm) for kernel, (_, norm) in zip(kernels, spans, strict=True) if norm]
    samples = np.concatenate([functions for functions, _ in spans], 1)
    horizon, dt = kernels[0].horizon, kernels[0].dt
    if not present:
        return Factors.none(horizon, dt)
    modes = shared_modes(samples, _SHARES["states"] * tol / math.sqrt(max(k.order for k, _ in present)), dt)
    terms = []
    for kernel, norm in present:
        directions, signs = powers(kernel.core(modes.basis), _SHARES["terms"] * tol, norm)
        terms.append((kernel.order, directions, signs * dt**kernel.order))
    return modes.factors(terms, horizon, dt)


def shared_modes(samples: np.ndarray, tol: float, dt: float) -> Modes:
    """Find few exponentials whose linear combinations approximate all columns of samples (T + 1, R) up to ``tol``.

    T is the horizon in steps. The search ignores late steps at which all columns are negligible, so that a longer
    horizon does not change the result. If few exponentials do not suffice and the horizon is short, T + 1 exponentials
    are returned whose eigenvalues are on a circle: their linear combinations represent any samples.
    """
    steps = len(samples)
    energy = np.sqrt(np.cumsum((samples**2).sum(1)[::-1]))[::-1]
    alive = int((energy > 0.1 * tol).sum())
    values = np.linalg.svd(samples, compute_uv=False)
    least = max(1, int((np.sqrt(np.cumsum(values[::-1] ** 2)) > tol).sum()))  # no smaller number can suffice
    best = math.inf
    for eigenvalues in realizations(samples[: 2 * alive + 2], least) if least <= _MOST_STATES else ():
        found = [Modes.of(stable_rates(each, dt), steps - 1, dt) for each in (eigenvalues, _spread(eigenvalues, tol))]
        left = [float(np.linalg.norm(samples - modes.basis @ (modes.basis.T @ samples))) for modes in found]
        met = [modes for modes, error in zip(found, left, strict=True) if error <= tol]
        if met:
            return min(met, key=lambda modes: modes.condition)
        best = min(best, *left)
    if steps <= _MOST_STATES:
        ring = _RING ** (1 / steps) * np.exp(2j * np.pi * np.arange(steps // 2 + 1) / steps)
        return Modes.of(stable_rates(ring, dt), steps - 1, dt)
    raise NumericalError(
        f"{_MOST_STATES} exponentials or fewer do not span the kernels to {tol:.2g} (found: {best:.2g})",
        "use a larger tol; a kernel with a jump or a kink at every lag has no short sum of products",
    )


def _spread(eigenvalues: np.ndarray, tol: float) -> np.ndarray:
    """Replace eigenvalues that are close to zero by points on a small circle around zero; return the new array.

    Eigenvalues close to zero consist of rounding errors, and would make the modes extremely ill conditioned. The radius
    of the circle decreases with ``tol``.
    """
    near = np.abs(eigenvalues) < _NEAR_ZERO
    count = int(near.sum())
    ring = (0.1 * min(tol, 1.0)) ** (1 / max(count, 1)) * np.exp(2j * np.pi * np.arange(count // 2 + 1) / max(count, 1))
    return eigenvalues if count < 2 else np.concatenate([eigenvalues[~near], ring])


def realizations(samples: np.ndarray, least: int) -> Iterator[np.ndarray]:
    """Yield eigenvalues of recurrences whose responses approximate samples (T + 1, R), for orders from ``least`` up.

    This is the Ho-Kalman algorithm (ERA) on the Hankel matrix H[i, (j, r)] = samples[i + j, r]. Only some rows and
    columns of the matrix are used: all rows with small i and all columns with small j, and fewer and fewer of the later
    rows and columns. Each of these rows (columns) is weighted by the number of rows (columns) that it represents.
    """
    half = len(samples) // 2
    rows, row_weights = strata(half - 1, _ROWS, seed=2)
    shifts = min(_SHIFTS, max(24, _COLUMNS // samples.shape[1]))
    columns, column_weights = strata(len(samples) - half - 1, shifts, seed=3)
    weights = np.sqrt(np.multiply.outer(row_weights, column_weights))[:, :, None]
    now, later = ((weights * samples[rows[:, None] + columns + shift]).reshape(len(rows), -1) for shift in (0, 1))
    left, values, right = np.linalg.svd(now, full_matrices=False)
    moved = left.T @ later @ right.T
    most = min(_MOST_STATES, int((values > _ROUNDING * values[0]).sum()))
    order = least
    while order <= most:
        root = np.sqrt(values[:order])
        yield np.linalg.eigvals(moved[:order, :order] / root / root[:, None])
        order += max(1, order // 16)
