"""Counts the spikes of a training loss, as a measure of how stable the training is."""

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
    """Thresholds for the verdicts on language models. Losses are in nats."""

    height: float = 0.5
    """Height of a spike above the median of the preceding losses: a perplexity 1.65 times as high."""
    window: int = 50
    """Number of preceding losses whose median is taken; fewer at the beginning."""
    final: float = 0.1
    """Fraction of the steps, at the end, over which the final loss is averaged."""
    clear: float = 0.01
    """Smallest difference that, with one seed, counts as a lower loss: a perplexity lower by 1 %."""
    comparable: float = 0.05
    """Final losses that differ by less than this value count as comparable."""
    faded: float = 0.01
    """A memory has faded if, over the last tenth of the horizon, it is below this fraction of its maximum."""
    ends: float = 0.05
    """Fraction of the modes that are left out at either end of a range."""
    decides: tuple[float, ...] = (0.8, 0.4)
    """Rank correlations above which |gradient| / |weight| predicts the stability of a training run, and partly predicts
    it."""
    ordered: tuple[float, ...] = (0.9, 0.5)
    """Rank correlations above which two orders count as equal, and as partly equal."""


LIMITS = Limits()


def spikes(losses: np.ndarray, first: int = 0, limits: Limits = LIMITS) -> np.ndarray:
    """Return the steps at which loss spikes begin.

    At step t the loss is *high* if it is more than ``height`` above the median of the ``window`` losses before t. A
    spike begins at a high loss if none of the ``window`` losses before it is high. A spike of several steps therefore
    counts once.

    Args:
        losses: Losses of every step up to the last finite one.
        first: First step at which a spike counts; earlier steps belong to the warm-up.

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
    """How unstable a training run was. Instances can be compared with ``<``: a training run that diverged is more
    unstable than one that did not; otherwise the number of loss spikes decides.

    >>> Instability(False, 3) < Instability(True, 0)
    True
    """

    diverged: bool
    spikes: int

    def __str__(self) -> str:
        told = f"{self.spikes} spike{'' if self.spikes == 1 else 's'}" if self.spikes else "no spike"
        return f"{told}, diverged" if self.diverged else told


def instability(found: Mapping[str, np.ndarray], warmup: int, limits: Limits = LIMITS) -> Instability:
    """Return how unstable a training run was: whether it diverged, and how many loss spikes it had. ``found`` are the
    arrays that ``language_training.fit`` returns.
    """
    return Instability(int(found["diverged"]) >= 0, len(spikes(found["losses"], warmup, limits)))


def calmest(one: Any, others: Sequence[Any]) -> rules.Verdict:
    """Return the verdict on the claim that the training run ``one`` is more stable than each training run in
    ``others``. The verdict is ``partly`` if ``one`` is only as stable as the most stable training run in ``others``.

    >>> calmest(Instability(False, 0), [Instability(False, 1), Instability(False, 0)])
    'partly'
    """
    return rules.graded(all(one < other for other in others), all(one <= other for other in others))


def final_loss(found: Mapping[str, np.ndarray], limits: Limits = LIMITS) -> float:
    """Return the mean loss over the last tenth of the steps; infinite for a training run that diverged.

    >>> final_loss({"diverged": np.array(-1), "losses": np.arange(20.0)})
    18.5
    """
    if int(found["diverged"]) >= 0:
        return float("inf")
    losses = found["losses"]
    return float(losses[-max(1, round(limits.final * len(losses))) :].mean())
