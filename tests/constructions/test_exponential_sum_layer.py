"""A sum as a layer: the same kernel in every map, stable in float32, within its errors over long streams."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import oaconvolve
from scipy.special import airy

from stablessm import LRU, ArgumentError, RealSSM
from stablessm.constructions import ExponentialSum, exponential_sum

MAPS = ("direct", "clip", "relu", "exp", "softplus", "tanh", "best")
STEPS = 100_000


@pytest.mark.parametrize("time", ["discrete", "continuous"])
@pytest.mark.parametrize("decay", [0.05, 0.2])
def test_a_layer_whose_kernel_is_lost_in_float32_is_named(time: str, decay: float) -> None:
    """Two nearly equal rates with large opposite weights become one rate in float32."""
    rates = decay * np.array([-1 - 1e-8, -1])
    es = ExponentialSum(rates, np.array([-1.0, 1.0]) / (rates[1] - rates[0]), 1.0, 200, time)
    with pytest.warns(UserWarning, match=r"^rounding to torch.float32 changes the kernel .* pass dtype=torch.float64"):
        es.to_layer(dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        es.to_layer(dtype=torch.float64)
        exponential_sum(lambda t: (1 + t) ** -1.1, 100, tol=1e-5).to_layer(dtype=torch.float32)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_every_map_gives_the_same_kernel(name: str, kind: str) -> None:
    kernel = (lambda t: (1 + t) ** -1.5) if kind == "real" else (lambda t: np.exp(-t / 40) * np.cos(t) + 0.9**t)
    es = exponential_sum(kernel, 100, tol=1e-4)
    layer = es.to_layer(map=name, dtype=torch.float64)
    assert isinstance(layer, RealSSM if kind == "real" else LRU)
    values = layer.kernel(torch.arange(101))[:, 0, 0].detach().numpy()
    assert np.abs(values - es(np.arange(101.0))).max() < 1e-10
    assert layer.map.name == name


def test_a_negative_eigenvalue_needs_an_lru() -> None:
    es = exponential_sum((-0.8) ** np.arange(50.0), tol=1e-8)
    assert es.order == 1
    layer = es.to_layer(dtype=torch.float64)
    assert isinstance(layer, LRU)
    assert np.abs(layer.kernel(torch.arange(50))[:, 0, 0].detach().numpy() - (-0.8) ** np.arange(50)).max() < 1e-7


@pytest.mark.parametrize("name", MAPS)
def test_a_mode_of_one_step_is_in_reach_of_every_map(name: str) -> None:
    es = ExponentialSum(np.array([-0.1, -2000.0]), np.array([1.0, 3.0]), 1.0, 20)
    values = es.to_layer(map=name, dtype=torch.float64).kernel(torch.arange(20))[:, 0, 0].detach().numpy()
    assert np.abs(values - es(np.arange(20.0))).max() < 1e-12


@settings(max_examples=25, deadline=None)
@given(st.floats(0.0, 3.1), st.sampled_from(MAPS), st.floats(1e-9, 1e-5))
def test_rates_are_stable_in_float32(phase: float, name: str, decay: float) -> None:
    """The slowest kernels there are: what decays more slowly than the limit is taken at the limit."""
    es = exponential_sum(lambda t: np.exp(-decay * t) * np.cos(phase * t), 300, order=2, dtype="float32")
    assert (np.abs(es.eigenvalues.astype(np.complex64)) < 1).all()
    layer = es.to_layer(map=name, dtype=torch.float32)
    assert bool((layer.eigenvalues().abs() < 1).all())
    layer.load_state_dict(es.to_layer(map=name, dtype=torch.float64).to(torch.float32).state_dict())
    assert bool((layer.eigenvalues().abs() < 1).all())


def test_decays_that_float32_does_not_have_are_refused() -> None:
    es = exponential_sum(lambda t: np.exp(-1e-9 * t), 300, order=1)
    assert es.to_layer(dtype=torch.float64).eigenvalues().item() < 1
    with pytest.raises(ArgumentError, match="dtype='float32'"):
        es.to_layer(dtype=torch.float32)


def test_a_continuous_sum_is_a_continuous_layer() -> None:
    es = exponential_sum(lambda t: (1 + 5 * t) ** -1.5, 100, dt=0.1, tol=1e-4, time="continuous")
    for name in ("best", "exp", "softplus"):
        layer = es.to_layer(map=name, dtype=torch.float64)
        assert isinstance(layer, RealSSM)
        assert (layer.time, layer.dt) == ("continuous", 0.1)
        t = torch.linspace(0, 10, 77, dtype=torch.float64)
        assert np.abs(layer.kernel(t)[:, 0, 0].detach().numpy() - es(t.numpy())).max() < 1e-10
        agrees_with_steps(es, layer)


def test_a_continuous_oscillation_is_an_lru() -> None:
    es = exponential_sum(lambda t: np.exp(-t) * np.cos(3 * t), 100, dt=0.1, tol=1e-6, time="continuous")
    layer = es.to_layer(dtype=torch.float64)
    assert isinstance(layer, LRU)
    agrees_with_steps(es, layer)


def agrees_with_steps(es: ExponentialSum, layer: RealSSM | LRU, d_input: int = 1) -> None:
    x = np.random.default_rng(0).standard_normal((40, d_input))
    with torch.no_grad():
        y = layer(torch.from_numpy(x)[None])[0][0].numpy()
    state, out = None, []
    for x_t in x if es.shape else x[:, 0]:
        y_t, state = es.step(x_t, state)
        out.append(np.atleast_1d(y_t))
    assert np.abs(np.array(out) - y).max() < 1e-10


@pytest.mark.parametrize(("d_output", "d_input"), [(1, 1), (1, 3), (3, 1), (2, 3)])
@pytest.mark.parametrize("phase", [0.0, 1.0])
def test_matrix_valued_sums_are_layers(d_output: int, d_input: int, phase: float) -> None:
    weights = np.random.default_rng(0).standard_normal((3, d_output, d_input))
    rates = np.array([-0.1, -0.5, -2.0]) + 1j * phase
    es = ExponentialSum(rates, weights + 0.5j * weights * phase, 1.0, 30)
    agrees_with_steps(es, es.to_layer(dtype=torch.float64), d_input)


def inputs(kind: str) -> np.ndarray:
    x = {"random": np.random.default_rng(0).uniform(-1, 1, STEPS), "constant": np.ones(STEPS)}
    return x.get(kind, (np.arange(STEPS) == 0).astype(float))


def off(es: ExponentialSum, kernel: np.ndarray) -> float:
    """The largest error of the layer's output, over all inputs, against the kernel that ends with its samples."""
    x = np.stack([inputs(kind) for kind in ("random", "constant", "impulse")])
    with torch.no_grad():
        y = es.to_layer(dtype=torch.float64)(torch.from_numpy(x)[..., None])[0][..., 0].numpy()
    return float(np.abs(y - oaconvolve(x, kernel[None], axes=1)[:, :STEPS]).max())


STREAMS = {
    **{f"(1+t)^-{p}": (lambda t, p=p: (1 + t) ** -p, STEPS, 1.0, 1e-6) for p in (0.5, 1.1, 1.5, 2.0)},
    "cosines": (lambda t: np.exp(-t / 50) * np.cos(t) + np.exp(-t / 200) * np.cos(0.3 * t + 1), 1000, 1.0, 1e-10),
    "Airy": (lambda t: airy(t - 6)[0], 300, 0.1, 1e-6),
    "stretched": (lambda t: np.exp(-np.sqrt(t)), 1000, 1.0, 1e-6),
    "lag": (lambda t: np.where(t == 50, 1.0, 0.0), 1000, 1.0, 1e-8),
    "nearly equal modes": (lambda t: t * np.exp(-t / 10), 1000, 1.0, 1e-8),
    "ends": (lambda t: 0.97**t * np.cos(0.1 * t) + (1 + t) ** -2, 1000, 1.0, 1e-5),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_long_stream_keeps_to_its_errors(name: str) -> None:
    """Against a kernel that ends at the horizon the error is at most l1_error + tail + rounding, for ever."""
    kernel, horizon, dt, tol = STREAMS[name]
    es, samples = exponential_sum(kernel, horizon, dt=dt, tol=tol), kernel(dt * np.arange(horizon + 1))
    tail = es.tail if horizon < STEPS else 0.0  # else the stream ends first
    left = off(es, samples)
    assert left <= es.l1_error + tail + es.rounding + 1e-12 * np.abs(samples).sum()  # the last for the reference
    worst = np.abs(np.cumsum(es(dt * np.arange(horizon + 1)) - samples)).max()  # of the constant input
    assert left >= 0.9 * worst - es.rounding - 1e-12 * np.abs(samples).sum()
    if name in ("lag", "nearly equal modes"):
        assert left > es.l1_error + tail  # so rounding has to count
        assert left > 0.02 * es.rounding


def test_the_tail_is_what_goes_on() -> None:
    kernel, horizon, _, tol = STREAMS["ends"]
    es = exponential_sum(kernel, horizon, tol=tol)
    beyond = np.abs(es(np.arange(horizon + 1.0, 30000.0))).sum()
    assert beyond > 1e-7
    assert beyond <= es.tail <= 1.5 * beyond


@pytest.mark.parametrize("time", ["discrete", "continuous"])
def test_rounding_of_one_mode(time: str) -> None:
    es = ExponentialSum(np.array([math.log(0.5)]), np.array([3.0]), 1.0, 4, time)
    gain = 1.0 if time == "discrete" else 0.5 / math.log(2)
    assert es.rounding == pytest.approx(2 * 2.0**-52 * 3 * gain / 0.25, rel=1e-9, abs=0)
    matrix = ExponentialSum(es.rates, np.array([[[3.0, -4.0], [5.0, 1.0]]]), 1.0, 4, time)
    assert matrix.rounding == pytest.approx(es.rounding * 7 / 3, rel=1e-9, abs=0)


def test_the_tail_of_one_mode_is_exact() -> None:
    es = ExponentialSum(np.array([2 * math.log(0.5)]), np.array([3.0]), 0.5, 4)
    assert es.tail == pytest.approx(3 * 0.5**5 / 0.5)
    beyond = ExponentialSum(es.rates, es.weights, 0.5, 4, "continuous", end=3.0)
    assert beyond.tail == pytest.approx(3 * 0.5**6 / (2 * math.log(2)))
    matrix = ExponentialSum(es.rates, np.array([[[3.0, -4.0], [5.0, 1.0]]]), 0.5, 4)
    assert matrix.tail == pytest.approx(es.tail * 7 / 3)
