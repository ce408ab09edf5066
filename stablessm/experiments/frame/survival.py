"""Tells which training runs survive growing learning rates, and up to which rate each map survives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from stablessm.experiments.frame import rules
from stablessm.tasks.base import Task


def entropy(task: Task, batch: int, batches: int) -> float:
    """Return the entropy, in nats, of the distribution of the targets that count in the loss. A model that ignores its
    input cannot have a smaller loss. The distribution is estimated from the first training batches: at most ``batches``
    batches of ``batch`` sequences.
    """
    given = [task.batch("train", batch, index=i) for i in range(min(batches, task.steps("train", batch)))]
    counted = torch.cat([b.targets.flatten() if b.weights is None else b.targets[b.weights > 0] for b in given])
    share = counted.bincount().double() / len(counted)
    return float(-share.xlogy(share).sum())


@final
class Survival:
    """Records which training runs survived, by map, learning rate and seed.

    Args:
        config: Settings with the field ``rates``: the learning rates, from the smallest to the largest.
        found: Results of the training runs, by map.
        survived: For each map, a boolean array (rates, seeds): True for each training run that did not fail.
    """

    def __init__(
        self, config: Any, found: Mapping[str, Mapping[str, np.ndarray]], survived: Mapping[str, np.ndarray]
    ) -> None:
        self.config, self.found, self.survived = config, found, survived
        self.steps = {map: np.cumprod(alive, axis=0).sum(0) for map, alive in survived.items()}
        """For each map and seed, (seeds,): the number of learning rates that survive, counted from the smallest rate up
        to the first failure."""

    @property
    def undecided(self) -> bool:
        """Return whether all training runs survive or all fail, so that the maps cannot be compared."""
        alive = np.stack([*self.survived.values()])
        return bool(alive.all() or not alive.any())

    def edge(self, map: str) -> str:
        """Return as text the largest learning rate up to which the training runs with a map survive: the median over
        the seeds, and the range if the seeds differ.
        """
        rates = (0.0, *self.config.rates)
        low, middle, high = (rates[int(q)] for q in np.quantile(self.steps[map], [0, 0.5, 1], method="lower"))
        return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"

    def edges(self, maps: Iterable[str] | None = None) -> str:
        """Return :meth:`edge` for each map, as text."""
        return "; ".join(f"{map} {self.edge(map)}" for map in (self.survived if maps is None else maps))

    def clearly(self, one: str, other: str) -> bool:
        """Return whether every seed with the map ``one`` survives a larger learning rate than any seed with the map
        ``other``. A seed survives a learning rate if its training runs survive at this rate and at all smaller rates.
        """
        return bool(self.steps[one].min() > self.steps[other].max())

    def no_less(self, one: str, other: str) -> bool:
        """Return whether the largest learning rate that the map ``one`` survives is at least as large as for the map
        ``other``. Both rates are medians over the seeds.
        """
        return bool(np.median(self.steps[one]) >= np.median(self.steps[other]))

    def ahead(self, pairs: Sequence[tuple[str, str]]) -> rules.Verdict:
        """Return the verdict on the claim that in each pair the first map clearly survives larger learning rates than
        the second map (see :meth:`clearly`).
        """
        clear = [self.clearly(*pair) for pair in pairs]
        verdict = rules.graded(all(clear), any(clear) and all(self.no_less(*pair) for pair in pairs))
        return rules.seen(len(pairs) if self.undecided else 0, len(pairs), verdict)
