"""Labeled texts (movie reviews) as token ids, divided into splits, with their vocabulary."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, final

import numpy as np

from stablessm._errors import ArgumentError, quoted
from stablessm.tasks.base import SPLITS

Labeled: TypeAlias = list[tuple[str, int]]
"""Pairs of a text and its class."""

Row: TypeAlias = "Sequence[int] | np.ndarray"
"""The token ids of a text."""

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
"""Special tokens, which come first in the vocabularies of words and of bytes."""
START, END, UNKNOWN = 1, 2, 3

_WORD = re.compile(r"\w+(?:'\w+)?")
_HELD_OUT = 10
"""One of this many training reviews is held out for validation."""
_PARTS = ("tokens", "starts", "labels")


@final
@dataclass(frozen=True, eq=False)
class Reviews:
    """A set of labeled reviews: the token ids of all reviews in one array, where each review begins, and the labels."""

    tokens: np.ndarray
    """Token ids of all reviews, one review after the other, uint16."""
    starts: np.ndarray
    """First tokens of the reviews, and the end (n + 1,): review i is ``tokens[starts[i]:starts[i + 1]]``."""
    labels: np.ndarray
    """Labels (n,): 1 for a positive review, 0 for a negative one."""

    @classmethod
    def of(cls, rows: Iterable[Row], labels: Sequence[int]) -> Self:
        """Build a set of reviews from token ids (one row per review) and labels."""
        packed = [np.asarray(row, np.uint16) for row in rows]
        starts = np.cumsum([0, *map(len, packed)])
        tokens = np.concatenate([np.empty(0, np.uint16), *packed])
        return cls(tokens, starts, np.array(labels, np.uint8))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each review, (n,)."""
        return np.diff(self.starts)

    def padded(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return token ids (B, longest) padded with 0, lengths (B,) and labels (B,) of the reviews at ``index``.

        >>> ids, lengths, labels = Reviews.of([[1, 7], [1, 8, 9]], [0, 1]).padded(np.array([1, 0]))
        >>> ids.tolist(), lengths.tolist(), labels.tolist()
        ([[1, 8, 9], [1, 7, 0]], [3, 2], [1, 0])
        """
        lengths = self.lengths[index]
        ids = np.zeros((len(index), int(lengths.max(initial=0))), dtype=np.int64)
        for row, i in zip(ids, index, strict=True):
            review = self.tokens[self.starts[i] : self.starts[i + 1]]
            row[: len(review)] = review
        return ids, lengths, self.labels[index]


@final
@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus of reviews as token ids: the training, validation and test splits, and the vocabulary."""

    train: Reviews
    valid: Reviews
    test: Reviews
    vocabulary: tuple[str, ...]
    start: int
    """Token id with which every review begins."""
    end: int | None
    """Token id with which every review ends, or None."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all fields of the corpus as arrays, to be stored in a file."""
        found = {f"{split}.{part}": getattr(getattr(self, split), part) for split in SPLITS for part in _PARTS}
        frame = np.array([self.start, -1 if self.end is None else self.end])
        return {**found, "vocabulary": np.array(self.vocabulary), "frame": frame}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Restore a corpus from the arrays that :meth:`arrays` returned."""
        splits = {split: Reviews(*(arrays[f"{split}.{part}"] for part in _PARTS)) for split in SPLITS}
        start, end = arrays["frame"].tolist()
        vocabulary = tuple(arrays["vocabulary"].tolist())
        return cls(**splits, vocabulary=vocabulary, start=start, end=None if end < 0 else end)

    def ids(self, words: Sequence[str]) -> list[int]:
        """Return the token ids of words; for an unknown word, raise an error that names similar words of the
        vocabulary.

        >>> reviews = [("good good film", 1), ("bad film", 0)] * 5
        >>> corpus = word_corpus(reviews, reviews, 10, 8)
        >>> corpus.vocabulary[4:], corpus.ids(["bad", "good"])
        (('film', 'good', 'bad'), [6, 5])
        >>> corpus.ids(["goood"])
        Traceback (most recent call last):
        ...
        stablessm._errors.ArgumentError: words: expected words that the model knows, such as 'good', got 'goood'
        """
        if not words:
            raise ArgumentError("words", "at least one word", "none")
        known = {word: i for i, word in enumerate(self.vocabulary)}
        for word in words:
            if word not in known:
                near = difflib.get_close_matches(word, self.vocabulary) or self.vocabulary[len(SPECIAL) :][:3]
                expected = f"words that the model knows, such as {', '.join(map(repr, near))}"
                raise ArgumentError("words", expected, quoted(word))
        return [known[word] for word in words]


def word_corpus(train: Labeled, test: Labeled, most: int, length: int, *, closed: bool = False) -> Corpus:
    """Return a corpus whose tokens are words in lower case; only the most frequent training words are known.

    Args:
        train, test: The reviews.
        most: Size of the vocabulary; other words become the unknown token.
        length: Largest number of tokens of a review, including its start and end.
        closed: Whether reviews end with an end token.
    """
    if not len(SPECIAL) < most <= 2**16:
        raise ArgumentError("vocabulary", f"from {len(SPECIAL) + 1} to {2**16} words", most)
    counts = Counter(word for text, _ in train for word in _words(text))
    # equally frequent words are in alphabetical order, so that the vocabulary does not depend on the order of reviews
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: most - len(SPECIAL)]
    vocabulary = (*SPECIAL, *frequent)
    known = {word: i for i, word in enumerate(vocabulary)}

    def encode(texts: Iterable[str], most: int) -> list[list[int]]:
        return [[known.get(word, UNKNOWN) for word in _words(text)[:most]] for text in texts]

    return _corpus(train, test, encode, vocabulary, START, END if closed else None, length)


def byte_corpus(train: Labeled, test: Labeled, length: int) -> Corpus:
    """Return a corpus whose tokens are the UTF-8 bytes of each text, after a start token.

    ``length`` is the largest number of tokens of a review, as in :func:`word_corpus`.

    >>> corpus = byte_corpus([("ab", 1)] * 10, [("é", 0)], 8)
    >>> [corpus.vocabulary[i] for i in corpus.test.tokens], len(corpus.vocabulary)
    (['<s>', '0xc3', '0xa9'], 260)
    """

    def encode(texts: Iterable[str], most: int) -> Iterable[Row]:
        for text in texts:
            yield np.frombuffer(text.encode()[:most], np.uint8).astype(np.uint16) + len(SPECIAL)

    vocabulary = (*SPECIAL, *(f"0x{i:02x}" for i in range(256)))
    return _corpus(train, test, encode, vocabulary, START, None, length)


def piece_corpus(train: Labeled, test: Labeled, tokenizer: Any, length: int) -> Corpus:
    """Return a corpus whose tokens are the word pieces of a Hugging Face tokenizer, between [CLS] and [SEP].

    ``length`` is the largest number of tokens of a review, as in :func:`word_corpus`.
    """

    def encode(texts: Iterable[str], most: int) -> list[list[int]]:
        options = {"add_special_tokens": False, "truncation": True, "max_length": most, "padding": False}
        return list(tokenizer([_plain(text) for text in texts], **options)["input_ids"])

    vocabulary = tuple(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    if len(vocabulary) > 2**16:
        raise ArgumentError("bert", f"a vocabulary of at most {2**16} word pieces", len(vocabulary))
    return _corpus(train, test, encode, vocabulary, tokenizer.cls_token_id, tokenizer.sep_token_id, length)


def _corpus(
    train: Labeled,
    test: Labeled,
    encode: Callable[[Iterable[str], int], Iterable[Row]],
    vocabulary: tuple[str, ...],
    start: int,
    end: int | None,
    length: int,
) -> Corpus:
    before, after = (np.array(ids, np.uint16) for ids in ([start], [] if end is None else [end]))
    if length <= len(before) + len(after):
        raise ArgumentError("length", f"more than {len(before) + len(after)} tokens", length)
    held_out = len(train) // _HELD_OUT
    if not held_out or not test:
        expected = f"at least {_HELD_OUT} to train on and 1 to test on"
        raise ArgumentError("reviews", expected, f"{len(train)}, {len(test)}")

    def made(reviews: Labeled) -> Reviews:
        rows = encode((text for text, _ in reviews), length - len(before) - len(after))
        return Reviews.of((np.concatenate([before, row, after]) for row in rows), [label for _, label in reviews])

    return Corpus(made(train[:-held_out]), made(train[-held_out:]), made(test), vocabulary, start, end)


def _words(text: str) -> list[str]:
    return _WORD.findall(_plain(text).lower())


def _plain(text: str) -> str:
    return text.replace("<br />", " ")
