"""Where a layer starts: states of variance one, or moving averages, however slow or fast its modes are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stablessm as ssm
from stablessm import reparam

WIDE = 4096
"""Inputs: the variance of one state, over draws of B, is then one within a few percent."""


def variances(layer: ssm.RealSSM) -> np.ndarray:
    """g² |B|² / (1 - a²) of the weights as they are stored, in more digits than can be lost, wherever |a| < 1."""
    mpmath = pytest.importorskip("mpmath")
    found = []
    with torch.no_grad(), mpmath.workdps(40):
        for number, size in zip(layer.map(layer.w.double()), layer.B.double().square().sum(1), strict=True):
            lam, dt = mpmath.mpf(float(number)), mpmath.mpf(layer.dt)
            if layer.time == "discrete":
                a, g = lam, mpmath.mpf(1)
            elif layer.discretization == "bilinear":
                a, g = (1 + lam * dt / 2) / (1 - lam * dt / 2), dt / (1 - lam * dt / 2)
            else:
                a = mpmath.exp(lam * dt)
                g = dt if layer.discretization == "exponential" else (a - 1) / lam
            if abs(a) < 1:
                found.append(float(float(size) * g**2 / (1 - a**2)))
    return np.array(found)


@settings(max_examples=150)
@given(
    name=st.sampled_from(reparam.names("continuous")),
    method=st.sampled_from(["zoh", "bilinear", "exponential"]),
    step=st.floats(-6, 3),
    rates=st.lists(st.floats(-6, 3), min_size=1, max_size=3),
    explicit=st.booleans(),
)
def test_states_start_with_variance_one_in_continuous_time(name, method, step, rates, explicit) -> None:
    eigenvalues = -(10 ** torch.tensor(rates, dtype=torch.float64))
    eigenvalues = eigenvalues[reparam.get(name).range.holds(eigenvalues)]
    start = {"eigenvalues": eigenvalues} if explicit and len(eigenvalues) else {}
    layer = ssm.RealSSM(WIDE, max(1, len(eigenvalues)), 1, map=name, dt=10**step, discretization=method, **start)
    np.testing.assert_allclose(variances(layer), 1, rtol=0.15)


@settings(max_examples=100)
@given(
    name=st.sampled_from(reparam.names("discrete")),
    gaps=st.lists(st.floats(-7, -0.1), min_size=1, max_size=3),
    explicit=st.booleans(),
)
def test_states_start_with_variance_one_in_discrete_time(name, gaps, explicit) -> None:
    eigenvalues = 1 - 10 ** torch.tensor(gaps, dtype=torch.float64)
    eigenvalues = eigenvalues[reparam.get(name, "discrete").range.holds(eigenvalues)]
    start = {"eigenvalues": eigenvalues} if explicit and len(eigenvalues) else {}
    layer = ssm.RealSSM(WIDE, max(1, len(eigenvalues)), 1, map=name, time="discrete", **start)
    np.testing.assert_allclose(variances(layer), 1, rtol=0.15)


def test_an_eigenvalue_on_the_boundary_starts_like_a_million_steps() -> None:
    layer = ssm.RealSSM(WIDE, 2, 1, map="direct", eigenvalues=torch.tensor([-1.0, 0.0]))
    assert float(layer.B[1].detach().square().sum()) == pytest.approx(1e-6, rel=0.15)


@settings(max_examples=60)
@given(
    continuous=st.booleans(),
    method=st.sampled_from(["zoh", "bilinear"]),
    step=st.floats(-3, 1),
    scales=st.lists(st.floats(0, 4), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
def test_a_constant_input_gives_averages_its_own_size_and_white_noise_less(
    continuous, method, step, scales, seed
) -> None:
    """With ``average``, whatever the time scales; without, a constant input gives states that grow with them."""
    torch.manual_seed(seed)
    steps = 10 ** torch.tensor(scales, dtype=torch.float64)  # time scales in steps
    dt = 10**step
    own = {"dt": dt, "discretization": method} if continuous else {"time": "discrete"}
    eigenvalues = -1 / (dt * steps) if continuous else (-1 / steps).exp()
    layers = [
        ssm.RealSSM(WIDE, len(steps), 1, map="direct", eigenvalues=eigenvalues, average=average, **own).double()
        for average in (True, False)
    ]
    for layer in layers:
        decay, gain = (factor.detach() for factor in layer._discretize(None))
        x = torch.randn(WIDE, dtype=torch.float64)
        constant = gain * (layer.B.detach() @ x) / (1 - decay)  # the limit of h = a h + g B x
        white = gain**2 * layer.B.detach().square().sum(1) / (1 - decay**2)
        if layer.average:
            torch.testing.assert_close(constant, layer.B.detach() @ x, rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(white, (1 - decay) / (1 + decay), rtol=0.15, atol=1e-9)
        else:
            torch.testing.assert_close(white, torch.ones_like(white), rtol=0.15, atol=0)
            grown = ((1 + decay) / (1 - decay)).sqrt()  # up to 141 times for 10,000 steps
            ratio = constant / (layer.B.detach() @ x / layer.B.detach().norm(dim=1))
            torch.testing.assert_close(ratio, grown, rtol=0.15, atol=1e-9)


def test_averages_of_slow_states_keep_their_digits() -> None:
    for name in ("best", "softplus", "exp", "direct"):
        eigenvalues = 1 - 10 ** -torch.tensor([0.5, 3.0, 6.0])
        layer = ssm.RealSSM(1, 3, 1, map=name, time="discrete", average=True, eigenvalues=eigenvalues)
        gain, exact = layer._discretize(None)[1], 1 - layer.map(layer.w.double())
        torch.testing.assert_close(gain.double(), exact, rtol=0.02 if name == "direct" else 1e-5, atol=0)


def test_the_state_of_a_constant_input_is_the_input() -> None:
    layer = ssm.RealSSM(4, 6, 2, average=True, eigenvalues=-1 / torch.tensor([0.5, 1, 2, 5, 20, 50.0]))
    x = torch.randn(1, 1, 4).expand(1, 2000, 4)
    torch.testing.assert_close(layer(x)[1], x[:, 0] @ layer.B.T, rtol=1e-4, atol=1e-5)
