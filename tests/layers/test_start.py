"""Where a layer starts: states of variance one, however slow or fast its modes are."""

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
