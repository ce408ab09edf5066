"""Complex kernels: complex modes without conjugates, no worse than ESPRIT, and all that a result does."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hankel
from scipy.special import gamma

from stablessm import LRU
from stablessm.constructions import ExponentialSum, exponential_sum

STEP = 0.05
TIMES = STEP * np.arange(401)
MODES = ExponentialSum(
    np.array([-0.3 + 2j, -0.1 - 1j]), np.array([1 + 1j, 0.5j]), STEP, 400, "continuous", is_complex=True
)


def bath(t: np.ndarray, power: float = 2.0) -> np.ndarray:
    """The correlation of an ohmic bath at temperature zero, ∫ ω^{s} e^{-ω(1 + it)} dω, s = power - 1."""
    return (1 + 1j * t) ** -power


def esprit(values: np.ndarray, order: int, dt: float = STEP) -> float:
    """The textbook: shift-invariance of the first singular vectors, weights by least squares. Its supremum, with
    growing modes moved to the boundary of stability, because a sum that grows after its samples is not admissible.
    """
    half = len(values) // 2 + 1
    u = np.linalg.svd(hankel(values[:half], values[half - 1 :]))[0][:, :order]
    rates = np.log(np.linalg.eigvals(np.linalg.lstsq(u[:-1], u[1:], rcond=None)[0])) / dt
    modes = np.exp(np.outer(dt * np.arange(len(values)), np.minimum(rates.real, 0) + 1j * rates.imag))
    return float(np.abs(modes @ np.linalg.lstsq(modes, values, rcond=None)[0] - values).max())


def drude(t: np.ndarray, width: float, temperature: float) -> np.ndarray:
    """The correlation of a Lorentzian bath: a pole of its own and Matsubara terms."""
    cot = 1 / np.tan(width / (2 * temperature))
    value = width * (cot - 1j) * np.exp(-width * t)
    for k in range(1, 60):
        rate = 2 * np.pi * k * temperature
        value = value + 4 * width * temperature * rate / (rate**2 - width**2) * np.exp(-rate * t)
    return value


kernels = st.one_of(
    st.floats(0.6, 3.5).map(lambda s: ("power", s)),
    st.tuples(st.floats(0.3, 3), st.floats(0.3, 2)).map(lambda p: ("drude", p)),
    st.integers(0, 2**32 - 1).map(lambda seed: ("modes", seed)),
    st.floats(0.2, 2).map(lambda s: ("chirp", s)),
)


def values_of(kind: str, p: object) -> np.ndarray:
    if kind == "power":
        return gamma(p) * bath(TIMES, p)
    if kind == "drude":
        return drude(TIMES, *p)
    if kind == "chirp":
        return np.exp(-0.3 * TIMES + 1j * p * TIMES**1.5)
    rng = np.random.default_rng(p)
    rates = -np.exp(rng.uniform(-3, 2, 12)) + 1j * rng.uniform(-20, 20, 12)
    return np.exp(np.outer(TIMES, rates)) @ (rng.standard_normal(12) + 1j * rng.standard_normal(12))


@settings(max_examples=10, deadline=None)
@given(kernels, st.integers(1, 7))
def test_no_worse_than_esprit_at_equal_order(kernel: tuple, order: int) -> None:
    values = values_of(*kernel)
    found = exponential_sum(values, order=order, dt=STEP)
    assert found.order <= order
    assert found.error <= esprit(values, order) * (1 + 1e-6) + 1e-12 * np.abs(values).max()
    assert found.error == pytest.approx(np.abs(found(TIMES) - values).max())


def test_the_bath_of_the_record() -> None:
    found = exponential_sum(bath(TIMES), order=8, dt=STEP)
    assert found.order == len(found.rates) == 8
    assert found.error <= 2e-6


@pytest.mark.parametrize(
    ("kernel", "time"),
    [
        (bath, "continuous"), ("(1+1j*t)**-2", "discrete"), (bath(TIMES), "discrete"),
        *(pytest.param(kernel, time, marks=pytest.mark.slow) for kernel, time in (
            (bath, "discrete"), ("(1+1j*t)**-2", "continuous"), (bath(TIMES), "continuous"),
        )),
    ],
)  # fmt: skip
def test_functions_formulas_and_samples(kernel: object, time: str) -> None:
    found = exponential_sum(kernel, None if isinstance(kernel, np.ndarray) else 400, tol=1e-4, dt=STEP, time=time)
    assert found.is_complex
    assert found.order <= 7
    assert np.abs(found(TIMES) - bath(TIMES)).max() <= 1e-4


def test_modes_are_found_again_without_conjugates() -> None:
    found = exponential_sum(MODES(TIMES), tol=1e-9, dt=STEP)
    assert found.order == 2
    assert np.sort_complex(found.rates) == pytest.approx(MODES.rates, rel=1e-6)
    irregular = np.sort(np.random.default_rng(0).uniform(0, 20, 200))
    least = exponential_sum(MODES(irregular), times=irregular, dt=STEP, time="continuous", norm="l2")
    assert np.sort_complex(least.rates) == pytest.approx(MODES.rates, rel=1e-6)


def test_zero_imaginary_parts_are_a_real_kernel() -> None:
    found = exponential_sum((1 + TIMES) ** -1.5 + 0j, tol=1e-4, dt=STEP)
    assert not found.is_complex
    assert found.rates.dtype == np.float64


@pytest.mark.parametrize("time", ["discrete", "continuous"])
def test_several_outputs_stream_and_become_a_layer(time: str) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 3, 2)) + 1j * rng.standard_normal((2, 3, 2))
    es = ExponentialSum(MODES.rates, weights, STEP, 400, time, is_complex=True)
    x = rng.standard_normal((40, 2))
    state, out = None, []
    for x_t in x:
        y_t, state = es.step(x_t, state)
        out.append(y_t)
    gain = 1.0 if time == "discrete" else np.expm1(es.rates * STEP) / es.rates
    kernel = np.einsum("km,moi->koi", np.exp(np.outer(STEP * np.arange(40), es.rates)) * gain, weights)
    expected = np.array([sum(kernel[k - j] @ x[j] for j in range(k + 1)) for k in range(40)])
    assert np.abs(np.array(out) - expected).max() < 1e-10
    layer = es.to_layer(dtype=torch.float64)
    assert isinstance(layer, LRU)
    with torch.no_grad():
        y = layer(torch.from_numpy(x)[None])[0][0].numpy()
    assert np.abs(y[:, :3] + 1j * y[:, 3:] - expected).max() < 1e-10
    complex_input, _ = es.step(np.array([1j, 0]))
    assert complex_input == pytest.approx(1j * es.step(np.array([1.0, 0]))[0])


def test_matrix_valued_complex_samples_share_their_rates() -> None:
    values = np.stack([bath(TIMES), bath(TIMES, 1.5)], axis=1)[:, :, None]
    found = exponential_sum(values, tol=1e-4, dt=STEP)
    assert found.weights.shape == (found.order, 2, 1)
    assert np.abs(found(TIMES) - values).max() == pytest.approx(found.error)
    assert found.error <= 1e-4


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    again = ExponentialSum.load(MODES.save(tmp_path / "sum.safetensors"))
    assert again.is_complex
    assert (again(TIMES) == MODES(TIMES)).all()
    assert "complex" in repr(again)
    real_rates = ExponentialSum(np.array([-1.0]), np.array([1j]), 1.0, 5, is_complex=True)
    assert real_rates(0.0) == 1j
    assert ExponentialSum.load(real_rates.save(tmp_path / "real.safetensors")).weights == [1j]
    assert math.isnan(real_rates.error)
