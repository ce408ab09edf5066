"""Initial rates for a fit, from the samples of the kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from stablessm.constructions.sums._modes import Domain, non_negative
from stablessm.constructions.sums._polish import Fit, Problem

_PER_DECADE = 10  # rates per decade: a denser set changes sums by less than 1e-12
_FASTEST = 40.0  # e^-40 is negligible
_SLOWEST = 0.02
_SLOWER = 10.0 ** np.arange(-6, -0.4, 0.5)
_ROWS = 1500
_EVEN = 20.0  # up to this step all steps have equal weight; beyond, all octaves do
ECHO = 1e-8  # smallest echo: the square root of rounding balances the echo and the loss of digits


@final
@dataclass(frozen=True, eq=False)
class Mixture:
    """A fit by many decays with positive weights, ρ(t) ≈ Σ weights_i e^{-decays_i t}.

    The fit is accurate if the kernel is completely monotone, by Bernstein's theorem.
    """

    decays: np.ndarray
    weights: np.ndarray
    error: float
    """Weighted supremum of the residual of the mixture."""
    dt: float
    singular_values: np.ndarray
    """Singular values of the weighted Hankel operator (see ``rates``): about ten times the best supremum error per
    order.
    """
    _vectors: np.ndarray
    _shift: bool

    def rates(self, order: int) -> np.ndarray:
        """Return ``order`` rates that approximate the many decays of the mixture, by balanced truncation.

        The Hankel matrix of the mixture, weighted by ω over time, is L Lᵀ with L = √ω e^{-decay t} √weight. Let V be
        the first right singular vectors of L. The matrix Vᵀ diag(e^{-decay dt}) V describes a step of length dt, the
        time step of the samples, with ``order`` states. The eigenvalues of this matrix are e^{rate dt}. The matrix is
        symmetric, so that the eigenvalues lie between the smallest and the largest e^{-decay dt} of the mixture. For
        times that are not evenly spaced, log(decay) replaces e^{-decay dt}.
        """
        v = self._vectors[:, :order]
        if not self._shift:
            return -np.exp(np.linalg.eigvalsh(v.T @ (np.log(self.decays)[:, None] * v))).astype(np.complex128)
        reduced = np.linalg.eigvalsh(v.T @ (np.exp(-self.decays * self.dt)[:, None] * v))
        return (np.log(reduced[reduced > 0]) / self.dt).astype(np.complex128)

    def hankel_singular_values(self, rows: int, step: float) -> np.ndarray:
        """Return the singular values of the Hankel matrix H[i, j] = ρ((i + j) step) of this sum ρ, with ``rows`` rows.

        The singular values are computed from a closed form, without the Hankel matrix.
        """
        total = (self.decays[:, None] + self.decays) * step
        root = np.sqrt(self.weights)
        gram = root[:, None] * (np.expm1(-total * rows) / np.expm1(-total)) * root
        return np.maximum(np.linalg.eigvalsh(gram)[::-1], 0)


def mixture(problem: Problem, gap: float, *, uniform: bool) -> Mixture | None:
    """Fit the kernel by a dense set of real decays with non-negative weights; return None if that is not possible.

    ``gap`` is the shortest time over which the kernel may change, and ``uniform`` states whether the samples are evenly
    spaced. Complex kernels, and samples without a range of time scales, have no mixture.
    """
    if problem.domain.is_complex:
        return None
    some = np.unique(np.rint(np.linspace(0, len(problem.times) - 1, _ROWS)).astype(np.int64))
    times, values = problem.times[some], problem.values[some]
    if values.shape[1] > 1:  # one mixture that decays like the entries
        values = np.abs(values).sum(axis=1, keepdims=True)
    elif not problem.domain.positive:  # a negative kernel is as good
        values = values * np.sign(values[np.argmax(np.abs(values))] or 1.0)
    dt = problem.domain.dt
    slow = max(_SLOWEST / times[-1], 1.01 * problem.domain.slowest)
    decades = np.log10(_FASTEST / gap / slow)
    if not decades > 0:
        return None
    decays = np.geomspace(slow, _FASTEST / gap, max(2, int(_PER_DECADE * decades)))
    slower = slow * _SLOWER  # a few nearly constant modes, which are a large part of a very slow kernel
    decays = np.concatenate([slower[slower > 1.01 * problem.domain.slowest], decays])
    graded = problem.graded[some]
    modes = np.exp(-times[:, None] * decays) * graded[:, None]
    scale = np.linalg.norm(modes, axis=0)
    decays, modes, scale = decays[scale > 0], modes[:, scale > 0], scale[scale > 0]
    q, r = np.linalg.qr(modes / scale)
    weights = non_negative(r, q.T @ (values[:, 0] * graded)) / scale
    decays, weights = decays[weights > 0], weights[weights > 0]
    if not len(decays):
        return None
    left = values[:, 0] - np.exp(-times[:, None] * decays) @ weights
    error = float((np.abs(left) * problem.weight[some]).max())
    if uniform:
        half = int(times[-1] / dt) // 2 + 1
        k = np.unique(np.concatenate([np.arange(min(300, half)), np.rint(np.geomspace(1, half, 600)) - 1]))
        nodes, omega = dt * k, np.gradient(k) / (1 + k / _EVEN) if len(k) > 1 else np.ones(1)
        omega = omega * np.interp(2 * nodes, problem.times, problem.weight)
    else:
        nodes, omega = times / 2, graded**2 / problem.weight[some]
    L = np.exp(-nodes[:, None] * decays) * np.sqrt(omega)[:, None] * np.sqrt(weights)
    _, s, vt = np.linalg.svd(L, full_matrices=False)
    return Mixture(decays, weights, error, dt, s**2, vt.T, uniform)


def ring(domain: Domain, values: np.ndarray, order: int, echo: float = ECHO) -> Fit | None:
    """Return a sum that equals the first ``order`` samples exactly, and then repeats these samples, reduced by
    ``echo``.

    The eigenvalues are on a ring: λ_j = r e^{2πij/order}, r^order = echo. The weights are a discrete Fourier transform
    of the samples, and grow as 1 / echo. Returns None if waves or discrete time are not allowed.

    Such a sum is used for kernels that end, such as a delay by L steps. The Hankel matrix of a delay has L + 1 equal
    singular values, so that no sum of lower order is close to the kernel. The exact recurrence of a delay has the order
    L + 1 and the eigenvalue 0 alone, so that it is not a sum of exponentials.
    """
    if domain.real or not domain.discrete:
        return None
    echo = echo if order < len(values) else 0.5
    radius = echo ** (1 / order)
    head = values[:order] * (radius ** -np.arange(min(order, len(values))))[:, None]
    weights = np.fft.fft(head, n=order, axis=0) / order
    if domain.is_complex:
        rates = (np.log(radius) + 2j * np.pi * np.fft.fftfreq(order)) / domain.dt
        return Fit(domain.clip(rates), weights, np.nan, "ring")
    half = order // 2
    phases = 2 * np.pi * np.arange(half + 1) / order
    rates = (np.log(radius) + 1j * phases) / domain.dt
    if order % 2 == 0:
        rates[half] = (np.log(radius) + 1j * np.pi) / domain.dt
    rates = domain.clip(rates)
    single = domain.single(rates)
    rows = []
    for rate, weight in zip(single, weights[: half + 1], strict=True):
        rows += [weight.real] if rate else [2 * weight.real, 2 * weight.imag]
    return Fit(rates, np.array(rows), np.nan, "ring")


def resampled(times: np.ndarray, values: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """Interpolate values at ``count`` evenly spaced times by cubic splines; return values (count, entries) and the
    step.
    """
    from scipy.interpolate import CubicSpline

    even = np.linspace(times[0], times[-1], count)
    return CubicSpline(times, values)(even), float(even[1] - even[0])


def from_eigenvalues(domain: Domain, eigenvalues: np.ndarray, step: float) -> np.ndarray:
    """Convert eigenvalues of a recurrence whose time step is ``step`` to initial rates that the fit allows."""
    if step == domain.dt:
        return domain.admit(eigenvalues)
    return replace(domain, dt=step, discrete=False).admit(eigenvalues)
