"""What every exponential sum does, whatever the kernel."""

from __future__ import annotations

import csv
import itertools
import math
import re
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stablessm import ArgumentError, NumericalError
from stablessm.constructions import ExponentialSum, FitError, exponential_sum

moduli = st.floats(0.2, 0.98)
phases = st.one_of(st.just(0.0), st.just(math.pi), st.floats(0.1, 3.0))
values = st.floats(-1, 1).map(lambda value: value if abs(value) > 1e-200 else 0.0)
modes = st.lists(st.tuples(moduli, phases, st.floats(0.5, 2.0)), min_size=1, max_size=3)


def built(parts: list[tuple[float, float, float]], dt: float = 1.0, horizon: int = 200) -> ExponentialSum:
    rates = np.array([math.log(r) + 1j * phase for r, phase, _ in parts]) / dt
    return ExponentialSum(rates, np.array([w + 0j for *_, w in parts]), dt, horizon)


@settings(max_examples=20, deadline=None)
@given(modes, st.sampled_from([0.1, 1.0]))
def test_a_sum_is_found_again_from_its_samples(parts: list[tuple[float, float, float]], dt: float) -> None:
    truth = built(parts, dt)
    samples = truth(dt * np.arange(201))
    found = exponential_sum(samples, tol=1e-7, dt=dt)
    assert found.order <= truth.order
    assert found.error <= 1e-7
    assert np.abs(found(dt * np.arange(201)) - samples).max() == pytest.approx(found.error, abs=1e-13)


@settings(max_examples=10, deadline=None)
@given(modes, st.floats(0.05, 1.0), st.integers(1, 6), st.sampled_from(["discrete", "continuous"]))
def test_no_order_beats_its_hankel_limit(
    parts: list[tuple[float, float, float]], power: float, order: int, time: str
) -> None:
    if time == "continuous":  # frequencies that samples can tell from their aliases
        parts = [(r, min(phase, 2.5), w) for r, phase, w in parts]
    truth, t = built(parts), 0.5 * np.arange(121)
    samples = truth(2 * t) + (1 + t) ** -power
    try:
        found = exponential_sum(samples, order=order, dt=0.5, time=time)
    except FitError as error:  # waves that are gone within a step cannot be told from alternating signs
        assert time == "continuous"
        found = error.best
    step = 0.5 if time == "continuous" else 1.0
    assert found.order <= order
    assert found.l1_error == pytest.approx(step * np.abs(found(t) - samples).sum(), rel=1e-6, abs=1e-12)
    assert found.l1_error >= found.lower_bound
    assert found.error * 121 * step >= found.l1_error * (1 - 1e-9)


@settings(max_examples=10, deadline=None)
@given(modes, st.sampled_from([0.5, 1.0]), st.sampled_from(["discrete", "continuous"]), st.integers(0, 2**32 - 1))
def test_steps_are_the_convolution(parts: list[tuple[float, float, float]], dt: float, time: str, seed: int) -> None:
    if time == "continuous":
        parts = [(r, 0.0, w) for r, _, w in parts]
    truth = built(parts, dt)
    es = ExponentialSum(truth.rates, truth.weights, dt, 50, time)
    x = np.random.default_rng(seed).standard_normal((30, 2))
    state, out = None, []
    for x_t in x:
        y_t, state = es.step(x_t, state)
        out.append(y_t)
    kernel = es(dt * np.arange(30))
    if time == "continuous":  # each mode holds its input over the step
        weights = es.weights * np.expm1(es.rates * dt) / es.rates
        kernel = ExponentialSum(es.rates, weights, dt, 50)(dt * np.arange(30))
    expected = np.stack([np.convolve(kernel, column)[:30] for column in x.T], axis=1)
    assert np.abs(np.array(out) - expected).max() < 1e-10
    assert np.asarray(out).dtype == np.float64


def test_real_sums_stream_in_real_arithmetic() -> None:
    es = built([(0.9, 0.0, 1.0), (0.5, math.pi, 1.0)])
    assert es.eigenvalues.dtype == np.float64
    assert es.eigenvalues == pytest.approx([0.9, -0.5])
    assert es.order == 2
    assert es.step(1.0)[1].dtype == np.float64


@settings(max_examples=5, deadline=None)
@given(st.sampled_from([1e-250, 1e-6, 3.0, 1e6, 1e250]))
def test_scale_of_the_kernel_changes_nothing_else(scale: float) -> None:
    plain = exponential_sum(lambda t: (1 + t) ** -1.5, 100, tol=1e-4)
    scaled = exponential_sum(lambda t: scale * (1 + t) ** -1.5, 100, tol=scale * 1e-4)
    assert scaled.order == plain.order
    assert scaled.error == pytest.approx(scale * plain.error, rel=1e-3, abs=0)


def test_the_unit_of_time_changes_rates_only() -> None:
    steps, seconds = (exponential_sum((1 + np.arange(101.0)) ** -1.5, tol=1e-4, dt=dt) for dt in (1.0, 0.01))
    assert seconds.rates * 0.01 == pytest.approx(steps.rates, rel=1e-6)
    assert seconds.eigenvalues == pytest.approx(steps.eigenvalues)


def test_the_same_input_gives_the_same_bits() -> None:
    first, second = (exponential_sum(lambda t: np.exp(-np.sqrt(t)), 300, tol=1e-5) for _ in range(2))
    assert (first.rates == second.rates).all()
    assert (first.weights == second.weights).all()


def test_functions_formulas_and_samples_are_one() -> None:
    t = np.arange(201.0)
    one = exponential_sum(lambda t: (1 + t) ** -1.1, 200, tol=1e-4)
    for other in (
        exponential_sum(lambda t: math.pow(1 + t, -1.1), 200, tol=1e-4),  # of one number at a time
        exponential_sum("1/(1+t)**1.1", 200, tol=1e-4),
        exponential_sum((1 + t) ** -1.1, tol=1e-4),
        exponential_sum((1 + t) ** -1.1, times=t, tol=1e-4),
    ):
        assert other.order == one.order
        assert other.error == pytest.approx(one.error, rel=0.05)


def matrix_kernel(t: np.ndarray) -> np.ndarray:
    rows = [[np.exp(-t / 10), np.exp(-t / 30) * np.cos(t)], [(1 + t) ** -1.5, 0 * t], [np.exp(-t / 9), 0 * t + 0.1]]
    return np.moveaxis(np.array(rows), 2, 0)


def test_a_matrix_valued_kernel_shares_its_rates() -> None:
    t = np.arange(151.0)
    es = exponential_sum(matrix_kernel, 150, tol=1e-3)
    left = es(t) - matrix_kernel(t)
    assert es.weights.shape == (len(es.rates), 3, 2)
    assert np.abs(left).max() == pytest.approx(es.error)
    assert es.error <= 1e-3
    assert np.abs(left).sum(axis=(0, 2)).max() == pytest.approx(es.l1_error)
    assert es.l1_error >= es.lower_bound
    y, state = es.step(np.array([1.0, -1.0]))
    assert y == pytest.approx(es(0.0) @ [1.0, -1.0])
    y, _ = es.step(np.zeros(2), state)
    assert y == pytest.approx(es(1.0) @ [1.0, -1.0])
    with pytest.raises(ArgumentError, match="x_t"):
        es.step(np.zeros(3))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    es = exponential_sum(lambda t: np.exp(-t / 20) * np.cos(t) + (1 + t) ** -1.5, 200, tol=1e-3)
    path = es.save(tmp_path / "sum.safetensors")
    again = ExponentialSum.load(path)
    for name in ("rates", "weights"):
        assert (getattr(again, name) == getattr(es, name)).all()
    assert (again.error, again.horizon, again.time, again.method) == (es.error, es.horizon, es.time, es.method)
    with (tmp_path / "sum.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [complex(float(row["rate_re"]), float(row["rate_im"])) for row in rows] == list(es.rates)
    assert [complex(float(row["weight_re"]), float(row["weight_im"])) for row in rows] == list(es.weights)
    with pytest.raises(ArgumentError, match="safetensors"):
        es.save(tmp_path / "sum.npz")
    (tmp_path / "other.safetensors").write_bytes(b"no such thing")
    with pytest.raises(ArgumentError, match=r"ExponentialSum\.save"):
        ExponentialSum.load(tmp_path / "other.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.safetensors", "sum.csv", "sum.safetensors"]


def test_streaming_needs_no_torch() -> None:
    program = (
        "import sys, numpy as np; sys.modules['torch'] = None\n"
        "from stablessm.constructions import exponential_sum\n"
        "es = exponential_sum(lambda t: 0.9**t, 50, tol=1e-6)\n"
        "y, state = es.step(1.0); y, state = es.step(0.0, state)\n"
        "assert abs(y - 0.9) < 1e-6\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_folders_of_the_package_are_there_before_they_are_used() -> None:
    program = (
        "import stablessm as ssm\n"
        "assert ssm.constructions.sums.exponential_sum is ssm.constructions.exponential_sum\n"
        "assert not hasattr(ssm.constructions, 'sum')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_str_says_what_matters() -> None:
    text = str(exponential_sum(lambda t: 0.9**t, 50, tol=1e-6))
    assert "order 1" in text
    assert "sup error" in text
    assert "Hankel limit" in text


BAD = [
    ({"kernel": [1.0, math.nan, 0.5], "tol": 0.1}, "kernel.*nan at index 1"),
    ({"kernel": [1.0, math.inf, 0.5], "tol": 0.1}, "kernel.*inf at index 1"),
    ({"kernel": np.ones((4, 2)), "tol": 0.1}, r"kernel.*shape \(4, 2\)"),
    ({"kernel": np.ones(5), "horizon": 9, "tol": 0.1}, "kernel.*10 times"),
    ({"kernel": np.ones(5) * 1j, "tol": 0.1, "real": True}, "real.*complex values"),
    ({"kernel": np.ones(5) * 1j, "tol": 0.1, "positive": True}, "positive.*complex values"),
    ({"kernel": [], "tol": 0.1}, "kernel.*samples"),
    ({"kernel": None, "tol": 0.1}, "kernel.*samples"),
    ({"kernel": 3.0, "horizon": 10, "tol": 0.1}, "kernel.*samples"),
    ({"kernel": [[1.0], [1.0, 2.0]], "tol": 0.1}, "kernel.*an array"),
    ({"kernel": [1e308, 1e307, 1e306], "tol": 0.1}, "kernel.*1e\\+308"),
    ({"kernel": [1e-310, 1e-311, 0.0], "tol": 0.1}, "kernel.*1e-310"),
    ({"kernel": "1/(t-0.5)", "horizon": 10, "tol": 0.1, "time": "continuous"}, "kernel.*t = 0.5"),
    ({"kernel": "t-0.5", "horizon": 1, "tol": 0.1, "time": "continuous", "relative": True}, "relative.*t = 0.5"),
    ({"kernel": np.cos, "horizon": "10", "tol": 0.1}, "horizon"),
    ({"kernel": np.cos, "horizon": math.inf, "tol": 0.1}, "horizon"),
    ({"kernel": np.cos, "horizon": 10, "tol": "0.1"}, "tol"),
    ({"kernel": np.cos, "horizon": 10, "order": "2"}, "order"),
    ({"kernel": np.cos, "horizon": 10, "order": math.nan}, "order"),
    ({"kernel": np.cos, "horizon": 10, "tol": 0.1, "dt": "1"}, "dt"),
    ({"kernel": np.cos, "horizon": 10, "tol": 0.1, "dt": True}, "dt"),
    ({"kernel": np.cos, "horizon": 10, "tol": 0.1, "stable_margin": None}, "stable_margin"),
    ({"kernel": np.cos, "horizon": 10, "tol": 0.1, "max_order": 0}, "max_order"),
    ({"kernel": np.cos, "horizon": 10, "tol": 0.1, "dtype": "float16"}, "dtype"),
    ({"kernel": np.cos, "tol": 0.1, "times": "now"}, "times"),
    ({"kernel": np.cos, "tol": 0.1, "times": [0.0, 0.3, 1.0]}, "times.*multiples of dt.*continuous.*0.3"),
    ({"kernel": lambda t: t**-0.5, "horizon": 10, "tol": 0.1}, "kernel.*times="),
    ({"kernel": np.cos, "tol": 0.1}, "horizon"),
    ({"kernel": np.cos, "horizon": 0, "tol": 0.1}, "horizon"),
    ({"kernel": np.cos, "horizon": 2.5, "tol": 0.1}, "horizon"),
    ({"kernel": np.cos, "horizon": 10}, "tol"),
    ({"kernel": np.cos, "horizon": 10, "tol": 0.1, "order": 3}, "tol"),
    ({"kernel": np.cos, "horizon": 10, "tol": -1.0}, "tol"),
    ({"kernel": np.cos, "horizon": 10, "tol": math.nan}, "tol"),
    ({"kernel": np.cos, "horizon": 10, "order": 0}, "order"),
    ({"kernel": np.cos, "horizon": 10, "order": 12}, "order"),
    ({"kernel": np.cos, "horizon": 10, "tol": 0.1, "dt": 0.0}, "dt"),
    ({"kernel": np.cos, "horizon": 10, "tol": 0.1, "time": "both"}, "time"),
    ({"kernel": np.cos, "horizon": 10, "tol": 0.1, "stable_margin": -1.0}, "stable_margin"),
    ({"kernel": np.cos, "tol": 0.1, "times": [0.0, 2.0, 1.0]}, "times"),
    ({"kernel": np.cos, "tol": 0.1, "times": [-1.0, 2.0]}, "times"),
    ({"kernel": [1.0, 0.0, 0.5], "tol": 0.1, "relative": True}, "relative.*index 1"),
]


BAD_SUMS = [({"dt": 0.0}, "dt"), ({"dt": math.inf}, "dt"), ({"horizon": -1}, "horizon"), ({"time": "both"}, "time")]


@pytest.mark.parametrize(("arguments", "message"), BAD_SUMS)
def test_a_sum_checks_its_facts(arguments: dict, message: str) -> None:
    facts = {"rates": np.array([-1.0]), "weights": np.array([1.0]), "dt": 1.0, "horizon": 5} | arguments
    with pytest.raises(ArgumentError, match=message):
        ExponentialSum(**facts)


def test_numbers_of_numpy_and_tensors_are_taken() -> None:
    import torch

    samples = torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64, requires_grad=True)
    one = exponential_sum(samples, order=np.int64(1), dt=np.float32(0.5))
    assert one.eigenvalues == pytest.approx([0.5])
    times = torch.arange(4) * np.float32(0.5)
    for other in (
        exponential_sum(lambda t: 0.25 ** torch.from_numpy(t), np.int64(3), tol=np.float32(1e-3), dt=np.float32(0.5)),
        exponential_sum(samples, times=times, tol=1e-3, dt=0.5),
    ):
        assert other.eigenvalues == pytest.approx([0.5], abs=2e-3)


@pytest.mark.parametrize(("arguments", "message"), BAD)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        exponential_sum(**arguments)


@pytest.mark.parametrize(
    ("kernel", "options", "why"),
    [
        (lambda t: np.exp(0.2 * t), {}, "grows"),
        (lambda t: np.exp(-t / 30) * np.cos(t), {"real": True}, "real=True"),
        (lambda t: np.exp(-t / 30) * np.cos(t), {"positive": True}, "positive=True"),
        (lambda t: np.exp(-t / 30), {"stable_margin": 0.5}, "stable_margin = 0.5"),
        (lambda t: np.exp(-t / 30), {"stable_margin": 0.5, "positive": True}, "stable_margin = 0.5"),
        (lambda t: np.where(t == 140, 1.0, 0.0), {"real": True}, "real=True"),  # it ends, and so does not grow
        (lambda t: (1 + t) ** -1.1 + 1e-2 * np.random.default_rng(0).standard_normal(len(t)), {}, "noise of 0.0"),
    ],
)
def test_what_cannot_be_fitted_says_why(kernel: object, options: dict, why: str) -> None:
    with pytest.raises(FitError, match=why) as caught:
        exponential_sum(kernel, 150, tol=1e-3, **options)
    assert isinstance(caught.value, NumericalError)
    assert caught.value.best.error > 1e-3
    assert caught.value.remedy


@pytest.mark.parametrize("horizon", [300, 5000])
@pytest.mark.parametrize("size", [1e-3, 1e-1])
def test_the_size_of_the_noise_is_told(horizon: int, size: float) -> None:
    noise = size * np.random.default_rng(1).standard_normal(horizon + 1)
    with pytest.raises(FitError) as caught:
        exponential_sum(0.9 ** np.arange(horizon + 1) + noise, tol=size / 10)
    told = float(re.search(r"noise of (\S+);", str(caught.value))[1])
    assert told == pytest.approx(size, rel=0.2)
    assert caught.value.best.error < 5 * size


@settings(max_examples=20, deadline=None)
@given(
    st.lists(values, min_size=2, max_size=12),
    st.one_of(st.floats(1e-6, 1.0), st.integers(1, 12)),
    st.sampled_from([{}, {"real": True}, {"positive": True}, {"time": "continuous"}]),
)
def test_any_samples_get_a_stable_sum_or_a_reason(samples: list[float], goal: float | int, options: dict) -> None:
    goals = {"order": min(goal, len(samples))} if isinstance(goal, int) else {"tol": goal}
    try:
        es = exponential_sum(samples, **goals, **options)
    except FitError as refusal:
        es, told = refusal.best, str(refusal)
        assert es.error > goals.get("tol", 0.0) or "the samples cannot tell" in told
    else:
        assert es.error <= goals.get("tol", math.inf)
        assert es.order <= goals.get("order", len(samples))
    assert (np.abs(es.eigenvalues) < 1).all()
    assert np.abs(es(np.arange(len(samples))) - samples).max() == pytest.approx(es.error, abs=1e-9)
    if options.get("real") or options.get("positive"):
        assert not np.iscomplexobj(es.rates)
    if options.get("positive"):
        assert (es.weights >= 0).all()


def test_zero_is_a_sum() -> None:
    es = exponential_sum(np.zeros(10), tol=1e-3)
    assert (es.order, es.error) == (1, 0.0)


@pytest.mark.parametrize("margin", [0.01, 0.3])
def test_stable_margin_is_kept(margin: float) -> None:
    es = exponential_sum(lambda t: (1 + t) ** -1.5, 100, order=4, stable_margin=margin)
    assert es.rates.real.max() <= -margin


def test_the_limit_of_float32_is_named() -> None:
    with pytest.raises(FitError, match="float32"):
        exponential_sum(np.ones_like, 10**5, tol=1e-6, positive=True, dtype="float32")
    assert exponential_sum(np.ones_like, 10**5, tol=1e-6).order == 1  # float64 has decays that are slow enough


def test_one_time_gives_one_value() -> None:
    es = ExponentialSum(np.array([-0.5]), np.array([2.0]), 1.0, 10)
    assert es(3.0).shape == ()
    assert float(es(3.0)) == pytest.approx(2 * math.exp(-1.5))


def test_few_samples_that_a_sum_meets_are_no_failure() -> None:
    es = exponential_sum([1.0, 0.5, 0.2], times=[0, 1, 5], tol=1e-3)
    assert np.abs(es([0, 1, 5]) - [1.0, 0.5, 0.2]).max() <= 1e-3


@pytest.mark.filterwarnings("error")
def test_a_perfect_fit_needs_no_polish() -> None:
    es = exponential_sum([0.3, 0.6, 0.8], order=2)
    assert es.error < 1e-12


def best_error(samples: list[float], **options: object) -> float:
    try:
        return exponential_sum(samples, **options).error
    except FitError as error:  # in continuous time, of samples that cannot tell
        return error.best.error


@settings(max_examples=2, deadline=None)
@example([0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.875, 0.03125], {"time": "continuous"})  # 5 and 7 states, but not 6, are good
@given(
    st.lists(values, min_size=4, max_size=6),
    st.sampled_from([{}, {"real": True}, {"positive": True}, {"time": "continuous"}]),
)
def test_more_states_are_never_worse(samples: list[float], options: dict) -> None:
    errors = [best_error(samples, order=order, **options) for order in range(1, len(samples))]
    assert all(more <= fewer * (1 + 1e-6) + 1e-10 for fewer, more in itertools.pairwise(errors))


def test_a_function_may_work_in_place() -> None:
    def kernel(t: np.ndarray) -> np.ndarray:
        t *= -0.1
        return np.exp(t, out=t)

    es = exponential_sum(kernel, 50, tol=1e-6)
    assert es.eigenvalues == pytest.approx([math.exp(-0.1)])
    assert es.horizon == 50


@pytest.mark.parametrize(
    ("kernel", "grid"),
    [
        (lambda t: (1 + 5 * t) ** -1.5, {"horizon": 100}),
        (lambda t: np.exp(-t / 50) * np.sin(2 * np.pi * t), {"times": np.arange(400.0)}),  # 0 at all of them
        (lambda t: (1 + t) ** -1.5, {"times": np.geomspace(0.5, 90.3, 60)}),
    ],
)
def test_the_integral_in_continuous_time_counts_what_is_between(kernel: object, grid: dict) -> None:
    es = exponential_sum(kernel, order=4, time="continuous", **grid)
    t = np.union1d(np.linspace(es.start, es.end, 10**6), es.start + np.geomspace(1e-6, 1, 1000))
    assert es.l1_error == pytest.approx(np.trapezoid(np.abs(es(t) - kernel(t)), t), rel=0.03)
    beyond = es.end + np.geomspace(1e-9, 1e4, 10**5)
    assert es.tail >= np.trapezoid(np.abs(es(beyond)), beyond) * (1 - 1e-6)


def test_the_tail_begins_at_the_last_time() -> None:
    es = exponential_sum(lambda t: np.exp(-t), times=[0.0, 1.0, 2.5], tol=1e-9, time="continuous")
    assert (es.horizon, es.end) == (3, 2.5)
    assert es.tail == pytest.approx(math.exp(-2.5))


def test_the_best_found_of_noisy_samples_goes_down_to_the_noise() -> None:
    rng, times = np.random.default_rng(0), np.arange(600)
    frequency, decay = rng.uniform(0.05, 3.0, (45, 1)), rng.uniform(0.0005, 0.003, (45, 1))
    values = (np.exp(-decay * times) * np.cos(frequency * times)).sum(0) / 10
    with pytest.raises(FitError, match="the samples are noisy") as caught:
        exponential_sum(values + 1e-4 * rng.standard_normal(600), tol=1e-6)
    assert caught.value.best.order == 90  # more than are fitted by least squares
    assert caught.value.best.error < 1e-3


def test_kernels_that_grow_get_few_states_where_few_do() -> None:
    """Their starts are far off, and those of higher orders may be worse."""
    found = exponential_sum(1.01 ** np.arange(50), tol=1e-3)
    assert found.error <= 1e-3
    assert found.order <= 4  # 3 or 4, depending on the processor


def test_times_and_a_horizon_are_too_much() -> None:
    with pytest.raises(ArgumentError, match=r"^horizon: expected None, because times= already has an end, got 5"):
        exponential_sum(lambda t: np.exp(-t), 5, times=np.arange(100.0), tol=1e-3)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_a_function_of_any_scale_is_sampled_without_warnings(scale: float) -> None:
    plain, scaled = (
        exponential_sum(lambda t, c=factor: c * np.exp(-t / 5) / (1 + t), 50, tol=1e-4 * factor, time="continuous")
        for factor in (1.0, scale)
    )
    assert scaled.order == plain.order
    assert scaled.error == pytest.approx(scale * plain.error, rel=1e-3, abs=0)


@pytest.mark.filterwarnings("error")
def test_a_function_that_is_zero_causes_no_warnings() -> None:
    for time in ("discrete", "continuous"):
        assert exponential_sum(lambda t: 0 * t, 50, tol=1e-6, time=time).error == 0


@pytest.mark.parametrize("kind", [Fraction, lambda p, q: Decimal(p) / q, lambda p, q: np.float32(p / q)])
def test_numbers_of_any_kind_are_samples(kind: Callable[[int, int], object]) -> None:
    found = exponential_sum([kind(1, k + 1) for k in range(30)], tol=1e-4)
    assert found.error == pytest.approx(exponential_sum(1 / (1 + np.arange(30.0)), tol=1e-4).error, rel=1e-2)
    assert exponential_sum(lambda t: kind(1, int(t) + 1), 29, tol=1e-4).order == found.order


@pytest.mark.parametrize(
    ("times", "got"),
    [
        (np.r_[np.arange(9.0), 8.0], "8 at index 9, after 8"),
        (np.arange(10.0)[::-1], "8 at index 1, after 9"),
        (np.r_[np.arange(9.0), np.nan], "nan at index 9, after 8"),
    ],
)
def test_times_that_do_not_increase_are_named(times: np.ndarray, got: str) -> None:
    with pytest.raises(ArgumentError, match=f"^times: expected finite, increasing numbers, got {got}$"):
        exponential_sum(np.ones(10), times=times, tol=1e-3)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_times_far_from_one_need_another_unit(unit: float) -> None:
    with pytest.raises(ArgumentError, match=r"^times: expected a last time between .* in another unit of time"):
        exponential_sum(np.ones(10), times=unit * np.arange(10.0), tol=1e-3, time="continuous")


def test_missing_samples_are_no_samples() -> None:
    with pytest.raises(ArgumentError, match=r"^kernel: expected finite values, got nan at index 3"):
        exponential_sum(np.ma.array(np.ones(10), mask=np.arange(10) == 3), tol=1e-3)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.booleans())
def test_a_tolerance_finds_what_an_order_finds_in_few_samples(seed: int, count: int, is_complex: bool) -> None:
    draw = np.random.default_rng(seed)
    samples = draw.normal(size=count) + 1j * is_complex * draw.normal(size=count)
    tol = 1e-6 * float(np.abs(samples).max())
    if exponential_sum(samples, order=count).error <= tol:
        assert exponential_sum(samples, tol=tol).error <= tol
        assert exponential_sum(samples, tol=tol, max_order=count).error <= tol


@pytest.mark.parametrize("max_order", [1, 2])
def test_an_order_below_the_needed_one_gives_a_fit_error(max_order: int) -> None:
    """Also for kernels with a kink, whose Hankel matrix rules out every order up to ``max_order``."""
    with pytest.raises(FitError, match=f"no sum of at most {max_order} states was found") as told:
        exponential_sum(
            lambda t: np.interp(t, [3, 20, 30], [1, -0.5, 0.2]), 50, tol=1e-6, time="continuous", max_order=max_order
        )
    assert told.value.best.order <= max_order
