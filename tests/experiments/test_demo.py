"""The demonstration shows what the theory says: the same start, both learn, one survives."""

from __future__ import annotations

import math

import torch

from stablessm.experiments import demo


def test_direct_breaks_where_best_does_not() -> None:
    config = demo.DemoConfig(width=16, length=50, batch=32, steps=150, draws=10)
    direct, best = demo.run(config)
    assert direct.losses[0] == best.losses[0] or math.isclose(direct.losses[0], best.losses[0], rel_tol=1e-4)
    for result in (direct, best):
        assert result.losses[-1] < 0.2 * result.losses[0]
        assert list(result.errors) == list(config.radii)
    assert best.radius == math.inf
    assert direct.radius < 0.1
    assert direct.errors[0.1] > 100 * best.errors[0.1]
    assert (best.eigenvalues < 0).all()


def test_runs_are_reproducible() -> None:
    config = demo.DemoConfig(width=8, length=20, batch=8, steps=5, draws=3)
    first, again = demo.run(config), demo.run(config)
    for one, other in zip(first, again, strict=True):
        assert one.losses == other.losses
        assert torch.equal(one.eigenvalues, other.eigenvalues)
        assert one.errors == other.errors
