"""The measured errors of a fitted exponential sum, and the reason why a fit fails."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from stablessm.constructions.sums import _modes
from stablessm.constructions.sums._analysis import RESOLVED, subset
from stablessm.constructions.sums._evidence import noise_level
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Fit
from stablessm.constructions.sums._samples import Request, Samples
from stablessm.constructions.sums._search import Search
from stablessm.constructions.sums._supremum import Error, compare
from stablessm.constructions.sums.result import ExponentialSum

_AT_LIMIT = 1.1  # rates slower than this multiple of the slowest allowed rate count as at the limit
_FREE = 1e-6  # this part of the slowest allowed rate is practically no limit
INTERRUPTED = "exponential_sum was interrupted; it returns the best sum found so far"


def measured(
    samples: Samples, domain: Domain, fit: Fit, request: Request, unit: float = 1.0, limit: float = math.nan
) -> ExponentialSum:
    """Return the :class:`ExponentialSum` of a fit, with its measured errors.

    The fit was made to the samples divided by ``unit``. The returned sum and its errors are for the samples themselves.
    ``limit`` is a lower bound of the error of any sum of this order, also divided by ``unit``.
    """
    es, error = compare(samples, domain, fit, unit)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(error.size > 0, error.size / error.kernel, 0.0)
    sup, relative = (error.size.max(), error.sup) if samples.relative else (error.sup, ratio.max())
    some = subset(len(samples.times), max(4000, 8 * es.order))
    spacing = np.sqrt(np.gradient(samples.times[some]))[:, None]  # so that the selected points represent all points
    step = 1.0 if domain.discrete or samples.even is None else samples.even[1]
    return replace(
        es,
        error=float(sup),
        relative_error=float(relative),
        l1_error=_l1(es, samples, error, domain.discrete),
        lower_bound=unit * limit * step,
        condition=_modes.condition(domain.matrix(fit.rates, samples.times[some]) * spacing),
        start=float(samples.times[0]),
        end=float(samples.times[-1]),
        seconds=time.perf_counter() - request.started,
    )


def _l1(es: ExponentialSum, samples: Samples, error: Error, discrete: bool) -> float:
    """Return the ℓ1 error of an exponential sum: |ρ - ρ̂|, summed or integrated over time.

    For matrix kernels, the errors of the entries in each row are added, and the largest of these sums is returned.
    """

    def rows(values: np.ndarray, times: np.ndarray) -> np.ndarray:
        left = np.abs(es(times).reshape(values.shape) - values)
        return left.reshape(len(left), *(samples.shape or (1, 1))).sum(axis=2)

    if samples.uniform:
        return float(rows(samples.values, samples.times).sum(axis=0).max()) * (1.0 if discrete else samples.dt)
    if samples.panels is None:
        by_time = np.trapezoid(rows(samples.values, samples.times), samples.times, axis=0)
        return float(by_time.max()) / (samples.dt if discrete else 1.0)
    if discrete:  # all first steps, and the panels after them
        first = samples.times < samples.panels.left[0]
        return float(rows(samples.values[first], samples.times[first]).sum(axis=0).max()) + error.l1 / samples.dt
    if samples.even is None:
        return error.l1
    values, step = samples.even
    times = samples.times[0] + step * np.arange(len(values))
    return max(error.l1, step * float(rows(values, times).sum(axis=0).max()))


def reason(search: Search, best: Fit, goal: float, unit: float) -> tuple[str, str]:
    """Return the reason why no sum was found within the tolerance, and a remedy, as two texts.

    ``best`` is the best fit of the search, and ``goal`` the tolerance. Both are for the samples divided by ``unit``;
    the texts state numbers for the samples themselves.
    """
    samples, domain = search.samples, search.domain
    if samples.panels is not None and search.facts.jump > 2 * goal:
        jump, at = samples.panels.jump()
        what = f"the kernel jumps by {unit * jump:.3g} at t = {at:g}, and in continuous time every sum is continuous"
        return what, f"a tolerance above {unit * jump / 2:.2g}, times= that begin after the jump, or time='discrete'"
    if search.facts.rises(goal):
        largest = unit * float(np.abs(samples.values).max())
        what = f"the kernel grows to the end of the horizon, up to {largest:.3g}, and a stable sum decays"
        return what, "fit the kernel times e^(-ct), which decays for a large enough c, and add c to the rates"
    if goal < RESOLVED * search.facts.scale:
        what = f"double precision resolves no less than {RESOLVED * unit * search.facts.scale:.2g} of this kernel"
        return what, f"a tolerance above {max(RESOLVED * search.facts.scale, best.error) * unit:.2g}"
    if (-best.rates.real < _AT_LIMIT * domain.slowest).any():
        free = Search(samples, replace(domain, slowest=_FREE * domain.slowest), search.request)
        if free.smallest(goal) is not None:
            for dtype in _modes.GAPS:
                if domain.slowest == _modes.slowest(dtype, domain.dt):
                    what = f"the kernel needs rates slower than {domain.slowest:.3g}, whose decay {dtype} rounds to 1"
                    return what, "a larger dt, for fewer steps of the same time, or a larger tol"
            what = f"stable_margin = {domain.slowest:g} allows no rate that is slow enough"
            return what, "a smaller stable_margin"
    noise, evidence = search.facts.noise, "their Hankel singular values level off like the singular values of noise"
    if not noise and samples.panels is None and not samples.uniform:
        noise = noise_level(samples.times, samples.values, domain, search.request.tell)
        evidence = "the residual of a least-squares fit is noise"
    if noise > goal / 4:
        what = f"the samples are noisy: {evidence} of {unit * noise:.2g}"
        if samples.uniform:
            what += "; sums of many states, which follow the noise, were not tried"
        remedy = f"norm='l2', which fits noisy samples by least squares, or a tolerance above {4 * unit * noise:.2g}"
        return what, remedy
    if domain.positive and not search.facts.monotone:
        return "the kernel is not completely monotone", "leave out positive=True"
    if domain.real and not search.facts.monotone:
        return "the kernel oscillates, or changes too fast for real decays", "leave out real=True"
    what = f"no sum of at most {max(search.tried)} states was found, and more states hardly help"
    if max(search.tried) >= search.facts.most:
        what = f"no sum of at most {search.facts.most} states was found"
    return what, "a larger tol, or a shorter horizon"


def ambiguous(rates: np.ndarray, step: float) -> tuple[str, str]:
    """Return the reason why samples do not determine a kernel in continuous time, and a remedy.

    ``rates`` are the rates of a fit without a limit on frequencies. All times of the samples are multiples of ``step``.
    """
    cycles = float(np.abs(rates.imag).max()) * step / (2 * np.pi)
    what = (
        f"the samples cannot tell the kernel in continuous time: they need a wave of {cycles:.3g} cycles per step, and"
        f" one of {1 - cycles:.3g} has the same samples"
    )
    return what, "samples at shorter steps, the kernel as a function, or time='discrete'"
