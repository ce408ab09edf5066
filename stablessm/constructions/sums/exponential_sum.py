"""Approximation of a kernel by a short sum of decaying exponentials, with its measured error."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, final, get_args

import numpy as np

from stablessm._arguments import real_number
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError, quoted
from stablessm._progress import working
from stablessm.constructions.sums import _least_squares, _measure, _modes, _samples
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Fit
from stablessm.constructions.sums._samples import Request, Samples, is_number
from stablessm.constructions.sums._search import Search
from stablessm.constructions.sums.result import ExponentialSum, FitError, Norm, TimeKind

_TOLD = 0.9  # in half cycles per step: even samples distinguish lower frequencies from their aliases
_REST = 1e-4  # divided by the horizon: a decay too slow to matter, from which a fit can still move
_EDGE = 0.97  # frequencies above this part of the band count as at the end of the band
_FAR = 0.5  # the band is the cause if a wider sum has at most this part of the error
# relative errors, with a given order: above the first, too large; up to the second, good
_CLEAR, _EXPLAINED = 0.05, 0.01


@checked
def exponential_sum(
    kernel: Any,
    horizon: Size | None = None,
    *,
    tol: float | None = None,
    order: int | None = None,
    dt: float = 1.0,
    time: TimeKind = "discrete",
    times: Any = None,
    real: bool = False,
    positive: bool = False,
    stable_margin: float = 0.0,
    relative: bool = False,
    norm: Norm = "sup",
    max_order: Size | None = None,
    noise: Any = None,
    weights: Any = None,
    dtype: Any = "float64",
) -> ExponentialSum:
    """Fit a kernel by a short sum of exponentials, ρ(t) ≈ Re Σ_i w_i e^{r_i t} with Re r_i < 0, t = 0, dt, …, horizon
    dt.

    SSM-UA (section 3.2) builds convolutions from such sums, and IAT (theorem A.3) bounds their errors. This function
    computes the rates and the weights. Among all sums of the same order, the result is a local minimum of the supremum
    of the error. All errors of the result are measured.

    Args:
        kernel: ρ, as a function of an array of times, as a formula in t (``"1/(1+t)**1.1"``), or as samples: (T+1,)
            or (T+1, d_out, d_in), whose entries share their rates. A complex kernel gives a complex sum,
            Σ_i w_i e^{r_i t} without the real part; each mode is one complex state and needs no conjugate.
        horizon: T, the number of steps; not used with samples or ``times``.
        tol: largest allowed error; the sum of the lowest order found is returned. Either ``tol`` or ``order`` is
            required with ``norm="sup"``.
        order: number of real states (complex states for a complex kernel); the best sum found is returned.
        dt: time between samples. With ``times`` in continuous time, only the step at which the result runs.
        time: ``discrete``: only the times k dt matter. ``continuous``: a function is also fitted between the samples.
        times: increasing times that replace the uniform grid, for irregular samples or a kernel that is singular at 0.
        real: allow real rates only, so that no mode oscillates.
        positive: allow real rates and non-negative weights only; these suffice for a completely monotone kernel.
        stable_margin: lower bound of -Re r_i. In addition, |e^{r dt}| always rounds to less than 1 in ``dtype``.
        relative: ``tol`` limits the relative error |ρ - ρ̂| / |ρ|.
        norm: ``sup``: minimize the supremum of the error, for kernels that are known exactly. ``l2``: weighted least
            squares, for samples with noise. ``tol`` then limits the root mean square of the residual, but never adds
            modes that the evidence does not support. Without ``tol`` and ``order`` the evidence chooses the order: a
            mode is kept if it explains more than noise would (BIC; a frequency counts as two parameters).
        max_order: highest order that is tried (default for ``l2``: 40 real or 20 complex states).
        noise: standard deviation of the noise for ``l2``: a number, one per time, or (d_out, d_in). By default it is
            estimated for each entry of a matrix-valued kernel.
        weights: weights of the squared residuals for ``l2``, one per time, proportional to 1 / variance.
        dtype: dtype in which the sum will run. With ``float32`` every decay is at least 2.4e-7 per step.

    Returns:
        An ``ExponentialSum``. Its ``lower_bound`` is a lower bound of the ``l1_error`` of every sum of this order, but
        not of the supremum, which is usually far smaller. It is the singular value σ_{order+1} of the Hankel matrix
        H[i, j] = ρ((i + j) dt), 0 ≤ i, j ≤ T/2, divided by √d_out. In continuous time, it is multiplied by the step of
        H, which is dt for samples; for a function it is a step that resolves the function. (The 2-norm of a Hankel
        matrix is at most the ℓ1 norm of its sequence.) For more than 2000 steps, H is too large to be stored. For a
        completely monotone kernel, σ is then computed from a sum of many exponentials that represents the kernel; for
        other kernels it is a Ritz value, which is never too large. With ``times``, it is NaN.

        With ``norm="l2"`` there is no such bound, ``error`` is the largest residual including noise, and ``residual``,
        ``noise``, ``rate_errors`` and ``weight_errors`` are set.

    Raises:
        FitError: no sum was found within the tolerance. The message gives the reason; the attribute ``best`` is the
            best sum that was found.

    >>> es = exponential_sum(lambda t: (1 + t) ** -1.1, horizon=1000, tol=1e-6)
    >>> es.order, bool(es.error <= 1e-6), bool((es.rates < 0).all())
    (10, True, True)
    >>> exponential_sum([1.0, 0.5, 0.25, 0.125, 0.0625], order=1).eigenvalues.round(6)
    array([0.5])
    >>> t = np.arange(300.0)
    >>> noisy = np.exp(-t / 40) * np.cos(t / 2) + 0.1 * np.random.default_rng(0).standard_normal(300)
    >>> wave = exponential_sum(noisy, norm="l2")
    >>> wave.order, wave.rates.round(3), wave.rate_errors.round(3)
    (2, array([-0.024+0.5j]), array([0.002+0.002j]))
    """
    request = _request(tol, order, max_order, time, norm, relative, noise, weights)
    continuous, slowest = time == "continuous", _slowest(stable_margin, dtype)
    with working("exponential_sum") as tell:
        request = replace(request, tell=tell)
        samples = _samples.gather(kernel, horizon, dt, continuous, times, relative, request)
        domain = _domain(samples, continuous, real, positive, slowest)
        if request.order is not None and request.order > len(samples.times):
            raise ArgumentError("order", f"at most the number of samples, {len(samples.times)}", request.order)
        if norm == "l2":
            return _least_squares.fit(samples, domain, request, noise, weights, slowest)
        return _supremum_sum(samples, domain, request)


def _slowest(margin: Any, dtype: Any) -> Callable[[float], float]:
    """Return a function that maps dt to the slowest decay rate that the dtype and the lower bound ``margin`` allow."""
    if not is_number(margin, 0):
        raise ArgumentError("stable_margin", "a number from 0 up", quoted(margin))
    name = str(dtype).removeprefix("torch.")
    if name not in _modes.GAPS:
        raise ArgumentError("dtype", "'float64' or 'float32'", quoted(dtype))
    return lambda dt: max(float(margin), _modes.slowest(name, dt))


def _domain(
    samples: Samples, continuous: bool, real: bool, positive: bool, slowest: Callable[[float], float]
) -> Domain:
    if samples.is_complex and (real or positive):
        argument = "positive" if positive else "real"
        raise ArgumentError(argument, "False, since the kernel has complex values and its modes are complex", True)
    band = _band(samples) if continuous else math.inf
    rest = _REST / float(samples.times[-1])
    dt = samples.dt
    return Domain(dt, not continuous, real or positive, positive, slowest(dt), samples.is_complex, band, rest)


def _request(
    tol: Any, order: Any, max_order: Any, time: str, norm: str, relative: bool, noise: Any, weights: Any
) -> Request:
    """Check that the options of ``exponential_sum`` are compatible, and return them as a :class:`Request`."""
    for name, value, known in (("time", time, TimeKind), ("norm", norm, Norm)):
        if value not in get_args(known):
            raise ArgumentError(name, " or ".join(map(repr, get_args(known))), quoted(value))
    for name, value in (("noise", noise), ("weights", weights)) if norm == "sup" else ():
        if value is not None:
            raise ArgumentError(name, "None, or norm='l2', which fits noisy samples", f"norm={norm!r}")
    if norm == "l2" and relative:
        raise ArgumentError("relative", "False with norm='l2'; noise= or weights= say how much samples count", relative)
    if (tol is None) == (order is None) and not (norm == "l2" and tol is None):
        raise ArgumentError("tol", "exactly one of tol and order", f"tol={tol}, order={order}")
    tol = None if tol is None else real_number("tol", tol, 0)
    for name, value in (("order", order), ("max_order", max_order)):
        if value is not None and not is_number(value, 1, whole=True):
            raise ArgumentError(name, "a whole number from 1 up", quoted(value))
    order, max_order = (None if value is None else int(value) for value in (order, max_order))
    return Request(tol, order, max_order, perf_counter())


def _supremum_sum(samples: Samples, domain: Domain, request: Request) -> ExponentialSum:
    unit, scaled = samples.scaled()
    tol = request.tol
    goal = None if tol is None else tol if samples.relative else tol / unit
    attempt = _Attempt(scaled, domain, goal, request)
    try:
        fit = attempt.run()
        best = attempt.measured(samples, unit, fit)
        reached = best.relative_error if samples.relative else best.error
        if attempt.ambiguous(fit):
            what, remedy = _measure.ambiguous(attempt.free.rates, domain.dt)
        elif tol is None or goal is None or reached <= tol:
            return best
        else:
            what, remedy = _measure.reason(attempt.search, fit, goal, unit)
            what = f"no sum was found within tol = {tol:g}: {what}"
    except KeyboardInterrupt:
        found = [search for search in attempt.searches if search.tried]
        if not found:
            raise
        attempt.search = min(found, key=lambda search: search.so_far().error)
        warnings.warn(_measure.INTERRUPTED, stacklevel=4)
        return attempt.measured(samples, unit, attempt.search.so_far())
    raise FitError(f"{what}. The best found has order {best.order} and error {reached:.3g}", remedy, best)


def _band(samples: Samples) -> float:
    """Return the highest frequency |Im r| that samples of a kernel in continuous time can determine.

    The result is infinite if the kernel is a function, which can be sampled at any time.
    """
    if samples.function is not None:
        return math.inf
    if samples.lattice:  # aliases have the same values
        return _TOLD * math.pi / samples.lattice
    return math.pi / float(np.quantile(np.diff(samples.times), 0.05))


@final
@dataclass(eq=False)
class _Attempt:
    """One attempt of ``exponential_sum`` to fit samples. An attempt may consist of several searches with different
    options.
    """

    samples: Samples
    domain: Domain
    goal: float | None
    request: Request
    search: Search = field(init=False)
    searches: list[Search] = field(init=False, default_factory=list)
    free: Fit = field(init=False)

    def run(self) -> Fit:
        """Search for a fit of the requested order or, with a tolerance, for the fit of the lowest order that meets it.

        If no fit meets the tolerance, the best fit found is returned.
        """
        with np.errstate(all=None if self.samples.values.any() else "ignore"):
            self.search = self._new()
        if self.search.facts.scale == 0:
            rates = np.array([-max(1 / self.domain.dt, 2 * self.domain.slowest)], dtype=np.complex128)
            return Fit(rates, np.zeros((1, self.samples.values.shape[1])), 0.0, "zero")
        if self.goal is None:
            return self.search.at_most(self.request.order or 1)
        fit = self.search.smallest(self.goal)
        if fit is None and (self.search.facts.hopeless(self.goal) or self.search.facts.rises(self.goal)):
            return self.search.least()
        if fit is None and self.search.facts.hankel is None:  # the mixture alone did not suffice
            self.search = self._new(close=0.0)
            fit = self.search.smallest(self.goal)
        if fit is None and self.samples.panels is not None and not self.search.grows:
            grown = self._new(close=0.0, grows=True)  # for time scales that no single even grid resolves
            fit = grown.smallest(self.goal)
            if fit is not None or grown.least().error < self.search.least().error:
                self.search = grown
        return fit or self.search.least()

    def measured(self, samples: Samples, unit: float, fit: Fit) -> ExponentialSum:
        """Return the exponential sum of a fit, with its measured errors.

        ``samples`` are the original samples of the caller. The fit was made to these samples divided by ``unit``.
        """
        limit = self.search.facts.lower_bound(self.domain.order(fit.rates))
        return _measure.measured(samples, self.domain, fit, self.request, unit, limit)

    def ambiguous(self, fit: Fit) -> bool:
        """Return True if a fit would be much better with frequencies above the highest allowed frequency."""
        domain = self.domain
        if domain.discrete or domain.real or not self.samples.uniform or self.samples.panels is not None:
            return False
        least, explained = (self.goal or part * self.search.facts.scale for part in (_CLEAR, _EXPLAINED))
        at_edge = np.abs(domain.weights(fit.coefficients, fit.rates))[np.abs(fit.rates.imag) > _EDGE * domain.band]
        if fit.error <= least and not (at_edge > least).any():
            return False
        everywhere = Search(self.samples, replace(domain, discrete=True), self.request)
        order = self.request.order
        found = everywhere.smallest(least) if order is None else everywhere.at_most(order)
        if found is None or found.error > explained or (self.goal is None and found.error > _FAR * fit.error):
            return False
        self.free = found
        return bool((np.abs(found.rates.imag) > domain.band).any())

    def _new(self, **options: Any) -> Search:
        self.searches.append(Search(self.samples, self.domain, self.request, **options))
        return self.searches[-1]
