"""Perplexity against one pass over every document, whatever the windows, and against counts by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from stablessm import ArgumentError, models, tasks
from stablessm.tasks.text import LanguageModeling
from stablessm.training import Perplexity, evaluate, perplexity

DOCUMENTS = ["the cat sat on the mat", "a dog", "it ran, and ran, and it ran\nto the mat", "çà", "on a mat sat a cat"]
DOCUMENTS = DOCUMENTS * 3


def build(folder: Path, **options: Any) -> LanguageModeling:
    (folder / "mine.txt").write_text("|".join(DOCUMENTS), encoding="utf-8")
    given: dict[str, Any] = {"level": "byte", "separator": "|", "length": 7, "test": 0.4, **options}
    task = tasks.get("lm", text=str(folder / "mine.txt"), **given)
    assert isinstance(task, LanguageModeling)
    return task


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    made = models.LanguageModel(257, d_model=8, n_layers=2, d_state=4).double()
    with torch.no_grad():
        made.body.encoder.weight.mul_(50)  # logits that are not all alike
    return made


@pytest.fixture(scope="module")
def expected(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Nats of every document of test, read alone and in one piece."""
    total = 0.0
    model.eval()
    for document in DOCUMENTS[-6:]:
        tokens = torch.tensor([256, *document.encode(), 256])
        with torch.no_grad():
            logits = model(tokens[None, :-1])[0]
        total += nn.functional.cross_entropy(logits, tokens[1:], reduction="sum").item()
    return total


@settings(max_examples=12)
@given(length=st.integers(1, 40), batch_size=st.integers(1, 9))
def test_it_does_not_depend_on_windows_and_batches(
    model: nn.Module, expected: float, tmp_path_factory: pytest.TempPathFactory, length: int, batch_size: int
) -> None:
    model.train()
    found = perplexity(model, build(tmp_path_factory.mktemp("text"), length=length), "test", batch_size)
    assert found.nats == pytest.approx(expected, rel=1e-9)
    assert found.carried
    assert model.training


def test_counts_by_hand(model: nn.Module, expected: float, tmp_path: Path) -> None:
    found = perplexity(model, build(tmp_path), "test")
    texts = DOCUMENTS[-6:]
    assert texts[-1] == texts[0] == "on a mat sat a cat"
    assert found.words == 6 + (6 + 2 + 10 + 1 + 6), "windows of seven bytes cut most of them"
    assert found.bytes == 18 + 22 + 5 + 38 + 4 + 18 + 6, "with a separator for each document"
    assert found.tokens == found.bytes
    assert found.per_word == pytest.approx(math.exp(expected / 31))
    assert found.bits_per_byte == pytest.approx(expected / math.log(2) / 111)
    assert found.per_byte == found.per_token == pytest.approx(2**found.bits_per_byte)
    assert found.plain()["perplexity_per_word"] == found.per_word


def test_another_level_shares_the_same_nats_among_the_same_text(tmp_path: Path) -> None:
    found = {}
    for level in ("byte", "char", "word"):
        task = build(tmp_path, level=level, length=4)
        torch.manual_seed(0)
        small = models.LanguageModel(task.inputs.size, d_model=8, n_layers=1, d_state=4)
        found[level] = perplexity(small, task, "test")
    assert {(part.words, part.bytes) for part in found.values()} == {(31, 111)}
    assert found["char"].tokens == 111 - 2
    assert found["word"].tokens == 31 + 1 + 6, "a line end, and six documents"
    assert found["byte"].lost == found["char"].lost == 0


def test_uniform_chances() -> None:
    found = Perplexity(nats=10 * math.log(4), tokens=10, words=5, bytes=20, lost=0, carried=True)
    assert (found.per_token, found.per_word, found.bits_per_byte) == pytest.approx((4, 16, 1))
    assert Perplexity(1e6, 1, 1, 1, 0, True).per_token == math.inf
    assert math.isnan(Perplexity(1.0, 1, 0, 1, 0, True).per_word), "white space alone"


class Uniform(nn.Module):
    """Any model from tokens to logits will do."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(257))

    def forward(self, x: Tensor, *, reset: Tensor | None = None) -> Tensor:
        return self.bias.expand(*x.shape, 257)


def test_a_model_without_state_is_read_in_windows(tmp_path: Path) -> None:
    task = build(tmp_path)
    found = perplexity(Uniform(), task, "test", 2)
    assert not found.carried
    assert found.per_token == pytest.approx(257)
    scores = evaluate(Uniform(), task, "test", 2)
    assert scores["perplexity"] == pytest.approx(257)
    assert scores["nats"] == scores["loss"] == pytest.approx(math.log(257))


def test_state_is_worth_something_over_windows(model: nn.Module, tmp_path: Path, expected: float) -> None:
    task = build(tmp_path, length=3)
    alone = perplexity(model, task, "test", 4, carry=False)
    assert not alone.carried
    assert abs(alone.nats - expected) > 1e-3, "windows that begin anew give other numbers"
    assert evaluate(model, task, "test", 4)["nats"] * 111 == pytest.approx(alone.nats, rel=1e-9)


def test_a_split_that_is_not_there(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="split: expected a split that task lm has, got 'valid'"):
        perplexity(model, build(tmp_path, valid=0.0), "valid")
