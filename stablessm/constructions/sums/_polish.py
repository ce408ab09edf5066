"""Local optimization of the rates of an exponential sum: least squares by variable projection, then minimax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from stablessm.constructions.sums._interior_point import minimax_program
from stablessm.constructions.sums._modes import Domain, non_negative, solve, unit_columns

_ROUNDS = 40
_LEVELED = 1e-3  # the iteration ends if a round gains less than this part
_SPREAD = 120  # points of the linear program in addition to the extrema
_EXTREMA = 500
_VANISHED = 1e-200  # a column whose entries are all smaller is not scaled
_SIDES = np.exp(2j * np.pi * np.arange(8) / 8)  # normals of a polygon in place of a circle; one faces the residual


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """The data of a fit: times, values, and the weight of the error at each time.

    An error at times[i] is multiplied by weight[i] in the supremum, and by graded[i] in least squares.
    """

    times: np.ndarray
    values: np.ndarray
    """Values of the kernel at these times (n, q)."""
    weight: np.ndarray
    graded: np.ndarray
    domain: Domain
    tell: Callable[[], object] = lambda: None
    """Function that is called after each round of a fit."""

    def error(self, residual: np.ndarray) -> float:
        """Return the largest weighted residual, which is the error of a fit."""
        return float((np.abs(residual).max(axis=1) * self.weight).max())


@final
@dataclass(frozen=True, eq=False)
class Fit:
    """The result of a local fit: rates, the coefficients of their modes, and the error."""

    rates: np.ndarray
    coefficients: np.ndarray
    """Coefficients of the columns of the matrix of modes (order, q)."""
    error: float
    method: str


def fit_weights(problem: Problem, rates: np.ndarray, method: str) -> Fit:
    """Fit the weights of an exponential sum with given rates by least squares.

    If only non-negative weights are allowed, rates whose weight is 0 are left out of the result. ``method`` is a name
    that is stored with the result.
    """
    columns = problem.domain.matrix(rates, problem.times)
    graded = problem.graded[:, None]
    if problem.domain.positive:
        unit, scale = unit_columns(columns * graded)
        coefficients = np.stack([non_negative(unit, c) / scale for c in (problem.values * graded).T], axis=1)
        used = np.abs(coefficients).max(axis=1) > 0
        used[0] |= not used.any()
        rates, coefficients, columns = rates[used], coefficients[used], columns[:, used]
    else:
        coefficients = solve(columns * graded, problem.values * graded)
    return Fit(rates, coefficients, problem.error(problem.values - columns @ coefficients), method)


def least_squares(problem: Problem, rates: np.ndarray, method: str) -> Fit:
    """Fit the rates and weights of an exponential sum by least squares, starting at the given rates.

    ``method`` is a name that is stored with the result.
    """
    return fit_weights(problem, descend(problem, rates)[0], method)


def descend(
    problem: Problem, rates: np.ndarray, leveled: float = _LEVELED, undamped: float = 1e-15
) -> tuple[np.ndarray, float]:
    """Minimize the sum of squared errors over the rates by Levenberg–Marquardt with variable projection.

    For given rates, linear least squares determines the best weights, so that the rates are the only unknowns (Golub
    and Pereyra; Kaufman's Jacobian). Returns the rates and the norm of the residual. The iteration ends when a round
    with a damping below ``undamped`` reduces the norm by less than the fraction ``leveled``.
    """
    domain, times, graded = problem.domain, problem.times, problem.graded[:, None]
    target = problem.values * graded

    def state(rates: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        columns = domain.matrix(rates, times) * graded
        coefficients = solve(columns, target)
        with np.errstate(over="ignore", invalid="ignore"):  # nearly equal modes may have very large weights
            residual = target - columns @ coefficients
        return columns, coefficients, residual, float(np.linalg.norm(residual))

    columns, coefficients, residual, size = state(rates)
    damping = 1e-6
    for _ in range(_ROUNDS):
        problem.tell()
        slope = domain.derivative(rates, times, coefficients) * graded[:, :, None]
        q, _ = np.linalg.qr(columns)
        flat = slope.transpose(0, 2, 1).reshape(len(times), -1)  # n, steps x entries
        slope = (flat - q @ (q.conj().T @ flat)).reshape(len(times), slope.shape[2], -1).transpose(0, 2, 1)
        slope = real_rows(slope.reshape(-1, slope.shape[2]))
        slope, scale = unit_columns(slope)
        u, s, vt = np.linalg.svd(slope, full_matrices=False)
        along = u.T @ real_rows(residual.reshape(-1))
        for _ in range(8):
            step = (vt.T @ (along * s / (s**2 + damping))) / scale
            trial = domain.move(rates, step)
            new = state(trial)
            if new[3] < size:
                break
            damping *= 10
        else:
            break
        gain = 1 - new[3] / size
        rates, (columns, coefficients, residual, size) = trial, new
        if gain < leveled and damping < undamped:
            break
        damping = max(damping / 10, 1e-20)
    return rates, size


def minimax(problem: Problem, fit: Fit) -> Fit:
    """Minimize the largest error, starting from a fit; return the best fit found.

    The method is a Gauss–Newton method with a trust region, in which each step is a linear program (Madsen). After each
    step, a linear fit changes the weights so that they compensate most of the second-order error of the step. The
    convergence therefore becomes quadratic after few steps.
    """
    domain, weight = problem.domain, problem.weight[:, None]
    graded = problem.graded[:, None]
    radius = 1.0
    best = fit
    columns = domain.matrix(best.rates, problem.times)
    residual = (problem.values - columns @ best.coefficients) * weight
    for _ in range(_ROUNDS):
        if best.error == 0:
            break
        problem.tell()
        slope = domain.derivative(best.rates, problem.times, best.coefficients) * weight[:, :, None]
        step = _program(problem, best, columns * weight, slope, residual, radius)
        if step is None:
            break
        moved, changed = step
        rates = domain.move(best.rates, moved)
        coefficients = best.coefficients + changed
        predicted = residual - slope @ moved - (columns * weight) @ changed
        new_columns = domain.matrix(rates, problem.times)
        second_order = (problem.values - new_columns @ coefficients) - predicted / weight
        coefficients = coefficients + solve(new_columns * graded, second_order * graded)
        if domain.positive:
            coefficients = np.maximum(coefficients, 0)
        new_residual = (problem.values - new_columns @ coefficients) * weight
        error = float(np.abs(new_residual).max())
        if error < best.error:
            gain = 1 - error / best.error
            best = Fit(rates, coefficients, error, fit.method + ", minimax")
            columns, residual = new_columns, new_residual
            radius = min(2 * radius, 4.0)
            if gain < _LEVELED:
                break
        else:
            radius /= 4
            if radius < 1e-3:
                break
    return best


def _program(
    problem: Problem, fit: Fit, columns: np.ndarray, slope: np.ndarray, residual: np.ndarray, radius: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the changes of rates and of coefficients that minimize the largest error to first order.

    The changes are the solution of a linear program; None is returned if the program has no solution. Nearly dependent
    modes have huge coefficients, with which a linear program fails. Unless the coefficients have bounds, the unknowns
    of the program are therefore the coordinates of their change in an orthonormal basis of the modes.

    ``columns`` are the modes at the sample times, ``slope`` the derivatives of the fit with respect to the rates, and
    ``residual`` the residual of the fit, all multiplied by the weights of the errors. ``radius`` is the largest step of
    a rate.
    """
    at = _points(residual)
    entries, order = residual.shape[1], columns.shape[1]
    moves, numbers = slope.shape[2], order * entries
    modes, slope = columns[at], slope[at]
    basis, along_basis = modes, np.zeros((order, entries * moves))
    if not problem.domain.positive:
        basis = np.linalg.qr(modes)[0]
        along_basis = basis.conj().T @ slope.reshape(len(at), -1)
        slope = slope - (basis @ along_basis).reshape(slope.shape)
    rows = []
    for entry in range(entries):
        block = np.zeros((len(at), moves + numbers), dtype=columns.dtype)
        block[:, :moves] = slope[:, entry]
        block[:, moves + entry :: entries] = basis
        rows.append(block)
    A = np.concatenate(rows)
    b = residual[at].T.reshape(-1) / fit.error
    if problem.domain.is_complex:
        A = np.concatenate([A, 1j * A[:, moves:]], axis=1)
        sides = np.where(b == 0, 1, b / np.maximum(np.abs(b), np.finfo(np.float64).tiny)) * _SIDES[:, None]
    else:
        sides = np.array([[1.0], [-1.0]])
    scale = np.abs(A).max(axis=0)
    scale = np.where(scale > _VANISHED, scale, 1.0)
    A /= scale
    high = np.full(A.shape[1], np.inf)
    high[:moves] = radius * scale[:moves] / fit.error
    low = -high
    if problem.domain.positive:
        low[moves:] = -fit.coefficients.reshape(-1) * scale[moves:] / fit.error
    # the modulus of the residual b - Ax is its largest component along any direction
    along = np.concatenate([(side.conj()[:, None] * A).real for side in sides])
    if not (np.isfinite(along).all() and np.isfinite(b).all()):
        return None
    found = minimax_program(along, (sides.conj() * b).real.reshape(-1), low, high)
    if found is None:
        return None
    step = found * fit.error / scale
    moved, changed = step[:moves], step[moves : moves + numbers]
    if problem.domain.is_complex:
        changed = changed + 1j * step[moves + numbers :]
    changed = changed.reshape(order, entries)
    if not problem.domain.positive:
        changed = solve(modes, basis @ (changed - along_basis.reshape(order, entries, moves) @ moved))
    return moved, changed


def _points(residual: np.ndarray) -> np.ndarray:
    """Return the indices of sample points for a linear program: the largest extrema of the residual, and other points.

    The other points are spread over all times.
    """
    size = np.abs(residual)
    inside = (size[1:-1] >= size[:-2]) & (size[1:-1] >= size[2:])
    peak = np.pad(inside.any(axis=1), 1, constant_values=True)
    peaks = np.flatnonzero(peak)
    if len(peaks) > _EXTREMA:
        peaks = peaks[np.argsort(-size[peaks].max(axis=1))[:_EXTREMA]]
    n = len(residual)
    spread = np.concatenate([np.geomspace(1, n, _SPREAD) - 1, np.linspace(0, n - 1, _SPREAD // 2)])
    return np.unique(np.concatenate([peaks, np.rint(spread).astype(np.int64)]))


def real_rows(values: np.ndarray) -> np.ndarray:
    """Convert complex rows to two real rows each (real parts, then imaginary parts); return real rows unchanged."""
    return np.concatenate([values.real, values.imag]) if np.iscomplexobj(values) else values
