"""Texts whose training batches go on from one another, against the row of tokens itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm import tasks
from stablessm.tasks.text import LanguageModeling

DOCUMENTS = st.lists(st.text("abc ", min_size=1, max_size=12), min_size=6, max_size=9)


def build(folder: Path, text: str, **options: Any) -> LanguageModeling:
    (folder / "mine.txt").write_text(text, encoding="utf-8")
    given: dict[str, Any] = {"level": "byte", "valid": 0.2, "test": 0.2, "carry": True, **options}
    task = tasks.get("lm", text=str(folder / "mine.txt"), **given)
    assert isinstance(task, LanguageModeling)
    return task


@settings(max_examples=40)
@given(
    documents=DOCUMENTS, length=st.integers(1, 4), size=st.integers(1, 5), epoch=st.integers(0, 9), whole=st.booleans()
)
def test_rows_go_on_around_the_text(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], length: int, size: int, epoch: int, whole: bool
) -> None:
    folder = tmp_path_factory.mktemp("text")
    task = build(folder, "|".join(documents), length=length, separator=None if whole else "|")
    stream = task.streams["train"]
    tokens, starts = stream.tokens.tolist(), set(stream.starts.tolist())
    size = min(size, task.sizes["train"])
    steps = task.steps("train", size)
    read: list[list[tuple[int, int, bool]]] = [[] for _ in range(size)]
    for index in range(steps):
        batch = task.batch("train", size, seed=3, epoch=epoch, index=index)
        assert batch.weights is None
        assert batch.reset is not None
        for row, x, y, new in zip(read, batch.inputs, batch.targets, batch.reset, strict=True):
            row += zip(x.tolist(), y.tolist(), new.tolist(), strict=True)
    long = [entry for row in read for entry in row]
    assert len(long) == size * steps * length <= len(tokens), "no token twice"

    def expected(first: int) -> list[tuple[int, int, bool]]:
        places = [(first + i) % len(tokens) for i in range(len(long))]
        return [(256 if p in starts else tokens[p - 1], tokens[p], p in starts) for p in places]

    assert any(long == expected(first) for first in range(len(tokens)))


def test_an_epoch_begins_elsewhere_and_its_place_is_the_same_again(tmp_path: Path) -> None:
    task = build(tmp_path, "abcdefghijklmnopqrstuvwxyz" * 20, length=5)
    firsts = {int(task.batch("train", 4, seed=s, epoch=e).inputs[0, 0]) for s in range(4) for e in range(8)}
    assert len(firsts) > 10
    moved = build(tmp_path, "abcdefghijklmnopqrstuvwxyz" * 20, length=5)
    place: dict[str, int] = {"seed": 2, "epoch": 7, "index": 3}
    assert torch.equal(task.batch("train", 4, **place).inputs, moved.batch("train", 4, **place).inputs)


@given(ranks=st.integers(1, 5), size=st.integers(5, 9))
def test_each_rank_goes_on_with_its_own_rows(tmp_path_factory: pytest.TempPathFactory, ranks: int, size: int) -> None:
    task = build(tmp_path_factory.mktemp("text"), "abcdefghijklmnopqrstuvwxyz" * 20, length=5)
    for index in range(2):
        whole = task.batch("train", size, seed=1, index=index)
        parts = [task.batch("train", size, seed=1, index=index, part=(i, ranks)) for i in range(ranks)]
        assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
        assert all(torch.equal(a.inputs, whole.rows((i, ranks)).inputs) for i, a in enumerate(parts))


def test_what_is_only_scored_stays_as_it_was(tmp_path: Path) -> None:
    text = "|".join(["to be or not to be", "that is the question"] * 10)
    carried, apart = (build(tmp_path, text, length=7, separator="|", carry=carry) for carry in (True, False))
    assert (carried.carries, apart.carries) == (True, False)
    assert carried.sizes == apart.sizes
    for split in ("valid", "test"):
        for index in range(carried.steps(split, 3)):
            a, b = (task.batch(split, 3, seed=5, epoch=1, index=index) for task in (carried, apart))
            assert torch.equal(a.inputs, b.inputs)
            assert torch.equal(a.targets, b.targets)
    assert carried.describe() != apart.describe()
