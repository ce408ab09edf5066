"""``norm="l2"``: weighted least squares on noisy samples, with standard errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.constructions._checks import real_array
from stablessm.constructions.sums import _measure
from stablessm.constructions.sums._evidence import Path
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Fit, Problem, fit_weights, real_rows
from stablessm.constructions.sums._samples import Samples
from stablessm.constructions.sums.result import ExponentialSum

_MOST = 40  # real states, unless max_order says otherwise
_ALIKE = 1.5  # noise levels of several outputs that count as one


@final
@dataclass(frozen=True, eq=False)
class Noise:
    """The standard deviation of sample [i, entry] is level scales[entry] / graded[i]; complex samples: of each part."""

    graded: np.ndarray
    """(n,) with a mean square of one."""
    scales: np.ndarray
    """(q,) with a mean square of one."""
    level: float | None
    """None: to be estimated."""


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """What least squares found, and why it is less than was asked for, if it is."""

    sum: ExponentialSum
    reason: tuple[str, str] | None = None
    """What is wrong, and what to do."""
    interrupted: bool = False


def noise_model(samples: Samples, noise: Any, weights: Any) -> Noise:
    """Check the arguments ``noise`` and ``weights`` of ``exponential_sum``."""
    n, q = samples.values.shape
    graded, scales = np.ones(n), np.ones(q)
    if noise is None and weights is None:
        return Noise(graded, scales, None)
    if noise is not None and weights is not None:
        raise ArgumentError("weights", "None, since noise= already says how much each sample counts", "both")
    if weights is not None:
        given = real_array("weights", weights)
        if given.shape != (n,) or not np.isfinite(given).all() or (given < 0).any() or not given.any():
            raise ArgumentError(
                "weights", f"{n} numbers from 0 up, one per time", f"shape {given.shape}, {_span(given)}"
            )
        return Noise(np.sqrt(given / given.mean()), scales, None)
    given = real_array("noise", noise)
    if given.shape not in ((), (n,), samples.shape) or not (np.isfinite(given) & (given > 0)).all():
        shapes = f"one, or {n} (one per time)" + (
            f", or shape {samples.shape} (one per output)" if samples.shape else ""
        )
        expected = f"positive standard deviations: {shapes}"
        raise ArgumentError("noise", expected, f"shape {given.shape}, {_span(given)}")
    if given.shape == (n,):
        level = float(np.mean(given**-2.0) ** -0.5)
        return Noise(level / given, scales, level)
    level = float(np.sqrt(np.mean(given**2)))
    return Noise(graded, np.broadcast_to(given.reshape(-1) / level, (q,)), level)


def fit(
    samples: Samples,
    domain: Domain,
    noise: Noise,
    started: float,
    *,
    tol: float | None,
    order: int | None,
    max_order: int | None,
    tell: Callable[[], object],
) -> Outcome:
    """The least-squares sum: of an order, of the lowest order within ``tol``, or of the order with most evidence."""
    path, best, interrupted = _searched(samples, domain, noise, order, max_order, tell)
    if interrupted:
        return Outcome(_result(path, best, samples, noise, started), interrupted=True)
    if samples.values.shape[1] > 1 and noise.level is None and best:  # outputs may differ in their noise
        levels = np.sqrt((np.abs(path.left(best)) ** 2).mean(axis=0)) * noise.scales
        if levels.max() > _ALIKE * levels.min() > 0:
            noise = replace(noise, scales=levels / np.sqrt(np.mean(levels**2)))
            path, best, interrupted = _searched(samples, domain, noise, order, max_order, tell)
    if interrupted:
        return Outcome(_result(path, best, samples, noise, started), interrupted=True)
    if best == 0:
        what = "no mode stands out of the noise, whose standard deviation is about"
        return Outcome(
            _result(path, 1, samples, noise, started),
            (f"{what} {path.level(0):.3g}", "more samples, or an order= if modes are known to be there"),
        )
    if tol is not None:
        within = [k for k in range(1, best + 1) if path.rms(k) <= tol]
        if not within:
            found = _result(path, best, samples, noise, started)
            what = f"the evidence ends at order {best}, where the residual is noise of {found.noise:.3g}"
            if max_order is not None and best == max_order:
                what = f"max_order = {max_order} is too low"
            return Outcome(found, (what, f"a tolerance above {path.rms(best):.3g}, or no tol, which fits to the noise"))
        best = within[0]
    return Outcome(_result(path, best, samples, noise, started))


def _searched(
    samples: Samples,
    domain: Domain,
    noise: Noise,
    order: int | None,
    max_order: int | None,
    tell: Callable[[], object],
) -> tuple[Path, int, bool]:
    """All fits, which order is the best of them, and whether an interruption ended the search."""
    limit = max(1, int((noise.graded > 0).sum()) // 2)  # as many numbers as there are samples
    if order is not None and order > limit:
        raise ArgumentError("order", f"at most {limit}, half the number of samples, with norm='l2'", order)
    one = np.ones(len(samples.times))
    problem = Problem(samples.times, samples.values / noise.scales, one, noise.graded, domain, tell)
    path = Path(problem, limit, noise=noise.level)
    try:
        if order is not None:
            return path, path.at_most(order), False
        return path, path.choose(max_order or (_MOST // 2 if domain.is_complex else _MOST)), False
    except KeyboardInterrupt:
        found = [k for k in path.models if 0 < k <= (order or k)]
        if not found:
            raise
        return path, min(found, key=path.rms if order is not None else path.criterion), True


def _result(path: Path, order: int, samples: Samples, noise: Noise, started: float) -> ExponentialSum:
    problem = path.problem
    found = fit_weights(problem, path.models[order].rates, "least squares")
    level = path.level(order)
    rate_errors, weight_errors = _standard_errors(problem, found, level)
    found = replace(found, coefficients=found.coefficients * noise.scales)
    es = _measure.measured(path, samples, 1.0, started, found)
    weight_errors = (weight_errors * noise.scales).reshape(es.weights.shape)
    return replace(es, norm="l2", residual=path.rms(order), noise=level, rate_errors=rate_errors,
                   weight_errors=weight_errors)  # fmt: skip


def _standard_errors(problem: Problem, found: Fit, level: float) -> tuple[np.ndarray, np.ndarray]:
    """(m,) of the rates and (m, q) of the weights, real and imaginary parts apart, from the Jacobian at the optimum."""
    domain, rates, entries = problem.domain, found.rates, problem.values.shape[1]
    graded = problem.graded[:, None]
    columns = domain.matrix(rates, problem.times) * graded
    if domain.is_complex:
        columns = np.concatenate([columns, 1j * columns], axis=1)
    columns = real_rows(columns)
    turns = domain.turns(rates)
    modes = np.exp(problem.times[:, None] * rates)[:, None, :] * domain.weights(found.coefficients, rates).T
    modes *= problem.times[:, None, None]
    slope = np.concatenate([modes, 1j * modes[..., turns]], axis=2)
    slope = slope if domain.is_complex else slope.real
    slopes = [real_rows(slope[:, entry] * graded) for entry in range(entries)]
    size = np.linalg.norm(columns, axis=0)
    size = np.where(size > 0, size, 1.0)
    inverse = np.linalg.pinv(columns / size, rcond=1e-14) / size[:, None]
    follows = [inverse @ part for part in slopes]  # how the weights follow the rates
    apart = np.concatenate([part - columns @ follow for part, follow in zip(slopes, follows, strict=True)])
    scale = np.linalg.norm(apart, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    root = np.linalg.pinv(apart / scale, rcond=1e-14).T / scale  # root.T @ root is the covariance of the rates
    moved = level * np.linalg.norm(root, axis=0)
    rate_errors = moved[: len(rates)].astype(np.complex128)
    rate_errors[turns] += 1j * moved[len(rates) :]
    spread = np.stack(
        [np.sqrt((inverse**2).sum(axis=1) + ((root @ follow.T) ** 2).sum(axis=0)) for follow in follows], axis=1
    )
    spread *= level
    parts = spread[: len(rates)], spread[len(rates) :]
    weights = parts[0] + 1j * parts[1] if domain.is_complex else domain.weights(spread, rates)
    return (rate_errors, weights) if turns.any() else (rate_errors.real, weights.real)


def _span(values: np.ndarray) -> str:
    return f"{values.min():.3g} to {values.max():.3g}" if values.size else "empty"
