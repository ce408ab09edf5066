"""Solution of linear minimax programs by an interior-point method.

A step of the minimax fit of an exponential sum is a linear program. It has thousands of constraints, about a hundred
unknowns, and many solutions that are nearly optimal. An interior-point method returns a solution in the middle of these
solutions, and a simplex method would return an extreme one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

_ITERATIONS = 60
_GAP = 1e-6  # largest distance of the result from the minimum, relative to the objective
_STAY = 0.99  # length of a step, relative to the way to the nearest bound
_RIDGE = 1e-13  # added to the diagonal, relative to it: directions that no row determines stay finite
_FIRST_SLACK = 1e-2  # smallest slack at the start, also for a bound that the start meets exactly


@final
@dataclass(frozen=True, eq=False)
class _Rows:
    """The constraint matrix G of a linear program G z ≥ h with unknowns z = (x, t), stored as blocks.

    The constraints are ``along @ x + t ≥ left`` (so that t is an upper bound of all entries of ``left - along @ x``),
    ``t ≥ 0``, and the finite bounds of x.
    """

    along: np.ndarray
    lower: np.ndarray
    """Indices of the unknowns with a lower bound."""
    upper: np.ndarray
    """Indices of the unknowns with an upper bound."""

    def product(self, z: np.ndarray) -> np.ndarray:
        """Return the product G z of the constraint matrix and the unknowns."""
        return np.concatenate([self.along @ z[:-1] + z[-1], z[-1:], z[self.lower], -z[self.upper]])

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return the product Gᵀ y of the transposed constraint matrix and the multipliers."""
        main, last, low, high = self._parts(y)
        z = np.append(main @ self.along, main.sum() + last.sum())
        z[self.lower] += low
        z[self.upper] -= high
        return z

    def gram(self, d: np.ndarray) -> np.ndarray:
        """Return the matrix Gᵀ diag(d) G of the normal equations of a step."""
        main, last, low, high = self._parts(d)
        weighted = self.along * main[:, None]
        matrix = np.empty((self.along.shape[1] + 1, self.along.shape[1] + 1))
        matrix[:-1, :-1] = self.along.T @ weighted
        matrix[-1, :-1] = matrix[:-1, -1] = weighted.sum(axis=0)
        matrix[-1, -1] = main.sum() + last.sum()
        matrix[self.lower, self.lower] += low
        matrix[self.upper, self.upper] += high
        return matrix

    def _parts(self, y: np.ndarray) -> list[np.ndarray]:
        return np.split(y, np.cumsum([len(self.along), 1, len(self.lower)]))


def minimax_program(along: np.ndarray, left: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    """Return the x in [low, high] that minimizes the largest entry of left - along @ x.

    Returns None if the minimum is at least 1. The method is Mehrotra's predictor-corrector method (Nocedal and Wright,
    Numerical Optimization, chapter 14).

    >>> minimax_program(np.array([[1.0], [-1.0]]), np.array([0.9, -0.5]), np.array([-1.0]), np.array([1.0])).round(4)
    array([0.7])
    """
    rows = _Rows(along, np.flatnonzero(np.isfinite(low)), np.flatnonzero(np.isfinite(high)))
    h = np.concatenate([left, [0.0], low[rows.lower], -high[rows.upper]])
    z = np.append(np.zeros(along.shape[1]), max(float(left.max()), 0.0) + 1.0)
    s = np.maximum(rows.product(z) - h, _FIRST_SLACK)
    y = np.full(len(h), 1.0 / len(h))
    for _ in range(_ITERATIONS):
        step = _step(rows, h, z, s, y)
        if step is None:
            break
        dz, ds, dy = step
        a, b = _length(s, ds, _STAY), _length(y, dy, _STAY)
        z, s, y = z + a * dz, s + a * ds, y + b * dy
    x = np.clip(z[:-1], low, high)
    return x if np.isfinite(x).all() and float((left - along @ x).max()) < 1 else None


def _step(
    rows: _Rows, h: np.ndarray, z: np.ndarray, s: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return a predictor-corrector step for the unknowns z, the slacks s = G z - h and the multipliers y; None at the
    minimum.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    primal, dual, mean = rows.product(z) - s - h, rows.adjoint(y), float(y @ s) / len(h)
    dual[-1] -= 1.0
    if len(h) * mean < _GAP * max(z[-1], _GAP) and np.abs(dual).max() < _GAP:
        return None
    matrix = rows.gram(y / s)
    scale = np.sqrt(matrix.diagonal())
    matrix = matrix / (scale[:, None] * scale) + _RIDGE * np.eye(len(z))
    try:
        factor = cho_factor(matrix)
    except (LinAlgError, ValueError):  # rounding: the previous step was the last that gains
        return None

    def newton_step(change: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the Newton step for the unknowns z, slacks s and multipliers y that changes the products y s by
        ``change``.
        """
        right = dual + rows.adjoint((change - y * primal) / s)
        dz = cho_solve(factor, right / scale) / scale
        ds = rows.product(dz) + primal
        return dz, ds, (change - y * ds) / s

    _, ds, dy = newton_step(-y * s)
    reached = float((y + _length(y, dy) * dy) @ (s + _length(s, ds) * ds)) / len(h)
    return newton_step((reached / mean) ** 3 * mean - y * s - ds * dy)


def _length(values: np.ndarray, step: np.ndarray, part: float = 1.0) -> float:
    """Return the largest step length, at most 1, that reduces each positive value by at most the fraction ``part``."""
    return min(1.0, part / max(float((-step / values).max(initial=0.0)), np.finfo(np.float64).tiny))
