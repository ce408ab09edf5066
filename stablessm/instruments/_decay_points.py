"""From a measured curve to the few points that a law is fitted to: above the floor, on the envelope, after the top."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

NEGLIGIBLE = 1e-5
"""A plateau below this fraction of the largest value is taken for rounding, not for memory."""
CLEAR = 10.0
"""A value this many times above the floor is signal: the floor moves its logarithm by a tenth at most."""
FEWEST = 8
"""Fewer points than these decide nothing."""

_DIP = 0.33  # times √log n: noise of 10 % dips by 0.28 √log n among n samples, an oscillation by far more
_CROSSING = math.log(3)
_BLOCKS = 40
_DISCREPANCY = 0.01  # no measured curve follows a law better than to a per cent, however many samples it has


@final
@dataclass(frozen=True)
class Points:
    """log M = ``y`` at the times ``origin + unit * s``, averaged over blocks, with the weight of each, 1/variance.

    The unit is the time from the first point to the last: no decision depends on the unit of the caller.
    """

    s: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    origin: float
    unit: float

    def last(self, share: float) -> Points:
        """Those of the last share of the time; the last eight if that is more."""
        begin = min(int(np.searchsorted(self.s, 1 - share)), len(self.s) - FEWEST)
        return Points(self.s[begin:], self.y[begin:], self.weight[begin:], self.origin, self.unit)


def noise_floor(time: np.ndarray, value: np.ndarray) -> tuple[float, float]:
    """(a bound on nine in ten of its values, its mean) of a flat tail far below the top, 1; (0, 0) without one.

    The tail begins after the last sample above three times that bound. Its first third does not count: the decay may
    still be arriving there. Where there is no floor, the rest falls, and by more than the 15 % allowed here.
    """
    n = len(value)
    level = float(np.quantile(value[-max(FEWEST, n // 10) :], 0.9))
    if level >= NEGLIGIBLE:
        return 0.0, 0.0
    begin = (2 * after_last(value > 3 * level) + n) // 3
    tail = value[begin:]
    if len(tail) < FEWEST:
        return 0.0, 0.0
    # Maxima of blocks: there neither the zeros of a wave count nor those of the noise.
    starts = np.arange(FEWEST) * len(tail) // FEWEST
    x, maxima = time[begin:][starts], np.maximum.reduceat(tail, starts)
    if maxima.min() == 0:
        return 0.0, 0.0
    x, y = (x - x.mean()) / (x[-1] - x[0]), np.log(maxima)
    slope = x @ y / (x @ x)
    error = math.sqrt(np.sum((y - y.mean() - slope * x) ** 2) / (FEWEST - 2) / (x @ x))
    return (level, float(tail.mean())) if -slope < max(4 * error, 0.15) else (0.0, 0.0)


def points(time: np.ndarray, value: np.ndarray, offset: float) -> Points | None:
    """The points of a curve that stops where its floor begins, less the mean of the floor; None if too few."""
    kept = value > CLEAR / 2 * offset
    time, log_value = time[kept], np.log(value[kept] - offset)
    index, crest = _envelope(log_value)
    time, log_value = time[index], log_value[index]
    if len(time) < FEWEST:
        return None
    sigma = max(_noise(time, log_value), crest)
    # The largest value of a noisy flat curve may be its last; the first one within the noise of it is early.
    start = int(np.argmax(log_value >= log_value.max() - 4 * sigma - 0.05))
    start = min(start, len(time) - FEWEST)
    time, log_value = time[start:], log_value[start:]
    origin, unit = float(time[0]), float(time[-1] - time[0])
    s = (time - origin) / unit
    starts = _block_starts(s)
    count = np.diff(np.append(starts, len(s)))
    s, y = np.add.reduceat(s, starts) / count, np.add.reduceat(log_value, starts) / count
    return Points(s, y, 1 / (sigma**2 / count + _DISCREPANCY**2), origin, unit)


def after_last(mask: np.ndarray) -> int:
    """One past the last true element, 0 if there is none."""
    return len(mask) - int(np.argmax(mask[::-1])) if mask.any() else 0


def _envelope(log_value: np.ndarray) -> tuple[np.ndarray, float]:
    """Indices of the upper envelope, and how far samples miss the crests of the wave.

    They are the maxima where the curve oscillates, and every sample where it does not.
    """
    from scipy.signal import find_peaks

    n = len(log_value)
    everything = np.arange(n)
    peaks = find_peaks(log_value, prominence=_DIP * math.sqrt(math.log(max(n, 2))))[0]
    if len(peaks) < FEWEST:
        # Modes of both signs cross zero once or twice: what rises threefold again was a dip.
        later = np.maximum.accumulate(log_value[::-1])[::-1]
        return everything[log_value > later - _CROSSING], 0.0
    period = float(np.median(np.diff(peaks)))
    after = np.searchsorted(peaks, everything)
    ahead, behind = peaks[np.minimum(after, len(peaks) - 1)], peaks[np.maximum(after - 1, 0)]
    distance = np.minimum(np.abs(ahead - everything), np.abs(everything - behind))
    # A sample misses its crest by up to half a step, u = π/2 / period; log cos u then spreads by 0.15 u².
    return everything[(distance == 0) | (distance > 2 * period)], 0.15 * (math.pi / 2 / period) ** 2


def _block_starts(s: np.ndarray) -> np.ndarray:
    """First indices of blocks, even in time and even in its logarithm: one suits modes, the other powers."""
    if len(s) <= 2 * _BLOCKS:
        return np.arange(len(s))
    edges = [np.linspace(0, 1, _BLOCKS, endpoint=False), np.geomspace(s[1], 1, _BLOCKS, endpoint=False)]
    return np.unique(np.searchsorted(s, np.concatenate(edges) * (1 - 1e-9)))  # no sample on an edge: it would wobble


def _noise(time: np.ndarray, log_value: np.ndarray) -> float:
    """The deviation of independent noise: how far a sample lies from the line through its neighbours."""
    a = (time[2:] - time[1:-1]) / (time[2:] - time[:-2])
    residual = log_value[1:-1] - a * log_value[:-2] - (1 - a) * log_value[2:]
    return float(1.4826 * np.median(np.abs(residual) / np.sqrt(1 + a**2 + (1 - a) ** 2)))
