"""Fit of a filter by a stable sum of few exponentials, by balanced truncation, which is fast for thousands of filters.

The error is the ℓ1 norm, which bounds the error of outputs. After the last tap of the filter, the sum may have any
values. (:func:`exponential_sum` is slower: it minimizes the number of modes for a supremum error.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from stablessm.constructions.sums._hankel import Hankel, long_hankel
from stablessm.constructions.sums._modes import Domain, solve, stable_rates

_EXTRA = 10  # additional singular vectors, for accuracy
_STEPS = Domain(1.0, discrete=True, real=False, positive=False, slowest=0.0)


@final
@dataclass(frozen=True, eq=False)
class Fit:
    """A sum ρ(k) = Re Σ_n weights_n e^{rates_n k} that was fitted to a filter.

    One entry of ``rates`` and ``weights`` stands for each conjugate pair of modes.
    """

    rates: np.ndarray
    weights: np.ndarray
    order: int
    error: float


def fit(values: np.ndarray, tol: float, max_order: int, finite: bool, dtype: str = "float64") -> Fit:
    """Fit a filter by a sum ρ of exponentials.

    Returns the fit of the lowest order with Σ |values - ρ| ≤ tol or, if there is none, the fit with the smallest error.

    Args:
        values: the filter (L,).
        tol: largest allowed ℓ1 error, absolute.
        max_order: largest number of real states, at least 1.
        finite: whether the filter is zero from step L on. If so, the sum is fitted to 2L steps, and its later values
            count as error.
        dtype: dtype of the recurrence that will compute the sum; every |λ| is below 1 in this dtype.
    """
    goal = np.concatenate([values, np.zeros_like(values)]) if finite else values
    best = Fit(np.zeros(0, complex), np.zeros(0, complex), 0, float(np.abs(goal).sum()))
    if best.error <= tol:
        return best
    # Pairs of samples and whether they are padded. Padded with zeros: stable at every order. Not padded (Kung, ESPRIT):
    # fewer states for filters that continue smoothly, such as power laws and undamped waves. Faded: for other filters.
    sources = [(values, True)] if finite else [(values, False), (_faded(values), True), (values, True)]
    most = min(max_order, len(values) // 2)
    tried, rank = 0, min(32, most)
    while True:
        found = []
        for source, padded in sources:
            space = long_hankel(source[:, None], rank + _EXTRA, padded=padded, rounds=2)
            found.append(_lowest(goal, space, tried, rank, tol, finite, dtype))
        met = [candidate for candidate in found if candidate.error <= tol]
        if met:
            return min(met, key=lambda candidate: candidate.order)
        best = min([best, *found], key=lambda candidate: candidate.error)
        if rank == most:
            return best
        tried, rank = rank, min(2 * rank, most)


def _faded(values: np.ndarray) -> np.ndarray:
    """Return a filter, extended beyond its last tap by a reflected copy that is faded out to zero.

    The copy is reflected in time and in value at the last tap. Without it the filter ends suddenly, and a sum of
    exponentials requires additional modes.
    """
    size = len(values) // 2
    fade = np.cos(np.pi / 2 * np.arange(1, size + 1) / (size + 1)) ** 2
    return np.concatenate([values, (2 * values[-1] - values[-2 : -2 - size : -1]) * fade])


def _lowest(goal: np.ndarray, space: Hankel, low: int, most: int, tol: float, finite: bool, dtype: str) -> Fit:
    """Return the fit of the lowest order above ``low`` and up to ``most`` that meets ``tol``, or the best fit found.

    ``goal`` is the filter, ``space`` the decomposition of its Hankel matrix, and ``finite`` is as for :func:`fit`. The
    order increases by steps of 20 % until a fit meets ``tol``; bisection then finds the lowest order.
    """
    tried: list[Fit] = []
    while low < most:
        high = min(low + max(1, low // 5), most)
        tried.append(_least_squares(goal, space.eigenvalues(high), finite, dtype))
        if tried[-1].error <= tol:
            break
        low = high
    best = min(tried, key=lambda candidate: candidate.error)
    while low < most and high - low > 1:
        middle = (low + high) // 2
        found = _least_squares(goal, space.eigenvalues(middle), finite, dtype)
        if found.error <= tol:
            best, high = found, middle
        else:
            low = middle
    return best


def _least_squares(goal: np.ndarray, eigenvalues: np.ndarray, finite: bool, dtype: str = "float64") -> Fit:
    """Fit a filter by a sum of exponentials with given eigenvalues, whose weights are found by least squares.

    ``goal`` is the filter, and ``finite`` is as for :func:`fit`.
    """
    rates = stable_rates(eigenvalues, dtype=dtype)
    columns = _STEPS.matrix(rates, np.arange(len(goal)))
    coefficients = solve(columns, goal[:, None])
    weights = _STEPS.weights(coefficients, rates)[:, 0]
    error = float(np.abs(columns @ coefficients - goal[:, None]).sum())
    if finite:
        modulus = np.exp(rates.real)
        error += float((np.abs(weights) * modulus ** len(goal) / (1 - modulus)).sum())
    return Fit(rates, weights, columns.shape[1], error)
