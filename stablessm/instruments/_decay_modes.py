"""Corrects the decay of a memory curve by the rates of the slowest modes of the model's state."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from stablessm.instruments.decay import DecayFit

_NEARLY = 0.01  # relative uncertainty of the rate of a mode


def informed(fit: DecayFit, time: np.ndarray, value: np.ndarray, slowest: np.ndarray) -> DecayFit:
    """Return the fit of a memory curve, corrected by the rates ``slowest`` of the slowest modes of the model's state.

    A state that approaches a stable fixed point approaches it exponentially, and so does the output. The rate of the
    output is at least the rate of the slowest mode. It is equal to this rate if the mode reaches the output, and at
    most the rate at which the curve falls at its end. The interval of the result covers both bounds. If there are
    several rates, of several inputs, it covers the lowest and the largest of them.

    A curve that ends abruptly (``finite``) keeps its fit, because no mode reaches the output. So does a curve without
    samples above its floor.

    >>> from stablessm.instruments.decay import fit_decay
    >>> t = np.arange(300.0)
    >>> curve = np.exp(-0.1 * t) + 1e-20 * np.exp(-0.01 * t)
    >>> [round(end, 4) for end in informed(fit_decay(t, curve), t, curve, np.array([0.01])).interval]
    [0.0099, 0.1]
    """
    start, end = np.searchsorted(time, fit.used)
    low, high = float(slowest.min()), float(slowest.max())
    if fit.kind == "finite" or end <= start or value[end] <= fit.floor or not 0 < low <= high < math.inf:
        return fit
    modes = f"the slowest mode of the state has the rate {low:.4g}"
    if fit.kind == "exponential" and fit.interval is not None:
        first, last = fit.interval
        if first <= low <= last:
            return fit
        share = value[end] / value[start : end + 1].max()
        hidden = f" and is at most {share:.1g} of the curve" if low < first else ""
        interval = min(first, low * (1 - _NEARLY)), max(last, low * (1 + _NEARLY))
        return replace(fit, reason=f"{fit.reason}; {modes}{hidden}", interval=interval)
    middle = (start + end) // 2
    now = math.log(value[middle : end + 1].max() / value[end]) / float(time[end] - time[middle])
    interval = low * (1 - _NEARLY), max(high * (1 + _NEARLY), now)
    height = math.log(value[end]) + low * float(time[end])
    reason = f"the state approaches a fixed point, where {modes}; from the curve alone: {fit.reason}"
    return DecayFit("exponential", reason, fit.evidence, fit.used, fit.floor, low, None, interval, None, height)
