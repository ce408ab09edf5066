"""The kind of decay of a memory curve: exponential, stretched exponential, polynomial, finite, or none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stablessm._checked import checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm.instruments._decay_models import G, P
from stablessm.instruments._decay_points import CLEAR, FEWEST, NEGLIGIBLE, Windows, after_last, noise_floor, windows
from stablessm.instruments._decay_verdict import MORE, Verdict, decide
from stablessm.instruments._decay_votes import tail

_ROUNDING = 1e-7  # values that are exactly zero count as this fraction of the top, the resolution of float32
_ABRUPT = 1.2  # least abruptness of the end of a finite memory; a Gaussian of few samples comes close to it
_OF_ALL = 3e-6  # a plateau below this fraction of the largest value is rounding, even if the first value is far larger


@final
@checked
@dataclass(frozen=True, repr=False)
class DecayFit(Result):
    """The kind of decay of a curve (IAT definition 4.2, StableSSM definition 2.2), the law of its tail, and the
    evidence.

    The law of the tail is M(t) = e^log_amplitude (t + shift)^(-power) e^(-rate t). For the kind ``stretched`` it is
    M(t) = e^log_amplitude exp(-((t + shift)/timescale)^stretch).

    ``kind`` is one of

    - ``exponential``, with ``rate`` per unit of time,
    - ``polynomial``, with ``exponent`` (equal to ``power``),
    - ``stretched``, with ``stretch`` and ``timescale`` (``rate`` is None),
    - ``none``: the curve ends on a constant level,
    - ``finite``: the curve is zero (or in its noise floor) after the time ``last_lag``,
    - ``undecided``.

    ``reason`` explains the kind. ``evidence`` is the log of the likelihood ratio (by BIC) to the best law of another
    kind.

    ``interval`` is the 95 % interval of the rate, the exponent or the stretch, under the assumption that the kind is
    correct. The interval covers all laws of that kind that fit about as well as the best law in the last windows of the
    curve. It therefore includes the systematic error of the laws, not only the error from noise. ``used`` is the pair
    of the time of the first sample that was fitted and the time of the last sample that is clearly above ``floor``. An
    exponential law with a ``power`` other than 0 occurs if an eigenvalue is repeated, or if the curve is a sum of many
    modes.
    """

    kind: Literal["exponential", "polynomial", "stretched", "none", "finite", "undecided"]
    reason: str
    evidence: float
    used: tuple[float, float]
    floor: float = 0.0
    rate: float | None = None
    exponent: float | None = None
    interval: tuple[float, float] | None = None
    last_lag: float | None = None
    log_amplitude: float = math.nan
    shift: float = 0.0
    power: float = 0.0
    stretch: float | None = None
    timescale: float | None = None

    def __call__(self, times: ArrayLike) -> np.ndarray:
        """Return the values of the fitted law at the given times.

        The values are NaN if the kind is ``undecided``, and 0 after ``last_lag`` if the kind is ``finite``.
        """
        t = np.asarray(times, dtype=float)
        value = np.exp(self.log(t))
        return value if self.last_lag is None else np.where(t <= self.last_lag, value, 0.0)

    def log(self, times: ArrayLike) -> np.ndarray:
        """Return the logarithm of the fitted law at the given times; the logarithm is finite even where the law
        underflows.
        """
        t = np.asarray(times, dtype=float)
        line = self.log_amplitude - (self.rate or 0.0) * t
        with np.errstate(invalid="ignore", divide="ignore"):  # these laws are not defined (NaN) before their beginning
            if self.stretch is not None and self.timescale is not None:
                return line - ((t + self.shift) / self.timescale) ** self.stretch
            return line - self.power * np.log(t + self.shift) if self.power else line


@checked
def fit_decay(time: ArrayLike, value: ArrayLike, *, floor: float | None = None, margin: float = 2.0) -> DecayFit:
    """Decide how a measured curve decays, and fit a law to its tail.

    These laws are fitted to the logarithm of the curve M (if M oscillates, to its crests only):

    - an exponential c e^(-βt), and a sum or difference of two exponentials,
    - a power law c (t + t0)^(-p), and a power law times an exponential,
    - a stretched exponential c exp(-(t/τ)^s),
    - an exponential, a power law and a stretched exponential above a constant,
    - a constant.

    The laws are fitted in four windows. The first window is the time from the maximum of the curve to its last time,
    or to the time at which the curve reaches its floor; the other windows are the last 15/16, 3/4 and 1/2 of this time.
    The first sample is in no window, because it may belong to a skip connection.

    The first window in which a law fits within the noise decides, by the BIC. The verdict is ``undecided`` if

    - the evidence for the best law, against the laws of other kinds, is less than ``margin``,
    - a later window contradicts the best law,
    - the curve rises again after a deep dip that lasts as long as the rest of the curve (an echo),
    - the best law falls less than threefold (a stretched exponential: fivefold) in the window,
    - or the best law is a power law, and the last time is less than 2.5 t0.

    If no law fits, for example because M is a sum of many modes or of interfering waves, the curve is exponential in
    two cases: every window but the first, which may contain a transient, clearly favors an exponential; or the envelope
    of M falls at a nearly constant rate and, in its last half, by more than t^-5 would. The curve is polynomial if its
    envelope is a straight line in ln(t + t0) over at least a decade, possibly with a wave of ln t on it. If a curve is
    undecided and its maximum (or the end of a plateau) is late, the laws are also fitted from there on.

    A flat tail below 10⁻⁵ of the maximum is a floor; a flat tail above that is memory that does not decay. Scatter
    above 10 % is a wave if its spectrum has a line, and otherwise noise. The verdict does not depend on the units of
    time and value.

    Args:
        time: Times of the samples, in increasing order.
        value: Values of the curve, not negative.
        floor: Noise floor; values up to it carry no information (default: found from the tail).
        margin: Smallest evidence for a verdict, as a log likelihood ratio; laws with many parameters require more.

    >>> t = np.arange(200) * 0.1
    >>> fit = fit_decay(t, 3 * np.exp(-0.7 * t))
    >>> fit.kind, round(fit.rate, 6), round(float(fit(0.0)), 6)
    ('exponential', 0.7, 3.0)
    >>> fit_decay(t, (1 + t) ** -1.1).kind, fit_decay(t, 1 + np.exp(-t)).kind, fit_decay(t, t < 5).kind
    ('polynomial', 'none', 'finite')
    >>> fit = fit_decay(t, np.exp(-((t / 4) ** 2)))
    >>> fit.kind, round(fit.stretch, 6), round(fit.timescale, 6)
    ('stretched', 2.0, 4.0)
    """
    t, v = _curve(time, value)
    floor = floor or 0.0
    for name, number in (("floor", floor), ("margin", margin)):
        if not 0 <= number < math.inf:
            raise ArgumentError(name, "a finite number, not negative", number)
    whole, top = (float(t[0]), float(t[-1])), float(v.max())
    if len(v) < FEWEST:
        reason = f"the curve has too few samples: {len(v)} instead of at least {FEWEST}"
        return DecayFit("undecided", reason, 0.0, whole, floor)
    if top == 0:
        reason = "the curve is zero everywhere"
        return DecayFit("finite", reason, math.inf, whole, floor, last_lag=whole[0], log_amplitude=-math.inf)
    if top <= floor:
        reason = "no sample is above the noise floor; try larger inputs or float64"
        return DecayFit("undecided", reason, 0.0, whole, floor)
    v = _rounded(v / top)
    negligible = max(NEGLIGIBLE * float(v[1:].max()), _OF_ALL)
    level, offset = noise_floor(t, v, negligible)
    level = max(level, floor / top)
    stop = _stop(v, level)
    if (end := _end(t, v, stop, level, top)) is not None:
        return end
    if level == 0 and stop < len(v) and v[stop - 1] < negligible:
        level = float(v[stop - 1])  # the curve reached rounding, and then zero
        stop = _stop(v, level)
    begin = _delay(v[:stop], level)
    kept = t[begin:stop], v[begin:stop], offset, level
    seen = windows(*kept, delayed=begin > 0) if stop else None
    if seen is None:
        used = (whole[0], float(t[max(after_last(v > level) - 1, 0)]))
        reason = f"too few samples are clearly above the noise floor; {MORE}"
        return DecayFit("undecided", reason, 0.0, used, level * top)
    seen, verdict = _decided(seen, kept, margin, math.log(max(negligible, 2 * level)))
    used = (seen.origin + seen.unit * float(seen.points[0].s[0]), float(t[stop - 1]))
    fit = _described(verdict, seen, used, level * top, math.log(top))
    some = max(3, 2 * seen.period, _longest_gap(v[:stop], level) + 1)
    for part in (slice(max(stop - some, 0), stop), slice(stop, stop + some)):
        if verdict.fit is None or len(v[part]) < some:
            continue
        if fit(t[part]).min() > 3 * math.exp(verdict.fit.rms) * top * max(v[part].max(), level):
            reason = f"the curve falls below the best law at t = {float(t[part][0]):.4g}, where the memory may end"
            return DecayFit("undecided", reason, 0.0, used, level * top)
    return fit


def _decided(seen: Windows, kept: tuple[Any, Any, Any, Any], margin: float, least: float) -> tuple[Windows, Verdict]:
    """Return the verdict on a curve and its windows: ``seen``, or windows from the last maximum on if only these
    decide. ``kept`` are the arguments of :func:`windows`, ``margin`` and ``least`` of :func:`decide`.
    """
    verdict = decide(seen, margin, least)
    if verdict.kind != "undecided" or (late := windows(*kept, late=True)) is None:
        return seen, verdict
    again = decide(late, margin, least)
    return (late, again) if again.kind in ("exponential", "stretched") else (seen, verdict)


def _end(t: np.ndarray, v: np.ndarray, stop: int, level: float, top: float) -> DecayFit | None:
    """Return a fit (finite or undecided) for a curve that falls abruptly to its noise floor; None for other curves.

    ``t`` and ``v`` are times and values, with the values divided by their maximum ``top``. ``level`` is the level of
    the floor, and ``stop`` the number of samples before the curve stays at the floor.
    """
    floor, missing = level or _ROUNDING, len(v) - stop
    if missing <= _longest_gap(v[_delay(v, level) : stop], floor):
        return None
    gap, abrupt = _longest_gap(v[:stop], floor), _abruptness(t[: stop + 1], v[:stop], floor)
    if abrupt <= 0:
        return None
    used = float(t[0]), float(t[stop - 1])
    if missing < max(4, 1.5 * gap) or abrupt < _ABRUPT:
        reason = f"the curve drops to its floor after t = {used[1]:.4g}, where the memory may end; try a longer horizon"
        return DecayFit("undecided", reason, 0.0, used, level * top)
    reason = f"the curve ends after t = {used[1]:.4g}: it drops e^{abrupt:.1f} times further than a gradual decay would"
    height = math.log(v[:stop].mean()) + math.log(top)
    return DecayFit("finite", reason, abrupt, used, level * top, last_lag=used[1], log_amplitude=height)


def memory_time(time: ArrayLike, value: ArrayLike, eps: float, fit: DecayFit | None = None) -> float:
    """Return the memory time of a curve M: the last time at which M > eps max M.

    If the last sample is above eps max M, the result without a ``fit`` is infinite. With a ``fit``, the result is then
    the time at which the fitted law reaches eps max M (infinite for the kinds ``none`` and ``undecided``). Samples in
    the floor of the fit are ignored.

    >>> t = np.arange(50) * 0.1
    >>> curve = np.exp(-t)
    >>> round(memory_time(t, curve, 0.1), 6), memory_time(t, curve, 1e-4)
    (2.3, inf)
    >>> round(memory_time(t, curve, 1e-4, fit_decay(t, curve)), 6)
    9.21034
    """
    t, v = _clear(*_curve(time, value), fit)
    if not 0 < eps < 1:
        raise ArgumentError("eps", "a number between 0 and 1", eps)
    top = float(v.max())
    stop = after_last(v > eps * top)
    if stop < len(t) or (fit is not None and fit.kind == "finite"):
        return float(t[max(stop - 1, 0)])
    if fit is None or fit.kind not in ("exponential", "polynomial", "stretched"):
        return math.inf
    return _first_below(lambda s: float(fit.log(s)) - math.log(eps * top), float(t[-1]))


def effective_length(time: ArrayLike, value: ArrayLike, fit: DecayFit | None = None) -> float:
    """Return the effective length ∫ M dt / max M of a curve M: the width of a rectangle with the same height and area.

    For M = e^(-βt) the effective length is 1/β.

    Without a ``fit`` the integral ends at the last sample. With a ``fit``, the fitted law continues the curve after the
    last sample that is clearly above the floor. The result is then infinite for the kind ``none`` and for exponents up
    to 1; for the kinds ``finite`` and ``undecided``, nothing is added to the integral over the samples.

    >>> t = np.arange(500) * 0.01
    >>> round(effective_length(t, np.exp(-t)), 3), round(effective_length(t, np.exp(-t), fit_decay(t, np.exp(-t))), 3)
    (0.993, 1.0)
    """
    t, v = _clear(*_curve(time, value), fit)
    top = float(v.max())
    return (float(np.trapezoid(v, t)) + _rest(fit, float(t[-1]))) / top if top else 0.0


def half_life(time: ArrayLike, value: ArrayLike, fit: DecayFit | None = None) -> float:
    """Return the half-life of a curve M: the time after the first sample by which half of ∫ M dt has passed.

    For M = e^(-βt) the half-life is log 2 / β. The integral is computed as in :func:`effective_length`.

    >>> t = np.arange(5000) * 0.01
    >>> round(half_life(t, np.exp(-t)), 4)
    0.6932
    """
    t, v = _clear(*_curve(time, value), fit)
    passed = np.concatenate([[0.0], np.cumsum(np.diff(t) * (v[1:] + v[:-1]) / 2)])
    half = (passed[-1] + _rest(fit, float(t[-1]))) / 2
    if half in (0.0, math.inf):
        return float(half)
    if half <= passed[-1]:
        return float(np.interp(half, passed, t) - t[0])
    return _first_below(lambda s: _rest(fit, s) - half, float(t[-1])) - float(t[0])


def _described(verdict: Verdict, seen: Windows, used: tuple[float, float], floor: float, log_top: float) -> DecayFit:
    """Convert a verdict on a curve to a :class:`DecayFit`, with parameters in the units of the curve.

    ``log_top`` is the logarithm of the largest value of the curve, by which the values were divided for the verdict.
    ``used`` and ``floor`` are attributes of the result.
    """
    kind, fit, interval, value, unit = verdict.kind, verdict.fit, verdict.interval, verdict.value, seen.unit
    plain = (kind, verdict.reason, verdict.evidence, used, floor)
    if fit is None:
        return DecayFit(*plain)
    if kind == "none":
        return DecayFit(*plain, log_amplitude=float(seen.points[-1].y[-1]) + log_top)
    log_c, rate = tail(fit)
    log_c += log_top
    if kind == "stretched":
        scale, shift = unit * rate ** (-1 / value), -seen.origin
        return DecayFit(*plain, interval=interval, log_amplitude=log_c, shift=shift, stretch=value, timescale=scale)
    power, shift = float(fit.theta[P]), math.exp(fit.theta[G]) * unit - seen.origin
    log_c += power * math.log(unit)
    if kind == "polynomial":
        return DecayFit(*plain, exponent=power, interval=interval, log_amplitude=log_c, shift=shift, power=power)
    rate, spread, log_c = rate / unit, (interval[0] / unit, interval[1] / unit), log_c + rate / unit * seen.origin
    return DecayFit(*plain, rate=rate, interval=spread, log_amplitude=log_c, shift=shift, power=power)


def _rounded(value: np.ndarray) -> np.ndarray:
    """Round values to twelve digits, so that equal values stay equal after a change of units."""
    mantissa, exponent = np.frexp(value)
    return np.ldexp(np.round(mantissa * 2.0**40), exponent - 40)


def _stop(value: np.ndarray, floor: float) -> int:
    """Return the number of samples before the curve stays at its noise floor (or below the smallest normal number)."""
    return after_last(value > max(CLEAR * floor, np.finfo(float).tiny))


def _delay(value: np.ndarray, floor: float) -> int:
    """Return the number of samples to leave out before a curve that begins with a delay: all but the last in the floor.

    The first sample does not count, because it may belong to a skip connection.
    """
    return int(np.argmax(value[1:] > 3 * floor)) if len(value) > 1 else 0


def _abruptness(time: np.ndarray, value: np.ndarray, floor: float) -> float:
    """Return a positive number if a curve drops abruptly to its floor, and a negative number for a gradual decay.

    The number is log(last value / (100 floor)) minus six times the expected fall of the logarithm to the next sample,
    which is the first sample in the floor. The fall is estimated from the samples before. A curve that decays gradually
    comes close to the floor before it reaches the floor, so that the number is negative. ``time`` has one more entry
    than ``value``: the time of the first sample in the floor.
    """
    n = len(value)
    if n == 0 or len(time) == n:
        return -math.inf
    width = max(1, min(FEWEST, n // 2))
    before, after = value[-2 * width : n - width].max(initial=0.0), value[-width:].max()
    fallen = math.log(max(before / after, 1.0))  # 0 for a single sample
    step = fallen * float((time[n] - time[n - 1]) / (time[n - 1] - time[n - 1 - width])) if fallen else 0.0
    if n > 3 and value[-4:].min() > 0:  # a summit is too near for an average; the last three falls show the next
        step = max(step, float(np.log(value[-4:-1] / value[-3:]).min()))
    return math.log(value[-3:].max()) - math.log(100 * floor) - 6 * step


def _longest_gap(value: np.ndarray, floor: float) -> int:
    """Return the largest number of consecutive samples in the noise floor between two samples above the floor."""
    return int(np.diff(np.flatnonzero(value > CLEAR * floor), prepend=-1).max(initial=1)) - 1


def _clear(t: np.ndarray, v: np.ndarray, fit: DecayFit | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the times and values of a curve up to its noise floor; without a ``fit``, of the whole curve.

    For the kinds ``finite`` and ``undecided``, the first sample in the floor is also included; for ``finite``, the
    value of this sample is set to 0.
    """
    stop = len(t) if fit is None else max(int(np.searchsorted(t, fit.used[1], side="right")), 1)
    if fit is not None and fit.kind in ("finite", "undecided") and stop < len(t):
        return t[: stop + 1], np.append(v[:stop], v[stop] if fit.kind == "undecided" else 0.0)
    return t[:stop], v[:stop]


def _rest(fit: DecayFit | None, start: float) -> float:
    """Return the integral of the fitted law of decay from ``start`` to infinity; 0 if no law was fitted."""
    if fit is None or fit.kind in ("finite", "undecided"):
        return 0.0
    if fit.rate is not None:  # Gauss and Laguerre's rule: exact where there is no power
        x, weight = np.polynomial.laguerre.laggauss(16)
        power = (start + fit.shift + x / fit.rate) ** -fit.power
        return math.exp(fit.log_amplitude - fit.rate * start) / fit.rate * float(weight @ power)
    if fit.stretch is not None and fit.timescale is not None:
        from scipy.special import gamma, gammaincc

        order, begin = 1 / fit.stretch, ((start + fit.shift) / fit.timescale) ** fit.stretch
        return math.exp(fit.log_amplitude) * fit.timescale * order * float(gamma(order) * gammaincc(order, begin))
    return float(fit(start)) * (start + fit.shift) / (fit.power - 1) if fit.power > 1 else math.inf


def _first_below(excess: Callable[[float], float], start: float) -> float:
    """Return the first time from ``start`` on at which a decreasing function is zero or below."""
    from scipy.optimize import brentq

    if excess(start) <= 0:
        return start
    low, step = start, max(abs(start), 1e-300)
    while low + step < math.inf and excess(low + step) > 0:
        low, step = low + step, 2 * step
    return math.inf if low + step == math.inf else float(brentq(excess, low, low + step, xtol=1e-13 * step))


def _curve(time: ArrayLike, value: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    t, v = (_real(name, array) for name, array in (("time", time), ("value", value)))
    if t.ndim != 1 or t.size == 0:
        raise ArgumentError("time", "a vector of at least one sample", f"shape {t.shape}")
    if v.shape != t.shape:
        raise ArgumentError("value", f"shape {t.shape} (as time)", f"shape {v.shape}")
    if not (np.isfinite(t).all() and (np.diff(t) > 0).all()):
        raise ArgumentError("time", "finite times in increasing order", t)
    if not (np.isfinite(v).all() and (v >= 0).all()):
        raise ArgumentError("value", "finite values, none negative", v[~(np.isfinite(v) & (v >= 0))])
    return t, v


def _real(name: str, array: ArrayLike) -> np.ndarray:
    """Convert an array or tensor of real numbers to float64."""
    if isinstance(array, Tensor):
        array = array.detach().cpu().to(torch.promote_types(array.dtype, torch.float64))
    if np.iscomplexobj(array):
        raise ArgumentError(name, "real numbers", "complex ones")
    return np.asarray(array, dtype=float)
