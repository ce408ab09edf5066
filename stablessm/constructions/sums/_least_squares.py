"""Fits with ``norm="l2"``: weighted least squares on noisy samples, with standard errors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.constructions._checks import real_array
from stablessm.constructions.sums import _measure
from stablessm.constructions.sums._evidence import Path
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Problem, fit_weights
from stablessm.constructions.sums._samples import Request, Samples
from stablessm.constructions.sums._standard_errors import standard_errors
from stablessm.constructions.sums.result import ExponentialSum, FitError

_MOST = 40  # real states, unless max_order says otherwise
_ALIKE = 1.5  # noise levels of several outputs that count as one


@final
@dataclass(frozen=True, eq=False)
class Noise:
    """The noise model of samples: the standard deviation of the noise of every entry at every time.

    Sample [i, entry] has the standard deviation level · scales[entry] / graded[i]. For complex samples, this is the
    standard deviation of the real part and of the imaginary part.
    """

    graded: np.ndarray
    """Square roots of the weights of the times (n,), scaled to a mean square of one where they are not 0."""
    scales: np.ndarray
    """Relative noise of the entries (q,), scaled to a mean square of one."""
    level: float | None
    """Overall noise level; None if it is to be estimated."""


def noise_model(samples: Samples, noise: Any, weights: Any) -> Noise:
    """Check the arguments ``noise`` and ``weights`` of ``exponential_sum``, and return the noise model."""
    n, q = samples.values.shape
    graded, scales = np.ones(n), np.ones(q)
    if noise is None and weights is None:
        return Noise(graded, scales, None)
    if noise is not None and weights is not None:
        raise ArgumentError("weights", "None, because noise= already determines the weights", "both")
    name, given = (
        ("weights", real_array("weights", weights)) if noise is None else ("noise", real_array("noise", noise))
    )
    got = f"shape {given.shape}, " + (f"{given.min():.3g} to {given.max():.3g}" if given.size else "empty")
    if noise is None:
        if given.shape != (n,) or not np.isfinite(given).all() or (given < 0).any() or not given.any():
            raise ArgumentError(name, f"{n} numbers from 0 up, one per time", got)
        return Noise(np.sqrt(given / given[given > 0].mean()), scales, None)
    if given.shape not in ((), (n,), samples.shape) or not (np.isfinite(given) & (given > 0)).all():
        each = f", or shape {samples.shape} (one per output)" if samples.shape else ""
        raise ArgumentError(name, f"positive standard deviations: one, or {n} (one per time){each}", got)
    if given.shape == (n,):
        least = float(given.min())
        level = least * float(np.mean((least / given) ** 2) ** -0.5)
        return Noise(level / given, scales, level)
    most = float(given.max())
    level = most * float(np.sqrt(np.mean((given / most) ** 2)))
    return Noise(graded, np.broadcast_to(given.reshape(-1) / level, (q,)), level)


@final
@dataclass(frozen=True, eq=False)
class _Found:
    """All fits of a search, and the order that was chosen among them."""

    path: Path
    best: int
    """Order of the fit with the most evidence or, if the order was given, with the smallest residual."""
    noise: Noise
    """Noise model, in which several outputs have the levels that were found."""
    tol: float | None
    interrupted: bool = False

    @cached_property
    def chosen(self) -> int:
        """Return the lowest order whose residual is at most ``tol``; without one, the best order."""
        within = [k for k in range(1, self.best + 1) if self.tol is not None and self.path.rms(k) <= self.tol]
        return within[0] if within else self.best

    @cached_property
    def clear(self) -> int:
        """Return the order with the most evidence up to the chosen order, which is lower if too high an order was
        given.
        """
        return min(range(self.chosen + 1), key=self.path.criterion)

    @property
    def evidence(self) -> float:
        return self.path.criterion(self.clear)

    def above(self, band: float) -> bool:
        """Return True if the chosen fit, or the fit with the most evidence, has a frequency above ``band``."""
        models = self.path.models[self.chosen], self.path.models[self.clear]
        return any((np.abs(model.rates.imag) > band).any() for model in models)


def fit(
    samples: Samples, domain: Domain, request: Request, noise: Any, weights: Any, slowest: Callable[[float], float]
) -> ExponentialSum:
    """Fit an exponential sum by least squares.

    The order is ``request.order``, or the lowest order whose residual is at most ``request.tol``, or, if neither is
    given, the order with the best BIC. ``slowest`` maps a time step to the slowest allowed decay.

    Samples on multiples of one step are fitted with all frequencies up to half a cycle per step. If this fit has a
    frequency that ``domain`` does not allow, and more evidence than the best fit in the domain, a ``FitError`` is
    raised.
    """
    model = noise_model(samples, noise, weights)
    whole, (unit, samples) = samples, samples.scaled()
    model = replace(model, level=model.level and model.level / unit)
    scaled = replace(request, tol=request.tol and request.tol / unit)
    limited = domain if domain.discrete else replace(domain, slowest=slowest(samples.spacing))
    wide = replace(limited, band=math.pi / samples.lattice) if samples.lattice else limited
    free = found = _searched(samples, wide, model, scaled, domain.band)
    if free.above(domain.band):  # no more states: many modes at the end of the band imitate one above it
        most = max(1, free.best)
        found = _searched(samples, limited, free.noise, replace(scaled, max_order=most), domain.band)
    es = _result(found, domain, whole, unit, request)
    if found.interrupted:
        warnings.warn(_measure.INTERRUPTED, stacklevel=4)
        return es
    if found is not free and free.evidence < found.evidence:
        what, remedy = _measure.ambiguous(free.path.models[free.clear].rates, samples.lattice)
        raise FitError(f"{what}. The best found has order {es.order} and residual {es.residual:.3g}", remedy, es)
    if found.best == 0 or (scaled.tol is not None and found.path.rms(found.chosen) > scaled.tol):
        raise FitError(*_reason(found, unit, request), es)
    return es


def _reason(found: _Found, unit: float, request: Request) -> tuple[str, str]:
    """Return the reason why no sum was found, and a remedy; the samples were divided by ``unit`` for the fit."""
    path, best, tol = found.path, found.best, request.tol
    goal = "" if tol is None else f" within tol = {tol:g}"
    none, level = f"no sum was found{goal} by least squares", f"{unit * path.level(best):.3g}"
    if best == 0:
        what = f"{none}: no mode can be distinguished from the noise, whose standard deviation is about {level}"
        return what, "more samples, or an order= if modes are known to be there"
    what = f"{none}: the samples support no order above {best}, at which the residual is noise of {level}"
    if request.max_order is not None and best == request.max_order:
        what = f"{none}: max_order = {request.max_order} is too low"
    return what, f"a tolerance above {unit * path.rms(best):.3g}, or no tol, which fits to the noise"


def _searched(samples: Samples, domain: Domain, noise: Noise, request: Request, band: float) -> _Found:
    """Fit sums of increasing order; several outputs are fitted again if they differ in their noise.

    If Ctrl-C interrupts the search, the result has no frequency above ``band``; otherwise it may have one, and the
    caller decides.
    """
    found = _pursued(samples, domain, noise, request, band)
    if samples.values.shape[1] == 1 or noise.level is not None or not found.best or found.interrupted:
        return found
    levels = np.sqrt((np.abs(found.path.left(found.path.models[found.best].rates)) ** 2).mean(axis=0)) * noise.scales
    if not levels.max() > _ALIKE * levels.min() > 0:
        return found
    noise = replace(noise, scales=levels / np.sqrt(np.mean(levels**2)))
    return _pursued(samples, domain, noise, request, band)


def _pursued(samples: Samples, domain: Domain, noise: Noise, request: Request, band: float) -> _Found:
    limit, order = max(1, int((noise.graded > 0).sum()) // 2), request.order  # one weight and one rate per state
    if order is not None and order > limit:
        raise ArgumentError("order", f"at most {limit}, half the number of samples, with norm='l2'", order)
    one = np.ones(len(samples.times))
    problem = Problem(samples.times, samples.values / noise.scales, one, noise.graded, domain, request.tell)
    path = Path(problem, limit, noise=noise.level)
    most = request.max_order or (_MOST // 2 if domain.is_complex else _MOST)
    try:
        return _Found(path, path.choose(most) if order is None else path.at_most(order), noise, request.tol)
    except KeyboardInterrupt:
        within = {k: (np.abs(model.rates.imag) <= band).all() for k, model in path.models.items()}
        found = [k for k in within if 0 < k <= (order or most) and within[k]]
        if not found:
            raise
        best = min(found, key=path.rms if order is not None else path.criterion)
        return _Found(path, best, noise, None, interrupted=True)


def _result(found: _Found, domain: Domain, samples: Samples, unit: float, request: Request) -> ExponentialSum:
    """Return the sum of the chosen order, in which every rate decays at least as fast as ``domain`` requires.

    The ``samples`` were divided by ``unit`` for the fit.
    """
    path, noise, order = found.path, found.noise, max(1, found.chosen)
    problem, model = replace(path.problem, domain=domain), path.models[order]
    rates = np.minimum(model.rates.real, -domain.slowest) + 1j * model.rates.imag
    fit, size = fit_weights(problem, rates, "least squares"), model.size
    if (rates != model.rates).any():
        left = problem.values - domain.matrix(fit.rates, problem.times) @ fit.coefficients
        size = float(np.linalg.norm(left * problem.graded[:, None]))
    level = path.level(order)
    rate_errors, weight_errors = standard_errors(problem, fit, level, even=path.even)
    fit = replace(fit, coefficients=fit.coefficients * noise.scales)
    es = _measure.measured(samples, domain, fit, request, unit)
    weight_errors = (unit * weight_errors * noise.scales).reshape(es.weights.shape)
    es = replace(es, norm="l2", residual=unit * size / np.sqrt(path.count), noise=unit * level)
    return replace(es, rate_errors=rate_errors, weight_errors=weight_errors)
