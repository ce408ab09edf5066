"""Effective state size, information processing capacity and receptive fields of systems whose answers are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import stablessm as ssm
from stablessm import (
    ArgumentError,
    NumericalError,
    effective_state_size,
    information_processing_capacity,
    receptive_field,
)

SEEDS = st.integers(0, 10**6)


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filtered(kernel):
    """The causal convolution with a kernel, as a function of (batch, time, 1)."""
    weights = torch.as_tensor(kernel).flip(0)[None, None]
    return lambda x: F.conv1d(F.pad(x.mT, (len(kernel) - 1, 0)), weights).mT


def reservoir(seed: int, size: int, steps: int, gain: float):
    """Inputs (time,) and states (time, size) of a random echo state network with tanh."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((size, size))
    W *= 0.7 / abs(np.linalg.eigvals(W)).max()
    B, u = gain * rng.uniform(-1, 1, size), rng.uniform(-1, 1, steps)
    state, states = np.zeros(size), []
    for now in u:
        state = np.tanh(W @ state + B * now)
        states.append(state)
    return u, np.array(states)


@given(seed=SEEDS, modes=st.integers(1, 6), inputs=st.integers(1, 2), skip=st.booleans())
def test_an_lru_has_as_many_as_modes(seed, modes, inputs, skip):
    angles = torch.linspace(0.3, 2.8, modes)
    given_ones = torch.polar(0.6 + 0.3 * torch.rand(modes, generator=torch.Generator().manual_seed(seed)), angles)
    layer = ssm.LRU(inputs, modes, 2, eigenvalues=given_ones, skip=skip)
    found = effective_state_size(layer, noise(seed, 40, inputs))
    assert (found.size, found.state_size) == (modes, modes)


@given(seed=SEEDS, size=st.integers(1, 5), direct=st.booleans(), form=st.sampled_from(["state", "function", "numpy"]))
def test_a_linear_model_has_the_rank_of_its_hankel_matrix(seed, size, direct, form):
    """Random A, B, C of which some states are not reached or not seen."""
    A, B, C = 0.8 * torch.linalg.qr(noise(seed, size, size))[0], noise(seed + 1, size, 1), noise(seed + 2, 1, size)
    if seed % 2 and size > 1:  # the last state is not seen
        A[:-1, -1], C[0, -1] = 0.0, 0.0
    powers = [torch.eye(size, dtype=torch.float64)]
    for _ in range(40):
        powers.append(A @ powers[-1])
    kernel = np.array([float((C @ power @ B)[0, 0]) for power in powers])
    hankel = kernel[np.arange(20)[:, None] + np.arange(20)]
    expected = np.linalg.matrix_rank(hankel, rtol=1e-9)

    def run(x, state=None):
        state = torch.zeros(len(x), size, dtype=torch.float64) if state is None else state
        outputs = []
        for now in torch.as_tensor(x).unbind(1):
            state = state @ A.mT + now @ B.mT
            outputs.append(state @ C.mT + 3 * direct * now)
        return torch.stack(outputs, 1), state

    model = {"state": run, "function": lambda x: run(x)[0], "numpy": lambda x: run(np.asarray(x))[0].numpy()}[form]
    found = effective_state_size(model, noise(seed, 40), 1e-9 if form != "numpy" else 1e-6)
    assert found.size == expected or (form == "numpy" and found.size <= expected)
    assert (found.state_size == size) == (form == "state")


def foreign_size(seed, size, tanh):
    """The effective state size of a random network of NumPy arrays."""
    rng = np.random.default_rng(seed)
    A, B, C = rng.standard_normal((size, size)), rng.standard_normal((size, 1)), rng.standard_normal((2, size))
    A *= rng.uniform(0.3, 0.99) / abs(np.linalg.eigvals(A)).max()

    def run(x, state):
        outputs, h = [], np.zeros((len(x), size)) if state is None else state
        for t in range(x.shape[1]):
            h = h @ A.T + np.asarray(x)[:, t] @ B.T
            h = np.tanh(h) if tanh else h
            outputs.append(h @ C.T)
        return np.stack(outputs, 1), h

    return effective_state_size(run, noise(seed, 40)).size


def test_finite_differences_add_little_to_the_size():
    """A combination of weak effects resembles the effect of x[t], except for the rounding errors of differences."""
    sizes = [1 + seed % 7 for seed in range(20)]
    assert sum(foreign_size(5000 + i, size, bool(i % 2)) > size for i, size in enumerate(sizes)) <= 1  # 9 before


@given(seed=SEEDS, width=st.integers(2, 9))
def test_a_window_has_its_width_and_a_delay_its_length(seed, width):
    kernel = 0.2 + torch.rand(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = noise(seed, 50)
    assert effective_state_size(filtered(kernel), x).size == width
    assert effective_state_size(lambda x: F.pad(x, (0, 0, width, 0))[:, :-width], x).size == width
    field = receptive_field(filtered(kernel), x)
    assert (field.reach(1e-9), field.reach(1e-9, by="gradient")) == (width, width)
    np.testing.assert_allclose(field.gradient[:width], kernel, rtol=1e-6)


def test_a_window_in_a_state_has_its_width():
    def window(first):
        def run(x, state):
            state = torch.zeros(len(x), 6, dtype=x.dtype) if state is None else state
            outputs = []
            for now in x.unbind(1):
                moved = torch.cat([state[:, 1:], now], 1)
                outputs.append((state if first else moved).cos().sum(1, keepdim=True))
                state = moved
            return torch.stack(outputs, 1), state

        return run

    for first in (True, False):
        assert effective_state_size(window(first), noise(0, 40)).size == 6


def taps(seed: int) -> np.ndarray:
    """A random filter whose effect of x[t] on y[t] may be small, and whose taps may differ by orders of magnitude."""
    rng = np.random.default_rng(seed)
    kernel = rng.standard_normal(rng.integers(2, 9)) * 10 ** rng.uniform(-2, 0)
    kernel[0] *= 10 ** rng.uniform(-2, 2)
    kernel[-1] = 10 ** rng.uniform(-2, 0)
    return [np.concatenate([np.ones(len(kernel) - 1), kernel[-1:]]), kernel][seed % 2]


@given(seed=SEEDS)
def test_the_size_of_a_filter_and_its_entropy_do_not_depend_on_the_direct_effect(seed):
    kernel = taps(seed)
    index = np.arange(1, len(kernel))[:, None] + np.arange(len(kernel) - 1)
    assume(np.linalg.cond(np.append(kernel, np.zeros(len(kernel)))[index]) < 1e8)  # all above the tolerance
    other = kernel.copy()
    other[0] *= 50.0
    one, two = (effective_state_size(filtered(each), noise(seed, 6 * len(kernel))) for each in (kernel, other))
    assert one.size == two.size == len(kernel)
    np.testing.assert_allclose(one.entropy, two.entropy, rtol=1e-6)
    np.testing.assert_allclose(one.singular_values, two.singular_values, atol=1e-12)


@pytest.mark.parametrize("numpy", [False, True])
def test_a_window_of_one_input_keeps_nothing(numpy):
    """By Fourier transforms, whose rounding errors are everywhere."""

    def pointwise(x):
        return torch.fft.irfft(torch.fft.rfft(torch.as_tensor(x), dim=1) * 3.0, n=x.shape[1], dim=1)

    model = (lambda x: pointwise(x).numpy()) if numpy else pointwise
    assert effective_state_size(model, noise(0, 41)).size == 0
    assert effective_state_size(filtered(np.array([2.0])), noise(0, 30)).size == 0


def test_memoryless_models_and_parts_of_the_state():
    assert effective_state_size(lambda x: x.tanh(), noise(0, 20)).size == 0
    found = effective_state_size(nn.LSTM(2, 4), noise(0, 40, 2).float())
    assert (found.size, found.state_size, found.by_layer.shape) == (8, 8, (2, 3))
    assert found.by_layer.max() == 4
    assert 1 < found.entropy.max() < 8
    assert found.plot().get_title() == "effective state size 8"
    model = ssm.LanguageModel(12, d_model=4, n_layers=2, d_state=2, mixer="lru")
    assert effective_state_size(model, torch.arange(30) % 12).by_layer.max() <= 2


def test_hugging_face_tokens():
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, state_size=4)
    model, tokens = transformers.MambaForCausalLM(config), torch.arange(24) % 20
    found = effective_state_size(model, tokens)
    assert 0 < found.size < 128
    assert 1e-8 < found.tol < 1e-3  # the model computes in float32
    assert receptive_field(model, tokens).gradient is not None


@given(seed=SEEDS, width=st.integers(1, 6))
def test_a_delay_line_keeps_its_inputs(seed, width):
    u = np.random.default_rng(seed).uniform(-1, 1, 1200)
    states = np.stack([np.roll(u, k) for k in range(width)], 1) @ np.random.default_rng(seed).normal(
        size=(width, width + 1)
    )
    found = information_processing_capacity(states, u)
    assert found.total == pytest.approx(width, abs=1e-6)
    assert (found.rank, found.state_size, found.nonlinear) == (width, width + 1, 0)
    assert found.linear == pytest.approx(np.ones(width))


def polynomial(degree: int, u: np.ndarray) -> np.ndarray:
    return np.polynomial.legendre.legval(u, [0] * degree + [1]) * (2 * degree + 1) ** 0.5


@given(seed=SEEDS, delay=st.integers(0, 150))
def test_a_single_input_at_any_delay_is_found(seed, delay):
    u = np.random.default_rng(seed).uniform(-1, 1, 1500)
    found = information_processing_capacity(np.roll(u, delay)[:, None], u, max_delay=150)
    assert found.total == pytest.approx(1)
    assert found.linear.argmax() == len(found.linear) - 1 == delay
    assert found.complete
    assert found.reach == {1: 150}


@given(seed=SEEDS)
def test_random_products_of_inputs_are_found(seed):
    """Products of degrees up to 4 and delays up to 9, with a gap at short delays, mixed and scaled."""
    rng = np.random.default_rng(seed)
    u, terms = rng.uniform(-1, 1, 2000), set()
    for _ in range(rng.integers(1, 6)):
        delays = np.sort(rng.choice(10, rng.integers(1, 3), replace=False)).tolist()
        terms.add(tuple((each, int(rng.integers(1, 3))) for each in delays))
    table = np.stack([np.prod([polynomial(n, np.roll(u, k)) for k, n in term], 0) for term in terms], 1)
    found = information_processing_capacity(table @ rng.normal(size=(len(terms),) * 2), u, max_degree=4, max_delay=10)
    assert {term for term, value in found.terms if value > 0.8} == terms
    assert found.total == pytest.approx(len(terms), rel=0.01)
    assert found.complete


def test_a_search_says_what_it_left_out():
    u = np.random.default_rng(0).uniform(-1, 1, 2000)
    late = polynomial(2, np.roll(u, 60))[:, None]
    found = information_processing_capacity(late, u, max_delay=80, most=500)
    assert (found.total, found.complete, found.reach) == (0.0, False, {1: 80, 2: 30, 3: 12, 4: 8, 5: 6})
    assert "delays up to 80 (degree 1), 30 (degree 2)" in str(found)
    assert information_processing_capacity(late, u, max_delay=80).terms == ((((60, 2),), pytest.approx(1, abs=1e-4)),)
    noise = np.random.default_rng(1).normal(size=(2000, 2))
    assert information_processing_capacity(noise, u, max_degree=2, max_delay=20).complete
    both = np.c_[noise[:, 0], polynomial(2, u)]  # higher degrees may have a capacity, and longer delays
    assert not information_processing_capacity(both, u, max_degree=2, max_delay=20).complete
    both = np.c_[noise[:, 0], np.roll(u, 20)]
    assert not information_processing_capacity(both, u, max_degree=2, max_delay=20).complete


def test_functions_of_inputs_are_named():
    rng = np.random.default_rng(0)
    u = rng.uniform(-3, 5, 6000)
    v = (u - 1) / 4
    states = np.stack([v**2, v * np.roll(v, 3), np.roll(v, 1) ** 3 - 0.6 * np.roll(v, 1), rng.normal(size=6000)], 1)
    found = information_processing_capacity(states, u)
    assert found.by_degree == pytest.approx({1: 0.0, 2: 2.0, 3: 1.0, 4: 0.0, 5: 0.0}, abs=0.03)
    large = {term for term, value in found.terms if value > 0.9}
    assert large == {((0, 2),), ((0, 1), (3, 1)), ((1, 3),)}
    assert "degree 2" in str(found)
    assert found.plot().get_xlabel() == "degree"


@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
def test_an_lru_keeps_as_many_numbers_as_it_has_independent_states(dtype):
    rng = np.random.default_rng(1)
    u = rng.uniform(-1, 1, 8000)
    a = rng.uniform(0.3, 0.95, 6) * np.exp(1j * rng.uniform(0.3, 2.8, 6))
    h, states = np.zeros(6, complex), []
    for now in u:
        h = a * h + now
        states.append(h)
    found = information_processing_capacity(np.array(states, dtype), u)
    assert found.total == pytest.approx(12, rel=0.02)
    assert found.total <= found.rank == 12


def published(u, states, degrees, delays):
    """The total of Dambre et al. 2012: capacities above twice the quantile of χ², by regression, one by one."""
    stats = pytest.importorskip("scipy.stats")
    x = states[delays:] - states[delays:].mean(0)
    solve = np.linalg.pinv(x)
    limit = 2 * stats.chi2.isf(1e-4, x.shape[1]) / len(x)
    total = 0.0
    for degree in range(1, degrees + 1):
        for chosen in itertools.combinations_with_replacement(range(delays), degree):
            z = np.ones(len(x))
            for delay in set(chosen):
                n = chosen.count(delay)
                z = z * np.polynomial.legendre.Legendre.basis(n)(u[delays - delay : len(u) - delay])
            z = z - z.mean()
            capacity = 1 - np.square(z - x @ (solve @ z)).mean() / np.square(z).mean()
            total += capacity * (capacity > limit)
    return total


def test_a_random_reservoir_agrees_with_the_published_method():
    u, states = reservoir(0, 6, 5000, 1.0)
    found = information_processing_capacity(states, u, max_degree=3)
    assert found.total == pytest.approx(published(u, states, 3, 12), rel=0.05)


@pytest.mark.slow
def test_a_large_reservoir_agrees_with_the_published_method():
    u, states = reservoir(0, 50, 20_000, 0.3)
    found = information_processing_capacity(states, u, max_degree=3)
    assert found.total == pytest.approx(published(u, states, 3, 25), rel=0.05)


@given(seed=SEEDS, size=st.integers(1, 8))
def test_the_total_never_exceeds_the_number_of_states(seed, size):
    """Few samples, correlated inputs: each function alone would explain too much."""
    rng = np.random.default_rng(seed)
    u = np.convolve(rng.normal(size=420), np.ones(3), "valid") if seed % 2 else rng.uniform(0, 1, 400)
    states = np.tanh(np.stack([np.roll(u, k) for k in range(size)], 1) + 0.5 * rng.normal(size=(len(u), size)))
    found = information_processing_capacity(states, u, max_degree=3, most=300)
    assert 0 <= found.total <= size
    assert sum(found.by_degree.values()) == pytest.approx(found.total)


def test_receptive_fields_of_foreign_functions():
    gone = receptive_field(lambda x: np.cumsum(np.asarray(x), 1), np.random.default_rng(0).normal(size=60))
    assert (gone.gradient, gone.reach()) == (None, 30)
    with pytest.raises(ArgumentError, match="by: expected 'ablation'"):
        gone.reach(by="gradient")
    saturated = receptive_field(lambda x: (100 * x).sign().cumsum(1) / 10, torch.randn(60).sign())
    assert saturated.gradient.max() == 0
    assert saturated.ablation[-1] > 0
    assert saturated.plot().get_xlabel() == "lag in steps"


def test_memory_around_inputs():
    x = 3 * noise(0, 40, 2)
    layer = ssm.RealSSM(2, 3, 2).double()
    rest, around = ssm.memory_function(layer, 20), ssm.memory_function(layer, 20, around=x)
    kernel = layer.dt * rest.value
    assert np.all(around.value < 1.01 * np.linalg.norm(kernel) / layer.dt)
    lru = ssm.LRU(2, 3, 1).double()
    np.testing.assert_allclose(
        ssm.memory_function(lru, 20, around=x).value, ssm.memory_function(lru, 20).value, rtol=1e-6
    )
    forgets = lambda x: torch.tanh(5 * x).cumsum(1)  # noqa: E731
    quiet = ssm.memory_function(forgets, 10, d_input=2, bound=0.1)
    loud = ssm.memory_function(forgets, 10, bound=0.1, around=100 + 0 * x, d_input=2)
    assert loud.value.max() < 1e-6 < quiet.value.max()
    with pytest.raises(ArgumentError, match="at least 50 steps"):
        ssm.memory_function(lru, 50, around=x)


def test_errors():
    with pytest.raises(ArgumentError, match="tol: expected a number between 0 and 1"):
        effective_state_size(nn.GRU(1, 2), noise(0, 20), 2.0)
    with pytest.raises(ArgumentError, match="inputs: expected at least 4 steps"):
        effective_state_size(nn.GRU(1, 2), noise(0, 3))
    with pytest.raises(ArgumentError, match="no embedding"):
        effective_state_size(nn.GRU(1, 2), torch.arange(9))
    states, inputs = np.random.default_rng(0).normal(size=(300, 2)), np.random.default_rng(1).normal(size=300)
    with pytest.raises(ArgumentError, match="states: expected 300 steps, as many as the inputs, got 299 steps"):
        information_processing_capacity(states[1:], inputs)
    for bad in (np.nan, np.inf):
        with pytest.raises(
            ArgumentError, match="states: expected finite numbers, got NaN or infinity, first at step 7"
        ):
            information_processing_capacity(np.where(np.arange(300)[:, None] < 7, states, bad), inputs)
        with pytest.raises(
            ArgumentError, match="inputs: expected finite numbers, got NaN or infinity, first at step 9"
        ):
            information_processing_capacity(states, np.where(np.arange(300) < 9, inputs, bad))
    for name in ("max_degree", "max_delay", "most"):
        with pytest.raises(ArgumentError, match=f"{name}: expected a whole number, at least 1"):
            information_processing_capacity(states, inputs, **{name: 0})
    with pytest.raises(ArgumentError, match="states: expected more than"):
        information_processing_capacity(np.ones((30, 9)), np.arange(30.0))
    with pytest.raises(ArgumentError, match="at least one state variable that varies"):
        information_processing_capacity(np.ones((300, 2)), np.arange(300.0))
    with pytest.raises(ArgumentError, match="inputs: expected numbers that vary"):
        information_processing_capacity(np.random.default_rng(0).normal(size=(300, 2)), np.ones(300))


def with_the_last(x):
    return torch.cat([x[:, :-1] + x[:, -1:] ** 2, x[:, -1:]], 1)


@pytest.mark.parametrize("measure", [effective_state_size, receptive_field])
def test_noisy_functions_are_called_noisy(measure):
    with pytest.raises(ArgumentError, match="got noise: two calls differ by"):
        measure(lambda x: x + 1e-3 * torch.randn_like(x), torch.randn(20))


@pytest.mark.parametrize("measure", [effective_state_size, receptive_field])
@pytest.mark.parametrize(
    "model",
    [
        lambda x: x.flip(1).cumsum(1).flip(1),
        lambda x: nn.functional.conv1d(x.mT, torch.ones(1, 1, 3).to(x), padding=1).mT,
        lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
        lambda x: x - x.amax(1, keepdim=True),
        lambda x: x + x.exp().log1p().sum(1, keepdim=True),
        with_the_last,
        nn.GRU(1, 3, bidirectional=True),
    ],
    ids=["reversed", "padded", "shifted", "largest", "sum", "last", "bidirectional"],
)  # fmt: skip
def test_models_that_look_ahead_are_refused(measure, model):
    for x in (torch.randn(21, generator=torch.Generator().manual_seed(0)), torch.zeros(20)):
        with pytest.raises(ArgumentError, match=r"model: expected a causal model, got .* before step 1[01] change"):
            measure(model, x)


@pytest.mark.parametrize("measure", [effective_state_size, receptive_field])
def test_blocks_are_not_causal_even_if_the_middle_is_an_edge(measure):
    def blocks(x):
        return x.new_zeros(x.shape) if x.shape[1] % 4 else x.unflatten(1, (-1, 4)).flip(2).flatten(1, 2)

    with pytest.raises(ArgumentError, match="before step 9 change"):
        measure(blocks, torch.randn(16, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("measure", [effective_state_size, receptive_field])
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (torch.full((20,), float("nan")), "finite numbers"),
        ([1.0, 2.0, float("inf"), 4.0], "finite numbers"),
        ("abc", "a tensor or array of numbers"),
        (None, "a tensor or array of numbers"),
        (torch.ones(20, dtype=torch.complex64), "real numbers or tokens"),
    ],
)
def test_inputs_that_are_not_finite_numbers_are_refused(measure, inputs, expected):
    with pytest.raises(ArgumentError, match=f"inputs: expected {expected}"):
        measure(lambda x: x.cumsum(1), inputs)


@pytest.mark.parametrize("measure", [effective_state_size, receptive_field])
def test_outputs_that_are_not_finite_are_refused(measure):
    with pytest.raises(NumericalError, match="outputs of the model on these inputs are not finite"):
        measure(lambda x: (1000 * x).exp().cumsum(1), torch.ones(20))


@pytest.mark.parametrize(
    ("delay", "steps", "complete"), [(30, 48, False), (30, 128, True), (3, 24, True), (20, 40, False)]
)
def test_a_size_that_grows_with_the_number_of_steps_says_so(delay, steps, complete):
    late = lambda x: torch.cat([0 * x[:, :delay], x[:, :-delay]], 1)  # noqa: E731
    found = effective_state_size(late, torch.randn(steps, 1, dtype=torch.float64))
    assert found.complete == complete
    assert (found.size == delay) == complete
    assert ("give longer inputs" in str(found)) != complete


def test_a_delay_beyond_the_lags_of_a_receptive_field_is_at_least_as_long():
    late = lambda x: torch.cat([0 * x[:, :60], x[:, :-60]], 1)  # noqa: E731
    inputs = torch.randn(100, 1)
    found = receptive_field(late, inputs)
    assert found.reach() == len(found.lag) == 50
    assert str(found).startswith("at least the latest 50 inputs")
    assert receptive_field(late, inputs, lags=100).reach() == 61
    assert receptive_field(lambda x: 0 * x + 1, inputs).reach() == 0
    with pytest.raises(ArgumentError, match="inputs that vary"):
        receptive_field(late, torch.ones(100, 1))


@pytest.mark.parametrize("kind", ["heavy", "skewed", "normal", "uniform"])
def test_noise_in_a_state_is_not_explained_by_functions_of_outliers(kind):
    rng = np.random.default_rng(5)
    draw = {
        "heavy": lambda: rng.standard_t(2, 3000),
        "skewed": lambda: rng.exponential(size=3000),
        "normal": lambda: rng.standard_normal(3000),
        "uniform": lambda: rng.uniform(-1, 1, 3000),
    }
    u = draw[kind]()
    state = u + 0.5 * u.std() * rng.standard_normal(3000)
    found = information_processing_capacity(state[:, None], u, max_degree=4, most=2000)
    np.testing.assert_allclose([found.total, found.by_degree[1]], 0.8, atol=0.04)
