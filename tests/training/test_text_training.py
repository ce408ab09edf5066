"""Training on a text: resets reach the model, and the tokenizer stays beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm import models, tasks
from stablessm.tasks import tokenizers
from stablessm.tasks.base import Task
from stablessm.training import TrainingConfig, perplexity, train


def build(folder: Path, **options: Any) -> Task:
    path = folder / "mine.txt"
    path.write_text("|".join(["to be or not to be", "that is the question"] * 30), encoding="utf-8")
    given: dict[str, Any] = {"level": "char", "separator": "|", "length": 16, **options}
    return tasks.get("lm", text=str(path), **given)


class Watching(nn.Module):
    """Remembers the resets that it was given."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size, size)
        self.seen: list[Tensor | None] = []

    def forward(self, x: Tensor, *, reset: Tensor | None = None) -> Tensor:
        self.seen.append(reset)
        return self.table(x)


def test_resets_reach_the_model(tmp_path: Path) -> None:
    config = TrainingConfig(steps=3, batch_size=4, device="cpu")
    task = build(tmp_path)
    model = Watching(task.inputs.size)
    train(model, task, config, tmp_path / "run", progress=False)
    first = task.batch("train", 4).reset
    assert first is not None
    assert model.seen[0] is not None
    assert torch.equal(model.seen[0], first)
    whole = build(tmp_path, separator=None)
    model = Watching(whole.inputs.size)
    train(model, whole, config, tmp_path / "whole", progress=False)
    assert set(model.seen) == {None}


def test_the_folder_has_all_that_the_model_needs(tmp_path: Path) -> None:
    task = build(tmp_path)
    model = models.for_task(task.inputs, task.outputs, "lm-tiny")
    config = TrainingConfig(steps=30, batch_size=8, lr=0.02, device="cpu")
    for resume in (True, False):
        result = train(model, task, config, tmp_path / "run", resume=resume, progress=False)
        assert tokenizers.load(tmp_path / "run").content() == task.tokenizer.content()  # type: ignore[attr-defined]
    assert result.scores["test"]["nats"] < 0.9 * task.chance
    loaded = ssm.load(tmp_path / "run" / "model")
    assert perplexity(loaded, task, "test") == perplexity(model, task, "test")  # type: ignore[arg-type]
