"""Where movie reviews come from: the IMDB files, the Hugging Face hub, or made up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.experiments import data_folder

Source: TypeAlias = Literal["imdb", "synthetic"]
Labelled: TypeAlias = list[tuple[str, int]]
"""Texts, with 1 for a positive one and 0 for a negative one."""

POSITIVE = ("good", "great", "fine", "lovely", "superb", "charming")
NEGATIVE = ("bad", "awful", "poor", "boring", "dreadful", "dull")
NEUTRAL = ("the", "a", "film", "actor", "plot", "scene", "ha", "camera", "it", "was", "and", "with", "music", "ending")
"""Words of made-up reviews."""

HUB = "stanfordnlp/imdb"
_CLUES = 3
"""Words of its class in a made-up review."""


def reviews(source: Source, most: int) -> tuple[Labelled, Labelled]:
    """At most so many reviews to train on, and as many to test on; a file's in its own order.

    ``imdb``: the official split, from ``imdb_train.jsonl.gz`` and ``imdb_test.jsonl.gz`` in the folder that the
    environment variable STABLESSM_DATA names, or else from the hub. ``synthetic``: made up of a few words; a positive
    review has three positive ones.

    >>> train, test = reviews("synthetic", 4)
    >>> [label for _, label in train], any(word in NEGATIVE for word in train[0][0].split())
    ([1, 0, 1, 0], False)
    """
    if source not in get_args(Source):
        raise ArgumentError("data", f"one of {', '.join(get_args(Source))}", repr(source))
    if most < 2:
        raise ArgumentError("reviews", "at least 2", most)
    if source == "synthetic":
        return _made_up(0, most), _made_up(1, most)
    return _imdb("train", most), _imdb("test", most)


def _imdb(split: str, most: int) -> Labelled:
    name = f"imdb_{split}.jsonl.gz"
    path = data_folder.find(name)
    return _hub(split, name, most) if path is None else _file(path, most)


def _made_up(seed: int, count: int) -> Labelled:
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        label = 1 - i % 2
        clues = rng.choice(POSITIVE if label else NEGATIVE, _CLUES)
        words = rng.permutation([*clues, *rng.choice(NEUTRAL, rng.integers(4, 20))])
        found.append((" ".join(words.tolist()), label))
    return found


def _file(path: Path, most: int) -> Labelled:
    found: Labelled = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                review = json.loads(line)
                if review["label"] not in (0, 1):
                    raise ValueError(f"label {review['label']!r}")
                found.append((str(review["text"]), int(review["label"])))
                if len(found) == most:
                    break
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        expected = 'lines of {"text": …, "label": 0 or 1}, compressed by gzip'
        raise ArgumentError(path.name, expected, f"{type(error).__name__}: {error}") from error
    return found


def _hub(split: str, name: str, most: int) -> Labelled:
    rows = data_folder.from_hub(HUB, split, name)
    sides = [[text for text, label in zip(rows["text"], rows["label"], strict=True) if label == y] for y in (1, 0)]
    # the hub has all negative ones first; a fixed shuffle within each class, then in turn
    order = np.random.default_rng(0)
    shuffled = [[side[i] for i in order.permutation(len(side))] for side in sides]
    return [(text, label) for pair in zip(*shuffled, strict=False) for text, label in zip(pair, (1, 0), strict=True)][
        :most
    ]
