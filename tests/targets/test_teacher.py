"""Teachers settle, as slowly as they are told to."""

from __future__ import annotations

import pytest
import torch

from stablessm import ArgumentError
from stablessm.targets import TeacherRNN


@pytest.mark.parametrize("activation", ["tanh", "hardtanh", "relu", "linear"])
def test_every_teacher_settles(activation: str) -> None:
    """Close to the largest step it allows, from the strongest of inputs."""
    for seed in range(3):
        teacher = TeacherRNN(8, seed=seed, activation=activation, timescales=(1.0, 4.0), dt=0.95)
        assert (1 + 0.95 * teacher.layer.eigenvalues()).abs().max() < 1
        y = teacher(torch.tensor([0.1, 3.0, -50.0], dtype=torch.float64)[:, None, None].expand(-1, 400, 1))
        assert y.diff(dim=1)[:, -1].abs().max() < 1e-8
    with pytest.raises(ArgumentError, match=r"^dt: expected less than 1, where Euler"):
        TeacherRNN(24, timescales=(1.0, 4.0), dt=1.0)


def test_time_scales_set_how_slow_a_teacher_is() -> None:
    slowest = []
    for longest in (2.0, 20.0, 200.0):
        teacher = TeacherRNN(32, seed=1, timescales=(1.0, longest))
        rates = -teacher.layer.eigenvalues().real
        assert rates.min() >= 1 / longest - 1e-5
        assert rates.max() <= 1 + 1e-5
        moved = teacher(torch.ones(1, 600, 1, dtype=torch.float64)).diff(dim=1).abs().flatten()
        slowest.append(int((moved > 0.01 * moved.max()).nonzero().max()))
    assert slowest[0] < slowest[1] < slowest[2]


def test_teachers_differ_by_seed_and_have_the_published_size() -> None:
    x = torch.randn(1, 20, 1)
    first, second = (TeacherRNN(seed=seed)(x) for seed in (0, 1))
    assert not torch.allclose(first, second)
    assert TeacherRNN().layer.M.shape == (256, 256)
    assert not any(p.requires_grad for p in TeacherRNN().layer.parameters())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"activation": "sigmoid"}, "activation"),
        ({"activation": "gelu"}, "activation"),
        ({"timescales": (2.0, 1.0)}, "timescales"),
        ({"oscillation": -1.0}, "oscillation"),
        ({"d_state": 0}, "d_state"),
    ],
)
def test_wrong_teachers_are_named(options: dict, named: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{named}:"):
        TeacherRNN(**options)
