"""What every training strategy promises: an interrupted run ends in the bits of a whole one.

A new strategy joins ``STRATEGIES``. ``Gradient`` and ``Replicas`` need a task and are tested in
``tests/training/test_resume.py`` and ``test_replicas.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stablessm.training import TrainingConfig
from stablessm.training.checkpoint import Checkpoints
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Objective, Strategy, descend
from stablessm.training.optimizer import Optimizer
from stablessm.training.steps import Cadence, Hooks, StepLoop

STEPS, CUT = 12, 5


def batch(step: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(step))


class Centered(Strategy):
    """A strategy with a state: outputs less their running mean."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.mean, self.next = model, torch.zeros(3), torch.zeros(3)

    def compute(self, step: int) -> Tensor:
        y = self.model(batch(step))
        self.next = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return descend((y - self.mean - 1).square().mean())

    def settle(self, bad: Tensor) -> None:
        self.mean = torch.where(bad > 0, self.mean, self.next)

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean}

    def restore(self, facts: Any, tensors: Mapping[str, Tensor]) -> None:
        self.mean = tensors["mean"]


class Forgetful(Centered):
    """A wrong strategy: its state is not restored."""

    def restore(self, facts: Any, tensors: Mapping[str, Tensor]) -> None:
        pass


class Unseeded(Centered):
    """A wrong strategy: its batches follow from no step."""

    def compute(self, step: int) -> Tensor:
        return descend(self.model(torch.randn(4, 3)).square().mean())


STRATEGIES: dict[str, Callable[[nn.Module], Strategy]] = {
    "objective": lambda model: Objective(lambda x: (model(x) - 1).square().mean(), lambda step: [batch(step)]),
    "centered": Centered,
}


class Stop(Hooks):
    def __init__(self, after: int) -> None:
        self.after, self.step = after, 0

    def updated(self, step: int) -> None:
        self.step = step

    @property
    def stopped(self) -> bool:
        return self.step >= self.after


def train(build: Callable[[nn.Module], Strategy], folder: Path, stop_after: int = STEPS + 1) -> Tensor:
    """Train up to ``stop_after`` steps, from the last checkpoint if there is one; return the weights."""
    torch.manual_seed(0)
    model, watch = nn.Linear(3, 3), Watch(torch.device("cpu"))
    watch.start(torch.tensor(10.0), 1e6)
    loop = StepLoop(
        model, build(model), Optimizer(model, TrainingConfig(lr=0.01), lambda step: 1.0), watch, STEPS,
        [Stop(stop_after)], look=lambda step: step % 4 == 0, checkpoints=Checkpoints(folder, {}), cadence=Cadence(2),
    )  # fmt: skip
    loop.resume()
    torch.manual_seed(loop.step)
    loop.run()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def resumes_to_the_same_bits(build: Callable[[nn.Module], Strategy], folder: Path) -> bool:
    whole = train(build, folder / "whole")
    cut = train(build, folder / "cut", CUT)
    again = train(build, folder / "cut")
    assert not torch.equal(cut, whole)
    return torch.equal(again, whole)


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_interrupted_run_equals_a_whole_one(name: str, tmp_path: Path) -> None:
    assert resumes_to_the_same_bits(STRATEGIES[name], tmp_path)


@pytest.mark.parametrize("wrong", [Forgetful, Unseeded])
def test_a_wrong_strategy_is_noticed(wrong: type[Strategy], tmp_path: Path) -> None:
    assert not resumes_to_the_same_bits(wrong, tmp_path)
