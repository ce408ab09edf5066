"""Where the hidden units of a network stand: on an adaptive mesh in one dimension, as fixed ridges in more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stablessm.constructions.pointwise._function import Pointwise
from stablessm.constructions.pointwise._ridge import Ridge, fit

_STEEPNESS = (0.5, 0.35, 0.25)
"""Slope of a unit times the length of its cell: steep units are well conditioned, flat ones resolve more."""
_HALVED = 0.6
"""Cells are halved whose error is this share of the largest."""
_FINEST = 2.0**-40
"""Of the interval: no cell is shorter."""
_NODES = (1 - np.cos(np.pi * (np.arange(8) + 0.5) / 8)) / 2
_BETWEEN = np.linspace(0, 1, 25)

_RIDGE_STEEPNESS = (0.15, 0.3)
"""The same for ridges, whose cell has length width^(-1/d)."""


class Fit(NamedTuple):
    """A network and its largest error on the points that were looked at."""

    ridge: Ridge
    error: float


def on_an_interval(f: Pointwise, tol: float, max_width: int) -> Iterator[Fit]:
    """Networks on finer and finer meshes, with a unit beyond either end; halved are cells with a large error."""
    edges = np.linspace(f.low[0], f.high[0], 5)
    while len(edges) + 1 <= max_width:
        length = np.diff(edges)
        nodes = np.append((edges[:-1, None] + length[:, None] * _NODES).ravel(), edges)[:, None]
        check = (edges[:-1, None] + length[:, None] * _BETWEEN).reshape(-1, 1)
        values, wanted = f(nodes), f(check)
        found = []
        for steepness in _STEEPNESS:
            ridge = fit(*_mesh(edges, steepness), nodes, values)
            errors = np.abs(wanted - ridge(check)).max(1).reshape(len(length), -1).max(1)
            found.append((float(errors.max()), ridge, errors))
        largest, ridge, errors = min(found, key=lambda each: each[0])
        yield Fit(ridge, largest)
        halved = errors >= _HALVED * max(largest, tol)
        if not halved.any():  # it was good enough here, but not between these points
            halved[:] = True
        if length[halved].min() < _FINEST * (edges[-1] - edges[0]):  # a jump: no cell is short enough
            return
        edges = np.sort(np.append(edges, (edges[:-1] + length / 2)[halved]))


def _mesh(edges: np.ndarray, steepness: float) -> tuple[np.ndarray, np.ndarray]:
    """One unit in each cell, and a cell beyond either end."""
    length = np.diff(edges)
    middle = edges[:-1] + length / 2
    centres = np.concatenate([middle[:1] - length[:1], middle, middle[-1:] + length[-1:]])
    slopes = steepness / np.concatenate([length[:1], length, length[-1:]])
    return slopes[:, None], -slopes * centres


def in_a_box(f: Pointwise, max_width: int) -> Iterator[Fit]:
    """Networks of twice as many ridges each: fixed random directions through random points, no training."""
    d, middle, half = len(f.low), (f.low + f.high) / 2, (f.high - f.low) / 2
    width = 8
    while width <= max_width:
        draw = np.random.default_rng(0)
        directions = draw.normal(size=(width, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        through = draw.uniform(-1.1, 1.1, size=(width, d))
        points = draw.uniform(-1, 1, size=(8 * width, d))
        points[: 2 * width] = np.where(
            draw.random((2 * width, d)) < 0.5, points[: 2 * width].round(), points[: 2 * width]
        )
        check = draw.uniform(-1, 1, size=(16 * width, d))
        nodes, fresh = middle + half * points, middle + half * check
        values, wanted = f(nodes), f(fresh)
        found = []
        for steepness in _RIDGE_STEEPNESS:
            slopes = steepness * width ** (1 / d) * directions
            A = slopes / half
            ridge = fit(A, -(slopes * through).sum(1) - A @ middle, nodes, values)
            error = max(float(np.abs(wanted - ridge(fresh)).max()), float(np.abs(values - ridge(nodes)).max()))
            found.append(Fit(ridge, error))
        yield min(found, key=lambda each: each.error)
        width *= 2
