"""Where eigenvalues are, how well conditioned that is, and which step a state is at."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stablessm as ssm
from stablessm.reconstruction import (
    condition_number,
    dct,
    diagnose,
    fourier,
    haar,
    optimized,
    roots_of_unity,
    timestamp,
    uniform_ring,
)


@given(count=st.integers(1, 200), r_min=st.floats(0, 1), seed=st.integers(0, 5))
@settings(max_examples=30)
def test_rings_are_rings_and_grow_by_appending(count: int, r_min: float, seed: int) -> None:
    ring = uniform_ring(count, r_min, seed=seed)
    assert bool(((ring.abs() >= r_min - 1e-12) & (ring.abs() <= 1 + 1e-12)).all())
    assert torch.equal(uniform_ring(count + 3, r_min, seed=seed)[:count], ring)


def test_rings_are_uniform_in_area() -> None:
    """Lemma 6: |λ|² is uniform between the squared radii, the angle on the circle."""
    ring, share = uniform_ring(4000, 0.6, 0.9), (torch.arange(4000.0) + 0.5) / 4000
    for values, low, width in ((ring.abs() ** 2, 0.36, 0.45), (ring.angle(), -torch.pi, 2 * torch.pi)):
        apart = ((values.sort().values - low) / width - share).abs().max()
        assert float(apart) < 1.95 / 4000**0.5  # Kolmogorov and Smirnov, one in a thousand


@given(length=st.integers(2, 80), data=st.data())
@settings(max_examples=40)
def test_optimized_eigenvalues_are_perfectly_conditioned_on_the_circle(length: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, length))
    lam = optimized(count, length)
    assert len(lam) == count
    assert float(lam.abs().max()) <= 1 + 1e-12
    assert condition_number(lam, length, real=True) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("count", "length"), [(64, 256), (128, 256), (200, 256)])
@pytest.mark.parametrize("r_max", [1.0, 0.999])
def test_optimized_beats_both_random_rings(count: int, length: int, r_max: float) -> None:
    best = condition_number(optimized(count, length, r_max=r_max), length, real=True)
    for r_min in (0.95, 0.99):
        for seed in range(3):
            ring = r_max * uniform_ring(count, r_min, seed=seed)
            assert condition_number(ring, length, real=True) > 3 * best
    assert best <= 1.05 * r_max ** (1 - min(2 * count, length)) * (2**0.5 if r_max < 1 else 1)


@given(seed=st.integers(0, 10_000), size=st.sampled_from([1e-4, 1e-2, 0.3]))
@settings(max_examples=10)
def test_no_move_of_angles_or_radii_improves_it(seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    for count, length, r_max in ((6, 32, 0.97), (12, 20, 0.97)):
        lam = optimized(count, length, r_max=r_max)
        moved = torch.polar(
            (lam.abs() - size * torch.rand(count, generator=generator, dtype=torch.float64)).clamp(min=0),
            lam.angle() + size * torch.randn(count, generator=generator, dtype=torch.float64),
        )
        best = condition_number(lam, length, real=True)
        assert condition_number(moved, length, real=True) > best * (1 - 1e-3)


@pytest.mark.parametrize("basis", [haar, dct, fourier])
@pytest.mark.parametrize("count", [17, 24, 48])
def test_optimized_for_a_basis(basis, count: int) -> None:
    psi = basis(512, 32)
    lam = optimized(count, 512, basis=psi)
    best = condition_number(lam, 512, basis=psi, real=True)
    assert best < 3
    assert float(lam.abs().max()) <= 1 + 1e-12
    for r_min in (0.95, 0.99):
        assert condition_number(uniform_ring(count, r_min), 512, basis=psi, real=True) > 20 * best


@given(name=st.sampled_from([haar, dct, fourier]), functions=st.integers(1, 16), length=st.integers(33, 70))
@settings(max_examples=15)
def test_half_as_many_states_as_functions_do(name, functions: int, length: int) -> None:
    """Then a real eigenvalue, which gives one equation, is one too few."""
    psi, count = name(length, functions), (functions + 1) // 2
    found = diagnose(optimized(count, length, basis=psi), length, basis=psi)
    assert found.determined
    assert found.condition < 1e3
    for few in {1, count - 1} - {0, count}:
        lam = optimized(few, length, basis=psi)
        assert diagnose(lam, length, basis=psi).rank >= 2 * few - 1
        assert condition_number(lam, length, basis=psi, real=True) == math.inf


def test_a_placement_of_lower_rank_never_wins() -> None:
    psi = haar(64, 6)  # the constant asks for λ = 1
    assert diagnose(optimized(3, 64, basis=psi), 64, basis=psi).rank == 6


@pytest.mark.parametrize("count", [32, 150])
def test_roots_of_unity_in_single_precision_come_in_pairs(count: int) -> None:
    lam = torch.exp(2j * torch.pi * torch.arange(count) / count)
    assert lam.dtype == torch.complex64
    for values in (lam, lam.numpy()):
        assert diagnose(values, count).equations == count
        assert condition_number(values, count, real=True) == pytest.approx(2**0.5, rel=1e-3)
    assert diagnose(lam.to(torch.complex128), count).equations > count, "to double precision they are no pairs"


def test_roots_of_unity_are_conditioned_only_where_they_are_enough() -> None:
    assert condition_number(roots_of_unity(64), 64) == pytest.approx(1, abs=1e-10)
    assert condition_number(roots_of_unity(32), 64) == pytest.approx(1, abs=1e-10)  # rows, a multiple of 32
    assert condition_number(roots_of_unity(32), 48) == pytest.approx(2**0.5)
    assert condition_number(roots_of_unity(32).real, 32) > 1e12


@given(steps=st.integers(0, 2000), rate=st.floats(5e-4, 5e-3))
@settings(max_examples=30)
def test_timestamps_count_steps(steps: int, rate: float) -> None:
    lam0, state = 1 - rate, 0.0
    for _ in range(steps):
        state = lam0 * state + 1
    assert int(timestamp(torch.tensor(state, dtype=torch.float64), lam0)) == steps


@given(
    rate=st.floats(1e-4, 0.5),
    share=st.floats(0, 12),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    rounded=st.booleans(),
)
@settings(max_examples=60)
def test_a_timestamp_in_low_precision_is_right_or_refused(
    rate: float, share: float, dtype: torch.dtype, rounded: bool
) -> None:
    lam0, steps = 1 - rate, min(int(share / rate), 4000)
    factor = torch.tensor(lam0, dtype=dtype).numpy()
    one, state = factor.dtype.type(1), factor.dtype.type(0)
    for _ in range(steps):
        state = factor * state + one
    if rounded and 0 < float(factor) < 1:
        lam0 = float(factor)
    try:
        found = int(timestamp(np.array(state), lam0))
    except ssm.NumericalError:
        assert steps > 5
    else:
        assert found == steps


def test_a_timestamp_in_single_precision_does_for_hundreds_of_steps() -> None:
    state = torch.zeros(1)
    for step in range(700):
        assert int(timestamp(state, 0.999)) == step
        state = 0.999 * state + 1


def test_timestamps_that_cannot_be_told_apart_are_refused() -> None:
    steps = torch.arange(0, 2400, 100).double()
    states = (1 - 0.99**steps) / (1 - 0.99)
    assert timestamp(states, 0.99).tolist() == steps.tolist()
    assert timestamp(states.to(torch.complex128), 0.99).dtype == torch.int64
    with pytest.raises(ssm.NumericalError, match="nearer to 1"):
        timestamp(states.float()[:20], 0.99)
    with pytest.raises(ssm.NumericalError, match="nearer to 1"):
        timestamp(states.new_tensor([100.0]), 0.99)
    with pytest.raises(ssm.NumericalError, match="between two steps"):
        timestamp(torch.tensor(1.5), 0.9)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: timestamp(torch.ones(1), 1.0), "lam0"),
        (lambda: timestamp(torch.ones(1), 0.5 + 0.5j), "lam0"),
        (lambda: timestamp(torch.ones(1) * 1j, 0.5), "state0"),
        (lambda: timestamp(torch.tensor([3.0]), 0.5), "state0"),
        (lambda: timestamp(torch.tensor([-1.0]), 0.5), "state0"),
        (lambda: timestamp(torch.tensor([torch.nan]), 0.5), "state0"),
        (lambda: uniform_ring(0, 0.5), "count"),
        (lambda: uniform_ring(3, 0.9, 0.5), "r_min, r_max"),
        (lambda: optimized(3, 8, r_max=1.5), "r_max"),
        (lambda: optimized(3, 8, basis=torch.eye(7)), "basis"),
        (lambda: optimized(30, 8, basis=torch.eye(8)), "count"),
        (lambda: roots_of_unity(-1), "count"),
        (lambda: roots_of_unity(2.0), "count"),
        (lambda: uniform_ring(True, 0.5), "count"),
    ],
)
def test_errors_name_the_argument(call, argument: str) -> None:
    with pytest.raises(ssm.ArgumentError, match=f"^{argument}: expected"):
        call()
