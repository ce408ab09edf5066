"""Least squares on noisy samples: the order, the distance to the truth, the standard errors."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from noisy_sums import Noisy, draw, from_truth
from scipy.optimize import linear_sum_assignment
from scipy.signal import lfilter

from stablessm import ArgumentError
from stablessm.constructions import ExponentialSum, FitError, exponential_sum

T = np.arange(600.0)
CLEAN = np.exp(-T / 50) * np.cos(T) + 0.5 * np.exp(-T / 200) * np.cos(0.3 * T + 1)


def noisy(sigma: float, seed: int = 0) -> np.ndarray:
    return CLEAN + sigma * np.random.default_rng(seed).standard_normal(len(T))


@functools.cache
def fitted(sigma: float) -> ExponentialSum:
    """The sum that evidence supports."""
    return exponential_sum(noisy(sigma), norm="l2")


def no_further_than_from_the_truth(sample: Noisy, found: ExponentialSum) -> None:
    ours, theirs = (np.linalg.norm(values - sample.clean) for values in (found(sample.times), from_truth(sample)))
    assert ours <= 1.2 * theirs


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_the_order_is_found_and_the_truth_is_near(seed: int, is_complex: bool) -> None:
    sample = draw(seed, is_complex=is_complex, longest=120)
    found = exponential_sum(sample.values, **sample.arguments, order=sample.truth.order)
    no_further_than_from_the_truth(sample, found)
    chosen = exponential_sum(sample.values, **sample.arguments)
    assert chosen.order <= sample.truth.order + 1


@pytest.mark.parametrize("seed", [20006, 20012, 20067, 20069])
def test_modes_of_samples_in_bursts_are_found(seed: int) -> None:
    """Modes of other frequencies look almost the same in short bursts of samples."""
    sample = draw(seed, is_complex=bool(seed % 2), longest=600, bursts=True)
    found = exponential_sum(sample.values, **sample.arguments)
    assert found.order == sample.truth.order
    no_further_than_from_the_truth(sample, found)


@pytest.mark.slow
@pytest.mark.parametrize("is_complex", [False, True])
def test_orders_and_intervals_of_many(is_complex: bool) -> None:
    """At least 97 % of the orders are right, and intervals of 1.96 standard errors hold the truth in 93 to 97 %."""
    right, held = [], []
    for seed in range(200):
        sample = draw(10**6 + seed, is_complex=is_complex, longest=2000)
        try:
            found = exponential_sum(sample.values, **sample.arguments)
        except FitError:  # a frequency at the limit of what the samples can tell
            right.append(False)
            continue
        right.append(found.order == sample.truth.order)
        if not right[-1]:
            continue
        no_further_than_from_the_truth(sample, found)
        truth = sample.truth
        own, other = linear_sum_assignment(np.abs(truth.rates[:, None] - found.rates) / -truth.rates.real[:, None])
        for value, estimate, error in (
            (truth.rates, found.rates, found.rate_errors),
            (truth.weights, found.weights, found.weight_errors),
        ):
            off, error = (value[own] - estimate[other]) + 0j, error[other] + 0j
            held += list(np.abs(off.real) <= 1.96 * error.real)
            held += list((np.abs(off.imag) <= 1.96 * error.imag)[error.imag > 0])
    assert np.mean(right) >= 0.97
    assert 0.93 <= np.mean(held) <= 0.97


@pytest.mark.parametrize("sigma", [1e-3, 0.1])
def test_two_damped_modes_are_two(sigma: float) -> None:
    found = fitted(sigma)
    assert found.order == 4
    assert found.noise == pytest.approx(sigma, rel=0.1)
    assert found.residual == pytest.approx(np.sqrt(np.mean((found(T) - noisy(sigma)) ** 2)))
    assert (np.abs(np.sort_complex(found.rates) - [-0.02 + 1j, -0.005 + 0.3j]) < 5 * np.abs(found.rate_errors)).all()


@pytest.mark.parametrize("horizon", [600, 1999])
@pytest.mark.parametrize("tol", [0.5, 1.0, 2.0, 3.0])
def test_a_supremum_below_the_noise_is_refused(horizon: int, tol: float) -> None:
    t = np.arange(float(horizon))
    values = np.exp(-t / 50) * np.cos(t) + 0.02 * np.random.default_rng(0).standard_normal(horizon)
    with pytest.raises(FitError, match=r"samples are noisy.*norm='l2'"):
        exponential_sum(values, tol=0.02 * tol)


@pytest.mark.parametrize(("seed", "noisy"), [(0, True), (1, True), (0, False)])
def test_noise_at_uneven_times_is_named_and_structure_is_not(seed: int, noisy: bool) -> None:
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 100, 60 + 20 * seed)) if seed % 2 else np.geomspace(0.1, 100, 60 + 20 * seed)
    wave = np.exp(-t / 30) * np.cos(t / rng.uniform(2, 10))
    values = wave + 0.01 * rng.standard_normal(len(t)) if noisy else np.abs(t - 40) / 60 * wave
    with pytest.raises(FitError) as caught:
        exponential_sum(values, times=t, time="continuous", tol=0.001 if noisy else 1e-7, max_order=8)
    assert ("samples are noisy: the residual of a least-squares fit is noise of 0.0" in str(caught.value)) == noisy


def test_noise_alone_has_no_modes() -> None:
    orders = []
    for seed in range(4):
        samples = np.random.default_rng(seed).standard_normal(100)
        with pytest.raises(FitError, match="no mode can be distinguished from the noise") as caught:
            exponential_sum(samples, norm="l2")
        orders.append(caught.value.best.order)
    assert orders == [1] * 4


def test_tol_is_the_root_mean_square_and_never_asks_for_noise() -> None:
    coarse = exponential_sum(noisy(0.1), norm="l2", tol=0.2)
    assert coarse.order == 2
    assert coarse.residual <= 0.2
    with pytest.raises(FitError, match=r"support no order above 4, at which the residual is noise of 0\.09") as caught:
        exponential_sum(noisy(0.1), norm="l2", tol=0.05)
    assert caught.value.best.order == 4
    with pytest.raises(FitError, match="max_order = 2"):
        exponential_sum(noisy(0.1), norm="l2", tol=0.11, max_order=2)


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_more_states_never_leave_more(seed: int, is_complex: bool) -> None:
    sample = draw(seed, is_complex=is_complex, longest=60)
    left = [exponential_sum(sample.values, **sample.arguments, order=order).residual for order in range(1, 4)]
    assert all(more <= fewer for fewer, more in itertools.pairwise(left))


@pytest.mark.parametrize("count", [3, 4, 7, 10])
@pytest.mark.parametrize("is_complex", [False, True])
def test_every_order_up_to_half_the_number_of_samples_is_fitted(count: int, is_complex: bool) -> None:
    rng = np.random.default_rng(count)
    values = rng.standard_normal(count) + (1j * rng.standard_normal(count) if is_complex else 0)
    sizes = [
        exponential_sum(values, horizon=count - 1, order=order, norm="l2").residual
        for order in range(1, count // 2 + 1)
    ]
    assert all(more <= fewer * (1 + 1e-9) for fewer, more in itertools.pairwise(sizes))


def test_a_known_level_and_weights_count() -> None:
    sigma = np.where(T < 300, 0.01, 1.0)
    values = CLEAN + sigma * np.random.default_rng(1).standard_normal(len(T))
    known = exponential_sum(values, norm="l2", noise=sigma)
    weighted = exponential_sum(values, norm="l2", weights=sigma**-2.0)
    plain = exponential_sum(values, norm="l2", order=4)
    assert known.order == weighted.order == 4
    assert known.rates == pytest.approx(weighted.rates, rel=1e-6)
    assert known.noise == pytest.approx(np.mean(sigma**-2.0) ** -0.5)
    assert weighted.noise == pytest.approx(known.noise, rel=0.15)
    errors = [np.linalg.norm(es(T) - CLEAN) for es in (known, plain)]
    assert errors[0] < errors[1] / 5
    with pytest.raises(FitError, match=r"no mode can be distinguished from the noise.*0\.7"):
        exponential_sum(noisy(0.1), norm="l2", noise=0.7)  # so much noise would hide both


@pytest.mark.parametrize("seed", range(3))
def test_correlated_noise_is_not_fitted(seed: int) -> None:
    draw, t = np.random.default_rng(seed), np.arange(400.0)
    noise = lfilter([1], [1, -draw.uniform(0.7, 0.95)], 0.002 * draw.standard_normal(400))
    for bits in (None, 1 / 128):  # and the rounding of a converter
        clean = np.exp(-t / 60) + (np.exp(-t / 50) * np.cos(draw.uniform(1, 2) * t) if bits is None else 0)
        found = exponential_sum(clean + noise if bits is None else np.round(clean / bits) * bits, norm="l2")
        assert found.order == (3 if bits is None else 1)


@pytest.mark.parametrize("part", [0.1, 0.5])
def test_a_known_level_that_is_too_small_adds_no_modes(part: float) -> None:
    assert exponential_sum(noisy(0.05), norm="l2", noise=0.05 * part).order == 4


def test_outputs_share_modes_and_have_their_own_noise() -> None:
    second = np.exp(-T / 50) * np.sin(T)
    levels = np.array([0.3, 0.003])
    values = np.stack([CLEAN, second], 1) + levels * np.random.default_rng(2).standard_normal((600, 2))
    found = exponential_sum(values[:, :, None], norm="l2")
    assert found.order == 4
    assert found.weights.shape == found.weight_errors.shape == (2, 2, 1)
    alone = exponential_sum(values[:, 1], norm="l2", order=2)
    fast = np.argmin(np.abs(found.rates - (-0.02 + 1j)))
    assert abs(found.rates[fast] - (-0.02 + 1j)) < 1.5 * abs(alone.rates[0] - (-0.02 + 1j)) + 1e-5
    ratio = found.weight_errors[fast, 0, 0].real / found.weight_errors[fast, 1, 0].real
    assert ratio > 20
    given_levels = exponential_sum(values[:, :, None], norm="l2", noise=levels[:, None])
    assert given_levels.rates == pytest.approx(found.rates, rel=1e-2)


@pytest.mark.parametrize("options", [{"real": True}, {"positive": True}])
def test_real_and_positive_are_kept(options: dict) -> None:
    values = (1 + T) ** -1.1 + 1e-3 * np.random.default_rng(3).standard_normal(len(T))
    found = exponential_sum(values, norm="l2", **options)
    assert not np.iscomplexobj(found.rates)
    assert 3 <= found.order <= 7
    assert found.noise == pytest.approx(1e-3, rel=0.1)
    if options.get("positive"):
        assert (found.weights >= 0).all()


def test_exact_samples_are_fitted_to_rounding() -> None:
    found = exponential_sum(CLEAN[:150], norm="l2", max_order=4)
    assert found.order == 4
    assert found.error < 1e-12


def test_what_is_saved_and_shown(tmp_path: object) -> None:
    found = fitted(0.1)
    again = ExponentialSum.load(found.save(tmp_path / "sum.safetensors"))
    assert (again.rate_errors == found.rate_errors).all()
    assert (again.weight_errors == found.weight_errors).all()
    assert (again.noise, again.residual, again.norm) == (found.noise, found.residual, "l2")
    assert (
        ExponentialSum.load(exponential_sum(CLEAN[:60], order=2).save(tmp_path / "b.safetensors")).rate_errors is None
    )
    text = repr(found)
    assert "residual 0.09" in text
    assert "noise 0.09" in text
    assert text.count("±") == 4
    assert isinstance(found.to_layer(), torch.nn.Module)


BAD = [
    ({"norm": "l1"}, "norm.*'sup' or 'l2'"),
    ({"norm": "l2", "tol": 0.1, "order": 2}, "tol"),
    ({"norm": "l2", "relative": True}, "relative.*noise="),
    ({"norm": "l2", "noise": -1.0}, "noise.*positive"),
    ({"norm": "l2", "noise": [1.0, 2.0]}, r"noise.*600.*shape \(2,\)"),
    ({"norm": "l2", "noise": np.inf}, "noise.*positive"),
    ({"norm": "l2", "weights": np.ones(3)}, "weights.*600"),
    ({"norm": "l2", "weights": -np.ones(600)}, "weights.*from 0 up"),
    ({"norm": "l2", "weights": np.ones(600), "noise": 0.1}, "weights.*noise="),
    ({"norm": "l2", "max_order": 0}, "max_order"),
    ({"norm": "l2", "max_order": math.nan}, "max_order"),
    ({"norm": "l2", "order": 301}, "order.*at most 300"),
    ({"tol": 0.1, "noise": 0.1}, "noise.*norm='l2'"),
    ({"tol": 0.1, "weights": np.ones(600)}, "weights.*norm='l2'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        exponential_sum(CLEAN, **arguments)


@settings(max_examples=6, deadline=None)
@given(exponent=st.integers(-280, 280), seed=st.integers(0, 2**31))
def test_scale_of_the_samples_changes_nothing_else(exponent: int, seed: int) -> None:
    scale, t = 2.0**exponent, np.arange(120.0)
    samples = np.exp(-t / 20) * np.cos(0.4 * t) + 0.02 * np.random.default_rng(seed).standard_normal(120)
    plain, scaled = (exponential_sum(factor * samples, norm="l2") for factor in (1.0, scale))
    assert scaled.rates.tolist() == plain.rates.tolist()
    for name in ("weights", "weight_errors", "noise", "residual", "error"):
        np.testing.assert_array_equal(getattr(scaled, name), scale * getattr(plain, name))
    known, of_one = (exponential_sum(factor * samples, norm="l2", noise=factor * 0.02) for factor in (scale, 1.0))
    assert known.noise == pytest.approx(scale * 0.02)
    assert known.order == of_one.order


def aliased(seed: int, cycles: float) -> tuple[np.ndarray, np.ndarray, dict]:
    """Times on multiples of a step, samples of a wave of so many cycles per step with noise, and a random option."""
    rng = np.random.default_rng(seed)
    steps = np.arange(80.0) if seed % 2 else np.sort(rng.choice(100, 80, replace=False)).astype(float)
    step, sigma = 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-3, -1.5)
    wave = np.exp(-steps / rng.uniform(8, 100)) * np.exp(1j * (2 * np.pi * cycles * steps + rng.uniform(0, 6)))
    slow = rng.integers(2) * np.exp((-0.01 + 0.7j) * steps)
    samples = wave + slow + sigma * (rng.standard_normal(80) + 1j * rng.standard_normal(80))
    options = [{}, {"order": 4}, {"tol": 2 * sigma}, {"noise": sigma}][seed // 2 % 4]
    return step * steps, samples if seed % 3 == 0 else samples.real, options


@pytest.mark.parametrize("seed", range(8))
def test_a_wave_that_has_an_alias_is_refused_and_others_are_not(seed: int) -> None:
    times, samples, options = aliased(seed, np.random.default_rng(seed).uniform(0.46, 0.499))
    with pytest.raises(FitError, match="cannot tell the kernel in continuous time"):
        exponential_sum(samples, times=times, norm="l2", time="continuous", **options)
    times, samples, options = aliased(seed, np.random.default_rng(seed).uniform(0.2, 0.44))
    found = exponential_sum(samples, times=times, norm="l2", time="continuous", **options)
    assert found.residual < 0.1


def test_noise_alone_is_not_an_alias() -> None:
    for seed in range(4):
        samples = np.random.default_rng(seed).standard_normal(60)
        with pytest.raises(FitError, match="no mode can be distinguished"):
            exponential_sum(samples, norm="l2", time="continuous")
        assert exponential_sum(samples, norm="l2", time="continuous", order=4).order <= 4


@pytest.mark.parametrize("seed", range(6))
def test_a_fit_at_given_times_does_not_depend_on_dt(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 1, 90))
    rates = -rng.uniform(3, 30, 2) + 1j * rng.uniform(5, 90, 2)
    samples = (np.exp(times[:, None] * rates) @ np.exp(6j * rng.random(2))).real + 0.01 * rng.standard_normal(90)
    dtype = ["float64", "float32"][seed % 2]
    found = [
        exponential_sum(samples, times=times, norm="l2", time="continuous", dt=dt, dtype=dtype)
        for dt in (1.0, 0.65, 0.011)
    ]
    assert found[0].rates.tolist() == found[1].rates.tolist() == found[2].rates.tolist()
    assert len({es.residual for es in found}) == 1
    rest = exponential_sum(0 * samples + 1, times=times, norm="l2", time="continuous", dt=1e-4, dtype=dtype)
    assert np.asarray(np.abs(rest.eigenvalues), dtype=dtype).max() < 1
    assert rest.residual == pytest.approx(np.sqrt(np.mean((rest(times) - 1) ** 2)), rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_noise_alone_rarely_keeps_a_mode() -> None:
    """In fewer than 5 of 100 fits, as docs/constructions.md says."""
    kept = 0
    for seed in range(160):
        samples = np.random.default_rng(seed).standard_normal([40, 100, 300, 1000][seed % 4])
        try:
            exponential_sum(
                samples, norm="l2", time="continuous" if seed // 4 % 2 else "discrete", noise=[None, 1.0][seed // 8 % 2]
            )
        except FitError:
            continue
        kept += 1
    assert kept < 8
