"""Controlled Lotka–Volterra against a plain loop and an ODE solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate

from stablessm import ArgumentError
from stablessm.targets import LotkaVolterra


def test_lotka_volterra_by_euler_as_published() -> None:
    target = LotkaVolterra()
    x = torch.randn(2, 2048, 1, dtype=torch.float64)
    y = target(x)
    for batch in range(2):
        z1, z2 = 1.0, 0.5
        for k in range(2048):
            u = x[batch, k, 0].item()
            z1, z2 = z1 + 0.0075 * z1 * (1 - 0.6 * z2), z2 + 0.0075 * (-z2 * (1 - 0.3 * z1) + u)
        assert y[batch, -1].tolist() == pytest.approx([z1, z2], rel=1e-9)


def test_lotka_volterra_by_runge_kutta_is_the_differential_equation() -> None:
    steps, dt = 400, 0.0375
    y = LotkaVolterra(solver="rk4", dt=dt)(torch.full((1, steps, 1), 0.2, dtype=torch.float64))

    def velocity(_: float, z: np.ndarray) -> list[float]:
        return [z[0] * (1 - 0.6 * z[1]), -z[1] * (1 - 0.3 * z[0]) + 0.2]

    times = dt * np.arange(1, steps + 1)
    exact = integrate.solve_ivp(velocity, (0, times[-1]), [1.0, 0.5], t_eval=times, rtol=1e-10, atol=1e-12).y.T
    np.testing.assert_allclose(y[0], exact, atol=2e-6)


def test_lotka_volterra_started_at_rest_is_time_homogeneous() -> None:
    target = LotkaVolterra(start=(1 / 0.3, 1 / 0.6), dt=0.05)
    x = torch.rand(1, 50, 1, dtype=torch.float64)
    still = torch.zeros(1, 20, 1, dtype=torch.float64)
    torch.testing.assert_close(target(still), torch.tensor([1 / 0.3, 1 / 0.6]).double().expand(1, 20, 2))
    torch.testing.assert_close(target(torch.cat([still, x], 1))[:, 20:], target(x))


def test_wrong_lotka_volterra_arguments_are_named() -> None:
    for options in ({"a": 0.0}, {"solver": "heun"}, {"start": (1.0,)}):
        with pytest.raises(ArgumentError, match=f"^{next(iter(options))}:"):
            LotkaVolterra(**options)
