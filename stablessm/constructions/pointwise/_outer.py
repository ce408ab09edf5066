"""The outer functions of a superposition, built from residuals, and how they become ramps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stablessm.constructions.pointwise._function import Pointwise
from stablessm.constructions.pointwise._sprecher import Sprecher


class Steps(NamedTuple):
    """A function of one variable: constant near each knot, linear over the middle half between two of them."""

    knots: np.ndarray
    values: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Values at x, of any shape."""
        left = np.clip(np.searchsorted(self.knots, x, side="right") - 1, 0, len(self.knots) - 2)
        gap = self.knots[left + 1] - self.knots[left]
        rise = np.clip(2 * (x - self.knots[left]) / gap - 0.5, 0, 1)
        return self.values[left] * (1 - rise) + self.values[left + 1] * rise

    def ramps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Slopes s, offsets b, weights w and a constant c with f(x) = c + Σ w hardtanh(s x + b), exactly."""
        rises = np.diff(self.values)
        slopes = 4 / np.diff(self.knots)
        return slopes, -slopes * (self.knots[:-1] + self.knots[1:]) / 2, rises / 2, self.values[0] + rises.sum() / 2


class Superposition(NamedTuple):
    """F(x) = Σ_q Φ_q(ξ_q(x))."""

    inner: Sprecher
    outer: list[Steps]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(points, n) to (points,)."""
        return np.sum([phi(self.inner.sums(x, q)) for q, phi in enumerate(self.outer)], axis=0)


def iterate(f: Pointwise, inner: Sprecher, iterations: int) -> Superposition:
    """Φ_q = Σ_r Φ_q^r, where the r-th takes the residual at the middles of cubes of min(r, digits) digits.

    Φ_q^r is (1/families) (f - F_(r-1)) on the image of each cube and linear in between (Braun and Griebel 2009,
    algorithm 2.1, which has a bump on each image and zero in between; interpolating needs half as many units, and where
    only the last digit changes the neighbours in the image are neighbours in the cube).
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
