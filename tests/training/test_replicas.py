"""Several seeds as one computation: each is the training of that seed by itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training_task import Net, Sums, stop_after

import stablessm as ssm
from stablessm import ArgumentError, tasks
from stablessm.report.folder import read_run
from stablessm.training import Interrupted, TrainingConfig, train


def config(**changes):
    options = {"steps": 9, "batch_size": 8, "lr": 0.02, "log_every": 2, "evaluate_every": 4, "device": "cpu"}
    return TrainingConfig(**{**options, **changes})


def kept(folder):
    return load_file(folder / "model" / "model.safetensors")


def labels():
    x = torch.randn(80, 7, 2, generator=torch.Generator().manual_seed(0))
    return tasks.get("arrays", inputs=x, targets=(x.sum((1, 2)) > 0).long())


def classifier(task, **options):
    return lambda: ssm.models.for_task(task.inputs, task.outputs, "tiny", dropout=0.3, **options)


SIZES = {"train_examples": 64, "valid_examples": 24, "test_examples": 16}
CASES = {
    "a module that is not ours, with dropout": (Sums(), Net, {}),
    "padded": (Sums(padded=True), Net, {"accumulate": 2, "select": "last"}),
    "s4d": (labels(), classifier(labels()), {"recurrent_lr": 0.001, "weight_decay": 0.3}),
    "tokens": (recall := tasks.get("recall", length=8, **SIZES), classifier(recall), {}),
    "lru, batch norm": (labels(), classifier(labels(), mixer="lru", norm="batch", prenorm=False), {"clip": 0.1}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_replica_is_the_run_of_its_seed(tmp_path, case):
    task, build, changes = CASES[case]
    result = train(build, task, config(replicas=2, seed=5, **changes), tmp_path / "two", progress=False)
    assert len(result.replicas) == 2
    for i, one in enumerate(result.replicas):
        alone = train(build, task, config(seed=5 + i, **changes), tmp_path / str(i), progress=False)
        np.testing.assert_allclose(one.losses, alone.losses, rtol=2e-5)
        assert one.best["step"] == alone.best["step"]
        assert one.scores["test"]["loss"] == pytest.approx(alone.scores["test"]["loss"], rel=1e-4, abs=0)
        for name, tensor in kept(tmp_path / str(i)).items():
            if "batch" not in case:  # a bias in front of a batch norm has no gradient but rounding
                torch.testing.assert_close(kept(one.folder)[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
        rows = [
            [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
            for folder in (one.folder, tmp_path / str(i))
        ]
        for said, expected in zip(*rows, strict=True):
            assert said.keys() == expected.keys()
            for key in said.keys() & {"gradient_norm", "lr", "gradient_over_weight"}:
                assert said[key] == pytest.approx(expected[key], rel=1e-3, abs=0)
    assert len({one.losses[0, 1] for one in result.replicas}) == 2


@pytest.mark.parametrize(("select", "steps"), [("best", (3, 4, 8)), ("last", (4,))])
def test_interrupted_replicas_end_in_the_same_bits(tmp_path, select, steps):
    def attempt(folder):
        return train(Net, Sums(), config(replicas=2, select=select), tmp_path / folder, progress=False)

    whole = attempt("whole")
    for step in steps:
        with pytest.raises(Interrupted), stop_after(step):
            attempt(f"stopped-{step}")
        again = attempt(f"stopped-{step}")
        assert again.scores == whole.scores
        for one, other in zip(again.replicas, whole.replicas, strict=True):
            assert (one.best, one.last, one.scores) == (other.best, other.last, other.scores)
            assert one.losses.tolist() == other.losses.tolist()
            assert all(torch.equal(tensor, kept(other.folder)[name]) for name, tensor in kept(one.folder).items())
        last = [load_file(max((tmp_path / which / "checkpoints").iterdir())) for which in ("whole", f"stopped-{step}")]
        assert last[0].keys() == last[1].keys()
        assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


def spoilt():
    """Of seed 1 the recurrence explodes."""
    model = Net(map="direct")
    if torch.initial_seed() == 1:
        model.layer.w.data[3] = 1e6
    return model


def test_one_that_diverges_stops_and_the_others_do_not_notice(tmp_path):
    result = train(spoilt, Sums(), config(replicas=3), tmp_path / "three", progress=False)
    assert [one.steps for one in result.replicas] == [9, 0, 9]
    report = result.replicas[1].diverged
    assert result.diverged == report
    assert report.mode.module == "layer"
    assert report.mode.unstable
    assert result.replicas[1].scores == {}
    torch.manual_seed(1)
    before = spoilt().state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in kept(result.replicas[1].folder).items())
    for i in (0, 2):
        alone = train(spoilt, Sums(), config(seed=i), tmp_path / str(i), progress=False)
        np.testing.assert_allclose(result.replicas[i].losses, alone.losses, rtol=2e-5)
    both = [result.replicas[i].scores["test"]["mse"] for i in (0, 2)]
    assert result.scores["test"]["mse"] == pytest.approx(np.mean(both), rel=1e-12, abs=0)
    with pytest.raises(Interrupted), stop_after(5):
        train(spoilt, Sums(), config(replicas=3), tmp_path / "stopped", progress=False)
    again = train(spoilt, Sums(), config(replicas=3), tmp_path / "stopped", progress=False)
    assert str(again.diverged) == str(report)
    assert again.scores == result.scores


def test_all_that_diverge_end_the_run(tmp_path):
    result = train(spoilt, Sums(), config(replicas=2, seed=1, lr=1e6, warmup=0.0, clip=None), tmp_path, progress=False)
    assert all(one.diverged is not None for one in result.replicas)
    assert result.steps < 9
    assert result.scores == {}


def test_replicas_of_a_module_start_from_its_weights(tmp_path):
    torch.manual_seed(0)
    model = Net(dropout=0.0).eval()
    expected = torch.rand(2)
    torch.manual_seed(0)
    model = Net(dropout=0.0).eval()
    result = train(model, Sums(), config(replicas=3), tmp_path / "three", progress=False)
    assert torch.equal(torch.rand(2), expected)  # the caller's random state
    assert not model.training
    firsts = [train_alone(tmp_path / str(i), i) for i in range(3)]
    for one, alone in zip(result.replicas, firsts, strict=True):
        np.testing.assert_allclose(one.losses, alone.losses, rtol=2e-5)
    for name, tensor in kept(result.replicas[0].folder).items():
        assert torch.equal(model.state_dict()[name], tensor)
        assert model.state_dict()[name].untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def train_alone(folder, seed):
    torch.manual_seed(0)
    return train(Net(dropout=0.0), Sums(), config(seed=seed), folder, progress=False)


def test_the_folders(tmp_path):
    result = train(Net, Sums(), config(replicas=3), tmp_path, progress=False)
    names = {"checkpoints", "metrics.jsonl", "record.json", "training.json"}
    assert {path.name for path in tmp_path.iterdir()} == names | {f"replica-{i}" for i in range(3)}
    run = read_run(tmp_path)
    assert not run.faults
    assert run.title == "Net on sums"
    assert read_run(tmp_path / "replica-1").config["training"]["seed"] == 1
    record = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    scores = [one["scores"]["test"]["mse"] for one in record["results"]["replicas"]]
    assert record["results"]["scores"]["test"]["mse"] == pytest.approx(np.mean(scores), rel=1e-12, abs=0)
    assert f"± {np.std(scores):.2g}" in str(result)
    with pytest.raises(ArgumentError, match=r"resume: .*config.replicas = 3\), got config.replicas = 2"):
        train(Net, Sums(), config(replicas=2), tmp_path, progress=False)
    train(Net, Sums(), config(replicas=2), tmp_path, resume=False, progress=False)
    assert sorted(path.name for path in tmp_path.glob("replica-*")) == ["replica-0", "replica-1"]


def test_what_cannot_be_one_computation_is_refused(tmp_path):
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.readout = nn.Linear(1, 1)

        def forward(self, x):
            return self.readout(x) if x.sum() > 0 else self.readout(-x)

    with pytest.raises(ArgumentError, match=r"replicas: expected 1, or a model .* torch.vmap can run, got 2"):
        train(Looking, Sums(), config(replicas=2), tmp_path / "looking", progress=False)
    widths = iter((4, 5))
    with pytest.raises(ArgumentError, match="models: expected parameters and buffers of the same names"):
        train(lambda: ssm.RealSSM(1, next(widths), 1), Sums(), config(replicas=2), tmp_path / "w", progress=False)
    carrying = Sums()
    carrying.carries = True
    with pytest.raises(ArgumentError, match="replicas: expected 1 with a task that carries its state, got 2"):
        train(Net, carrying, config(replicas=2), tmp_path / "carrying", progress=False)
