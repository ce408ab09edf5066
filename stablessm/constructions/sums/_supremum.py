"""Measurement of the error of an exponential sum: at the samples, or for a function at all times.

For a function, the error is computed at more points where it is large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from stablessm.constructions.sums import _panels
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._panels import Panels
from stablessm.constructions.sums._polish import Fit
from stablessm.constructions.sums._samples import Samples
from stablessm.constructions.sums.result import ExponentialSum, TimeKind

_FOLLOWED = 0.01  # largest error of the interpolation between points, relative to the supremum
_ROUNDING = 1e-14  # smaller errors, relative to the kernel and the sum, are not resolved
_MORE = 2**19  # largest number of additional points
_ADDED = 300
_CLOSE = 17  # points around each of the largest errors


@final
@dataclass(frozen=True, eq=False)
class Error:
    """The measured error of a sum: the supremum, the ℓ1 norm, and the times at which the error is large."""

    sup: float
    """Supremum of the weighted error."""
    l1: float
    """Largest row sum of ∫ |ρ - ρ̂| over the panels of a function; 0 without panels."""
    times: np.ndarray
    """Times of the (a few hundred) largest weighted errors, increasing."""
    values: np.ndarray
    """Values of ρ at these times (n, q)."""
    size: np.ndarray
    """Unweighted |ρ - ρ̂| at all evaluated points (n,)."""
    kernel: np.ndarray
    """Size |ρ| of the kernel at all evaluated points (n,)."""


def compare(samples: Samples, domain: Domain, fit: Fit, unit: float = 1.0) -> tuple[ExponentialSum, Error]:
    """Return the exponential sum of a fit, and its measured error.

    The fit was made to the samples divided by ``unit``; the sum and the error are for the samples themselves. For a
    function, the error includes a bound on the rounding error of the sum. If ``unit`` is a power of two, the error
    equals the error in the search exactly.
    """
    weights = unit * domain.weights(fit.coefficients, fit.rates).reshape(len(fit.rates), *samples.shape)
    kind: TimeKind = "discrete" if domain.discrete else "continuous"
    es = ExponentialSum(
        fit.rates, weights, samples.dt, samples.horizon, kind, method=fit.method, is_complex=domain.is_complex
    )
    error = _supremum(samples, lambda t: es(t).reshape(len(t), -1), samples.shape or (1, 1))
    if samples.panels is None or samples.relative:
        return es, error
    return es, replace(error, sup=error.sup + _rounding(es, float(samples.times[-1])))


def _rounding(es: ExponentialSum, end: float) -> float:
    """Return an upper bound of the rounding error of a sum, including the rounding of phases, at any time up to
    ``end``.
    """
    weights, phase = es.weights.reshape(len(es.rates), -1), np.abs(es.rates.imag) * np.minimum(end, -1 / es.rates.real)
    along, across = np.abs(weights.real).max(axis=1), np.abs(weights.imag).max(axis=1)
    if es.is_complex:
        along, across = np.abs(weights).max(axis=1), np.zeros(len(weights))
    seen = along + across * np.minimum(1, phase)  # the sine part of a slow pair is small, and so is its rounding
    return float(np.finfo(np.float64).eps * (2 * seen + phase * (along + across)).sum())


def _supremum(samples: Samples, fitted: Callable[[np.ndarray], np.ndarray], entries: tuple[int, ...]) -> Error:
    """Measure the error of ``fitted``, a function from times (n,) to values (n, entries), against the samples.

    A function is compared with ``fitted`` on its panels, which are halved until interpolation resolves the error. Then
    the function is evaluated again around the largest errors. ``entries`` are d_out and d_in of a matrix kernel, which
    the ℓ1 norm requires.
    """
    size = np.abs(samples.values - fitted(samples.times)).max(axis=1)
    weighted = size * samples.weight
    worst = np.sort(np.argsort(-weighted)[:_ADDED])
    sup, times, values = float(weighted.max()), samples.times[worst], samples.values[worst]
    kernel = np.abs(samples.values).max(axis=1)
    if samples.panels is None or samples.function is None:
        return Error(sup, 0.0, times, values, size, kernel)
    function, floor = samples.function, _ROUNDING * float(weighted.max() + (kernel * samples.weight).max())

    def error(panels: Panels) -> Panels:
        left = panels.values - fitted(panels.times.reshape(-1)).reshape(panels.values.shape)
        return panels.with_values(left)

    def coarse(panels: Panels) -> np.ndarray:
        nonlocal sup
        left, weight = error(panels), samples.weigh(panels.values)
        sup = max(sup, float((np.abs(left.values).max(axis=2) * weight).max()))
        misfit = left.misfit()
        return (misfit * weight[:, -misfit.shape[1] :] > _FOLLOWED * sup + floor).any(axis=1)

    most = samples.panels.times.size + _MORE
    panels, followed = _panels.refined(samples.panels, function, coarse, most=most, step=samples.step)
    left, weight = error(panels), samples.weigh(panels.values)
    missed = 0.0
    if not followed:
        misfit = left.misfit()
        missed = float((misfit * weight[:, -misfit.shape[1] :]).max())
    at, between = left.dense()
    near = np.abs(between).max(axis=2) * weight.max(axis=1)[:, None]
    rows = np.abs(between).reshape(*between.shape[:2], *entries).sum(axis=3)
    l1 = np.trapezoid(rows, at[:, :, None], axis=1).sum(axis=0).max()
    beside = np.pad(near, ((0, 0), (1, 1)))
    where, top = np.nonzero((near >= beside[:, :-2]) & (near >= beside[:, 2:]))  # a panel may have several extrema
    largest = np.argsort(-near[where, top])[:_ADDED]
    where, top = where[largest], top[largest]
    sides = at[where, np.maximum(top - 1, 0)], at[where, np.minimum(top + 1, at.shape[1] - 1)]
    close = np.linspace(*sides, _CLOSE)
    close = close if samples.step is None else samples.step * np.rint(close / samples.step)
    close = np.unique(np.concatenate([close.reshape(-1), times]))
    values = function(close)
    local = np.abs(values - fitted(close)).max(axis=1)
    sizes = np.concatenate([size, np.abs(left.values).max(axis=2).reshape(-1), local])
    kernels = np.concatenate([kernel, np.abs(panels.values).max(axis=2).reshape(-1), np.abs(values).max(axis=1)])
    weighted = local * samples.weigh(values)
    worst = np.sort(np.argsort(-weighted)[:_ADDED])
    return Error(max(sup, float(weighted.max())) + missed, float(l1), close[worst], values[worst], sizes, kernels)
