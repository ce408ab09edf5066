"""Fits with ``norm="l2"``: weighted least squares on noisy samples, with standard errors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.constructions._checks import real_array
from stablessm.constructions.sums import _measure
from stablessm.constructions.sums._evidence import Path
from stablessm.constructions.sums._modes import Domain, unit_columns
from stablessm.constructions.sums._polish import Fit, Problem, fit_weights, real_rows
from stablessm.constructions.sums._samples import Request, Samples
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


def fit(samples: Samples, domain: Domain, request: Request, noise: Any, weights: Any) -> ExponentialSum:
    """Fit an exponential sum by least squares.

    The order is ``request.order``, or the lowest order whose residual is at most ``request.tol``, or, if neither is
    given, the order with the best BIC.
    """
    model = noise_model(samples, noise, weights)
    whole, (unit, samples) = samples, samples.scaled()
    model = replace(model, level=model.level and model.level / unit)
    path, best, interrupted = _searched(samples, domain, model, request)
    if samples.values.shape[1] > 1 and model.level is None and best and not interrupted:
        levels = (
            np.sqrt((np.abs(path.left(best)) ** 2).mean(axis=0)) * model.scales
        )  # outputs may differ in their noise
        if levels.max() > _ALIKE * levels.min() > 0:
            model = replace(model, scales=levels / np.sqrt(np.mean(levels**2)))
            path, best, interrupted = _searched(samples, domain, model, request)
    tol, found = request.tol, _result(path, max(best, 1), whole, unit, model, request)
    if interrupted:
        warnings.warn(_measure.INTERRUPTED, stacklevel=4)
        return found
    if best == 0:
        what = (
            f"no mode can be distinguished from the noise, whose standard deviation is about {unit * path.level(0):.3g}"
        )
        remedy = "more samples, or an order= if modes are known to be there"
    elif tol is None:
        return found
    else:
        within = [k for k in range(1, best + 1) if unit * path.rms(k) <= tol]
        if within:
            return _result(path, within[0], whole, unit, model, request)
        what = f"the samples support no order above {best}, at which the residual is noise of {found.noise:.3g}"
        if request.max_order is not None and best == request.max_order:
            what = f"max_order = {request.max_order} is too low"
        remedy = f"a tolerance above {unit * path.rms(best):.3g}, or no tol, which fits to the noise"
    goal = "" if tol is None else f" within tol = {tol:g}"
    raise FitError(f"no sum was found{goal} by least squares: {what}", remedy, found)


def _searched(samples: Samples, domain: Domain, noise: Noise, request: Request) -> tuple[Path, int, bool]:
    """Fit sums of increasing order; return all fits, the best order, and whether the search was interrupted."""
    limit, order = max(1, int((noise.graded > 0).sum()) // 2), request.order  # one weight and one rate per state
    if order is not None and order > limit:
        raise ArgumentError("order", f"at most {limit}, half the number of samples, with norm='l2'", order)
    one = np.ones(len(samples.times))
    problem = Problem(samples.times, samples.values / noise.scales, one, noise.graded, domain, request.tell)
    path = Path(problem, limit, noise=noise.level)
    try:
        if order is not None:
            return path, path.at_most(order), False
        return path, path.choose(request.max_order or (_MOST // 2 if domain.is_complex else _MOST)), False
    except KeyboardInterrupt:
        found = [k for k in path.models if 0 < k <= (order or k)]
        if not found:
            raise
        return path, min(found, key=path.rms if order is not None else path.criterion), True


def _result(path: Path, order: int, samples: Samples, unit: float, noise: Noise, request: Request) -> ExponentialSum:
    problem = path.problem
    found = fit_weights(problem, path.models[order].rates, "least squares")
    level = path.level(order)
    rate_errors, weight_errors = _standard_errors(problem, found, level)
    found = replace(found, coefficients=found.coefficients * noise.scales)
    es = _measure.measured(samples, problem.domain, found, request, unit)
    weight_errors = (unit * weight_errors * noise.scales).reshape(es.weights.shape)
    es = replace(es, norm="l2", residual=unit * path.rms(order), noise=unit * level)
    return replace(es, rate_errors=rate_errors, weight_errors=weight_errors)


def _standard_errors(problem: Problem, found: Fit, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard errors of rates (m,) and weights (m, q), separately for real and imaginary parts."""
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
    inverse = _inverse(columns)
    follows = [inverse @ part for part in slopes]  # derivatives of the weights by the rates
    apart = np.concatenate([part - columns @ follow for part, follow in zip(slopes, follows, strict=True)])
    root = _inverse(apart).T  # root.T @ root is the covariance of the rates
    moved = level * np.linalg.norm(root, axis=0)
    rate_errors = moved[: len(rates)].astype(np.complex128)
    rate_errors[turns] += 1j * moved[len(rates) :]
    own = (inverse**2).sum(axis=1)
    spread = level * np.sqrt([own + ((root @ follow.T) ** 2).sum(axis=0) for follow in follows]).T
    parts = spread[: len(rates)], spread[len(rates) :]
    weights = parts[0] + 1j * parts[1] if domain.is_complex else domain.weights(spread, rates)
    return (rate_errors, weights) if turns.any() else (rate_errors.real, weights.real)


def _inverse(columns: np.ndarray) -> np.ndarray:
    """Return the pseudoinverse of a matrix, computed after scaling its columns to norm one."""
    unit, scale = unit_columns(columns)
    return np.asarray(np.linalg.pinv(unit, rcond=1e-14) / scale[:, None])
