"""How a memory curve decays: exponentially, as a power of time, not at all, or to an end; and how long it lasts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.instruments._decay_models import Candidate, candidates, one_mode
from stablessm.instruments._decay_points import CLEAR, FEWEST, NEGLIGIBLE, Points, after_last, noise_floor, points

_ROUNDING = 1e-7  # what is exactly zero has fallen below this fraction of the top: single precision sees no more
_CLOSE = 3.0  # standard deviations by which a law may miss the points and still give the rate
_EXACT = 0.3  # a law that misses them by less than noise would is the law itself
_FOLLOWS = 15.0  # standard deviations: a curve that obeys a law, waves and noise and all, stays within 12
_LEVEL = 0.25  # what falls by more than this (a logarithm) in the last third has not come to rest
_NAMES = {
    "exponential": "an exponential",
    "polynomial": "a power law",
    "none": "no decay",
    "undecided": "a law of which too little is seen",
}


@final
@dataclass(frozen=True)
class DecayFit:
    """How a curve decays (definition 4.2 of paper 000, 2.2 of 004) and the law of its tail.

    M(t) = e^log_amplitude (t + shift)^(-power) e^(-rate t)

    ``kind``: ``exponential``, of this ``rate`` per unit of time; ``polynomial``, of this ``exponent`` (= ``power``);
    ``none``: what is left at the end stays; ``finite``: it is zero after ``last_lag``; or ``undecided``.
    ``interval`` is the 95 % confidence interval of the rate or the exponent, given the kind. ``evidence`` is the log of
    the likelihood ratio (by BIC) to the best law of another kind, 0 if undecided for want of data. ``used`` is the time
    from the top of the curve to its last sample clear of ``floor``. An exponential whose mode is repeated, or the last
    of many, has a power in front of it.
    """

    kind: Literal["exponential", "polynomial", "none", "finite", "undecided"]
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

    def __call__(self, times: ArrayLike) -> np.ndarray:
        """The law at these times: of the tail, so below an early faster mode. NaN if undecided; a box if finite."""
        t = np.asarray(times, dtype=float)
        value = np.exp(self.log(t))
        return value if self.last_lag is None else np.where(t <= self.last_lag, value, 0.0)

    def log(self, times: ArrayLike) -> np.ndarray:
        """The logarithm of the law, also where the law underflows."""
        t = np.asarray(times, dtype=float)
        line = self.log_amplitude - (self.rate or 0.0) * t
        with np.errstate(invalid="ignore", divide="ignore"):  # a power law has a beginning, NaN before it
            return line - self.power * np.log(t + self.shift) if self.power else line


def fit_decay(time: ArrayLike, value: ArrayLike, *, floor: float | None = None, margin: float = 2.0) -> DecayFit:
    """Decide how a curve decays. ``floor``: values up to it carry no information, if that is known.

    Five laws, M(t) = c e^(-βt), a sum of two of these, c (t + t0)^(-p), the same times e^(-βt), and the same plus a
    level, are fitted to log M from its top to where it is lost in the floor, on the maxima of an oscillation. The BIC
    decides; a law that beats those of another kind by less than ``margin`` (a log likelihood ratio) is not claimed,
    nor one that falls less than threefold in the time seen, nor a power of which less than eight times t0 is seen (of
    which less than 2.5 times t0 is seen, it passes for an exponential). A flat tail below 10⁻⁵ of the top is a floor,
    above it memory that does not decay. Nothing depends on the units of time and value.

    >>> t = np.arange(200) * 0.1
    >>> fit = fit_decay(t, 3 * np.exp(-0.7 * t))
    >>> fit.kind, round(fit.rate, 6), round(float(fit(0.0)), 6)
    ('exponential', 0.7, 3.0)
    >>> fit_decay(t, (1 + t) ** -1.1).kind, fit_decay(t, 1 + np.exp(-t)).kind, fit_decay(t, t < 5).kind
    ('polynomial', 'none', 'finite')
    """
    t, v = _curve(time, value)
    floor = floor or 0.0
    for name, number in (("floor", floor), ("margin", margin)):
        if not 0 <= number < math.inf:
            raise ArgumentError(name, "a finite number, not negative", number)
    whole, top = (float(t[0]), float(t[-1])), float(v.max())
    if len(v) < FEWEST:
        return DecayFit("undecided", f"{len(v)} samples are too few; {FEWEST} are the least", 0.0, whole, floor)
    if top <= floor:
        reason = "nothing is above the floor" if floor else "nothing is above zero"
        return DecayFit("finite", reason, math.inf, whole, floor, last_lag=whole[0], log_amplitude=-math.inf)
    v = v / top
    if v[-1] > 0.5 > 2 * v[: len(v) // 2].max():  # its beginning may be below a floor that its end has raised
        return DecayFit("none", "it grows", math.inf, whole, floor, log_amplitude=math.log(top))
    level, offset = noise_floor(t, v)
    level = max(level, floor / top)
    stop = _stop(v, level)
    if (abrupt := _abruptness(v[:stop], len(v) - stop, level or _ROUNDING)) > 0:
        end, height = float(t[stop - 1]), math.log(v[:stop].mean()) + math.log(top)
        reason = f"it ends at {end:.4g}, where it falls e^{abrupt:.1f} times further than a decay would"
        return DecayFit("finite", reason, abrupt, (whole[0], end), level * top, last_lag=end, log_amplitude=height)
    if level == 0 and stop < len(v) and v[stop - 1] < NEGLIGIBLE:
        level = float(v[stop - 1])  # it came down to rounding, and in the end to zero
    stop, seen, laws = _laws(t, v, level, offset)
    if laws and laws[0].vote in ("none", "undecided") and laws[0].log_end < math.log(NEGLIGIBLE):
        # A floor that is only just reached is too short for noise_floor; the fit has found it.
        offset = math.exp(laws[0].log_end)
        level = max(level, 1.5 * offset)
        stop, seen, laws = _laws(t, v, level, offset)
    if seen is None:
        used = (whole[0], float(t[max(after_last(v > level) - 1, 0)]))
        return DecayFit("undecided", "too few samples are clear of the floor", 0.0, used, level * top)
    return _decide(laws, seen, (seen.origin, float(t[stop - 1])), level * top, margin, math.log(top))


def memory_time(time: ArrayLike, value: ArrayLike, eps: float, fit: DecayFit | None = None) -> float:
    """The last time at which M > eps max M.

    If M is above at the last sample, that is infinite; with a ``fit``, the time at which its law comes down to
    eps max M, infinite if the kind is ``none`` or ``undecided``. Samples in the floor of the fit do not count.

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
    if fit is None or fit.kind not in ("exponential", "polynomial"):
        return math.inf
    return _first_below(lambda s: float(fit.log(s)) - math.log(eps * top), float(t[-1]))


def effective_length(time: ArrayLike, value: ArrayLike, fit: DecayFit | None = None) -> float:
    """∫ M dt / max M, the length of a box of the same height and area; 1/β for e^(-βt).

    Without a ``fit`` the integral ends with the samples. With one, its law goes on after the last sample clear of the
    floor: infinite for ``none`` and for exponents up to 1; nothing is added for ``finite`` and ``undecided``.

    >>> t = np.arange(500) * 0.01
    >>> round(effective_length(t, np.exp(-t)), 3), round(effective_length(t, np.exp(-t), fit_decay(t, np.exp(-t))), 3)
    (0.993, 1.0)
    """
    t, v = _clear(*_curve(time, value), fit)
    top = float(v.max())
    return (float(np.trapezoid(v, t)) + _rest(fit, float(t[-1]))) / top if top else 0.0


def half_life(time: ArrayLike, value: ArrayLike, fit: DecayFit | None = None) -> float:
    """The time after the first sample by which half of ∫ M dt has passed; log 2 / β for e^(-βt).

    Half of what the model will ever remember is more recent. The integral is that of :func:`effective_length`.

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


def _laws(t: np.ndarray, v: np.ndarray, level: float, offset: float) -> tuple[int, Points | None, list[Candidate]]:
    """(how many samples come before the floor, the points among them, the laws fitted to those, best first)."""
    stop = _stop(v, level)
    seen = points(t[:stop], v[:stop], offset)
    return stop, seen, candidates(seen) if seen else []


def _decide(
    laws: list[Candidate], seen: Points, used: tuple[float, float], floor: float, margin: float, log_top: float
) -> DecayFit:
    best = laws[0]
    rival = next((law for law in laws if law.vote != best.vote), None)
    evidence = math.inf if rival is None else (rival.bic - best.bic) / 2
    if best.vote == "undecided":
        return DecayFit("undecided", best.reason, 0.0, used, floor)
    beaten = "every law agrees" if rival is None else f"{_NAMES[rival.vote]} is e^{evidence:.1f} times less likely"
    if evidence < margin:
        return DecayFit("undecided", f"{_NAMES[best.vote]} fits best, but {beaten}", evidence, used, floor)
    # Modes in any mixture come down to the slowest; a power or a rest that the points do not follow is a guess.
    if best.vote != "exponential" and best.misfit > _FOLLOWS:
        reason = f"{_NAMES[best.vote]} fits best, but not well: no law follows the points"
        return DecayFit("undecided", reason, evidence, used, floor)
    end = one_mode(seen.last(1 / 3))
    if best.vote == "none" and (fall := end.rate / 3) > _LEVEL:
        reason = f"no law fits, and it still falls by {1 - math.exp(-fall):.0%} in the last third of the time"
        return DecayFit("undecided", reason, evidence, used, floor)
    if best.vote == "none":
        height = best.log_end + log_top
        return DecayFit("none", f"{best.reason}; {beaten}", evidence, used, floor, log_amplitude=height)
    if best.vote == end.vote == "exponential" and best.misfit > _EXACT:
        best = _at_the_end(best, end, one_mode(seen.last(1 / 6)))
    exponential = best.vote == "exponential"
    unit = seen.unit if exponential else 1.0
    rate, exponent = (best.rate / unit, None) if exponential else (None, best.power)
    claim = f"it falls at the rate {rate:.4g}" if exponential else f"it falls as the power {exponent:.4g} of time"
    return DecayFit(
        best.vote,
        f"{claim}; {beaten}",
        evidence,
        used,
        floor,
        rate,
        exponent,
        interval=(max(best.interval[0], 0.0) / unit, best.interval[1] / unit),
        log_amplitude=best.log_c + log_top + best.power * math.log(seen.unit) + (rate or 0.0) * seen.origin,
        shift=best.shift * seen.unit - seen.origin,
        power=best.power,
    )


def _at_the_end(best: Candidate, third: Candidate, sixth: Candidate) -> Candidate:
    """The slowest mode shows at the end: the rate there, if the law that decided is off, or a wider interval."""
    low, high = third.interval
    if best.misfit <= _CLOSE and low <= best.rate <= high:
        return replace(best, interval=(min(best.interval[0], third.rate), max(best.interval[1], third.rate)))
    drift = 4 * abs(third.rate - sixth.rate)  # how far that mode still is from showing alone
    return replace(third, interval=(low - drift, high + drift))


def _stop(value: np.ndarray, floor: float) -> int:
    """How many samples, from the first, come before the curve is lost in the floor, or in subnormal numbers."""
    return after_last(value > max(CLEAR * floor, np.finfo(float).tiny))


def _abruptness(value: np.ndarray, missing: int, floor: float) -> float:
    """By how much more a curve falls at its end than its last fall and a hundredfold explain, as a logarithm.

    A decay arrives at the floor: its last value clear of the floor is within one step of it.
    """
    n = len(value)
    if n == 0 or missing < max(4, 2 * int(np.diff(np.flatnonzero(value > CLEAR * floor), prepend=-1).max(initial=1))):
        return -math.inf
    width = max(1, min(FEWEST, n // 2))
    before, after = value[-2 * width : n - width].max(initial=0.0), value[-width:].max()
    step = math.log(max(before / after, 1.0)) / width
    return math.log(value[-3:].max() / floor) - math.log(100) - 6 * step


def _clear(t: np.ndarray, v: np.ndarray, fit: DecayFit | None) -> tuple[np.ndarray, np.ndarray]:
    """The samples up to where the fit found the floor; where no law goes on, the next is in it, or zero."""
    stop = len(t) if fit is None else max(int(np.searchsorted(t, fit.used[1], side="right")), 1)
    if fit is not None and fit.kind in ("finite", "undecided") and stop < len(t):
        return t[: stop + 1], np.append(v[:stop], v[stop] if fit.kind == "undecided" else 0.0)
    return t[:stop], v[:stop]


def _rest(fit: DecayFit | None, start: float) -> float:
    """∫ of the law from ``start`` on."""
    if fit is None or fit.kind in ("finite", "undecided"):
        return 0.0
    if fit.rate is not None:  # Gauss and Laguerre's rule: exact where there is no power
        x, weight = np.polynomial.laguerre.laggauss(16)
        power = (start + fit.shift + x / fit.rate) ** -fit.power
        return math.exp(fit.log_amplitude - fit.rate * start) / fit.rate * float(weight @ power)
    return float(fit(start)) * (start + fit.shift) / (fit.power - 1) if fit.power > 1 else math.inf


def _first_below(excess: Callable[[float], float], start: float) -> float:
    """The time after ``start`` at which a decreasing function comes down to zero; ``start`` if it is below already."""
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
    """As float64; a tensor too."""
    if isinstance(array, Tensor):
        array = array.detach().cpu().to(torch.promote_types(array.dtype, torch.float64))
    if np.iscomplexobj(array):
        raise ArgumentError(name, "real numbers", "complex ones")
    return np.asarray(array, dtype=float)
