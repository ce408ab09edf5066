"""Estimation of Volterra kernels from data: first the exponentials, then their coefficients by linear regression."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import final

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.constructions.series._fit import Factors, Modes
from stablessm.constructions.series._tensor import powers, symmetric_part
from stablessm.constructions.sums._modes import stable_rates

_FOLDS = 4
_RIDGES = 10.0 ** np.arange(-12, 1)
"""Ridge parameters that are tried, relative to the mean square of a regressor."""
_SIZES = (1, 2, 3, 4, 6, 8)
_GAIN = 0.99  # more states are accepted if they reduce the validation error below this multiple
_EACH = 3  # smallest number of data points per coefficient
_EXACT = 1e-8  # relative error below which the search ends
_REFINED = 20_000  # largest number of steps for the refinement of rates
_TERMS = 1e-6  # relative error that the decomposition of the estimated kernels may add


@final
@dataclass(frozen=True, eq=False)
class Records:
    """Recorded inputs and outputs (B, T) of a system.

    The first ``memory`` steps are not fitted, because their outputs depend on inputs before the record.
    """

    x: np.ndarray
    y: np.ndarray
    memory: int
    order: int
    fitted: int
    """End of the fitted steps: steps memory..fitted are fitted, steps fitted..T are held out."""

    def regressors(self, modes: Modes) -> np.ndarray:
        """Return the regressors as a matrix with one row per fitted step.

        The columns are the constant 1 and all products of up to ``order`` responses of basis functions.
        """
        z = responses(self.x, modes)[:, self.memory : self.fitted].reshape(-1, modes.basis.shape[1])
        columns = [np.ones(len(z))]
        for degree in range(1, self.order + 1):
            columns += [z[:, list(chosen)].prod(1) for chosen in _monomials(z.shape[1], degree)]
        return np.stack(columns, 1)

    def outputs(self) -> np.ndarray:
        """Return the recorded outputs (steps,) that the regression fits."""
        return self.y[:, self.memory : self.fitted].reshape(-1)


def identify(records: Records, states: int | None, dt: float) -> tuple[Factors, float]:
    """Estimate the factors of all kernels and the constant h_0 from recorded inputs and outputs.

    The records are scaled before the estimation, so that their units do not matter.
    """
    seen = records.y[:, : records.fitted]
    offset, size = _scale(seen)
    if not size:
        return Factors.none(records.memory, dt), offset
    unit = float(np.abs(records.x).max())
    scaled = replace(records, x=records.x / unit, y=(records.y - offset) / size)
    factors, constant = _identified(scaled, states, dt)
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        powers_of_unit = unit ** factors.orders.astype(float)
        weights = factors.weights * size / powers_of_unit
    if not (np.isfinite(weights).all() and np.isfinite(powers_of_unit).all()):
        expected = f"values whose power {records.order} neither overflows nor underflows, relative to y"
        raise ArgumentError("x", expected, f"{unit:.3g}")
    return replace(factors, weights=weights), offset + size * constant


def _scale(y: np.ndarray) -> tuple[float, float]:
    """Return the mean and the standard deviation of y, computed without overflow; the deviation of a constant is 0."""
    if y.min() == y.max():
        return float(y.flat[0]), 0.0
    largest = float(np.abs(y).max())
    return largest * float((y / largest).mean()), largest * float((y / largest).std())


def _identified(records: Records, states: int | None, dt: float) -> tuple[Factors, float]:
    modes, ridge = _chosen(records, states)
    coefficients = _solved(*_grams(records.regressors(modes), records.outputs()), ridge)
    terms, place, m = [], 1, modes.basis.shape[1]
    for degree in range(1, records.order + 1):
        core, chosen = np.zeros((m,) * degree), _monomials(m, degree)
        core[tuple(np.transpose(chosen))] = coefficients[place : place + len(chosen)]
        terms.append((degree, *powers(symmetric_part(core), _TERMS)))
        place += len(chosen)
    return modes.factors(terms, records.memory, dt), float(coefficients[0])


def _chosen(records: Records, states: int | None) -> tuple[Modes, float]:
    """Return the exponential modes and the ridge parameter with the smallest error in a cross-validation.

    Modes with more states are chosen only if they reduce the error by at least 1 %.
    """
    exact = _EXACT**2 * float(records.outputs().var())
    least, found, idle = math.inf, None, 0
    for starts in _starts(records, states):
        paid = False
        for rates in starts:
            modes = _refined(records, rates)
            error, ridge = _validated(records.regressors(modes), records.outputs())
            if error < _GAIN * least:
                least, found, paid = error, (modes, ridge), True
        idle = 0 if paid else idle + 1
        if least <= exact or idle == 2:
            break
    if found is None:
        raise ArgumentError("x", "more steps than regressors (or a smaller order or fewer states)", records.x.shape)
    return found


def responses(x: np.ndarray, modes: Modes) -> np.ndarray:
    """Convolve inputs x (B, T) with each of m orthonormal basis functions, by recurrences; return (B, T, m)."""
    from scipy.linalg import solve_triangular
    from scipy.signal import lfilter

    columns = []
    for value, pair in zip(np.exp(modes.rates), modes.domain.turns(modes.rates), strict=True):
        z = lfilter([1.0], [1.0, -(value if pair else value.real)], x)
        columns += [z.real, -z.imag] if pair else [z.real]
    scaled = np.stack(columns, -1) / modes.scale
    basis = solve_triangular(modes.triangle, scaled.reshape(-1, len(modes.scale)).T, trans="T").T
    return np.asarray(basis).reshape(scaled.shape)


def _starts(records: Records, states: int | None) -> Iterator[list[np.ndarray]]:
    """Yield lists of initial rates with more and more states, up to the number that the amount of data supports.

    Time scales lie between one step and a third of the memory, with and without oscillation.
    """
    steps = len(records.outputs())
    for size in _SIZES if states is None else (states,):
        if _EACH * math.comb(size + records.order, records.order) > steps:
            continue
        pairs = size // 2
        decays, damping = (1 / np.geomspace(1, records.memory / 3, count + 2)[1:-1] for count in (size, pairs))
        several = (
            np.geomspace(4, records.memory, 3)[:, None] if pairs == 1 else [np.geomspace(4, records.memory, pairs)]
        )
        waves = [np.append(-damping + 2j * math.pi / periods, -np.ones(size % 2)) for periods in several if pairs]
        yield [-decays + 0j, *waves]


def _refined(records: Records, rates: np.ndarray) -> Modes:
    """Improve the rates by Gauss-Newton steps that minimize the residual of the regression (variable projection)."""
    from scipy.optimize import least_squares

    oscillating = rates.imag != 0
    few = max(1, _REFINED // (records.fitted - records.memory))
    end = min(records.fitted, records.memory + _REFINED)
    some = Records(records.x[:few, :end], records.y[:few, :end], records.memory, records.order, end)
    y = some.outputs()

    def modes(flat: np.ndarray) -> Modes:
        trial = -np.exp(flat[: len(rates)]) + 0j
        trial[oscillating] += 1j * flat[len(rates) :]
        return Modes.of(stable_rates(np.exp(trial), 1.0), records.memory, 1.0)

    def residual(flat: np.ndarray) -> np.ndarray:
        regressors = some.regressors(modes(flat))
        return y - regressors @ _solved(*_grams(regressors, y), 1e-10)

    start = np.concatenate([np.log(-rates.real), rates.imag[oscillating]])
    low = np.concatenate([np.full(len(rates), math.log(0.1 / records.memory)), np.full(oscillating.sum(), 1e-3)])
    high = np.concatenate([np.full(len(rates), math.log(5.0)), np.full(oscillating.sum(), math.pi - 1e-3)])
    found = least_squares(residual, np.clip(start, low, high), bounds=(low, high), max_nfev=30)
    return modes(found.x)


def _validated(regressors: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the smallest mean square error of a cross-validation, and the ridge parameter that gives this error."""
    folds = np.array_split(np.arange(len(y)), _FOLDS)
    parts = [_grams(regressors[fold], y[fold]) for fold in folds]
    total = [sum(part[i] for part in parts) for i in range(2)]
    errors = np.zeros(len(_RIDGES))
    for fold, part in zip(folds, parts, strict=True):
        for i, ridge in enumerate(_RIDGES):
            coefficients = _solved(total[0] - part[0], total[1] - part[1], float(ridge))
            errors[i] += ((y[fold] - regressors[fold] @ coefficients) ** 2).sum()
    return float(errors.min() / len(y)), float(_RIDGES[errors.argmin()])


def _grams(regressors: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return regressors.T @ regressors, regressors.T @ y


def _solved(gram: np.ndarray, moments: np.ndarray, ridge: float) -> np.ndarray:
    """Solve a ridge regression from its Gram matrix, with scaled regressors and without a penalty on the constant."""
    size = np.sqrt(np.maximum(np.diag(gram), np.finfo(np.float64).tiny))
    penalty = np.full(len(size), ridge + 1e-14)
    penalty[0] = 0.0
    scaled = gram / size / size[:, None] + np.diag(penalty)
    return np.asarray(np.linalg.lstsq(scaled, moments / size, rcond=None)[0]) / size


def _monomials(m: int, degree: int) -> list[tuple[int, ...]]:
    return list(combinations_with_replacement(range(m), degree))
