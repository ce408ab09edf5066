"""Kernels against other ways to write them, and their norms against quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special

from stablessm import ArgumentError
from stablessm.targets import kernels
from stablessm.targets.kernels import Airy, Exponential, Kernel, Polynomial, Shift, Sine, TwoPart

PLAIN = {
    Exponential(-math.log(0.9)): lambda t: 0.9**t,  # IAT eq. 109
    Polynomial(1.1): lambda t: 1 / (t + 1) ** 1.1,
    kernels.RELEASED: lambda t: 1 / (1 + 0.1 * t) ** 1.1,  # design, erratum 7
    TwoPart(): lambda t: np.exp(-t) + np.exp(-((t - 9) ** 2)),
    Shift(4.0, 2.0): lambda t: np.interp(t, [2, 4, 6], [0, 0.5, 0]),
    Sine(0.2, 3.0): lambda t: np.imag(np.exp((-0.2 + 3j) * t)),
    # another representation of Ai, by Bessel functions, for t below the delay
    Airy(30.0): lambda t: (
        np.sqrt(30 - t) / 3 * (special.jv(1 / 3, (u := 2 / 3 * (30 - t) ** 1.5)) + special.jv(-1 / 3, u))
    ),
}


@pytest.mark.parametrize("kernel", PLAIN, ids=repr)
def test_values(kernel: Kernel) -> None:
    t = np.linspace(0, 29, 300)
    ours = kernel(torch.from_numpy(t))
    assert ours.dtype == torch.float64
    assert kernel(torch.ones(2)).dtype == torch.float32
    np.testing.assert_allclose(ours, PLAIN[kernel](t), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "kernel",
    [
        Exponential(0.3), Polynomial(8.0, 0.7), Shift(3.0, 0.5), TwoPart(0.7, 2.0, 3.0), Sine(0.3, 2.0), Sine(3.0, 0.5),
        Airy(0.5), Airy(2.3381), Airy(2.34), Airy(6.0), Airy(15.0),
    ],
    ids=repr,
)  # fmt: skip
def test_l1_norm(kernel: Kernel) -> None:
    edges = np.linspace(0, 120, 24_001)  # pieces so small that a kink costs nothing
    nodes, weights = np.polynomial.legendre.leggauss(8)
    t = edges[:-1, None] + (nodes + 1) / 2 * np.diff(edges)[:, None]
    value = (kernel(torch.from_numpy(t)).abs().numpy() @ weights).sum() * 0.005 / 2
    assert kernel.l1_norm == pytest.approx(value, rel=1e-6)


def test_infinite_norm() -> None:
    assert Polynomial(1.0).l1_norm == math.inf
    assert integrate.quad(lambda t: (1 + t) ** -1.1, 0, np.inf)[0] == pytest.approx(Polynomial(1.1).l1_norm)


@pytest.mark.parametrize("kernel", [Exponential, Polynomial, Shift, TwoPart, Airy, Sine])
def test_options_are_positive(kernel: type[Kernel]) -> None:
    option = next(iter(kernel.__dataclass_fields__))
    for value in (0.0, -1.0, math.inf, math.nan, None):
        with pytest.raises(ArgumentError, match=f"^{option}: expected a finite number above 0"):
            kernel(**{option: value})
