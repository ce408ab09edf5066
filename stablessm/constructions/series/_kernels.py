"""Values of Volterra kernels of order n on a grid of T^n points, or at some of the points if there are too many.

This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, permutations
from typing import TypeAlias, final

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.constructions._checks import real_array
from stablessm.constructions.series._tensor import symmetric_part

Source: TypeAlias = Callable[..., np.ndarray] | np.ndarray

_ALL = 3_000_000  # largest number of values that are all evaluated; an array is always used completely
_LEADING = 400  # largest number of singular vectors: twice the largest number of states
_UNIFORM = 100_000  # number of random points of a larger grid
_LARGEST = 1e100  # beyond this, squares would overflow or underflow
_COLUMNS = {2: 256, 3: 24}  # number of nodes of the other axes, by order, at which fibers are evaluated
_TESTED = {1: 4096, 2: 320, 3: 80}  # nodes per axis for the comparison of outputs and, on a large grid, of kernels


@final
@dataclass(frozen=True, eq=False)
class SampledKernel:
    """The symmetric part of a Volterra kernel h_n, a function of n times in steps 0 … ``horizon`` (SSM-UA eq. 56)."""

    order: int
    horizon: int
    dt: float
    source: Source
    """The kernel as a function of n arrays of times, or as samples of shape (horizon + 1,) * n."""

    @cached_property
    def whole(self) -> np.ndarray | None:
        """Return the symmetric part of the kernel at all (horizon + 1)^n points.

        Returns None if the kernel is a function and there are too many points.
        """
        large = self.order > 1 and (self.horizon + 1) ** self.order > _ALL
        if large and not isinstance(self.source, np.ndarray):
            return None
        return self._mesh(np.arange(self.horizon + 1))

    def at(self, *steps: np.ndarray) -> np.ndarray:
        """Return the symmetric part of the kernel at points that are given as n arrays of whole steps."""
        if self.whole is not None:
            return self.whole[steps]
        values = [self._given(*order) for order in permutations(steps)]
        return np.asarray(sum(values) / len(values))

    def _given(self, *steps: np.ndarray) -> np.ndarray:
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
        """Return the symmetric part of the kernel on a grid with the same nodes on every axis."""
        return self._mesh(nodes) if self.whole is None else self.whole[np.ix_(*[nodes] * self.order)]

    def _mesh(self, nodes: np.ndarray) -> np.ndarray:
        mesh = np.meshgrid(*[nodes] * self.order, indexing="ij")
        return symmetric_part(self._given(*(one.reshape(-1) for one in mesh)).reshape(mesh[0].shape))

    def span(self, tol: float) -> tuple[np.ndarray, float]:
        """Return R functions of one variable, as an array (horizon + 1, R), and the norm ‖h_n‖ of the kernel.

        The functions are chosen so that sums of products of them approximate the kernel with a relative error of about
        ``tol``.

        A fiber of the kernel is the function h_n(·, p, …) of the first time, with all other times p, … fixed. The R
        functions are left singular vectors of the matrix of the fibers, multiplied by the singular values and divided
        by ‖h_n‖. On a large grid, only fibers at a few p are used. Each is weighted by the number of grid points that
        it represents, and the norm is an estimate.
        """
        time = np.arange(self.horizon + 1)
        if self.whole is not None:
            fibers = self.whole.reshape(len(time), -1)
        else:
            nodes, weights = strata(self.horizon, _COLUMNS[self.order], seed=0)
            columns = []
            for chosen in combinations_with_replacement(range(len(nodes)), self.order - 1):
                copies = len(set(permutations(chosen)))
                weight = math.sqrt(copies * math.prod(weights[list(chosen)]))
                columns.append(weight * self.at(time, *(np.full_like(time, nodes[i]) for i in chosen)))
            fibers = np.stack(columns, 1)
        largest = float(np.abs(fibers).max())
        if not largest:
            return np.zeros((len(time), 0)), 0.0
        if not 1 / _LARGEST <= largest <= _LARGEST:
            raise ArgumentError(self._name, f"a size between {1 / _LARGEST:g} and {_LARGEST:g}", f"{largest:.3g}")
        vectors, values, lost = _leading(fibers)
        norm = float(np.linalg.norm(fibers))
        left = np.sqrt(np.cumsum(values[::-1] ** 2)[::-1] + lost**2)
        kept = int((left > tol * norm).sum())
        return vectors[:, :kept] * (values[:kept] / norm), norm

    def core(self, basis: np.ndarray) -> np.ndarray:
        """Return coefficients c (m, …, m) such that the kernel is about Σ c_ij… b_i(t_1) b_j(t_2) ….

        The columns of ``basis`` (horizon + 1, m) are the orthonormal functions b_i of one time. If the kernel is
        evaluated on the whole grid, the coefficients are a projection. Otherwise the coefficients come from a weighted
        least-squares fit on a grid of random steps: steps at which the functions b_i are large are drawn more often,
        and get smaller weights.
        """
        steps, m = basis.shape
        count = max(int(_ALL ** (1 / self.order)), 4 * m)
        if self.whole is not None or steps <= count:
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

    def tested(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes of the test grid along each axis, which are random steps, and the weights of the nodes."""
        return strata(self.horizon, _TESTED[self.order], seed=1)

    def scattered(self) -> tuple[tuple[np.ndarray, float], ...]:
        """Return two further sets of points at which a fit is tested: random points, and the diagonal of the grid.

        Each set is a pair: an array of points (P, n), and one weight for all these points.
        """
        draw = np.random.default_rng(2).integers(self.horizon + 1, size=(_UNIFORM, self.order))
        diagonal = np.repeat(np.arange(self.horizon + 1)[:, None], self.order, 1)
        return (draw, (self.horizon + 1) ** self.order / _UNIFORM), (diagonal, 1.0)

    @property
    def _name(self) -> str:
        return f"kernels[{self.order}]"


def _leading(fibers: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the leading left singular vectors of a matrix, the singular values, and the norm of the remainder.

    The columns of the matrix are the fibers of a kernel (see :meth:`SampledKernel.span`). The remainder is the part of
    the matrix that the returned vectors do not represent.

    For a large matrix the vectors come from a randomized decomposition with fixed random vectors.
    """
    if min(fibers.shape) > _LEADING:
        start = np.random.default_rng(3).standard_normal((fibers.shape[1], _LEADING))
        basis = np.linalg.qr(fibers @ start)[0]
        small = basis.T @ fibers
        inner, values, _ = np.linalg.svd(small, full_matrices=False)
        return basis @ inner, values, float(np.linalg.norm(fibers - basis @ small))
    vectors, values, _ = np.linalg.svd(fibers, full_matrices=False)
    return vectors, values, 0.0


def strata(horizon: int, count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide the steps 0..horizon into at most ``count`` cells; return one random step of each cell, and the cell
    sizes.

    The first half of the cells are single steps; the sizes of the later cells grow geometrically. With the cell sizes
    as weights, Σ weight f(node) estimates Σ f over all steps.

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
    """Evaluate a kernel function at arrays of times, entry by entry if the function accepts only numbers."""
    shape = times[0].shape
    try:
        answer = function(*times)
    except (TypeError, ValueError):  # math.exp, or an if on an array
        answer = np.vectorize(function, otypes=[np.float64])(*times)
    values = real_array(name, answer)
    if values.shape not in ((), shape):
        raise ArgumentError(name, f"values of the shape of the times, {shape}", f"shape {values.shape}")
    return np.broadcast_to(values, shape)
