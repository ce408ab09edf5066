"""Standard errors of noisy samples, against matrices of their own and against random noise of many colors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz
from scipy.signal import lfilter

from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Fit, Problem, descend, fit_weights
from stablessm.constructions.sums._standard_errors import _color, _rotated, standard_errors

seeds = st.integers(0, 2**31)


def colored(rng: np.random.Generator, count: int, color: str, is_complex: bool) -> np.ndarray:
    """Noise of unit size: white, a first-order process, a moving average, or 1/f noise."""
    white = rng.standard_normal(count + 300) + (1j * rng.standard_normal(count + 300) if is_complex else 0)
    if color == "first":
        white = lfilter([1], [1, -rng.uniform(-0.8, 0.9)], white)
    elif color == "average":
        white = np.convolve(white, np.ones(rng.integers(2, 8)), "same")
    elif color == "pink":
        frequencies = np.abs(np.fft.fftfreq(len(white)))
        frequencies[0] = frequencies[1]
        white = np.fft.ifft(np.fft.fft(white) * frequencies ** -rng.uniform(0.2, 0.5))
    white = white if is_complex else white.real
    return white[-count:] / np.sqrt(np.mean(np.abs(white) ** 2) / (1 + is_complex))


def fitted(seed: int, color: str, is_complex: bool) -> tuple[np.ndarray, np.ndarray, Problem, Fit, float]:
    """Rates and weights of one or two waves or a decay, and the least-squares fit of their samples with noise."""
    rng = np.random.default_rng(seed)
    count, modes = int(rng.integers(100, 500)), int(rng.integers(1, 3))
    turns = (modes == 2) | is_complex
    rates = (
        -rng.uniform(4, 20, modes) / count
        + 1j * turns * rng.uniform(0.15, 1) * np.array([1.0, -2.5 if is_complex else 2.5])[:modes]
    )
    weights = rng.uniform(0.5, 2, modes) * np.exp(2j * np.pi * rng.random(modes) * turns)
    times = np.arange(float(count))
    clean = np.exp(np.outer(times, rates)) @ weights
    values = (clean if is_complex else clean.real) + 0.02 * colored(rng, count, color, is_complex)
    domain = Domain(1.0, True, False, False, 1e-9, is_complex=is_complex)
    one = np.ones(count)
    problem = Problem(times, values[:, None], one, one, domain)
    found, size = descend(problem, rates, 1e-9, 1e-3)
    parameters = 2 * modes * (1 + turns)
    return (
        rates,
        weights,
        problem,
        fit_weights(problem, found, ""),
        size / np.sqrt(count * (1 + is_complex) - parameters),
    )


def deviations(seed: int, color: str, even: bool = True) -> np.ndarray:
    """Return the errors of the rates and weights of a fit, each divided by its standard error."""
    rates, weights, problem, fit, level = fitted(seed, color, seed % 3 == 0)
    rate_errors, weight_errors = standard_errors(problem, fit, level, even=even)
    nearest = np.abs(fit.rates[:, None] - rates).argmin(axis=1)
    off = np.append(
        fit.rates - rates[nearest], problem.domain.weights(fit.coefficients, fit.rates)[:, 0] - weights[nearest]
    )
    errors = np.append(rate_errors, weight_errors[:, 0]).astype(complex)
    return np.append(off.real / errors.real, off.imag[errors.imag > 0] / errors.imag[errors.imag > 0])


@pytest.mark.parametrize("color", ["white", "first", "average", "pink"])
def test_intervals_cover_for_noise_of_any_color(color: str) -> None:
    found = np.concatenate([deviations(seed, color) for seed in range(20)])
    assert 0.88 < np.mean(np.abs(found) < 1.96) < 0.99


def test_white_noise_is_seldom_taken_for_correlated() -> None:
    same = [(deviations(seed, "white") == deviations(seed, "white", even=False)).all() for seed in range(20)]
    assert np.mean(same) > 0.8


@settings(max_examples=10, deadline=None)
@given(seeds, st.booleans())
def test_products_of_rows_are_covariances(seed: int, is_complex: bool) -> None:
    rng = np.random.default_rng(seed)
    poles = rng.uniform(-0.9, 0.9, 2) * np.exp(1j * rng.uniform(0, 6, 2) * is_complex)
    taps = np.poly(poles)
    impulse = lfilter([1], taps, np.append(1, np.zeros(2000)))
    covariance = [np.vdot(impulse[: len(impulse) - lag], impulse[lag:]) for lag in range(30)]
    rows = rng.standard_normal((3, 30)) + 1j * is_complex * rng.standard_normal((3, 30))
    expected = rows @ toeplitz(covariance, np.conj(covariance)) @ rows.conj().T
    rotated = _rotated(rows, 1 / np.abs(np.fft.fft(taps, 8192)) ** 2)
    assert rotated @ rotated.conj().T == pytest.approx(expected, rel=1e-4, abs=1e-4 * np.abs(expected).max())
    assert _rotated(rows, np.ones(1)).tolist() == rows.tolist()


@settings(max_examples=6, deadline=None)
@given(seeds, st.booleans(), st.floats(-0.8, 0.8))
def test_the_spectrum_of_a_process_is_estimated(seed: int, is_complex: bool, slope: float) -> None:
    rng = np.random.default_rng(seed)
    pole = slope * (np.exp(2j) if is_complex else 1)
    white = rng.standard_normal((4100, 2)) + (1j * rng.standard_normal((4100, 2)) if is_complex else 0)
    left = lfilter([1], [1, -pole], white, axis=0)[100:]
    trend = np.ones((4000, 1)) + 0 * left[:, :1]
    found = _color([trend, trend], left) * np.mean(np.abs(left) ** 2) / (1 + is_complex)
    expected = 1 / np.abs(np.fft.fft([1, -pole], 8192)) ** 2
    assert np.broadcast_to(found, 8192) == pytest.approx(expected, rel=0.25)


def test_a_few_samples_or_an_exact_fit_count_as_white() -> None:
    rng = np.random.default_rng(0)
    assert _color([np.ones((70, 1))], np.zeros((70, 1))).tolist() == [1]
    assert _color([rng.standard_normal((70, 50))], rng.standard_normal((70, 1))).tolist() == [1]
    _, _, problem, fit, level = fitted(4, "first", False)
    short = replace(problem, times=problem.times[:60], values=problem.values[:60], graded=problem.graded[:60])
    for one in (short, replace(problem, graded=np.arange(float(len(problem.times))) > 0)):  # a sample without weight
        told = standard_errors(one, fit, level, even=True)
        plain = standard_errors(one, fit, level, even=False)
        assert all((a == b).all() for a, b in zip(told, plain, strict=True))
