"""Associative recall tasks. A sequence lists pairs of a key and a value; then one or several of the keys follow, and
the model must recall their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError
from stablessm.tasks import counter
from stablessm.tasks.base import Batch, Inputs, Outputs, Split
from stablessm.tasks.options import option
from stablessm.tasks.synthetic import SyntheticOptions, SyntheticTask

FILLER = 0
_VALUES, _KEYS, _QUERY = range(3)
"""Streams of random numbers that both tasks use; the next line has the streams of multi-query recall."""
_PLACES, _QUERIES = 2, 3


@final
@dataclass(frozen=True)
class RecallOptions(SyntheticOptions):
    """Options of associative recall. Table 4 of StableSSM has two rows of sizes: the defaults, and length 131072 with
    30 tokens.
    """

    length: int = option(20, "number of tokens of keys and values, even; two more follow")
    vocabulary: int = option(10, "number of different tokens, two of them special")
    train_on: Literal["all", "answer"] = option("all", "steps that count in training: all, or only the answer")


@final
class Recall(SyntheticTask):
    """Associative recall. The input k₁ v₁ k₂ v₂ … ⇒ k consists of pairs of a key and its value, the mark ⇒ and one of
    the keys. The target is the value of this last key.

    This is the task of StableSSM (appendix D.3, table 4). StableSSM states only lengths and vocabularies. Everything
    else follows the synthetic task of the papers on H3 and Hyena, because the authors of StableSSM used this task. Two
    tokens are special: ``⇒`` and one that never occurs. Of the other tokens in the vocabulary, the first half are keys
    and the second half are values, so a vocabulary of 30 has 14 keys and 14 values. An example is generated as follows.
    A random value is assigned to every key; two keys may have the same value. Then ``length / 2`` keys are drawn with
    replacement, and each key is followed by its value. At the end come ``⇒`` and one key, drawn uniformly from the keys
    that occurred.

    The model predicts the next token at each step. In training every step counts (``train_on="all"``): keys cannot be
    predicted, and a value can be predicted from its second occurrence on. In validation and test only the answer, at
    the last step, counts. This explains why the training accuracies in the paper stay near one half while the test
    accuracies are 100 %. With 14 keys, a perfect model has a training accuracy of (1 + 1/14) / 2 = 53.57 %, the number
    in table 4.

    >>> from stablessm import tasks
    >>> task = tasks.get("recall", length=8, vocabulary=8)
    >>> batch = task.batch("test", 1)
    >>> batch.inputs.shape, batch.weights.sum().item(), batch.inputs[0, -2].item()
    (torch.Size([1, 10]), 1.0, 6)
    >>> answer, query = batch.targets[0, -1], batch.inputs[0, -1]
    >>> bool((batch.inputs[0, 1:8:2][batch.inputs[0, 0:8:2] == query] == answer).all())
    True
    """

    options: RecallOptions

    def __init__(self, options: RecallOptions, name: str = "recall") -> None:
        super().__init__(name, options)
        length = whole_number("length", options.length, 2)
        if length % 2:
            raise ArgumentError("length", "an even number: a key and a value each", length)
        tokens = whole_number("vocabulary", options.vocabulary, 4) - 2
        self.keys = tokens // 2
        self.values = tokens - self.keys
        self.inputs = Inputs("tokens", options.vocabulary, length + 2)
        self.outputs = Outputs("classes", options.vocabulary, per_step=True)

    @property
    def chance(self) -> float:
        """Accuracy of a constant prediction: 1 / number of values (all are equally likely)."""
        return 1 / self.values

    def _made(self, split: Split, keys: Tensor) -> Batch:
        length = self.options.length
        values = counter.integers(keys, _VALUES, self.keys, self.values) + self.keys
        shown = counter.integers(keys, _KEYS, length // 2, self.keys)
        present = torch.zeros_like(values).scatter_(1, shown, 1)
        rank = counter.integers(keys, _QUERY, 1, present.sum(1, keepdim=True))
        query = (present.cumsum(1) > rank).to(torch.int64).argmax(1, keepdim=True)  # the rank-th of those present
        pairs = torch.stack([shown, values.gather(1, shown)], -1).flatten(1)
        prefix = torch.full_like(query, self.options.vocabulary - 2)
        tokens = torch.cat([pairs, prefix, query, values.gather(1, query)], 1)
        weights = torch.ones(len(keys), length + 2, device=keys.device)
        if split != "train" or self.options.train_on == "answer":
            weights[:, :-1] = 0
        return Batch(tokens[:, :-1], tokens[:, 1:], weights=weights)


@final
@dataclass(frozen=True)
class MultiQueryRecallOptions(SyntheticOptions):
    """Options of multi-query recall: length of the sequence, size of the vocabulary, and numbers of pairs and
    queries.
    """

    length: int = option(256, "number of tokens of a sequence")
    vocabulary: int = option(64, "number of different tokens, including the filler")
    pairs: int = option(8, "number of pairs of a key and a value at the start")
    queries: int = option(8, "number of keys to recall, at random places after the pairs")


@final
class MultiQueryRecall(SyntheticTask):
    """Multi-query recall. The input k₁ v₁ … k_n v_n · · k_3 · · · k_1 · starts with pairs of a key and a value. Fillers
    (·) follow, with queries at random places among them. A query is one of the keys in these pairs; its target is the
    value of this key.

    The task follows Arora et al. 2023 (Zoology). Unlike in that paper, all fillers are the same token and the places of
    the queries are uniformly distributed, so that it is known how much a model must remember and for how long. In the
    vocabulary, token 0 is the filler, the first half of the other tokens are keys, and the second half are values. In
    every split, only the steps of queries count in loss and metric.

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
            expected = f"from 1 to {self.keys}, the keys of {options.vocabulary} tokens"
            raise ArgumentError("pairs", expected, options.pairs)
        self.rest = options.length - 2 * options.pairs
        if not 1 <= options.queries <= self.rest:
            expected = f"from 1 to length - 2 · pairs = {self.rest}, the number of places"
            raise ArgumentError("queries", expected, options.queries)
        self.inputs = Inputs("tokens", options.vocabulary, options.length)
        self.outputs = Outputs("classes", options.vocabulary, per_step=True)

    @property
    def chance(self) -> float:
        """Accuracy of a constant prediction: 1 / number of values (all are equally likely)."""
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
