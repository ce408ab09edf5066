"""Volterra series against their integrals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stablessm import ArgumentError
from stablessm.targets import LinearFunctional, Volterra
from stablessm.targets.kernels import Exponential
from stablessm.targets.volterra import largest_values


def test_a_volterra_series_is_a_sum_of_products() -> None:
    a, b = Exponential(0.5), Exponential(2.0)
    x = torch.randn(3, 40, 1, dtype=torch.float64)
    first, second = LinearFunctional(a, dt=0.1)(x), LinearFunctional(b, dt=0.1)(x)
    target = Volterra([[a], [a, b], [b, b, "exponential"]], dt=0.1)
    third = second**2 * LinearFunctional("exponential", dt=0.1)(x)
    assert target.order == 3
    torch.testing.assert_close(target(x), first + first * second + third)


def test_a_volterra_double_integral() -> None:
    """The kernel of order 2 written out (SSM-UA eq. 56), against the product of two convolutions."""
    target = Volterra([[Exponential(0.5), Exponential(2.0)]], dt=0.1)
    x = torch.randn(30, dtype=torch.float64)
    t = 0.1 * torch.arange(30, dtype=torch.float64)
    h = torch.exp(-0.5 * t)[:, None] * torch.exp(-2.0 * t)
    past = x.flip(0)
    torch.testing.assert_close(target(x[None, :, None])[0, -1, 0], 0.01 * torch.einsum("ij,i,j->", h, past, past))


def test_volterra_memory_tends_to_its_formula() -> None:
    """e^{-t} (1 + 2 B (1 - e^{-t})) for ρ = e^{-t} in both orders; the step's error halves with the step."""
    kernel, bound, errors = Exponential(1.0), 2.0, []
    for dt in (0.02, 0.01):
        t = dt * torch.arange(round(5 / dt), dtype=torch.float64)
        truth = torch.exp(-t) * (1 + 2 * bound * (1 - torch.exp(-t)))
        errors.append((Volterra([[kernel], [kernel, kernel]], dt=dt).memory(t, bound) - truth).abs().max().item())
    assert errors[0] < 0.1
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.05)


def test_a_volterra_maximum_inside_the_interval() -> None:
    """x (1 - x²) is largest at x = 1/√3; the memory at time 0 of such a series, and later."""
    slope = np.array([[0.0, 1.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0], [0.0, -3.0, 0.0, 0.0]])
    np.testing.assert_allclose(largest_values(slope), [2 / 3**1.5, 0, 3])
    dense = np.random.default_rng(0).normal(size=(20, 6))
    grid = np.linspace(-1, 1, 20_001)
    found = np.abs(np.polynomial.polynomial.polyval(grid, dense.T)).max(1)
    np.testing.assert_allclose(largest_values(dense), found, rtol=1e-6)
    assert (largest_values(dense) >= found * (1 - 1e-12)).all()


def test_wrong_volterra_arguments_are_named() -> None:
    for terms in ([], [[]], ["exponential"], "exponential"):
        with pytest.raises(ArgumentError, match=r"^terms"):
            Volterra(terms)
    with pytest.raises(ArgumentError, match=r"^times: expected multiples of dt = 0\.5, got 0\.75"):
        Volterra([["exponential"]], dt=0.5).memory(torch.tensor([0.5, 0.75]))
    assert Volterra([["exponential"]]).memory(torch.zeros(0)).shape == (0,)
