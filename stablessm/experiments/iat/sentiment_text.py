"""Loads movie reviews: IMDB, or synthetic reviews for a quick test."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from stablessm._arguments import one_of
from stablessm._errors import ArgumentError
from stablessm.tasks import imdb
from stablessm.tasks.corpus import Labeled

Source: TypeAlias = Literal["imdb", "synthetic"]

POSITIVE = ("good", "great", "fine", "lovely", "superb", "charming")
NEGATIVE = ("bad", "awful", "poor", "boring", "dreadful", "dull")
NEUTRAL = ("the", "a", "film", "actor", "plot", "scene", "ha", "camera", "it", "was", "and", "with", "music", "ending")
"""Neutral words of synthetic reviews."""

_CLUES = 3
"""Number of words of its class in a synthetic review."""


def reviews(source: Source, most: int) -> tuple[Labeled, Labeled]:
    """Return training and test reviews with their labels, at most ``most`` of each, in the order of the file.

    ``imdb``: the official split, from ``imdb_train.jsonl.gz`` and ``imdb_test.jsonl.gz`` in the folder that the
    environment variable STABLESSM_DATA names; without this variable, from the Hugging Face hub. ``synthetic``: random
    words; a positive review has three positive words.

    >>> train, test = reviews("synthetic", 4)
    >>> [label for _, label in train], any(word in NEGATIVE for word in train[0][0].split())
    ([1, 0, 1, 0], False)
    """
    one_of("data", source, get_args(Source))
    if most < 2:
        raise ArgumentError("reviews", "at least 2", most)
    if source == "synthetic":
        return _made_up(0, most), _made_up(1, most)
    return imdb.reviews("train", most), imdb.reviews("test", most)


def _made_up(seed: int, count: int) -> Labeled:
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        label = 1 - i % 2
        clues = rng.choice(POSITIVE if label else NEGATIVE, _CLUES)
        words = rng.permutation([*clues, *rng.choice(NEUTRAL, rng.integers(4, 20))])
        found.append((" ".join(words.tolist()), label))
    return found
