"""Decomposition of symmetric tensors into sums of powers Σ_r c_r a_r ⊗ … ⊗ a_r. This module does not import torch."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement, permutations
from operator import itemgetter

import numpy as np

from stablessm._errors import NumericalError

_EVALUATIONS = 150
_RESTARTED = 12  # up to this rank a random start is tried too
_DAMPING = 1e-6
"""Relative size of a penalty that limits the size of terms that cancel."""


def symmetric_part(tensor: np.ndarray) -> np.ndarray:
    """Return the mean of a tensor over all orders of its axes; only this part of a Volterra kernel affects the output.

    >>> symmetric_part(np.array([[1.0, 4.0], [0.0, 3.0]])).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    orders = list(permutations(range(tensor.ndim)))
    return np.asarray(sum(tensor.transpose(order) for order in orders) / len(orders))


def powers(core: np.ndarray, tol: float, scale: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Decompose a symmetric tensor into powers of vectors: return vectors a (R, m) and weights c (R,).

    The vectors and weights satisfy ‖core - Σ_r c_r a_r ⊗ … ⊗ a_r‖ ≤ tol · scale.

    Args:
        core: a symmetric tensor with one to three axes of length m.
        tol: relative error in the Frobenius norm.
        scale: norm to which ``tol`` is relative (default: the norm of ``core``).

    Order 1 is the vector itself. Order 2 is an eigendecomposition, which has the fewest possible terms. Order 3 is
    a symmetric canonical decomposition by SciPy's least squares, with increasing ranks until the tolerance is met; the
    search ends at a rank at which a generic tensor has an exact decomposition.

    >>> a, c = powers(np.array([[0.0, 0.5], [0.5, 0.0]]), 1e-9)         # uv = ((u + v)² - (u - v)²) / 4
    >>> c.round(3).tolist(), bool(np.allclose(np.einsum("r,ri,rj->ij", c, a, a), [[0.0, 0.5], [0.5, 0.0]]))
    ([-1.0, 1.0], True)
    """
    allowed = tol * (float(np.linalg.norm(core)) if scale is None else scale)
    if float(np.linalg.norm(core)) <= allowed:
        return np.zeros((0, len(core))), np.zeros(0)
    if core.ndim == 1:
        return core[None, :], np.ones(1)
    return _squares(core, allowed) if core.ndim == 2 else _cubes(core, allowed)


def _squares(core: np.ndarray, allowed: float) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eigh(core)
    largest = np.argsort(-np.abs(values), kind="stable")
    left = np.sqrt(np.cumsum(values[largest[::-1]] ** 2))[::-1]  # left[r]: norm of all but the first r values
    keep = np.sort(largest[: int((left > allowed).sum())])
    return (vectors[:, keep] * np.sqrt(np.abs(values[keep]))).T, np.sign(values[keep])


def _cubes(core: np.ndarray, allowed: float) -> tuple[np.ndarray, np.ndarray]:
    """Decompose a symmetric tensor of order 3 into Σ_r a_r ⊗ a_r ⊗ a_r; return the vectors a_r (R, m) and R ones.

    The ones are the weights of the terms, as in :func:`powers`. No other weights are needed, because a ⊗ a ⊗ a changes
    its sign with a. Before the decomposition the tensor is scaled to norm one and expressed in its principal axes,
    without axes on which it vanishes.
    """
    size = float(np.linalg.norm(core))
    core, allowed = core / size, allowed / size
    axes, sizes, _ = np.linalg.svd(core.reshape(len(core), -1), full_matrices=False)
    left = np.sqrt(np.cumsum(sizes[::-1] ** 2))[::-1]
    kept = max(1, int((left > allowed / 10).sum()))
    axes = axes[:, :kept]
    small = np.einsum("ijk,ia,jb,kc->abc", core, axes, axes, axes, optimize=True)
    lost = math.sqrt(max(0.0, 1 - float(np.linalg.norm(small)) ** 2))
    goal = math.sqrt(max(0.0, allowed**2 - lost**2))
    generic = math.ceil((kept + 1) * (kept + 2) / 6)
    random = np.random.default_rng(0)
    rank, found, error = kept, np.zeros((kept, 0)), math.inf
    while rank <= 2 * generic + 2:
        fresh = random.standard_normal((kept, rank)) * kept ** (-5 / 6)
        starts = [np.hstack([found, 0.3 * fresh[:, found.shape[1] :]]), fresh]
        if found.shape[1] > _RESTARTED:  # the last solution is a much better start
            starts.pop()
        found, error = min((_canonical(small, start) for start in starts), key=itemgetter(1))
        if error <= goal:
            return (axes @ found).T * size ** (1 / 3), np.ones(rank)
        rank += max(1, rank // 6)
    raise NumericalError(
        f"{found.shape[1]} cubes have an error of {error:.2g}, above the allowed {allowed:.2g}", "use a larger tol"
    )


def _canonical(core: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, float]:
    """Minimize ‖core - Σ a_r ⊗ a_r ⊗ a_r‖ from given initial values; return the columns a_r (m, R) and the minimum."""
    from scipy.optimize import least_squares

    m, rank = start.shape
    entries = np.array(list(combinations_with_replacement(range(m), 3)))
    copies = np.array([{1: 1, 2: 3, 3: 6}[len(set(entry))] for entry in entries.tolist()])
    i, j, k = entries.T
    root = np.sqrt(copies)
    wanted = core[i, j, k] * root
    each = np.arange(len(entries))

    def residual(flat: np.ndarray) -> np.ndarray:
        a = flat.reshape(m, rank)
        return np.concatenate([(a[i] * a[j] * a[k]).sum(1) * root - wanted, _DAMPING * flat])

    def jacobian(flat: np.ndarray) -> np.ndarray:
        a = flat.reshape(m, rank)
        slopes = np.zeros((len(entries), m, rank))
        for here, one, other in ((i, j, k), (j, i, k), (k, i, j)):
            slopes[each, here] += a[one] * a[other]
        slopes *= root[:, None, None]
        return np.vstack([slopes.reshape(len(entries), -1), _DAMPING * np.eye(m * rank)])

    found = least_squares(residual, start.reshape(-1), jacobian, method="lm", max_nfev=_EVALUATIONS).x
    return found.reshape(m, rank), float(np.linalg.norm(residual(found)[: len(entries)]))
