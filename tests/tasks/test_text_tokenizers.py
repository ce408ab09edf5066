"""Text to tokens and back: by brute force, through files, and what goes wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablessm import ArgumentError, MissingPackageError
from stablessm.tasks import tokenizers
from stablessm.tasks.tokenizers import BytePairs, Bytes, Characters, Words

TEXTS = ["the cat sat on the mat.\nthe dog ran.\n", "çà et là: 日本語 🙂\n", "it's 1,234.5 — isn't it?\n\n  yes"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def pieces() -> BytePairs:
    return BytePairs.of(TEXTS * 3, 300)


@given(text=TEXT)
def test_any_text_comes_back_from_bytes_and_byte_pairs(pieces: BytePairs, text: str) -> None:
    for tokenizer in (Bytes(), pieces):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert tokenizer.border not in tokens
        assert b"".join(map(tokenizer.piece, tokens.tolist())) == text.encode()


@given(text=TEXT)
def test_characters_come_back_if_they_were_seen(text: str) -> None:
    assert Characters.of([text]).decode(Characters.of([text]).encode(text)) == text
    known = Characters.of(["ab c"])
    expected = "".join(letter if letter in "ab c" else "�" for letter in text)
    assert known.decode(known.encode(text)) == expected
    assert known.lost(text, known.encode(text)) == sum(letter not in "ab c" for letter in text)


def test_byte_pairs_are_what_the_package_says(pieces: BytePairs) -> None:
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_str(pieces.content())
    for text in TEXTS:
        assert pieces.encode(text).tolist() == theirs.encode(text).ids
        assert pieces.decode(theirs.encode(text).ids) == theirs.decode(theirs.encode(text).ids) == text
    assert pieces.size == 300
    assert len(pieces.encode(TEXTS[0])) < len(TEXTS[0]) / 2


def test_byte_pairs_are_the_same_every_time(pieces: BytePairs) -> None:
    assert BytePairs.of(TEXTS * 3, 300).content() == pieces.content()


def test_transformers_reads_byte_pairs(pieces: BytePairs, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    (tmp_path / "tokenizer.json").write_text(pieces.content(), encoding="utf-8")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert theirs(TEXTS[1])["input_ids"] == pieces.encode(TEXTS[1]).tolist()


def test_a_border_in_a_text_is_a_text(pieces: BytePairs) -> None:
    text = f"a {tokenizers.BORDER} b"
    assert pieces.border not in pieces.encode(text)
    assert pieces.decode(pieces.encode(text)) == text


def test_words_by_hand() -> None:
    words = Words.of(["a b a <unk> \n c b a \n"], most=4)
    assert words.words == ("<eos>", "<unk>", "a", "b")
    tokens = words.encode("a c <unk> \n b")
    assert tokens.tolist() == [2, 1, 1, 0, 3]
    assert words.lost("a c <unk> \n b", tokens) == 1, "c; the text says <unk> itself"
    assert words.decode([2, 3, 0, 2]) == "a b \na "


def test_a_stream_holds_back_half_a_character() -> None:
    pieces = list(Bytes().decode_stream("é日".encode()))
    assert pieces == ["", "é", "", "", "日", ""]
    assert "".join(Bytes().decode_stream("é".encode()[:1])) == "�"


@pytest.mark.parametrize("level", ["char", "byte", "bpe", "word"])
def test_files(level: tokenizers.Level, tmp_path: Path) -> None:
    made = tokenizers.learned(level, TEXTS, 280 if level == "bpe" else None)
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / tokenizers.FILE
    path.write_text(made.content(), encoding="utf-8")
    for place in (path, tmp_path / "model", tmp_path):
        read = tokenizers.load(place)
        assert (read.level, read.size, read.border) == (level, made.size, made.border)
        assert read.encode(TEXTS[1]).tolist() == made.encode(TEXTS[1]).tolist()
        assert read.content() == made.content()


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"tokenizer: expected a tokenizer\.json, or a folder with one"):
        tokenizers.load(tmp_path)
    for content in ("", "{}", "[]", '{"format": "stablessm tokenizer", "level": "rune", "vocabulary": []}'):
        (tmp_path / tokenizers.FILE).write_text(content, encoding="utf-8")
        with pytest.raises(ArgumentError, match=r"tokenizer\.json: expected a tokenizer that stablessm wrote"):
            tokenizers.load(tmp_path)
    foreign = json.loads(BytePairs.of(TEXTS, 260).content())
    foreign["added_tokens"] = []
    foreign["model"]["vocab"] = {t: i for t, i in foreign["model"]["vocab"].items() if t != tokenizers.BORDER}
    (tmp_path / tokenizers.FILE).write_text(json.dumps(foreign), encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"a byte-level tokenizer with a token <\|endoftext\|>"):
        tokenizers.load(tmp_path)


def test_wrong_vocabularies_are_named() -> None:
    for level, size, told in (
        ("char", 9, "no value at level"),
        ("bpe", 256, "at least 257"),
        ("word", 2, "least 3"),
    ):
        with pytest.raises(ArgumentError, match=f"vocabulary: expected .*{told}"):
            tokenizers.learned(level, TEXTS, size)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert tokenizers.learned("char", TEXTS, None).size > 2
    with pytest.raises(MissingPackageError, match=r"level=bpe requires tokenizers, .* \(pip install 'stablessm\[hf\]'"):
        tokenizers.learned("bpe", TEXTS, None)
