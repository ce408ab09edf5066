"""Linear functionals do what their kernels say."""

from __future__ import annotations

import pytest
import torch

from stablessm import ArgumentError
from stablessm.targets import LinearFunctional, kernels

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
        ({"kernel": "polynomial", "exponent": "1.1"}, "exponent"),
        ({"kernel": "exponential", "exponent": 1.1}, "exponent"),
        ({"kernel": "polynomial_released", "rate": 0.1}, "rate"),
        ({"kernel": torch.sin, "rate": 0.1}, "rate"),
        ({"kernel": 3}, "kernel"),
        ({"kernel": "shift", "delay": 1.0, "width": 2.0}, "width"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, named: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{named}:"):
        LinearFunctional(**arguments)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"x: expected shape \(batch, time, 1\)"):
        LinearFunctional("polynomial")(torch.zeros(1, 5, 2))


def test_a_function_must_answer_in_the_shape_of_the_times() -> None:
    with pytest.raises(ArgumentError, match=r"kernel: expected values of the times' shape \(5,\), got shape \(5, 1\)"):
        LinearFunctional(lambda t: t[:, None])(torch.zeros(1, 5, 1))
    with pytest.raises(ArgumentError, match="got float"):
        LinearFunctional(lambda t: 1.0)(torch.zeros(1, 5, 1))


@pytest.mark.parametrize("dt", [1.0, 0.1, 0.3])
def test_a_shift_is_the_input_some_time_ago(dt: float) -> None:
    x = torch.randn(2, 60, 1, dtype=torch.float64)
    y = LinearFunctional("shift", delay=7 * dt, dt=dt)(x)
    torch.testing.assert_close(y[:, 7:], x[:, :-7])
    torch.testing.assert_close(y[:, :7], torch.zeros_like(y[:, :7]))
    between = LinearFunctional("shift", delay=7.25 * dt, dt=dt)(x)
    torch.testing.assert_close(between[:, 8:], 0.75 * x[:, 1:-7] + 0.25 * x[:, :-8])


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_the_l1_norm_is_the_largest_output(name: str) -> None:
    """Reached by the signs of the kernel, backwards; sampled, and cut off where little is left."""
    target = LinearFunctional(name, dt=0.01, **({"rate": 1.0, "exponent": 3.0} if name == "polynomial" else {}))
    times = 0.01 * torch.arange(10_000, dtype=torch.float64)
    rho = target.kernel(times)[:, 0]
    y = target(rho.sign().flip(0)[None])[0, -1, 0]
    tail = 100 * 11**-0.1 if name == "polynomial_released" else 0.5 * 101**-2 if name == "polynomial" else 0.0
    assert target.l1_norm is not None
    assert y + tail == pytest.approx(target.l1_norm, rel=1e-3, abs=6e-3)


def test_equal_targets_are_equal_and_say_what_they_are() -> None:
    target = LinearFunctional("polynomial", exponent=1.5, dt=1)
    assert target == LinearFunctional(kernels.Polynomial(1.5), dt=1.0)
    assert repr(target) == "LinearFunctional(rho=Polynomial(exponent=1.5, rate=1.0), dt=1.0)"
    assert isinstance(target.dt, float)  # instruments take a whole number for a count of steps
    assert LinearFunctional(torch.sin).l1_norm is None
