"""Complex kernels and noisy samples: what ESPRIT, QuTiP and least squares started at the truth make of them."""

from __future__ import annotations

import time
from importlib import util
from typing import Any

import numpy as np
from scipy.linalg import hankel
from scipy.optimize import least_squares

from stablessm.constructions import exponential_sum

STEP, SAMPLES = 0.05, 401
SEEDS = 5
WAVES = (np.array([-0.02 + 1j, -0.005 + 0.3j]), np.array([1.0, 0.5 * np.exp(1j)]))
DECAYS = (np.array([-0.3, -0.02, -0.004 + 0j]), np.array([1.0, 0.6, 0.4 + 0j]))


def _esprit(values: np.ndarray, order: int) -> np.ndarray:
    """Textbook ESPRIT: eigenvalues of the shift of the first left singular vectors of the Hankel matrix."""
    half = len(values) // 2 + 1
    u = np.linalg.svd(hankel(values[:half], values[half - 1 :]))[0][:, :order]
    return np.log(np.linalg.eigvals(np.linalg.lstsq(u[:-1], u[1:], rcond=None)[0]).astype(complex))


def _of_rates(values: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """The sum of these modes (per step) that is nearest in least squares."""
    modes = np.exp(np.outer(np.arange(len(values)), rates))
    return modes @ np.linalg.lstsq(modes, values.astype(complex), rcond=None)[0]


def _qutip(times: np.ndarray, values: np.ndarray, order: int, method: str) -> np.ndarray:
    """A fit of a bath correlation function by QuTiP, evaluated at the times."""
    from qutip.core.environment import BosonicEnvironment

    environment = BosonicEnvironment.from_correlation_function(values, tlist=times)
    fitted, _ = environment.approximate(method, tlist=times, Nr=order, separate=False)
    return np.asarray(fitted.correlation_function(times))


def complex_row(power: float, order: int) -> dict[str, Any]:
    times = STEP * np.arange(SAMPLES)
    values = (1 + 1j * times) ** -power
    started = time.process_time()
    ours = exponential_sum(values, order=order, dt=STEP)
    row: dict[str, Any] = {"case": f"(1+it)^-{power:g}, 401 samples of step 0.05, complex", "order": ours.order}
    row |= {"error": ours.error, "ms": 1e3 * (time.process_time() - started)}
    started = time.process_time()
    found = _of_rates(values, _esprit(values, order))
    peers = {"esprit": {"error": float(np.abs(found - values).max()), "ms": 1e3 * (time.process_time() - started)}}
    for method in ("esprit", "espira-I") if util.find_spec("qutip") else ():
        started = time.process_time()
        error = float(np.abs(_qutip(times, values, order, method) - values).max())
        peers[f"qutip_{method}"] = {"error": error, "ms": 1e3 * (time.process_time() - started)}
    return _compared(row, peers)


def noisy_row(name: str, rates: np.ndarray, weights: np.ndarray, sigma: float) -> dict[str, Any]:
    """Root mean square distances to the truth, over the seeds; ours chooses its order, the others are told it."""
    times = np.arange(600.0)
    clean = (np.exp(np.outer(times, rates)) @ weights).real
    turns = rates.imag != 0
    states = int(np.where(turns, 2, 1).sum())
    distances: dict[str, list[float]] = {"ours": [], "esprit": [], "least squares from the truth": []}
    orders, taken = [], []
    for seed in range(SEEDS):
        values = clean + sigma * np.random.default_rng(seed).standard_normal(len(times))
        started = time.process_time()
        ours = exponential_sum(values, norm="l2")
        taken.append(1e3 * (time.process_time() - started))
        orders.append(ours.order)
        found = {
            "ours": ours(times),
            "esprit": _of_rates(values, _esprit(values, states)).real,
            "least squares from the truth": _from_truth(times, values, rates, weights, turns),
        }
        for key, value in found.items():
            distances[key].append(float(np.mean((value - clean) ** 2)))
    rms = {key: float(np.sqrt(np.mean(squares))) for key, squares in distances.items()}
    row = {"case": f"{name}, 600 samples, noise {sigma:g}", "order": states, "orders_found": orders}
    row |= {"error": rms.pop("ours"), "ms": float(np.median(taken))}
    return _compared(row, {key: {"error": value, "ms": 0.0} for key, value in rms.items()})


def _from_truth(
    times: np.ndarray, values: np.ndarray, rates: np.ndarray, weights: np.ndarray, turns: np.ndarray
) -> np.ndarray:
    def model(p: np.ndarray) -> np.ndarray:
        decay, frequency, re, im = p.reshape(4, -1)
        moved = rates.real * np.exp(decay) + 1j * turns * (rates.imag - frequency * rates.real)
        return (np.exp(np.outer(times, moved)) @ (re + 1j * turns * im)).real

    start = np.concatenate([0 * rates.real, 0 * rates.real, weights.real, weights.imag])
    return model(least_squares(lambda p: model(p) - values, start, x_scale="jac").x)


def _compared(row: dict[str, Any], peers: dict[str, dict[str, float]]) -> dict[str, Any]:
    best = min(peers, key=lambda name: peers[name]["error"])
    return {**row, "peers": peers, "best_peer": best, "ratio": row["error"] / peers[best]["error"]}


def rows(smoke: bool) -> list[dict[str, Any]]:
    if smoke:
        return [complex_row(2.0, 2)]
    found = [complex_row(power, order) for power in (1.0, 2.0, 3.0) for order in (4, 8)]
    for sigma in (0.001, 0.01, 0.1):
        found.append(noisy_row("two damped waves", *WAVES, sigma))
    for sigma in (0.001, 0.01):
        found.append(noisy_row("three decays", *DECAYS, sigma))
    return found
