from __future__ import annotations

import json
import math
import shutil
import signal
import threading
from typing import get_args

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from training_task import Net, Sums

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.training import Interrupted, TrainingConfig, evaluate, schedules, train


def config(**changes):
    return TrainingConfig(**{"steps": 20, "batch_size": 8, "lr": 0.02, "log_every": 5, "device": "cpu", **changes})


def run(folder, *, map="best", task=None, resume=True, seed=0, **changes):
    torch.manual_seed(seed)
    model = Net(map=map)
    return model, train(model, task or Sums(), config(**changes), folder, resume=resume, progress=False)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_it_learns_and_writes_what_it_says(tmp_path):
    model, result = run(tmp_path, steps=60, evaluate_every=20, lr=0.06)
    assert result.losses[-1, 1] < 0.5 * result.losses[0, 1]
    assert result.scores["valid"]["mse"] == min(row["mse"] for row in rows(tmp_path) if "split" in row)
    assert result.scores["test"] == evaluate(model, Sums(), "test", 8)
    assert [row["step"] for row in rows(tmp_path) if "split" not in row] == list(range(5, 61, 5))
    assert all(row["gradient_over_weight"] > 0 for row in rows(tmp_path) if "split" not in row)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"checkpoints", "metrics.jsonl", "model", "record.json", "tensorboard", "training.json"}
    record = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert record["results"]["scores"]["test"]["mse"] == result.scores["test"]["mse"]
    assert record["task"]["task"] == "sums"
    assert record["diverged"] is None
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_a_saved_layer_loads(tmp_path):
    layer = ssm.RealSSM(1, 4, 1)
    train(layer, Sums(), config(), tmp_path, progress=False)
    assert torch.equal(ssm.load(tmp_path / "model").w, layer.w)


def test_the_seed_decides_and_nothing_else_is_touched(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    first, _ = run(tmp_path / "a")
    torch.manual_seed(0)
    again = Net()
    torch.manual_seed(5)
    train(again, Sums(), config(), tmp_path / "b", progress=False)
    assert torch.equal(torch.rand(3), expected)  # the caller's random state
    assert again.training
    assert torch.equal(weights(first), weights(again))
    torch.manual_seed(0)
    other = Net()
    train(other, Sums(), config(seed=1), tmp_path / "c", progress=False)
    assert not torch.equal(weights(first), weights(other))


def test_a_precision_set_for_one_backend_is_left_alone(tmp_path):
    matmul = torch.backends.cuda.matmul
    matmul.fp32_precision = "tf32"
    try:
        run(tmp_path, steps=2, autocast=True)
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = "none"
    assert torch.get_float32_matmul_precision() == "highest"


def test_accumulated_batches_are_one_large_batch(tmp_path):
    torch.manual_seed(0)
    models = [Net(dropout=0.0).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    task = Sums()
    task._tensors = {split: x.double() for split, x in task._tensors.items()}
    for model, batch_size, accumulate in zip(models, (16, 4), (1, 4), strict=True):
        changes = {"batch_size": batch_size, "accumulate": accumulate, "select": "last"}
        result = train(model, task, config(**changes), tmp_path / str(accumulate), progress=False)
        assert result.steps == 20
    torch.testing.assert_close(weights(models[0]), weights(models[1]))


def test_recurrent_parameters_have_their_own_rate_and_no_decay(tmp_path):
    torch.manual_seed(0)
    model = Net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    changes = {"recurrent_lr": 1e-9, "weight_decay": 10.0, "steps": 10, "select": "last", "warmup": 0.0}
    train(model, Sums(), config(**changes), tmp_path, progress=False)
    torch.testing.assert_close(model.layer.w.detach(), before["layer.w"], rtol=1e-6, atol=1e-6)
    assert model.layer.C.detach().norm() < 0.5 * before["layer.C"].norm()


def test_the_gradient_is_clipped(tmp_path):
    torch.manual_seed(0)
    model = Net()
    before = weights(model)
    changes = {"clip": 1e-12, "weight_decay": 0.0, "steps": 5, "select": "last"}  # below Adam's epsilon: nothing moves
    train(model, Sums(), config(**changes), tmp_path, progress=False)
    torch.testing.assert_close(weights(model), before, rtol=0, atol=1e-4)
    assert rows(tmp_path)[0]["gradient_norm"] > 1e-3


def test_selected_weights(tmp_path):
    changes = {"lr": 3.0, "warmup": 0.9, "clip": None, "evaluate_every": 1, "explode": 1e9}  # it gets worse
    model, result = run(tmp_path / "last", select="last", **changes)
    assert result.best["step"] < result.last["step"] == 20
    assert evaluate(model, Sums(), "valid", 8)["mse"] == result.last["mse"]
    model, result = run(tmp_path / "best", **changes)
    assert evaluate(model, Sums(), "valid", 8)["mse"] == result.best["mse"] < result.last["mse"]


def test_padding_and_autocast(tmp_path):
    _, result = run(tmp_path / "a", task=Sums(padded=True))
    assert math.isfinite(result.scores["test"]["mse"])
    _, short = run(tmp_path / "b", autocast=True)
    _, full = run(tmp_path / "c")
    assert short.losses[-1, 1] == pytest.approx(full.losses[-1, 1], rel=0.05)
    assert short.losses[-1, 1] != full.losses[-1, 1]


def test_evaluation_does_not_depend_on_the_batch_size():
    model, task = Net(), Sums(padded=True)
    scores = [evaluate(model, task, "valid", size) for size in (1, 7, 24)]
    for other in scores[1:]:
        assert other == pytest.approx(scores[0], rel=1e-5)
    assert model.training
    with pytest.raises(ArgumentError, match="split: expected a split that task sums has"):
        evaluate(model, Sums(valid=0), "valid")


def test_without_validation_the_last_weights_are_kept(tmp_path):
    task = Sums(valid=0)
    model, result = run(tmp_path, task=task)
    assert result.best is None
    assert set(result.scores) == {"test"}
    assert evaluate(model, task, "test", 8) == result.scores["test"]


@given(st.integers(1, 300), st.floats(0, 0.99), st.floats(0, 0.99), st.sampled_from(get_args(schedules.Name)))
def test_the_rate_rises_then_falls(steps, warmup, cooldown, schedule):
    """The formulas of the documentation, written as arrays."""
    values = np.array([schedules.rate(step, steps, warmup, schedule, cooldown) for step in range(steps)])
    assert ((values > 0) & (values <= 1)).all()
    rising, cooling = math.floor(warmup * steps), math.floor(cooldown * steps)
    np.testing.assert_allclose(values[:rising], np.arange(1, rising + 1) / (rising + 1), rtol=1e-12)
    along = np.arange(steps - rising) / (steps - rising)
    expected = {
        "constant": 0 * along + 1, "linear": 1 - along, "cosine": np.cos(np.pi * along / 2) ** 2,
        "wsd": np.minimum(1, np.arange(steps, 0, -1)[rising:] / (cooling + 1)),
    }  # fmt: skip
    np.testing.assert_allclose(values[rising:], expected[schedule], rtol=1e-9)
    if schedule == "wsd" and rising + cooling < steps:
        assert (values[rising : steps - cooling] == 1).all()
        assert (np.diff(values[steps - cooling - 1 :]) < 0).all()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint(tmp_path, number):
    class Signaling(Sums):
        def batch(self, split, *args, **options):
            if split == "train" and options["index"] == 6:
                signal.raise_signal(number)
            return super().batch(split, *args, **options)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match=signal.Signals(number).name) as caught:
        run(tmp_path / "stopped", task=Signaling())
    assert (caught.value.step, caught.value.signal) == (7, number)
    assert signal.getsignal(signal.SIGTERM) == before
    stopped, result = run(tmp_path / "stopped")
    whole, _ = run(tmp_path / "whole")
    assert torch.equal(weights(stopped), weights(whole))
    assert result.steps == 20


def test_it_runs_outside_the_main_thread(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path)[1].steps))
    thread.start()
    thread.join()
    assert results == [20]


def test_bad_settings_are_named(tmp_path):
    for name, value in {
        "epochs": 0, "steps": 0, "batch_size": 0, "accumulate": 0, "lr": 0.0, "recurrent_lr": math.nan, "clip": -1.0,
        "warmup": 1.0, "weight_decay": -1.0, "seed": -1, "select": "first", "explode": 1.0, "log_every": 0,
        "schedule": "step", "cooldown": 1.0, "ema": 1.0, "patience": 0,
    }.items():  # fmt: skip
        with pytest.raises(ArgumentError, match=f"{name}: expected"):
            config(**{name: value})
    with pytest.raises(ArgumentError, match=r"cooldown: expected at most 1 - warmup = 0.4, got 0.5"):
        config(schedule="wsd", warmup=0.6, cooldown=0.5)
    with pytest.raises(ArgumentError, match="ema: expected"):
        config(ema=0.0)
    with pytest.raises(ArgumentError, match="patience: expected None for a task without a validation split, got 2"):
        run(tmp_path, task=Sums(valid=0), patience=2)
    with pytest.raises(ArgumentError, match="accumulate: expected at most the 8 batches"):
        run(tmp_path, accumulate=9)
    with pytest.raises(ArgumentError, match="device: expected auto, cpu or cuda, got 'mps'"):
        run(tmp_path, device="mps")
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match="device: expected cpu"):
            run(tmp_path, device="cuda")
    with pytest.raises(ArgumentError, match="resume: expected True, False"):
        run(tmp_path, resume="newest")
    with pytest.raises(ArgumentError, match="model: expected a parameter to train"):
        train(torch.nn.Identity(), Sums(), config(), tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_nobodys_files_are_overwritten(tmp_path):
    (tmp_path / "model").mkdir()
    for resume in (True, False):
        with pytest.raises(
            ArgumentError, match="folder: expected an empty folder, or the folder of an earlier training"
        ):
            run(tmp_path, resume=resume)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ArgumentError, match="folder: expected a folder"):
        run(tmp_path / "file")


def test_starting_again(tmp_path):
    run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    model, _ = run(tmp_path, resume=False, lr=0.01)
    other, _ = run(tmp_path / "other", lr=0.01)
    assert torch.equal(weights(model), weights(other))
    assert (tmp_path / "notes.txt").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_a_compiled_model_learns_the_same(tmp_path):
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Net(dropout=0.0)
        changes = {"compile": compiled, "accumulate": 2}
        results.append(train(model, Sums(), config(**changes), tmp_path / str(compiled), progress=False))
    np.testing.assert_allclose(results[0].losses, results[1].losses, rtol=1e-4)
