"""The parts of a fit, each against a formula of its own: modes, Hankel matrices, panels, samples, standard errors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hankel as hankel_matrix
from scipy.optimize import linprog

from stablessm.constructions import ExponentialSum, FitError, exponential_sum
from stablessm.constructions.sums import _hankel, _modes, _panels, _sampling, _starts, expression
from stablessm.constructions.sums._atoms import next_modes
from stablessm.constructions.sums._evidence import Path
from stablessm.constructions.sums._graded_hankel import graded_hankel
from stablessm.constructions.sums._interior_point import minimax_program
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Fit, Problem, fit_weights, least_squares, minimax
from stablessm.constructions.sums._samples import Samples

seeds = st.integers(0, 2**31)
kinds = st.sampled_from(["real", "complex", "continuous"])


def domain(kind: str, rng: np.random.Generator) -> Domain:
    return Domain(
        float(rng.uniform(0.3, 3)), kind != "continuous", real=False, positive=False,
        slowest=float(rng.uniform(1e-3, 0.02)), is_complex=kind == "complex",
    )  # fmt: skip


def rates_in(one: Domain, rng: np.random.Generator, count: int = 4) -> np.ndarray:
    """Decays, waves and, in discrete time, a negative eigenvalue."""
    decay = one.slowest + rng.uniform(0.03, 0.3, count) / one.dt
    turn = rng.uniform(0.2, 2.5, count) / one.dt
    if one.is_complex:
        return -decay + 1j * turn * rng.choice([-1, 1], count)
    turn[0] = 0.0
    if one.discrete:
        turn[1] = np.pi / one.dt
    return -decay + 1j * turn


@settings(max_examples=12, deadline=None)
@given(seeds, kinds)
def test_the_matrix_of_modes_and_their_weights_are_the_sum(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    one = domain(kind, rng)
    rates, times = rates_in(one, rng), one.dt * np.arange(20.0)
    order = one.order(rates)
    assert order == {"real": 6, "complex": 4, "continuous": 7}[kind]
    coefficients = rng.standard_normal((order, 3)) + (1j * rng.standard_normal((order, 3)) if one.is_complex else 0)
    direct = np.exp(np.outer(times, rates)) @ one.weights(coefficients, rates)
    expected = direct if one.is_complex else direct.real
    assert one.matrix(rates, times) @ coefficients == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=12, deadline=None)
@given(seeds, kinds)
def test_the_derivative_is_that_of_a_move(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    one = domain(kind, rng)
    rates, times = rates_in(one, rng), one.dt * np.arange(15.0)
    order, steps = one.order(rates), len(rates) + int(one.turns(rates).sum())
    coefficients = rng.standard_normal((order, 2)) + (1j * rng.standard_normal((order, 2)) if one.is_complex else 0)
    found = one.derivative(rates, times, coefficients)
    assert found.shape == (15, 2, steps)
    for i in range(steps):
        there, back = (one.matrix(one.move(rates, h * np.eye(steps)[i]), times) @ coefficients for h in (1e-6, -1e-6))
        assert found[:, :, i] == pytest.approx((there - back) / 2e-6, rel=1e-5, abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(seeds, kinds)
def test_no_move_leaves_the_domain(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    one = domain(kind, rng)
    if kind == "continuous":
        one = replace(one, band=2.6 / one.dt)
    rates = rates_in(one, rng)
    moved = one.move(rates, rng.uniform(-9, 9, len(rates) + int(one.turns(rates).sum())))
    assert (moved.real < -one.slowest).all()
    assert (np.abs(moved.imag) <= (np.pi / one.dt if one.discrete else one.band) * (1 + 1e-12)).all()
    assert (moved.imag >= 0).all() or one.is_complex
    assert one.order(moved) == one.order(rates)
    grown = (-moved.real - one.slowest) / (-rates.real - one.slowest)
    assert grown.max() <= math.exp(4) * (1 + 1e-9)  # a step of the decay is at most a factor e^4
    assert grown.min() >= math.exp(-4) * (1 - 1e-9)


def test_rates_that_are_admitted() -> None:
    one = Domain(0.5, discrete=True, real=False, positive=False, slowest=0.01, rest=0.02)
    pair = 0.9 * np.exp(1j)
    found = one.admit(np.array([0.8, -0.5, pair, pair.conj(), 2.0, 0.0, 1.0]))
    expected = np.log(np.array([0.5, 0.8, 0.9, 0.5, 1.0])) / 0.5 + 1j * np.array([np.pi, 0, 1, 0, 0]) / 0.5
    expected[4] = -0.03  # one that does not decay begins a little faster than the slowest
    order = lambda rates: rates[np.lexsort((rates.imag, rates.real))]  # noqa: E731
    assert order(found) == pytest.approx(order(expected), rel=1e-12)
    assert (np.diff(found.real) >= 0).all()
    continuous = replace(one, discrete=False, band=1.9)
    assert continuous.admit(np.array([0.8, -0.5])) == pytest.approx(np.log([0.8]) / 0.5)  # no negative eigenvalues
    assert len(continuous.admit(np.array([pair, pair.conj()]))) == 0  # 2 radians a unit of time is beyond the band
    real = replace(one, real=True)
    size = abs(np.log(pair) / 0.5)
    assert real.admit(np.array([pair, pair.conj(), -0.3])) == pytest.approx([-size / 0.7, -0.7 * size])
    both = replace(one, is_complex=True).admit(np.array([pair, pair.conj(), 0.0]))
    assert np.sort_complex(both) == pytest.approx(np.sort_complex(np.log([pair, pair.conj()]) / 0.5))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_slowest_rate_of_a_dtype_is_four_of_its_steps_below_one(dtype: str) -> None:
    value = math.exp(-0.25 * _modes.slowest(dtype, 0.25))
    assert 1 - value == pytest.approx(4 * np.spacing(np.array(1, dtype)) / 2, rel=1e-3)
    assert np.array(value, dtype) < 1


@settings(max_examples=10, deadline=None)
@given(seeds, st.booleans())
def test_stable_rates_keep_one_of_each_pair(seed: int, big: bool) -> None:
    rng = np.random.default_rng(seed)
    z = rng.uniform(0.2, 0.9, 3) * np.exp(1j * rng.uniform(0.1, 3, 3))
    found = _modes.stable_rates(np.concatenate([z, z.conj(), [-0.4, 5.0 if big else 0.0]]), 0.5)
    assert np.exp(0.5 * found[:4]) == pytest.approx([*z, -0.4])
    assert math.exp(0.5 * found[4].real) == pytest.approx(1 - 2.0**-22 if big else 1e-9, rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_least_squares_and_their_condition_do_not_depend_on_scales(seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns, values = rng.standard_normal((30, 4)), rng.standard_normal((30, 2))
    scale = 10.0 ** rng.uniform(-30, 30, 4)
    found = _modes.solve(columns * scale, values)
    assert found * scale[:, None] == pytest.approx(np.linalg.lstsq(columns, values, rcond=None)[0], rel=1e-8)
    unit = columns / np.linalg.norm(columns, axis=0)
    assert _modes.condition(columns * scale) == pytest.approx(np.linalg.cond(unit), rel=1e-8)
    assert _modes.condition(np.empty((5, 0))) == 1.0
    assert _modes.condition(np.zeros((5, 2))) == math.inf


@settings(max_examples=12, deadline=None)
@given(seeds, st.integers(9, 40), st.integers(1, 3), st.booleans(), st.booleans())
def test_hankel_matrices_have_the_singular_values_of_the_definition(
    seed: int, n: int, entries: int, padded: bool, is_complex: bool
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n, entries)) + (1j * rng.standard_normal((n, entries)) if is_complex else 0)
    full = np.concatenate([values, np.zeros((n - 1, entries))]) if padded else values
    rows = len(full) // 2 + 1
    whole = np.concatenate([hankel_matrix(column[:rows], column[rows - 1 :]) for column in full.T])
    expected = np.linalg.svd(whole, compute_uv=False)
    dense = _hankel.hankel(values, padded=padded)
    assert dense.singular_values == pytest.approx(expected, rel=1e-9)
    long = _hankel.long_hankel(values, 100, padded=padded)  # a block as wide as the matrix misses nothing
    assert long.singular_values == pytest.approx(expected, rel=1e-7)
    few = _hankel.long_hankel(values, 4, padded=padded)
    assert len(few.singular_values) == 4
    assert (few.singular_values <= expected[:4] * (1 + 1e-9)).all()  # Ritz values, from below
    assert few.singular_values[0] > 0.7 * expected[0]
    if padded:  # the shift of what ends is a contraction
        assert (np.abs(dense.eigenvalues(5)) <= 1 + 1e-9).all()


@settings(max_examples=12, deadline=None)
@given(seeds, st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_hankel_matrices_find_the_eigenvalues_of_a_sum(seed: int, count: int, more: int, is_complex: bool) -> None:
    """From 2 count samples on, that is from as many as there are unknowns."""
    rng = np.random.default_rng(seed)
    eigenvalues = np.linspace(0.5, 1.0, count) * np.exp(1j * np.linspace(0.4, 2.6, count) * is_complex)
    samples = np.power(eigenvalues, np.arange(2 * count + more)[:, None]) @ rng.uniform(1, 2, (count, 1))
    samples = samples if is_complex else samples.real
    for found in (_hankel.hankel(samples), _hankel.long_hankel(samples, 50)):
        assert np.sort_complex(found.eigenvalues(count)) == pytest.approx(np.sort_complex(eigenvalues), rel=1e-3)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(-0.95, 0.95).filter(lambda x: abs(x) > 0.3), min_size=2, max_size=2, unique=True))
def test_as_many_samples_as_unknowns_are_met(values: list[float]) -> None:
    samples = np.power(values, np.arange(4)[:, None]).sum(1)
    if abs(values[0] - values[1]) > 0.1:
        assert exponential_sum(samples, order=2).error < 1e-9
        assert exponential_sum(samples, order=3).error < 1e-9


def test_panels_interpolate_polynomials_and_tell_what_they_miss() -> None:
    rng = np.random.default_rng(0)
    smooth, rough = np.polynomial.Polynomial(rng.standard_normal(15)), np.polynomial.Polynomial(np.eye(1, 19, 18)[0])
    edges = np.array([0.0, 0.3, 1.0])
    panels = _panels.build(lambda t: np.stack([smooth(t), 2 * smooth(t)], 1), edges[:-1], edges[1:])
    times, values = panels.dense()
    assert values == pytest.approx(np.stack([smooth(times), 2 * smooth(times)], -1), abs=1e-12)
    assert times.shape == (2, 4 * 15 + 1)
    assert times[:, 0].tolist() == [0.0, 0.3]
    assert times[:, -1] == pytest.approx([0.3, 1.0])
    assert panels.misfit().max() < 1e-12
    coarse = _panels.build(lambda t: rough(t)[:, None], edges[:-1], edges[1:])
    checks = coarse.times[:, 16:]
    assert checks.shape == (2, 15)
    nodes = coarse.times[:, :16]
    gaps = (nodes[:, :-1] < checks) & (checks < nodes[:, 1:])
    assert gaps.all()  # one check in each gap between nodes
    for panel in range(2):
        through = np.polynomial.Polynomial.fit(nodes[panel], rough(nodes[panel]), 15)
        assert coarse.misfit()[panel] == pytest.approx(
            np.abs(through(checks[panel]) - rough(checks[panel])), rel=0.1, abs=1e-13
        )
    refined, followed = _panels.refined(
        coarse, lambda t: rough(t)[:, None], lambda p: (p.misfit() > 1e-12).any(1), most=9999
    )
    assert followed
    assert refined.misfit().max() <= 1e-12
    assert (refined.left[1:] == refined.right[:-1]).all()
    times, values = refined.points()
    assert (np.diff(times) > 0).all()
    assert values[:, 0] == pytest.approx(rough(times), abs=1e-14)
    stopped, followed = _panels.refined(coarse, lambda t: rough(t)[:, None], lambda p: p.left >= 0, most=300)
    assert not followed
    assert 31 * 2 <= stopped.times.size <= 300


def test_a_jump_has_its_size_and_its_place() -> None:
    def step(t: np.ndarray) -> np.ndarray:
        return np.where(t < 0.7, 5.0, 2.0)[:, None]

    panels = _panels.build(step, np.array([0.0]), np.array([1.0]))
    assert panels.jump() == (0.0, 0.0)
    halved, _ = _panels.refined(panels, step, lambda p: np.ptp(p.values, axis=(1, 2)) > 0, most=10**6)
    size, place = halved.jump()
    assert size == 3.0
    assert place == pytest.approx(0.7, abs=1e-10)


def test_late_times_are_multiples_of_the_step_and_far_apart() -> None:
    kept = _sampling._apart(np.array([0.0, 1.0, 2.5, 2.6, 9.0, 9.5]), 2.0)
    assert kept.tolist() == [0.0, 2.5, 9.5]
    assert _sampling._apart(np.array([0.0, 2.0, 4.0]), 2.0).tolist() == [0.0, 2.0, 4.0]


def test_a_ring_has_the_samples_and_their_echo() -> None:
    rng = np.random.default_rng(1)
    for is_complex in (False, True):
        values = rng.standard_normal((30, 2)) + (1j * rng.standard_normal((30, 2)) if is_complex else 0)
        for order in (6, 7):
            one = Domain(0.5, discrete=True, real=False, positive=False, slowest=1e-12, is_complex=is_complex)
            found = _starts.ring(one, values, order, echo=1e-3)
            fitted = one.matrix(found.rates, 0.5 * np.arange(3 * order)) @ found.coefficients
            assert one.order(found.rates) == order
            expected = np.concatenate([values[:order] * 1e-3**k for k in range(3)])
            assert fitted == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert _starts.ring(replace(one, real=True), values, 6) is None
    assert _starts.ring(replace(one, discrete=False), values, 6) is None


@settings(max_examples=8, deadline=None)
@given(seeds, st.sampled_from([0.3, 1.0, 4.0]))
def test_a_mixture_is_a_completely_monotone_kernel(seed: int, dt: float) -> None:
    rng = np.random.default_rng(seed)
    times = dt * np.arange(200.0)
    decays, weights = rng.uniform(0.02, 1, 3) / dt, rng.uniform(0.5, 2, 3)
    values = (np.exp(-np.outer(times, decays)) @ weights)[:, None]
    one = Domain(dt, discrete=True, real=False, positive=False, slowest=1e-15)
    problem = Problem(times, values, np.ones(200), np.full(200, 200**-0.5), one)
    found = _starts.mixture(problem, dt, uniform=True)
    assert (found.weights > 0).all()
    fitted = np.exp(-np.outer(times, found.decays)) @ found.weights
    assert found.error == pytest.approx(np.abs(fitted - values[:, 0]).max(), rel=1e-6)
    assert found.error < 3e-3 * values[0, 0]  # above 1e-3 for one seed in forty
    rows = np.exp(-np.outer(dt * np.arange(100), found.decays)) * np.sqrt(found.weights)
    limits = np.linalg.svd(rows, compute_uv=False) ** 2
    assert found.hankel_singular_values(100, dt)[: len(limits)] == pytest.approx(
        limits, rel=1e-6, abs=1e-12 * limits[0]
    )
    reduced = found.rates(2)
    assert len(reduced) == 2
    assert (reduced.real > -found.decays.max() * 1.01).all()
    assert (reduced.real < -found.decays.min() * 0.99).all()


@settings(max_examples=12, deadline=None)
@given(seeds, st.sampled_from(["even", "gaps", "irregular"]), st.booleans())
def test_the_next_mode_is_the_one_that_is_left(seed: int, kind: str, is_complex: bool) -> None:
    rng = np.random.default_rng(seed)
    times = {
        "even": np.arange(200.0),
        "gaps": np.sort(rng.choice(260, 200, replace=False)).astype(float),
        "irregular": np.sort(rng.uniform(0, 200, 200)),
    }[kind]
    one = Domain(1.0, discrete=kind != "irregular", real=False, positive=False, slowest=1e-9, is_complex=is_complex)
    turn = rng.uniform(0.3, 1.2) * (rng.choice([-1, 1]) if is_complex else 1)
    wave = np.exp((-0.02 + 1j * turn) * times) * np.exp(1j * rng.uniform(0, 6))
    left = (wave if is_complex else wave.real)[:, None]
    found = next_modes(one, times, left, np.empty((200, 0)), np.ones(200), 1.0)
    assert min(abs(rate.imag - turn) for rate in found) < 0.03
    if not is_complex:
        decay = np.exp(-0.05 * times)[:, None]
        (slow, *_) = next_modes(replace(one, real=True), times, decay, np.empty((200, 0)), np.ones(200), 1.0)
        assert -slow.real == pytest.approx(0.05, rel=0.5)
        basis = np.linalg.qr(decay)[0]
        second = np.exp(-0.8 * times)[:, None]
        mixed = second - basis @ (basis.T @ second)
        (fast, *_) = next_modes(replace(one, real=True), times, mixed, basis, np.ones(200), 1.0)
        assert -fast.real > 0.2  # what the modes so far span does not count


def problem_of(kind: str, rng: np.random.Generator, entries: int = 2) -> tuple[Problem, np.ndarray]:
    """A sum plus a little of something else, so that nothing is fitted exactly, and its rates."""
    one = domain(kind, rng)
    rates, times = rates_in(one, rng, 3), one.dt * np.arange(60.0)
    coefficients = rng.standard_normal((one.order(rates), entries))
    rough = 1e-2 * rng.standard_normal((60, entries))
    values = one.matrix(rates, times) @ (coefficients + (0.5j if one.is_complex else 0)) + rough
    weight = rng.uniform(0.5, 2, 60)
    return Problem(times, values, weight, rng.uniform(0.5, 2, 60), one), rates


@settings(max_examples=8, deadline=None)
@given(seeds, kinds)
def test_descent_ends_where_no_rate_gains(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    problem, rates = problem_of(kind, rng)
    one = problem.domain
    steps = len(rates) + int(one.turns(rates).sum())

    def left(rates: np.ndarray) -> float:
        columns = one.matrix(rates, problem.times) * problem.graded[:, None]
        target = problem.values * problem.graded[:, None]
        return float(np.linalg.norm(target - columns @ np.linalg.lstsq(columns, target, rcond=None)[0]))

    found = least_squares(problem, one.move(rates, rng.uniform(-0.05, 0.05, steps)), "test")
    best = left(found.rates)
    assert best <= left(rates) * (1 + 1e-9)
    for i in range(steps):
        for h in (1e-2, -1e-2):
            assert left(one.move(found.rates, h * np.eye(steps)[i])) > best * (1 - 1e-4)
    residual = problem.values - one.matrix(found.rates, problem.times) @ found.coefficients
    assert found.error == pytest.approx((np.abs(residual).max(1) * problem.weight).max())


@settings(max_examples=6, deadline=None)
@given(seeds, kinds)
def test_minimax_levels_the_weighted_error(seed: int, kind: str) -> None:
    """At the minimum of a supremum over real parameters, more extremes are equally large than there are parameters."""
    rng = np.random.default_rng(seed)
    problem, rates = problem_of(kind, rng, 1)
    seen = np.exp(rates.real.max() * problem.times)  # late residuals, which no decayed mode can change, count less
    problem = replace(problem, weight=problem.weight * seen, graded=problem.graded * seen)
    start = fit_weights(problem, rates, "start")
    found = minimax(problem, start)
    assert found.error < 0.9 * start.error
    assert found.method == "start, minimax"
    residual = problem.values - problem.domain.matrix(found.rates, problem.times) @ found.coefficients
    size = np.abs(residual[:, 0]) * problem.weight
    assert found.error == pytest.approx(size.max())
    numbers = (
        len(rates) + int(problem.domain.turns(rates).sum()) + (2 if kind == "complex" else 1) * len(found.coefficients)
    )
    assert (size > 0.9 * size.max()).sum() >= 0.3 * numbers


@settings(max_examples=6, deadline=None)
@given(seeds)
def test_a_program_has_the_solution_of_the_simplex_method(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, variables = 2000, int(rng.integers(2, 6))
    t = np.linspace(0, 1, rows)
    left = np.cos(rng.uniform(2, 9) * t + rng.uniform(0, 6))
    along = np.cos(np.outer(t, np.arange(variables))) * rng.uniform(0.5, 1, rows)[:, None]
    along, left = np.concatenate([along, -along]), np.concatenate([left, -left])
    high = np.append(1.0, np.full(variables - 1, np.inf))
    found = minimax_program(along, left, -high, high)
    whole = linprog(
        np.append(np.zeros(variables), 1.0), A_ub=np.pad(-along, ((0, 0), (0, 1)), constant_values=-1.0), b_ub=-left,
        bounds=[(-1.0, 1.0), *[(None, None)] * (variables - 1), (0, None)],
    )  # fmt: skip
    assert found is not None
    assert abs(found[0]) <= 1 + 1e-9
    assert (left - along @ found).max() == pytest.approx(whole.fun, abs=1e-6)


@settings(max_examples=6, deadline=None)
@given(seeds, st.booleans())
def test_a_mode_that_vanished_before_the_first_time_leaves_no_warning(seed: int, is_complex: bool) -> None:
    rng = np.random.default_rng(seed)
    one = Domain(1.0, discrete=False, real=False, positive=False, slowest=1e-9, is_complex=is_complex)
    times = np.linspace(5, 40, 60)
    gone = -rng.uniform(140, 148) + 1j * rng.uniform(0, 2)  # e^(-700) and less
    rates = np.array([-0.1 + 0.5j, gone])
    values = (np.exp(-times[:, None] / 9) * np.cos(0.45 * times[:, None])).astype(complex if is_complex else float)
    problem = Problem(times, values, np.ones(60), np.ones(60), one)
    with np.errstate(all="raise", under="ignore"):
        start = Fit(rates, 0.5 * np.ones((one.order(rates), 1)), 1.0, "start")
        found = minimax(
            problem, replace(start, error=problem.error(values - one.matrix(rates, times) @ start.coefficients))
        )
    assert found.error < 0.5
    assert np.isfinite(found.coefficients).all()


@settings(max_examples=8, deadline=None)
@given(seeds)
def test_positive_weights_are_those_of_non_negative_least_squares(seed: int) -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(seed)
    one = Domain(1.0, discrete=True, real=True, positive=True, slowest=1e-9)
    times, rates = np.arange(30.0), -np.array([0.05, 0.2, 0.7]) + 0j
    values = np.exp(-np.outer(times, [0.05, 0.2, 0.7])) @ np.array([1.0, -0.5, 0.3]) + 0.01 * rng.standard_normal(30)
    graded = rng.uniform(0.5, 2, 30)
    found = fit_weights(Problem(times, values[:, None], np.ones(30), graded, one), rates, "test")
    expected = nnls(np.exp(np.outer(times, rates.real)) * graded[:, None], values * graded)[0]
    kept = expected > 0
    assert found.rates == pytest.approx(rates[kept])
    assert found.coefficients[:, 0] == pytest.approx(expected[kept], rel=1e-6)


@settings(max_examples=3, deadline=None)
@given(seeds, st.sampled_from([1e-9, 1e-3, 1e3, 1e9]))
def test_the_order_that_evidence_supports_has_no_units(seed: int, unit: float) -> None:
    rng = np.random.default_rng(seed)
    t = np.arange(150.0)
    values = np.exp(-t / 40) * np.cos(t * rng.uniform(0.3, 2)) + 0.1 * rng.standard_normal(150)
    plain, scaled = (exponential_sum(one * values, norm="l2", max_order=3) for one in (1.0, unit))
    assert scaled.order == plain.order == 2
    assert scaled.noise == pytest.approx(unit * plain.noise, rel=1e-6, abs=0)
    assert scaled.rates == pytest.approx(plain.rates, rel=1e-4)


@pytest.mark.parametrize("noise", [None, 0.3])
def test_the_criterion_is_the_likelihood_and_what_parameters_cost(noise: float | None) -> None:
    rng = np.random.default_rng(0)
    t = np.arange(60.0)
    values = np.stack([np.exp(-t / 20) * np.cos(t), np.exp(-t / 9)], 1) + 0.3 * rng.standard_normal((60, 2))
    one = Domain(1.0, discrete=True, real=False, positive=False, slowest=1e-9)
    path = Path(Problem(t, values, np.ones(60), np.ones(60), one), 30, noise=noise)
    path.grow(3)
    for order, model in path.models.items():
        turning = int(one.turns(model.rates).sum())
        used = len(model.rates) + turning + 2 * one.order(model.rates)
        assert path.parameters(model.rates) == used
        columns = one.matrix(model.rates, t)
        left = values - columns @ np.linalg.lstsq(columns, values, rcond=None)[0] if order else values
        assert model.size == pytest.approx(np.linalg.norm(left), rel=1e-6)
        assert path.rms(order) == pytest.approx(np.sqrt(np.mean(left**2)), rel=1e-6)
        level = np.sqrt((left**2).sum() / (120 - used)) if noise is None else noise
        assert path.level(order) == pytest.approx(level)
        estimate, slope = (left**2).sum() / (120 - used), max(0.0, np.vdot(left[:-1], left[1:]) / np.vdot(left, left))
        likelihood = 120 * np.log(estimate) + min(0.0, 120 * np.log(1 - slope**2) + np.log(120))
        if noise is not None:  # a lower bound of the level
            likelihood = (left**2).sum() / noise**2
            if estimate > noise**2:
                likelihood = 120 * np.log(estimate / noise**2) + 120 - used
        assert path.criterion(order) == pytest.approx(likelihood + (used + turning) * np.log(120), rel=1e-6)
        assert path.left(path.models[order].rates) == pytest.approx(left, abs=1e-6)
    assert all(path.models[k + 1].size <= path.models[k].size for k in range(3))


@settings(max_examples=6, deadline=None)
@given(seeds, st.booleans())
def test_standard_errors_are_those_of_the_whole_jacobian(seed: int, is_complex: bool) -> None:
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 30, 80))
    rate, weight = complex(-0.1, 1.3), complex(1.0, 0.4)
    turning = np.exp(rate * t) * weight + (0.6 * np.exp(-0.5 * t) if not is_complex else 0)
    noise = 0.05 * (rng.standard_normal(80) + (1j * rng.standard_normal(80) if is_complex else 0))
    values = (turning if is_complex else turning.real) + noise
    sigma = rng.uniform(0.02, 0.1, 80)
    goal = {"norm": "l2", "order": 1 if is_complex else 3, "times": t, "time": "continuous", "noise": sigma}
    found = exponential_sum(values, **goal)
    columns, places = [], []
    for i, (r, w) in enumerate(zip(found.rates, found.weights, strict=True)):
        mode = np.exp(r * t)
        parts = [("rate", t * mode * w), ("weight", mode)]
        parts += [(name, 1j * part) for name, part in parts] if r.imag else []
        columns += [part for _, part in parts]
        places += [(name, i, k >= 2) for k, (name, _) in enumerate(parts)]
    jacobian = np.stack(columns, 1) / sigma[:, None]
    jacobian = np.concatenate([jacobian.real, jacobian.imag]) if is_complex else jacobian.real
    errors = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    for (name, i, imaginary), error in zip(places, errors, strict=True):
        told = complex((found.rate_errors if name == "rate" else found.weight_errors)[i])
        assert (told.imag if imaginary else told.real) == pytest.approx(error, rel=1e-4, abs=0)


@settings(max_examples=4, deadline=None)
@given(seeds, st.integers(40, 120))
def test_samples_without_weight_are_as_good_as_left_out(seed: int, kept: int) -> None:
    t = np.arange(200.0)
    values = np.exp(-t / 30) + 0.01 * np.random.default_rng(seed).standard_normal(200)
    weighted = exponential_sum(values, norm="l2", order=1, weights=3.0 * (t < kept))
    alone = exponential_sum(values[:kept], norm="l2", order=1)
    for name in ("rates", "weights", "residual", "noise", "rate_errors", "weight_errors"):
        assert getattr(weighted, name) == pytest.approx(getattr(alone, name), rel=1e-4, abs=0)


STR = ExponentialSum(
    np.array([-0.5, -0.02 + 1j]), np.array([1.0, 2.0 - 1j]), 0.5, 10, error=1e-3, l1_error=2e-3, relative_error=0.3,
    lower_bound=4e-4, seconds=1.5, method="Hankel",
)  # fmt: skip


def test_the_text_of_a_sum_has_all_its_numbers() -> None:
    assert str(STR) == (
        "exponential sum of order 3 (2 terms), time scales 2 to 50: sup error 0.001, L1 error 0.002, "
        "relative error 0.3; Hankel limit 0.0004, by Hankel in 1.5 s"
    )
    matrix = replace(STR, weights=np.ones((2, 3, 1)), time="continuous", is_complex=True)
    assert str(matrix).startswith(
        "exponential sum of order 2 (2 terms, 3x1, continuous time, complex), time scales 2 to 50: "
    )
    empty = ExponentialSum(np.empty(0), np.empty(0), 1.0, 5)
    assert str(empty).startswith("exponential sum of order 0 (0 terms): sup error")
    assert empty(np.arange(3.0)).tolist() == [0.0, 0.0, 0.0]
    least = replace(
        STR, norm="l2", residual=0.1, noise=0.2, rate_errors=np.array([0.01, 0.02 + 0.03j]),
        weight_errors=np.array([0.3, 0.4 + 0.5j]),
    )  # fmt: skip
    assert str(least) == (
        "exponential sum of order 3 (2 terms), time scales 2 to 50: residual 0.1 (rms), noise 0.2, by Hankel in 1.5 s\n"
        "  rate -0.5+0j ± (0.01, 0i), weight 1+0j ± (0.3, 0i)\n"
        "  rate -0.02+1j ± (0.02, 0.03i), weight 2-1j ± (0.4, 0.5i)"
    )
    real = ExponentialSum(-np.arange(1.0, 11), np.arange(1.0, 11), 1.0, 5, norm="l2", rate_errors=np.full(10, 0.1),
                          weight_errors=np.full(10, 0.2))  # fmt: skip
    lines = str(real).splitlines()
    assert lines[1] == "  rate -1 ± 0.1, weight 1 ± 0.2"
    assert lines[-1] == "  and 2 more"
    assert len(lines) == 10
    several = replace(real, weights=np.ones((10, 2, 1)), weight_errors=np.ones((10, 2, 1)))
    assert str(several).splitlines()[1] == "  rate -1 ± 0.1"


def test_tables_name_every_entry() -> None:
    rows = list(replace(STR, weights=np.arange(4.0).reshape(2, 1, 2))._rows())
    assert rows[0] == ["rate_re", "rate_im", "weight_0_0_re", "weight_0_0_im", "weight_0_1_re", "weight_0_1_im"]
    assert rows[2] == ["-0.02", "1.0", "2.0", "0.0", "3.0", "0.0"]
    assert next(STR._rows()) == ["rate_re", "rate_im", "weight_re", "weight_im"]


@pytest.mark.parametrize("dt", [0.1, 4.0])
def test_a_kernel_of_zeros_has_one_rate_of_a_step(dt: float) -> None:
    es = exponential_sum(np.zeros(9), tol=1e-3, dt=dt)
    assert es.rates.tolist() == [-1 / dt]
    assert es.weights.tolist() == [0.0]
    margin = exponential_sum(np.zeros(9), tol=1e-3, dt=dt, stable_margin=7.0)
    assert margin.rates.tolist() == [-max(14.0, 1 / dt)]


@pytest.mark.filterwarnings("error")
def test_least_squares_of_zeros_find_no_mode() -> None:
    with pytest.raises(
        FitError, match="no mode can be distinguished from the noise, whose standard deviation is about 0"
    ):
        exponential_sum(np.zeros(50), norm="l2")


@pytest.mark.parametrize("margin", [0.05, 0.5])
def test_rates_at_the_margin_stay_apart(margin: float) -> None:
    """Fixed rates beside the margin, with weights of least squares, are no better than ours."""
    t = np.arange(101.0)
    found = exponential_sum("1/(1+t)", 100, order=3, stable_margin=margin)
    for apart in (0.2, 0.5, 1.0):
        modes = np.exp(-margin * np.outer(t, 1 + 1e-6 + apart * np.arange(3)))
        fixed = modes @ np.linalg.lstsq(modes, 1 / (1 + t), rcond=None)[0]
        assert found.error <= np.abs(fixed - 1 / (1 + t)).max()


def test_errors_below_rounding_and_slow_rates_say_so() -> None:
    with pytest.raises(FitError, match=r"double precision resolves no less than 8\.9e-16 .*a tolerance above 8\.9e-16"):
        exponential_sum("1/(1+t)", 12, tol=1e-20)
    with pytest.raises(FitError, match="whose decay float64 rounds to 1"):
        exponential_sum(1e8 * np.ones(50), tol=1e-6)


def test_a_function_of_the_wrong_kind_says_what_it_gets() -> None:
    import torch

    with pytest.raises(ValueError, match=r"^kernel: expected a function of an array of times \(NumPy, float64\)"):
        exponential_sum(lambda t: torch.exp(-t), 10, tol=1e-3)
    half = exponential_sum(torch.tensor([1, 0.5, 0.25], dtype=torch.bfloat16), tol=1e-3)
    assert half.eigenvalues == pytest.approx([0.5])


def test_the_longest_and_deepest_formulas_are_read() -> None:
    def nested(levels: int) -> str:
        return "-" * (levels - 1) + "t"

    assert expression.parse("t*1." + "0" * 1996)(3.0) == 3.0
    with pytest.raises(ValueError, match="at most 2000 characters, got 2001"):
        expression.parse("t*1." + "0" * 1997)
    assert expression.parse(nested(expression.DEEPEST))(1.0) == -1.0
    with pytest.raises(ValueError, match="at most 100 levels"):
        expression.parse(nested(expression.DEEPEST + 1))


def test_mittag_leffler_where_it_has_closed_forms() -> None:
    from scipy.special import erfcx

    from stablessm.constructions.sums._mittag_leffler import mittag_leffler

    x = np.array([0.0, 0.3, 2.0, 9.0])
    assert mittag_leffler(1, -x) == pytest.approx(np.exp(-x))
    assert mittag_leffler(2, -x) == pytest.approx(np.cos(np.sqrt(x)))
    assert mittag_leffler(0.5, -x) == pytest.approx(erfcx(x), rel=1e-9)
    from scipy.special import gamma

    for alpha in (0.3, 0.8, 1.4, 1.9):
        small = np.array([0.0, 0.1, 0.4])
        series = sum((-small) ** k / gamma(alpha * k + 1) for k in range(60))
        assert mittag_leffler(alpha, -small) == pytest.approx(series, rel=1e-8)
    for alpha in (0.04, 0.995, 1.005, 2.1):
        assert np.isnan(mittag_leffler(alpha, -x)).all()
    for alpha in (0.5, 1, 2):
        assert np.isnan(mittag_leffler(alpha, np.array([1.0]))).all()
    assert np.isfinite(mittag_leffler(0.05, -x)).all()
    assert np.isnan(mittag_leffler(np.array([0.5, 0.6, 0.5, 0.6]), -x)).all()


@settings(max_examples=6, deadline=None)
@given(seeds, st.booleans(), st.booleans())
def test_a_graded_hankel_operator_has_the_rates_of_a_sum_over_many_time_scales(
    seed: int, is_complex: bool, matrix: bool
) -> None:
    rng = np.random.default_rng(seed)
    count, end = int(rng.integers(2, 6)), 10 ** rng.uniform(-2, 3)
    rates = -(10 ** (np.arange(count) + rng.uniform(0, 0.5, count))) / end
    rates = rates * np.exp(1j * rng.uniform(-1, 1, count)) if is_complex else rates
    weights = rng.uniform(0.5, 1, (count, 1, 2 if matrix else 1)) * rng.choice([-1, 1], (count, 1, 1))

    def function(t: np.ndarray) -> np.ndarray:
        return np.einsum("tm,mq->tq", np.exp(t[:, None] * rates), weights[:, 0])

    panels = _sampling.resolve(function, np.linspace(0, end, 40), end, 1e-13, False, None)
    times, values = panels.points()
    samples = Samples(times, values, weights.shape[1:] if matrix else (), end, False, False, None, panels, function)
    found = graded_hankel(samples, panels)
    assert (found.singular_values[count:] < 1e-10 * found.singular_values[0]).all()
    assert np.sort_complex(found.rates(count)) == pytest.approx(np.sort_complex(rates), rel=1e-3)


def test_a_complex_kernel_with_a_cusp_needs_few_states() -> None:
    found = exponential_sum("exp(-sqrt(t) + 1j*t/2)", 60, tol=1e-4, time="continuous")
    assert found.order <= 13
    assert found.error <= 1e-4
