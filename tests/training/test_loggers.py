"""Any logger gets what is written, through three methods; Weights & Biases as the documentation shows it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from training_task import Net, Sums, stop_after

from stablessm.training import Interrupted, TrainingConfig, train

OPTIONS = {"steps": 9, "batch_size": 8, "log_every": 2, "evaluate_every": 4, "device": "cpu"}


class Noting:
    def __init__(self):
        self.calls = []

    def begin(self, folder, settings, step):
        self.calls.append(("begin", folder, settings, step))

    def log(self, step, values):
        self.calls.append(("log", step, values))

    def end(self, result):
        self.calls.append(("end", result))


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_logger_gets_every_row_and_both_ends(tmp_path):
    loggers = [Noting(), Noting()]
    result = train(Net(), Sums(), TrainingConfig(**OPTIONS), tmp_path, progress=False, loggers=loggers)
    for logger in loggers:
        (_, folder, settings, step), *logged, (_, ended) = logger.calls
        assert (folder, step, ended) == (tmp_path, 0, result)
        assert (settings["config"]["steps"], settings["task"]["task"], settings["model"]["class"]) == (9, "sums", "Net")
        assert [{"step": step, **values} for _, step, values in logged] == rows(tmp_path)


def test_a_logger_of_replicas_is_told_which(tmp_path):
    logger, config = Noting(), TrainingConfig(**OPTIONS, replicas=2)
    result = train(Net(), Sums(), config, tmp_path, progress=False, loggers=[logger])
    assert [call[0] for call in logger.calls if call[0] != "log"] == ["begin", "end"]
    assert logger.calls[-1] == ("end", result)
    for i in range(2):
        own = [{"step": step, **values} for _, step, values in logger.calls[1:-1] if values["replica"] == i]
        assert own == [{**row, "replica": i} for row in rows(tmp_path / f"replica-{i}")]


def test_an_interrupted_run_ends_without_a_result_and_begins_where_it_stopped(tmp_path):
    first, second = Noting(), Noting()
    with pytest.raises(Interrupted), stop_after(5):
        train(Net(), Sums(), TrainingConfig(**OPTIONS), tmp_path, progress=False, loggers=[first])
    train(Net(), Sums(), TrainingConfig(**OPTIONS), tmp_path, progress=False, loggers=[second])
    assert first.calls[-1] == ("end", None)
    assert second.calls[0][3] == 5
    assert [call[1] for call in second.calls[1:-1]] == [6, 8, 8, 9, 9]


class Offline(Noting):
    def begin(self, folder, settings, step):
        raise OSError("no network")


def test_a_logger_that_fails_stops_the_run_and_the_others_are_told(tmp_path):
    first, last = Noting(), Noting()
    with pytest.raises(OSError, match="no network"):
        train(Net(), Sums(), TrainingConfig(**OPTIONS), tmp_path, progress=False, loggers=[first, Offline(), last])
    assert [call[0] for call in first.calls] == ["begin", "end"]
    assert last.calls == []


def test_the_example_of_weights_and_biases(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    example = next(block for block in page.split("```python\n") if block.startswith("class WeightsAndBiases"))
    calls, names = [], {}
    log = lambda values, step: calls.append((step, values))  # noqa: E731
    board = SimpleNamespace(log=log, finish=lambda exit_code: calls.append(exit_code))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: calls.append(options) or board))
    exec(example.split("```")[0], names)
    train(Net(), Sums(), TrainingConfig(**OPTIONS), tmp_path, progress=False, loggers=[names["WeightsAndBiases"]()])
    assert calls[0]["config"]["config"]["steps"] == 9
    assert calls[-1] == 0
    said = {(step, name): value for step, values in calls[1:-1] for name, value in values.items()}
    assert said[8, "valid/mse"] == next(row["mse"] for row in rows(tmp_path) if "mse" in row and row["step"] == 8)
    assert said[9, "train/loss"] == next(row["loss"] for row in rows(tmp_path) if row["step"] == 9)
