"""Stacks of models: their optimizer is AdamW for each, and a graph of their objective is the objective."""

from __future__ import annotations

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn.utils import clip_grad_norm_
from training_task import Repeated

import stablessm as ssm
from stablessm import ArgumentError, param_groups
from stablessm.training import TrainingConfig, gradient
from stablessm.training.gradient import Objective
from stablessm.training.optimizer import StackedOptimizer
from stablessm.training.stack import Stack

CPU = torch.device("cpu")


class Tied(nn.Module):
    """Two names for one parameter, a buffer that counts calls, and a parameter that is frozen."""

    def __init__(self):
        super().__init__()
        self.layer = ssm.RealSSM(1, 3, 2)
        self.one, self.frozen = nn.Linear(2, 2), nn.Parameter(torch.randn(2), requires_grad=False)
        self.other = nn.Linear(2, 2)
        self.other.weight = self.one.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return self.other(self.one(self.layer(x)[0]).tanh() + self.frozen)


def squares(model, x):
    return model(x).square().mean()


@settings(max_examples=20)
@given(
    st.integers(0, 10**6), st.lists(st.floats(1e-4, 0.1), min_size=1, max_size=4), st.sampled_from([0.0, 0.3]),
    st.sampled_from([None, 0.05]), st.sampled_from([None, 0.2]),
)  # fmt: skip
def test_every_model_of_a_stack_is_trained_as_torch_would(seed, rates, decay, clip, recurrent):
    torch.manual_seed(seed)
    models = [Tied().double() for _ in rates]
    alone = copy.deepcopy(models)
    x = torch.randn(len(rates), 6, 3, 5, 1, dtype=torch.float64)
    stack = Stack(models, CPU)
    config = TrainingConfig(lr=0.01, recurrent_lr=recurrent, weight_decay=decay, clip=clip, warmup=0.3)
    optimizer = StackedOptimizer(stack, config, config.rates(6), rates)
    strategy = Objective(lambda batch: stack.call(squares, batch), lambda step: [x[:, step]])
    for step in range(6):
        optimizer.clear()
        losses = strategy.compute(step)
        assert losses.shape == (len(rates),)
        optimizer.clip()
        optimizer.step(step, torch.zeros(len(rates)))
    for own, model, rate, batches in zip(models, alone, rates, x, strict=True):
        factor = rate / config.lr
        groups = param_groups(model, rate, recurrent_lr=recurrent and factor * recurrent, weight_decay=decay)
        adam, full = torch.optim.AdamW(groups), [group["lr"] for group in groups]
        for step in range(6):
            adam.zero_grad()
            squares(model, batches[step]).backward()
            if clip is not None:
                clip_grad_norm_(model.parameters(), clip)
            for group, lr in zip(adam.param_groups, full, strict=True):
                group["lr"] = lr * config.rates(6)(step)
            adam.step()
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(own.state_dict()[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_skipped_stays_and_the_others_do_not_notice(bad):
    torch.manual_seed(0)
    models = [Tied() for _ in range(3)]
    twins = copy.deepcopy(models)
    before = copy.deepcopy(models[1].state_dict())
    for group, spoilt in ((models, True), (twins, False)):
        stack, config = Stack(group, CPU), TrainingConfig(clip=0.1)
        optimizer = StackedOptimizer(stack, config, config.rates(4))
        for step in range(4):
            optimizer.clear()
            gradient.descend(stack.call(squares, torch.ones(2, 5, 1), shared=True))
            skip = torch.zeros(3)
            if spoilt:
                stack.get_parameter("layer/w").grad[1] = bad
                skip[1] = 1.0
            assert optimizer.clip().isfinite().tolist() == [True, not spoilt, True]
            optimizer.step(step, skip)
    for i in (0, 2):
        assert all(torch.equal(p, q) for p, q in zip(models[i].parameters(), twins[i].parameters(), strict=True))
    assert all(torch.equal(p, before[name]) for name, p in models[1].named_parameters())


def test_a_graph_of_an_objective_is_the_objective(monkeypatch):
    monkeypatch.setattr(gradient, "Replayed", Repeated)
    found = []
    for graph in (False, True):
        torch.manual_seed(0)
        stack = Stack([nn.Linear(2, 1) for _ in range(3)], CPU)
        generator = torch.Generator()

        def batch(step, generator=generator):
            generator.manual_seed(step)
            return [torch.full((4, 2), step + 1.0)]

        def loss(x, stack=stack, generator=generator):
            noisy = x + torch.rand(x.shape, generator=generator)
            losses = stack.call(squares, noisy, shared=True)
            return losses, 2 * losses.detach()

        strategy = Objective(loss, batch, stack.parameters(), graph=graph, generator=generator)
        seen = []
        for step in range(4):
            stack.zero_grad()
            seen += [strategy.compute(step), strategy.noted.clone(), *(p.grad.clone() for p in stack.parameters())]
        found.append(seen)
    torch.testing.assert_close(*found)


def test_models_that_do_not_fit_together():
    for models in ([], [nn.Linear(2, 1), nn.Linear(2, 2)], [nn.Linear(2, 1), nn.Linear(2, 1).double()]):
        with pytest.raises(ArgumentError, match="models: expected"):
            Stack(models, CPU)
