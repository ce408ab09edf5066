"""The stages of ``su-conv``: errors of fitted kernels for several numbers of states and tolerances, errors of outputs,
convergence rates, and expected losses that are compared with the losses of trained models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stablessm.constructions import ExponentialSum, FitError, exponential_sum
from stablessm.constructions.sums.expression import parse
from stablessm.experiments.frame import Run, stage
from stablessm.experiments.ssm_ua.conv import jackson

KERNELS = {
    "power 0.5": "(1+t)**-0.5",
    "power 1.1": "(1+t)**-1.1",
    "power 1.5": "(1+t)**-1.5",
    "power 2": "(1+t)**-2",
    "three exponentials": "0.5*exp(-t/5) + 0.3*exp(-t/50) + 0.2*exp(-t/500)",
    "stretched exponential": "exp(-sqrt(t))",
    "damped cosine": "exp(-t/50)*cos(t/2)",
    "airy": "airy(t/10 - 6)",
    "shift": "where(t == 50, 1, 0)",
}
TRAINED = {"as in the text": "(1+t)**-1.1", "as released": "(1+0.1*t)**-1.1"}
PROOF = "power 1.1"
"""The kernel that is also approximated by polynomials in e^(-t), as in the proof."""
BETA = 0.8
"""The rate β in the construction of the proof and in γ."""
UNIT = 1e-3
"""Another unit of time, in which γ is computed again."""


@dataclass(frozen=True)
class ConvConfig:
    """Settings of ``su-conv``: kernels, numbers of states, tolerances, and thresholds. The paper gives no values."""

    kernels: tuple[str, ...] = tuple(KERNELS)
    horizon: int = 1000
    orders: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20)
    tolerances: tuple[float, ...] = (1e-2, 1e-4, 1e-6, 1e-8)
    alphas: tuple[int, ...] = (1, 2, 3)
    jackson_orders: tuple[int, ...] = (2, 3, 4, 5, 6, 8, 10, 12)
    jackson_steps: int = 800
    trained_orders: tuple[int, ...] = (2, 4, 6, 8, 12)
    trained_horizon: int = 100
    rounding: float = 1e-12
    """Errors up to this value count as rounding errors of double precision."""
    allowance: float = 1e-9
    """Relative amount by which a computed error may be below a lower bound."""
    moved: float = 0.01
    """A number depends on the unit of time if its relative change with the unit is at least this value."""


@stage(lambda name: f"order-{slug(name)}", over=lambda config: config.kernels)
def by_order(config: ConvConfig, run: Run, name: str) -> Mapping[str, Any]:
    """Approximate the kernel by sums of m exponentials, for each number m of states. Return the errors of the sums that
    this library fits and, for one kernel, the errors of the sums in the proof of the paper. Also return the Hankel
    singular values of the kernel.
    """
    sums = [attempt(KERNELS[name], config.horizon, order=order) for order in config.orders]
    found: dict[str, Any] = {key: [getattr(es, key) for es in sums] for key in ("order", "error", "l1_error")}
    if name == PROOF:
        found["proof"] = [proof_error(name, config.horizon, order) for order in config.orders]
    return found | {"sigma": hankel_values(KERNELS[name], config.horizon)}


@stage(lambda name: f"tolerance-{slug(name)}", over=lambda config: config.kernels)
def by_tolerance(config: ConvConfig, run: Run, name: str) -> Mapping[str, Any]:
    """Fit a sum of exponentials to the kernel at each tolerance. Return for each sum the number of exponentials, its
    errors, and the error of the output of a layer that has this sum as its kernel.
    """
    sums = [attempt(KERNELS[name], config.horizon, tol=tolerance) for tolerance in config.tolerances]
    found = {key: [getattr(es, key) for es in sums] for key in ("order", "error", "l1_error", "rounding")}
    return found | {"layer_error": [layer_error(es, KERNELS[name], config.horizon) for es in sums]}


def attempt(kernel: str, horizon: int, **bound: Any) -> ExponentialSum:
    """Fit a sum of exponentials to a kernel and return the sum. ``bound`` is the argument ``order`` or ``tol`` of
    :func:`~stablessm.constructions.exponential_sum`; if no sum meets the tolerance, return the best sum that was found.
    """
    try:
        return exponential_sum(kernel, horizon, **bound)
    except FitError as error:
        return error.best


def hankel_values(kernel: str, horizon: int) -> np.ndarray:
    """Return the singular values of the Hankel matrix of a kernel ρ: the matrix with the entries ρ(i + j) for i, j = 0
    … horizon/2.
    """
    from scipy.linalg import hankel, svdvals

    values, half = parse(kernel)(np.arange(horizon + 1)), horizon // 2
    return np.asarray(svdvals(hankel(values[: half + 1], values[half : 2 * half + 1])))


def proof_error(name: str, horizon: int, order: int) -> float:
    """Return the largest error |ρ - ρ̂| over the steps up to the horizon, where ρ̂ is the polynomial in e^(-t) that
    interpolates the kernel ρ at Chebyshev points (SSM-UA, equation 47).
    """
    kernel, times = parse(KERNELS[name]), np.arange(horizon + 1.0)
    ends = [float(np.exp(-float(horizon))), 1.0]
    p = np.polynomial.Chebyshev.interpolate(lambda tau: kernel(-np.log(tau)), order - 1, domain=ends)
    return float(np.abs(kernel(times) - p(np.exp(-times))).max())


def layer_error(es: ExponentialSum, kernel: str, horizon: int) -> float:
    """Return the largest error of the output ŷ of a layer, sup |y - ŷ| / sup |x|, over three inputs x: noise, a step
    and an impulse. The correct output y is the convolution of x with the kernel.
    """
    noise = np.random.default_rng(0).standard_normal(horizon + 1)
    inputs = np.stack([noise / np.abs(noise).max(), np.ones(horizon + 1), np.eye(1, horizon + 1)[0]])
    rho = parse(kernel)(np.arange(horizon + 1))
    exact = np.stack([np.convolve(rho, x)[: horizon + 1] for x in inputs])
    with torch.no_grad():
        y, _ = es.to_layer(map="best", dtype=torch.float64)(torch.from_numpy(inputs)[..., None])
    return float(np.abs(exact - y[..., 0].numpy()).max())


@stage(lambda name: f"rate-{slug(name)}", over=lambda config: jackson.KERNELS)
def rate(config: ConvConfig, run: Run, name: str) -> Mapping[str, Any]:
    """Approximate the kernel ρ in continuous time by sums ρ̂ of m exponentials, for several m, and return a dict.
    ``ours``: the errors ∫ |ρ - ρ̂| dt of the sums that this library fits. ``proof``: the errors of the sums in the
    proof of theorem A.3 of IAT, for each number α of derivatives. ``bound``: the upper bounds of the theorem.
    ``gamma``: its constant γ in two units of time. ``ours_in_other_unit``: the first entry of ``ours``, computed in the
    second unit.
    """
    rho, orders, alphas = jackson.KERNELS[name], np.array(config.jackson_orders), config.alphas
    rows = jackson.derivatives(rho, max(alphas))

    def error(order: int, unit: float) -> float:
        def kernel(t: np.ndarray) -> np.ndarray:
            return unit * np.real(rho(unit * t))

        dt = jackson.END / config.jackson_steps / unit
        return l1_distance(exponential_sum(kernel, config.jackson_steps, order=order, dt=dt, time="continuous"), kernel)

    return {
        "ours": [error(int(m), 1.0) for m in orders],
        "ours_in_other_unit": error(int(orders[0]), UNIT),
        "proof": [[jackson.polynomial_error(rho, a, BETA, int(m)) for m in orders] for a in alphas],
        "bound": [jackson.bound(rows[: a + 1], orders) for a in alphas],
        "gamma": [[jackson.gamma(rows[: a + 1], BETA * u, u) for u in (1.0, UNIT)] for a in alphas],
    }


def l1_distance(es: ExponentialSum, kernel: Any) -> float:
    """Return an upper bound on the distance ∫ |ρ - ρ̂| dt between a kernel ρ and a sum of exponentials ρ̂. For times up
    to four times the horizon of ρ̂, the integral is computed by the trapezoidal rule; for later times, where ρ is
    negligible, a bound on ∫ |ρ̂| dt is added.
    """
    end = 4 * es.horizon * es.dt
    times = np.linspace(0, end, 32 * es.horizon + 1)
    rest = np.abs(es.weights) * np.exp(es.rates.real * end) / -es.rates.real
    return float(np.trapezoid(np.abs(kernel(times) - es(times)), times) + rest.sum())


@stage("trained")
def trained(config: ConvConfig, run: Run) -> Mapping[str, Any]:
    """Fit sums of exponentials ρ̂ with several numbers of terms to kernels ρ. Return for each sum the expected square
    error of the last output of the layer with this kernel, Σ (ρ - ρ̂)², if the input is white noise of variance 1.
    """
    times, losses = np.arange(config.trained_horizon + 1.0), {}
    for name, kernel in TRAINED.items():
        sums = [attempt(kernel, config.trained_horizon, order=order) for order in config.trained_orders]
        losses[slug(name)] = [((es(times) - parse(kernel)(times)) ** 2).sum() for es in sums]
    return losses


def slug(name: str) -> str:
    """Return the name in the form used in file names: spaces become hyphens, and slashes are removed."""
    return name.replace(" ", "-").replace("/", "")
