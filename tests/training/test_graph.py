"""A step as a CUDA graph. Without a GPU a stand-in repeats the function, so that all but the graph itself is tested."""

from __future__ import annotations

import pytest
import torch
from training_task import Repeated

import stablessm as ssm
from stablessm._errors import ArgumentError
from stablessm.training import TrainingConfig, gradient, train
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Gradient
from stablessm.training.optimizer import Optimizer
from stablessm.training.ranks import Ranks
from stablessm.training.trainee import trainee

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Added(torch.nn.Module):
    """Two parameters, whose gradients autograd hands out as one tensor; outputs in float64."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.full((1,), value, dtype=torch.float64)) for value in (1.0, 2.0))

    def forward(self, x):
        return x.double() * (self.a + self.b)


def pair(accumulate, own=None):
    """The same model as ever, and with a graph: ``own``, or one with dropout and a parameter that nothing uses."""
    x = torch.randn(40, 6, 1)
    task = ssm.tasks.get("arrays", inputs=x, targets=x.cumsum(1), valid=0.0, test=0.0).to(DEVICE)
    torch.manual_seed(0)
    model = (own or ssm.models.for_task(task.inputs, task.outputs, "tiny", dropout=0.3)).to(DEVICE)
    if own is None:
        model.unused = torch.nn.Parameter(torch.zeros(3, device=DEVICE))
    for graph in (False, True):
        config = TrainingConfig(batch_size=6, accumulate=accumulate, graph=graph)
        epoch = config.steps_per_epoch(task.steps("train", 6))
        yield model, Gradient(trainee(model, config, DEVICE, Ranks()), task, config, epoch, Watch(DEVICE), Ranks())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_replayed_step_is_the_step(monkeypatch, accumulate):
    if DEVICE.type == "cpu":
        monkeypatch.setattr(gradient, "Replayed", Repeated)
    for step in range(5):
        found = []
        for model, passes in pair(accumulate):
            for before in range(step + 1):  # the graph is made at step 1
                model.zero_grad()
                loss = passes.compute(before)
            found.append((loss.clone(), [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]))
        (plain, gradients), (graphed, others) = found
        torch.testing.assert_close(graphed, plain, check_dtype=False)
        assert sum(g is None for g in gradients) == 1
        torch.testing.assert_close(others, gradients)


def test_what_a_step_found_is_its_own(monkeypatch):
    if DEVICE.type == "cpu":
        monkeypatch.setattr(gradient, "Replayed", Repeated)
    found = []
    for model, passes in pair(1, Added()):
        optimizer, losses, clipped = Optimizer(model, TrainingConfig(clip=0.01), TrainingConfig().rates(10)), [], []
        for step in range(4):
            optimizer.clear()
            losses.append(passes.compute(step))
            optimizer.clip()  # in place
            clipped += [parameter.grad.clone() for parameter in model.parameters()]
        found.append([*losses, *clipped])
    torch.testing.assert_close(*found)


def test_other_shapes_are_launched_one_by_one(monkeypatch):
    monkeypatch.setattr(gradient, "Replayed", Repeated)
    (_, plain), (model, graphed) = pair(1)
    graphed.compute(1)
    monkeypatch.setattr(Repeated, "__call__", lambda *_: pytest.fail("the shapes are others"))
    short = graphed.batch(2, 0, (0, 2))
    monkeypatch.setattr(Gradient, "batch", lambda *_: short)
    model.zero_grad()
    assert torch.equal(graphed.compute(2), plain.compute(2))


def test_what_a_graph_needs(tmp_path):
    x = torch.randn(100, 6, 1)
    task = ssm.tasks.get("arrays", inputs=x, targets=x)
    with pytest.raises(ArgumentError, match="graph: expected a GPU, got cpu"):
        train(ssm.RealSSM(1, 4, 1), task, TrainingConfig(graph=True, device="cpu"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_another_than_the_current_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for name in ("cuda", "cuda:0"):
        assert TrainingConfig(graph=True, device=name).chosen_device() == torch.device(name)
    assert TrainingConfig(device="cuda:1").chosen_device() == torch.device("cuda:1")
    with pytest.raises(ArgumentError, match=r"graph: expected the current GPU.* got cuda:1"):
        TrainingConfig(graph=True, device="cuda:1").chosen_device()
