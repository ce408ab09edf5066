"""The others that turn a kernel into a sum of exponentials, each through its own package. All answer with poles.

Each gets what its method needs; weights are by least squares on the grid, after unstable poles are taken out. Training
keeps the weights it learned. The impulse response of a realization as it comes, not as a sum of exponentials, is
``dense_error``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import gamma

import numpy as np
import torch

STEPS, RATE = 3000, 0.01
"""What gradient training may take: Adam, as in the papers, in double precision on the whole grid."""
LARGEST = 2001
"""Samples from which a dense Hankel matrix is formed."""


@dataclass(frozen=True)
class Case:
    name: str
    kernel: Callable[[np.ndarray], np.ndarray]
    times: np.ndarray
    """Uniform from 0, or any times for a singular kernel."""
    relative: bool = False
    laplace: Callable[[np.ndarray], np.ndarray] | None = None
    """∫ ρ(t) e^{-st} dt, where it has a closed form."""

    @property
    def uniform(self) -> bool:
        return self.times[0] == 0

    @property
    def dt(self) -> float:
        return float(self.times[1] - self.times[0]) if self.uniform else 1.0

    def values(self) -> np.ndarray:
        return self.kernel(self.times)

    def weight(self) -> np.ndarray:
        return 1 / np.abs(self.values()) if self.relative else np.ones(len(self.times))

    def error(self, values: np.ndarray) -> float:
        return float((np.abs(values - self.values()) * self.weight()).max())


def error_of_poles(case: Case, rates: np.ndarray) -> float:
    """The supremum with weights by least squares, at every time of the case; infinite without a stable pole."""
    rates = np.asarray(rates, dtype=complex)
    rates = rates[np.isfinite(rates) & (rates.real < 0)]
    if not len(rates):
        return float("inf")
    some = np.unique(np.concatenate([_graded(len(case.times), 3000), np.arange(0, len(case.times), 997)]))
    real = np.abs(rates.imag) < 1e-12 * np.abs(rates)
    pairs = rates[rates.imag > 1e-12 * np.abs(rates)]

    def columns(times: np.ndarray) -> np.ndarray:
        wave = np.exp(np.outer(times, pairs))
        return np.concatenate([np.exp(np.outer(times, rates[real].real)), wave.real, wave.imag], axis=1)

    weight = case.weight()[some]
    A = columns(case.times[some]) * weight[:, None]
    scale = np.linalg.norm(A, axis=0)
    scale[scale == 0] = 1
    solved = np.linalg.lstsq(A / scale, case.values()[some] * weight, rcond=1e-15)[0] / scale
    value = np.concatenate(
        [columns(part) @ solved for part in np.array_split(case.times, 1 + len(case.times) // 100000)]
    )
    return case.error(value)


def _graded(n: int, count: int) -> np.ndarray:
    return np.arange(n) if n <= count else np.unique(np.rint(np.geomspace(1, n, count)).astype(int) - 1)


def _impulse(system: tuple[np.ndarray, np.ndarray, np.ndarray], steps: int) -> np.ndarray:
    A, B, C = system
    state, out = B[:, 0], np.empty(steps)
    for k in range(steps):
        out[k] = C[0] @ state
        state = A @ state
    return out


def _realization(case: Case, system: tuple[np.ndarray, np.ndarray, np.ndarray]) -> dict[str, float]:
    with np.errstate(all="ignore"):
        rates = np.log(np.linalg.eigvals(system[0]).astype(complex)) / case.dt
        dense = case.error(_impulse(system, len(case.times)))
    return {"error": error_of_poles(case, rates), "dense_error": dense}


def control_era(case: Case, order: int) -> dict[str, float]:
    """python-control's eigensystem realization, all samples; a leading 0 because there is no direct term."""
    import control

    data = np.concatenate([[0.0], case.values()])
    half = len(case.times) // 2
    system, _ = control.eigensys_realization(data, r=order, m=half, n=half, dt=case.dt)
    return _realization(case, (system.A, system.B / case.dt, system.C))


def pymor_era(case: Case, order: int) -> dict[str, float]:
    """pyMOR's, without the zero padding that would make a slow kernel end."""
    from pymor.core.logger import set_log_levels
    from pymor.reductors.era import ERAReductor

    set_log_levels({"pymor": "ERROR"})
    model = ERAReductor(case.values(), case.dt, force_stability=False).reduce(r=order)
    A, B, C = model.to_abcde_matrices()[:3]
    return _realization(case, (A, B, C))


def esprit(case: Case, order: int) -> dict[str, float]:
    """Matrix pencil: shift-invariance of the first singular vectors of the Hankel matrix."""
    from scipy.linalg import hankel

    values = case.values()
    half = len(values) // 2 + 1
    u = np.linalg.svd(hankel(values[:half], values[half - 1 :]))[0][:, :order]
    with np.errstate(all="ignore"):
        rates = np.log(np.linalg.eigvals(np.linalg.lstsq(u[:-1], u[1:], rcond=None)[0]).astype(complex)) / case.dt
    return {"error": error_of_poles(case, rates)}


def _transform(case: Case) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """Points and values of the transform of the kernel, three choices of points; whether in z (else in s)."""
    if case.laplace is not None:
        s = np.geomspace(0.1 / case.times[-1], 10 / case.times[0], 800)
        return [(s, case.laplace(s), False)]
    length = len(case.times) - 1
    k, weights = np.arange(min(length, 2000) + 1.0), 1.0
    if length > 2000:  # the rest of the sum as an integral, on Gauss points: it differs by less than 1e-8 of it
        edges = np.geomspace(2000.5, length + 0.5, 200)
        x, w = np.polynomial.legendre.leggauss(16)
        nodes = (edges[:-1, None] + np.diff(edges)[:, None] * (x + 1) / 2).reshape(-1)
        weights = np.concatenate([np.ones(len(k)), (np.diff(edges)[:, None] * w / 2).reshape(-1)])
        k = np.concatenate([k, nodes])
    values = case.kernel(case.dt * k) * weights
    near, axis = (np.exp(np.geomspace(start / length, 8, 400)) for start in (2, 8))
    ring = np.exp(8 / length + 1j * np.concatenate([-np.geomspace(np.pi, 1e-4, 400), np.geomspace(1e-4, np.pi, 400)]))
    return [
        (z, np.array([np.sum(values * np.exp(-k * np.log(point))) for point in z]), True) for z in (near, axis, ring)
    ]


def _aaa(case: Case, poles: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> dict[str, float]:
    """The best of the sets of points."""
    errors = []
    for z, values, discrete in _transform(case):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = poles(z, values)
            rates = np.log(found.astype(complex)) / case.dt if discrete else found
        errors.append(error_of_poles(case, rates))
    return {"error": min(errors)}


def scipy_aaa(case: Case, order: int) -> dict[str, float]:
    from scipy.interpolate import AAA

    return _aaa(case, lambda z, f: AAA(z, f, rtol=0, max_terms=order + 1, clean_up=False).poles())


def baryrat_aaa(case: Case, order: int) -> dict[str, float]:
    import baryrat

    return _aaa(case, lambda z, f: baryrat.aaa(z, f, tol=0, mmax=order + 1).poles())


def training(case: Case, order: int, steps: int = STEPS) -> dict[str, float]:
    """Rates and weights by Adam on the mean square error of the kernel; rates -e^u start evenly on a log axis."""
    torch.manual_seed(0)
    some = _graded(len(case.times), 3000)
    times, weight = torch.from_numpy(case.times[some]), torch.from_numpy(case.weight()[some])
    target = torch.from_numpy(case.values()[some])
    first = case.times[1] if case.uniform else case.times[0]
    u = torch.from_numpy(np.log(np.geomspace(1 / case.times[-1], 1 / first, order))).requires_grad_()
    frequency = (0.1 * torch.randn(order, dtype=torch.float64) / first).requires_grad_()
    parts = torch.randn(2, order, dtype=torch.float64).div(order).requires_grad_()
    optimizer = torch.optim.Adam([u, frequency, parts], lr=RATE)
    best = float("inf")
    for step in range(steps):
        wave = times[:, None] * frequency
        modes = torch.exp(-times[:, None] * u.exp())
        value = (modes * (parts[0] * wave.cos() - parts[1] * wave.sin())).sum(1)
        left = (value - target) * weight
        if step % 100 == 0 or step == steps - 1:
            best = min(best, float(left.detach().abs().max()))
        optimizer.zero_grad()
        left.square().mean().backward()
        optimizer.step()
    return {"error": best}


def runs(name: str, case: Case) -> bool:
    """Whether the peer can take the case at all."""
    if name in ("control_era", "pymor_era", "esprit"):
        return case.uniform and len(case.times) <= LARGEST
    return True


PEERS = {
    "scipy_aaa": scipy_aaa,
    "baryrat_aaa": baryrat_aaa,
    "control_era": control_era,
    "pymor_era": pymor_era,
    "esprit": esprit,
    "training": training,
}


def singular_laplace(s: np.ndarray, hurst: float) -> np.ndarray:
    """Of t^{H-1/2}."""
    return gamma(hurst + 0.5) * s ** -(hurst + 0.5)
