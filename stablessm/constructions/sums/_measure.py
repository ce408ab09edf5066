"""A fit as an ExponentialSum, with its errors measured on the whole grid; and why a fit fails."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from stablessm.constructions.sums import _modes
from stablessm.constructions.sums._polish import Fit
from stablessm.constructions.sums._samples import Samples
from stablessm.constructions.sums._search import Search
from stablessm.constructions.sums.result import ExponentialSum

_GROWS = 1.2  # the last tenth of the horizon holds values so many times larger than all before


def measured(search: Search, samples: Samples, unit: float, started: float, fit: Fit) -> ExponentialSum:
    """Of a fit to samples / unit; ``seconds`` are counted from ``started``, a ``time.perf_counter()``."""
    domain = search.domain
    weights = unit * domain.weights(fit.coefficients, fit.rates).reshape(len(fit.rates), *samples.shape)
    kind = "discrete" if domain.discrete else "continuous"
    es = ExponentialSum(fit.rates, weights, samples.dt, samples.horizon, kind, method=fit.method)  # type: ignore[arg-type]
    left = es(samples.times).reshape(samples.values.shape) - samples.values
    errors = [_errors(left, samples.values)]
    if samples.extra is not None:
        times, values, _ = samples.extra
        errors.append(_errors(es(times).reshape(values.shape) - values, values))
    some = np.linspace(0, len(samples.times) - 1, min(len(samples.times), 4000)).astype(np.int64)
    bound = unit * search.lower_bound(es.order) * (1.0 if domain.discrete else samples.dt)
    return replace(
        es,
        error=max(error for error, _ in errors),
        relative_error=max(error for _, error in errors),
        l1_error=_l1(left, samples, domain.discrete),
        lower_bound=bound,
        condition=_modes.condition(domain.matrix(fit.rates, samples.times[some])),
        start=float(samples.times[0]),
        seconds=time.perf_counter() - started,
    )


def _errors(left: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    size, scale = np.abs(left).max(axis=1), np.abs(values).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(size > 0, size / scale, 0.0)
    return float(size.max(initial=0.0)), float(ratio.max(initial=0.0))


def _l1(left: np.ndarray, samples: Samples, discrete: bool) -> float:
    """The largest row sum of Σ |left|, as the induced norm from sup to sup."""
    entries = np.abs(left).reshape(len(left), *(samples.shape or (1, 1))).sum(axis=2)
    if samples.uniform:
        return float(entries.sum(axis=0).max()) * (1.0 if discrete else samples.dt)
    return float(np.trapezoid(entries, samples.times, axis=0).max()) / (samples.dt if discrete else 1.0)


def reason(search: Search, samples: Samples, unit: float, tol: float) -> tuple[str, str]:
    """Why no sum of samples / unit meets the tolerance, and what to do."""
    size = np.abs(samples.values).max(axis=1)
    cut = max(1, 9 * len(size) // 10)
    if size[cut:].max(initial=0.0) > _GROWS * size[:cut].max():
        what = f"the kernel grows to the end of the horizon, up to {size.max():.3g}, and a stable sum decays"
        return what, "a kernel that decays, or one that is multiplied by e^(-ct) and the c taken back afterwards"
    if search.domain.positive and not search.monotone:
        return "the kernel is not completely monotone", "leave out positive=True"
    if search.domain.real and not search.monotone:
        return "the kernel oscillates, or changes too fast for real decays", "leave out real=True"
    noise = unit * search.noise
    if noise > tol / 4:
        what = f"the samples are noisy: their Hankel singular values level off as those of noise of {noise:.2g}"
        return what, f"a tolerance above {4 * noise:.2g}, or smoother samples"
    what = f"no sum of at most {search.most} states was found"
    return what, "a larger tol, or a shorter horizon"
