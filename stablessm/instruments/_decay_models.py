"""Parametric laws of decay (such as exponential or power law), and their fit to the logarithm of a curve.

All laws have the form M(s) = e^a (s + e^g)^(-p) exp(-b s^q) ± e^(c - d s). In each law, some of the seven parameters
are fitted (log q instead of q), and the other parameters are fixed. Many fits run at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from stablessm.instruments._decay_points import Points

A, P, G, B, Q, C, D = range(7)
_TAILS = {"an exponential": (A, B), "a power law": (A, P, G), "a stretched exponential": (A, B, Q)}
LAWS = _TAILS | {f"{law} above a constant": (*free, C) for law, free in _TAILS.items()} | {"a constant": (C,)}
LAWS |= {"a sum of two exponentials": (A, B, C, D), "a power times an exponential": (A, P, G, B)}
"""Parameters that each law fits."""
STEEPEST = 8.0
"""Largest power of time; larger powers cannot be distinguished from exponentials."""
STRETCHES = (0.2, 6.0)
"""Smallest and largest stretching exponent q."""

ABSENT = -1e9  # the logarithm of a term that is not there
_STEPS = 40
_ZOOMS = 6
_GRID = 20
_SPLITS = (0.25, 0.5, 0.8)
_LEVELS = (0.5, 0.97)
_WIDEST = math.log(20.0)  # log of the largest t0, in units of the time seen
_NARROWEST = 1e-5  # smallest t0, in units of the first time


@final
@dataclass(frozen=True)
class Fit:
    """A law of decay that was fitted to a window of a curve: parameters, standard errors, and quality of the fit."""

    law: str
    theta: np.ndarray
    error: np.ndarray
    n: int
    cost: float
    """Weighted sum of squared residuals."""
    rms: float
    """Unweighted root mean square of the residuals."""

    @property
    def misfit(self) -> float:
        """Return the root mean square deviation of the curve from the fitted law, in units of the noise level."""
        return math.sqrt(self.cost / self.n)

    def half_width(self, parameter: int) -> float:
        """Return half of the width of the 95 % confidence interval of the parameter with the given index."""
        return 2 * float(self.error[parameter]) * max(1.0, math.sqrt(self.cost / max(self.n - len(LAWS[self.law]), 1)))

    def log_main(self, s: float) -> float:
        """Return the logarithm of the first term of the fitted law of decay at time s."""
        a, p, g, b, q = self.theta[:C]
        return float(a - p * math.log(s + math.exp(g)) - b * s ** math.exp(q))


def fit_laws(windows: list[Points]) -> list[dict[str, Fit]]:
    """Fit all laws of decay to several windows of a curve; return, for each window, the best fit of each law.

    A law is left out for a window that has no more points than the law has parameters.
    """
    rows: list[tuple[int, str]] = []
    starts: list[np.ndarray] = []
    for index, window in enumerate(windows):
        for law, free in LAWS.items():
            for start in _starts(free, window) if len(window.s) > len(free) else ():
                rows.append((index, law))
                starts.append(start)
    padded = np.zeros((3, len(windows), max(len(window.s) for window in windows)))
    padded[0] = 1.0
    for index, window in enumerate(windows):
        padded[:, index, : len(window.s)] = window.s, window.y, window.weight
    loose = np.array([[parameter in LAWS[law] for parameter in range(7)] for _, law in rows], dtype=float)
    signed = np.stack(starts)
    with np.errstate(all="ignore"):  # a step that overflows is rejected
        data = padded[:, [index for index, _ in rows]]
        theta, error, cost, rms = _minimize(signed[:, :7], signed[:, 7], loose, *data)
    found: list[dict[str, Fit]] = [{} for _ in windows]
    for row, (index, law) in enumerate(rows):
        known = found[index].get(law)
        if known is None or cost[row] < known.cost:
            n = len(windows[index].s)
            found[index][law] = Fit(law, theta[row], error[row], n, float(cost[row]), float(rms[row]))
    return found


def _minimize(
    theta: np.ndarray, sign: np.ndarray, free: np.ndarray, s: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fit many laws of decay to windows of curves, all in one batch, by the Levenberg-Marquardt method.

    Row i of every array belongs to fit i. Returns parameters, standard errors, costs and root mean square residuals.

    Args:
        theta: initial values of the seven parameters (fits, 7).
        sign: sign (±1) of the second term of the law (fits,).
        free: 1 for a parameter that is fitted, 0 for a parameter that is fixed (fits, 7).
        s, y, weight: times, logarithms of the curve and weights of the points (fits, points).
    """
    low, high = np.full(theta.shape, -np.inf), np.full(theta.shape, np.inf)
    low[:, G], high[:, G] = np.log(_NARROWEST * np.where(s > 0, s, np.inf).min(1)), _WIDEST
    low[:, Q], high[:, Q] = np.log(STRETCHES)
    low[:, P], high[:, P] = -STEEPEST, STEEPEST
    theta = np.clip(theta, low, high)
    residual, jacobian = _residual(theta, sign, s, y)
    jacobian *= free[:, None]
    cost, damping, rows = (weight * residual**2).sum(1), np.full(len(theta), 1e-2), np.arange(len(theta))
    for _ in range(_STEPS):
        here, loose = weight[rows], free[rows]
        weighted = jacobian[rows] * here[..., None]
        normal = weighted.transpose(0, 2, 1) @ jacobian[rows]
        diagonal = np.einsum("bii->bi", normal)
        extra = diagonal * damping[rows, None] + 1e-12 * diagonal.sum(1, keepdims=True) + (1 - loose) + 1e-300
        gradient = (weighted * residual[rows, :, None]).sum(1)
        step = np.linalg.solve(normal + extra[:, None] * np.eye(7), gradient[..., None])[..., 0]
        trial = np.clip(theta[rows] - step * loose, low[rows], high[rows])
        new_residual, new_jacobian = _residual(trial, sign[rows], s[rows], y[rows])
        new_cost = (here * new_residual**2).sum(1)
        better = new_cost < cost[rows]
        settled = better & (cost[rows] - new_cost < 1e-4 * cost[rows] + 1e-8)
        up = rows[better]
        theta[up], residual[up], cost[up] = trial[better], new_residual[better], new_cost[better]
        jacobian[up] = new_jacobian[better] * loose[better][:, None]
        damping[rows] = np.where(better, damping[rows] / 8, damping[rows] * 8)
        rows = rows[~settled & (damping[rows] < 1e6)]
        if not len(rows):
            break
    normal = (jacobian * weight[..., None]).transpose(0, 2, 1) @ jacobian
    scale = np.sqrt(np.maximum(np.einsum("bii->bi", normal), 1e-300))
    correlation = normal / scale[:, :, None] / scale[:, None] + (1 - free)[:, None] * np.eye(7)
    covariance = np.linalg.pinv(correlation, hermitian=True, rcond=1e-14)
    error = np.sqrt(np.maximum(np.einsum("bii->bi", covariance), 0)) / scale * free
    inside = weight > 0
    return theta, error, cost, np.sqrt((residual**2 * inside).sum(1) / inside.sum(1))


def _residual(theta: np.ndarray, sign: np.ndarray, s: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the residuals of laws of decay, and the derivatives of the residuals with respect to all seven parameters.

    A residual is the logarithm of the law minus the logarithm y of the curve. ``theta`` contains the seven parameters
    of each law, and ``sign`` the sign (±1) of the second term of each law.
    """
    a, p, g, b, q, c, d = (theta[:, parameter, None] for parameter in range(7))
    shift, log_s = np.exp(g), np.log(np.maximum(s, 1e-12))
    log_u = np.log(s + shift)
    stretched = np.exp(np.exp(q) * log_s)
    first, second = a - p * log_u - b * stretched, c - d * s
    high = np.maximum(first, second)
    with np.errstate(under="ignore"):
        x, z = np.exp(first - high), sign[:, None] * np.exp(second - high)
    total = np.where(np.abs(x + z) < 1e-9, 1e-9, x + z)
    x, z = x / total, z / total
    columns = [x, -x * log_u, -x * p * shift / (s + shift), -x * stretched]
    columns += [-x * b * stretched * np.exp(q) * log_s, z, -z * s]
    residual = np.clip(high + np.log(np.abs(total)) - y, -1e3, 1e3)
    return residual, np.clip(np.stack(columns, 2), -1e6, 1e6)


def _starts(free: tuple[int, ...], window: Points) -> Iterator[np.ndarray]:
    """Yield starting values for the fit of a law of decay, as arrays of eight numbers.

    These are the seven parameters, and the sign (±1) of the second term of the law. ``free`` contains the indices of
    the parameters that the law fits.
    """
    s, y, weight = window.s, window.y, window.weight
    main = tuple(parameter for parameter in free if parameter < C)
    if not main:
        yield np.array([ABSENT, 0.0, 0.0, 0.0, 0.0, weight @ y / weight.sum(), 0.0, 1.0])
    elif C not in free:
        yield _single(main, s, y, weight, _ZOOMS)
    elif D not in free:
        last = float(y[-max(len(y) // 8, 1) :].mean())
        for level in (last + math.log(share) for share in _LEVELS):
            above = y > level + 0.05
            if above.sum() >= len(main):
                rest = y[above] + np.log(-np.expm1(level - y[above]))
                start = _single(main, s[above], rest, weight[above] * np.exp(2 * (rest - y[above])))
                start[C] = level
                yield start
    else:
        for begin in (int(split * len(s)) for split in _SPLITS):
            late = _single(main, s[begin:], y[begin:], weight[begin:])
            rest = -np.expm1(np.clip(late[A] - late[B] * s[:begin] - y[:begin], -50, 50))  # share of the early term
            late[7] = 1.0 if rest[: (begin + 1) // 2].sum() >= 0 else -1.0
            share = np.maximum(late[7] * rest, 1e-9)
            early = _single((A, B), s[:begin], y[:begin] + np.log(share), weight[:begin] * share**2)
            late[C], late[D] = early[A], early[B]
            yield late


def _single(main: tuple[int, ...], s: np.ndarray, y: np.ndarray, weight: np.ndarray, zooms: int = 1) -> np.ndarray:
    """Fit a law of decay with one term; return its seven parameters, followed by 1.

    The 1 stands for the sign of the second term, which the law does not have. ``main`` contains the indices of the
    parameters to fit. If one of these parameters is nonlinear, ``zooms`` grids of values are tried for it, each finer
    than the previous grid. At each grid point, the other parameters are fitted linearly.
    """
    theta = np.array([ABSENT, 0.0, 0.0, 0.0, 0.0, ABSENT, 0.0, 1.0])
    low, high = math.log(1e-3 * s[s > 0].min(initial=1.0)), math.log(3.0)
    if Q in main:
        low, high = np.log(STRETCHES)
    size = _GRID if G in main or Q in main else 1
    for _ in range(zooms if size > 1 else 1):
        grid = np.linspace(low, high, size)
        columns = [-(s ** np.exp(grid if Q in main else 0 * grid)[:, None])] if B in main else []
        if G in main:
            columns.insert(0, -np.log(s + np.exp(grid)[:, None]))
        design = np.stack([np.ones_like(columns[0]), *columns], 2)
        weighted = (design * weight[:, None]).transpose(0, 2, 1)
        normal = weighted @ design
        normal += np.einsum("bii->bi", normal)[:, None] * (1e-13 * np.eye(normal.shape[-1]))
        solution = np.linalg.solve(normal + 1e-300 * np.eye(normal.shape[-1]), (weighted @ y)[..., None])
        best = int(np.argmin(((design @ solution)[..., 0] - y) ** 2 @ weight))
        theta[[parameter for parameter in main if parameter not in (G, Q)]] = solution[best, :, 0]
        theta[[parameter for parameter in main if parameter in (G, Q)]] = grid[best]
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, size - 1)]
    return theta
