"""A proven upper bound of |f - g| over a box: cells are halved until the bound holds in every cell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stablessm.constructions.pointwise._ridge import Ridge

BUDGET = 3_000_000
"""Largest number of cells that are examined."""

_CHUNK = 2_000_000
"""Approximate number of values that are in memory at once."""


def sup_bound(
    f: Callable[[np.ndarray], np.ndarray], g: Ridge, low: np.ndarray, high: np.ndarray, lipschitz: float, target: float
) -> tuple[float, float, np.ndarray]:
    """Return a lower and an upper bound of sup |f - g| over the box [low, high] and over all components, and the point
    (d,) with the largest error of the last cells.

    Let L be the Lipschitz constant of f. In a cell with half sides s and half diagonal ρ around its center x::

        |f - g| ≤ |f(x) - g(x)| + L ρ + Σ_i |∂_i g(x)| s_i + ½ sup |δ·∇²g δ|,    |δ_i| ≤ s_i

    A cell whose bound is above ``target`` is halved along every axis. The search ends when there is no such cell, when
    the error at a center is above ``target`` (so that no bound below ``target`` exists), or after ``BUDGET`` cells.
    """
    d = len(low)
    per_axis = max(2, round(512 ** (1 / d)))
    half = (high - low) / (2 * per_axis)
    axes = [start + h * (2 * np.arange(per_axis) + 1) for start, h in zip(low, half, strict=True)]
    cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, d)
    corners = np.stack(np.meshgrid(*[(-0.5, 0.5)] * d, indexing="ij"), axis=-1).reshape(-1, d)
    lower = upper = 0.0
    seen = len(cells)
    while True:
        errors, bounds = _look(f, g, cells, half, lipschitz)
        lower = max(lower, float(errors.max()))
        unproven = bounds > target
        upper = max(upper, float(bounds[~unproven].max(initial=0.0)))
        seen += 2**d * int(unproven.sum())
        if not unproven.any() or lower > target or seen > BUDGET:
            return lower, max(upper, float(bounds.max())), cells[errors.argmax()]
        cells = (cells[unproven][:, None] + corners * half).reshape(-1, d)
        half = half / 2


def _look(
    f: Callable[[np.ndarray], np.ndarray], g: Ridge, cells: np.ndarray, half: np.ndarray, lipschitz: float
) -> tuple[np.ndarray, np.ndarray]:
    rho = float(np.linalg.norm(half))
    rounding = g.rounding(np.abs(cells).max(0) + half)
    errors, bounds = [], []
    for part in np.array_split(cells, 1 + len(cells) * len(g.b) // _CHUNK):
        value, change, second = g.jet(part, half[None])
        error = np.abs(f(part) - value)
        errors.append(error.max(1))
        bounds.append((error + lipschitz * rho + change + second / 2 + rounding).max(1))
    return np.concatenate(errors), np.concatenate(bounds)
