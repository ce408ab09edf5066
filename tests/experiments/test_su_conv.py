"""The bounds that su-conv compares with are right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm.constructions import ExponentialSum
from stablessm.experiments.ssm_ua.conv import jackson, stages

kernels = st.builds(
    lambda a, b, p: lambda t: np.exp(-a * t) * (1 + b * np.cos(p * t)) / (1 + t),
    st.floats(1, 3),
    st.floats(0, 1),
    st.floats(0, 2),
)


def test_hankel_values_of_a_power_law():
    """Known for i, j = 0 … 999, which takes 1999 samples; on the samples of a horizon alone they are smaller."""
    expected = [1.9, 0.36, 0.044, 4.3e-3, 3.8e-4, 3.1e-5, 2.3e-6, 1.6e-7, 1.0e-8]
    np.testing.assert_allclose(stages.hankel_values("(1+t)**-1.1", 1998)[:17:2], expected, rtol=0.05)


@settings(max_examples=15)
@given(kernels, st.integers(1, 3), st.integers(0, 6))
def test_there_are_sums_within_the_jackson_bound(rho, alpha, more):
    """Interpolation is worse than the best polynomial by no more than 1 + the Lebesgue constant."""
    order = alpha + 1 + more
    bound = jackson.bound(jackson.derivatives(rho, alpha), np.array([order, alpha]))
    assert math.isinf(bound[1])
    found = min(jackson.polynomial_error(rho, alpha, beta, order) for beta in np.linspace(0.1, 0.95, 8))
    assert found <= (2 + 2 / math.pi * math.log(order)) * bound[0]


@settings(max_examples=15)
@given(kernels, st.integers(1, 3), st.floats(0.1, 0.9), st.floats(1e-3, 1e3))
def test_gamma_has_no_unit_of_time(rho, alpha, beta, unit):
    rows = jackson.derivatives(rho, alpha)
    assert jackson.gamma(rows, beta * unit, unit) == pytest.approx(jackson.gamma(rows, beta, 1.0), rel=1e-9)


def test_the_bound_does_not_hold_with_the_printed_factor():
    """Equation 19: were there a C with R(m) ≤ C γ / (β m^α), then not in every unit of time."""
    rho = jackson.KERNELS["1/cosh"]
    rows = jackson.derivatives(rho, 1)
    error = jackson.polynomial_error(rho, 1, 0.8, 4)  # the same in every unit
    constants = [error * 4 * 0.8 * unit / jackson.gamma(rows, 0.8 * unit, unit) for unit in (1.0, 1e3, 1e6)]
    np.testing.assert_allclose(np.array(constants) / constants[0], [1, 1e3, 1e6], rtol=1e-9)


def test_l1_distance():
    es = ExponentialSum(np.array([-1.0]), np.array([1.0]), dt=0.05, horizon=100, time="continuous")
    assert stages.l1_distance(es, lambda t: 3 * np.exp(-t)) == pytest.approx(2, rel=1e-4)
    slow = ExponentialSum(np.array([-1e-3]), np.array([1.0]), dt=0.05, horizon=100, time="continuous")
    assert stages.l1_distance(slow, np.zeros_like) == pytest.approx(1000, rel=1e-4)
