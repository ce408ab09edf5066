"""Multi-query recall: a few pairs, then several of the keys, far apart among clean fillers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError
from stablessm.tasks import counter
from stablessm.tasks.base import Batch, Inputs, Outputs, Split
from stablessm.tasks.options import option
from stablessm.tasks.synthetic import SyntheticOptions, SyntheticTask

FILLER = 0
_VALUES, _KEYS, _PLACES, _QUERIES = range(4)


@final
@dataclass(frozen=True)
class MultiQueryRecallOptions(SyntheticOptions):
    """How much to hold, for how long."""

    length: int = option(256, "tokens of a sequence")
    vocabulary: int = option(64, "tokens in all, one of them the filler")
    pairs: int = option(8, "keys with a value, at the start, all different")
    queries: int = option(8, "keys asked for, at random places in the rest")


@final
class MultiQueryRecall(SyntheticTask):
    """k₁ v₁ … k_n v_n · · k_3 · · · k_1 ·: say the value at each key that comes again.

    After the multi-query recall of Arora et al. 2023 (Zoology), with one kind of filler and evenly spread queries: what
    has to be held and for how long is then known, and nothing else distracts. Keys are the first half of the tokens
    after the filler, values the second. Only the steps of queries count, in every split.

    >>> from stablessm import tasks
    >>> batch = tasks.get("multi-query-recall", length=12, vocabulary=9, pairs=2, queries=3).batch("train", 4)
    >>> batch.inputs.shape, batch.weights.sum(1).tolist(), (batch.inputs[:, 4:] > 0).sum(1).tolist()
    (torch.Size([4, 12]), [3.0, 3.0, 3.0, 3.0], [3, 3, 3, 3])
    """

    options: MultiQueryRecallOptions

    def __init__(self, options: MultiQueryRecallOptions, name: str = "multi-query-recall") -> None:
        super().__init__(name, options)
        self.keys = (whole_number("vocabulary", options.vocabulary, 3) - 1) // 2
        self.values = options.vocabulary - 1 - self.keys
        if not 1 <= options.pairs <= self.keys:
            raise ArgumentError(
                "pairs", f"from 1 to {self.keys}, the keys of {options.vocabulary} tokens", options.pairs
            )
        self.rest = options.length - 2 * options.pairs
        if not 1 <= options.queries <= self.rest:
            raise ArgumentError(
                "queries", f"from 1 to length - 2 pairs = {self.rest}, the places there are", options.queries
            )
        self.inputs = Inputs("tokens", options.vocabulary, options.length)
        self.outputs = Outputs("classes", options.vocabulary, per_step=True)

    @property
    def chance(self) -> float:
        """One over the number of values, which are all as likely."""
        return 1 / self.values

    def _made(self, split: Split, keys: Tensor) -> Batch:
        pairs, queries = self.options.pairs, self.options.queries
        shown = counter.permutations(keys, _KEYS, self.keys)[:, :pairs] + 1
        values = counter.integers(keys, _VALUES, pairs, self.values) + 1 + self.keys
        places = counter.permutations(keys, _PLACES, self.rest)[:, :queries] + 2 * pairs
        asked = counter.integers(keys, _QUERIES, queries, pairs)
        tokens = torch.full((len(keys), self.options.length), FILLER, device=keys.device)
        tokens[:, : 2 * pairs] = torch.stack([shown, values], -1).flatten(1)
        targets, weights = torch.zeros_like(tokens), torch.zeros(tokens.shape, device=keys.device)
        tokens.scatter_(1, places, shown.gather(1, asked))
        targets.scatter_(1, places, values.gather(1, asked))
        return Batch(tokens, targets, weights=weights.scatter_(1, places, 1.0))
