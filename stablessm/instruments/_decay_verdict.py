"""Decides which kind of decay a curve has, with the evidence and an interval for the rate, exponent or stretch.

Every law votes for a kind of decay in every window. The first window in which a law fits within the noise decides, by
the Bayesian information criterion (BIC); later windows must not contradict it. If no law fits, the curve is exponential
if every window clearly votes for an exponential, or if the curve falls at a nearly constant rate and by more than any
power of time could. The curve is polynomial if it approaches a power of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from stablessm.instruments._decay_log_time import power_of_time
from stablessm.instruments._decay_models import ABSENT, B, Fit, G, Q, fit_laws
from stablessm.instruments._decay_points import Points, Windows
from stablessm.instruments._decay_votes import CLOSELY, FLAT, FOLLOWS, REACH, Judgment, Kind, judge, parameter

MORE = "try a longer horizon, less noise or float64"
"""Advice for a curve that is undecided."""

_CONTRADICT = "parts of the curve contradict each other"
_PARAMETERS = {"exponential": "rate", "polynomial": "exponent", "stretched": "stretch"}
_NOISY = 0.1  # if the logarithm scatters by more than this, only an exponential is claimed,
_SCATTER = 0.02  # unless the scatter is at most this part of the fall
_MANY = ("a sum of two exponentials", "a power times an exponential")  # laws that resemble others
_REQUIRED = {"an exponential": 0.0, "a constant": 0.0} | dict.fromkeys(_MANY, 12.0)
"""Smallest evidence (difference of log likelihoods) for a law (of the other laws: 5); laws with many parameters
resemble others.
"""
_CLEARLY = 5.0  # evidence with which one window contradicts another, or decides although no law fits
_STEEP = 3.5  # powers of time up to 5 fall by less than e^3.5 in the last half of the time; a larger fall excludes them
_RISES = 1.35  # smallest factor by which a curve that is called rising rises in its last half
_RESTS = 0.3  # largest variation of the logarithm at the end of a curve that does not decay
_EVEN = 0.75  # smallest ratio of the decay rates in the two halves of a window in which an exponential fits
_EVEN_ALONE = 0.78  # the same if no law fits
_EVEN_UNSTRETCHED = 0.82  # the same if the windows agree on a stretched exponential
_BENT = 0.1  # largest distance of an envelope from its straight line, as a part of its fall
_WAVES = 0.15  # relative uncertainty of the slope of an envelope
_FEWEST_ALONE = 12  # smallest number of points if no law fits: with fewer, all windows contain the same points
_STRAIGHT_FALL = 2.5  # fall in the last half of the time that suffices if the logarithm is straight
_STRAIGHT = 0.9  # smallest ratio of decay rates over all windows that counts as straight
_SAME = 0.2  # |log(stretch)| above which a stretch differs from 1, and the largest difference between windows
_UNKNOWN = 0.06  # relative uncertainty of the rate if no law fits
_HIDDEN = 0.02  # relative uncertainty of the rate of several modes, because a slower mode may not show yet
_VAGUE = 0.3  # intervals with a larger relative half width do not contribute to the interval of the verdict
_INEXACT = 0.004  # relative uncertainty of an exponent, because few curves are exact powers of t + t0


@final
@dataclass(frozen=True)
class Verdict:
    """A verdict on a curve: the kind of decay, the reason, and the parameter with its interval.

    ``value`` is the rate (per ``Windows.unit``), the exponent or the stretch; ``fit`` is the law of the tail.
    """

    kind: Kind
    reason: str
    evidence: float = 0.0
    fit: Fit | None = None
    value: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)


def decide(seen: Windows, margin: float, log_negligible: float) -> Verdict:
    """Decide which kind of decay a curve has, given its windows ``seen``.

    ``margin`` is the smallest evidence that decides, as a log likelihood ratio. A constant level whose logarithm is
    below ``log_negligible`` counts as a noise floor.
    """
    if seen.echo is not None:
        reason = f"the curve rises again until t = {seen.echo:.4g}, and ends too early to show whether it does so again"
        return Verdict("undecided", f"{reason}; {MORE}")
    judged = [judge(*pair, log_negligible) for pair in zip(fit_laws(seen.points), seen.points, strict=True)]
    first = next((i for i, each in enumerate(judged) if each.followed), None) if seen.smooth else None
    verdict = Verdict("undecided", "no law fits within the noise")
    verdict = verdict if first is None else _followed(judged, first, margin, seen)
    verdict = _unfollowed(judged, verdict, seen) if verdict.kind == "undecided" else verdict
    if verdict.kind in ("exponential", "none") and not judged[0].followed and power_of_time(seen.envelope) is not None:
        return Verdict("undecided", f"{_CONTRADICT}: {verdict.reason}, and the whole envelope falls as a power of time")
    return verdict


def _followed(judged: list[Judgment], first: int, margin: float, seen: Windows) -> Verdict:
    """Decide the kind of decay from window ``first``, the first one in which a law fits within the noise.

    ``judged`` contains the judgments of all windows ``seen``. The verdict is ``undecided`` if the evidence is too weak
    (less than ``margin``, or than the law requires), or if later windows contradict the law that fits best in window
    ``first``.
    """
    chosen, later = judged[first], judged[first + 1 :]
    kind, evidence = chosen.vote, chosen.evidence
    name = chosen.best.law
    rival, ratio = f"{chosen.rival.law} is" if chosen.rival else "", f"e^{evidence:.1f} times less likely"
    comparison = f"{rival} {ratio}" if rival else "all fitted laws agree"
    if kind == "undecided":
        return Verdict(kind, _barely(chosen))
    if evidence < max(margin, _REQUIRED.get(chosen.best.law, 5.0), 0.0 if chosen.best.misfit <= FOLLOWS else _CLEARLY):
        return Verdict("undecided", f"{name} fits best, but {rival} only {ratio}; {MORE}", evidence)
    scattered = chosen.best.rms > max(_NOISY, _SCATTER * float(np.ptp(chosen.window.y)))
    if kind != "exponential" and not seen.noisy and scattered:
        reason = f"{name} fits best, but the curve scatters around it by {chosen.best.rms:.0%}"
        return Verdict("undecided", reason, evidence)
    if not all(each.agrees(kind, _CLEARLY) for each in later):
        other = next(each for each in later if not each.agrees(kind, _CLEARLY))
        reason = f"{_CONTRADICT}: {name} fits best from t = {_at(chosen, seen):.4g} on, "
        return Verdict("undecided", f"{reason}and {other.best.law} from t = {_at(other, seen):.4g} on", evidence)
    if kind == "exponential" and _fall(judged[-1].window) < _STEEP and _evenness(judged[-1].window) < _EVEN:
        reason = f"{name} fits best, but the decay rate changes in the last half of the curve"
        return Verdict("undecided", reason, evidence)
    value, _ = parameter(kind, chosen.best)
    if kind == "stretched" and chosen.best.rms > CLOSELY and abs(math.log(value)) < _SAME:
        reason = f"{name} fits best, but its stretch of {value:.3g} is close to 1, the stretch of an exponential"
        return Verdict("undecided", reason, evidence)
    if first > (kind != "stretched") and not any(each.vote == kind for each in later):
        reason = f"{name} fits only from t = {_at(chosen, seen):.4g} on, and no later part of the curve confirms it"
        return Verdict("undecided", reason, evidence)
    if kind == "none" and not _rests(judged[-1], seen.noisy):
        return Verdict("undecided", f"{name} fits best, but the last quarter of the curve is not flat", evidence)
    if kind == "none":
        rise = math.exp(-_fall(judged[-1].window))
        end = "ends on a constant level" if rise < _RISES else f"rises by a factor of {rise:.3g} in its last half"
        return Verdict(kind, f"the curve {end}; {comparison}", evidence, chosen.best)
    return _claim(kind, chosen.best, judged[first:], comparison, evidence, seen)


def _claim(kind: Kind, best: Fit, judged: list[Judgment], comparison: str, evidence: float, seen: Windows) -> Verdict:
    """Return a verdict with the given kind of decay and an interval of the rate, exponent or stretch.

    ``best`` is the law that decided, with the given ``evidence``; ``judged`` contains the judgments of windows, the
    last of which ends the curve. The interval covers the values of ``best`` and of all laws of the same kind that fit
    about as well as the best law in one of the last two windows. If the interval is wider than the value itself, the
    verdict is ``undecided``. Otherwise the interval is widened on both sides, because the rate may still change after
    the end of the curve. ``comparison`` is the second half of the text that explains the verdict.
    """
    value, half = parameter(kind, best)
    spans = [(value - half, value + half)]
    for each in judged[-2:]:
        found = [parameter(kind, fit) for fit in each.close(kind)]
        spans += [(middle - half, middle + half) for middle, half in found if half < _VAGUE * middle]
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    if high - low > value:
        low, high = (end / seen.unit if kind == "exponential" else end for end in (low, high))
        values = f"values from {low:.3g} to {high:.3g}"
        reason = f"the {_PARAMETERS[kind]} is uncertain: laws that fit about as well give {values}"
        return Verdict("undecided", reason, evidence)
    if kind != "exponential":
        least = _INEXACT
    else:
        least = _UNKNOWN if not judged[-1].followed else 0.0 if best.law == "an exponential" else _HIDDEN
    room = max((high - low) / 4, least * value)
    claim = {
        "exponential": f"the curve decays exponentially at the rate {value / seen.unit:.4g}",
        "polynomial": f"the curve decays as a power law with exponent {value:.4g}",
        "stretched": f"the curve decays as a stretched exponential with stretch {value:.4g}",
    }[kind]
    return Verdict(kind, f"{claim}; {comparison}", evidence, best, value, (max(low - room, 0.0), high + room))


def _unfollowed(judged: list[Judgment], undecided: Verdict, seen: Windows) -> Verdict:
    """Return the verdict on a curve that no law fits, such as a curve of many modes: exponential, polynomial or
    undecided.

    The curve is exponential in three cases:

    - Its envelope, or the curve after its last dip, falls at a nearly constant rate, and by more than any power of time
      could.
    - The curve falls by less, but at the same rate everywhere.
    - Every window votes for an exponential. All windows but the first, which may contain a transient, have clear
      evidence.

    The curve is polynomial if its envelope is a straight line in log time. A stretched exponential can also fall at a
    nearly constant rate. If stretched exponentials with the same stretch fit the curve in all windows but the last, the
    verdict is therefore ``undecided``.
    """
    modes = [each.fits["an exponential"] for each in judged]
    fall = _fall(judged[-1].window)
    slow, *_, fast = sorted(float(mode.theta[B]) for mode in modes[1:])
    least = _EVEN_UNSTRETCHED
    even = _evenness(judged[-2].window) >= least and _evenness(judged[-3].window) >= least**2
    steep = fall >= _STEEP and even and modes[-1].rms <= 0.15 * fall
    straight = fall >= _STRAIGHT_FALL and slow >= _STRAIGHT * fast and _evenness(judged[-1].window) >= _STRAIGHT
    agreed = all(each.vote == "exponential" for each in judged) and all(
        each.evidence >= _CLEARLY for each in judged[1:]
    )
    stretched = not agreed and _same_stretch(judged[:-1])
    by_envelope = _by_envelope(seen, undecided, _EVEN_UNSTRETCHED if stretched else _EVEN_ALONE**2)
    if by_envelope is not undecided:
        return by_envelope
    if (by_log_time := _by_log_time(judged, undecided, seen)) is not undecided:
        return by_log_time
    if not agreed and (not (steep or straight) or stretched or modes[0].n < _FEWEST_ALONE):
        return undecided
    comparison = f"its last half falls by a factor of e^{fall:.1f} at a nearly constant rate; {_indecision(undecided)}"
    best = next(iter(judged[-1].close("exponential")), modes[-1])
    return _claim("exponential", best, judged, comparison, fall, seen)


def _by_envelope(seen: Windows, undecided: Verdict, least: float) -> Verdict:
    """Return the verdict exponential if the envelope of a curve falls far, at a nearly constant rate; else
    ``undecided``.

    Straight lines are fitted to the logarithm of the whole envelope, of its last three quarters and of its last half.
    The rate is the slope of the first line if the curve has waves, otherwise the slope of the last line. The interval
    of the rate contains all three slopes and a continuation of their trend. The interval is widened by the uncertainty
    from waves. ``least`` is the smallest ratio of the decay rates of two halves (:func:`_evenness`) that counts as
    constant.
    """
    s, y = seen.envelope.s, seen.envelope.y
    span = float(s[-1] - s[0])
    if len(s) < _FEWEST_ALONE:
        return undecided
    late = [s >= s[0] + share * span for share in (0, 1 / 4, 1 / 2)]
    line, *_, last = rates = [_slope(s[part], y[part]) for part in late]
    off = float(np.abs(y - y.mean() + line * (s - s.mean())).max())
    uneven, even = sorted(_evenness(Points(s[part], y[part], seen.envelope.weight[part])) for part in late[:2])
    if last * span < 2 * _STEEP or even < _EVEN_ALONE or uneven < least or off > _BENT * line * span:
        return undecided
    rate, part = (line, late[0]) if seen.waves else (last, late[2])
    log_c = float(y[part].mean() + rate * s[part].mean())
    room = max(_WAVES * rate, off / span)
    falls = f"the envelope of the curve falls by a factor of e^{rate * span:.1f} at a nearly constant rate"
    reason = f"{falls}; {_indecision(undecided)}"
    fit = Fit("an exponential", np.array([log_c, 0, 0, rate, 0, ABSENT, 0]), np.zeros(7), len(s), math.inf, off)
    trend = last + (last - line)
    spread = max(min(*rates, trend) - room, 0.0), max(*rates, trend) + room
    return Verdict("exponential", reason, rate * span, fit, rate, spread)


def _by_log_time(judged: list[Judgment], undecided: Verdict, seen: Windows) -> Verdict:
    """Return the verdict polynomial if the envelope of a curve follows a power of time (:func:`power_of_time`); else
    ``undecided``, also if another law fits the whole curve, or a law above a constant fits a part.
    """
    followed = judged[0].followed or any(each.followed and each.best.law.endswith("a constant") for each in judged)
    if followed or (found := power_of_time(seen.envelope)) is None:
        return undecided
    fit, power, interval = found
    reason = f"the envelope of the curve approaches a power law with exponent {power:.4g}; {_indecision(undecided)}"
    return Verdict("polynomial", reason, 0.0, fit, power, interval)


def _same_stretch(judged: list[Judgment]) -> bool:
    """Return True if stretched exponentials with the same stretch (not 1) fit all windows of a curve."""
    name = "a stretched exponential"
    found = [(vote, fit.theta[Q]) for each in judged for _, vote, fit in each.laws if fit.law == name]
    if [vote for vote, _ in found] != ["stretched"] * len(judged):
        return False
    low, *_, high = sorted(float(log_stretch) for _, log_stretch in found)
    return (low > _SAME or high < -_SAME) and high - low < _SAME


def _fall(window: Points) -> float:
    """Return the total fall of the logarithm of a curve over a window, along a fitted straight line."""
    return _slope(window.s, window.y) * float(window.s[-1] - window.s[0])


def _evenness(window: Points) -> float:
    """Return the ratio of the slower to the faster decay rate of the two halves of a window; 0 if a half rises."""
    s, y = window.s, window.y
    middle = (s[0] + s[-1]) / 2
    slow, fast = sorted(_slope(s[part], y[part]) for part in (s <= middle, s >= middle))
    return slow / fast if slow > 0 else 0.0


def _rests(last: Judgment, noisy: bool) -> bool:
    """Return True if the curve no longer falls in its last window; ``last`` is the judgment of this window.

    This is the case if the second half of the window is flat, or if the last value is almost the largest value of the
    window. For a noisy curve, the trend over the whole window must be flat or rise.
    """
    window = last.window
    if noisy:
        return float(last.fits["an exponential"].theta[B] * (window.s[-1] - window.s[0])) < _RESTS
    late = window.y[window.s >= (window.s[0] + window.s[-1]) / 2]
    return bool(np.ptp(late) < _RESTS or late[-1] >= window.y.max() - FLAT)


def _slope(s: np.ndarray, y: np.ndarray) -> float:
    centered = s - s.mean()
    return -float(centered @ y / max(centered @ centered, 1e-300))


def _at(each: Judgment, seen: Windows) -> float:
    return seen.origin + seen.unit * float(each.window.s[0])


def _barely(chosen: Judgment) -> str:
    window, best = chosen.window, chosen.best
    if best.law == "a power law" and float(window.s[-1]) < REACH * math.exp(best.theta[G]):
        seen = float(window.s[-1]) / math.exp(best.theta[G])
        early = f"the curve ends at t = {seen:.2g} t0, too early to show it; {MORE}"
        return f"a power law (t + t0)^-p fits best, but {early}"
    if best.law.endswith("a constant"):
        return f"the curve may approach a constant level, but ends too early to show it; {MORE}"
    if best.law == "a sum of two exponentials":
        return f"a sum of two exponentials fits best, but the curve ends too early to show the slower one; {MORE}"
    fall = float(window.y[0] - window.y[-1])
    if fall <= 0:
        return f"the curve rises by a factor of {math.exp(-fall):.3g} instead of decaying; {MORE}"
    return f"the curve falls by a factor of only {math.exp(fall):.3g}, too little to show how it decays; {MORE}"


def _indecision(undecided: Verdict) -> str:
    return f"the fitted laws alone do not decide: {undecided.reason.split(';')[0]}"
