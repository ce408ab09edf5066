"""Decaying modes e^{rt} at given times: allowed rates, the matrix of modes, and its derivatives.

A real kernel has one rate per conjugate pair, and its modes are real parts. A complex kernel has complex modes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

GAPS = {"float32": 2.0**-22, "float64": 2.0**-51}
"""Smallest allowed 1 - |λ| for each dtype: four times the spacing of numbers below 1, so that |λ| never rounds to 1."""

_FASTEST = 1e-9  # smallest |λ|, so that the logarithm is finite
_MEET, _APART = 0.05, 0.3  # relative to the decay: rates that are closer have met, and the distance that parts them
_ON_AXIS = 1e-12  # phases this close to 0 or π count as real eigenvalues


def slowest(dtype: str, dt: float) -> float:
    """Return the slowest decay -Re r for which |e^{r dt}| stays below 1 in the dtype."""
    return -math.log1p(-GAPS[dtype]) / dt


@final
@dataclass(frozen=True)
class Domain:
    """The set of rates that a fit may use, and the coordinates in which an optimizer changes rates.

    A rate is -(slowest + a) + ib with a > 0. A step (u, v) of the optimizer replaces a by a e^u and b by b + a v. Steps
    of order one are therefore natural at every time scale, and no step leaves the domain.
    """

    dt: float
    discrete: bool
    real: bool
    positive: bool
    slowest: float
    is_complex: bool = False
    """Whether modes are complex, w e^{rt}, with one complex state each, instead of the real part."""
    band: float = math.inf
    """In continuous time, the highest frequency |Im r| that the samples distinguish from its aliases."""
    rest: float = 0.0
    """Smallest distance of an initial rate from the slowest allowed rate, so that the rate can still change."""

    def single(self, rates: np.ndarray) -> np.ndarray:
        """Return a mask of the rates that require only one state each: real rates, or all rates of a complex sum."""
        if self.is_complex:
            return np.ones(len(rates), dtype=bool)
        phase = np.abs(rates.imag) * self.dt
        return (phase == 0) | (self.discrete & (np.abs(phase - np.pi) < _ON_AXIS))

    def order(self, rates: np.ndarray) -> int:
        """Return the number of states of a sum with these rates (real states, or complex states of a complex sum)."""
        return int(np.where(self.single(rates), 1, 2).sum())

    def admit(self, eigenvalues: np.ndarray) -> np.ndarray:
        """Convert eigenvalues λ of a recurrence to initial rates in the allowed range.

        ``eigenvalues`` contains both λ of each conjugate pair; the result contains one rate for each pair. (For a
        complex sum there are no pairs.) A negative λ, which is an artifact of sampling, is dropped in continuous time.
        """
        values = np.asarray(eigenvalues, dtype=np.complex128)
        values = values[np.abs(values) > np.finfo(np.float64).tiny]
        if not self.is_complex:
            values = values[values.imag >= 0]
            values = np.where(values.imag < _ON_AXIS * np.abs(values), values.real, values)
            if self.real or not self.discrete:
                values = values[(values.imag > 0) | (values.real > 0)]
        return self.admit_rates(np.log(values) / self.dt)

    def admit_rates(self, rates: np.ndarray) -> np.ndarray:
        """Convert given rates to initial rates in the allowed range.

        ``rates`` contains both rates of each conjugate pair; the result contains one for each pair. (For a complex sum
        there are no pairs.) For a growing rate, the sign of the real part is reversed. If oscillation is not allowed, a
        pair becomes two real rates. Rates whose frequency is too high are dropped; otherwise the number of states stays
        the same.
        """
        rates = -np.abs(rates.real) + 1j * rates.imag
        if not self.is_complex:
            rates = rates[rates.imag >= 0]
        if self.real:
            pairs = rates[rates.imag > 0]
            apart = np.concatenate([np.abs(pairs) * 0.7, np.abs(pairs) / 0.7])
            rates = np.concatenate([rates[rates.imag == 0], -apart])
        return self.clip(rates[np.argsort(rates.real)])

    def clip(self, rates: np.ndarray) -> np.ndarray:
        """Drop rates with a frequency that is too high, and replace rates that decay too slowly by the slowest allowed
        decay.
        """
        rates = rates[np.abs(rates.imag) <= (math.inf if self.discrete else self.band)]
        return np.minimum(rates.real, -max(1.01 * self.slowest, self.slowest + self.rest)) + 1j * rates.imag

    def move(self, rates: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return the rates after a step (u, v) of the optimizer: a decay a becomes a e^u, and a frequency b becomes b +
        a v.
        """
        turns = self.turns(rates)
        a = -rates.real - self.slowest
        b = rates.imag.copy()
        fold = np.positive if self.is_complex else np.abs  # a pair equals its conjugate
        b[turns] = fold(b[turns] + a[turns] * step[len(rates) :])
        if self.discrete:  # frequencies beyond half a cycle per step are aliases
            b[turns] = fold((b[turns] * self.dt + np.pi) % (2 * np.pi) - np.pi) / self.dt
        else:
            b = np.clip(b, -self.band, self.band)
        return -(self.slowest + a * np.exp(np.clip(step[: len(rates)], -4, 4))) + 1j * b

    def parted(self, rates: np.ndarray) -> list[np.ndarray]:
        """Return sets of initial rates, in each of which two rates that met on the real axis are separated.

        In each set, either two nearly equal real rates become a conjugate pair, or a conjugate pair with a frequency
        near 0 becomes two real rates. The steps of the optimizer cannot make these changes, so that the optimizer stops
        where two rates meet.
        """
        if self.real or self.is_complex:
            return []
        rates = rates[np.lexsort((rates.real, rates.imag))]
        single, found = self.single(rates), []
        for i in np.flatnonzero(single[1:] & single[:-1]):
            middle = rates[i : i + 2].mean()
            if abs(rates[i + 1] - rates[i]) < _MEET * -middle.real:
                pair = middle.real + 1j * abs(middle.imag + _APART * middle.real)
                found.append(np.append(np.delete(rates, [i, i + 1]), pair))
        for i in np.flatnonzero(~single & (rates.imag < -_MEET * rates.real)):
            found.append(np.append(np.delete(rates, i), rates[i].real * np.array([1 - _APART, 1 + _APART])))
        return found

    def matrix(self, rates: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return the matrix (n, order) whose columns are the modes of the given rates at the given times.

        The columns are e^{at} for a real rate a, and e^{at} cos bt and -e^{at} sin bt for a pair a ± ib. For a complex
        sum they are e^{rt}.
        """
        if self.is_complex:
            return np.exp(times[:, None] * rates)
        single, at = self.single(rates), self._columns(rates)
        decay = np.exp(times[:, None] * rates.real)
        columns = np.empty((len(times), self.order(rates)))
        columns[:, at] = decay
        negative = single & (rates.imag != 0)
        if negative.any():
            columns[:, at[negative]] *= (1 - 2 * (np.rint(times / self.dt).astype(np.int64) % 2))[:, None]
        if not single.all():
            phase = times[:, None] * rates.imag[~single]
            columns[:, at[~single]] *= np.cos(phase)
            columns[:, at[~single] + 1] = -decay[:, ~single] * np.sin(phase)
        return columns

    def derivative(self, rates: np.ndarray, times: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return the derivative of a sum of modes with respect to the coordinates (u, v) in which the rates change.

        The sum has the given coefficients (order, q), for q entries of the kernel. The derivative has shape (n, q,
        number of coordinates), for n times.
        """
        turns = self.turns(rates)
        weights = self.weights(coefficients, rates)
        a = -rates.real - self.slowest
        if turns.any() or rates.imag.any():
            modes = np.exp(times[:, None] * rates)[:, None, :] * weights.T
        else:
            modes = np.exp(times[:, None] * rates.real)[:, None, :] * weights.real.T
        modes *= -times[:, None, None] * a
        if self.is_complex:
            return np.concatenate([modes, -1j * modes], axis=2)
        return np.concatenate([modes.real, modes.imag[..., turns]], axis=2)

    def weights(self, coefficients: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """Convert the coefficients (order, q) of the columns of ``matrix`` to the weights (m, q) of m rates in Re Σ w
        e^{rt}.
        """
        if self.is_complex:
            return coefficients
        single, at = self.single(rates), self._columns(rates)
        weights = coefficients[at].astype(np.complex128)
        weights[~single] += 1j * coefficients[at[~single] + 1]
        return weights

    def turns(self, rates: np.ndarray) -> np.ndarray:
        """Return a mask of rates whose frequency a fit may change: conjugate pairs, or all rates of a complex sum."""
        return ~self.single(rates) | self.is_complex

    def _columns(self, rates: np.ndarray) -> np.ndarray:
        """Return the index of the first column of each rate in the result of ``matrix``."""
        width = np.where(self.single(rates), 1, 2)
        return np.cumsum(width) - width


def stable_rates(eigenvalues: np.ndarray, dt: float = 1.0, dtype: str = "float32") -> np.ndarray:
    """Return the rates log λ / dt of eigenvalues λ, one for each conjugate pair.

    |λ| is first limited to a range that ends below 1, so that it does not round to 1 in the dtype.
    """
    values = eigenvalues[np.imag(eigenvalues) >= 0].astype(np.complex128)
    modulus = np.clip(np.abs(values), _FASTEST, 1 - GAPS[dtype])
    return (np.log(modulus) + 1j * np.angle(values)) / dt


def unit_columns(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale the columns of a matrix to norm one; return the scaled matrix and the norms.

    A column of zeros is not changed, and its norm is returned as one.
    """
    scale = np.linalg.norm(columns, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return columns / scale, scale


def solve(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Solve a least-squares problem, with columns scaled to norm one."""
    unit, scale = unit_columns(columns)
    return np.linalg.lstsq(unit, values, rcond=1e-15)[0] / scale[:, None]


def non_negative(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve a least-squares problem A x ≈ b with x ≥ 0."""
    from scipy.optimize import lsq_linear, nnls

    try:
        return nnls(A, b)[0]
    except RuntimeError:  # nnls can cycle at the level of rounding; bvls stops at its limit
        return np.maximum(lsq_linear(A, b, bounds=(0, np.inf), method="bvls", max_iter=200).x, 0)


def condition(columns: np.ndarray) -> float:
    """Return the 2-norm condition number of a matrix whose columns are scaled to norm one."""
    if not columns.shape[1]:
        return 1.0
    values = np.linalg.svd(unit_columns(columns)[0], compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else math.inf
