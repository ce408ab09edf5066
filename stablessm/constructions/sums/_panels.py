"""Representation of a function of time by polynomials on adaptive subintervals (panels)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

_NODES = 16
_PER_GAP = 4  # dense points between two nodes
_MIDDLE = 0.2, 0.8  # range of the random check in each gap between nodes, relative to the gap as an angle
_SHORTEST = 2.0**-44  # shortest panel relative to the time, near the spacing of floats; reached at a jump
_FIRST = 1e-60  # shortest panel near 0, relative to the last time
SHORTEST_STEPS = 512
"""Length of the shortest panel in discrete time, in steps; the points of a shorter panel would coincide."""

_reference = -np.cos(np.pi * np.arange(_NODES) / (_NODES - 1))  # Chebyshev points, both ends included


@final
@dataclass(frozen=True, eq=False)
class Panels:
    """A function on subintervals [left, right] (panels), each with Chebyshev nodes for polynomial interpolation.

    A random point between every two nodes checks the interpolation. Every gap has such a check, because the error can
    be large in a single gap, next to a singularity.
    """

    left: np.ndarray
    right: np.ndarray
    times: np.ndarray
    """Times (panels, points) of each panel: first the nodes, then the checks."""
    values: np.ndarray
    """Values of the function at these times (panels, points, q), with q entries each."""

    def __len__(self) -> int:
        return len(self.left)

    def take(self, which: np.ndarray) -> Panels:
        """Return a copy that contains only the panels (subintervals) with the given indices."""
        return Panels(self.left[which], self.right[which], self.times[which], self.values[which])

    def with_values(self, values: np.ndarray) -> Panels:
        """Return a copy with the same panels (subintervals) but the values of another function."""
        return Panels(self.left, self.right, self.times, values)

    def misfit(self) -> np.ndarray:
        """Return the interpolation error at each check point, as an array (panels, checks).

        If the function has several entries, the error is the largest error of an entry.
        """
        nodes = 2 * (self.times[:, :_NODES] - self.left[:, None]) / (self.right - self.left)[:, None] - 1
        checks = 2 * (self.times[:, _NODES:] - self.left[:, None]) / (self.right - self.left)[:, None] - 1
        interpolated = _barycentric(nodes, checks) @ self.values[:, :_NODES]
        size: np.ndarray = np.abs(interpolated - self.values[:, _NODES:]).max(axis=2)
        return size

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """Return many closely spaced times in each panel, ends included, and the interpolated values at these times.

        The shapes are (panels, times) and (panels, times, q), where q is the number of entries of the function.
        """
        points = -np.cos(np.linspace(0, np.pi, _PER_GAP * (_NODES - 1) + 1))
        times = self.left[:, None] + (self.right - self.left)[:, None] * (points + 1) / 2
        values = np.einsum("dn,pnq->pdq", _barycentric(_reference[None], points[None])[0], self.values[:, :_NODES])
        return times, values

    def interpolated(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Interpolate the function at n times (n,) within the panels; return values and slopes of its q entries, (n, q)
        each.
        """
        width = self.right - self.left
        nodes = self.values[:, :_NODES]
        slopes = np.einsum("dn,pnq->pdq", _slope_matrix(), nodes) * (2 / width)[:, None, None]
        inside = np.clip(np.searchsorted(self.right, times), 0, len(self) - 1)
        values, slope = (np.empty((len(times), nodes.shape[2]), dtype=nodes.dtype) for _ in range(2))
        for panel in np.unique(inside):
            here = np.flatnonzero(inside == panel)
            at = 2 * (times[here] - self.left[panel]) / width[panel] - 1
            matrix = _barycentric(_reference[None], at[None])[0]
            values[here], slope[here] = matrix @ nodes[panel], matrix @ slopes[panel]
        return values, slope

    def jump(self) -> tuple[float, float]:
        """Return the size and the time of the largest jump of the function; (0, 0) if it does not jump.

        A jump is a change within a panel of the smallest possible width.
        """
        short = np.flatnonzero(
            self.right - self.left <= 2 * np.maximum(_SHORTEST * self.right, _FIRST * self.right.max())
        )
        if not len(short):
            return 0.0, 0.0
        change = np.abs(self.values[short] - self.values[short, :1]).max(axis=(1, 2))
        return float(change.max()), float(self.left[short[change.argmax()]])

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all sample times of all panels in increasing order, each once, and the values at these times."""
        times, where = np.unique(self.times.reshape(-1), return_index=True)
        return times, self.values.reshape(-1, self.values.shape[2])[where]


Function = Callable[[np.ndarray], np.ndarray]
"""Function from times (n,) to values (n, q)."""


def build(function: Function, left: np.ndarray, right: np.ndarray, step: float | None = None) -> Panels:
    """Sample a function on subintervals (panels) from ``left`` to ``right``; return the panels.

    If a step is given, all times are multiples of this step.
    """
    within = np.random.default_rng(len(left)).uniform(*_MIDDLE, (len(left), _NODES - 1))
    checks = -np.cos(np.pi * (np.arange(_NODES - 1) + within) / (_NODES - 1))
    offsets = np.concatenate([np.broadcast_to(_reference, (len(left), _NODES)), checks], axis=1)
    times = left[:, None] + (right - left)[:, None] * (offsets + 1) / 2
    if step is not None:
        times = step * np.rint(times / step)
    times[:, 0], times[:, _NODES - 1] = left, right
    values = function(times.reshape(-1))
    return Panels(left, right, times, values.reshape(*times.shape, -1))


def refined(
    panels: Panels, function: Function, coarse: Callable[[Panels], np.ndarray], *, most: int, step: float | None = None
) -> tuple[Panels, bool]:
    """Halve the subintervals (panels) that ``coarse`` marks, until none is marked or more than ``most`` points would
    exist.

    Very short panels are not halved. If a ``step`` is given, panels are divided at its multiples. Returns the panels,
    and False if the limit ``most`` was reached, otherwise True.
    """
    done, active, end = [], panels, float(panels.right.max())
    count = active.times.size
    while len(active):
        width = active.right - active.left
        shortest = np.maximum(_SHORTEST * active.right, _FIRST * end) if step is None else 2 * SHORTEST_STEPS * step
        halve = coarse(active) & (width > shortest)
        done.append(active.take(~halve))
        left, right = active.left[halve], active.right[halve]
        if not len(left):
            return _joined(done), True
        if count + 2 * len(left) * panels.times.shape[1] > most:
            return _joined([*done, active.take(halve)]), False
        middle = (left + right) / 2 if step is None else step * np.rint((left + right) / (2 * step))
        active = build(function, np.concatenate([left, middle]), np.concatenate([middle, right]), step)
        count += active.times.size
    return _joined(done), True


def _joined(parts: list[Panels]) -> Panels:
    left, right, times, values = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("left", "right", "times", "values")
    )
    sort = np.argsort(left)
    return Panels(left[sort], right[sort], times[sort], values[sort])


def _barycentric(nodes: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return, for each of p panels, the matrix (m, n) of the interpolation from values at n nodes to values at m
    points.

    ``nodes`` (p, n) and ``at`` (p, m) are the nodes and the points; the result has the shape (p, m, n).
    """
    apart = nodes[:, :, None] - nodes[:, None, :]
    n = nodes.shape[1]
    apart[:, np.arange(n), np.arange(n)] = 1.0
    weights = 1 / (2 * apart).prod(axis=2)
    distance = at[:, :, None] - nodes[:, None, :]
    met = distance == 0
    terms = weights[:, None, :] / np.where(met, 1.0, distance)
    matrix = terms / terms.sum(axis=2, keepdims=True)
    return np.where(met.any(axis=2, keepdims=True), met.astype(float), matrix)


def _slope_matrix() -> np.ndarray:
    """Return the matrix that maps values at nodes in [-1, 1] to slopes of the interpolating polynomial (Trefethen)."""
    sign = (-1.0) ** np.arange(_NODES)
    sign[[0, -1]] *= 2
    matrix = np.outer(sign, 1 / sign) / (_reference[:, None] - _reference + np.eye(_NODES))
    return matrix - np.diag(matrix.sum(axis=1))
