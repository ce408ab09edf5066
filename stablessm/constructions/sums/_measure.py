"""A fit as an ExponentialSum, with its errors measured on the whole grid; and why a fit fails."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

import numpy as np

from stablessm.constructions.sums import _modes
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Fit
from stablessm.constructions.sums._samples import Samples
from stablessm.constructions.sums._search import Search, subset
from stablessm.constructions.sums.result import ExponentialSum, TimeKind

_GROWS = 1.2  # the last tenth of the horizon holds values so many times larger than all before
_AT_LIMIT = 1.1  # times the slowest rate allowed: a rate that would be slower if it could
_FREE = 1e-6  # of that rate: as good as no limit


class Bounded(Protocol):
    """What a search knows beside its fits."""

    @property
    def domain(self) -> Domain: ...

    def lower_bound(self, order: int) -> float: ...


def measured(search: Bounded, samples: Samples, unit: float, started: float, fit: Fit) -> ExponentialSum:
    """Of a fit to samples / unit; ``seconds`` are counted from ``started``, a ``time.perf_counter()``."""
    domain = search.domain
    weights = unit * domain.weights(fit.coefficients, fit.rates).reshape(len(fit.rates), *samples.shape)
    kind: TimeKind = "discrete" if domain.discrete else "continuous"
    es = ExponentialSum(
        fit.rates, weights, samples.dt, samples.horizon, kind, method=fit.method, is_complex=domain.is_complex
    )
    left = es(samples.times).reshape(samples.values.shape) - samples.values
    errors, l1_error = [_errors(left, samples.values)], _l1(left, samples, domain.discrete)
    if samples.extra is not None:
        times, values, _ = samples.extra
        errors.append(_errors(es(times).reshape(values.shape) - values, values))
    if samples.fine is not None:
        times, values = samples.fine
        l1_error = max(l1_error, _trapezoid(es(times).reshape(values.shape) - values, times, samples.shape))
    some = subset(len(samples.times), max(4000, 8 * es.order))
    spacing = np.sqrt(np.gradient(samples.times[some]))[:, None]  # so that a few points stand for all
    bound = unit * search.lower_bound(es.order) * (1.0 if domain.discrete else samples.dt)
    return replace(
        es,
        error=max(error for error, _ in errors),
        relative_error=max(error for _, error in errors),
        l1_error=l1_error,
        lower_bound=bound,
        condition=_modes.condition(domain.matrix(fit.rates, samples.times[some]) * spacing),
        start=float(samples.times[0]),
        end=float(samples.times[-1]),
        seconds=time.perf_counter() - started,
    )


def _errors(left: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    size, scale = np.abs(left).max(axis=1), np.abs(values).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(size > 0, size / scale, 0.0)
    return float(size.max(initial=0.0)), float(ratio.max(initial=0.0))


def _l1(left: np.ndarray, samples: Samples, discrete: bool) -> float:
    """The largest row sum of Σ |left|, as the induced norm from sup to sup."""
    if samples.uniform:
        return float(_rows(left, samples.shape).sum(axis=0).max()) * (1.0 if discrete else samples.dt)
    return _trapezoid(left, samples.times, samples.shape) / (samples.dt if discrete else 1.0)


def _trapezoid(left: np.ndarray, times: np.ndarray, shape: tuple[int, ...]) -> float:
    return float(np.trapezoid(_rows(left, shape), times, axis=0).max())


def _rows(left: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """(n, d_out): |left|, summed over inputs."""
    return np.abs(left).reshape(len(left), *(shape or (1, 1))).sum(axis=2)


def reason(search: Search, best: Fit, goal: float, unit: float) -> tuple[str, str]:
    """Why no sum of samples / unit comes within the goal, and what to do; ``best`` is the best that was found."""
    samples, domain = search.samples, search.domain
    size = np.abs(samples.values).max(axis=1)
    cut = max(1, 9 * len(size) // 10)
    if size[-1] * samples.weight[-1] > goal and size[cut:].max(initial=0.0) > _GROWS * size[:cut].max():
        what = f"the kernel grows to the end of the horizon, up to {unit * size.max():.3g}, and a stable sum decays"
        return what, "a kernel that decays, or one that is multiplied by e^(-ct) and the c taken back afterwards"
    if (-best.rates.real < _AT_LIMIT * domain.slowest).any():
        free = Search(samples, replace(domain, slowest=_FREE * domain.slowest))
        if free.smallest(goal) is not None:
            if domain.slowest > Domain.float32_limit(domain.dt):
                return (
                    f"stable_margin = {domain.slowest:g} allows no rate that is slow enough",
                    "a smaller stable_margin",
                )
            what = f"the kernel needs rates slower than {domain.slowest:.3g}, where float32 rounds to 1 what decays"
            return what, "a larger dt, for fewer steps of the same time, or a larger tol"
    if domain.positive and not search.monotone:
        return "the kernel is not completely monotone", "leave out positive=True"
    if domain.real and not search.monotone:
        return "the kernel oscillates, or changes too fast for real decays", "leave out real=True"
    if search.noise > goal / 4:
        noise = unit * search.noise
        what = (
            f"the samples are noisy: their Hankel singular values level off as those of noise of {noise:.2g}; sums of"
            " many states, which follow the noise, were not tried"
        )
        return what, f"norm='l2', which fits noisy samples by least squares, or a tolerance above {4 * noise:.2g}"
    what = f"no sum of at most {search.most} states was found"
    return what, "a larger tol, or a shorter horizon"
