"""Texts as a task: windows and borders by brute force, splits, the cache, the hub, and the real files."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stablessm import ArgumentError, record, tasks
from stablessm.tasks import sources, text_sources, text_stream
from stablessm.tasks.text import LanguageModeling
from stablessm.tasks.text_sources import Text
from stablessm.tasks.tokenizers import Bytes

needs_data = pytest.mark.skipif("STABLESSM_DATA" not in os.environ, reason="needs the data folder")
ARTICLES = " \n = One = \n \n the cat <unk> \n = = Part = = \n \n a = b = \n \n = Two words = \n \n sat \n"
DOCUMENTS = st.lists(st.text("abç \n", min_size=1, max_size=12).filter(lambda d: d.strip("\n")), min_size=6, max_size=9)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(sources.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def wiki(folder: Path) -> None:
    """Small files in the forms of WikiText-2 and wikifa."""
    for split in ("train", "valid", "test"):
        with gzip.open(folder / f"wikitext2_{split}.txt.gz", "wt", encoding="utf-8") as file:
            file.write(ARTICLES * 3)
        with lzma.open(folder / f"wikifa_{split}.txt.xz", "wt", encoding="utf-8") as file:
            file.write("= One =\nthe cat\n\n= Two =\nsat\non it.\n")


def build(path: Path, text: str, **options: Any) -> LanguageModeling:
    path.write_bytes(text.encode())
    task = tasks.get("lm", text=str(path), **options)
    assert isinstance(task, LanguageModeling)
    return task


@settings(max_examples=25)
@given(documents=DOCUMENTS, length=st.integers(1, 9), size=st.integers(1, 4))
def test_windows_and_borders_by_brute_force(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], length: int, size: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    options: Any = {"level": "byte", "separator": "|", "valid": 0.2, "test": 0.3}
    assume(length <= build(path, "|".join(documents), length=1, **options).sizes["train"])
    task = build(path, "|".join(documents), length=length, **options)
    kept = [document.strip("\n").encode() for document in documents]
    inputs, targets, new = [], [], []
    first = task.streams["train"].documents + task.streams["valid"].documents
    for document in kept[first:]:
        inputs += [256, *document]
        targets += [*document, 256]
        new += [True] + [False] * len(document)
    found: dict[str, list[int]] = {"inputs": [], "targets": [], "reset": []}
    for index in range(task.steps("test", size)):
        batch = task.batch("test", size, index=index)
        counts = torch.ones(batch.inputs.shape) if batch.weights is None else batch.weights
        reset = torch.zeros(batch.inputs.shape) if batch.reset is None else batch.reset
        for name, part in (("inputs", batch.inputs), ("targets", batch.targets), ("reset", reset)):
            found[name] += part[counts > 0].int().tolist()
    if task.streams["test"].documents == 1:
        new = [False] * len(new)  # there is nothing before the first
    assert found == {"inputs": inputs, "targets": targets, "reset": [int(flag) for flag in new]}
    row = task.streams["test"]
    assert row.words == sum(len(document.split()) for document in kept[first:])
    assert row.bytes == sum(len(document) + 1 for document in kept[first:])


@settings(max_examples=25)
@given(documents=DOCUMENTS, size=st.integers(1, 9))
def test_lanes_hold_every_token_once_and_whole_documents(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], size: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    task = build(path, "|".join(documents), level="byte", separator="|", length=3, valid=0.2, test=0.5)
    rows: list[list[int]] = []
    for batch in task.lanes("test", size):
        rows = rows or [[] for _ in range(len(batch))]
        assert batch.weights is not None
        assert batch.inputs.numel() <= 3 * max(size, len(batch))
        for row, tokens, counts in zip(rows, batch.targets, batch.weights, strict=True):
            row += tokens[counts > 0].tolist()
    assert len(rows) <= size
    assert [token for row in rows for token in row] == task.streams["test"].tokens.tolist()
    assert all(row[-1] == 256 for row in rows)


def test_a_text_in_one_piece_is_cut_by_characters(tmp_path: Path) -> None:
    text = "to be or not to be, that is the question. " * 20
    task = build(tmp_path / "mine.txt", text, level="char", length=32, valid=0.1, test=0.1)
    at = [0, 672, 756, 840]
    for split, begin, end in zip(("train", "valid", "test"), at[:-1], at[1:], strict=True):
        assert task.decode(torch.from_numpy(task.streams[split].tokens.astype(int))) == text[begin:end]
        assert task.streams[split].words == len(text[begin:end].split())
        assert task.batch(split, 1).reset is None
    assert task.batch("test", 2).inputs[0, 0] == task.tokenizer.border
    assert {batch.inputs.device.type for batch in task.to("meta").lanes("test", 2)} == {"meta"}
    assert task.companions == {"tokenizer.json": task.tokenizer.content()}


def test_articles_begin_at_their_headings() -> None:
    text = Text.of_articles(ARTICLES * 2)
    assert [document[:12] for document in text.documents] == [" \n = One = \n", " \n = Two wor"] * 2
    assert "".join(text.documents) == ARTICLES * 2
    assert (text.words, text.bytes) == (len((ARTICLES * 2).split()), len(ARTICLES * 2))
    assert Text.of_articles("no heading \n").documents == ("no heading \n",)


def test_words_of_an_article_are_the_stream_of_the_literature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wiki(tmp_path)
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    task = tasks.get("lm", text="wikitext2", level="word", length=5)
    assert isinstance(task, LanguageModeling)
    expected = (ARTICLES * 3).replace("\n", " <eos> ").split()
    words = task.tokenizer.words  # type: ignore[attr-defined]
    batch = task.batch("test", task.sizes["test"])
    counted = batch.weights > 0 if batch.weights is not None else torch.ones(batch.inputs.shape, dtype=torch.bool)
    assert [words[i] for i in batch.targets[counted]] == expected
    assert [words[i] for i in batch.inputs[counted]] == ["<eos>", *expected[:-1]]
    assert batch.reset is not None
    assert int(batch.reset[counted].sum()) == 6
    assert task.streams["test"].lost == 0
    assert task.streams["test"].words == len(ARTICLES.split()) * 3


def test_featured_articles_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wiki(tmp_path)
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    task = tasks.get("lm", text="wikifa", level="byte", length=4)
    assert isinstance(task, LanguageModeling)
    row = task.streams["valid"]
    first = b"= One =\nthe cat"
    assert row.tokens.tolist() == [*first, 256, *b"= Two =\nsat\non it.", 256]
    assert row.starts.tolist() == [0, len(first) + 1]
    assert (row.words, row.bytes) == (11, 36)


def test_the_cache_is_read_again_without_the_text(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wiki(tmp_path)
    for split in ("train", "valid", "test"):
        path = tmp_path / f"wikifa_{split}.txt.xz"
        monkeypatch.setitem(sources.FILES, path.name, (path.stat().st_size, record.digest_of(path)))
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    first = tasks.get("lm", text="wikifa", vocabulary=270, length=4)
    (file,) = cache.iterdir()
    assert file.name.startswith("text-wikifa-bpe-270-")
    monkeypatch.setattr(text_stream, "stream", None)  # nothing is encoded
    for place in (None, tmp_path / "elsewhere"):  # in the cache folder, or carried in the data folder
        if place is not None:
            place.mkdir()
            file.rename(place / file.name)
            monkeypatch.setenv("STABLESSM_DATA", str(place))
        else:
            monkeypatch.delenv("STABLESSM_DATA")
        again = tasks.get("lm", text="wikifa", vocabulary=270, length=4)
        assert again.describe() == first.describe()
        assert torch.equal(again.batch("train", 3).inputs, first.batch("train", 3).inputs)
    with pytest.raises(ArgumentError, match=r"STABLESSM_DATA: expected a folder with wikifa_train\.txt\.xz"):
        tasks.get("lm", text="wikifa", vocabulary=280, length=4)


def test_other_files_under_a_known_name_have_a_key_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    assert text_sources.source("wikifa", None, 0.1, 0.1).keys == ("wikifa",)  # no files
    wiki(tmp_path)
    (ours,) = text_sources.source("wikifa", None, 0.1, 0.1).keys
    (tmp_path / "wikifa_test.txt.xz").write_bytes((tmp_path / "wikifa_train.txt.xz").read_bytes() * 2)
    (others,) = text_sources.source("wikifa", None, 0.1, 0.1).keys
    assert len({"wikifa", ours, others}) == 3


def test_a_text_of_the_hub_is_kept_apart_from_that_of_the_files(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = types.SimpleNamespace(load_dataset=lambda *_, **__: {"text": ["of ", "the ", "hub "] * 20})
    monkeypatch.setitem(sys.modules, "datasets", hub)
    monkeypatch.delenv("STABLESSM_DATA", raising=False)
    wiki(tmp_path)
    for split in ("train", "valid", "test"):
        path = tmp_path / f"wikitext2_{split}.txt.gz"
        monkeypatch.setitem(sources.FILES, path.name, (path.stat().st_size, record.digest_of(path)))
    options: dict[str, Any] = {"text": "wikitext2", "vocabulary": 260, "length": 4}
    first = tasks.get("lm", **options)
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    assert tasks.get("lm", **options).content != first.content
    assert len(list(cache.iterdir())) == 2
    monkeypatch.delenv("STABLESSM_DATA")
    assert tasks.get("lm", **options).content != first.content, "files that are known go first"


def test_a_damaged_cache_is_made_again_and_other_texts_have_their_own(tmp_path: Path, cache: Path) -> None:
    options = {"level": "bpe", "vocabulary": 260, "length": 8}
    first = build(tmp_path / "mine.txt", "to be or not to be " * 30, **options)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:-50])
    again = build(tmp_path / "mine.txt", "to be or not to be " * 30, **options)
    assert again.describe() == first.describe()
    text_stream._load(file)
    other = build(tmp_path / "mine.txt", "to be or not to me " * 30, **options)
    assert other.content != first.content
    build(tmp_path / "mine.txt", "to be or not to be " * 30, **{**options, "test": 0.2})
    assert len(list(cache.iterdir())) == 3
    build(tmp_path / "mine.txt", "to be or not to be " * 30, level="char", length=8)
    assert len(list(cache.iterdir())) == 3, "what is encoded in no time is not kept"


def test_an_earlier_tokenizer_reads_another_text(tmp_path: Path) -> None:
    first = build(tmp_path / "mine.txt", "to be or not to be " * 30, level="char", length=8)
    (tmp_path / "tokenizer.json").write_text(first.tokenizer.content(), encoding="utf-8")
    beside: dict[str, Any] = {"tokenizer": str(tmp_path), "length": 8}
    other = build(tmp_path / "other.txt", "the bee " * 30, level="char", **beside)
    assert other.tokenizer.content() == first.tokenizer.content()
    assert other.streams["test"].lost == other.decode(torch.from_numpy(other.streams["test"].tokens.astype(int))).count(
        "�"
    )
    assert other.streams["test"].lost > 0
    with pytest.raises(ArgumentError, match="level: expected char, the level of the tokenizer, got bpe"):
        build(tmp_path / "other.txt", "the bee " * 30, **beside)
    with pytest.raises(ArgumentError, match="vocabulary: expected no value, because the tokenizer"):
        build(tmp_path / "other.txt", "the bee " * 30, level="char", vocabulary=9, **beside)


def test_texts_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, version: str, split: str) -> dict[str, list[str]]:
        asked.append((name, version, split))
        return {"text": [line if line.strip() else "" for line in (ARTICLES * 2).splitlines(keepends=True)]}

    monkeypatch.delenv("STABLESSM_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    task = tasks.get("lm", text="wikitext103", level="byte", length=5)
    assert isinstance(task, LanguageModeling)
    assert task.decode(torch.from_numpy(task.streams["test"].tokens.astype(int))) == ARTICLES * 2
    assert task.streams["test"].documents == 4
    assert asked == [("Salesforce/wikitext", "wikitext-103-v1", split) for split in ("train", "validation", "test")]


def test_offline_a_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STABLESSM_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in text_sources.NAMES:
        with pytest.raises(ArgumentError, match=rf"STABLESSM_DATA: expected a folder with {name}(_train)?\.txt\.[gx]z"):
            tasks.get("lm", text=name, level="char")


def test_wrong_options_are_named(tmp_path: Path) -> None:
    text = "to be or not to be " * 30
    for options, told in (
        ({"length": 5000}, "length: expected at most 514, the tokens of train, got 5000"),
        ({"length": 0}, "length: expected a whole number"),
        ({"separator": ""}, "separator: expected at least one character"),
        ({"separator": "#"}, "data: expected enough examples"),
        ({"valid": 0.6, "test": 0.5}, "valid, test: expected fractions"),
        ({"level": "rune"}, "level: expected one of char, byte, bpe, word"),
    ):
        with pytest.raises(ArgumentError, match=told):
            build(tmp_path / "mine.txt", text, **{"level": "char", **options})
    with pytest.raises(ArgumentError, match=r"text: expected one of wikitext2, .* or a text file, got nowhere"):
        tasks.get("lm", text="nowhere")
    with pytest.raises(ArgumentError, match="separator: expected no separator for wikifa"):
        tasks.get("lm", text="wikifa", separator="x")
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9" * 100)
    with pytest.raises(ArgumentError, match=r"latin\.txt: expected a text in UTF-8, got UnicodeDecodeError"):
        tasks.get("lm", text=str(tmp_path / "latin.txt"))


def test_separators_as_a_command_line_has_them(tmp_path: Path) -> None:
    task = build(tmp_path / "mine.txt", "ab\n\ncd\n\nef\n\ngh", level="byte", separator=r"\n\n", length=2)
    assert [row.documents for row in task.streams.values()] == [3, 0, 1]
    assert task.sizes["valid"] == 0


def test_packed_files_are_read(tmp_path: Path) -> None:
    text = "to be or not to be " * 30
    for suffix, pack in ((".txt.gz", gzip.compress), (".txt.xz", lzma.compress)):
        (tmp_path / f"mine{suffix}").write_bytes(pack(text.encode()))
        task = tasks.get("lm", text=str(tmp_path / f"mine{suffix}"), level="byte", length=9)
        assert task.sizes["train"] == 514 // 9


def test_borders_are_never_where_tokens_are() -> None:
    row = text_stream.stream(Text.of("ab\n\nc", "\n\n"), Bytes())
    assert np.flatnonzero(row.tokens == 256).tolist() == [2, 4]


@needs_data
def test_wikitext2_in_words_is_that_of_the_literature() -> None:
    task = tasks.get("lm", text="wikitext2", level="word", length=70)
    assert isinstance(task, LanguageModeling)
    counts = {split: (len(row.tokens), row.words, row.documents, row.lost) for split, row in task.streams.items()}
    assert counts == {
        "train": (2_088_628, 2_051_910, 600, 0),
        "valid": (217_646, 213_886, 60, 0),
        "test": (245_569, 241_211, 60, 0),
    }
    assert task.inputs.size == 33_278


@needs_data
def test_tiny_shakespeare() -> None:
    task = tasks.get("lm", text="tinyshakespeare", level="char", length=256)
    assert isinstance(task, LanguageModeling)
    assert task.inputs.size == 65 + 2
    assert [row.bytes for row in task.streams.values()] == [1_003_854, 55_770, 55_770]
    assert all(row.lost == 0 for row in task.streams.values())


@needs_data
@pytest.mark.slow
def test_wikifa_in_byte_pairs() -> None:
    task = tasks.get("lm", text="wikifa")
    assert isinstance(task, LanguageModeling)
    counts = {split: (row.documents, row.words, row.bytes) for split, row in task.streams.items()}
    assert counts == {
        "train": (3_843, 16_370_839, 100_956_790),
        "valid": (60, 244_927, 1_513_528),
        "test": (60, 265_416, 1_629_459),
    }
    assert task.inputs.size == 8192
    assert len(task.streams["train"].tokens) < 26_000_000
    text = task.decode(torch.from_numpy(task.streams["test"].tokens.astype(int)))
    path = sources.find("wikifa_test.txt.xz")
    assert path is not None
    assert text == "".join(Text.of(sources.text(path, "a text"), "\n\n").documents)
