"""The rules of st-rates, and the rates of single weights in a stack."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from stablessm import reparam
from stablessm.experiments.stable_ssm.language_study import SCHEMES
from stablessm.experiments.stable_ssm.rates.claims import survival
from stablessm.experiments.stable_ssm.stacked_language import log_timescale, mobility
from stablessm.training import TrainingConfig
from stablessm.training.optimizer import StackedOptimizer
from stablessm.training.stack import Stack

CONFIG = SimpleNamespace(rates=(0.1, 0.2, 0.3), seeds=2)


def trained(*steps: int) -> dict[str, np.ndarray]:
    """Return trainings that survive that many rates, one number per seed."""
    alive = np.arange(3)[:, None] < np.array(steps)
    return {"diverged": np.where(alive, -1, 7), "final": np.where(alive, 1.0, 2.0), "entropy": np.array(2.0)}


@pytest.mark.parametrize(
    ("best", "other", "verdict"),
    [
        ((3, 3), (2, 2), "reproduced"),
        ((2, 3), (1, 1), "reproduced"),
        ((3, 2), (2, 1), "not reproduced"),  # no seed apart
        ((1, 1), (2, 2), "not reproduced"),
        ((3, 3), (3, 3), "inconclusive"),
        ((0, 0), (0, 0), "inconclusive"),
    ],
)
def test_a_map_is_ahead_only_if_every_seed_is(best, other, verdict):
    found = survival(CONFIG, {"best": trained(*best), "other": trained(*other)})
    assert found.ahead([("best", "other")]) == verdict


def test_no_less_than_each_and_clearly_more_than_one_is_partly():
    found = survival(CONFIG, {"best": trained(2, 2), "same": trained(2, 2), "less": trained(1, 1)})
    assert found.ahead([("best", "same"), ("best", "less")]) == "partly"


def test_the_largest_surviving_rate_is_below_the_first_failure():
    late = trained(3, 3)
    late["diverged"][1] = 5  # the middle rate fails, the largest does not
    found = survival(CONFIG, {"late": late, "none": trained(0, 0), "apart": trained(1, 3)})
    assert [found.edge(map) for map in ("late", "none", "apart")] == ["0.1", "0", "0.1 (0.1 to 0.3)"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_steps_divided_by_the_mobility_move_every_time_scale_equally(scheme):
    name, options = SCHEMES[scheme]
    map = reparam.get(name, time="discrete", **options)
    w = map.weights(torch.exp(-1 / torch.logspace(0.5, 3, 7, dtype=torch.float64)))
    step = 1e-4 / mobility(map, w)
    moved = (log_timescale(map(w + step)) - log_timescale(map(w))).abs()
    assert torch.allclose(moved, torch.full_like(moved, 1e-4), rtol=0.01)


def test_a_scaled_weight_of_a_stack_moves_as_with_its_own_rate():
    def trained(rate: float, scale: float) -> torch.Tensor:
        torch.manual_seed(0)
        stack = Stack([nn.Linear(3, 2) for _ in range(2)], torch.device("cpu"))
        scales = {"weight": torch.full((2, 1, 1), scale)}
        config = TrainingConfig(lr=1.0, weight_decay=0.0, clip=None, warmup=0.0)
        optimizer = StackedOptimizer(stack, config, lambda step: 1.0, [rate, rate], scales)
        x = torch.arange(12.0).view(4, 3)
        for step in range(3):
            optimizer.clear()
            stack.call(lambda model, x: (model(x) ** 2).sum(), x, shared=True).sum().backward()
            optimizer.step(step, torch.zeros(2))
            stack.get_parameter("bias").data.zero_()
        return stack.get_parameter("weight").detach()

    assert torch.allclose(trained(0.01, 3.0), trained(0.03, 1.0))
    assert not torch.allclose(trained(0.01, 3.0), trained(0.01, 1.0))
