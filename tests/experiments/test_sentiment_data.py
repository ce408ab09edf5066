from __future__ import annotations

import gzip
import json
import os
import sys
import types
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablessm import ArgumentError
from stablessm.experiments.iat.sentiment_text import NEGATIVE, POSITIVE, reviews
from stablessm.tasks import imdb
from stablessm.tasks.corpus import END, SPECIAL, START, UNKNOWN, Corpus, Reviews, word_corpus

WORD = st.text("abc", min_size=1, max_size=3)
TEXTS = st.lists(st.lists(WORD, max_size=8).map(" ".join), min_size=10, max_size=30)


def labeled(texts):
    return [(text, i % 2) for i, text in enumerate(texts)]


def decoded(corpus, part, i):
    return [corpus.vocabulary[k] for k in part.tokens[part.starts[i] : part.starts[i + 1]]]


@given(texts=TEXTS, most=st.integers(5, 30), length=st.integers(3, 10), closed=st.booleans())
def test_reviews_come_back_from_their_ids(texts, most, length, closed):
    corpus = word_corpus(labeled(texts), labeled(texts), most, length, closed=closed)
    assert corpus.vocabulary[: len(SPECIAL)] == SPECIAL
    assert len(corpus.vocabulary) <= most
    known = set(corpus.vocabulary)
    for i, text in enumerate(texts):
        words = text.split()[: length - 1 - closed]
        expected = ["<s>", *(w if w in known else "<unk>" for w in words), *["</s>"] * closed]
        assert decoded(corpus, corpus.test, i) == expected
        assert corpus.test.labels[i] == i % 2
    assert len(corpus.train) + len(corpus.valid) == len(texts)
    both = np.concatenate([corpus.train.lengths, corpus.valid.lengths])
    np.testing.assert_array_equal(both, corpus.test.lengths)


@given(texts=TEXTS)
def test_no_word_left_out_is_more_frequent_than_one_kept(texts):
    corpus = word_corpus(labeled(texts), labeled(texts), 8, 10)
    counts = {}
    for word in (word for text in texts for word in text.split()):
        counts[word] = counts.get(word, 0) + 1
    kept = [counts[word] for word in corpus.vocabulary[len(SPECIAL) :]]
    assert all(a >= b for a, b in pairwise(kept))
    assert max((n for word, n in counts.items() if word not in corpus.vocabulary), default=0) <= min(kept, default=0)


@given(
    rows=st.lists(st.lists(st.integers(1, 2**16 - 1), min_size=1, max_size=6), min_size=1, max_size=8), data=st.data()
)
def test_padding(rows, data):
    index = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=8)))
    ids, lengths, labels = Reviews.of(rows, [i % 2 for i in range(len(rows))]).padded(index)
    for row, n, label, i in zip(ids.tolist(), lengths, labels, index, strict=True):
        assert row[:n] == rows[i]
        assert not any(row[n:])
        assert label == i % 2
    assert ids.shape[1] == max(lengths)


@pytest.mark.parametrize("closed", [False, True])
def test_a_corpus_comes_back_from_its_arrays(closed):
    corpus = word_corpus(*reviews("synthetic", 40), 64, 12, closed=closed)
    again = Corpus.of(corpus.arrays())
    assert (again.vocabulary, again.start, again.end) == (corpus.vocabulary, START, END if closed else None)
    np.testing.assert_array_equal(again.valid.padded(np.arange(4))[0], corpus.valid.padded(np.arange(4))[0])


def test_markup_and_capitals_are_no_words():
    text = "GOOD film.<br /><br />Isn't it?"
    corpus = word_corpus([(text, 1)] * 10, [(text, 1)], 64, 12)
    assert decoded(corpus, corpus.test, 0) == ["<s>", "good", "film", "isn't", "it"]
    assert corpus.ids(["isn't"]) != [UNKNOWN]


def test_unknown_words_and_sizes_that_make_no_sense():
    train, test = reviews("synthetic", 40)
    corpus = word_corpus(train, test, 64, 12)
    with pytest.raises(
        ArgumentError, match=r"words: expected words that the model knows, such as 'boring'.*got 'borring'"
    ):
        corpus.ids(["good", "borring"])
    with pytest.raises(ArgumentError, match="words: expected at least one word"):
        corpus.ids([])
    with pytest.raises(ArgumentError, match="vocabulary: expected from 5 to 65536"):
        word_corpus(train, test, 4, 12)
    with pytest.raises(ArgumentError, match="length: expected more than 1"):
        word_corpus(train, test, 64, 1)
    with pytest.raises(ArgumentError, match="reviews: expected at least 10"):
        word_corpus(train[:9], test, 64, 12)
    with pytest.raises(ArgumentError, match="data: expected one of 'imdb', 'synthetic'"):
        reviews("yelp", 10)
    with pytest.raises(ArgumentError, match="reviews: expected at least 2"):
        reviews("synthetic", 1)


def test_made_up_reviews_say_what_they_are():
    train, test = reviews("synthetic", 60)
    assert train != test
    for text, label in train + test:
        mine, others = (POSITIVE, NEGATIVE) if label else (NEGATIVE, POSITIVE)
        assert sum(word in mine for word in text.split()) == 3
        assert not any(word in others for word in text.split())


def write(folder, name, rows):
    with gzip.open(folder / name, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


def test_files_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    with pytest.raises(ArgumentError, match=r"STABLESSM_DATA: expected a folder with imdb_train.jsonl.gz"):
        reviews("imdb", 4)
    rows = [("so gut wie nie, ça va", 1), ("no", 0), ("yes", 1)]
    write(tmp_path, "imdb_train.jsonl.gz", rows)
    write(tmp_path, "imdb_test.jsonl.gz", rows[::-1])
    assert reviews("imdb", 2) == (rows[:2], rows[:0:-1])
    (tmp_path / "imdb_test.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(ArgumentError, match=r"imdb_test.jsonl.gz: expected lines of"):
        reviews("imdb", 4)
    (tmp_path / "imdb_test.jsonl.gz").write_bytes((tmp_path / "imdb_train.jsonl.gz").read_bytes()[:30])
    with pytest.raises(ArgumentError, match=r"imdb_test.jsonl.gz: expected lines of"):
        reviews("imdb", 4)


def test_the_hub_or_a_reason(monkeypatch):
    monkeypatch.delenv("STABLESSM_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ArgumentError, match=r"STABLESSM_DATA: expected a folder with imdb_train.jsonl.gz \(or pip"):
        reviews("imdb", 4)

    def load_dataset(name, split):
        assert name == imdb.HUB
        return {"text": [f"{split} {i}" for i in range(20)], "label": [0] * 10 + [1] * 10}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    train, test = reviews("imdb", 6)
    assert [label for _, label in train] == [1, 0, 1, 0, 1, 0]
    assert all((int(text.split()[1]) >= 10) == label for text, label in train + test)
    assert test[0][0].startswith("test")

    def offline(name, split):
        raise ConnectionError

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=offline))
    with pytest.raises(ArgumentError, match="cannot be loaded"):
        reviews("imdb", 4)


@pytest.mark.skipif("STABLESSM_DATA" not in os.environ, reason="needs the data folder")
def test_the_real_files():
    train, test = reviews("imdb", 500)
    assert sum(label for _, label in train) == sum(label for _, label in test) == 250
    corpus = word_corpus(train, test, 2000, 200)
    assert corpus.ids(["good", "bad", "the"])[2] == len(SPECIAL)  # the most frequent word
    assert 100 < np.median(corpus.train.lengths) <= 200
    tokens = corpus.test.tokens
    assert (tokens == UNKNOWN).mean() < 0.2
