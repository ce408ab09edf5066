"""The judgment of one window of a curve.

Several laws were fitted to the window. Each law votes for a kind of decay. The law that fits best gives the vote of
the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from stablessm.instruments._decay_models import LAWS, STEEPEST, STRETCHES, A, B, C, D, Fit, G, P, Q
from stablessm.instruments._decay_points import Points

Kind: TypeAlias = Literal["exponential", "polynomial", "stretched", "none", "undecided"]

FLAT = 0.05  # a fall of the logarithm by less over the whole curve counts as no decay
REACH = 2.5  # a power law (t + t0)^-p is claimed only if the last time is at least this many times t0
_SEEN = math.log(3)  # smallest fall, as a logarithm, for which a law is claimed: the law itself falls threefold
_STRETCHED_SEEN = math.log(5)  # the same for a stretched exponential, which above a constant resembles other laws
_SURELY_FLAT = 0.25  # upper end of the interval of a fall that counts as no decay
_SIMILAR = 0.03  # a stretch closer to 1 than this is an exponential
FOLLOWS = 3.0  # a law fits if its residuals are at most this many standard deviations of the noise (root mean square)
CLOSELY = 5e-5  # a law also fits if the root mean square residual of the logarithm is at most this
_CORRELATED = 8  # if no law fits, residuals are smooth; the points count as this many independent ones
_SPENT = 5  # number of points that the parameters of a law use up
_FLOOR = 0.3  # added to the squared misfit: limits the reward of a law that fits better than the noise
_MODERATE = 2.0  # if no law fits: largest power of time that may multiply an exponential
_EQUAL = 60.0  # laws whose criteria (BIC) differ by less than this contribute to the interval


@final
@dataclass(frozen=True)
class Judgment:
    """The judgment of one window of a curve: the kind of decay of its best law, the evidence, and all fitted laws."""

    window: Points
    vote: Kind
    evidence: float
    """Difference of log likelihoods between the best law and ``rival``."""
    rival: Fit | None
    """The best of the laws that vote for another kind of decay; None if there are none."""
    best: Fit
    fits: dict[str, Fit]
    laws: list[tuple[float, Kind, Fit]]
    """Criterion (BIC), vote and fit of every law that votes, best law first."""

    @property
    def followed(self) -> bool:
        """Return True if the best law fits within the noise."""
        return self.best.misfit <= FOLLOWS or self.best.rms <= CLOSELY

    def close(self, kind: Kind) -> list[Fit]:
        """Return the laws of one kind of decay that the reported interval has to cover.

        If a law fits within the noise, these are all laws that fit about as well as the best law. Otherwise these are
        three laws: one mode, two modes, and a mode times a moderate power of time. After a transient, the first two
        laws tend to overestimate the final rate, and the third law tends to underestimate it.
        """
        found = [(score, fit) for score, vote, fit in self.laws if vote == kind]
        if self.best.misfit <= FOLLOWS:
            return [fit for score, fit in found if score <= self.laws[0][0] + _EQUAL]
        modes = [fit for _, fit in found if fit.law in ("an exponential", "a sum of two exponentials")]
        return modes + [
            fit for _, fit in found if fit.law == "a power times an exponential" and abs(fit.theta[P]) <= _MODERATE
        ]

    def agrees(self, kind: Kind, evidence: float) -> bool:
        """Return True unless this window votes for another kind of decay with an evidence of at least ``evidence``.

        A vote for ``undecided`` agrees with every kind.
        """
        return self.vote in (kind, "undecided") or self.evidence < evidence


def judge(fits: dict[str, Fit], window: Points, log_negligible: float) -> Judgment:
    """Judge a window of a curve by its fitted laws; constant levels below ``log_negligible`` are noise floors."""
    votes = [(vote, fit) for fit in fits.values() if (vote := _vote(fit, window, log_negligible)) is not None]
    n = len(window.s)
    count = max(n - _SPENT, 1) if min(fit.misfit for _, fit in votes) <= FOLLOWS else min(_CORRELATED, n)
    scored = [
        (count * math.log(fit.misfit**2 + _FLOOR) + len(LAWS[fit.law]) * math.log(n), vote, fit) for vote, fit in votes
    ]
    scored.sort(key=lambda each: each[0])
    score, vote, best = scored[0]
    rival = next((each for each in scored if each[1] != vote), None)
    evidence = math.inf if rival is None else (rival[0] - score) / 2
    return Judgment(window, vote, evidence, None if rival is None else rival[2], best, fits, scored)


def _vote(fit: Fit, window: Points, log_negligible: float) -> Kind | None:
    """Return the kind of decay that a fitted law implies; None if the law is not evidence for any kind.

    A constant level whose logarithm is below ``log_negligible`` counts as a noise floor.
    """
    begin, end = float(window.s[0]), float(window.s[-1])
    theta, fallen = fit.theta, float(window.y.max() - window.y[-1])
    if fit.law == "a constant":
        return "none"
    if fit.law.endswith("above a constant"):
        share = 1 / (1 + math.exp(min(fit.log_main(end) - theta[C], 700.0)))
        if share < 1e-6 or fit.log_main(begin) < fit.log_main(end):
            return None
        if theta[C] < log_negligible:  # a floor
            return _main_vote(fit, begin, end)
        if fit.half_width(C) > 0.3:
            return None
        return "none" if share > 0.75 else "undecided"
    if fit.law == "a sum of two exponentials":
        (slow, log_slow, half), (fast, log_fast, _) = modes_of(fit)
        if log_slow - slow * end < log_fast - fast * end + math.log(2):
            return "undecided"
        takeover = min(max((log_fast - log_slow) / max(fast - slow, 1e-12), begin), end)
        fall, spread = slow * (end - takeover), half * (end - takeover)
        if spread > max(0.5 * abs(fall), 0.3):
            return None
        return "exponential" if min(fall, fallen) >= _SEEN else _by_fall("undecided", slow * end, half * end)
    if fit.law == "a power times an exponential":
        fall, half = theta[B] * (end - begin), fit.half_width(B) * (end - begin)
        if fall >= max(1.0, half) and fallen >= _SEEN and theta[P] < 0.99 * STEEPEST:
            return "exponential"
        return "undecided" if theta[P] < 0 and fall > max(half, FLAT) else None
    return _main_vote(fit, begin, end)


def _main_vote(fit: Fit, begin: float, end: float) -> Kind | None:
    """Return the kind of decay (such as exponential or polynomial) that a fitted law with a single term implies between
    the times ``begin`` and ``end``.
    """
    theta = fit.theta
    fall = fit.log_main(begin) - fit.log_main(end)
    free = LAWS[fit.law]
    if P in free:
        shift = math.exp(theta[G])
        vote = _by_fall("polynomial", fall, fit.half_width(P) * math.log((end + shift) / (begin + shift)))
        return "undecided" if vote == "polynomial" and end < REACH * shift else vote
    if Q in free:
        stretch = math.exp(theta[Q])
        if abs(stretch - 1) < max(fit.half_width(Q) * stretch, _SIMILAR):
            return None
        inside = 1.25 * STRETCHES[0] < stretch < 0.99 * STRETCHES[1]
        return _by_fall("stretched", fall, 0.0) if inside else "undecided"
    return _by_fall("exponential", fall, fit.half_width(B) * (end - begin))


def _by_fall(kind: Kind, fall: float, half: float) -> Kind:
    """Return ``kind`` if a fitted law falls far enough in its window, ``none`` if it is surely flat, or ``undecided``.

    ``fall`` is the fall of the logarithm of the law, and ``half`` the half width of the interval of the fall.
    """
    if fall + half < _SURELY_FLAT and fall < max(FLAT, 1.5 * half):
        return "none"
    return "undecided" if fall < (_STRETCHED_SEEN if kind == "stretched" else _SEEN) else kind


def modes_of(fit: Fit) -> list[tuple[float, float, float]]:
    """Return the two modes of a fit, slower mode first, as tuples (rate, log amplitude, half width of the rate's
    interval).
    """
    theta = fit.theta
    return sorted(
        [(float(theta[B]), float(theta[A]), fit.half_width(B)), (float(theta[D]), float(theta[C]), fit.half_width(D))]
    )


def tail(fit: Fit) -> tuple[float, float]:
    """Return the log amplitude and the rate of the slowest mode of a fit, as a pair."""
    return (
        modes_of(fit)[0][1::-1]
        if fit.law == "a sum of two exponentials"
        else (float(fit.theta[A]), float(fit.theta[B]))
    )


def parameter(kind: Kind, fit: Fit) -> tuple[float, float]:
    """Return the fitted parameter of a kind of decay (rate, exponent or stretch) and half the width of its interval."""
    if kind == "polynomial":
        return float(fit.theta[P]), fit.half_width(P)
    if kind == "stretched":
        stretch = math.exp(fit.theta[Q])
        return stretch, stretch * fit.half_width(Q)
    if fit.law == "a sum of two exponentials":
        rate, _, half = modes_of(fit)[0]
        return rate, half
    return float(fit.theta[B]), fit.half_width(B)
