"""Random damped waves and decays with noise, such that their modes can be told from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from stablessm.constructions import ExponentialSum


@dataclass(frozen=True)
class Noisy:
    """Samples of a sum with white noise."""

    times: np.ndarray
    values: np.ndarray
    truth: ExponentialSum
    sigma: float
    arguments: dict[str, Any]
    """Of exponential_sum."""

    @property
    def clean(self) -> np.ndarray:
        return self.truth(self.times)


def draw(
    seed: int, *, is_complex: bool = False, longest: int = 5000, shortest: int = 50, bursts: bool = False
) -> Noisy:
    """1 to 5 modes, SNR 0 to 60 dB, regular, random, geometric times or gaps, such that standard errors are small.

    With ``bursts``, the times lie in five short bursts at random times.
    """
    rng = np.random.default_rng(seed)
    while True:
        n = int(np.exp(rng.uniform(np.log(shortest), np.log(longest))))
        kind = rng.choice(["regular", "random", "geometric", "gaps"], p=[0.55, 0.2, 0.15, 0.1])
        dt = float(np.exp(rng.uniform(-3, 3)))
        times = (
            dt
            * {
                "regular": np.arange(float(n)),
                "random": np.sort(rng.uniform(0, n, n)),
                "geometric": np.geomspace(0.1, n / 3, n),
                "gaps": np.sort(rng.choice(int(1.6 * n), n, replace=False)).astype(float),
            }[str(kind)]
        )
        if bursts:
            kind, parts = "bursts", rng.uniform(0, 0.95 * n, (5, 1)) + rng.uniform(0, 0.05 * n, (5, n // 5))
            times = dt * np.sort(parts, axis=None)
        length, count = times[-1] - times[0], rng.integers(1, 6)
        decays = np.exp(rng.uniform(0, np.log(60), count)) / length
        seen = np.array([(times - times[0] < 3 / a).sum() * np.pi / min(3 / a, length) for a in decays])
        band = np.full(count, np.pi / dt) if kind in ("regular", "gaps") else seen
        waves = np.ones(count, dtype=bool) if is_complex else rng.random(count) < 0.6
        frequencies = rng.uniform(0.02, 0.9, count) * band * waves
        if is_complex:
            frequencies *= rng.choice([-1, 1], count)
        rates = -decays + 1j * frequencies
        phases = np.where(waves, np.exp(2j * np.pi * rng.random(count)), 1.0)
        weights = rng.uniform(0.3, 2, count) * rng.choice([-1, 1], count) * phases
        steps = int(np.ceil(times[-1] / dt))
        truth = ExponentialSum(rates, weights, dt, steps, "continuous", is_complex=is_complex)
        clean = truth(times)
        sigma = float(np.sqrt(np.mean(np.abs(clean) ** 2) / (1 + is_complex))) * 10 ** (-rng.uniform(0, 3))
        if not _told(truth, times, sigma):
            continue
        noise = rng.standard_normal(len(times)) + (1j * rng.standard_normal(len(times)) if is_complex else 0)
        arguments: dict[str, Any] = {"dt": dt, "time": "continuous", "norm": "l2"}
        if kind != "regular":
            arguments["times"] = times
        return Noisy(times, clean + sigma * noise, truth, sigma, arguments)


def _jacobian(rates: np.ndarray, weights: np.ndarray, times: np.ndarray, is_complex: bool) -> tuple[np.ndarray, list]:
    """Of all parameters, and of which mode each is: its decay, frequency and weight."""
    columns, owners = [], []
    for i, (rate, weight) in enumerate(zip(rates, weights, strict=True)):
        mode = np.exp(rate * times)
        parts = [times * mode * weight, mode]
        if is_complex or rate.imag:
            parts += [1j * part for part in parts]
        columns += parts
        owners += [(i, k % 2) for k in range(len(parts))]
    matrix = np.stack(columns, axis=1)
    return (np.concatenate([matrix.real, matrix.imag]) if is_complex else matrix.real), owners


def _told(truth: ExponentialSum, times: np.ndarray, sigma: float) -> bool:
    matrix, owners = _jacobian(truth.rates + 0j, truth.weights + 0j, times, truth.is_complex)
    scale = np.linalg.norm(matrix, axis=0)
    if np.linalg.cond(matrix / scale) > 1e6:
        return False
    errors = sigma * np.linalg.norm(np.linalg.pinv(matrix / scale), axis=1) / scale
    sizes = [0.2 * abs(truth.weights[i]) if linear else 0.25 * -truth.rates[i].real for i, linear in owners]
    return bool((errors < sizes).all())


def from_truth(noisy: Noisy) -> np.ndarray:
    """The values of a nonlinear least-squares fit of all parameters by SciPy, started at the truth."""
    truth, times = noisy.truth, noisy.times
    rates, weights = truth.rates + 0j, truth.weights + 0j
    turns = np.full(len(rates), True) if truth.is_complex else rates.imag != 0

    def values(p: np.ndarray) -> np.ndarray:
        log_decay, frequency, re, im = p.reshape(4, -1)
        moved = rates.real * np.exp(log_decay) + 1j * (rates.imag - frequency * rates.real * turns)
        found = np.exp(times[:, None] * moved) @ (re + 1j * im * turns)
        return found if truth.is_complex else found.real

    def residual(p: np.ndarray) -> np.ndarray:
        left = (values(p) - noisy.values) / noisy.sigma
        return np.concatenate([left.real, left.imag]) if truth.is_complex else left

    start = np.concatenate([0 * rates.real, 0 * rates.real, weights.real, weights.imag])
    return values(least_squares(residual, start, x_scale="jac", max_nfev=60).x)
