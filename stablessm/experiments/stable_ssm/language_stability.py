"""How unstable a training was: a rule for loss spikes, stated and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stablessm.experiments.frame import rules


@final
@dataclass(frozen=True)
class Limits:
    """The numbers that decide verdicts on language models; losses are in nats."""

    height: float = 0.5
    """By how much a loss must be above the median of those before it to be a spike: a perplexity 1.65 times as high."""
    window: int = 50
    """Steps of which that is the median, fewer at the beginning."""
    final: float = 0.1
    """Share of the steps over whose losses a final one is the mean."""
    clear: float = 0.01
    """By how much a loss must be lower to be called lower, with one seed: a perplexity lower by 1 %."""
    comparable: float = 0.05
    """By how much a final loss may be higher and be called comparable."""
    faded: float = 0.01
    """Share of its largest value below which a memory, over the last tenth of the horizon, has faded."""
    ends: float = 0.05
    """Share of the modes that are left out of a range at either end."""
    decides: tuple[float, ...] = (0.8, 0.4)
    """Rank correlations above which |gradient| / |weight| decides how stable a training is, and partly decides."""
    ordered: tuple[float, ...] = (0.9, 0.5)
    """Rank correlations above which two orders are the same, and partly the same."""


LIMITS = Limits()


def spikes(losses: np.ndarray, first: int = 0, limits: Limits = LIMITS) -> np.ndarray:
    """The steps at which a spike begins.

    At step t the loss is *high* if it is more than ``height`` above the median of the ``window`` losses before t. A
    spike begins where a loss is high and none of the ``window`` before it was, so that one that lasts counts once.

    Args:
        losses: of every step, up to the last finite one.
        first: steps before this one (the warm-up) do not count.

    >>> losses = np.linspace(5, 4, 200)
    >>> losses[[90, 92, 160]] += 1
    >>> spikes(losses).tolist()
    [90, 160]
    """
    window = limits.window
    medians = np.array([np.median(losses[:t]) for t in range(1, min(len(losses), window))])
    if len(losses) > window:
        medians = np.concatenate([medians, np.median(sliding_window_view(losses[:-1], window), axis=1)])
    high = np.zeros(len(losses), dtype=bool)
    high[1:] = losses[1:] > medians + limits.height
    begins = [t for t in np.flatnonzero(high) if t >= first and not high[max(0, t - window) : t].any()]
    return np.array(begins, dtype=int)


@final
@dataclass(frozen=True, order=True)
class Instability:
    """Ordered from calm to wild: first whether it diverged, then how many spikes there were.

    >>> Instability(False, 3) < Instability(True, 0)
    True
    """

    diverged: bool
    spikes: int

    def __str__(self) -> str:
        told = f"{self.spikes} spike{'' if self.spikes == 1 else 's'}" if self.spikes else "no spike"
        return f"{told}, diverged" if self.diverged else told


def instability(found: Mapping[str, np.ndarray], warmup: int, limits: Limits = LIMITS) -> Instability:
    """Of a training, as ``language_training.fit`` gives it."""
    return Instability(int(found["diverged"]) >= 0, len(spikes(found["losses"], warmup, limits)))


def calmest(one: Any, others: Sequence[Any]) -> rules.Verdict:
    """Whether one is calmer than each of the others, or no wilder.

    >>> calmest(Instability(False, 0), [Instability(False, 1), Instability(False, 0)])
    'partly'
    """
    return rules.graded(all(one < other for other in others), all(one <= other for other in others))


def final_loss(found: Mapping[str, np.ndarray], limits: Limits = LIMITS) -> float:
    """The mean over the last tenth of the steps; infinite if it diverged.

    >>> final_loss({"diverged": np.array(-1), "losses": np.arange(20.0)})
    18.5
    """
    if int(found["diverged"]) >= 0:
        return float("inf")
    losses = found["losses"]
    return float(losses[-max(1, round(limits.final * len(losses))) :].mean())
