"""Power laws by their slope in log time, for curves that are no exact power of t + t0: with waves of ln t, or bends."""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import numpy as np

from stablessm.instruments._decay_models import ABSENT, Fit, P
from stablessm.instruments._decay_points import Points

_SHIFTS = (0.0, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # values of t0, in units of the time seen
_SKIPPED = (0.0, 1 / 4, 1 / 2)  # parts of the log time before a line begins
_SPAN = math.log(10)  # least log time in which a line shows a power law
_FALL = 2.0  # fall of the logarithm along a line, below which the line must be straighter
_GRID = 96  # points of a line
_PERIODS = np.geomspace(1.5, 24, 48)  # numbers of periods of ln t along a line; fewer than 3 may be a few modes
_WAVES = 0.7  # least part of the residual of a line that a wave of ln t must leave out to be called one
_STRAIGHT = (0.07, 0.005)  # largest change of the exponent and root mean square residual, as parts of exponent and fall
_WAVY = (0.2, 0.1)  # the same with a wave
_ROOM = 0.05  # relative uncertainty of an exponent


def power_of_time(envelope: Points) -> tuple[Fit, float, tuple[float, float]] | None:
    """Return a power law, its exponent and an interval of the exponent, if the envelope of a curve follows one; else
    None.

    Over at least a decade of t + t0, up to the last time, the logarithm of the envelope must be a straight line in
    ln(t + t0); or a straight line plus a wave with at least three periods, as in t^-p (1 + a cos(ω ln t + φ)). The line
    is the mean slope over these periods. The interval covers every line that is straight enough, for several t0 and
    beginnings, and the continuation of the bend of each line.
    """
    s, y = envelope.s[envelope.s > 0], envelope.y[envelope.s > 0]
    u, columns, inverses = _bases()
    found: list[tuple[float, Fit]] = []
    ends: list[float] = []
    for shift, skipped in product(_SHIFTS, _SKIPPED):
        x = np.log(s + shift)
        span = float((1 - skipped) * np.ptp(x)) if len(x) else 0.0
        if span < _SPAN or (x >= x[-1] - span).sum() < 12:
            continue
        at = x[-1] - span * (1 - u) / 2
        v = np.interp(at, x, y)
        theta = inverses @ v
        off, *others = np.sqrt(((np.einsum("bij,bj->bi", columns, theta) - v) ** 2).mean(1))
        best = int(np.argmin(others))
        wavy = _PERIODS[best] >= 3 and others[best] < _WAVES * off
        for plain, bend, most in ((1, *_STRAIGHT), (0, *_WAVY))[: 1 + wavy]:
            _, slope, bent = theta[0 if plain else 1 + best, :3]
            power, change = -2 * slope / span, 4 * bent / span
            fall = max(power * span, 1e-9)
            merit = max(abs(change) / (bend * power), off / (most * fall)) * max(1.0, _FALL / fall) ** 3
            if merit >= 1 or fall < 1.45:  # a level may hide under a smaller fall
                continue
            room = 4 * off / span + _ROOM * power
            ends += [power - change - room, power - change + room, power + change / 2 - room, power + change / 2 + room]
            power -= plain * change / 2  # the exponent at the end
            law = np.array([(v + power * at).mean(), power, math.log(shift + 1e-9), 0, 0, ABSENT, 0])
            found.append((merit, Fit("a power law", law, np.zeros(7), _GRID, math.inf, off)))
    if not found:
        return None
    fit = min(found, key=lambda each: each[0])[1]
    return fit, float(fit.theta[P]), (max(min(ends), 0.0), max(ends))


@cache
def _bases() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a grid on [-1, 1], the columns of a parabola, alone and with each wave of ln t, and their inverses."""
    u = np.linspace(-1, 1, _GRID)
    periods = np.concatenate([[0.0], _PERIODS])
    phase = np.pi * periods[:, None, None] * u[:, None] * np.arange(1, 4)  # three harmonics
    line = np.broadcast_to(np.stack([np.ones_like(u), u, u**2], 1), (len(periods), _GRID, 3))
    columns = np.concatenate([line, np.cos(phase) * (periods > 0)[:, None, None], np.sin(phase)], 2)
    return u, columns, np.linalg.pinv(columns)
