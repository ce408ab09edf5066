"""Runs that are extended, branched, stopped early and averaged; and what their records say of it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_task import Net, Sums, stop_after

import stablessm as ssm
from stablessm import ArgumentError, _locks
from stablessm.training import Interrupted, TrainingConfig, evaluate, train, trainings


def run(folder, *, model=None, task=None, resume=True, extend=False, loggers=(), seed=0, **changes):
    options = {"steps": 12, "batch_size": 8, "lr": 0.02, "log_every": 4, "evaluate_every": 4, "device": "cpu"}
    torch.manual_seed(seed)
    model = model or Net()
    config = TrainingConfig(**{**options, **changes})
    more = {"resume": resume, "extend": extend, "loggers": loggers, "progress": False}
    return model, train(model, task or Sums(), config, folder, **more)


def weights(model):
    return torch.cat([tensor.detach().flatten() for tensor in model.state_dict().values()])


def record(folder):
    return json.loads((folder / "record.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "changes",
    [{}, {"ema": 0.9}, {"ema": 0.9, "replicas": 2}, {"accumulate": 2, "select": "last"}],
    ids=str,
)
def test_a_finished_run_is_extended_to_the_bits_of_a_longer_one(tmp_path, changes):
    common = {"schedule": "constant", "warmup": 0.0, **changes}
    run(tmp_path / "cut", steps=8, **common)
    again, longer = run(tmp_path / "cut", steps=16, extend=True, **common)
    model, whole = run(tmp_path / "whole", steps=16, **common)
    assert torch.equal(weights(again), weights(model))
    assert longer.steps == whole.steps == 16
    assert (longer.losses == whole.losses).all()
    assert longer.scores == whole.scores
    assert record(tmp_path / "cut")["history"] == [{"step": 8, "changed": {"steps": [8, 16]}}]
    assert record(tmp_path / "whole")["history"] == []
    assert "changed after step 8: steps from 8 to 16" in str(longer)


def test_another_learning_rate_on_resume(tmp_path):
    """It is that of the longer schedule from then on, and stated; the run is resumed without extend from then on."""
    with pytest.raises(Interrupted), stop_after(6):
        run(tmp_path)
    changes = {"lr": 0.05, "recurrent_lr": 0.001, "schedule": "wsd", "cooldown": 0.5, "steps": 20}
    with pytest.raises(ArgumentError, match=r"began with \(config.cooldown = 0.2.*\) or extend=True, got"):
        run(tmp_path, **changes)
    with pytest.raises(Interrupted), stop_after(9):
        run(tmp_path, extend=True, **changes)
    _, result = run(tmp_path, **changes)
    changed = {
        "cooldown": [0.2, 0.5], "lr": [0.02, 0.05], "recurrent_lr": [None, 0.001], "schedule": ["cosine", "wsd"],
        "steps": [12, 20],
    }  # fmt: skip
    assert record(tmp_path)["history"] == [{"step": 6, "changed": changed}]
    assert record(tmp_path)["config"]["lr"] == 0.05
    assert result.history == (record(tmp_path)["history"][0],)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = {row["step"]: row["lr"] for row in rows if "split" not in row}
    assert rates[8] == 0.05
    assert (rates[12], rates[16]) == pytest.approx((0.05 * 9 / 11, 0.05 * 5 / 11))
    assert rates[4] < 0.02


def test_the_rate_that_is_stated_is_the_rate_that_is_used(tmp_path):
    for name, lr in (("slow", 1e-12), ("fast", 0.05)):
        run(tmp_path / name, select="last")
        before = load_file(tmp_path / name / "model" / "model.safetensors")
        run(tmp_path / name, select="last", steps=16, lr=lr, extend=True)
        after = load_file(tmp_path / name / "model" / "model.safetensors")
        moved = max(float((after[key] - before[key]).abs().max()) for key in before)
        assert moved < 1e-9 if name == "slow" else moved > 1e-3


def test_what_cannot_be_extended(tmp_path):
    with pytest.raises(ArgumentError, match="extend: expected a folder with checkpoints of a run"):
        run(tmp_path / "none", extend=True)
    run(tmp_path)
    with pytest.raises(ArgumentError, match="steps: expected at least the 12 steps that the run has made, got 11"):
        run(tmp_path, steps=11, extend=True)
    with pytest.raises(
        ArgumentError, match=r"began with \(config.clip = 1.0, config.steps = 12\), got config.clip = 2.0"
    ):
        run(tmp_path, steps=20, clip=2.0, extend=True)
    with pytest.raises(ArgumentError, match="extend: expected False with resume=False"):
        run(tmp_path, extend=True, resume=False)
    with pytest.raises(ArgumentError, match=r"config\.ema = null"):
        run(tmp_path, ema=0.9, extend=True)
    _, unchanged = run(tmp_path, extend=True)
    assert unchanged.history == ()


# Warm start


def test_a_branch_begins_with_the_weights_of_a_run(tmp_path):
    first, result = run(tmp_path / "first")
    branch, other = run(tmp_path / "branch", init_from=str(tmp_path / "first"), lr=1e-12, weight_decay=0.0, seed=5)
    torch.testing.assert_close(weights(branch), weights(first), rtol=0, atol=1e-9)
    assert not torch.equal(weights(first), weights(run(tmp_path / "plain", lr=1e-12, seed=5)[0]))
    (event,) = record(tmp_path / "branch")["history"]
    assert event["step"] == 0
    assert event["init_from"]["folder"] == str(tmp_path / "first")
    assert event["init_from"]["best"]["step"] == result.best["step"]
    assert event["init_from"]["steps"] == 12
    assert len(event["init_from"]["weights"]) == 64
    assert "initial weights from" in str(other)
    assert record(tmp_path / "first")["history"] == []  # another run, in its own folder


def test_a_branch_is_resumed_without_its_source(tmp_path):
    run(tmp_path / "first")
    options = {"init_from": str(tmp_path / "first"), "seed": 5}
    whole, _ = run(tmp_path / "whole", **options)
    with pytest.raises(Interrupted), stop_after(6):
        run(tmp_path / "cut", **options)
    shutil.rmtree(tmp_path / "first")
    again, _ = run(tmp_path / "cut", **options)
    assert torch.equal(weights(again), weights(whole))
    assert record(tmp_path / "cut")["history"] == record(tmp_path / "whole")["history"] != []
    with pytest.raises(ArgumentError, match=r"config\.init_from"):
        run(tmp_path / "cut", init_from=str(tmp_path / "other"))


def test_a_branch_from_a_saved_model_and_of_replicas(tmp_path):
    layer = ssm.RealSSM(1, 4, 1)
    ssm.save(layer, tmp_path / "saved")
    for replicas in (1, 2):
        model, folder = ssm.RealSSM(1, 4, 1), tmp_path / str(replicas)
        options = {"init_from": str(tmp_path / "saved"), "lr": 1e-12, "weight_decay": 0.0, "replicas": replicas}
        run(folder, model=model, **options)
        torch.testing.assert_close(weights(model), weights(layer), rtol=0, atol=1e-9)
    with pytest.raises(ArgumentError, match=r"init_from: .*choose one of its replicas"):
        run(tmp_path / "x", model=ssm.RealSSM(1, 4, 1), init_from=str(tmp_path / "2"))
    run(tmp_path / "y", model=ssm.RealSSM(1, 4, 1), init_from=str(tmp_path / "2" / "replica-1"))


def test_weights_that_do_not_fit_are_named(tmp_path):
    run(tmp_path / "first")
    before = set(tmp_path.iterdir())
    for options, told in (
        ({"model": ssm.RealSSM(1, 4, 1)}, r"init_from: expected tensors of the model's names and shapes \(B "),
        ({"model": Net(map="exp")}, r"init_from: expected recurrent weights of RealSSM.*exp.*, got those of .*best"),
        ({"init_from": str(tmp_path / "nowhere")}, "init_from: expected a folder of a run or model, with model.safet"),
    ):
        with pytest.raises(ArgumentError, match=told):
            run(tmp_path / "branch", **{"init_from": str(tmp_path / "first"), **options})
    with pytest.raises(ArgumentError, match=r"init_from: expected the folder of another run \(extend=True"):
        run(tmp_path / "first", init_from=str(tmp_path / "first"), resume=False)
    assert set(tmp_path.iterdir()) == before


# Early stopping


class Worsening(Sums):
    """Validation scores that get worse from the second validation on: 5, 1, 2, 3, …"""

    def __init__(self, scores=(5.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)):
        super().__init__()
        self.given, self.metric = iter(scores), "mse"

    def score(self, output, batch):
        if batch.inputs.flatten()[0] != self._tensors["valid"][0, 0, 0]:
            return super().score(output, batch)
        return torch.tensor(next(self.given) * len(batch), dtype=torch.float64), torch.tensor(len(batch)).double()


def small(scores=(5.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)):
    """The scores one validation after the other: one batch each."""
    task = Worsening(scores)
    task.sizes = {**task.sizes, "valid": 8, "test": 0}
    return task


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_it_stops_when_the_score_does_not_improve(tmp_path, patience):
    _, result = run(tmp_path, task=small(), steps=28, patience=patience)
    assert result.steps == 4 * (2 + patience)
    assert result.best["step"] == 8
    assert result.early == f"stopped early: valid mse has not improved in {patience} validations since step 8"
    assert result.early in str(result)
    assert record(tmp_path)["results"]["early"] == result.early
    assert max(path.stem for path in (tmp_path / "checkpoints").iterdir()) == f"step-{result.steps:09d}"
    _, again = run(tmp_path, task=small(()), steps=28, patience=patience)  # nothing is validated again
    assert (again.steps, again.early, again.best) == (result.steps, result.early, result.best)
    _, further = run(tmp_path, task=small((2.0, 0.5, 0.2, 1.0, 1.0)), steps=28, patience=patience + 2, extend=True)
    assert (further.steps, further.early) == (28, None)
    assert further.best["mse"] <= 0.5


@pytest.mark.parametrize("changes", [{"lr": 0.01}, {"steps": 40}], ids=str)
def test_a_run_that_stopped_early_is_extended_with_the_same_patience(tmp_path, changes):
    _, early = run(tmp_path, task=small(), steps=28, patience=2)
    _, further = run(tmp_path, task=small((3.0, 0.5, 4.0, 4.0)), extend=True, **{"steps": 28, "patience": 2, **changes})
    assert (early.steps, further.steps) == (16, 32 if "steps" in changes else 28)
    assert further.best["mse"] <= 0.5


@pytest.mark.parametrize("method", ["begin", "log", "end"])
def test_an_error_in_a_logger_is_the_error_of_the_training(tmp_path, method):
    class Broken:
        def begin(self, *_):
            self.said("begin")

        def log(self, *_):
            self.said("log")

        def end(self, *_):
            self.said("end")

        def said(self, name):
            if name == method:
                raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match=r"^boom$"):
        run(tmp_path, loggers=[Broken()])


def test_a_logger_has_three_methods(tmp_path):
    with pytest.raises(ArgumentError, match=r"^loggers: expected a sequence, each entry a Logger"):
        run(tmp_path, loggers=[object()])


def test_it_goes_on_while_the_score_improves(tmp_path):
    _, result = run(tmp_path / "a", task=small((7.0, 6.0, 6.5, 4.0, 4.5, 2.0, 3.0)), steps=28, patience=2)
    assert (result.steps, result.early, result.best["step"]) == (28, None, 24)
    _, worse = run(tmp_path / "b", task=small((float("nan"), 3.0, 3.0, 3.0, 1.0, 1.0)), steps=24, patience=2)
    assert (worse.steps, worse.best["step"]) == (16, 8)


def test_stopping_early_survives_an_interruption(tmp_path):
    scores = (5.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    with pytest.raises(Interrupted), stop_after(13):
        run(tmp_path, task=small(), steps=28, patience=3)
    _, result = run(tmp_path, task=small(scores[3:]), steps=28, patience=3)
    assert result.steps == 20


def test_replicas_stop_early_one_by_one(tmp_path):
    """Each as a training alone; one that has stopped keeps its weights while the other goes on."""
    options = {"steps": 40, "lr": 0.15, "patience": 1, "evaluate_every": 2, "select": "last", "replicas": 2}
    _, both = run(tmp_path / "both", **options)
    for i, one in enumerate(both.replicas):
        torch.manual_seed(0)
        config = TrainingConfig(batch_size=8, log_every=4, device="cpu", seed=i, **{**options, "replicas": 1})
        alone = train(Net(), Sums(), config, tmp_path / str(i), progress=False)
        assert (one.steps, one.early) == (alone.steps, alone.early)
        assert one.scores["test"]["mse"] == pytest.approx(alone.scores["test"]["mse"], rel=1e-4)
    assert len({one.steps for one in both.replicas}) == 2
    assert all(one.early for one in both.replicas)
    assert f"replica-0 {both.replicas[0].early}" in str(both)


# Averaged weights


@pytest.mark.parametrize(
    ("select", "replicas"),
    [("best", 1), ("last", 2), *(pytest.param(*more, marks=pytest.mark.slow) for more in (("last", 1), ("best", 2)))],
)
def test_the_average_is_what_is_scored_and_saved_and_survives_an_interruption(tmp_path, select, replicas):
    options = {"ema": 0.8, "select": select, "replicas": replicas, "lr": 0.1, "steps": 14}
    model, whole = run(tmp_path / "whole", **options)
    with pytest.raises(Interrupted), stop_after(7):
        run(tmp_path / "cut", **options)
    again, result = run(tmp_path / "cut", **options)
    assert torch.equal(weights(again), weights(model))
    assert result.scores == whole.scores
    assert not torch.equal(weights(model), weights(run(tmp_path / "plain", **{**options, "ema": None})[0]))
    one, folder = (whole.replicas[0], "replica-0") if replicas > 1 else (whole, ".")
    assert evaluate(model, Sums(), "test", 8) == one.scores["test"]
    assert evaluate(model, Sums(), "valid", 8)["mse"] == one.scores["valid"]["mse"]
    kept = load_file(tmp_path / "whole" / folder / "model" / "model.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in model.state_dict().items())


def test_a_validation_leaves_the_weights_that_are_trained(tmp_path):
    results = [
        run(tmp_path / str(every), ema=0.8, select="last", evaluate_every=every, log_every=2)[1] for every in (2, 12)
    ]
    assert np.array_equal(results[0].losses, results[1].losses)
    assert results[0].last == results[1].last


# Status


def test_status_tells_how_far_trainings_are(tmp_path):
    run(tmp_path / "a" / "finished")
    with pytest.raises(Interrupted), stop_after(6):
        run(tmp_path / "stopped")
    run(tmp_path / "diverged", lr=1e6, warmup=0.0, clip=None, explode=2.0)
    run(tmp_path / "early", task=small(), steps=28, patience=1)
    run(tmp_path / "several", replicas=2)
    run(tmp_path / "extended")
    with pytest.raises(Interrupted), stop_after(14):
        run(tmp_path / "extended", steps=20, extend=True)
    found = {one.folder.relative_to(tmp_path).as_posix(): one for one in trainings(tmp_path)}
    states = {name: (one.state, one.step, one.steps) for name, one in found.items()}
    diverged = states.pop("diverged")
    assert (diverged[0], diverged[2]) == ("diverged", 12)
    assert states == {
        "a/finished": ("finished", 12, 12), "stopped": ("stopped", 4, 12), "early": ("finished", 12, 28),
        "several": ("finished", 12, 12), "extended": ("stopped", 12, 20),
    }  # fmt: skip
    rows = (tmp_path / "stopped" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert found["stopped"].loss == json.loads(rows[0])["loss"]
    with _locks.alone(tmp_path / "stopped"):
        assert {one.state for one in trainings(tmp_path / "stopped")} == {"running"}
    run(tmp_path / "extended", steps=20)
    assert [one.state for one in trainings(tmp_path / "extended")] == ["finished"]


@pytest.mark.parametrize("name", ["training.json", "record.json"])
def test_a_damaged_training_is_shown_as_such(tmp_path, name):
    run(tmp_path)
    (tmp_path / name).write_text("{", encoding="utf-8")
    with pytest.warns(UserWarning, match=name):
        assert [one.state for one in trainings(tmp_path)] == ["damaged"]
