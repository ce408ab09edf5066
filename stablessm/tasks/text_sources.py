"""Texts for language modeling, by name or from a file: splits, documents, and the numbers of words and bytes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from stablessm._errors import ArgumentError, quoted
from stablessm._similar import did_you_mean
from stablessm.tasks import sources
from stablessm.tasks.base import SPLITS, Split
from stablessm.tasks.stored import split_sizes

_HEADING = re.compile(r"^ \n = (?!= )[^\n]+(?<! =) = \n(?= \n)", re.MULTILINE)
"""Matches the beginning of an article of WikiText: a line `` = Title = `` between empty lines."""
_HUB_SPLITS: Final[dict[Split, str]] = {"train": "train", "valid": "validation", "test": "test"}


@final
@dataclass(frozen=True, eq=False)
class Text:
    """The documents of one split of a text, with the numbers of words and bytes.

    >>> text = Text.of("one two\\n\\nthree", "\\n\\n")
    >>> text.documents, text.words, text.bytes
    (('one two', 'three'), 3, 14)
    """

    documents: tuple[str, ...]
    closed: bool
    """Whether a border token follows each document, in place of the separator."""
    words: int
    """Number of words, separated by white space."""
    bytes: int
    """Number of bytes in UTF-8, including separators."""

    @classmethod
    def of(cls, text: str, separator: str | None) -> Text:
        """Divide a text into documents at a separator; if the separator is None, the text is one document."""
        documents = (text,) if separator is None else _separated(text, separator)
        words = sum(len(document.split()) for document in documents)
        return cls(tuple(documents), separator is not None, words, len(text.encode()))

    @classmethod
    def of_articles(cls, text: str) -> Text:
        """Divide a text in the format of WikiText into documents: a new document begins at each title heading."""
        starts = [0, *(match.start() for match in _HEADING.finditer(text) if match.start())]
        documents = (text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True))
        return cls(tuple(documents), False, len(text.split()), len(text.encode()))


@final
@dataclass(frozen=True)
class Source:
    """A text that is read only when it is needed, and the keys under which its encoded form is cached."""

    name: str
    keys: tuple[str, ...]
    """Keys of encoded texts in the cache; the last one is the key of the text that ``read`` returns."""
    read: Callable[[], Mapping[Split, Text]]


@final
@dataclass(frozen=True)
class _Named:
    """The place of a text with official splits: the name of its files, in which ``{}`` stands for the split; the
    function that parses a file; and the name of the data set on the Hugging Face hub.
    """

    file: str
    parse: Callable[[str], Text]
    hub: tuple[str, str] | None = None


NAMED: Final[dict[str, _Named]] = {
    "wikitext2": _Named("wikitext2_{}.txt.gz", Text.of_articles, ("Salesforce/wikitext", "wikitext-2-v1")),
    "wikifa": _Named("wikifa_{}.txt.xz", lambda text: Text.of(text, "\n\n")),
    "wikitext103": _Named("wikitext103_{}.txt.gz", Text.of_articles, ("Salesforce/wikitext", "wikitext-103-v1")),
}
SHAKESPEARE: Final = "tinyshakespeare"
NAMES: Final = (*NAMED, SHAKESPEARE)


def source(text: str, separator: str | None, valid: float, test: float) -> Source:
    """Return a text, given by the name of a known text or as the path of a file, as a :class:`Source`, which reads the
    text on demand.

    Args:
        text: Name of a text, or path of a file.
        separator: Text between documents of the file; with None, the file is one document.
        valid, test: Fractions of a text in one file, at its end, that become the valid and test splits.
    """
    if text in NAMED:
        if separator is not None:
            raise ArgumentError("separator", f"no separator for {text}, whose documents are known", quoted(separator))
        named = NAMED[text]
        key = _known_key(text, [named.file.format(split) for split in SPLITS])
        from_hub = named.hub is not None and not os.environ.get(sources.VARIABLE)
        return Source(text, (key, f"{key}, hub") if from_hub else (key,), lambda: _read_named(named))
    cut = json.dumps([separator, valid, test])
    if text == SHAKESPEARE:
        file = f"{SHAKESPEARE}.txt.gz"
        key = _known_key(text, [file]) + cut
        return Source(text, (key,), lambda: split_text(_read_file(file), separator, valid, test))
    path = Path(text)
    if not path.is_file():
        why = f"no such file{did_you_mean(path)}"
        raise ArgumentError("text", f"one of {', '.join(NAMES)}, or a text file", f"{text} ({why})")
    content = sources.text(path, "a text in UTF-8")
    key = sources.content_digest(content.encode()) + cut
    return Source(path.name.partition(".")[0], (key,), lambda: split_text(content, separator, valid, test))


def split_text(text: str, separator: str | None, valid: float, test: float) -> dict[Split, Text]:
    """Divide a text into train, valid and test splits. The cuts are between documents, which ``separator`` separates; a
    single document (``separator`` is None) is cut between characters.

    >>> parts = split_text("a" * 80 + "b" * 10 + "c" * 10, None, 0.1, 0.1)
    >>> {split: len(part.documents[0]) for split, part in parts.items()}
    {'train': 80, 'valid': 10, 'test': 10}
    """
    if separator is None:
        pieces: list[str] | str = text
    else:
        separator = separator.replace("\\n", "\n")  # on a command line, \n is typed as two characters
        if not separator:
            raise ArgumentError("separator", "at least one character", "none")
        pieces = _separated(text, separator)
    sizes, found, end = split_sizes(len(pieces), valid, test), {}, 0
    for split in SPLITS:
        begin, end = end, end + sizes[split]
        part = pieces[begin:end]
        joined = part if isinstance(part, str) else (separator or "").join([*part, ""] if part else [])
        found[split] = Text.of(joined, separator)
    return found


def _separated(text: str, separator: str) -> list[str]:
    return [piece for part in text.split(separator) if (piece := part.strip("\n"))]


def _known_key(name: str, files: Sequence[str]) -> str:
    """Return the cache key of a text with this name. If its files are the published files, or are absent, the key is
    the name; otherwise the key is a digest of the content of the files.
    """
    folder = os.environ.get(sources.VARIABLE)
    paths = [Path(folder) / file for file in files] if folder else []
    if not all(path.is_file() for path in paths):
        return name
    if all(path.stat().st_size == sources.FILES.get(path.name, (-1, ""))[0] for path in paths):
        return name
    return sources.content_digest(*(sources.text(path, "a text in UTF-8").encode() for path in paths))


def _read_named(named: _Named) -> dict[Split, Text]:
    found: dict[Split, Text] = {}
    for split in SPLITS:
        file = named.file.format(split)
        if named.hub is None or os.environ.get(sources.VARIABLE):
            text = _read_file(file)
        else:
            rows = sources.from_hub(named.hub[0], _HUB_SPLITS[split], file, named.hub[1])["text"]
            text = "".join(row or " \n" for row in rows)  # the hub has nothing for an empty line
        found[split] = named.parse(text)
    return found


def _read_file(file: str) -> str:
    path = sources.find(file)
    if path is None:
        raise ArgumentError(sources.VARIABLE, f"a folder with {file}", "no such variable")
    return sources.text(path, "a text in UTF-8")
