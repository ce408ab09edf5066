"""A sparse input comes back from a state much smaller than it is long, in one dimension and in many."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import stablessm as ssm
from stablessm.reconstruction import (
    IllConditionedWarning,
    SparseDecoder,
    condition_number,
    dct,
    decode_sparse,
    diagnose,
    fourier,
    haar,
    optimized,
    pca,
    required_state_size,
    uniform_ring,
)
from stablessm.reconstruction.bases import _intervals

BASES = {"haar": haar, "fourier": fourier, "dct": dct}


def last_state(u: Tensor, lam: Tensor) -> Tensor:
    """u (…, L) to (…, N)."""
    return ssm.scan.accumulate(u, lam)


def coefficients(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", list(BASES))
@given(length=st.integers(1, 65), data=st.data())
@settings(max_examples=20)
def test_bases_are_orthonormal_and_complete(name: str, length: int, data: st.DataObject) -> None:
    full = BASES[name](length)
    torch.testing.assert_close(full.mT @ full, torch.eye(length, dtype=torch.float64), atol=1e-12, rtol=0)
    chosen = data.draw(st.lists(st.integers(0, length - 1), unique=True, min_size=1))
    assert torch.equal(BASES[name](length, chosen), full[:, chosen])
    assert torch.equal(BASES[name](length, 1), full[:, :1])


@pytest.mark.parametrize("power", range(6))
def test_haar_of_a_power_of_two(power: int) -> None:
    length = 2**power
    basis, column = haar(length), 1
    torch.testing.assert_close(
        basis[:, 0], torch.full((length,), length**-0.5, dtype=torch.float64), rtol=1e-15, atol=0
    )
    for level in range(power):  # ψ_jk = 2^(j/2) ψ(2^j t - k), as in any book
        width = length >> level
        for k in range(2**level):
            wanted = torch.zeros(length, dtype=torch.float64)
            wanted[k * width : k * width + width // 2] = width**-0.5
            wanted[k * width + width // 2 : (k + 1) * width] = -(width**-0.5)
            torch.testing.assert_close(basis[:, column], wanted, atol=1e-15, rtol=0)
            column += 1


def test_haar_goes_from_coarse_to_fine() -> None:
    widths = [stop - start for start, _, stop in _intervals(37, 37)]
    assert all(early >= late - 1 for i, early in enumerate(widths) for late in widths[i:])
    assert (haar(37, 8)[:, 1:].sum(0).abs() < 1e-13).all()


def test_fourier_and_dct_are_what_scipy_says() -> None:
    from scipy import fft

    x = coefficients(30)
    torch.testing.assert_close(dct(30).mT @ x, torch.from_numpy(fft.dct(x.numpy(), norm="ortho")))
    spectrum = torch.fft.rfft(x, norm="ortho")
    found = fourier(30).mT @ x
    torch.testing.assert_close(found[1:-1:2], 2**0.5 * spectrum[1:-1].real)
    torch.testing.assert_close(found[2:-1:2], -(2**0.5) * spectrum[1:-1].imag)
    torch.testing.assert_close(found[[0, -1]], spectrum[[0, -1]].real)


def test_pca_finds_the_subspace_of_the_data() -> None:
    truth = torch.linalg.qr(coefficients(50, 4))[0]
    data = coefficients(200, 4, seed=1) @ truth.mT + 1e-6 * coefficients(200, 50, seed=2)
    basis = pca(data, 4)
    assert float((basis @ (basis.mT @ truth) - truth).abs().max()) < 1e-5
    many = pca(coefficients(30, 7, 2), 5)
    assert many.shape == (7, 2, 5)


@settings(max_examples=25)
@given(
    name=st.sampled_from(list(BASES)), functions=st.integers(2, 12), step=st.integers(1, 100), seed=st.integers(0, 99)
)
def test_inputs_come_back_at_every_step(name: str, functions: int, step: int, seed: int) -> None:
    basis = BASES[name](100, functions)
    lam = optimized(2 * functions, 100, basis=basis)
    u = coefficients(2, functions, seed=seed) @ basis.mT
    state = last_state(u[:, :step], lam)
    decoder = SparseDecoder(lam, basis, step)
    back = decoder(state)
    wanted = u[:, :step]
    values = decoder._solver.singular_values
    rank = decoder.diagnosis.rank
    # what is read back has the same state, whatever the rank
    torch.testing.assert_close(last_state(back, lam), state, atol=1e-9, rtol=0)
    if rank == decoder.basis_rank:
        assert float((back - wanted).abs().max()) < 1e-12 * float(values[0] / values[rank - 1]) + 1e-12
    else:
        assert rank < decoder.basis_rank


def test_a_state_far_smaller_than_the_input() -> None:
    basis = haar(4096, 32)
    lam = optimized(16, 4096, basis=basis)
    alpha = coefficients(3, 32)
    u = alpha @ basis.mT
    decoder = SparseDecoder(lam, basis)
    torch.testing.assert_close(decoder.coefficients(last_state(u, lam)), alpha, atol=1e-10, rtol=0)
    torch.testing.assert_close(decode_sparse(last_state(u, lam), lam, basis), u, atol=1e-11, rtol=0)
    single = decode_sparse(last_state(u[0], lam).to(torch.complex64), lam, basis)
    assert single.dtype == torch.float32
    assert single.shape == (4096,)
    assert 1e-9 < float((single - u[0]).norm() / u[0].norm()) < 1e-5


def test_a_learned_basis() -> None:
    truth = dct(200, 6)
    data = coefficients(50, 6) @ truth.mT
    basis = pca(data, 6)
    lam = optimized(6, 200, basis=basis)
    u = coefficients(6, seed=5) @ truth.mT
    torch.testing.assert_close(decode_sparse(last_state(u, lam), lam, basis), u, atol=1e-10, rtol=0)


def test_channels_share_their_coefficients() -> None:
    """Proposition 7: with M channels R = P/(2M) complex states each do, since α is shared."""
    functions, length = 12, 80
    basis = coefficients(length, 3, functions)
    lam = torch.stack([uniform_ring(3, 0.97, seed=m) for m in range(3)])
    alpha = coefficients(2, functions, seed=1)
    u = torch.einsum("bp,tmp->btm", alpha, basis)
    state = torch.stack([last_state(u[..., m], lam[m]) for m in range(3)], -2)
    decoder = SparseDecoder(lam, basis)
    assert decoder.diagnosis.equations == 18
    torch.testing.assert_close(decoder.coefficients(state), alpha, atol=1e-8, rtol=0)
    torch.testing.assert_close(decode_sparse(state, lam, basis), u, atol=1e-8, rtol=0)
    assert diagnose(lam, length, basis=basis).rank == functions
    half = torch.stack([last_state(u[:, :40, m], lam[m]) for m in range(3)], -2)
    torch.testing.assert_close(decode_sparse(half, lam, basis, length=40), u[:, :40], atol=1e-8, rtol=0)
    continued = torch.einsum("bp,tmp->btm", SparseDecoder(lam, basis, 40).coefficients(half), basis)
    torch.testing.assert_close(continued, u, atol=1e-7, rtol=0)  # LRU-UA eq. 29


def test_too_small_a_state_is_said_to_be() -> None:
    basis = haar(256, 32)
    with pytest.warns(IllConditionedWarning, match=r"rank 16 of 32.*use at least 16 states instead of 8"):
        decode_sparse(torch.zeros(8), optimized(8, 256, basis=basis).to(torch.complex64), basis)


def test_states_of_another_shape_or_none() -> None:
    decoder = SparseDecoder(uniform_ring(4, 0.9), haar(16, 4))
    for batch in ((), (0,), (2, 0), (3, 2)):
        assert decoder.coefficients(torch.zeros(*batch, 4)).shape == (*batch, 4)
        assert decoder(torch.zeros(*batch, 4)).shape == (*batch, 16)


def test_indices_may_be_of_any_integer_type() -> None:
    for make in BASES.values():
        assert torch.equal(make(np.int64(8), np.int64(3)), make(8, 3))
        assert torch.equal(make(8, np.array([2, 5])), make(8, [2, 5]))
        assert torch.equal(make(8, torch.tensor([2, 5])), make(8, [2, 5]))
    assert required_state_size(np.int64(16), 0.9, draws=np.int64(1)) == required_state_size(16, 0.9, draws=1)


@given(count=st.integers(1, 10), functions=st.integers(1, 20), real=st.booleans())
@settings(max_examples=30)
def test_with_fewer_equations_than_functions_the_condition_number_is_infinite(
    count: int, functions: int, real: bool
) -> None:
    kappa = condition_number(uniform_ring(count, 0.9), 40, basis=dct(40, functions), real=real)
    assert (kappa == math.inf) is (functions > count * (2 if real else 1))


def test_functions_that_have_not_begun_are_no_reason_to_warn(recwarn: pytest.WarningsRecorder) -> None:
    basis = haar(64, 16)
    lam = optimized(16, 64, basis=basis)
    decoder = SparseDecoder(lam, basis, 20)
    assert decoder.diagnosis.rank == decoder.basis_rank < 16
    u = coefficients(16) @ basis.mT
    found = decode_sparse(last_state(u[:20], lam), lam, basis, length=20)
    assert not recwarn.list
    torch.testing.assert_close(found, u[:20], atol=1e-8, rtol=0)


@pytest.mark.parametrize("length", [32, 100])
def test_required_state_size_is_enough_and_no_more(length: int) -> None:
    for basis in (None, dct(length, 8)):
        size = required_state_size(length, 0.9, 1.0, 1e-6, basis, draws=1)
        ring = uniform_ring(4 * length, 0.9)
        assert diagnose(ring[:size], length, basis=basis).expected_error <= 1e-6
        if size > (length if basis is None else 8) / 2:
            assert diagnose(ring[: size - 1], length, basis=basis).expected_error > 1e-6
        u = coefficients(20, length) if basis is None else coefficients(20, 8) @ basis.mT
        lam = ring[:size]
        back = decode_sparse(last_state(u, lam), lam, torch.eye(length).double() if basis is None else basis)
        assert float((back - u).norm() / u.norm()) < 3e-5  # a recurrence rounds more often than its state


def test_a_sparse_input_needs_fewer_states_and_a_disc_never_has_enough() -> None:
    whole = required_state_size(128, 0.95, 1.0, 1e-3, draws=1)
    sparse = required_state_size(128, 0.95, 1.0, 1e-3, haar(128, 16), draws=1)
    assert 8 <= sparse < whole
    assert required_state_size(128, 0.95, 1.0, 1e-3, precision=torch.float32, draws=1) >= whole
    with pytest.raises(ssm.NumericalError, match=r"no state of up to 256.*Remedy.*have lost the first inputs"):
        required_state_size(128, 0.0, 0.9, 1e-3, draws=1, largest=256)


@pytest.mark.parametrize(("r_min", "basis"), [(0.97, None), (0.9, None), (0.99, haar(120, 20))])
def test_the_expected_error_is_what_a_recurrence_in_single_precision_gives(r_min: float, basis: Tensor | None) -> None:
    lam, length = uniform_ring(100, r_min).to(torch.complex64), 120
    found = diagnose(lam, length, basis=basis, precision=torch.float32)
    u = coefficients(100, length) if basis is None else coefficients(100, 20) @ basis.mT
    state = torch.zeros(100, 100, dtype=torch.complex64)
    for j in range(length):
        state = lam * state + u[:, j, None].float()
    back = ssm.reconstruction.decode(state, lam, length) if basis is None else decode_sparse(state, lam, basis)
    error = float((back - u).norm() / u.norm())
    assert found.expected_error / 4 < error < 4 * found.expected_error


def test_the_condition_number_is_that_of_the_matrix() -> None:
    lam = uniform_ring(12, 0.8, 1.05)
    V = lam[:, None] ** torch.arange(29, -1, -1)
    basis = haar(30, 7)
    for matrix, options in (
        (V, {}),
        (torch.cat([V.real, V.imag]), {"real": True}),
        (V @ basis.to(V.dtype), {"basis": basis}),
    ):
        assert condition_number(lam, 30, **options) == pytest.approx(float(torch.linalg.cond(matrix)), rel=1e-6)
    pair = torch.cat([lam, lam.conj()])  # the same equations again
    assert condition_number(pair, 24, real=True) == pytest.approx(condition_number(lam, 24, real=True), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: haar(8, 9), "functions"),
        (lambda: dct(8, [1, 1]), "functions"),
        (lambda: fourier(0), "length"),
        (lambda: haar(8.0, 2), "length"),
        (lambda: haar(8, [0.5, 1.5]), "functions"),
        (lambda: haar(8, 2.0), "functions"),
        (lambda: dct(8, [-1]), "functions"),
        (lambda: required_state_size(8, 0.9, basis=haar(16, 2)), "basis"),
        (lambda: required_state_size(32, 0.9, basis=haar(16, 2)), "basis"),
        (lambda: SparseDecoder(torch.ones(3), torch.ones(5, 2), precision=torch.bfloat16), "precision"),
        (lambda: pca(torch.zeros(3), 1), "data"),
        (lambda: pca(torch.zeros(3, 9), 4), "functions"),
        (lambda: decode_sparse(torch.zeros(3), torch.ones(3), torch.zeros(5)), "basis"),
        (lambda: decode_sparse(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(5, 4)), "basis"),
        (lambda: decode_sparse(torch.zeros(3), torch.ones(3), torch.ones(5, 2) * 1j), "basis"),
        (lambda: decode_sparse(torch.zeros(3), torch.ones(3), torch.ones(5, 2), length=6), "length"),
        (lambda: decode_sparse(torch.zeros(4), torch.ones(3), torch.ones(5, 2)), "state"),
        (lambda: required_state_size(8, 0.9, 1.0, 0.0), "tol"),
        (lambda: required_state_size(8, 0.9, 0.8), "r_min, r_max"),
        (lambda: condition_number(torch.ones(2, 2), 4), "eigenvalues"),
        (lambda: diagnose(torch.ones(2, 2), 4), "eigenvalues"),
    ],
)
def test_errors_name_the_argument(call, argument: str) -> None:
    with pytest.raises(ssm.ArgumentError, match=f"^{argument}: expected"):
        call()
