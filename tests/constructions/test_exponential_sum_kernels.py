"""The kernels that must work, each with its order and error."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy.linalg import hankel, svdvals
from scipy.special import airy

from stablessm.constructions import ExponentialSum, exponential_sum

EXPONENTS = (0.5, 1.1, 1.5, 2.0)
TOLERANCES = (1e-2, 1e-4, 1e-6, 1e-8)
ORDERS = {0.5: (4, 7, 10, 13), 1.1: (3, 6, 10, 13), 1.5: (2, 5, 9, 12), 2.0: (2, 4, 8, 12)}
LIMITS = {0.5: (6, 9, 13, 16), 1.1: (5, 9, 12, 15), 1.5: (5, 8, 11, 15), 2.0: (3, 7, 11, 14)}
"""As docs/constructions.md has them, for each of the tolerances."""


def power_law(p: float, horizon: int) -> np.ndarray:
    return (1 + np.arange(horizon + 1.0)) ** -p


@functools.cache
def limit(p: float, tol: float) -> int:
    """The smallest m with σ_{m+1} < tol, of the 501 x 501 Hankel matrix of the samples k = 0 … 1000."""
    samples = power_law(p, 1000)
    return int((svdvals(hankel(samples[:501], samples[500:])) >= tol).sum())


def sup_error(es: ExponentialSum, samples: np.ndarray) -> float:
    return float(np.abs(es(es.dt * np.arange(len(samples))) - samples).max())


@pytest.mark.parametrize("tol", TOLERANCES)
@pytest.mark.parametrize("p", EXPONENTS)
def test_power_laws_take_fewer_modes_than_the_hankel_limit(p: float, tol: float) -> None:
    samples = power_law(p, 1000)
    es = exponential_sum(lambda t: (1 + t) ** -p, 1000, tol=tol)
    assert sup_error(es, samples) == pytest.approx(es.error, rel=1e-6, abs=1e-15)
    assert es.error <= tol
    column = TOLERANCES.index(tol)
    assert (es.order, limit(p, tol)) == (ORDERS[p][column], LIMITS[p][column])  # at least one saved, by minimax
    assert (es.rates < 0).all()


@pytest.mark.parametrize(("p", "tol"), [(0.5, 1e-4), (1.1, 1e-8), (1.5, 1e-6), (2.0, 1e-8)])
def test_positive_weights_cost_nothing_more(p: float, tol: float) -> None:
    es = exponential_sum(power_law(p, 1000), tol=tol, positive=True)
    assert es.error <= tol
    assert es.order == ORDERS[p][TOLERANCES.index(tol)]
    assert es.rates.dtype == es.weights.dtype == np.float64
    assert (es.weights > 0).all()


def test_an_order_gives_an_error_that_alternates() -> None:
    """2m + 1 extrema of equal size and alternating sign: no sum of this order nearby is better."""
    es = exponential_sum(lambda t: (1 + t) ** -1.1, 1000, order=8)
    left = es(np.arange(1001.0)) - power_law(1.1, 1000)
    runs = np.split(left, np.flatnonzero(np.diff(np.sign(left))) + 1)
    extrema = [np.abs(run).max() for run in runs]
    assert len(extrema) == 17
    assert min(extrema) > 0.99 * max(extrema)


@pytest.mark.parametrize("p", [1.1, *(pytest.param(p, marks=pytest.mark.slow) for p in (0.5, 1.5, 2.0))])
def test_a_million_steps(p: float) -> None:
    es = exponential_sum(lambda t: (1 + t) ** -p, 10**6, tol=1e-6)
    assert sup_error(es, power_law(p, 10**6)) <= 1e-6
    assert es.order == {0.5: 17, 1.1: 12, 1.5: 10, 2.0: 8}[p]
    assert es.l1_error > es.lower_bound > 0


@pytest.mark.slow
def test_the_limit_of_a_long_horizon_is_that_of_the_whole_matrix() -> None:
    samples = power_law(1.1, 3000)
    whole = svdvals(hankel(samples[:1501], samples[1500:]))
    for order in (3, 8, 12):
        assert exponential_sum(samples, order=order).lower_bound == pytest.approx(whole[order], rel=0.02)


def test_a_negative_kernel_is_as_good() -> None:
    found, mirrored = (exponential_sum(sign * power_law(1.1, 5000), tol=1e-6) for sign in (1, -1))
    assert (found.order, found.error) == (mirrored.order, pytest.approx(mirrored.error))


def test_a_long_matrix_valued_kernel_has_its_own_limit() -> None:
    samples = np.stack([power_law(p, 2500) for p in (0.5, 1.1, 2.0)], axis=1)[:, :, None]
    es = exponential_sum(samples, order=5)
    whole = np.concatenate([hankel(column[:1251], column[1250:]) for column in samples[:, :, 0].T])
    assert es.lower_bound == pytest.approx(svdvals(whole)[5] / 3**0.5, rel=1e-3)  # of three outputs
    assert es.l1_error >= es.lower_bound


def test_a_singular_kernel_in_relative_error() -> None:
    es = exponential_sum(
        lambda t: t**-0.4, times=np.geomspace(1e-4, 1e4, 2000), time="continuous", relative=True, tol=1e-6
    )
    t = np.geomspace(1e-4, 1e4, 33333)
    assert np.abs(es(t) * t**0.4 - 1).max() <= 1.01e-6
    assert es.relative_error <= 1e-6
    assert es.order == 29


def cosines(t: np.ndarray) -> np.ndarray:
    return np.exp(-t / 50) * np.cos(t) + 0.5 * np.exp(-t / 200) * np.cos(0.3 * t + 1)


def lag(t: np.ndarray) -> np.ndarray:
    return (t == 100).astype(float)


@pytest.mark.parametrize(
    ("kernel", "horizon", "dt", "tol", "order"),
    [
        (cosines, 1000, 1.0, 1e-10, 4),
        (cosines, 20000, 1.0, 1e-10, 4),
        (lambda t: airy(t - 6)[0], 300, 0.1, 1e-6, 10),
        (lambda t: airy(-t)[0], 200, 0.1, 1e-2, 14),
        (lambda t: np.exp(-np.sqrt(t)), 1000, 1.0, 1e-6, 7),
        (lambda t: np.exp(-(((t - 9) / 3) ** 2)), 100, 1.0, 1e-4, 9),
        (lag, 400, 1.0, 1e-6, 101),
    ],
    ids=["cosines", "cosines, long", "Airy", "Airy backwards", "stretched", "bump", "lag"],
)
def test_other_kernels(kernel: object, horizon: int, dt: float, tol: float, order: int) -> None:
    es = exponential_sum(kernel, horizon, dt=dt, tol=tol)
    assert sup_error(es, kernel(dt * np.arange(horizon + 1))) <= tol
    assert es.order == order
    assert (np.abs(es.eigenvalues) < 1).all()


@pytest.mark.slow
def test_a_lag_needs_a_state_for_every_step() -> None:
    """The Hankel matrix of a lag is a permutation: 101 singular values of one."""
    assert exponential_sum(lag(np.arange(401)), order=60).lower_bound == pytest.approx(1.0)
    assert exponential_sum(lag(np.arange(401)), order=101).lower_bound == 0.0
    assert exponential_sum(np.eye(1, 401, 180)[0], tol=1e-6).order == 181  # flat as noise, and no noise


@pytest.mark.parametrize(("late", "horizon"), [(500, 3000), pytest.param(900, 950, marks=pytest.mark.slow)])
def test_a_late_lag_is_a_ring(late: int, horizon: int) -> None:
    es = exponential_sum(np.eye(1, horizon + 1, late)[0], tol=1e-6)
    assert es.order == late + 1
    assert es.error <= 1e-6


def test_a_loose_tolerance_needs_no_large_weights() -> None:
    es = exponential_sum(np.eye(1, 1001, 50)[0], tol=1e-2)
    assert es.order == 51
    assert np.abs(es.weights).max() < 100


@pytest.mark.parametrize(
    ("horizon", "size", "tol"), [(2000, 1e-2, 1e-8), (2001, 1e-2, 1e-8), (30_000, 1e-2, 1e-8), (2001, 3e-9, 1e-10)]
)
def test_a_small_oscillation_is_seen_at_any_length(horizon: int, size: float, tol: float) -> None:
    es = exponential_sum(lambda t: np.exp(-t / 100) + size * np.exp(-t / 300) * np.cos(t), horizon, tol=tol)
    assert es.order == 3
    assert es.error <= tol


@pytest.mark.parametrize("p", [0.5, 2.0])
def test_the_condition_of_a_long_horizon_is_that_of_the_whole_grid(p: float) -> None:
    es = exponential_sum(lambda t: (1 + t) ** -p, 20_000, tol=1e-5)
    assert es.order < 15  # not a ring, though it falls below the tolerance
    modes = np.exp(np.arange(20_001.0)[:, None] * es.rates)
    assert es.condition == pytest.approx(np.linalg.cond(modes / np.linalg.norm(modes, axis=0)), rel=0.1)


def test_continuous_time_holds_between_the_samples() -> None:
    es = exponential_sum(lambda t: np.exp(-t) * np.cos(3 * t) + (1 + t) ** -2, 60, dt=0.25, tol=1e-3, time="continuous")
    t = np.linspace(0, 15, 4001)
    assert np.abs(es(t) - np.exp(-t) * np.cos(3 * t) - (1 + t) ** -2).max() <= 1.1e-3


def test_irregular_samples_of_an_oscillation() -> None:
    t = np.sort(np.random.default_rng(0).uniform(0, 40, 300))
    es = exponential_sum(cosines(t), times=t, tol=1e-4, time="continuous")
    assert np.abs(es(t) - cosines(t)).max() <= 1e-4
    assert es.order <= 8
    assert np.isnan(es.lower_bound)
