"""Volterra kernels on a grid of steps; of a long horizon never all T^n values. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations
from typing import TypeAlias, final

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.constructions.series._tensor import symmetric_part

Source: TypeAlias = Callable[..., np.ndarray] | np.ndarray

_ALL = 3_000_000  # a grid with so many values is taken whole
_COLUMNS = {2: 256, 3: 24}  # nodes of the other axes at which fibres are taken
_TESTED = {1: 4096, 2: 320, 3: 80}  # nodes per axis on which errors are measured


@final
@dataclass(frozen=True, eq=False)
class SampledKernel:
    """The symmetric part of h_n at steps 0..horizon on every axis (paper 002 eq. 56)."""

    order: int
    horizon: int
    dt: float
    source: Source
    """A function of n arrays of times, or the samples, (horizon + 1,) * n."""

    def at(self, *steps: np.ndarray) -> np.ndarray:
        """h_n as given, at n arrays of whole steps of one shape."""
        if isinstance(self.source, np.ndarray):
            values = self.source[steps]
        else:
            values = _evaluated(self.source, [self.dt * one for one in steps], self._name)
        if not np.isfinite(values).all():
            where = np.argwhere(~np.isfinite(values))[0]
            times = ", ".join(f"{self.dt * one[tuple(where)]:g}" for one in steps)
            raise ArgumentError(self._name, "finite values", f"{values[tuple(where)]} at ({times})")
        return values

    def on(self, nodes: np.ndarray) -> np.ndarray:
        """The symmetric part on nodes x … x nodes."""
        mesh = np.meshgrid(*[nodes] * self.order, indexing="ij")
        return symmetric_part(self.at(*(one.reshape(-1) for one in mesh)).reshape(mesh[0].shape))

    def span(self, tol: float) -> tuple[np.ndarray, float]:
        """Functions of one time (horizon + 1, R) whose products carry h_n up to tol, and an estimate of ‖h_n‖.

        They are the left singular vectors of fibres h_n(·, p, …) at a few p, times the singular values over ‖h_n‖.
        Fibres are full columns, weighted by the cells that their p stand for.
        """
        time = np.arange(self.horizon + 1)
        if self.order == 1:
            fibres = self.at(time)[:, None]
        else:
            nodes, weights = strata(self.horizon, _COLUMNS[self.order], seed=0)
            columns = []
            for chosen in combinations_with_replacement(range(len(nodes)), self.order - 1):
                copies = len(set(permutations(chosen)))
                weight = math.sqrt(copies * math.prod(weights[list(chosen)]))
                columns.append(weight * self._fibre(time, nodes[list(chosen)]))
            fibres = np.stack(columns, 1)
        vectors, values, _ = np.linalg.svd(fibres, full_matrices=False)
        norm = float(np.linalg.norm(values))
        if not norm:
            return np.zeros((len(time), 0)), 0.0
        left = np.sqrt(np.cumsum(values[::-1] ** 2))[::-1]
        kept = int((left > tol * norm).sum())
        return vectors[:, :kept] * (values[:kept] / norm), norm

    def core(self, basis: np.ndarray) -> np.ndarray:
        """The coefficients (m, …, m) of h_n in an orthonormal basis (horizon + 1, m) of functions of one time.

        A projection on the whole grid where that is small. Otherwise least squares on a grid of nodes drawn with the
        basis's leverages, weighted so that the mean square over nodes is that over the grid.
        """
        steps, m = basis.shape
        count = max(int(_ALL ** (1 / self.order)), 4 * m)
        if steps <= count:
            nodes, solve = np.arange(steps), basis.T
        else:
            share = 0.5 * (basis**2).sum(1) / m + 0.5 / steps
            places = (np.arange(count) + np.random.default_rng(0).random(count)) / count
            nodes = np.minimum(np.searchsorted(np.cumsum(share), places), steps - 1)
            nodes, copies = np.unique(nodes, return_counts=True)
            root = np.sqrt(copies / (count * share[nodes]))
            solve = np.linalg.pinv(root[:, None] * basis[nodes]) * root
        core = self.on(nodes)
        for _ in range(self.order):  # contract the first axis, put the new one last
            core = np.moveaxis(np.tensordot(solve, core, (1, 0)), 0, -1)
        return symmetric_part(core)

    def tested(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nodes, their weights and the kernel on them: other nodes than the fit saw, all of a short grid."""
        nodes, weights = strata(self.horizon, _TESTED[self.order], seed=1)
        return nodes, weights, self.on(nodes)

    def _fibre(self, time: np.ndarray, fixed: np.ndarray) -> np.ndarray:
        orders = list(permutations(range(self.order)))
        arguments = [time, *(np.full_like(time, step) for step in fixed)]
        return np.asarray(sum(self.at(*(arguments[axis] for axis in order)) for order in orders) / len(orders))

    @property
    def _name(self) -> str:
        return f"kernels[{self.order}]"


def strata(horizon: int, count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``count`` of the steps 0..horizon, one drawn from each of as many cells, and the sizes of the cells.

    The first half of the cells are single steps, the others grow geometrically: Σ weight f(node) estimates Σ f.

    >>> nodes, weights = strata(3, 10, seed=0)
    >>> nodes.tolist(), weights.tolist(), int(strata(10_000, 64, seed=0)[1].sum())
    ([0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0], 10001)
    """
    if horizon < count:
        return np.arange(horizon + 1), np.ones(horizon + 1)
    half = count // 2
    growing = np.geomspace(half, horizon + 1, count - half + 1)
    edges = np.unique(np.concatenate([np.arange(half), np.round(growing).astype(np.int64)]))
    sizes = np.diff(edges)
    nodes = edges[:-1] + np.random.default_rng(seed).integers(sizes)
    return nodes, sizes.astype(np.float64)


def _evaluated(function: Callable[..., np.ndarray], times: list[np.ndarray], name: str) -> np.ndarray:
    """A function of arrays, or one of numbers called for each."""
    shape = times[0].shape
    try:
        values = np.asarray(function(*times), dtype=np.float64)
    except (TypeError, ValueError):  # math.exp, or an if on an array
        values = np.asarray(np.vectorize(function, otypes=[np.float64])(*times))
    if values.shape not in ((), shape):
        raise ArgumentError(name, f"values of the shape of the times, {shape}", f"shape {values.shape}")
    return np.broadcast_to(values, shape)
