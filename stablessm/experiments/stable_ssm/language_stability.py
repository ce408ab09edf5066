"""How unstable a training was: a rule for loss spikes, stated and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stablessm.experiments.frame import rules

HEIGHT = 0.5
"""Nats by which a loss must be above the median of those before it to be a spike: a perplexity 1.65 times as high."""
WINDOW = 50
"""Steps of which that is the median, fewer at the beginning."""
CLEAR = 0.01
"""Nats by which a loss must be lower to be called lower, with one seed: a perplexity lower by 1 %."""
FINAL = 0.1
"""The part of the steps over whose losses a final one is the mean."""


def spikes(losses: np.ndarray, first: int = 0) -> np.ndarray:
    """The steps at which a spike begins.

    At step t the loss is *high* if it is more than ``HEIGHT`` above the median of the ``WINDOW`` losses before t. A
    spike begins where a loss is high and none of the ``WINDOW`` before it was, so that one that lasts counts once.

    Args:
        losses: of every step, up to the last finite one.
        first: steps before this one (the warm-up) do not count.

    >>> losses = np.linspace(5, 4, 200)
    >>> losses[[90, 92, 160]] += 1
    >>> spikes(losses).tolist()
    [90, 160]
    """
    medians = np.array([np.median(losses[:t]) for t in range(1, min(len(losses), WINDOW))])
    if len(losses) > WINDOW:
        medians = np.concatenate([medians, np.median(sliding_window_view(losses[:-1], WINDOW), axis=1)])
    high = np.zeros(len(losses), dtype=bool)
    high[1:] = losses[1:] > medians + HEIGHT
    begins = [t for t in np.flatnonzero(high) if t >= first and not high[max(0, t - WINDOW) : t].any()]
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


def instability(found: Mapping[str, np.ndarray], warmup: int) -> Instability:
    """Of a training, as ``language_training.fit`` gives it."""
    return Instability(int(found["diverged"]) >= 0, len(spikes(found["losses"], warmup)))


def calmest(one: Any, others: Sequence[Any]) -> rules.Verdict:
    """Whether one is calmer than each of the others, or no wilder.

    >>> calmest(Instability(False, 0), [Instability(False, 1), Instability(False, 0)])
    'partly'
    """
    return rules.graded(all(one < other for other in others), all(one <= other for other in others))


def final_loss(found: Mapping[str, np.ndarray]) -> float:
    """The mean over the last tenth of the steps; infinite if it diverged.

    >>> final_loss({"diverged": np.array(-1), "losses": np.arange(20.0)})
    18.5
    """
    if int(found["diverged"]) >= 0:
        return float("inf")
    losses = found["losses"]
    return float(losses[-max(1, round(FINAL * len(losses))) :].mean())
