"""Five laws of decay, all of one form, fitted to the logarithm of a curve by weighted least squares.

M(s) = e^a (s + e^g)^(-p) e^(-b s) + e^(c - d s); a law frees some of the six parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from stablessm.instruments._decay_points import FEWEST, Points

Vote = Literal["exponential", "polynomial", "none", "undecided"]

_A, _P, _G, _B, _C, _D = range(6)
_NEUTRAL = (0.0, 0.0, 0.0, 0.0, -math.inf, 0.0)
_REACH = 8.0  # a power of s + t0 shows only where s goes well beyond t0: eight times at least
_BARELY = 2.5  # where s goes less far beyond t0 than that, a power is a mixture of modes to the eye
_SEEN = math.log(3)  # a law is claimed only for a fall that it explains by itself, by this factor at least
_FLAT = 0.05  # a fall by 5 % over everything seen is none
_STAYS = "what is left at the end does not decay"
_STEPS = 20


@final
@dataclass(frozen=True)
class Candidate:
    """One fitted law: what it says, how well it fits, and its tail e^log_c (s + shift)^(-power) e^(-rate s)."""

    vote: Vote
    reason: str
    bic: float
    log_c: float
    shift: float
    power: float
    rate: float
    interval: tuple[float, float]
    misfit: float
    """Standard deviations by which the law misses a point, in the mean."""

    @property
    def log_end(self) -> float:
        """The logarithm of the tail at the last point, s = 1."""
        return self.log_c - self.power * math.log1p(self.shift) - self.rate


def candidates(points: Points) -> list[Candidate]:
    """Every law that has something to say about the points, the best first."""
    laws = (one_mode, two_modes, power, power_then_mode, power_on_a_level)
    found = [law(points) for law in laws]
    return sorted((each for each in found if each is not None), key=lambda each: each.bic)


def one_mode(points: Points) -> Candidate:
    """M = e^(a - b s)."""
    fit = _fit(points, (_A, _B), {_A: points.y[0], _B: points.y[0] - points.y[-1]})
    vote, reason = _verdict("exponential", fit.theta[_B], fit.half_width(_B))
    return _candidate(fit, vote, reason, _B, fit.theta[_A], rate=fit.theta[_B])


def two_modes(points: Points) -> Candidate | None:
    """M = e^(a - b s) + e^(c - d s), d < b: the tail is the second mode."""
    lines = _two_lines(points)
    if lines is None:
        return None
    fit = _fit(points, (_A, _B, _C, _D), dict(zip((_A, _B, _C, _D), lines, strict=True)))
    theta = fit.theta
    if theta[_D] >= theta[_B]:
        return None
    takeover = max((theta[_A] - theta[_C]) / (theta[_B] - theta[_D]), 0.0)
    if np.sum(points.s > takeover) < FEWEST:
        return None
    seen = 1 - takeover
    # After a real fall, a tail that loses a fifth has levelled off; without one, it may be a slow mode.
    vote, reason = _verdict("exponential", theta[_D] * seen, fit.half_width(_D) * seen, flat=4 * _FLAT)
    return _candidate(fit, vote, reason, _D, theta[_C], rate=theta[_D])


def power(points: Points) -> Candidate:
    """M = e^a (s + t0)^(-p)."""
    fit = _fit(points, (_A, _P, _G), _start(points, points.y, cut=False), 1 / _BARELY)
    p, shift = fit.theta[_P], math.exp(fit.theta[_G])
    decades = math.log1p(1 / shift)
    vote, reason = _verdict("polynomial", p * decades, fit.half_width(_P) * decades)
    if vote == "polynomial" and shift * _REACH > 1.001:
        vote, reason = "undecided", f"a power of t + t0 fits best, but only {1 / shift:.2g} times t0 is seen"
    return _candidate(fit, vote, reason, _P, fit.theta[_A], shift=shift, power=p)


def power_then_mode(points: Points) -> Candidate | None:
    """M = e^a (s + t0)^(-p) e^(-b s): many modes, cut off by the slowest; or one mode repeated, p = -1, -2, ..."""
    fit = _fit(points, (_A, _P, _G, _B), _start(points, points.y, cut=True))
    rate = fit.theta[_B]
    # A cut that is hardly seen is the power law over again.
    if rate < 2 * _SEEN or rate < fit.half_width(_B):
        return None
    shift = math.exp(fit.theta[_G])
    return _candidate(fit, "exponential", "", _B, fit.theta[_A], shift=shift, power=fit.theta[_P], rate=rate)


def power_on_a_level(points: Points) -> Candidate | None:
    """M = e^a (s + t0)^(-p) + e^c: it falls, but not to zero."""
    level = float(points.y[-5:].mean()) - 0.1
    above = points.y > level + 0.3
    if above.sum() < 5:
        return None
    falling = np.log(np.exp(points.y[above] - level) - 1) + level
    part = Points(points.s[above], falling, points.weight[above], 0.0, 1.0)
    fit = _fit(points, (_A, _P, _G, _C), {**_start(part, falling, cut=False), _C: level})
    # A level that is not most of the last value is not seen: it may as well be absent.
    if fit.theta[_P] < 0 or fit.theta[_C] < points.y[-1] + math.log(0.6):
        return None
    return _candidate(fit, "none", _STAYS, _C, fit.theta[_C])


def _verdict(law: Vote, fall: float, half_width: float, flat: float = _FLAT) -> tuple[Vote, str]:
    """What a law says whose tail falls by e^fall: that it decays, that it does not, or that too little is seen."""
    if fall < max(flat, 1.5 * half_width) and fall < _SEEN:
        return "none", _STAYS
    if fall < _SEEN:
        return "undecided", f"the tail falls only by a factor of {math.exp(fall):.3g}, too little to tell how"
    return law, ""


@final
@dataclass(frozen=True)
class _Fit:
    theta: np.ndarray
    bic: float
    error: np.ndarray
    freedom: int
    misfit: float

    def half_width(self, parameter: int) -> float:
        """Half of the 95 % confidence interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 0.975) * self.error[parameter])


def _candidate(
    fit: _Fit,
    vote: Vote,
    reason: str,
    parameter: int,
    log_c: float,
    *,
    shift: float = 1.0,
    power: float = 0.0,
    rate: float = 0.0,
) -> Candidate:
    value, half = float(fit.theta[parameter]), fit.half_width(parameter)
    return Candidate(
        vote, reason, fit.bic, float(log_c), shift, float(power), float(rate), (value - half, value + half), fit.misfit
    )


def _fit(points: Points, free: tuple[int, ...], start: dict[int, float], widest: float = 1.0) -> _Fit:
    """Levenberg and Marquardt's method in the free parameters, from a start near the optimum."""
    theta = np.array(_NEUTRAL)
    theta[list(start)] = list(start.values())
    low, high = math.log(points.s[1] / 10), math.log(widest)
    columns, diagonal = list(free), np.arange(len(free))

    def evaluate(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        y, jacobian = _law(theta, points.s)
        residual = y - points.y
        return residual, jacobian[:, columns], float(points.weight @ residual**2)

    residual, jacobian, cost = evaluate(theta)
    damping = 1e-3
    for _ in range(_STEPS):
        weighted = jacobian.T * points.weight
        normal = weighted @ jacobian
        normal[diagonal, diagonal] *= 1 + damping
        normal[diagonal, diagonal] += 1e-12 * normal.trace()
        trial = theta.copy()
        trial[columns] -= np.linalg.solve(normal, weighted @ residual)
        trial[_G] = min(max(trial[_G], low), high)
        now = evaluate(trial)
        if now[2] < cost:
            settled = cost - now[2] < 1e-3 * cost + 1e-6
            theta, (residual, jacobian, cost) = trial, now
            damping /= 10
            if settled:
                break
        else:
            damping *= 10
            if damping > 1e6:
                break
    n, k = jacobian.shape
    error = np.zeros(len(theta))
    covariance = np.linalg.pinv((jacobian.T * points.weight) @ jacobian, hermitian=True)
    error[columns] = np.sqrt(max(cost / max(n - k, 1), 1.0) * np.maximum(np.diag(covariance), 0))
    # The scale of the residuals is unknown, as no law is exact; a tenth bounds the reward for a perfect fit.
    bic = n * math.log(cost / n + 0.1) + k * math.log(n)
    return _Fit(theta, bic, error, max(n - k, 1), math.sqrt(cost / n))


def _law(theta: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log M and its derivatives by the six parameters."""
    a, p, g, b, c, d = theta
    shift = math.exp(g)
    log = np.log(s + shift)
    first = a - p * log - b * s
    y = np.logaddexp(first, c - d * s)
    share = np.exp(first - y)
    rest = 1 - share
    return y, np.stack([share, -share * log, -share * p * shift / (s + shift), -share * s, rest, -rest * s], 1)


def _start(points: Points, y: np.ndarray, *, cut: bool) -> dict[int, float]:
    """a, p, (b) and log t0 of the best power law on a grid of t0, for each of which the law is linear."""
    g = np.linspace(math.log(points.s[1] / 10), -math.log(_REACH if cut else _BARELY), 24)
    log = np.log(points.s + np.exp(g)[:, None])
    design = np.stack([np.ones_like(log), -log, *([np.broadcast_to(-points.s, log.shape)] if cut else [])], 2)
    weighted = (design * points.weight[:, None]).transpose(0, 2, 1)
    solution = np.linalg.pinv(weighted @ design, hermitian=True) @ (weighted @ y)[..., None]
    best = int(np.argmin(((design @ solution)[..., 0] - y) ** 2 @ points.weight))
    parameters = (_A, _P, _B) if cut else (_A, _P)
    return {**dict(zip(parameters, solution[best, :, 0], strict=True)), _G: g[best]}


def _two_lines(points: Points) -> tuple[float, float, float, float] | None:
    """(a, b, c, d) of the lines a - b s before and c - d s after some point that fit best, d < b."""
    s, y = points.s, points.y
    moments = points.weight * np.stack([np.ones_like(s), s, s**2, y, s * y, y**2])
    before = np.cumsum(moments, 1)[:, 2:-3]
    after = moments.sum(1, keepdims=True) - before

    def line(m: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        spread = m[2] - m[1] ** 2 / m[0]
        slope = (m[4] - m[1] * m[3] / m[0]) / spread
        return (m[3] - slope * m[1]) / m[0], -slope, m[5] - m[3] ** 2 / m[0] - slope**2 * spread

    (a, b, cost), (c, d, rest) = line(before), line(after)
    cost = np.where(b > d, cost + rest, np.inf)
    best = int(np.argmin(cost))
    return (a[best], b[best], c[best], d[best]) if cost[best] < np.inf else None
