"""Networks with one hidden layer, g(x) = C tanh(A x + b) + c: fits to functions, and bounds on slopes and rounding.

In one dimension the hidden units are placed on an adaptive mesh; in more dimensions they are ridges
(functions that vary along one direction only) in random directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import final

import numpy as np

from stablessm.constructions.pointwise._function import Pointwise

_STEEPEST = 4 / 27**0.5
"""Largest |tanh''|, which is attained at tanh² = 1/3."""

_SATURATED = 20.0
"""Inputs beyond which tanh is ±1 in double precision."""

_ROUGHEST = 1e-11
"""Singular values below this fraction of the largest are dropped, which keeps weights and rounding errors small."""


_STEEPNESS = (0.5, 0.35, 0.25)
"""Slope of a unit times the length of its cell: steep units are better conditioned, flat units resolve more."""
_HALVED = 0.6
"""Cells whose error exceeds this fraction of the largest error are halved."""
_FINEST = 2.0**-40
"""Shortest cell, as a fraction of the interval."""
_NODES = (1 - np.cos(np.pi * (np.arange(8) + 0.5) / 8)) / 2
_BETWEEN = np.linspace(0, 1, 25)

_RIDGE_STEEPNESS = (0.15, 0.3)
"""Slope of a ridge times width^(-1/d), which takes the place of the length of a cell in d dimensions."""


@final
@dataclass(frozen=True, eq=False)
class Ridge:
    """A network with one hidden layer, g(x) = C tanh(A x + b) + c, with A (m, d), b (m,), C (k, m) and c (k,)."""

    A: np.ndarray
    b: np.ndarray
    C: np.ndarray
    c: np.ndarray
    condition: float
    """Condition number of the least-squares problem for C and c."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the network at points (n, d) and return its values (n, k)."""
        return np.tanh(x @ self.A.T + self.b) @ self.C.T + self.c

    def rounding(self, size: np.ndarray) -> np.ndarray:
        """Return an upper bound (k,) on the rounding error of the outputs for |x| ≤ size (d,), for any order of
        summation.
        """
        eps = float(np.finfo(float).eps)
        inputs = np.abs(self.b) + np.abs(self.A) @ size  # the slope of tanh is at most one
        return 4 * eps * (np.abs(self.C) @ (len(self.b) + inputs) + np.abs(self.c))

    def jet(self, x: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the values of the network at the centers of cells, and two numbers that bound its change in each cell.

        The cells are x ± half, where x and half are (n, d). The three results are (n, k): g(x), Σ_i |∂_i g(x)| half_i,
        and an upper bound of sup |δ·∇²g δ| over the cell and over all δ with |δ_i| ≤ half_i.
        """
        middle, width = (x.max(0) + x.min(0)) / 2, (x.max(0) - x.min(0)) / 2 + half.max(0)
        center = self.A @ middle + self.b
        live = np.abs(center) < _SATURATED + np.abs(self.A) @ width  # the other units are constant in all cells
        A, C = self.A[live], self.C[:, live]
        constant = self.c + self.C[:, ~live] @ np.sign(center[~live])
        z = x @ A.T + self.b[live]
        reach = half @ np.abs(A).T
        t = np.tanh(z)
        near = np.maximum(np.abs(z) - reach, 0)
        far = np.abs(z) + reach
        bend = np.minimum(2 * (1 - np.tanh(near) ** 2) * np.tanh(far), _STEEPEST)
        slope = 1 - t**2
        gradient = np.stack([slope @ (C * column).T for column in A.T], axis=-1)
        second = (bend * reach**2) @ np.abs(C).T
        return t @ C.T + constant, (np.abs(gradient) * half[:, None]).sum(-1), second


def fit(A: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> Ridge:
    """Fit the output weights of given hidden units to points x (n, d) and values y (n, k) by least squares."""
    from scipy.linalg import svd

    features = np.column_stack([np.tanh(x @ A.T + b), np.ones(len(x))])
    U, s, Vt = svd(features, full_matrices=False)
    kept = s > _ROUGHEST * s[0]
    weights = (Vt[kept].T / s[kept]) @ (U[:, kept].T @ y)
    return Ridge(A, b, weights[:-1].T, weights[-1], float(s[0] / s[kept][-1]))


def on_an_interval(
    f: Pointwise, tol: float, max_width: int, missed: Sequence[np.ndarray] = ()
) -> Iterator[tuple[Ridge, float]]:
    """Yield networks that fit f on an interval, with more and more hidden units; each is yielded with its error.

    The interval is divided into cells. Each network has one hidden unit for each cell, and one beyond each end of the
    interval. After each network, the cells whose error is large, compared with the largest error and with ``tol``, are
    halved. No network has more than ``max_width`` hidden units. The caller may add points to ``missed`` at which the
    last network had a large error: narrow features of f lie between the points at which a network is compared with f.
    """
    edges = np.linspace(f.low[0], f.high[0], 5)
    while len(edges) + 1 <= max_width:
        length = np.diff(edges)
        nodes = np.append((edges[:-1, None] + length[:, None] * _NODES).ravel(), edges)[:, None]
        check = (edges[:-1, None] + length[:, None] * _BETWEEN).reshape(-1, 1)
        also = np.array(missed).reshape(-1, 1)
        check = np.concatenate([check, also])
        cells = np.append(np.arange(len(length)).repeat(len(_BETWEEN)), np.searchsorted(edges[1:-1], also[:, 0]))
        values, wanted = f(nodes), f(check)
        found = []
        for steepness in _STEEPNESS:
            f.tell()
            ridge = fit(*_mesh(edges, steepness), nodes, values)
            errors = np.zeros(len(length))
            np.maximum.at(errors, cells, np.abs(wanted - ridge(check)).max(1))
            found.append((float(errors.max()), ridge, errors))
        largest, ridge, errors = min(found, key=itemgetter(0))
        yield ridge, largest
        halved = errors >= _HALVED * max(largest, tol)
        if not halved.any():  # the error is small at these points, but not between them
            halved[:] = True
        if length[halved].min() < _FINEST * (edges[-1] - edges[0]):  # a jump: no cell is short enough
            return
        edges = np.sort(np.append(edges, (edges[:-1] + length / 2)[halved]))


def _mesh(edges: np.ndarray, steepness: float) -> tuple[np.ndarray, np.ndarray]:
    """Return weights A (m, 1) and biases b (m,) of tanh units, one unit for each cell of an interval.

    The cells lie between neighboring ``edges``, and one more cell lies beyond each end of the interval. The slope of a
    unit is ``steepness`` divided by the length of the cell.
    """
    length = np.diff(edges)
    middle = edges[:-1] + length / 2
    centers = np.concatenate([middle[:1] - length[:1], middle, middle[-1:] + length[-1:]])
    slopes = steepness / np.concatenate([length[:1], length, length[-1:]])
    return slopes[:, None], -slopes * centers


def in_a_box(f: Pointwise, max_width: int) -> Iterator[tuple[Ridge, float]]:
    """Yield networks that fit f on a box, with more and more hidden units; each is yielded with its error.

    The hidden units are ridges in random directions. No network has more than ``max_width`` hidden units.
    """
    d, middle, half = len(f.low), (f.low + f.high) / 2, (f.high - f.low) / 2
    width = 8
    while width <= max_width:
        draw = np.random.default_rng(0)
        directions = draw.normal(size=(width, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        through = draw.uniform(-1.1, 1.1, size=(width, d))
        points = draw.uniform(-1, 1, size=(8 * width, d))
        some = points[: 2 * width]
        points[: 2 * width] = np.where(draw.random(some.shape) < 0.5, some.round(), some)
        check = draw.uniform(-1, 1, size=(16 * width, d))
        nodes, fresh = middle + half * points, middle + half * check
        values, wanted = f(nodes), f(fresh)
        found = []
        for steepness in _RIDGE_STEEPNESS:
            f.tell()
            slopes = steepness * width ** (1 / d) * directions
            A = slopes / half
            ridge = fit(A, -(slopes * through).sum(1) - A @ middle, nodes, values)
            error = max(float(np.abs(wanted - ridge(fresh)).max()), float(np.abs(values - ridge(nodes)).max()))
            found.append((ridge, error))
        yield min(found, key=itemgetter(1))
        width *= 2
