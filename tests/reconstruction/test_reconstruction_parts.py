"""What is counted, shown and refused on the way back from a state, each against a formula of its own."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm import ArgumentError, NumericalError
from stablessm.reconstruction import (
    Decoder,
    SparseDecoder,
    condition_number,
    dct,
    decode,
    diagnose,
    required_state_size,
    timestamp,
    uniform_ring,
)
from stablessm.reconstruction._checks import finite
from stablessm.reconstruction._equations import equations
from stablessm.reconstruction.diagnosis import white

EPS = 2.0**-52


@settings(max_examples=20, deadline=None)
@given(st.floats(0.1, 3.0), st.sampled_from([1e-3, 1.0, 50.0]))
def test_twins_are_told_relative_to_their_size(angle: float, size: float) -> None:
    one = size * torch.polar(torch.tensor(1.0).double(), torch.tensor(angle).double())

    def count(other: torch.Tensor) -> int:
        return equations(torch.stack([one, other]), 4, real=True).count

    assert count(one.conj() * (1 + 4 * EPS)) == 2
    assert count(one.conj() * (1 + 1e-10)) == 4
    real = torch.tensor([size, -size / 2]).to(torch.complex128)
    assert equations(real * (1 + 1j * EPS), 4, real=True).count == 2  # as good as real: one equation each
    assert equations(real * (1 + 1e-10j), 4, real=True).count == 4


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("unknowns", [1, 5, 31, 32, 40])
def test_white_inputs_come_in_full_blocks(unknowns: int, real: bool) -> None:
    u = white(unknowns, real=real)
    block = min(unknowns, 32)
    assert u.shape == (block * math.ceil(32 / block), unknowns)
    assert u.is_complex() == (not real)
    assert u.dtype in (torch.float64, torch.complex128)
    for rows in u.split(block):
        gram = rows @ rows.mH
        size = float(gram[0, 0].real)
        assert unknowns <= size <= 4 * unknowns
        assert torch.allclose(gram, size * torch.eye(block, dtype=u.dtype))
    assert torch.equal(u, white(unknowns, real=real))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([torch.float32, torch.float64]))
def test_a_rehearsal_is_a_recurrence_that_is_read_back(seed: int, precision: torch.dtype) -> None:
    lam = uniform_ring(6, 0.9, seed=seed).to(precision.to_complex())
    for decoder, basis in ((Decoder(lam, 8, precision=precision), None),
                           (SparseDecoder(lam, dct(8, 5), precision=precision), dct(8, 5))):  # fmt: skip
        u = white(8 if basis is None else 5)
        u = u if basis is None else u @ basis.mT
        state = torch.zeros(len(u), 6, dtype=lam.dtype)
        for u_k in u.to(precision).unbind(1):
            state = lam * state + u_k[:, None]
        off = (decoder(state).double() - u).norm() / u.norm()
        assert decoder.diagnosis.expected_error == pytest.approx(float(off), rel=1e-6, abs=0)


def test_a_diagnosis_says_what_to_change() -> None:
    close = torch.polar(torch.ones(6), 1 + 1e-4 * torch.arange(6.0)).to(torch.complex128)
    found = diagnose(close, 10)
    assert found.rank < 10
    assert found.advice[0].startswith("eigenvalues are too close to each other")
    assert found.condition > 1e10
    few = diagnose(uniform_ring(4, 0.95), 12)
    assert (few.unknowns, few.equations, few.rank, few.length) == (12, 8, 8, 12)
    assert few.condition == math.inf
    assert few.advice == (
        "8 equations are too few: use at least 6 states instead of 4",
        "or decode_sparse in a basis of at most 8 functions, if the input is known to lie in one",
    )
    assert not few.determined
    assert str(few).startswith("rank 8 of 12: the state determines 8 of 12 unknowns, the rest is set to 0. 8 equations")
    small = diagnose(torch.cat([uniform_ring(12, 0.01, 0.02), uniform_ring(4, 0.9, seed=1)]), 20)
    limit = EPS ** (0.1 / 20)
    text = "75% of the eigenvalues have |λ|^20 below the precision and have lost the first inputs: use |λ| of at least "
    assert small.advice[0].startswith(f"{text}{limit:.6g} ")
    large = diagnose(torch.cat([uniform_ring(9, 8.0, 9.0), uniform_ring(3, 0.5, 0.6)]), 24)
    assert "with |λ| above 1 old inputs dominate the state: use |λ| of at most 1" in large.advice
    good = diagnose(uniform_ring(8, 0.99), 8, precision=torch.float32)
    assert good.advice == ()
    assert str(good) == f"rank 8 of 8: the state determines all of them, to {good.expected_error:.2g} in float32"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(3, 8), st.integers(3, 10), st.booleans())
def test_condition_numbers_are_those_of_the_definition(seed: int, count: int, length: int, real: bool) -> None:
    lam = uniform_ring(count, 0.6, 1.2, seed=seed)
    V = lam[:, None] ** torch.arange(length - 1.0, -1, -1)
    V = torch.cat([V.real, V.imag]) if real else V
    values = torch.linalg.svdvals(V)
    expected = float(values[0] / values[-1])
    if expected < 1e10:
        assert condition_number(lam, length, real=real) == pytest.approx(expected, rel=1e-5)
    basis = dct(length + 2, 3)[:length]
    values = torch.linalg.svdvals(V @ basis.to(V.dtype))
    if values[0] / values[-1] < 1e10:
        told = condition_number(lam, length, basis=dct(length + 2, 3), real=real)
        assert told == pytest.approx(float(values[0] / values[-1]), rel=1e-5)


def test_the_required_size_keeps_to_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    import tqdm

    seen = []

    def bar(rings: range, **options: object) -> range:
        seen.append((len(rings), options))
        return rings

    monkeypatch.setattr(tqdm, "tqdm", bar)
    sizes = {draws: required_state_size(6, 0.9, tol=1e-3, precision=torch.float32, draws=draws) for draws in (1, 4, 12)}
    assert sizes[1] <= sizes[4] <= sizes[12]
    required_state_size(2, 0.9, progress=False)
    required_state_size(2, 0.9, quantile=0.5)
    options = {"unit": "ring", "delay": 1, "leave": False, "disable": None}
    assert seen == [*((n, options) for n in (1, 4, 12)), (90, options | {"disable": True}), (7, options)]
    each = []
    for seed in range(4):
        ring = uniform_ring(24, 0.9, seed=seed).to(torch.complex64)
        errors = [Decoder(ring[:n], 6, precision=torch.float32).diagnosis.expected_error for n in range(3, 25)]
        each.append(3 + next(i for i, error in enumerate(errors) if error <= 1e-3))
    assert sizes[4] == pytest.approx(max(each), abs=1)  # errors fall with the size, but for rounding
    with pytest.raises(
        NumericalError, match=r"no state of up to 7 on the ring 0 ≤ .λ. ≤ 0\.5 decodes 30 steps to an error of 0\.01"
    ) as caught:
        required_state_size(30, 0.0, 0.5, tol=1e-2, largest=7, precision=torch.float32, draws=1)
    told = diagnose(uniform_ring(7, 0.0, 0.5).to(torch.complex64), 30, precision=torch.float32)
    assert f"at 7 the error is {told.expected_error:.2g}" in str(caught.value)
    assert told.advice[0] in str(caught.value)
    with pytest.raises(NumericalError, match="at 80 the error"):
        required_state_size(20, 0.0, 0.01, draws=1)  # four times the length by default


def test_timestamps_end_where_rounding_does() -> None:
    limit = 1 / (1 - 0.5)
    with pytest.raises(NumericalError, match="cannot be distinguished from the next"):
        timestamp(torch.tensor([limit * (1 + 3.5 * EPS * limit)], dtype=torch.float64), 0.5)
    with pytest.raises(ArgumentError, match=r"^state0: expected from 0 to the limit"):
        timestamp(torch.tensor([limit * (1 + 5 * EPS * limit)], dtype=torch.float64), 0.5)
    with pytest.raises(ArgumentError, match=re.escape("got -0.1 to 1.5")):
        timestamp(torch.tensor([1.5, -0.1]), 0.5)
    for k in (0, 1, 7, 20):
        assert timestamp(torch.tensor((1 - 0.8**k) / 0.2, dtype=torch.float64), 0.8).item() == k
    with pytest.raises(NumericalError, match="between two steps"):
        timestamp(torch.tensor(1.25, dtype=torch.float64), 0.5)


def test_arrays_of_any_layout_and_nothing_else() -> None:
    lam = uniform_ring(5, 0.9).numpy()
    state = np.linspace(0, 1, 5)
    backwards = decode(state[::-1], lam[::-1], 5)
    assert torch.allclose(backwards, decode(state[::-1].copy(), lam[::-1].copy(), 5))
    for value, message in (
        (torch.ones(3, dtype=torch.bool), "expected numbers, got flags"),
        (torch.ones(3, device="meta"), "expected numbers, got a tensor on the meta device"),
        (torch.tensor([1.0, math.nan]), "expected finite numbers, got NaN or infinity"),
        ([1.0], "expected a tensor or an array, got list"),
        (np.array(["a"]), "expected numbers in double precision or less, got dtype <U1"),
    ):
        with pytest.raises(ArgumentError, match=f"^x: {message}"):
            finite("x", value)
    with pytest.raises(
        ArgumentError, match=r"^basis: expected shape \(L, 2, P\), as rows of eigenvalues, got shape \(6, 3\)"
    ):
        SparseDecoder(np.ones((2, 4)), np.ones((6, 3)))
    with pytest.raises(ArgumentError, match=r"^basis: expected shape \(L, P\), got shape \(6, 2, 3\)"):
        SparseDecoder(np.ones(4), np.ones((6, 2, 3)))
    for call in (Decoder, diagnose, condition_number):
        with pytest.raises(ArgumentError, match=r"^eigenvalues: expected shape \(N,\), got shape \(2, 4\)"):
            call(np.ones((2, 4)), 3)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1e-8, 1.0, 1e8]), st.sampled_from(["svd", "gram"]))
def test_decoding_has_no_units(seed: int, unit: float, method: str) -> None:
    lam = uniform_ring(8, 0.97, seed=seed)
    u = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    before = torch.randn(3, 8, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed + 1))
    state = before
    for u_k in u.unbind(1):
        state = lam * state + u_k[:, None]
    plain, scaled = (decode(k * state, lam, 12, initial=k * before, method=method, tikhonov=1e-3) for k in (1.0, unit))
    assert torch.allclose(scaled / unit, plain, rtol=1e-6, atol=1e-8)
