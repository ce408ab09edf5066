"""Encoded texts: each split is one long row of tokens with document borders. Encoded large texts are cached."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import final

import numpy as np

from stablessm import _progress, record
from stablessm._errors import ArgumentError
from stablessm.tasks import sources, tokenizers
from stablessm.tasks.base import SPLITS, Split
from stablessm.tasks.text_sources import Source, Text
from stablessm.tasks.tokenizers import Level, Tokenizer

_KIND = "encoded text 1"
_LARGE = 2**23
"""Number of bytes from which an encoded text is cached for every kind of tokens."""


@final
@dataclass(frozen=True, eq=False)
class Stream:
    """The tokens of a split in one array, one document after the other."""

    tokens: np.ndarray
    """Tokens in order (N,)."""
    starts: np.ndarray
    """Index of the first token of each document (documents,), int64."""
    words: int
    bytes: int
    lost: int
    """Number of unknown words or characters, which are not predicted."""

    @property
    def documents(self) -> int:
        """Number of documents in this split."""
        return len(self.starts)


@final
@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoded text: the tokenizer and the tokens of each split."""

    tokenizer: Tokenizer
    streams: Mapping[Split, Stream]


def encoded(source: Source, level: Level, vocabulary: int | None, own: Tokenizer | None) -> Encoded:
    """Return the tokens of a text, and their tokenizer. Both are read from the cache folder or the data folder if they
    are stored there; otherwise, they are computed.

    Args:
        source: The text.
        level: Kind of tokens.
        vocabulary: Largest number of different tokens.
        own: An existing tokenizer; with None, a tokenizer is learned from the training split.
    """
    made_by = (level, "" if own is None else own.content(), vocabulary)
    files = [_file(source.name, key, *made_by) for key in source.keys]
    cache = sources.cache_folder()
    for folder, file in product((cache, Path(os.environ.get(sources.VARIABLE) or cache)), files):
        if (folder / file).is_file() and (found := _load(folder / file)) is not None:
            return found
    texts = source.read()
    tokenizer = own or tokenizers.learned(level, texts["train"].documents, vocabulary)
    made = Encoded(tokenizer, {split: stream(texts[split], tokenizer) for split in SPLITS})
    if level == "bpe" or texts["train"].bytes > _LARGE:
        try:
            _save(cache / files[-1], made)
        except OSError as error:
            warnings.warn(f"{error}. The encoded text is not cached", stacklevel=2)
    return made


def stream(text: Text, tokenizer: Tokenizer) -> Stream:
    """Encode the documents of one split as one row of token ids; if ``text.closed``, a border token (the token between
    documents) follows each document.

    >>> row = stream(Text.of("ab--c", "--"), tokenizers.Bytes())
    >>> row.tokens.tolist(), row.starts.tolist(), row.words, row.bytes
    ([97, 98, 256, 99, 256], [0, 3], 2, 5)
    """
    end = np.array([tokenizer.border] if text.closed else [], tokenizer.dtype)
    rows, starts, lost, place = [np.empty(0, tokenizer.dtype)], [], 0, 0
    with _progress.bar(text.bytes > _LARGE, total=text.bytes, unit="B", unit_scale=True, desc="encoding") as bar:
        for document, row in zip(text.documents, tokenizer.encode_all(text.documents), strict=True):
            starts.append(place)
            rows += [row, end]
            lost += tokenizer.lost(document, row)
            place += len(row) + len(end)
            bar.update(len(document))
    return Stream(np.concatenate(rows), np.array(starts, np.int64), text.words, text.bytes, lost)


def _file(name: str, key: str, level: Level, tokenizer: str, vocabulary: int | None) -> str:
    identity = json.dumps([_KIND, key, level, tokenizer, vocabulary]).encode()
    parts = ["text", re.sub(r"\W", "_", name), level, *([] if vocabulary is None else [str(vocabulary)])]
    return f"{'-'.join(parts)}-{sources.content_digest(identity)[:12]}.npz"


def _save(path: Path, made: Encoded) -> None:
    rows = made.streams.items()
    counts = {split: {part: getattr(row, part) for part in ("words", "bytes", "lost")} for split, row in rows}
    arrays = {f"{split}.{part}": getattr(row, part) for split, row in rows for part in ("tokens", "starts")}
    record.save_arrays(path, _KIND, {"tokenizer": made.tokenizer.content(), "counts": counts}, arrays)


def _load(path: Path) -> Encoded | None:
    """Load an encoded text that :func:`_save` has written; return None if the file is damaged."""
    try:
        meta, arrays = record.load_arrays(path, _KIND)
        tokenizer = tokenizers.read(meta["tokenizer"], str(path))
        rows = {
            split: Stream(arrays[f"{split}.tokens"], arrays[f"{split}.starts"], **meta["counts"][split])
            for split in SPLITS
        }
        for row in rows.values():
            expected = tokenizer.dtype, np.dtype(np.int64), row.starts.ndim
            if (row.tokens.dtype, row.starts.dtype, row.tokens.ndim) != expected:
                raise TypeError("arrays of other types")
    except (*sources.BROKEN, ArgumentError):
        return None
    return Encoded(tokenizer, rows)
