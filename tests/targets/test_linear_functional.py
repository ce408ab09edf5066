"""The first targets do what their kernels say."""

from __future__ import annotations

import pytest
import torch

from stablessm import ArgumentError
from stablessm.targets import LinearFunctional, PeakHold

KERNELS = {
    "polynomial": (LinearFunctional("polynomial", exponent=1.5, dt=0.5), lambda t: (1 + t) ** -1.5),
    "exponential": (LinearFunctional("exponential", rate=0.3, dt=0.5), lambda t: torch.exp(-0.3 * t)),
    "function": (LinearFunctional(lambda t: t.cos(), dt=0.5), torch.cos),
}


@pytest.mark.parametrize("name", KERNELS)
def test_output_is_the_sum_of_what_came_before(name: str) -> None:
    target, rho = KERNELS[name]
    x = torch.randn(3, 20, 1, dtype=torch.float64)
    times = 0.5 * torch.arange(20, dtype=torch.float64)
    y = target(x)
    for k in (0, 7, 19):
        expected = 0.5 * (rho(times[: k + 1]).flip(0)[:, None] * x[:, : k + 1]).sum(1)
        torch.testing.assert_close(y[:, k], expected)
    torch.testing.assert_close(target.kernel(times), rho(times)[:, None, None])
    assert target(x.float()).dtype == torch.float32


def test_a_constant_input_gives_the_integral_of_the_kernel() -> None:
    y = LinearFunctional("exponential", rate=2.0, dt=1e-3)(torch.ones(1, 10_000, 1, dtype=torch.float64))
    assert y[0, -1, 0] == pytest.approx(0.5, rel=2e-3)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"kernel": "gaussian"}, "kernel"),
        ({"kernel": "polynomial", "exponent": 0.0}, "exponent"),
        ({"kernel": "exponential", "rate": -1.0}, "rate"),
        ({"kernel": "polynomial", "dt": float("nan")}, "dt"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, named: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{named}:"):
        LinearFunctional(**arguments)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"x: expected shape \(batch, time, 1\)"):
        LinearFunctional("polynomial")(torch.zeros(1, 5, 2))


def test_peak_hold_never_falls_and_forgets_nothing() -> None:
    x = torch.randn(4, 50, 2)
    y = PeakHold()(x)
    assert (y.diff(dim=1) >= 0).all()
    assert (y >= 0).all()
    torch.testing.assert_close(y[:, -1], x.amax(1).clamp(min=0))
