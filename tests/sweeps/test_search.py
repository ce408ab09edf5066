"""Searches over settings: what is proposed, what is kept, what a kill costs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_experiment import REFERENCE

from stablessm import ArgumentError
from stablessm.sweeps import OfExperiment, OfTask, Range, search

optuna = pytest.importorskip("optuna")
LR = Range("lr", "log", 1e-4, 1e-1)


class Bowl:
    """Smallest at lr = 0.01; dies when it is told to."""

    direction = "minimize"

    def __init__(self, dies_at: int | None = None, diverges: bool = False) -> None:
        self.seen: list[tuple[float, str]] = []
        self.dies_at, self.diverges = dies_at, diverges

    def check(self, names):
        assert names == ["lr"]

    def value(self, changes, folder: Path) -> float:
        self.seen.append((float(changes["lr"]), folder.name))
        if len(self.seen) - 1 == self.dies_at:
            raise KeyboardInterrupt
        return math.nan if self.diverges else (math.log10(float(changes["lr"])) + 2) ** 2

    def describe(self):
        return {"bowl": True}


def test_an_interrupted_search_goes_on_to_the_same_trials(tmp_path):
    whole = Bowl()
    found = search(whole, [LR], tmp_path / "whole", trials=12, progress=False)
    assert found.trials == 12
    assert found.value == min((math.log10(lr) + 2) ** 2 for lr, _ in whole.seen)
    assert len({lr for lr, _ in whole.seen}) == 12
    first, second = Bowl(dies_at=10), Bowl()
    with pytest.raises(KeyboardInterrupt):
        search(first, [LR], tmp_path / "cut", trials=12, progress=False)
    again = search(second, [LR], tmp_path / "cut", trials=12, progress=False)
    assert second.seen[0] == first.seen[-1]  # the same settings in the same folder
    assert [lr for lr, _ in (*first.seen[:10], *second.seen)] == [lr for lr, _ in whole.seen]
    assert again.trials == 12
    third = Bowl()
    assert search(third, [LR], tmp_path / "cut", trials=12, progress=False) == again
    assert third.seen == []
    rows = json.loads((tmp_path / "cut" / "search.json").read_text(encoding="utf-8"))["trials"]
    assert [row["state"] for row in rows].count("complete") == 12
    assert search(third, [LR], tmp_path / "cut", trials=13, progress=False).trials == 13


def test_a_search_that_only_diverges(tmp_path):
    assert search(Bowl(diverges=True), [LR], tmp_path, trials=3, progress=False) is None
    assert {row["state"] for row in json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))["trials"]} == {
        "pruned"
    }


def test_another_search_is_not_mixed_in(tmp_path):
    search(Bowl(), [LR], tmp_path, trials=1, progress=False)
    with pytest.raises(ArgumentError, match=r"--over: expected what the search .* is about"):
        search(Bowl(), [Range("lr", "float", 0.0, 1.0)], tmp_path, trials=2, progress=False)
    turned = Bowl()
    turned.direction = "maximize"
    with pytest.raises(ArgumentError, match=r"--over: expected what the search .* is about"):
        search(turned, [LR], tmp_path, trials=2, progress=False)
    with pytest.raises(ArgumentError, match="--over: expected one range"):
        search(Bowl(), [], tmp_path, trials=2, progress=False)
    with pytest.raises(ArgumentError, match="--storage: expected such as sqlite"):
        search(Bowl(), [LR], tmp_path / "b", trials=1, storage="nowhere", progress=False)


def test_of_an_experiment(tmp_path):
    ranges = [Range("steps", "int", 1, 6), Range("pause", "choice", choices=("0.0", "0.001"))]
    objective = OfExperiment(REFERENCE, "walk-1/x:max", settings={"walks": "2"})
    found = search(objective, ranges, tmp_path, trials=4, progress=False)
    (folder,) = found.folder.glob("walks/smoke-*")
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["steps"] == found.settings["steps"]
    with pytest.raises(ArgumentError, match="--over: expected one of the settings walks, steps"):
        search(objective, [Range("colour", "int", 1, 2)], tmp_path / "b", trials=1, progress=False)
    with pytest.raises(ArgumentError, match="--objective: expected STAGE/ARRAY of a stage that is there: sum, walk-0"):
        search(OfExperiment(REFERENCE, "walk-9/x"), ranges, tmp_path / "c", trials=1, progress=False)
    with pytest.raises(ArgumentError, match="--objective: expected STAGE/ARRAY:HOW"):
        OfExperiment(REFERENCE, "walk-9")


def test_of_a_task(tmp_path):
    fixed = {
        "steps": "3", "batch_size": "4", "device": "cpu", "task.length": "8", "task.vocabulary": "4",
        "task.train_examples": "8", "task.valid_examples": "8", "task.test_examples": "8",
    }  # fmt: skip
    objective = OfTask("recall", "tiny", fixed)
    assert objective.direction == "maximize"
    ranges = [LR, Range("model.map", "choice", choices=("best", "exp"))]
    found = search(objective, ranges, tmp_path, trials=2, progress=False)
    assert f'"lr": {found.settings["lr"]!r}' in (found.folder / "training.json").read_text(encoding="utf-8")
    assert 0 <= found.value <= 1
    with pytest.raises(ArgumentError, match=r"--over: expected model\.NAME, task\.NAME or one of epochs"):
        search(objective, [Range("colour", "int", 1, 2)], tmp_path / "b", trials=1, progress=False)
    for ranges in ([LR, LR], [Range("batch_size", "int", 1, 2)]):
        with pytest.raises(ArgumentError, match="--over: expected each setting once, and not with --set"):
            search(objective, ranges, tmp_path / "b", trials=1, progress=False)
    with pytest.raises(ArgumentError, match="--over, --set: expected epochs or steps, got both"):
        search(objective, [Range("epochs", "int", 1, 2)], tmp_path / "b", trials=1, progress=False)


def test_a_task_without_validation_examples_has_nothing_to_search_by(tmp_path):
    rows = "\n".join(f"{t % 7},{t % 5}" for t in range(200))
    (tmp_path / "load.csv").write_text(f"load,wind\n{rows}\n", encoding="utf-8")
    settings = {"task.file": str(tmp_path / "load.csv"), "task.target": "load", "task.window": "8", "task.valid": "0"}
    with pytest.raises(ArgumentError, match="--set: expected a task with validation examples"):
        search(OfTask("series", "tiny", settings), [LR], tmp_path / "b", trials=1, progress=False)
    assert not (tmp_path / "b").exists()


@given(low=st.floats(1e-6, 1.0), factor=st.floats(1.5, 1e3), kind=st.sampled_from(["log", "float"]))
def test_proposals_are_in_their_range(low, factor, kind):
    one = Range.read("--over", f"lr={kind}:{low!r}:{low * factor!r}")
    trial = optuna.trial.FixedTrial({"lr": low * 1.2})
    assert one.low <= float(one.suggest(trial)) <= one.high


@pytest.mark.parametrize(
    "text", ["lr", "lr=log", "lr=log:1", "lr=log:0:1", "lr=int:1.5:3", "lr=float:2:1", "lr=lin:0:1"]
)
def test_ranges_that_are_none(text):
    with pytest.raises(ArgumentError, match="--over: expected"):
        Range.read("--over", text)
