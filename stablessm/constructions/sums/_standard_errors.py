"""Standard errors of the rates and weights of a least-squares fit, also for noise that is correlated in time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stablessm.constructions.sums._modes import unit_columns
from stablessm.constructions.sums._polish import Fit, Problem

_FEW = 64  # number of samples below which noise counts as white
_LAGS = 6  # highest order of the autoregressive process
_RIDGE = 1e-12  # relative rounding error of products of columns


def standard_errors(problem: Problem, found: Fit, level: float, *, even: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard errors of the m rates, (m,), and of their weights for q entries of the kernel, (m, q).

    The real and the imaginary part of a result are the standard errors of the real and the imaginary part of a rate or
    weight. ``level`` is the standard deviation of the noise. If the times are evenly spaced (``even``), the noise is an
    autoregressive process, which is estimated from the residual; otherwise it is white.
    """
    rates, domain = found.rates, replace(problem.domain, slowest=0.0)
    decays, turns = -rates.real, domain.turns(rates)
    graded = problem.graded[:, None]
    columns = domain.matrix(rates, problem.times) * graded
    slope = domain.derivative(rates, problem.times, found.coefficients) * graded[..., None]
    slope = slope[..., : len(rates) if domain.is_complex else None]  # a complex rate is one parameter
    slopes = list(slope.transpose(1, 0, 2))
    left = problem.values * graded - columns @ found.coefficients
    colored = even and graded.all() and len(left) >= _FEW
    color = _color([np.column_stack([columns, part]) for part in slopes], left) if colored else np.ones(1)
    inverse = _inverse(columns)
    follows = [inverse @ part for part in slopes]  # derivatives of the weights by the rates
    apart = np.concatenate([part - columns @ follow for part, follow in zip(slopes, follows, strict=True)])
    own = _rotated(inverse, color)  # linear functions of the noise: the weights for fixed rates, and the rates
    moves = [_rotated(part, color) for part in np.split(_inverse(apart), len(slopes), axis=1)]
    moved = level * np.linalg.norm(np.concatenate(moves, axis=1), axis=1)
    parts = [
        np.concatenate([own * (entry == other) - follow @ move for other, move in enumerate(moves)], axis=1)
        for entry, follow in enumerate(follows)
    ]
    spread = level * np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1)
    if domain.is_complex:
        return moved * decays * (1 + 1j), spread * (1 + 1j)
    rate_errors = moved[: len(rates)] * decays + 0j
    rate_errors[turns] += 1j * moved[len(rates) :] * decays[turns]
    weights = domain.weights(spread, rates)
    return (rate_errors, weights) if turns.any() else (rate_errors.real, weights.real)


def _inverse(columns: np.ndarray) -> np.ndarray:
    """Return the pseudoinverse of a matrix, computed after scaling its columns to norm one."""
    unit, scale = unit_columns(columns)
    return np.asarray(np.linalg.pinv(unit, rcond=1e-14) / scale[:, None])


def _rotated(rows: np.ndarray, color: np.ndarray) -> np.ndarray:
    """Transform the coefficients of linear functions of the noise (rows), such that the covariance of two functions is
    the product of their transformed rows.

    ``color`` is the power spectrum of the noise at evenly spaced frequencies, or one number for white noise.
    """
    return rows if len(color) == 1 else np.fft.ifft(rows, len(color), norm="ortho") * np.sqrt(color)


def _color(tangent: list[np.ndarray], left: np.ndarray) -> np.ndarray:
    """Return the power spectrum of the noise, divided by the power spectrum of white noise; [1.0] for white noise.

    The noise is estimated from the residual ``left`` (n, q) as an autoregressive process, whose order BIC chooses. The
    columns of ``tangent`` are the derivatives of the sum by its parameters, for each of the q entries of the kernel.
    The fit absorbs the noise in the span of these derivatives, so the residual alone underestimates slow noise. The
    estimate therefore maximizes the restricted likelihood (REML), the likelihood of the noise outside this span.
    """
    from scipy.optimize import minimize

    n, lags, numbers = len(left), range(_LAGS + 1), 1 + np.iscomplexobj(left)
    count, free = numbers * left.size, numbers * (left.size - sum(basis.shape[1] for basis in tangent))
    if 2 * free < count or not left.any():
        return np.ones(1)
    grams = []
    for basis, one in zip(tangent, (left / np.linalg.norm(left)).T, strict=True):
        q = np.linalg.qr(unit_columns(basis)[0])[0]
        both = np.column_stack([q, one - q @ (q.conj().T @ one)])
        pairs = [[both[max(j - i, 0) : n - i].conj().T @ both[max(i - j, 0) : n - j] for j in lags] for i in lags]
        grams.append(np.array(pairs))

    def cost(slopes: np.ndarray) -> tuple[float, float, np.ndarray]:
        taps = np.append(1, -slopes.view(left.dtype))
        square, volume = _RIDGE, 0.0
        for gram in grams:
            mixed = np.einsum("i,j,ijpq->pq", taps.conj(), taps, gram[: len(taps), : len(taps)])
            root = np.linalg.cholesky(mixed[:-1, :-1] + _RIDGE * np.eye(len(mixed) - 1))
            square += max(0.0, mixed[-1, -1].real - np.linalg.norm(np.linalg.solve(root, mixed[:-1, -1])) ** 2)
            volume += 2 * numbers * float(np.log(np.diag(root).real).sum())
        return free * float(np.log(square)) + volume + len(slopes) * float(np.log(count)), square, taps

    slopes = np.empty(0)
    white = best = cost(slopes)
    for order in range(1, _LAGS + 1):
        slopes = minimize(lambda at: cost(at)[0], np.append(slopes, np.zeros(numbers)), options={"gtol": 1e-3}).x
        best = min(best, cost(slopes), key=lambda found: found[0])
        if order > len(best[2]):  # two orders in a row did not improve the criterion
            break
    bins = 1 << (2 * n - 1).bit_length() if len(best[2]) > 1 else 1
    return np.asarray(best[1] / white[1] / np.abs(np.fft.fft(best[2], bins)) ** 2)
