"""Kolmogorov superpositions Σ_q Φ_q(ξ_q(x)): Sprecher's inner functions ξ_q, and fits of the outer functions Φ_q."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from stablessm._errors import NumericalError
from stablessm.constructions.pointwise._function import Pointwise

_TERMS = 6
"""Number of terms of the series for λ_p; the seventh term is below double precision for every base and dimension."""
_SEPARATION = 1e-12
"""Smallest distance of the images of two cells at which they stay distinct after rounding."""


@final
@dataclass(frozen=True)
class Sprecher:
    """The inner functions ξ_q(x) = Σ_p λ_p ψ(s x_p + q a), q = 0 … families - 1, of a superposition (SSM-UA eq. 16).

    The construction follows Braun and Griebel 2009, section 2.

    ψ is defined for numbers 0.i_1 … i_k with k ``digits`` i_1 … i_k in base γ, by a recursion over k. Let n be the
    dimension and β(r) = (n^r - 1)/(n - 1)::

        ψ(0.i_1)       = i_1 / γ
        ψ(0.i_1 … i_k) = ψ(0.i_1 … i_(k-1)) + i_k γ^(-β(k))                              i_k < γ - 1
                       = ½ (ψ(0.i_1 … i_(k-1) [γ-2]) + ψ(0.i_1 … i_(k-1) + γ^(1-k)))      i_k = γ - 1

    The last case is Köppen's correction. It makes ψ continuous and monotone; without it, Sprecher's function is
    neither. The function of k digits used here is constant on the first (γ-2)/(γ-1) of each cell of length γ^(-k) and
    linear on the rest of the cell, which is called the gap. With increasing k, this function converges uniformly to ψ.

    The constants are λ_p = Σ_r γ^(-(p-1)β(r)), a = 1/(γ(γ-1)) and s = 1 - families · a, so that the shifted variable
    s x_p + q a stays below the last gap before 1. With at most γ - 1 families, every x_p is in the gap of at most one
    family.

    >>> Sprecher(dimension=2, base=10, digits=2, families=5).psi[[8, 9, 10]].round(4).tolist()
    [0.008, 0.054, 0.1]
    """

    dimension: int
    base: int
    digits: int
    families: int

    @property
    def shift(self) -> float:
        """Return the shift a between the arguments s x_p + q a of ψ for consecutive families q."""
        return 1 / (self.base * (self.base - 1))

    @property
    def scale(self) -> float:
        """Return the factor s of the variables x_p in the arguments s x_p + q a of Sprecher's function ψ."""
        return 1 - self.families * self.shift

    @property
    def flat(self) -> float:
        """Return the fraction of each cell of length γ^(-k) on which Sprecher's function ψ is constant."""
        return (self.base - 2) / (self.base - 1)

    @cached_property
    def weights(self) -> np.ndarray:
        """Return the weights λ_1 … λ_n of the inner sums Σ_p λ_p ψ(s x_p + q a)."""
        r = np.arange(1, _TERMS + 1)
        return np.array([1.0, *(np.sum(float(self.base) ** (-p * self._beta(r))) for p in range(1, self.dimension))])

    @cached_property
    def psi(self) -> np.ndarray:
        """Return the values of Sprecher's function ψ at the grid points i γ^(-k), i = 0 … γ^k."""
        values = np.arange(self.base + 1) / self.base
        for digit in range(2, self.digits + 1):
            step = float(self.base) ** -float(self._beta(np.array(digit)))
            inside = values[:-1, None] + step * np.arange(self.base)
            inside[:, -1] = (inside[:, -2] + values[1:]) / 2
            values = np.append(inside.ravel(), values[-1])
        return values

    def inner(self, x: np.ndarray, family: int) -> np.ndarray:
        """Return the values ψ(s x + q a) of Sprecher's inner function for x in [0, 1] and the family q."""
        y = (self.scale * x + family * self.shift) * self.base**self.digits
        cell = np.clip(np.floor(y).astype(int), 0, len(self.psi) - 2)
        rise = np.clip((y - cell - self.flat) / (1 - self.flat), 0, 1)
        return self.psi[cell] * (1 - rise) + self.psi[cell + 1] * rise

    def sums(self, x: np.ndarray, family: int) -> np.ndarray:
        """Return the inner sums ξ_q(x), (points,), of the family q at points x (points, n)."""
        return self.inner(x, family) @ self.weights

    def cells(self, family: int, digits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the cubes in [0, 1]^n on which the inner sum ξ_q of one family is nearly constant, sorted by ξ_q.

        The flat part of a cube is the part outside of all gaps. The results are three arrays: the smallest value of ξ_q
        on the flat part of each cube, (cubes,); the largest value, (cubes,); and the center of the flat part, (cubes,
        n). ``digits`` determines the size of the cubes: there are about base^digits along each axis.
        """
        finer, per_axis = self.base ** (self.digits - digits), self.base**digits
        start = family * self.shift * per_axis
        # one more cell if x = 1 lies in a gap, since the gap ends there
        first, last = int(start + 1e-9), int(start + self.scale * per_axis + 1 - self.flat - 1e-9)
        index = np.arange(first, last + 1)
        middle = np.clip(((index + self.flat / 2) / per_axis - family * self.shift) / self.scale, 0, 1)
        left = self.psi[index * finer]
        right = self.psi[index * finer + int(finer * self.flat + 1e-9)]
        low, high = (self._spread(values) @ self.weights for values in (left, right))
        order = np.argsort(low)
        low, high = low[order], high[order]
        if np.any(low[1:] - high[:-1] < _SEPARATION):
            raise NumericalError(
                f"images of cubes are {np.min(low[1:] - high[:-1]):.1e} apart, too near for double precision",
                "fewer digits",
            )
        return low, high, self._spread(middle)[order]

    def _spread(self, values: np.ndarray) -> np.ndarray:
        """Return all points (len(values)^n, n) whose coordinates are taken from ``values``."""
        return np.stack(np.meshgrid(*[values] * self.dimension, indexing="ij"), axis=-1).reshape(-1, self.dimension)

    def _beta(self, r: np.ndarray) -> np.ndarray:
        return (float(self.dimension) ** r - 1) / (self.dimension - 1)


class Steps(NamedTuple):
    """A function of one variable that is constant near each knot and linear in the middle half of each interval between
    two neighboring knots.
    """

    knots: np.ndarray
    values: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Evaluate this piecewise linear function at x of any shape."""
        left = np.clip(np.searchsorted(self.knots, x, side="right") - 1, 0, len(self.knots) - 2)
        gap = self.knots[left + 1] - self.knots[left]
        rise = np.clip(2 * (x - self.knots[left]) / gap - 0.5, 0, 1)
        return self.values[left] * (1 - rise) + self.values[left + 1] * rise

    def ramps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Return slopes s, offsets b, weights w and a constant c that represent this function with hardtanh units.

        The function equals c + Σ_i w_i hardtanh(s_i x + b_i) exactly.
        """
        rises = np.diff(self.values)
        slopes = 4 / np.diff(self.knots)
        return slopes, -slopes * (self.knots[:-1] + self.knots[1:]) / 2, rises / 2, self.values[0] + rises.sum() / 2


class Superposition(NamedTuple):
    """A superposition F(x) = Σ_q Φ_q(ξ_q(x)) of inner sums ξ_q and outer functions Φ_q."""

    inner: Sprecher
    outer: list[Steps]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the superposition at points (points, n); return values (points,)."""
        return np.sum([phi(self.inner.sums(x, q)) for q, phi in enumerate(self.outer)], axis=0)


def iterate(f: Pointwise, inner: Sprecher, iterations: int) -> Superposition:
    """Return a superposition whose outer functions Φ_q are fitted to f iteratively.

    Let F_r be the superposition after r iterations. The image of a cube is the interval of the values of the inner sum
    ξ_q on the cube (see :meth:`Sprecher.cells`). Iteration r adds a function Φ_q^r to each Φ_q. On the image of a cube
    of min(r, digits) digits, Φ_q^r is constant: it equals (1/families) (f - F_(r-1)) at the center of the cube. Between
    the images, Φ_q^r is linear. (In Algorithm 2.1 of Braun and Griebel 2009, the function is zero between the images.
    Linear interpolation requires half as many units, and neighboring images mostly belong to neighboring cubes.)
    """
    finest = [inner.cells(q, inner.digits)[0] for q in range(inner.families)]
    outer = [Steps(knots, np.zeros(len(knots))) for knots in finest]
    for iteration in range(1, iterations + 1):
        sofar = Superposition(inner, outer)
        outer = []
        for q, (knots, values) in enumerate(sofar.outer):
            low, high, middle = inner.cells(q, min(iteration, inner.digits))
            residual = (f(middle)[:, 0] - sofar(middle)) / inner.families
            ends = np.stack([low, high], axis=-1).ravel()
            outer.append(Steps(knots, values + np.interp(knots, ends, np.repeat(residual, 2))))
    return Superposition(inner, outer)
