"""The IMDB task: classification of movie reviews as positive or negative, from words or bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError
from stablessm.tasks import sources
from stablessm.tasks.base import SPLITS, Batch, Inputs, Outputs, Split, Task
from stablessm.tasks.corpus import Labeled, byte_corpus, word_corpus
from stablessm.tasks.options import Options, option
from stablessm.tasks.scoring import best_constant

HUB = "stanfordnlp/imdb"
_EXPECTED = 'lines of {"text": …, "label": 0 or 1}, compressed by gzip'


@final
@dataclass(frozen=True)
class IMDBOptions(Options):
    """Options of IMDB: words or bytes as tokens, the largest vocabulary and length, and the number of reviews."""

    tokens: Literal["words", "bytes"] = option("words", "kind of tokens")
    vocabulary: int = option(20_000, "largest number of words; bytes have 260 tokens")
    length: int = option(512, "largest number of tokens of a review, from its start; 4096 is usual for bytes")
    reviews: int = option(25_000, "largest number of reviews of train and of test")


@final
class IMDB(Task):
    """Classification of movie reviews (Maas et al. 2011) as positive or negative; batches are right-padded.

    The test split is the official test set; the validation split is the last tenth of the training reviews. Words are
    in lower case, and rare words become the unknown token. The files ``imdb_train.jsonl.gz`` and ``imdb_test.jsonl.gz``
    are read from the folder that the environment variable STABLESSM_DATA names. Without this variable they are
    downloaded from the Hugging Face hub.

    >>> import os
    >>> from stablessm import tasks
    >>> if "STABLESSM_DATA" in os.environ:
    ...     batch = tasks.get("imdb", reviews=200, length=64).batch("train", 8)
    ...     assert batch.inputs.shape[0] == 8 and batch.lengths.max() <= 64
    """

    def __init__(self, options: IMDBOptions, name: str = "imdb") -> None:
        self.name, self.options, self._tensors = name, options, {}
        train, test = (reviews(split, whole_number("reviews", options.reviews)) for split in ("train", "test"))
        if options.tokens == "words":
            self.corpus = word_corpus(train, test, options.vocabulary, options.length)
        else:
            self.corpus = byte_corpus(train, test, options.length)
        parts = {split: getattr(self.corpus, split) for split in SPLITS}
        self.sizes = {split: len(part) for split, part in parts.items()}
        for split, part in parts.items():  # in types that torch can index and compare
            arrays = {"tokens": part.tokens.astype(np.int32), "starts": part.starts, "labels": part.labels.astype(int)}
            self._tensors |= {f"{split}.{kind}": torch.from_numpy(array) for kind, array in arrays.items()}
        self.content = sources.content_digest(*(row for part in parts.values() for row in (part.tokens, part.labels)))
        longest = max(int(part.lengths.max()) for part in parts.values())
        self.inputs = Inputs("tokens", len(self.corpus.vocabulary), longest)
        self.outputs = Outputs("classes", 2, per_step=False, names=("negative", "positive"))

    @cached_property
    def chance(self) -> float:
        """Accuracy of the best constant prediction: the fraction of the more frequent class in the test split."""
        return best_constant("accuracy", self._tensors["test.labels"])

    def _examples(self, split: Split, indices: Tensor, seed: int, epoch: int) -> Batch:
        tokens, starts, labels = (self._tensors[f"{split}.{part}"] for part in ("tokens", "starts", "labels"))
        rows = indices.to(self.device, non_blocking=True)
        lengths = starts[rows + 1] - starts[rows]
        longest = int(getattr(self.corpus, split).lengths[indices.numpy()].max())  # without waiting for the device
        steps = torch.arange(longest, device=self.device)
        places = (starts[rows, None] + steps).clamp(max=len(tokens) - 1)
        padding = steps >= lengths[:, None]
        return Batch(tokens[places].to(torch.int64).masked_fill(padding, 0), labels[rows], lengths)


def reviews(split: Literal["train", "test"], most: int) -> Labeled:
    """Read at most ``most`` reviews of a split and their labels: 1 for positive and 0 for negative."""
    name = f"imdb_{split}.jsonl.gz"
    path = sources.find(name)
    return _hub(split, name, most) if path is None else _file(path, most)


def _file(path: Path, most: int) -> Labeled:
    found: Labeled = []
    lines = sources.text(path, _EXPECTED).split("\n")
    for number, line in enumerate(lines[:most], 1):
        if not line:
            continue
        try:
            review = json.loads(line)
            if review["label"] not in (0, 1):
                raise ValueError(f"label {review['label']!r}")
            found.append((str(review["text"]), int(review["label"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(str(path), _EXPECTED, f"line {number}: {type(error).__name__}: {error}") from error
    if not found:
        raise ArgumentError(str(path), _EXPECTED, "no review")
    return found


def _hub(split: str, name: str, most: int) -> Labeled:
    rows = sources.from_hub(HUB, split, name)
    sides = [[text for text, label in zip(rows["text"], rows["label"], strict=True) if label == y] for y in (1, 0)]
    # the hub has all negative reviews first; shuffle each class, then alternate
    order = np.random.default_rng(0)
    shuffled = [[side[i] for i in order.permutation(len(side))] for side in sides]
    return [found for good, bad in zip(*shuffled, strict=False) for found in ((good, 1), (bad, 0))][:most]
