"""Training runs in the report, from records written down: the report needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stablessm.report.runs import collect

RECORD: dict[str, Any] = {
    "kind": "training",
    "command": "stablessm train mnist",
    "config": {"lr": 0.01},
    "task": {"task": "mnist", "options": {"valid": 0.1}},
    "model": {"class": "SequenceClassifier", "options": {"d_model": 64}},
    "results": {"metric": "accuracy", "chance": 0.1135, "scores": {"test": {"accuracy": 0.98}}},
    "diverged": None,
    "wall_time_s": 3.0,
}
ROWS = (
    {"step": 20, "loss": 2.0},
    {"step": 40, "loss": "nan"},
    {"step": 40, "split": "valid", "accuracy": 0.9, "loss": 0.5},
    {"step": 60, "split": "valid", "accuracy": 0.8, "loss": 0.75},
)


def written(folder: Path, rows: Any = ROWS, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "record.json").write_text(json.dumps({**RECORD, **changes}), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_a_training_is_a_run_with_its_curves(tmp_path: Path) -> None:
    found = collect([written(tmp_path / "digits")])
    assert not found.problems
    (run,) = found.runs
    assert (run.id, run.title, run.status) == ("digits", "SequenceClassifier on mnist", "complete")
    assert run.config["training"] == {"lr": 0.01}
    assert run.config["model"] == {"d_model": 64}
    (figure,) = run.figures
    loss, accuracy = figure.panels
    assert [(line.name, list(line.x)) for line in loss.series] == [("train", [20, 40]), ("valid", [40, 60])]
    assert [str(list(line.y)) for line in loss.series] == ["[2.0, nan]", "[0.5, 0.75]"]
    assert [list(line.x) for line in accuracy.series] == [[40, 60], [40, 60]]
    named = [(line.name, list(line.y)) for line in accuracy.series]
    assert named == [("valid", [0.9, 0.8]), ("chance", [0.1135, 0.1135])]
    assert [line.style for line in (*loss.series, *accuracy.series)] == ["both", "both", "both", "dashed"]
    assert [(panel.x_label, panel.y_label, panel.x_scale, panel.y_scale) for panel in figure.panels] == [
        ("step", "loss", "linear", "log"),
        ("step", "accuracy", "linear", "linear"),
    ]
    assert figure.caption == "Test accuracy 0.98, chance 0.1135."


def test_a_divergence_before_the_first_look_is_told_without_a_figure(tmp_path: Path) -> None:
    diverged = {"step": 2, "text": "diverged at step 2: the loss is nan"}
    (run,) = collect([written(tmp_path / "wild", (), diverged=diverged)]).runs
    assert (run.status, run.question, run.figures) == ("diverged at step 2", diverged["text"], ())


@pytest.mark.parametrize("part", ["task", "model"])
def test_a_record_without_its_parts_is_named(tmp_path: Path, part: str) -> None:
    found = collect([written(tmp_path / "torn", **{part: None})])
    assert not found.runs
    assert "not a whole record of a training run" in found.problems[0].reason


def test_a_step_that_is_no_number_is_named(tmp_path: Path) -> None:
    found = collect([written(tmp_path / "digits", [*ROWS, {"step": "sixty", "loss": 1.0}])])
    assert "metrics.jsonl" in found.problems[0].reason


def test_torn_metrics_are_named_and_the_run_shows(tmp_path: Path) -> None:
    folder = written(tmp_path / "torn")
    (folder / "metrics.jsonl").write_text('{"step": 20, "lo', encoding="utf-8")
    found = collect([folder])
    assert "metrics.jsonl" in found.problems[0].reason
    assert not found.runs[0].figures
