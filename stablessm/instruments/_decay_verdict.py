"""The decision which kind of decay a curve has, with the evidence and an interval of the parameter.

Every law votes for a kind of decay in every window. The first window in which a law fits within the noise decides, by
the Bayesian information criterion (BIC); later windows must not contradict it. If no law fits, the curve is exponential
if every window clearly votes for that, or if it falls evenly and further than a power of time could.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np

from stablessm.instruments._decay_models import (
    ABSENT,
    LAWS,
    STEEPEST,
    STRETCHES,
    A,
    B,
    C,
    D,
    Fit,
    G,
    LawName,
    P,
    Q,
    fit_laws,
)
from stablessm.instruments._decay_points import Points, Windows

Kind: TypeAlias = Literal["exponential", "polynomial", "stretched", "none", "undecided"]

_NAMES: dict[LawName, str] = {
    "mode": "an exponential",
    "two modes": "a sum of two exponentials",
    "cut power": "a power times an exponential",
    "power": "a power law",
    "stretched": "a stretched exponential",
    "level": "no decay",
    "mode on a level": "an exponential above a constant",
    "power on a level": "a power law above a constant",
    "stretched on a level": "a stretched exponential above a constant",
}
_MORE = "a longer horizon, less noise or float64 may decide"
_PARAMETERS = {"exponential": "rate", "polynomial": "exponent", "stretched": "stretch"}
_SEEN = math.log(3)  # smallest fall, as a logarithm, for which a law is claimed: the law itself falls threefold
_STRETCHED_SEEN = math.log(5)  # the same for a stretched exponential, which above a constant resembles other laws
_FLAT = 0.05  # a fall of the logarithm by less over the whole curve counts as no decay
_SURELY_FLAT = 0.25  # upper end of the interval of a fall that counts as no decay
_REACH = 2.5  # a power law (t + t0)^-p is claimed only if the last time is at least this many times t0
_SIMILAR = 0.03  # a stretch closer to 1 than this is an exponential
_FOLLOWS = 3.0  # a law fits if its residuals are at most this many standard deviations of the noise (root mean square)
_CLOSELY = 5e-5  # a law also fits if the root mean square residual of the logarithm is at most this
_NOISY = 0.1  # if the logarithm scatters by more than this, only an exponential is claimed,
_SCATTER = 0.02  # unless the scatter is at most this part of the fall
_CORRELATED = 8  # if no law fits, residuals are smooth; the points count as this many independent ones
_SPENT = 5  # number of points that the parameters of a law use up
_FLOOR = 0.3  # added to the squared misfit: limits the reward of a law that fits better than the noise
_REQUIRED: dict[LawName, float] = {
    "mode": 0.0,
    "level": 0.0,
    "power": 5.0,
    "stretched": 5.0,
    "mode on a level": 5.0,
    "power on a level": 5.0,
    "stretched on a level": 5.0,
    "two modes": 12.0,
    "cut power": 12.0,
}
"""Smallest evidence (difference of log likelihoods) for a law; laws with many parameters resemble others."""
_CLEARLY = 5.0  # evidence with which one window contradicts another, or decides although no law fits
_STEEP = 3.5  # powers of time up to 5 fall by less than e^3.5 in the last half of the time; a larger fall excludes them
_RESTS = 0.3  # largest variation of the logarithm at the end of a curve that does not decay
_CONSISTENT = 0.05  # largest relative difference between the exponents of two windows
_EVEN = 0.75  # smallest ratio of the decay rates in the two halves of a window in which an exponential fits
_EVEN_ALONE = 0.78  # the same if no law fits
_EVEN_UNSTRETCHED = 0.82  # the same if the windows agree on a stretched exponential
_BENT = 0.1  # largest distance of an envelope from its straight line, as a part of its fall
_WAVES = 0.15  # relative uncertainty of the slope of an envelope
_FEWEST_ALONE = 12  # smallest number of points if no law fits: with fewer, all windows contain the same points
_STRAIGHT_FALL = 2.5  # fall in the last half of the time that suffices if the logarithm is straight
_STRAIGHT = 0.9  # smallest ratio of decay rates over all windows that counts as straight
_SAME = 0.2  # |log(stretch)| above which a stretch differs from 1, and the largest difference between windows
_MODERATE = 2.0  # if no law fits: largest power of time that may multiply an exponential
_UNKNOWN = 0.06  # relative uncertainty of the rate if no law fits
_HIDDEN = 0.02  # relative uncertainty of the rate of several modes, because a slower mode may not show yet
_VAGUE = 0.3  # intervals with a larger relative half width do not contribute to the interval of the verdict
_INEXACT = 0.004  # relative uncertainty of an exponent, because few curves are exact powers of t + t0
_EQUAL = 60.0  # laws whose criteria (BIC) differ by less than this contribute to the interval


@final
@dataclass(frozen=True)
class Verdict:
    """A verdict on a curve: the kind of decay, the reason, and the parameter with its interval.

    ``value`` is the rate (in the unit of the windows), the exponent or the stretch; ``fit`` is the law of the tail.
    """

    kind: Kind
    reason: str
    evidence: float = 0.0
    fit: Fit | None = None
    value: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)


@final
@dataclass(frozen=True)
class _Judgment:
    """The judgment of one window of a curve: the kind of decay of its best law, the evidence, and all fitted laws."""

    window: Points
    vote: Kind
    evidence: float
    rival: Fit | None
    best: Fit
    fits: dict[LawName, Fit]
    laws: list[tuple[float, Kind, Fit]]

    @property
    def name(self) -> str:
        return _NAMES[self.best.law]

    @property
    def followed(self) -> bool:
        return self.best.misfit <= _FOLLOWS or self.best.rms <= _CLOSELY

    def close(self, kind: Kind) -> list[Fit]:
        """Return the fitted laws whose intervals are combined for a kind of decay, the best law first.

        These fit about as well as the best law. Where no law follows the points, these are one mode, two modes, and a
        mode times a moderate power: after a transient the first two tend to overestimate the final rate, and the last
        to underestimate it.
        """
        found = [(score, fit) for score, vote, fit in self.laws if vote == kind]
        if self.best.misfit <= _FOLLOWS:
            return [fit for score, fit in found if score <= self.laws[0][0] + _EQUAL]
        modes = [fit for _, fit in found if fit.law in ("mode", "two modes")]
        return modes + [fit for _, fit in found if fit.law == "cut power" and abs(fit.theta[P]) <= _MODERATE]

    def agrees(self, kind: Kind, evidence: float) -> bool:
        """Return False if this window of the curve contradicts a kind of decay with at least the given evidence."""
        return self.vote in (kind, "undecided") or self.evidence < evidence


def decide(seen: Windows, margin: float, log_negligible: float) -> Verdict:
    """Decide which kind of decay a curve has; constant levels below ``log_negligible`` count as noise floors."""
    judged = [_judge(*pair, log_negligible) for pair in zip(fit_laws(seen.points), seen.points, strict=True)]
    first = next((i for i, each in enumerate(judged) if each.followed), None) if seen.smooth else None
    if first is None:
        return _unfollowed(judged, Verdict("undecided", "no law follows the points"), seen)
    verdict = _followed(judged, first, margin, seen)
    return _unfollowed(judged, verdict, seen) if verdict.kind == "undecided" else verdict


def _followed(judged: list[_Judgment], first: int, margin: float, seen: Windows) -> Verdict:
    """Return the verdict of the first window of a curve in which a law fits, unless later windows contradict it."""
    chosen, later = judged[first], judged[first + 1 :]
    kind, evidence = chosen.vote, chosen.evidence
    name = chosen.name
    rival = f"{_NAMES[chosen.rival.law]} is e^{evidence:.1f} times less likely" if chosen.rival else ""
    beaten = rival or "every law agrees"
    if kind == "undecided":
        return Verdict(kind, _barely(chosen))
    if evidence < max(margin, _REQUIRED[chosen.best.law], 0.0 if chosen.best.misfit <= _FOLLOWS else _CLEARLY):
        return Verdict("undecided", f"{name} fits best, but {beaten} only; {_MORE}", evidence)
    if kind != "exponential" and chosen.best.rms > max(_NOISY, _SCATTER * float(np.ptp(chosen.window.y))):
        return Verdict("undecided", f"{name} fits best, but the points scatter by {chosen.best.rms:.0%}", evidence)
    if not all(each.agrees(kind, _CLEARLY) for each in later):
        other = next(each for each in later if not each.agrees(kind, _CLEARLY))
        reason = f"windows contradict each other: {name} from {_at(chosen, seen):.4g} on, "
        return Verdict("undecided", f"{reason}{other.name} from {_at(other, seen):.4g} on", evidence)
    if kind == "exponential" and _fall(judged[-1].window) < _STEEP and _evenness(judged[-1].window) < _EVEN:
        return Verdict("undecided", f"{name} fits best, but the last half of the time is not straight", evidence)
    value, half = _parameter(kind, chosen.best)
    if kind == "stretched" and chosen.best.rms > _CLOSELY and abs(math.log(value)) < _SAME:
        return Verdict("undecided", f"{name} fits best, but its stretch of {value:.3g} is close to 1", evidence)
    for other in later if kind in ("polynomial", "stretched") else ():
        found = [_parameter(kind, fit) for _, vote, fit in other.laws if vote == kind and fit.law == chosen.best.law]
        if found and abs(found[0][0] - value) > 2 * (found[0][1] + half) + _CONSISTENT * value:
            reason = f"windows contradict each other: the power is {value:.3g} from {_at(chosen, seen):.4g} on, "
            return Verdict("undecided", f"{reason}{found[0][0]:.3g} from {_at(other, seen):.4g} on", evidence)
    if first > (kind != "stretched") and not any(each.vote == kind for each in later):
        reason = f"{name} fits only from {_at(chosen, seen):.4g} on, and no later window confirms it"
        return Verdict("undecided", reason, evidence)
    if kind == "none" and not _rests(judged[-1].window):
        return Verdict("undecided", f"{name} fits best, but the last quarter of the time is not flat", evidence)
    if kind == "none":
        return Verdict(kind, f"what is left at the end does not decay; {beaten}", evidence, chosen.best)
    return _claim(kind, chosen.best, judged[first:], beaten, evidence, seen)


def _claim(kind: Kind, best: Fit, judged: list[_Judgment], beaten: str, evidence: float, seen: Windows) -> Verdict:
    """Return a verdict on a curve with an interval that includes those of all laws of this kind in the last windows.

    The interval is widened on both sides, because the rate may still change after the end of the curve.
    """
    value, half = _parameter(kind, best)
    spans = [(value - half, value + half)]
    for each in judged[-2:]:
        found = [_parameter(kind, fit) for fit in each.close(kind)]
        spans += [(middle - half, middle + half) for middle, half in found if half < _VAGUE * middle]
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    if high - low > value:
        low, high = (end / seen.unit if kind == "exponential" else end for end in (low, high))
        reason = f"windows contradict each other: the {_PARAMETERS[kind]} is anywhere between {low:.3g} and {high:.3g}"
        return Verdict("undecided", reason, evidence)
    if kind != "exponential":
        least = _INEXACT
    else:
        least = _UNKNOWN if not judged[-1].followed else 0.0 if best.law == "mode" else _HIDDEN
    room = max((high - low) / 4, least * value)
    claim = {
        "exponential": f"it falls at the rate {value / seen.unit:.4g}",
        "polynomial": f"it falls as the power {value:.4g} of time",
        "stretched": f"its logarithm falls as the power {value:.4g} of time",
    }[kind]
    return Verdict(kind, f"{claim}; {beaten}", evidence, best, value, (max(low - room, 0.0), high + room))


def _unfollowed(judged: list[_Judgment], undecided: Verdict, seen: Windows) -> Verdict:
    """Return the verdict (exponential or undecided) on a curve that no law fits, such as the curve of many modes.

    The curve is exponential if its envelope, or what follows its last dip, falls evenly and further than a power of
    time could; if it falls less far, but at the same rate everywhere; or if every window clearly says so. A stretched
    exponential can fall evenly too, so a curve with the same stretch in all windows but the last is undecided.
    """
    modes = [each.fits["mode"] for each in judged]
    fall = _fall(judged[-1].window)
    slow, *_, fast = sorted(float(mode.theta[B]) for mode in modes[1:])
    least = _EVEN_UNSTRETCHED
    even = _evenness(judged[-2].window) >= least and _evenness(judged[-3].window) >= least**2
    steep = fall >= _STEEP and even and modes[-1].rms <= 0.15 * fall
    straight = fall >= _STRAIGHT_FALL and slow >= _STRAIGHT * fast and _evenness(judged[-1].window) >= _STRAIGHT
    agreed = all(each.vote == "exponential" and each.evidence >= _CLEARLY for each in judged)
    stretched = not agreed and _same_stretch(judged[:-1])
    by_envelope = _by_envelope(seen, undecided, _EVEN_UNSTRETCHED if stretched else _EVEN_ALONE**2)
    if by_envelope is not undecided:
        return by_envelope
    if not agreed and (not (steep or straight) or stretched or modes[0].n < _FEWEST_ALONE):
        return undecided
    beaten = f"{undecided.reason.split(';')[0]}, but it falls e^{fall:.1f} times in the last half, evenly"
    best = next(iter(judged[-1].close("exponential")), modes[-1])
    return _claim("exponential", best, judged, beaten, fall, seen)


def _by_envelope(seen: Windows, undecided: Verdict, least: float) -> Verdict:
    """Return the verdict exponential if the envelope of a curve falls far and evenly, otherwise ``undecided``.

    The rate is the slope of that line, or of the last half if the curve has no waves. Its interval spans the slopes of
    all, of the last three quarters and of the last half, and their continued trend, with room for waves.
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
    reason = f"{undecided.reason.split(';')[0]}, but its envelope falls e^{rate * span:.1f} times, evenly"
    fit = Fit("mode", np.array([log_c, 0, 0, rate, 0, ABSENT, 0]), np.zeros(7), len(s), math.inf, off)
    trend = last + (last - line)
    spread = max(min(*rates, trend) - room, 0.0), max(*rates, trend) + room
    return Verdict("exponential", reason, rate * span, fit, rate, spread)


def _same_stretch(judged: list[_Judgment]) -> bool:
    """Return True if stretched exponentials with the same stretch (not 1) fit all windows of a curve."""
    found = [(vote, fit.theta[Q]) for each in judged for _, vote, fit in each.laws if fit.law == "stretched"]
    if [vote for vote, _ in found] != ["stretched"] * len(judged):
        return False
    low, *_, high = sorted(float(log_stretch) for _, log_stretch in found)
    return (low > _SAME or high < -_SAME) and high - low < _SAME


def _fall(window: Points) -> float:
    """Return the total fall of the logarithm of a curve over a window, along a fitted straight line."""
    return _slope(window.s, window.y) * float(window.s[-1] - window.s[0])


def _evenness(window: Points) -> float:
    """Return the slower over the faster decay rate of the two halves of a part of a curve; 0 if a half rises."""
    s, y = window.s, window.y
    middle = (s[0] + s[-1]) / 2
    slow, fast = sorted(_slope(s[part], y[part]) for part in (s <= middle, s >= middle))
    return slow / fast if slow > 0 else 0.0


def _rests(window: Points) -> bool:
    """Return True if the last half of a part of a curve is flat, or its last value is its largest value."""
    late = window.y[window.s >= (window.s[0] + window.s[-1]) / 2]
    return bool(np.ptp(late) < _RESTS or late[-1] >= window.y.max() - _FLAT)


def _slope(s: np.ndarray, y: np.ndarray) -> float:
    centered = s - s.mean()
    return -float(centered @ y / max(centered @ centered, 1e-300))


def _at(each: _Judgment, seen: Windows) -> float:
    return seen.origin + seen.unit * float(each.window.s[0])


def _barely(chosen: _Judgment) -> str:
    window, best = chosen.window, chosen.best
    if best.law == "power" and float(window.s[-1]) < _REACH * math.exp(best.theta[G]):
        seen = float(window.s[-1]) / math.exp(best.theta[G])
        return f"a power of t + t0 fits best, but only {seen:.2g} times t0 is seen; {_MORE}"
    if best.law.endswith("level"):
        return f"it may come to rest, but the level is not seen; {_MORE}"
    if best.law == "two modes":
        return f"the slower of two exponentials has hardly begun to show; {_MORE}"
    fall = float(window.y[0] - window.y[-1])
    return f"the tail falls only by a factor of {math.exp(fall):.3g}, too little to tell how; {_MORE}"


def _judge(fits: dict[LawName, Fit], window: Points, log_negligible: float) -> _Judgment:
    votes = [(vote, fit) for fit in fits.values() if (vote := _vote(fit, window, log_negligible)) is not None]
    n = len(window.s)
    count = max(n - _SPENT, 1) if min(fit.misfit for _, fit in votes) <= _FOLLOWS else min(_CORRELATED, n)
    scored = sorted(
        (
            (count * math.log(fit.misfit**2 + _FLOOR) + len(LAWS[fit.law]) * math.log(n), vote, fit)
            for vote, fit in votes
        ),
        key=lambda each: each[0],
    )
    score, vote, best = scored[0]
    rival = next((each for each in scored if each[1] != vote), None)
    evidence = math.inf if rival is None else (rival[0] - score) / 2
    return _Judgment(window, vote, evidence, None if rival is None else rival[2], best, fits, scored)


def _vote(fit: Fit, window: Points, log_negligible: float) -> Kind | None:
    """Return the kind of decay that a fitted law implies; None if a simpler law says the same."""
    begin, end = float(window.s[0]), float(window.s[-1])
    theta, fallen = fit.theta, float(window.y.max() - window.y[-1])
    if fit.law == "level":
        return "none"
    if fit.law.endswith("on a level"):
        share = 1 / (1 + math.exp(min(fit.log_main(end) - theta[C], 700.0)))
        if share < 1e-6 or fit.log_main(begin) < fit.log_main(end):
            return None
        if theta[C] < log_negligible:  # a floor
            return _main_vote(fit, begin, end)
        if fit.half_width(C) > 0.3:
            return None
        return "none" if share > 0.75 else "undecided"
    if fit.law == "two modes":
        (slow, log_slow, half), (fast, log_fast, _) = _modes(fit)
        if log_slow - slow * end < log_fast - fast * end + math.log(2):
            return "undecided"
        takeover = min(max((log_fast - log_slow) / max(fast - slow, 1e-12), begin), end)
        fall, spread = slow * (end - takeover), half * (end - takeover)
        if spread > max(0.5 * abs(fall), 0.3):
            return None
        return "exponential" if min(fall, fallen) >= _SEEN else _by_fall("undecided", slow * end, half * end)
    if fit.law == "cut power":
        fall, half = theta[B] * (end - begin), fit.half_width(B) * (end - begin)
        if fall >= max(1.0, half) and fallen >= _SEEN and theta[P] < 0.99 * STEEPEST:
            return "exponential"
        return "undecided" if theta[P] < 0 and fall > max(half, _FLAT) else None
    return _main_vote(fit, begin, end)


def _main_vote(fit: Fit, begin: float, end: float) -> Kind | None:
    """Return the kind of decay (such as exponential or polynomial) that a fitted law with a single term implies."""
    theta = fit.theta
    fall = fit.log_main(begin) - fit.log_main(end)
    free = LAWS[fit.law]
    if P in free:
        shift = math.exp(theta[G])
        vote = _by_fall("polynomial", fall, fit.half_width(P) * math.log((end + shift) / (begin + shift)))
        return "undecided" if vote == "polynomial" and end < _REACH * shift else vote
    if Q in free:
        stretch = math.exp(theta[Q])
        if abs(stretch - 1) < max(fit.half_width(Q) * stretch, _SIMILAR):
            return None
        inside = 1.25 * STRETCHES[0] < stretch < 0.99 * STRETCHES[1]
        return _by_fall("stretched", fall, 0.0) if inside else "undecided"
    return _by_fall("exponential", fall, fit.half_width(B) * (end - begin))


def _by_fall(kind: Kind, fall: float, half: float) -> Kind:
    """Return the kind of decay if a law falls enough in its window, otherwise ``none`` or ``undecided``."""
    if fall + half < _SURELY_FLAT and fall < max(_FLAT, 1.5 * half):
        return "none"
    return "undecided" if fall < (_STRETCHED_SEEN if kind == "stretched" else _SEEN) else kind


def _modes(fit: Fit) -> list[tuple[float, float, float]]:
    """Return (rate, log amplitude, half width of the interval of the rate) of two modes, the slower mode first."""
    theta = fit.theta
    return sorted(
        [(float(theta[B]), float(theta[A]), fit.half_width(B)), (float(theta[D]), float(theta[C]), fit.half_width(D))]
    )


def tail(fit: Fit) -> tuple[float, float]:
    """Return the logarithm of the amplitude and the rate of the slowest mode of a fit."""
    return _modes(fit)[0][1::-1] if fit.law == "two modes" else (float(fit.theta[A]), float(fit.theta[B]))


def _parameter(kind: Kind, fit: Fit) -> tuple[float, float]:
    """Return the fitted parameter of a kind of decay (rate, exponent or stretch) and half the width of its interval."""
    if kind == "polynomial":
        return float(fit.theta[P]), fit.half_width(P)
    if kind == "stretched":
        stretch = math.exp(fit.theta[Q])
        return stretch, stretch * fit.half_width(Q)
    if fit.law == "two modes":
        rate, _, half = _modes(fit)[0]
        return rate, half
    return float(fit.theta[B]), fit.half_width(B)
