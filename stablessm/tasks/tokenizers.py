"""Tokenizers for characters, bytes, byte pairs or words, each stored as one JSON file."""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np

from stablessm._errors import ArgumentError
from stablessm._optional import require
from stablessm._renamed import module_names

Level: TypeAlias = Literal["char", "byte", "bpe", "word"]

BORDER, UNKNOWN, LINE_END = "<|endoftext|>", "<unk>", "<eos>"
DEFAULT_PIECES = 8192
"""Default number of byte pairs to learn."""
FILE = "tokenizer.json"
"""Name of the file that is stored with a model."""
_FORMAT = "stablessm tokenizer"
_AT_ONCE = 64
"""Number of texts that are encoded at once."""


class Tokenizer(ABC):
    """The base class of tokenizers, which convert text to token ids and back. The border token, which stands for no
    text, separates documents.
    """

    level: Level
    size: int
    """Number of ids."""
    border: int
    """Id of the border token before every document, and after every document if documents are closed."""
    unknown: int | None = None
    """Id of words or characters that are not in the vocabulary; None if every text can be encoded."""

    @abstractmethod
    def encode_all(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the array of token ids of each text, without border tokens."""

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """Return the bytes that a token id stands for; empty for the border token."""

    @abstractmethod
    def content(self) -> str:
        """Return the tokenizer as a JSON text, from which :func:`read` restores it."""

    @final
    def encode(self, text: str) -> np.ndarray:
        """Convert one text to token ids."""
        return next(self.encode_all([text]))

    @final
    def decode(self, tokens: Iterable[int]) -> str:
        """Convert token ids to text; invalid bytes become �."""
        return "".join(self.decode_stream(tokens))

    @final
    def decode_stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """Convert token ids to text one by one; yield each character as soon as all its bytes have arrived."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(self.piece(int(token)))
        yield decoder.decode(b"", final=True)

    def lost(self, text: str, tokens: np.ndarray) -> int:
        """Return how many of the tokens are the unknown token, which cannot be converted back to text."""
        return 0 if self.unknown is None else int((tokens == self.unknown).sum())

    @final
    @property
    def dtype(self) -> np.dtype:
        """Smallest NumPy dtype that can store the token ids."""
        return np.dtype(np.uint16 if self.size <= 2**16 else np.uint32)


@final
class Bytes(Tokenizer):
    """A tokenizer whose tokens are the UTF-8 bytes of a text.

    >>> Bytes().encode("é").tolist(), Bytes().size
    ([195, 169], 257)
    """

    level: Level = "byte"
    size = 257
    border = 256

    def encode_all(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the token ids of each text, one id per byte."""
        for text in texts:
            yield np.frombuffer(text.encode(), np.uint8).astype(self.dtype)

    def piece(self, token: int) -> bytes:
        """Return the byte that a token id stands for; empty for the border token."""
        return b"" if token == self.border else bytes([token])

    def content(self) -> str:
        """Return the tokenizer as a JSON text with an empty vocabulary."""
        return _own(self.level, [])


@final
class Characters(Tokenizer):
    """A tokenizer whose tokens are the characters of the training text; other characters are unknown.

    >>> letters = Characters.of(["banana"])
    >>> letters.encode("nab!").tolist(), letters.decode([2, 4, 3])
    ([4, 2, 3, 1], 'anb')
    """

    level: Level = "char"
    border, unknown = 0, 1

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = tuple(characters)
        self.size = len(self.characters) + 2
        codes = np.array([ord(character) for character in characters], np.int64)
        self._ids = np.full(0x110000, self.unknown, self.dtype)
        self._ids[codes] = np.arange(2, self.size)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Characters:
        """Create a tokenizer for the characters that occur in the given texts, in the order of Unicode."""
        return cls(sorted(set().union(*texts)))

    def encode_all(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the token ids of each text, one id per character."""
        for text in texts:
            yield self._ids[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]

    def piece(self, token: int) -> bytes:
        """Return the UTF-8 bytes of the character for which a token id stands."""
        return (b"", "�".encode())[token] if token < 2 else self.characters[token - 2].encode()

    def content(self) -> str:
        """Return the tokenizer as a JSON text whose vocabulary is the characters."""
        return _own(self.level, self.characters)


@final
class Words(Tokenizer):
    """A tokenizer whose tokens are words between white space. A line end becomes the token ``<eos>``, which also stands
    between documents.

    This is the usual tokenization of WikiText in the literature.

    >>> words = Words.of(["the cat \\n the dog \\n"], most=None)
    >>> words.words, words.encode("the bird\\n").tolist()
    (('<eos>', '<unk>', 'the', 'cat', 'dog'), [2, 1, 0])
    """

    level: Level = "word"
    border, unknown = 0, 1

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.size = len(self.words)
        self._ids = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def of(cls, texts: Iterable[str], most: int | None) -> Words:
        """Create a tokenizer for the words in the given texts: for the ``most`` frequent words or, if ``most`` is None,
        for all of them.
        """
        counts = Counter(word for text in texts for word in text.split())
        for special in (LINE_END, UNKNOWN):
            counts.pop(special, None)
        frequent = sorted(counts, key=lambda word: (-counts[word], word))
        return cls((LINE_END, UNKNOWN, *frequent[: None if most is None else most - 2]))

    def encode_all(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the token ids of each text, one id per word."""
        for text in texts:
            words = text.replace("\n", f" {LINE_END} ").split()
            yield np.array([self._ids.get(word, self.unknown) for word in words], self.dtype)

    def piece(self, token: int) -> bytes:
        """Return the bytes of the word for which a token id stands, followed by a space, or the bytes of a line end."""
        return b"\n" if token == self.border else self.words[token].encode() + b" "

    def content(self) -> str:
        """Return the tokenizer as a JSON text whose vocabulary is the words."""
        return _own(self.level, self.words)

    def lost(self, text: str, tokens: np.ndarray) -> int:
        """Return the number of words in a text that the tokenizer does not know, given the tokens of the text."""
        return super().lost(text, tokens) - text.split().count(UNKNOWN)


@final
class BytePairs(Tokenizer):
    """A tokenizer for byte-pair encoding by the package ``tokenizers``; every text can be decoded exactly.

    The file has the format of that package, so ``transformers.PreTrainedTokenizerFast(tokenizer_file=…)`` reads it.
    """

    level: Level = "bpe"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # a border token that is written in a text is encoded as text
        self.size = tokenizer.get_vocab_size()
        border = tokenizer.token_to_id(BORDER)
        if border is None:
            raise ArgumentError("tokenizer", f"a byte-level tokenizer with a token {BORDER}", "no token of that name")
        self.border = border

    @classmethod
    def of(cls, texts: Sequence[str], most: int) -> BytePairs:
        """Learn a tokenizer with at most ``most`` tokens from the given texts."""
        package = require("tokenizers", "level=bpe")
        tokenizer = package.Tokenizer(package.models.BPE())
        tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=most,
            special_tokens=[BORDER],
            initial_alphabet=sorted(package.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer, length=len(texts))
        return cls(tokenizer)

    def encode_all(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the token ids of each text; groups of texts are encoded on all cores."""
        for first in range(0, len(texts), _AT_ONCE):
            for found in self._tokenizer.encode_batch_fast(list(texts[first : first + _AT_ONCE])):
                yield np.array(found.ids, self.dtype)

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token id stands for; empty for the border token."""
        return b"" if token == self.border else self._pieces[token]

    @cached_property
    def _pieces(self) -> list[bytes]:
        byte = {character: number for number, character in _byte_characters().items()}
        pieces = (self._tokenizer.id_to_token(i) for i in range(self.size))
        return [b"" if piece == BORDER else bytes(byte[character] for character in piece) for piece in pieces]

    def content(self) -> str:
        """Return the tokenizer as a JSON text in the format of the package ``tokenizers``."""
        return str(self._tokenizer.to_str())


def learned(level: Level, texts: Sequence[str], vocabulary: int | None) -> Tokenizer:
    """Learn a tokenizer from texts; ``vocabulary`` is the largest number of tokens (only for the levels bpe and word).

    >>> learned("char", ["abc"], None).size
    5
    """
    if vocabulary is not None:
        least = {"bpe": 257, "word": 3}.get(level)
        if least is None:
            raise ArgumentError("vocabulary", f"no value at level {level}, whose tokens are fixed", vocabulary)
        if vocabulary < least:
            raise ArgumentError("vocabulary", f"at least {least} at level {level}", vocabulary)
    if level in ("byte", "char"):
        return Bytes() if level == "byte" else Characters.of(texts)
    return Words.of(texts, vocabulary) if level == "word" else BytePairs.of(texts, vocabulary or DEFAULT_PIECES)


def read(content: str, place: str) -> Tokenizer:
    """Restore a tokenizer from the text that ``content()`` returned; errors name ``place``, the file or field where the
    text was found.

    >>> read(Characters.of(["abc"]).content(), "here").decode([2, 3])
    'ab'
    """
    try:
        found = json.loads(content)
        if found.get("format") != _FORMAT:
            return BytePairs(require("tokenizers", "level=bpe").Tokenizer.from_str(content))
        level, vocabulary = found["level"], found["vocabulary"]
        return Bytes() if level == "byte" else {"char": Characters, "word": Words}[level](vocabulary)
    except ArgumentError:
        raise
    except Exception as error:  # the package raises Exception itself
        raise ArgumentError(place, "a tokenizer that stablessm wrote", f"{type(error).__name__}: {error}") from error


def load(path: str | Path) -> Tokenizer:
    """Load a tokenizer from a file or from the folder of a model."""
    path = Path(path)
    if path.is_dir():
        path = next((folder / FILE for folder in (path, path / "model") if (folder / FILE).is_file()), path / FILE)
    try:
        return read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError("tokenizer", f"a {FILE}, or a folder with one", f"{path} ({error})") from error


def _own(level: Level, vocabulary: Sequence[str]) -> str:
    return json.dumps({"format": _FORMAT, "level": level, "vocabulary": vocabulary}, ensure_ascii=False)


def _byte_characters() -> dict[int, str]:
    """Return a table from each byte to the printable character by which byte-level tokenizers represent this byte.

    Visible bytes are written as themselves, and other bytes as characters above 255.
    """
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


__getattr__ = module_names(__name__, "learnt")
