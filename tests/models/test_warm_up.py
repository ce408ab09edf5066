"""A model is as it was after it has been warmed up."""

from __future__ import annotations

import pytest
import torch

import stablessm as ssm
from stablessm import ArgumentError


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda: ssm.S4D(4, 3), (2, 9, 4)),
        (lambda: ssm.LanguageModel(20, d_model=8, n_layers=1, d_state=2, dropout=0.5), [(2, 9), (1, 3)]),
        (lambda: ssm.SequenceClassifier(3, d_input=2, d_model=8, n_layers=1, d_state=2, norm="batch"), [[2, 9, 2]]),
        (lambda: torch.nn.GRU(3, 4), (5, 6, 3)),
        (lambda: ssm.RealSSM(2, 3, 2).double().requires_grad_(False), (1, 4, 2)),
    ],
)
def test_nothing_changes(make, shapes):
    model = make()
    calls: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, args: calls.append(tuple(args[0].shape)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    ssm.warm_up(model, shapes)
    assert torch.equal(torch.rand(2), expected)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert calls == [tuple(shape) for shape in ([shapes] if isinstance(shapes[0], int) else shapes)]


@pytest.mark.parametrize("shapes", [[(2, 0, 4)], ["ab"], [(2, 1.5, 4)], (2, True, 4), [], 5, None, "ab", [()]])
def test_shapes_are_checked(shapes):
    with pytest.raises(ArgumentError, match="shapes"):
        ssm.warm_up(ssm.S4D(4, 3), shapes)
