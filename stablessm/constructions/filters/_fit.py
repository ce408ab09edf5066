"""One filter as a stable sum of few exponentials: balanced truncation, fast enough for the thousands in a model.

:func:`exponential_sum` seeks the fewest modes for a sup error, and takes its time. Here the error is the ℓ1 norm, which
bounds what a filter can do to an output, and a filter may end before it has decayed: what it does later is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

SLOWEST = 1 - 2.0**-22
"""The largest |λ|: rounding to float32 must not reach 1."""
FASTEST = 1e-8
"""The smallest |λ|, to have a logarithm."""
_LOOK_BACK = 1024
_PREDICTORS = 128


@final
@dataclass(frozen=True, eq=False)
class Fit:
    """ρ(k) = Re Σ_n weights_n e^{rates_n k}, one entry for a conjugate pair, and Σ |filter - ρ|."""

    rates: np.ndarray
    weights: np.ndarray
    order: int
    error: float


def fit(values: np.ndarray, tol: float, max_order: int, finite: bool) -> Fit:
    """The sum of lowest order found with Σ |values - ρ| ≤ tol, or the closest up to ``max_order``.

    Args:
        values: (L,) the filter. If ``finite`` it is zero from L on, which the sum is then held to up to 2L.
        tol: absolute.
        max_order: real states, at least 1.
        finite: see ``values``.
    """
    goal = np.concatenate([values, np.zeros_like(values)]) if finite else values
    best = Fit(np.zeros(0, complex), np.zeros(0, complex), 0, float(np.abs(goal).sum()))
    if best.error <= tol:
        return best
    methods: list[_Balanced | _ShiftInvariant] = [_Balanced(values if finite else _faded(values))]
    if not finite:
        methods.append(_ShiftInvariant(values))
    most = min(max_order, len(values) // 2)
    tried, rank = 0, min(32, most)
    while True:
        found = [_lowest(goal, method.matrices(rank), tried, rank, tol, finite) for method in methods]
        met = [candidate for candidate in found if candidate.error <= tol]
        if met:
            return min(met, key=lambda candidate: candidate.order)
        best = min([best, *found], key=lambda candidate: candidate.error)
        if rank == most:
            return best
        tried, rank = rank, min(2 * rank, most)


def _faded(values: np.ndarray) -> np.ndarray:
    """The filter, continued by linear prediction and faded out: a cut at its end would cost modes of its own."""
    extra = len(values) // 4
    recent = values[-_LOOK_BACK:]
    size = min(_PREDICTORS, len(recent) // 3)
    if not extra or not size:
        return values
    past = np.lib.stride_tricks.sliding_window_view(recent, size)
    gram = past[:-1].T @ past[:-1]
    ridge = 1e-9 * np.trace(gram) / size * np.eye(size)  # keeps the prediction from amplifying rounding
    if not gram.any():
        return values
    predictor = np.linalg.solve(gram + ridge, past[:-1].T @ recent[size:])
    largest = np.abs(recent).max()
    result = np.concatenate([values, np.zeros(extra)])
    for k in range(len(values), len(result)):
        result[k] = np.clip(result[k - size : k] @ predictor, -largest, largest)
    result[len(values) :] *= np.cos(np.pi / 2 * np.arange(1, extra + 1) / (extra + 1)) ** 2
    return result


@final
@dataclass(frozen=True, eq=False)
class _Balanced:
    """A = U' S U, with U the leading singular vectors of the Hankel matrix of values followed by zeros.

    S shifts up by one and fills with zero, so A is a contraction: stable at every order.
    """

    values: np.ndarray

    def matrices(self, rank: int) -> Callable[[int], np.ndarray]:
        """Order to A, up to ``rank``."""
        vectors = _hankel_vectors(self.values, len(self.values), rank)
        shift = vectors[:-1].T @ vectors[1:]
        return lambda order: shift[:order, :order]


@final
@dataclass(frozen=True, eq=False)
class _ShiftInvariant:
    """A of U[1:] = U[:-1] A in least squares, with U those of the Hankel matrix of the values alone (Kung, ESPRIT).

    Shorter for filters that go on as they are, such as power laws, but stable only if they do not grow.
    """

    values: np.ndarray

    def matrices(self, rank: int) -> Callable[[int], np.ndarray]:
        """Order to A, up to ``rank``."""
        vectors = _hankel_vectors(self.values, (len(self.values) + 1) // 2, rank)
        shift, last = vectors[:-1].T @ vectors[1:], vectors[-1]

        def matrix(order: int) -> np.ndarray:
            block, row = shift[:order, :order], last[:order]
            rest = max(1 - row @ row, np.finfo(float).eps)  # U[:-1]' U[:-1] = 1 - row row', inverted in closed form
            return block + np.outer(row, row @ block) / rest

        return matrix


def _hankel_vectors(values: np.ndarray, size: int, rank: int) -> np.ndarray:
    """(size, rank): singular vectors of H[i, j] = values[i + j], i, j < size, the largest first.

    H is symmetric and never formed; its range is found from fixed random vectors.
    """
    basis = np.random.default_rng(0).standard_normal((size, min(rank + 10, size)))
    for _ in range(3):
        basis = np.linalg.qr(_times(values, basis))[0]
    sizes, inner = np.linalg.eigh(basis.T @ _times(values, basis))
    return basis @ inner[:, np.argsort(-np.abs(sizes))[:rank]]


def _times(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """H columns: a correlation."""
    size = 1 << (len(values) + len(columns) - 1).bit_length()
    product = np.fft.rfft(values, size)[:, None] * np.fft.rfft(columns, size, axis=0).conj()
    return np.fft.irfft(product, size, axis=0)[: len(columns)]


def _lowest(
    goal: np.ndarray, matrix: Callable[[int], np.ndarray], low: int, most: int, tol: float, finite: bool
) -> Fit:
    """The smallest order that meets ``tol``: upwards in steps of a fifth, then between the last two."""
    tried: list[Fit] = []
    while low < most:
        high = min(low + max(1, low // 5), most)
        tried.append(_least_squares(goal, matrix(high), finite))
        if tried[-1].error <= tol:
            break
        low = high
    best = min(tried, key=lambda candidate: candidate.error)
    while low < most and high - low > 1:
        middle = (low + high) // 2
        found = _least_squares(goal, matrix(middle), finite)
        if found.error <= tol:
            best, high = found, middle
        else:
            low = middle
    return best


def _least_squares(goal: np.ndarray, shift: np.ndarray, finite: bool) -> Fit:
    """Weights for the eigenvalues of ``shift``; for a finite filter the error bounds what comes after the goal too."""
    eigenvalues = np.linalg.eigvals(shift).astype(complex)
    eigenvalues = eigenvalues[eigenvalues.imag >= 0]
    modulus = np.clip(np.abs(eigenvalues), FASTEST, SLOWEST)
    rates = np.log(modulus) + 1j * np.angle(eigenvalues)
    pair = eigenvalues.imag > 0
    modes = np.exp(np.arange(len(goal))[:, None] * rates)
    columns = np.concatenate([modes.real, -modes.imag[:, pair]], axis=1)
    scale = np.linalg.norm(columns, axis=0)
    coefficients = np.linalg.lstsq(columns / scale, goal, rcond=1e-14)[0] / scale
    weights = coefficients[: len(rates)].astype(complex)
    weights[pair] += 1j * coefficients[len(rates) :]
    error = float(np.abs(columns @ coefficients - goal).sum())
    if finite:
        error += float((np.abs(weights) * modulus ** len(goal) / (1 - modulus)).sum())
    return Fit(rates, weights, columns.shape[1], error)
