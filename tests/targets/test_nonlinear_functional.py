"""The nonlinear functional has the published memory."""

from __future__ import annotations

import math

import pytest
import torch

from stablessm import ArgumentError
from stablessm.targets import LinearFunctional, NonlinearFunctional


def test_the_nonlinear_functional_has_the_published_memory() -> None:
    """IAT section 4.3: C / (t + 1)^1.5, and appendix C: the polynomial is 1 at t = 0."""
    t = torch.linspace(0, 50, 100, dtype=torch.float64)
    for bound in (0.1, 1.0, 10.0):
        ratio = NonlinearFunctional(dt=0.1).memory(t, bound) * (t + 1) ** 1.5
        torch.testing.assert_close(ratio, torch.full_like(t, math.tanh(bound) / bound))
    x = torch.randn(2, 30, 1, dtype=torch.float64)
    torch.testing.assert_close(NonlinearFunctional()(x), LinearFunctional("polynomial", exponent=1.5)(x.tanh()))
    steep = NonlinearFunctional("exponential", rate=2.0, nonlinearity=lambda x: x**3)
    torch.testing.assert_close(steep.memory(t, 3.0), 9 * torch.exp(-2 * t))
    for wrong in ("sigmoid", torch.cos):
        with pytest.raises(ArgumentError, match=r"^nonlinearity"):
            NonlinearFunctional(nonlinearity=wrong)
