from __future__ import annotations

import json
import math
import os
import time

import pytest
import torch
from torch import nn
from training_task import Net, Sums

import stablessm as ssm
from stablessm.training import TrainingConfig, train


def diverge(folder, model, task=None, **changes):
    options = {"steps": 5000, "batch_size": 8, "lr": 10.0, "warmup": 0.0, "device": "cpu", **changes}
    started = time.perf_counter()
    result = train(model, task or Sums(steps=100), TrainingConfig(**options), folder, progress=False)
    assert time.perf_counter() - started < 10
    return result


def test_a_large_rate_stops_at_once_and_names_the_unstable_mode(tmp_path):
    torch.manual_seed(0)
    model = Net(map="direct")
    result = diverge(tmp_path, model)
    report = result.diverged
    assert result.steps == report.step < 20
    assert report.mode.module == "layer"
    assert report.mode.unstable
    assert report.trace.mode == report.mode
    assert "stable map" in report.remedy
    assert report.mode.eigenvalue.real == pytest.approx(model.layer.eigenvalues()[report.mode.index].item())
    content = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert content["diverged"]["text"] == str(report)
    assert content["results"]["scores"] == {}
    assert "unstable" in content["diverged"]["text"]
    assert all(torch.isfinite(p).all() for p in model.parameters())  # as they were when it happened


def test_a_stable_map_that_explodes_names_the_mode_pushed_hardest(tmp_path):
    torch.manual_seed(0)
    model = Net(map="best")
    report = diverge(tmp_path, model).diverged
    assert report.mean_loss > report.limit
    assert math.isfinite(report.loss)
    assert report.mode.module == "layer"
    if report.pushed is not None:
        assert "largest |gradient|/|w| of a mode" in str(report)
    assert "learning rate" in report.remedy


def test_nothing_of_a_diverged_run_is_in_its_checkpoints(tmp_path):
    torch.manual_seed(0)

    class Counted(Sums):
        drawn = 0

        def batch(self, split, *args, **options):
            self.drawn += split == "train"
            return super().batch(split, *args, **options)

        def to(self, device):
            return self

    task = Counted(steps=100)
    result = diverge(tmp_path, Net(map="direct"), task, checkpoint_every=1, log_every=1000)
    assert result.diverged is not None
    assert task.drawn < result.steps + 15  # on a CPU it stops at once
    steps = sorted(int(path.stem.removeprefix("step-")) for path in (tmp_path / "checkpoints").iterdir())
    assert steps[-1] == result.steps
    again = diverge(tmp_path, Net(map="direct"), checkpoint_every=1, log_every=1000)
    assert str(again.diverged) == str(result.diverged)


def test_a_model_that_starts_unstable(tmp_path):
    model = nn.Sequential(ssm.RealSSM(1, 2, 1, map="direct", eigenvalues=torch.tensor([-1.0, 2.0])), First())
    report = diverge(tmp_path, model, lr=0.001).diverged
    assert report.step == 0
    assert report.mode.index == (1,)
    assert report.rule == "the loss is inf" or report.rule == "the loss is nan"


def test_bad_data_is_told_from_a_bad_model(tmp_path):
    task = Sums()
    task._tensors["train"][:, 5] = math.nan
    report = diverge(tmp_path, Net(), task, lr=0.001).diverged
    assert report.trace.phase == "input"
    assert report.mode is None
    assert "clean the data" in report.remedy


def test_a_model_without_recurrence(tmp_path):
    report = diverge(tmp_path, nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), lr=1e6).diverged
    assert report.mode is None
    assert "diverged at step" in str(report)


def test_a_slow_rise_is_no_divergence(tmp_path):
    torch.manual_seed(0)
    assert diverge(tmp_path, Net(), lr=0.05, steps=30).diverged is None


class First(nn.Module):
    def forward(self, pair):
        return pair[0]


@pytest.mark.skipif("STABLESSM_DATA" not in os.environ, reason="MNIST is in the folder that STABLESSM_DATA names")
@pytest.mark.parametrize("map", ["best", pytest.param("direct", marks=pytest.mark.slow)])
def test_digits_at_a_rate_of_ten(tmp_path, map):
    torch.manual_seed(0)
    task = ssm.tasks.get("mnist")
    model = ssm.models.for_task(task.inputs, task.outputs, "paper-images", map=map)
    result = diverge(tmp_path, model, task, batch_size=16, log_every=5)
    assert result.steps < 30
    assert result.diverged.mode.module == "body.blocks.0.mixer"
