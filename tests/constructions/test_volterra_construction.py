"""Volterra series written down: kernels and outputs against sums over all steps, and recovery from data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from stablessm import ArgumentError
from stablessm._errors import NumericalError
from stablessm.constructions.series._kernels import SampledKernel, strata
from stablessm.constructions.series._tensor import powers, symmetric_part
from stablessm.constructions.series.model import VolterraSSM
from stablessm.constructions.series.volterra import volterra
from stablessm.experiments.ssm_ua.fig4.experiment import VolterraConfig
from stablessm.targets import Volterra
from stablessm.targets.kernels import Exponential

Kernel = Callable[..., np.ndarray]

PAIRS: dict[str, Kernel] = {
    "beat": lambda a, b: np.exp(-(a + b) / 20) * np.cos((a - b) / 7),
    "power law": lambda a, b: 1 / (1 + a + b) ** 2,
    "kink": lambda a, b: np.exp(-np.abs(a - b) / 10 - (a + b) / 40),
    "not symmetric": lambda a, b: np.exp(-a / 5 - b / 20) / (1 + a + b),
}
ODD: dict[str, Kernel] = {
    "two poles that meet": lambda a, b: a * b * np.exp(-(a + b) / 5),
    "a delayed bump": lambda a, b: np.exp(-((a - 30) ** 2 + (b - 30) ** 2) / 50),
    "five steps": lambda a, b: 1.0 * ((a < 5) & (b < 5)),
    "now": lambda a, b: 1.0 * ((a == 0) & (b == 0)),
    "fast oscillation": lambda a, b: (
        np.exp(-(a + b) / 30) * np.cos(2.5 * (a - b)) + np.exp(-(a + b) / 9) * np.cos(a + 2 * b)
    ),
    "a constant": lambda a, b: np.ones_like(a),
}
TRIPLES: dict[str, Kernel] = {
    "power law": lambda a, b, c: (1 + a + b + c) ** -2.5,
    "beat": lambda a, b, c: np.exp(-(a + b + c) / 8) * np.cos((a - b) / 3) * np.cos((b - c) / 3) * np.cos((c - a) / 3),
    "bump": lambda a, b, c: np.exp(-(a + b + c) / 10 - ((a - b) ** 2 + (b - c) ** 2 + (c - a) ** 2) / 200),
}
EINSUM = {1: "a,a->", 2: "ab,a,b->", 3: "abc,a,b,c->"}


def on_grid(kernel: Kernel, order: int, steps: int) -> np.ndarray:
    mesh = np.meshgrid(*[np.arange(float(steps))] * order, indexing="ij")
    return symmetric_part(np.asarray(kernel(*mesh)))


def by_sums(kernels: dict[int, np.ndarray], x: np.ndarray, dt: float = 1.0) -> np.ndarray:
    """Equation 18, term by term."""
    y = np.zeros(len(x))
    for k in range(len(x)):
        for order, h in kernels.items():
            past = np.zeros(len(h))
            past[: min(k + 1, len(h))] = x[k::-1][: len(h)]
            y[k] += dt**order * np.einsum(EINSUM[order], h, *[past] * order, optimize=True)
    return y


def run(model: VolterraSSM, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(x)[None, :, None])[0][0, :, 0].numpy())


def relative(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def kernel_error(model: VolterraSSM, truth: np.ndarray) -> float:
    times = torch.arange(len(truth))
    return relative(model.kernel(*[times] * truth.ndim).detach().numpy(), truth)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 1000), st.sampled_from([1e-2, 1e-4]))
@settings(max_examples=30, deadline=None)
def test_a_symmetric_tensor_is_a_sum_of_powers(order: int, m: int, seed: int, tol: float) -> None:
    core = symmetric_part(np.random.default_rng(seed).standard_normal((m,) * order))
    a, c = powers(core, tol)
    letters = "ijk"[:order]
    found = np.einsum("r," + ",".join(f"r{one}" for one in letters) + f"->{letters}", c, *[a] * order)
    assert relative(found, core) <= tol
    assert order == 3 or len(a) <= m


@given(st.integers(1, 50_000), st.integers(4, 400), st.integers(0, 100))
@settings(deadline=None)
def test_strata_stand_for_all_steps(horizon: int, count: int, seed: int) -> None:
    nodes, weights = strata(horizon, count, seed=seed)
    assert weights.sum() == horizon + 1
    assert len(nodes) <= count
    assert (np.diff(nodes) > 0).all()
    assert nodes[0] == 0
    assert nodes[-1] <= horizon


@given(st.integers(0, 10_000), st.sets(st.integers(1, 3), min_size=1), st.floats(0.05, 2.0))
@settings(max_examples=12, deadline=None)
def test_outputs_are_the_sums_of_equation_18(seed: int, orders: set[int], dt: float) -> None:
    """Random kernels of finite rank, not symmetric, with oscillation, all orders at once and a constant."""
    random = np.random.default_rng(seed)
    rates = random.uniform(0.1, 0.6, 3) + 1j * random.uniform(0, 2, 3)

    def kernel(*times: np.ndarray) -> np.ndarray:
        factors = [np.exp(-rates[i] * t / dt).real * (1 + i) for i, t in enumerate(times)]
        return np.asarray(np.prod(factors, axis=0))

    horizon = 40
    model = volterra({0: 0.7, **dict.fromkeys(orders, kernel)}, horizon, tol=1e-5, dt=dt)
    samples = {n: on_grid(lambda *times: kernel(*(dt * t for t in times)), n, horizon + 1) for n in orders}
    x = random.standard_normal(horizon + 1)
    assert relative(run(model, x), 0.7 + by_sums(samples, x, dt)) < 1e-4
    assert model.order == max(orders)
    assert set(model.rank) == orders
    for truth in samples.values():
        assert kernel_error(model, truth) <= 1.01e-5


@pytest.mark.parametrize("name", PAIRS)
def test_kernels_of_order_two_that_do_not_separate(name: str) -> None:
    """1e-3 on every pair of steps, and for the outputs of white noise."""
    steps = 301
    truth = on_grid(PAIRS[name], 2, steps)
    model = volterra({2: PAIRS[name]}, steps - 1, tol=1e-3)
    assert np.linalg.matrix_rank(truth, tol=1e-6) > 1
    assert kernel_error(model, truth) < 1e-3
    x = np.random.default_rng(5).standard_normal(steps)
    assert relative(run(model, x), by_sums({2: truth}, x)) < 2e-3
    assert model.error <= 1e-3
    assert model.seconds > 0


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("steps", [61, 301])
def test_odd_kernels_in_few_states(name: str, steps: int) -> None:
    model = volterra({2: ODD[name]}, steps - 1, tol=1e-3)
    assert kernel_error(model, on_grid(ODD[name], 2, steps)) < 1e-3
    assert model.states <= 20


@pytest.mark.parametrize("name", TRIPLES)
def test_kernels_of_order_three(name: str) -> None:
    steps = 61
    truth = on_grid(TRIPLES[name], 3, steps)
    model = volterra({3: TRIPLES[name]}, steps - 1, tol=1e-3)
    assert kernel_error(model, truth) < 1e-3
    x = np.random.default_rng(5).standard_normal(steps)
    assert relative(run(model, x), by_sums({3: truth}, x)) < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIPLES)
def test_order_three_to_five_digits(name: str) -> None:
    steps = 61
    model = volterra({3: TRIPLES[name]}, steps - 1, tol=1e-5)
    assert kernel_error(model, on_grid(TRIPLES[name], 3, steps)) < 1e-5


def test_the_width_does_not_depend_on_the_length() -> None:
    lengths = (100, 2000)
    beats = [volterra({2: PAIRS["beat"]}, horizon) for horizon in lengths]
    assert {(model.states, model.rank[2]) for model in beats} == {(2, 2)}
    slow = [volterra({2: PAIRS["power law"]}, horizon) for horizon in lengths]
    assert [model.states for model in slow] == sorted(model.states for model in slow)
    assert slow[-1].states <= slow[0].states + 2  # a few more, while the tail still counts
    assert max(model.error for model in [*beats, *slow]) <= 1e-3


def test_a_long_horizon_is_measured_honestly() -> None:
    """Errors estimated on graded steps are those of a fresh random sample of all pairs."""
    horizon = 5000
    model = volterra({2: PAIRS["power law"]}, horizon)
    random = np.random.default_rng(9)
    a, b = (np.exp(random.uniform(0, math.log(horizon + 2), 600)).astype(int) - 1 for _ in range(2))
    truth = PAIRS["power law"](*np.ix_(a, b))
    weight = 1 / np.multiply.outer(np.log1p(1 / (a + 1)), np.log1p(1 / (b + 1)))  # one over the density
    found = model.kernel(torch.from_numpy(a), torch.from_numpy(b)).detach().numpy()
    error = math.sqrt((weight * (found - truth) ** 2).sum() / (weight * truth**2).sum())
    assert error == pytest.approx(model.kernel_errors[2], rel=0.5)


@given(st.integers(0, 10_000), st.integers(1, 2))
@settings(max_examples=8, deadline=None)
def test_any_samples_on_a_short_horizon(seed: int, order: int) -> None:
    """Samples without any structure take as many states as steps, and are met."""
    samples = np.random.default_rng(seed).standard_normal((25,) * order)
    model = volterra({order: samples}, tol=1e-4)
    assert kernel_error(model, symmetric_part(samples)) <= 1e-4


def test_the_convention_is_that_of_the_target() -> None:
    slow, fast = Exponential(0.5), Exponential(2.0)
    target = Volterra([[slow], [fast, slow]], dt=0.1)
    kernels = {1: lambda t: np.exp(-0.5 * t), 2: lambda a, b: np.exp(-2 * a - 0.5 * b)}
    model = volterra(kernels, 200, tol=1e-6, dt=0.1)
    x = torch.randn(2, 200, 1, dtype=torch.float64)
    torch.testing.assert_close(model(x)[0], target(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["beat", "power law"])
@pytest.mark.parametrize("map", ["best", "softplus"])
def test_streaming_gives_the_same_numbers(name: str, map: str) -> None:
    model = volterra({1: lambda t: 0.9**t, 2: PAIRS[name]}, 50, map=map)
    x = torch.randn(3, 20, 1, dtype=torch.float64)
    whole, final = model(x)
    state, outputs = model.initial_state(3), []
    for k in range(20):
        y, state = model.step(x[:, k], state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), whole)
    torch.testing.assert_close(state, final)
    first, middle = model(x[:, :7])
    torch.testing.assert_close(torch.cat([first, model(x[:, 7:], middle)[0]], 1), whole)


def test_numbers_of_any_kind() -> None:
    """float32 sequences, tensors with a graph, negative strides, NumPy's numbers."""
    samples = 0.9 ** np.arange(50.0)
    one = volterra(
        {0: np.float32(0.5), 1: torch.from_numpy(samples).requires_grad_()}, np.int64(49), tol=np.float64(1e-6)
    )
    other = volterra({0: 0.5, 1: samples[::-1].copy()[::-1]}, dt=np.float64(1.0), tol=1e-6)
    x = torch.randn(2, 9, 1)
    y, state = one(x)
    y_t, _ = one.step(x[:, 0], state)
    assert (y.dtype, y_t.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(y, other(x.double())[0].float())


def test_functions_of_numbers_and_flat_kernels() -> None:
    plain = volterra({2: lambda a, b: math.exp(-(a + b)) if a + b < 40 else 0.0}, 50)
    assert kernel_error(plain, on_grid(lambda a, b: np.exp(-(a + b)), 2, 51)) < 1e-3
    nothing = volterra({1: lambda t: 0.0, 2: lambda a, b: 0 * a}, 50)
    assert run(nothing, np.ones(10)).tolist() == [0.0] * 10
    assert nothing.error == 0


def test_a_kernel_without_a_short_sum_is_refused() -> None:
    with pytest.raises(NumericalError, match="a kink at every lag"):
        volterra({2: lambda a, b: np.exp(-np.abs(a - b) / 100 - (a + b) / 1000)}, 2000, tol=1e-6)


@pytest.mark.parametrize(
    ("kernels", "options", "message"),
    [
        ({}, {}, r"^kernels: .* got \[\]"),
        ({4: PAIRS["beat"]}, {}, r"^kernels: .* got \[4\]"),
        ([1.0], {}, r"^kernels: .* got list"),
        ({0: math.nan, 1: np.ones(3)}, {}, r"^kernels\[0\]: expected a finite number, got nan"),
        ({2: PAIRS["beat"]}, {}, r"^horizon: .* got None"),
        ({2: PAIRS["beat"]}, {"horizon": 0}, r"^horizon: .* got 0"),
        ({2: np.ones((4, 5))}, {}, r"^kernels\[2\]: expected shape \(4, 4\), got shape \(4, 5\)"),
        ({1: np.ones(3), 2: np.ones((4, 4))}, {}, r"^kernels\[2\]: expected shape \(3, 3\)"),
        ({1: np.array([1.0, np.nan])}, {}, r"^kernels\[1\]: expected finite values, got nan at \(1\)"),
        ({1: np.ones(3, complex)}, {}, r"^kernels\[1\]: expected real numbers, got complex128"),
        ({2: lambda a, b: np.exp(1j * a)}, {"horizon": 9}, r"^kernels\[2\]: expected real numbers, got complex128"),
        ({2: lambda a, b: a[:1]}, {"horizon": 9}, r"^kernels\[2\]: .* got shape \(1,\)"),
        ({1: np.ones(3)}, {"tol": 0.0}, r"^tol: .* got 0\.0"),
        ({1: np.ones(3)}, {"dt": -1.0}, r"^dt: .* got -1\.0"),
    ],
)
def test_wrong_construction_arguments_are_named(kernels: dict, options: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        volterra(kernels, **options)


def test_a_function_is_only_asked_for_a_small_part_of_a_long_grid() -> None:
    asked = 0

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += a.size
        return PAIRS["beat"](a, b)

    SampledKernel(2, 10_000, 1.0, kernel).span(1e-3)
    assert asked < 0.06 * 10_001**2


def system(x: np.ndarray) -> np.ndarray:
    u, v = (lfilter([1.0], [1.0, -pole], x) for pole in (0.9, 0.6))
    return np.asarray(0.3 + u - 0.5 * v + 0.2 * u * v + 0.1 * v**2)


def ringing(x: np.ndarray) -> np.ndarray:
    z = lfilter([1.0], [1.0, -0.93 * np.exp(0.4j)], x)
    return np.asarray(z.real + 0.3 * z.real * z.imag - 0.1 * z.imag**2)


def cubic(x: np.ndarray) -> np.ndarray:
    u, v = (lfilter([1.0], [1.0, -pole], x) for pole in (0.85, 0.5))
    return np.asarray(u + 0.1 * u * v + 0.05 * u**2 * v)


@pytest.mark.parametrize(
    ("truth", "order", "poles"),
    [(system, 2, [0.6, 0.9]), (ringing, 2, [0.93 * np.exp(0.4j)]), (cubic, 3, [0.5, 0.85])],
    ids=["real", "ringing", "cubic"],
)
def test_a_known_system_is_recovered_from_noisy_data(
    truth: Callable[[np.ndarray], np.ndarray], order: int, poles: list
) -> None:
    """A tenth of the output's deviation is noise; the model found is far nearer to the system than the data are."""
    random = np.random.default_rng(3)
    x = random.standard_normal(4000)
    y = truth(x)
    noisy = y + 0.1 * y.std() * random.standard_normal(4000)
    model = volterra.identify(x, noisy, memory=60, order=order, states=2)
    fresh = random.standard_normal(2000)
    assert (run(model, fresh) - truth(fresh))[100:].std() < 0.02 * y.std()
    assert model.output_error == pytest.approx(0.1, rel=0.2)
    found = model.layer.eigenvalues().detach().numpy()
    np.testing.assert_allclose(np.sort(np.abs(found)), np.abs(poles), atol=0.03)


def test_the_number_of_states_is_found() -> None:
    """Without noise two states are exact, and no more are taken; records come in any of three shapes."""
    x = np.random.default_rng(4).standard_normal((2, 1500))
    y = np.stack([system(row) for row in x])
    model = volterra.identify(torch.from_numpy(x)[..., None], y[..., None], memory=60)
    assert model.states == 2
    assert model.error < 1e-6
    assert model.constant.item() == pytest.approx(0.3, abs=1e-6)
    half = volterra.identify(x, y, memory=60, states=2, dt=0.5)
    t = torch.arange(5)
    torch.testing.assert_close(half.kernel(t), 2 * model.kernel(t), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(half.kernel(t, t), 4 * model.kernel(t, t), rtol=1e-4, atol=1e-6)


@given(st.sampled_from([1e-150, 1e-8, 1e8, 1e100]), st.sampled_from([1e-8, 1.0, 1e6]), st.floats(-3, 3))
@settings(max_examples=4, deadline=None)
def test_units_do_not_matter(size: float, unit: float, offset: float) -> None:
    x = np.random.default_rng(4).standard_normal(300)
    y = system(x)
    model = volterra.identify(x, y, memory=60, states=2)
    other = volterra.identify(unit * x, size * (y + offset), memory=60, states=2)
    torch.testing.assert_close(other.layer.eigenvalues(), model.layer.eigenvalues(), rtol=1e-3, atol=0)
    np.testing.assert_allclose(run(other, unit * x) / size, run(model, x) + offset, atol=1e-4)
    assert other.error < 1e-4


@pytest.mark.parametrize("value", [0.0, 0.1, -1e200])
def test_an_output_that_does_not_change_is_a_constant(value: float) -> None:
    x = np.random.default_rng(4).standard_normal((2, 60))
    model = volterra.identify(x, np.full((2, 60), value), memory=5)
    assert model.error == 0
    assert set(run(model, x[0]).tolist()) == {value}


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_kernels_whose_squares_are_no_numbers_are_refused(size: float) -> None:
    for kernels in ({1: size * np.ones(5)}, {2: lambda a, b: size * np.exp(-a - b)}):
        with pytest.raises(ArgumentError, match=r"^kernels\[.\]: expected a size between 1e-100 and 1e\+100"):
            volterra(kernels, 4)
    x = np.random.default_rng(4).standard_normal(800)
    with pytest.raises(ArgumentError, match=r"^x: expected values whose power 2"):
        volterra.identify(size * x, system(x), memory=60, states=2)


def test_what_a_sample_could_miss() -> None:
    """Arrays and small grids are seen whole; a large one on its diagonal and on uniform points too."""
    spike = np.zeros((1001, 1001))
    spike[800, 800] = 1
    decay = on_grid(PAIRS["beat"], 2, 1001)
    for kernel in (spike, decay + spike, lambda a, b: 1.0 * ((a == 800) & (b == 800))):
        with pytest.raises(NumericalError, match="do not span the kernels"):
            volterra({2: kernel}, 1000)
    cube = on_grid(TRIPLES["beat"], 3, 121)
    model = volterra({3: cube})
    assert model.error <= 1e-3
    assert model.kernel_errors[3] == pytest.approx(kernel_error(model, cube), rel=1e-6)
    for a, b in ((3000, 3000), (2500, 4500)):
        with pytest.raises(NumericalError, match="use a larger tol"):
            volterra({2: lambda s, t, a=a, b=b: PAIRS["beat"](s, t) + bump(s - a, t - b) + bump(s - b, t - a)}, 5000)


def test_the_experiment_needs_lengths_to_compare() -> None:
    with pytest.raises(ArgumentError, match=r"^lengths: expected two or more lengths in ascending order"):
        VolterraConfig(lengths=(100,))


def bump(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-(a**2 + b**2) / 200)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y": np.ones(30)}, r"^y: expected shape \(1, 40\) \(as x\)"),
        ({"x": np.ones(40, complex)}, r"^x: expected real numbers, got complex128"),
        ({"states": True}, r"^states: .* got True"),
        ({"x": np.full(40, np.nan)}, r"^x: expected finite numbers"),
        ({"x": np.zeros(40)}, r"^x: .* got zeros"),
        ({"x": np.ones((2, 20, 2))}, r"^x: .* got shape \(2, 20, 2\)"),
        ({"order": 4}, r"^order: expected 1, 2 or 3, got 4"),
        ({"memory": 32}, r"^memory: .* from 1 to 31 .* got 32"),
        ({"states": 0}, r"^states: .* got 0"),
        ({"states": 8, "y": np.arange(40)}, r"^x: expected more steps than regressors"),
        ({"held_out": 1.0}, r"^held_out: .* got 1\.0"),
        ({"dt": 0.0}, r"^dt: .* got 0\.0"),
    ],
)
def test_wrong_records_are_named(options: dict, message: str) -> None:
    arguments = {"x": np.ones(40), "y": np.ones(40), "memory": 5} | options
    with pytest.raises(ArgumentError, match=message):
        volterra.identify(**arguments)
