"""Seeds, held-out shares, dropout and defaults change what a training gives; values that are not finite stop it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from training_task import Net, Sums

import stablessm as ssm
from stablessm import ArgumentError, tasks
from stablessm.training import TrainingConfig, train
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Gradient
from stablessm.training.ranks import Ranks
from stablessm.training.trainee import trainee

CPU = torch.device("cpu")


def config(**changes):
    return TrainingConfig(**{"steps": 6, "batch_size": 8, "lr": 0.02, "log_every": 1, "device": "cpu", **changes})


def losses(folder, *, dropout=0.0, task=None, **changes):
    torch.manual_seed(0)
    return train(Net(dropout=dropout), task or Sums(), config(**changes), folder, progress=False).losses[:, 1]


def test_the_defaults_are_these():
    assert dataclasses.asdict(TrainingConfig()) == {
        "epochs": 10, "steps": None, "batch_size": 64, "accumulate": 1, "lr": 0.004, "recurrent_lr": None,
        "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.05, "cooldown": 0.2, "clip": 1.0,
        "autocast": False, "compile": False, "graph": False,
        "state_noise": None, "seed": 0, "select": "best", "ema": None, "patience": None, "init_from": None,
        "evaluate_every": None, "checkpoint_every": None, "log_every": 20,
        "explode": 10.0, "device": "auto", "replicas": 1, "parallel": "ddp",
    }  # fmt: skip
    x = torch.randn(200, 5, 1)
    assert tasks.get("arrays", inputs=x, targets=x).sizes == {"train": 160, "valid": 20, "test": 20}


def test_the_seed_orders_the_data(tmp_path):
    first, again, other = (losses(tmp_path / str(i), seed=seed) for i, seed in enumerate((3, 3, 4)))
    assert (first == again).all()
    assert (first != other).all()


def test_the_seed_draws_the_dropout(tmp_path):
    """All examples are in every batch, so that their order changes nothing but rounding."""
    whole = {"task": Sums(examples=8), "steps": 3}
    plain = [losses(tmp_path / f"plain-{seed}", seed=seed, **whole) for seed in (3, 4)]
    dropped = [losses(tmp_path / f"dropped-{seed}", seed=seed, dropout=0.5, **whole) for seed in (3, 4)]
    np.testing.assert_allclose(plain[0], plain[1], rtol=1e-5)
    assert (abs(dropped[0] / dropped[1] - 1) > 1e-3).all()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_step_draws_its_own_dropout(accumulate):
    task, settings = Sums(examples=8 * accumulate), config(accumulate=accumulate)
    torch.manual_seed(0)
    model = Net(dropout=0.5)
    gradient = Gradient(trainee(model, settings, CPU, Ranks()), task, settings, 1, Watch(CPU), Ranks())
    found = [gradient.compute(step).item() for step in (0, 1, 2, 1)]
    assert len({*found[:3]}) == 3
    assert found[1] == found[3]


@pytest.mark.parametrize("share", ["valid", "test"])
def test_held_out_examples_are_not_trained_on(tmp_path, share):
    x = torch.randn(40, 6, 1, generator=torch.Generator().manual_seed(0))
    found = []
    for part in (0.1, 0.3):
        task = tasks.get("arrays", inputs=x, targets=x.cumsum(1), **{share: part})
        assert task.sizes[share] == 40 * part
        torch.manual_seed(0)
        result = train(ssm.RealSSM(1, 4, 1), task, config(), tmp_path / str(part), progress=False)
        assert result.scores[share]["examples"] == 40 * part
        found.append(result)
    assert (found[0].losses[:, 1] != found[1].losses[:, 1]).all()


class Cornered(nn.Module):
    """A finite output with a gradient that is not: the square root of a parameter at 0."""

    def __init__(self, *, nan: bool) -> None:
        super().__init__()
        self.readout, self.corner, self.nan = nn.Linear(1, 1), nn.Parameter(torch.zeros(1)), nan

    def forward(self, x):
        corner = self.corner.square() if self.nan else self.corner
        return self.readout(x) + corner.sqrt()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_stops_a_finite_loss(tmp_path, replicas, accumulate, nan, clip):
    model, settings = Cornered(nan=nan), config(accumulate=accumulate, clip=clip, replicas=replicas)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = train(model, Sums(), settings, tmp_path, progress=False)
    for one in result.replicas or (result,):
        assert one.steps == one.diverged.step == 0
        assert np.isfinite(one.diverged.loss)
        assert "the norm of the gradient is" in one.diverged.rule
        assert one.scores == {}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def calls(name):
    """The files of the package that call something of this name, with how often."""
    root, found = Path(ssm.__file__).parent, {}
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if f".{name}(" in text:  # in a docstring, perhaps
            nodes = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            count = sum(isinstance(node, ast.Attribute) and node.attr == name for node in nodes)
            found |= {path.relative_to(root).as_posix(): count} if count else {}
    return found


def test_there_is_one_step_loop():
    assert calls("AdamW") == {"training/optimizer.py": 1}
    assert not {name for kind in ("Adam", "SGD", "RMSprop") for name in calls(kind)}
    backward = calls("backward")
    assert backward["training/gradient.py"] == 1
    assert [name for name in backward if name.startswith("training/")] == ["training/gradient.py"]
    outside = ("session", "replicas", "divergence", "trainee")  # where gradients are read for the log or a diagnosis
    assert calls("zero_grad").keys() <= {f"training/{name}.py" for name in outside}


def test_a_setting_that_replicas_do_not_know_is_refused():
    for name in ("graph", "compile"):
        with pytest.raises(ArgumentError, match=f"replicas: expected 1 with {name}=True, got 2"):
            TrainingConfig(replicas=2, **{name: True})
