"""A sum as a layer: the same kernel in every map, stable in float32, certified over long streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import oaconvolve

from stablessm import LRU, RealSSM
from stablessm.constructions import ExponentialSum, exponential_sum

MAPS = ("direct", "clip", "relu", "exp", "softplus", "tanh", "best")
STEPS = 100_000


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
    es = exponential_sum(lambda t: np.exp(-decay * t) * np.cos(phase * t), 300, order=2)
    assert (np.abs(es.eigenvalues.astype(np.complex64)) < 1).all()
    layer = es.to_layer(map=name, dtype=torch.float32)
    assert bool((layer.eigenvalues().abs() < 1).all())
    layer.load_state_dict(es.to_layer(map=name, dtype=torch.float64).to(torch.float32).state_dict())
    assert bool((layer.eigenvalues().abs() < 1).all())


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


@pytest.fixture(scope="module")
def long_sum() -> tuple[ExponentialSum, np.ndarray]:
    es = exponential_sum(lambda t: (1 + t) ** -1.1, STEPS, tol=1e-6)
    return es, (1 + np.arange(STEPS + 1.0)) ** -1.1


@pytest.mark.parametrize("kind", ["random", "constant", "impulse"])
def test_a_long_stream_keeps_to_the_certified_error(kind: str, long_sum: tuple[ExponentialSum, np.ndarray]) -> None:
    es, kernel = long_sum
    x = inputs(kind)
    with torch.no_grad():
        y = es.to_layer(dtype=torch.float64)(torch.from_numpy(x)[None, :, None])[0][0, :, 0].numpy()
    left = np.abs(y - oaconvolve(x, kernel)[:STEPS]).max()
    assert left <= es.l1_error * np.abs(x).max() + 1e-10
    if kind == "impulse":
        assert left <= es.error + 1e-10


@pytest.mark.parametrize("kind", ["random", "constant", "impulse"])
def test_beyond_the_horizon_the_tail_is_certified_too(kind: str) -> None:
    """Against a kernel that ends at the horizon the error is at most l1_error + tail, for ever."""
    kernel = 0.97 ** np.arange(1001) * np.cos(0.1 * np.arange(1001)) + (1 + np.arange(1001.0)) ** -2
    es = exponential_sum(kernel, tol=1e-5)
    x = inputs(kind)
    with torch.no_grad():
        y = es.to_layer(dtype=torch.float64)(torch.from_numpy(x)[None, :, None])[0][0, :, 0].numpy()
    left = np.abs(y - oaconvolve(x, kernel)[:STEPS]).max()
    assert left <= (es.l1_error + es.tail) * np.abs(x).max() + 1e-10
    beyond = np.abs(es(np.arange(1001.0, 30000.0))).sum()
    assert beyond <= es.tail <= 1.5 * beyond + 1e-9


def test_the_tail_of_one_mode_is_exact() -> None:
    es = ExponentialSum(np.array([math.log(0.5)]), np.array([3.0]), 1.0, 4)
    assert es.tail == pytest.approx(3 * 0.5**5 / 0.5)
