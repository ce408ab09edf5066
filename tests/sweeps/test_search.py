"""Searches over settings: what is proposed, what is kept, what a kill costs."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_experiment import REFERENCE

from stablessm import ArgumentError, _locks
from stablessm.sweeps import OfExperiment, OfTask, Range, search
from stablessm.training import settings_of

optuna = pytest.importorskip("optuna")
search_module = importlib.import_module("stablessm.sweeps.search")  # the package has the function under its name
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
    with pytest.raises(ArgumentError, match=r"--over: expected the same ranges as the search"):
        search(Bowl(), [Range("lr", "float", 0.0, 1.0)], tmp_path, trials=2, progress=False)
    turned = Bowl()
    turned.direction = "maximize"
    with pytest.raises(ArgumentError, match=r"--over: expected the same ranges as the search"):
        search(turned, [LR], tmp_path, trials=2, progress=False)
    with pytest.raises(ArgumentError, match="--over: expected at least one range"):
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
        search(objective, [Range("color", "int", 1, 2)], tmp_path / "b", trials=1, progress=False)
    with pytest.raises(ArgumentError, match="--objective: expected STAGE/ARRAY of an existing stage: sum, walk-0"):
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
        search(objective, [Range("color", "int", 1, 2)], tmp_path / "b", trials=1, progress=False)
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


def proposed(folder, seed=0, ranges=(LR,), **options):
    bowl = Bowl()
    search(bowl, ranges, folder, trials=2, seed=seed, progress=False, **options)
    return [lr for lr, _ in bowl.seen]


def test_the_seed_and_the_storage_are_those_given(tmp_path):
    first = proposed(tmp_path / "new" / "a", seed=3, storage=f"sqlite:///{tmp_path / 'trials.db'}")
    assert (tmp_path / "trials.db").exists()
    assert not (tmp_path / "new" / "a" / "search.db").exists()
    assert proposed(tmp_path / "b", seed=3) == first
    assert (tmp_path / "b" / "search.db").exists()
    assert not set(proposed(tmp_path / "c", seed=4)) & set(first)
    assert len(set(first)) == 2


def test_what_a_search_finds(tmp_path):
    """The best trial by the direction, with its settings; the file has all of them."""
    for direction, best in (("minimize", min), ("maximize", max)):
        bowl = Bowl()
        bowl.direction = direction
        found = search(bowl, [LR], tmp_path / direction, trials=3, progress=False)
        values = [(math.log10(lr) + 2) ** 2 for lr, _ in bowl.seen]
        assert found.value == best(values)
        assert found.trial == values.index(best(values))
        assert found.settings == {"lr": bowl.seen[found.trial][0]}
        assert found.folder == tmp_path / direction / "trials" / f"{found.trial:05d}"
        content = json.loads((tmp_path / direction / "search.json").read_text(encoding="utf-8"))
        assert content["bowl"] is True
        assert (content["direction"], content["over"][0]["name"]) == (direction, "lr")
        rows = [(row["trial"], row["state"], row["value"], row["folder"]) for row in content["trials"]]
        assert rows == [(i, "complete", value, f"trials/{i:05d}") for i, value in enumerate(values)]


def test_a_trial_that_fails_is_tried_no_more(tmp_path):
    class Broken(Bowl):
        def value(self, changes, folder):
            if not self.seen:
                self.seen.append((float(changes["lr"]), folder.name))
                raise OSError("the disk is gone")
            return super().value(changes, folder)

    broken = Broken()
    with pytest.raises(OSError, match="the disk is gone"):
        search(broken, [LR], tmp_path, trials=2, progress=False)
    assert search(broken, [LR], tmp_path, trials=2, progress=False).trials == 2
    assert [name for _, name in broken.seen] == ["00000", "00001", "00002"]


def test_a_trial_whose_process_is_gone_is_tried_again(tmp_path, monkeypatch):
    """One that holds no lock yet may be about to begin: it has a minute."""
    proposed(tmp_path)
    study = optuna.load_study(study_name=tmp_path.name, storage=f"sqlite:///{tmp_path / 'search.db'}")
    trial = study.ask({"lr": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)})
    states = optuna.trial.TrialState
    search_module._revive(study, tmp_path, states)
    assert study.trials[trial.number].state == states.RUNNING
    with _locks.job_lock(search_module.folder(tmp_path, trial)):
        monkeypatch.setattr(search_module, "_BEGIN", -1.0)
        search_module._revive(study, tmp_path, states)
        assert study.trials[trial.number].state == states.RUNNING
    monkeypatch.undo()
    search_module._revive(study, tmp_path, states)  # its lock lies there, and nobody holds it
    assert study.trials[trial.number].state == states.FAIL
    again = study.ask()
    assert search_module.folder(tmp_path, again) == search_module.folder(tmp_path, trial)
    assert again.suggest_float("lr", 1e-4, 1e-1, log=True) == trial.params["lr"]
    monkeypatch.setattr(search_module, "_BEGIN", -1.0)  # it has not begun in its minute
    search_module.folder(tmp_path, again).joinpath(_locks.JOB).unlink()
    search_module._revive(study, tmp_path, states)
    assert study.trials[again.number].state == states.FAIL
    assert search_module.folder(tmp_path, study.ask()) == search_module.folder(tmp_path, trial)


def test_what_of_an_array_is_sought(tmp_path):
    settings = {"walks": "1", "steps": "3"}
    for how, expected in (("", np.mean), (":mean", np.mean), (":min", np.min), (":max", np.max), (":last", None)):
        objective = OfExperiment(REFERENCE, f"walk-0/x{how}", settings=settings)
        value = objective.value({"steps": "4"}, tmp_path)
        (folder,) = tmp_path.glob("walks/smoke-*")
        assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["steps"] == 4
        x = np.load(folder / "walk-0.npz")["x"]
        assert value == (x[-1] if expected is None else expected(x))
    assert objective.direction == "minimize"
    assert OfExperiment(REFERENCE, "a/b", direction="maximize").direction == "maximize"
    assert objective.describe() == {
        "experiment": REFERENCE, "size": "smoke", "objective": "walk-0/x:last", "settings": settings
    }  # fmt: skip
    with pytest.raises(ArgumentError, match="--over: expected one of the settings"):
        objective.check(["steps.of"])
    with pytest.raises(ArgumentError):
        OfExperiment(REFERENCE, "a/b", settings={"color": "blue"}).check(["steps"])


def test_settings_of_a_task_reach_the_training(tmp_path):
    fixed = {"steps": "2", "batch_size": "4", "device": "cpu", "task.length": "8", "task.train_examples": "8",
             "task.valid_examples": "4", "task.test_examples": "4"}  # fmt: skip
    objective = OfTask("recall", "tiny", fixed)
    objective.check(["lr", "model.d_state", "task.vocabulary"])
    value = objective.value({"lr": "0.5", "model.d_state": "3", "task.vocabulary": "6", "seed": "2"}, tmp_path)
    told = settings_of(tmp_path)
    assert (told["config"]["lr"], told["config"]["seed"], told["config"]["steps"]) == (0.5, 2, 2)
    assert (told["task"]["options"]["vocabulary"], told["task"]["options"]["length"]) == (6, 8)
    assert told["model"]["options"]["d_state"] == 3
    best = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))["results"]["best"]
    assert value == best["accuracy"]
    for name in ("task.color", "color"):
        with pytest.raises(ArgumentError, match="--over: expected"):
            objective.check([name])
    with pytest.raises(ArgumentError, match=r"--set: expected options of the task .* got task.color"):
        OfTask("recall", "tiny", {"task.color": "blue"}).check(["lr"])
    assert objective.describe() == {"task": "recall", "model": "tiny", "settings": fixed}
    small = {"task.train_examples": "8", "task.valid_examples": "4", "task.test_examples": "4", "task.length": "4"}
    assert OfTask("functional", "tiny", small).direction == "minimize"


def test_a_training_that_diverges_has_no_score(tmp_path, monkeypatch):
    from stablessm import training

    monkeypatch.setattr(training, "train", lambda *_, **__: SimpleNamespace(diverged="so", best={"mse": 1.0}))
    objective = OfTask("functional", "tiny", {"task.train_examples": "8", "task.valid_examples": "4"})
    assert math.isnan(objective.value({}, tmp_path))
    monkeypatch.setattr(training, "train", lambda *_, **__: SimpleNamespace(diverged=None, best=None))
    assert math.isnan(objective.value({}, tmp_path))


def test_ranges_and_what_they_propose():
    assert Range.read("--over", " n = int:2:5") == Range("n", "int", 2, 5)
    assert Range.read("--over", "map=choice:best, exp,").choices == ("best", "exp")
    seen = []
    trial = SimpleNamespace(
        suggest_int=lambda *given: seen.append(given) or 4,
        suggest_float=lambda *given, log: seen.append((*given, log)) or 0.25,
        suggest_categorical=lambda *given: seen.append(given) or "exp",
    )
    texts = ["n=int:2:5", "lr=log:0.1:0.5", "x=float:-1:0.5", "map=choice:best,exp"]
    assert [Range.read("--over", text).suggest(trial) for text in texts] == ["4", "0.25", "0.25", "exp"]
    assert seen == [("n", 2, 5), ("lr", 0.1, 0.5, True), ("x", -1.0, 0.5, False), ("map", ("best", "exp"))]
    with pytest.raises(ArgumentError, match="both above 0"):
        Range.read("--over", "lr=log:0:1")
    with pytest.raises(ArgumentError, match="--over: expected LOW below HIGH, got"):
        Range.read("--over", "lr=float:1:1")
