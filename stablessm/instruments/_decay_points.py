"""Reduction of a measured curve to few points for fits, in windows that end where the curve reaches its noise floor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

NEGLIGIBLE = 1e-5
"""A plateau below this fraction of the largest value counts as rounding, not as memory."""
CLEAR = 10.0
"""A value above this many times the noise floor counts as signal: the floor changes its logarithm by at most 0.1."""
FEWEST = 8
"""Smallest number of samples of a curve, and of crests of a wave, for which a verdict is given."""
LEAST = FEWEST - 1
"""Smallest number of points of a window, which never contains the first sample."""

_BEGINNINGS = (0.0, 1 / 16, 1 / 4, 1 / 2)  # starts of the windows, in units of the time seen
_DIP = 0.33  # times √log n: noise of 10 % dips by 0.28 √log n among n samples, an oscillation by far more
_LOUD = 0.1  # deviation of the logarithm above which noise dips as far as a wave; its spectrum then tells them apart
_UNLIKELY = 1e-3  # probability with which white noise is taken for a wave
_FEWEST_WHITE = 100  # least number of samples in whose spectrum a wave would stand out
_DEEP = 1.0  # median depth of a dip, as a logarithm, after which a peak counts as an echo
_RIPPLE = 0.05  # the least dip that makes a wave where there is no noise
_LATER = 1 / 16  # least part of the time by which windows from the maximum on begin later than the others
_BLOCKS = 12  # number of blocks of each spacing
_DISCREPANCY = 1e-6  # least standard deviation of a point, however many samples it averages


@final
@dataclass(frozen=True)
class Points:
    """Points of a curve M: logarithms y = log M at the times ``origin + unit * s``, with weights 1 / variance of y."""

    s: np.ndarray
    y: np.ndarray
    weight: np.ndarray


@final
@dataclass(frozen=True)
class Windows:
    """Four windows of a measured curve, each reduced to points.

    Each window starts later than the window before, and all windows end at the same time.
    """

    points: list[Points]
    origin: float
    unit: float
    smooth: bool
    """Whether the curve has no dips in its last quarter, or the points are the crests of a wave."""
    period: int
    """Number of samples between neighboring crests of the wave; 1 without a wave."""
    waves: bool
    """Whether the curve has dips or crests."""
    noisy: bool
    """Whether the curve has strong noise: its samples scatter, and their spectrum has no line."""
    envelope: Points
    """Points of the envelope, the largest value from each time on, from the maximum of the curve to its end."""
    echo: float | None
    """Time of the last peak after a deep dip if the dip lasts as long as the curve after this peak; otherwise None."""


def noise_floor(time: np.ndarray, value: np.ndarray, negligible: float) -> tuple[float, float]:
    """Return the level and the mean of the noise floor of a curve, or (0, 0) if the curve does not end in a flat tail.

    The level is the 90 % quantile of the last tenth of the samples, and must be below ``negligible``. The tail begins
    after the last sample above three times the level. The first third of the tail is left out, because the decay may
    still affect it. The other two thirds count as flat if they fall by at most 15 % or by at most four standard errors;
    the mean is computed over these two thirds.
    """
    n = len(value)
    level = float(np.quantile(value[-max(FEWEST, n // 10) :], 0.9))
    if level >= negligible:
        return 0.0, 0.0
    begin = (2 * after_last(value > 3 * level) + n) // 3
    tail = value[begin:]
    if len(tail) < FEWEST:
        return 0.0, 0.0
    # Maxima of blocks ignore the zeros of waves and of noise.
    starts = np.arange(FEWEST) * len(tail) // FEWEST
    x, maxima = time[begin:][starts], np.maximum.reduceat(tail, starts)
    if maxima.min() == 0:
        return 0.0, 0.0
    x, y = (x - x.mean()) / (x[-1] - x[0]), np.log(maxima)
    slope = x @ y / (x @ x)
    error = math.sqrt(np.sum((y - y.mean() - slope * x) ** 2) / (FEWEST - 2) / (x @ x))
    return (level, float(tail.mean())) if -slope < max(4 * error, 0.15) else (0.0, 0.0)


def windows(
    time: np.ndarray, value: np.ndarray, offset: float, level: float, delayed: bool = False, late: bool = False
) -> Windows | None:
    """Reduce the part of a curve above the noise floor to points in four windows; return None if this part is too
    short.

    ``offset`` and ``level`` are the mean and the level of the floor. The mean is subtracted from the curve. The first
    sample is left out, because it may belong to a skip connection. The windows begin after the maximum of the curve,
    or at the beginning if the maximum is in the second half. Laws begin at time 0, at the first sample
    after a delay (``delayed``), or at the maximum (``late``). In the last case, the windows begin with the last value
    close to the maximum, and the result is None if this is hardly later than otherwise, or if the curve is noisy.
    """
    kept = value > CLEAR / 2 * offset
    kept[0] = False
    time, y = time[kept], np.log(value[kept] - offset)
    if len(y) < LEAST:
        return None
    origin = float(time[0]) if delayed else min(float(time[0]), 0.0)
    envelope = time, np.maximum.accumulate(y[::-1])[::-1]
    noisy = _noise(time, y) > _LOUD and _is_white(y)
    dip = math.inf if noisy else _dip(time, y, level)
    crests, miss = _crests(y, dip)
    while crests is not None:  # beats: if the crests are a wave themselves, its crests follow the decay more closely
        beats, more = _crests(y[crests], dip)
        if beats is None:
            break
        crests, miss = crests[beats], max(miss, more)
    # Modes of both signs cross zero a few times; only the samples after the last dip are used.
    begin = 0 if crests is not None else _after_dips(y, dip)
    peak = begin + int(np.argmax(y[begin:]))
    low = slice(max(after_last(y[:begin] >= y[peak]) - 1, 0), peak + 1)
    deep = begin > 0 and peak < len(y) - 1 and np.median(y[low]) < y[peak] - _DEEP
    echo = float(time[peak]) if deep and time[peak] - time[low.start] >= time[-1] - time[peak] else None
    waves = crests is not None or begin > 0
    period = 1
    if crests is not None:
        period = math.ceil(float(np.median(np.diff(crests))))
        time, y = time[crests], y[crests]
    sigma = max(_noise(time, y), miss)
    near = y >= y.max() - 4 * sigma - 0.05
    top = int(np.argmax(near))
    middle = (time[0] + time[-1]) / 2
    begin = max(begin, top if time[top] <= middle else 0)
    earlier = origin, float(time[begin])
    if late:
        origin = _summit(time, y, near)
        begin = max(begin, after_last(near) - 1, int(np.searchsorted(time, origin)))
    smooth = bool(len(y) - begin >= LEAST and time[begin] - time[0] <= 0.75 * (time[-1] - time[0]))
    gain = max(origin - earlier[0], time[begin] - earlier[1]) / (time[-1] - earlier[0])
    if late and (sigma > _LOUD or not smooth or gain < _LATER):
        return None
    begin = begin if smooth else 0
    time, y = time[begin:], y[begin:]
    unit = float(time[-1] - origin)
    s = (time - origin) / unit
    floor = _share(level, y)
    starts = [int(np.searchsorted(s, s[0] + share * (s[-1] - s[0]) * (1 - 1e-9))) for share in _BEGINNINGS]
    parts = [slice(min(start, len(s) - LEAST), None) for start in starts]
    points = [_blocks(s[part], y[part], sigma, floor[part]) for part in parts]
    return Windows(points, origin, unit, smooth, period, waves, noisy, _falling(*envelope, origin, unit), echo)


def _summit(time: np.ndarray, y: np.ndarray, near: np.ndarray) -> float:
    """Return the time of the maximum of y between samples, from a parabola through the samples ``near`` it and their
    neighbors.
    """
    part = slice(max(int(np.argmax(near)) - 1, 0), after_last(near) + 1)
    at, zero = time[part], float(time[np.argmax(y)])
    bend, slope, _ = np.polyfit(at - zero, y[part], 2) if len(at) > 2 else np.zeros(3)
    return float(np.clip(zero - slope / (2 * bend), at[0], at[-1])) if bend < 0 else zero


def _falling(time: np.ndarray, envelope: np.ndarray, origin: float, unit: float) -> Points:
    """Return the envelope of a curve, from the maximum of the curve on, as :class:`Points`.

    ``envelope`` contains the logarithms of the envelope. ``origin`` and ``unit`` define the time scale of the points.
    """
    top = after_last(envelope == envelope[0]) - 1
    return Points((time[top:] - origin) / unit, envelope[top:], np.ones(len(time) - top))


def after_last(mask: np.ndarray) -> int:
    """Return one plus the index of the last True element; 0 if there is none."""
    return len(mask) - int(np.argmax(mask[::-1])) if mask.any() else 0


def _share(level: float, y: ArrayLike) -> np.ndarray:
    """Return the errors that a noise floor of the given level causes in the logarithms y of a curve."""
    return 0.5 * np.minimum(level * np.exp(np.minimum(-np.asarray(y), 600.0)), 1e6)


def _dip(time: np.ndarray, y: np.ndarray, level: float) -> float:
    """Return the depth above which noise cannot explain a dip in the logarithm y of a curve; ``level`` is the noise
    floor.
    """
    noise = max(_noise(time, y), float(_share(level, y.min())))
    return max(min(_DIP, 3 * noise) * math.sqrt(math.log(max(len(y), 2))), _RIPPLE)


def _is_white(y: np.ndarray) -> bool:
    """Return True if the fast changes of a curve's logarithm are white noise, by Fisher's test of the largest
    spectral line.

    The spectrum is the spectrum of second differences, divided by the spectrum of second differences of white noise.
    The lowest quarter of the spectrum is left out, because the decay itself contributes to it.
    """
    n = len(y) - 2
    if n < _FEWEST_WHITE:
        return False
    low, high = np.quantile(y[2:] - 2 * y[1:-1] + y[:-2], (0.01, 0.99))
    bent = np.clip(y[2:] - 2 * y[1:-1] + y[:-2], low, high)  # a sample near zero is no line
    angle = 2 * math.pi * np.fft.rfftfreq(n)[1:]
    power = (np.abs(np.fft.rfft(bent)[1:]) / (1 - np.cos(angle)))[angle > math.pi / 4] ** 2
    return bool(power.max() < power.mean() * math.log(len(power) / _UNLIKELY))


def _crests(y: np.ndarray, dip: float) -> tuple[np.ndarray | None, float]:
    """Return the indices of the crests of the waves in y, the logarithm of a curve, and the error of their heights.

    A crest is a maximum that stands out by at least ``dip``. Samples more than two periods away from all crests are
    also included. Returns (None, 0) if there are too few crests.
    """
    from scipy.signal import find_peaks

    peaks = find_peaks(y, prominence=dip)[0]
    if len(peaks) < FEWEST:
        return None, 0.0
    everything = np.arange(len(y))
    period = float(np.median(np.diff(peaks)))
    after = np.searchsorted(peaks, everything)
    ahead, behind = peaks[np.minimum(after, len(peaks) - 1)], peaks[np.maximum(after - 1, 0)]
    distance = np.minimum(np.abs(ahead - everything), np.abs(everything - behind))
    # A sample misses its crest by up to half a step, u = π/2 / period; log cos u then spreads by 0.15 u².
    return everything[(distance == 0) | (distance > 2 * period)], 0.15 * (math.pi / 2 / period) ** 2


def _after_dips(y: np.ndarray, dip: float) -> int:
    """Return the index of the first sample after the last dip in the logarithm y of a curve; 0 without a dip.

    ``dip`` is the smallest depth of a dip.
    """
    from scipy.signal import find_peaks

    dips = find_peaks(-y, prominence=dip)[0]
    return int(dips[-1]) + 1 if len(dips) else 0


def _blocks(s: np.ndarray, y: np.ndarray, sigma: float, floor: np.ndarray) -> Points:
    """Replace samples by the means of blocks of consecutive samples; return the means as points.

    Half of the block edges are evenly spaced in time, for exponential laws, and half in log time, for power laws. Each
    mean covers only the middle of its block, so that the curvature of y changes the mean by at most the noise.
    ``sigma`` is the standard deviation of the noise of y, and ``floor`` contains the errors of y that the noise floor
    causes.
    """
    n = len(s)
    if n <= 2 * _BLOCKS:
        return Points(s, y, 1 / (sigma**2 + 1.25 * floor**2 + _DISCREPANCY**2))
    ends = s[0], s[-1]
    even = np.linspace(*ends, _BLOCKS, endpoint=False)
    edges = [even, s[0] + np.geomspace(s[1] - s[0], ends[1] - ends[0], _BLOCKS, endpoint=False)]
    starts = np.unique(np.searchsorted(s, np.concatenate(edges) * (1 - 1e-9)))  # no sample on an edge: it would wobble
    stops = np.append(starts[1:], n)
    middle = (starts + stops - 1) // 2
    reach = (stops - starts - 1) // 2
    bend = np.abs(y[middle + reach] - 2 * y[middle] + y[middle - reach]) / np.maximum(reach, 1) ** 2
    noise = np.sqrt(sigma**2 + floor[middle] ** 2)
    wanted = (24 * noise / np.maximum(bend, 1e-30)) ** 0.4 / 2
    half = np.minimum(np.floor(wanted), reach).astype(int)
    count = 2 * half + 1
    mean_s, mean_y = (
        np.where(half > 0, (total[middle + half + 1] - total[middle - half]) / count, each[middle])
        for each, total in ((each, np.concatenate([[0.0], np.cumsum(each)])) for each in (s, y))
    )
    bias = np.where(half > 0, bend * count**2 / 24, 0.0)
    variance = noise**2 / count + 0.25 * floor[middle] ** 2 + bias**2 + _DISCREPANCY**2
    return Points(mean_s, mean_y, 1 / variance)


def _noise(time: np.ndarray, y: np.ndarray) -> float:
    """Estimate the standard deviation of the noise of a curve.

    Each sample is compared with a polynomial through the neighbors of the sample: one, two or three neighbors on each
    side. This gives three estimates, of which the smallest is returned.
    """
    found = []
    for reach in (1, 2, 3):
        width = len(y) - 2 * reach
        if width < 5:
            break
        steps = [step for step in range(2 * reach + 1) if step != reach]
        times, values = (np.stack([each[step : step + width] for step in steps]) for each in (time, y))
        center, share = time[reach : reach + width], np.ones_like(times)
        for i in range(len(steps)):
            for j in range(len(steps)):
                if i != j:
                    share[i] *= (center - times[j]) / (times[i] - times[j])
        residual = y[reach : reach + width] - (share * values).sum(0)
        found.append(1.4826 * np.median(np.abs(residual) / np.sqrt(1 + (share**2).sum(0))))
    return float(min(found, default=0.0))
