"""What a recurrence took in comes back out of its state, and where it cannot, the rank and the remedy are said."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import stablessm as ssm
from stablessm.reconstruction import (
    Decoder,
    IllConditionedWarning,
    condition_number,
    decode,
    diagnose,
    optimized,
    roots_of_unity,
    uniform_ring,
)
from stablessm.reconstruction._equations import equations
from stablessm.reconstruction._powers import powers, powers_of_pair, reciprocal


def run(u: Tensor, lam: Tensor, initial: Tensor | None = None) -> Tensor:
    """The recurrence itself, one step after the other: u (…, L) to the state (…, N)."""
    state = torch.zeros(*u.shape[:-1], len(lam), dtype=lam.dtype) if initial is None else initial
    for j in range(u.shape[-1]):
        state = lam * state + u[..., j, None]
    return state


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_high_powers_are_right_to_the_last_digit(seed: int) -> None:
    mpmath = pytest.importorskip("mpmath")
    lam = uniform_ring(4, 0.999, 1.0, seed=seed)
    inside = powers(lam, 7, 128)
    outside = powers_of_pair(reciprocal(1 / lam), 7, 128)
    with mpmath.workdps(50):
        for (fine, coarse), number in ((inside, lam), (outside, 1 / lam)):
            table = (coarse[:, :, None] * fine[:, None]).flatten(1)
            for n in range(4):
                z = mpmath.mpc(complex(number[n]))
                z = z if number is lam else 1 / z
                for k in (1, 127, 128, 5001, 16383):
                    assert abs(mpmath.mpc(complex(table[n, k])) / z**k - 1) < 2e-15


@settings(max_examples=30)
@given(length=st.integers(1, 70), count=st.integers(1, 12), real=st.booleans(), top=st.sampled_from([0.3, 1.0, 1.2]))
def test_equations_are_the_vandermonde_matrix(length: int, count: int, real: bool, top: float) -> None:
    lam = uniform_ring(count, 0.0, top, seed=length)
    E = equations(lam, length, real=real)
    V = lam[:, None] ** torch.arange(length - 1, -1, -1)
    torch.testing.assert_close(E.log_norm.exp(), V.norm(dim=1))
    full = E.factor[:, None] * V
    dense = torch.cat([full.real, full.imag])[E.rows] if real else full
    torch.testing.assert_close(E.dense(), dense, atol=1e-12, rtol=0)
    u, c = noise(3, length), noise(3, E.count, seed=1).to(E.dtype)
    torch.testing.assert_close(E.apply(u), u.to(dense.dtype) @ dense.mT, atol=1e-11, rtol=0)
    torch.testing.assert_close(E.adjoint(c), c @ dense.conj(), atol=1e-11, rtol=0)
    torch.testing.assert_close(E.outer_gram(), dense @ dense.mH, atol=1e-11, rtol=0)
    torch.testing.assert_close(E.inner_gram(), dense.mH @ dense, atol=1e-11, rtol=0)


@settings(max_examples=30)
@given(
    length=st.integers(1, 90), more=st.integers(0, 20), seed=st.integers(0, 99), method=st.sampled_from(["svd", "gram"])
)
def test_inputs_come_back_from_any_step(length: int, more: int, seed: int, method: str) -> None:
    lam = optimized(length + more, 2 * length)
    u = noise(2, 3, length, seed=seed)
    back = decode(run(u, lam), lam, length, method=method)
    torch.testing.assert_close(back, u, atol=1e-10, rtol=0)


@given(length=st.integers(2, 60), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_half_as_many_states_do_for_real_inputs(length: int, seed: int) -> None:
    lam = optimized((length + 1) // 2, length)
    u = noise(length, seed=seed)
    torch.testing.assert_close(decode(run(u, lam), lam, length), u, atol=1e-10, rtol=0)


@pytest.mark.parametrize("steps", [3, 40])
def test_the_piece_between_two_states(steps: int) -> None:
    lam = uniform_ring(30, 0.97, 1.01)
    u = noise(50 + steps)
    before = run(u[:50], lam)
    after = run(u[50:], lam, before)
    torch.testing.assert_close(decode(after, lam, steps, initial=before), u[50:], atol=1e-8, rtol=0)


@pytest.mark.parametrize("length", [196, pytest.param(784, marks=pytest.mark.slow)])
def test_roots_of_unity_give_images_back_to_machine_precision(length: int) -> None:
    lam = torch.exp(2j * torch.pi * torch.arange(length, dtype=torch.float64) / length)
    assert abs(condition_number(lam, length) - 1) < 1e-10
    u = torch.rand(2, length, dtype=torch.float64)
    assert float((decode(run(u, lam), lam, length=length) - u).abs().max()) < 1e-11
    wanted = u + 1j * u.flip(1)
    back = decode(run(wanted, lam), lam, length, real=False)
    assert back.dtype == torch.complex128
    assert float((back - wanted).abs().max()) < 1e-11
    torch.testing.assert_close(roots_of_unity(length), lam, atol=1e-14, rtol=0)


def test_single_precision_is_as_good_as_its_state() -> None:
    lam = optimized(200, 200)
    u = noise(200)
    exact = run(u, lam)
    errors = {}
    for dtype in (torch.complex64, torch.complex128):
        back = decode(exact.to(dtype), lam, 200)
        assert back.dtype == (torch.float32 if dtype == torch.complex64 else torch.float64)
        errors[dtype] = float((back - u).norm() / u.norm())
    assert 1e-9 < errors[torch.complex64] < 1e-6
    assert errors[torch.complex128] < 1e-12


@pytest.mark.parametrize("method", ["svd", "gram"])
@pytest.mark.parametrize(("low", "high"), [(1.0005, 1.001), (1e-12, 1e-6), (0.0, 0.0), (0.4, 3.0), (1e40, 1e60)])
def test_no_overflow_far_above_or_below_one(low: float, high: float, method: str) -> None:
    lam = uniform_ring(32, low, high)
    state = run(noise(3), lam)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        back = decode(state, lam, 4096, method=method)
    assert bool(back.isfinite().all())
    assert [w.category for w in caught] == [IllConditionedWarning]
    assert condition_number(lam, 4096) >= 1


@pytest.mark.parametrize("radius", [0.99, 1.002])
def test_eigenvalues_on_both_sides_of_the_circle(radius: float) -> None:
    lam = radius * optimized(64, 64)
    u = noise(64)
    torch.testing.assert_close(decode(run(u, lam), lam, 64), u, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("lam", "length", "rank", "advice"),
    [
        (uniform_ring(10, 0.99), 60, 20, "use at least 30 states"),
        (uniform_ring(100, 0.0, 0.5), 100, None, "have lost the first inputs"),
        (torch.polar(torch.ones(60).double(), 1 + 1e-3 * torch.arange(60).double()), 60, None, "too close"),
        (2 * uniform_ring(100, 0.9), 100, None, "old inputs dominate"),
    ],
)
def test_ill_posed_requests_say_their_rank_and_a_remedy(
    lam: Tensor, length: int, rank: int | None, advice: str
) -> None:
    with pytest.warns(IllConditionedWarning, match=advice) as caught:
        decode(torch.zeros(len(lam)), lam, length)
    warning = caught[0].message
    assert isinstance(warning, IllConditionedWarning)
    assert warning.diagnosis.rank == (diagnose(lam, length, precision=torch.float32).rank if rank is None else rank)
    assert warning.diagnosis.rank < length
    assert f"rank {warning.diagnosis.rank} of {length}" in str(warning)
    assert caught[0].filename == __file__


def test_following_the_advice_helps() -> None:
    few = diagnose(optimized(10, 60), 60)
    assert (few.rank, few.determined) == (20, False)
    enough = diagnose(optimized(30, 60), 60)
    assert enough.determined
    assert not enough.advice
    assert enough.expected_error < 1e-14


def test_what_is_not_seen_is_zero_and_the_rest_is_the_projection() -> None:
    lam = uniform_ring(8, 0.9)
    u = noise(40)
    with pytest.warns(IllConditionedWarning):
        back = decode(run(u, lam), lam, 40)
    torch.testing.assert_close(run(back, lam), run(u, lam), atol=1e-8, rtol=0)  # the same state
    assert back.norm() < u.norm()


def test_the_recent_past_is_all_that_small_eigenvalues_keep() -> None:
    lam = uniform_ring(256, 0.0)
    u = noise(256)
    with pytest.warns(IllConditionedWarning, match="have lost the first inputs"):
        error = (decode(run(u, lam), lam, 256) - u).abs()
    assert float(error[-20:].max()) < 1e-3 < 0.1 < float(error[:100].mean())


@given(alpha=st.floats(1e-6, 0.5), method=st.sampled_from(["svd", "gram"]), real=st.booleans())
@settings(max_examples=20)
def test_tikhonov(alpha: float, method: str, real: bool) -> None:
    lam = uniform_ring(20, 0.9)
    state = run(noise(16), lam)
    E = equations(lam, 16, real=real)
    A, c = E.dense(), E.right_side(state)
    ridge = (alpha * torch.linalg.matrix_norm(A, 2)) ** 2
    wanted = torch.linalg.solve(A.mH @ A + ridge * torch.eye(16, dtype=A.dtype), A.mH @ c)
    found = decode(state, lam, 16, tikhonov=alpha, method=method, real=real)
    torch.testing.assert_close(found, wanted, atol=1e-6 if alpha < 1e-4 else 1e-9, rtol=0)


def test_cutoff_sets_the_rank() -> None:
    lam = uniform_ring(64, 0.8)
    ranks = [Decoder(lam, 64, cutoff=cutoff).diagnosis.rank for cutoff in (1e-12, 1e-6, 1e-2, 0.5)]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] > ranks[-1] > 0


def test_gram_and_svd_agree_where_the_gram_matrix_is_good_enough() -> None:
    for count in (40, 200):  # fewer equations than unknowns, and more
        lam = uniform_ring(count, 0.99)
        state = run(noise(2, 128), lam)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IllConditionedWarning)
            one, other = (decode(state, lam, 128, method=method, cutoff=1e-5) for method in ("svd", "gram"))
        if count == 200:
            torch.testing.assert_close(one, other, atol=1e-8, rtol=0)
        else:  # the cutoff of one is sharp, of the other smooth
            assert float((one - other).norm() / one.norm()) < 0.05


@pytest.mark.parametrize("real", [True, False])
def test_real_inputs_use_both_parts(real: bool) -> None:
    lam = optimized(24, 48)
    u = noise(48)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IllConditionedWarning)
        back = decode(run(u, lam), lam, 48, real=real)
    error = float((back - u).abs().max())
    assert error < 1e-12 if real else error > 0.1


def test_channels_are_decoded_apart() -> None:
    lam = torch.stack([optimized(20, 30), uniform_ring(20, 0.98)])
    u = noise(2, 30, 2)
    state = torch.stack([run(u[..., m], lam[m]) for m in range(2)], -2)
    assert state.shape == (2, 2, 20)
    before = noise(2, 2, 20, seed=3)
    shifted = state + lam**30 * before
    torch.testing.assert_close(decode(state, lam, 30), u, atol=1e-8, rtol=0)
    torch.testing.assert_close(decode(shifted, lam, 30, initial=before), u, atol=1e-8, rtol=0)


def test_one_warning_for_all_channels_where_decode_was_called() -> None:
    lam = torch.stack([uniform_ring(5, 0.9), torch.full((5,), 0.5 + 0j), optimized(5, 10)])
    with pytest.warns(IllConditionedWarning) as caught:
        decode(torch.zeros(3, 5), lam, 10)
    assert [(w.filename, w.category) for w in caught] == [(__file__, IllConditionedWarning)]
    assert caught[0].message.diagnosis.rank == 1, "of the worst channel"


def test_arrays_are_taken() -> None:
    lam = optimized(5, 8)
    u = noise(8)
    for step in (1, -1):  # torch knows no negative strides
        state, values = run(u, lam).numpy()[::step], lam.numpy()[::step]
        np.testing.assert_allclose(decode(state, values, np.int64(8)).numpy(), u.numpy(), atol=1e-12)


@pytest.mark.parametrize("method", ["svd", "gram"])
def test_a_batch_may_be_empty_and_share_its_beginning(method: str) -> None:
    lam = optimized(5, 8)
    assert decode(torch.zeros(2, 0, 5), lam, 8, method=method).shape == (2, 0, 8)
    u, before = noise(3, 8), noise(5, seed=1)
    back = decode(run(u, lam) + lam**8 * before, lam, 8, initial=before, method=method)
    torch.testing.assert_close(back, u, atol=1e-10, rtol=0)


def test_the_largest_eigenvalues() -> None:
    lam = 1e290 * optimized(4, 8)
    assert bool(equations(lam, 8, real=True).dense().isfinite().all())
    with pytest.raises(ssm.ArgumentError, match=r"eigenvalues: expected \|λ\| of at most 1e\+290"):
        diagnose(1.1 * lam, 8)


def test_the_cutoff_of_gram_is_smooth_and_that_of_svd_sharp() -> None:
    lam = uniform_ring(40, 0.3)
    parts = {}
    for method in ("svd", "gram"):
        decoder = Decoder(lam, 64, cutoff=1e-2, method=method)
        left, values, right = torch.linalg.svd(equations(lam, 64, real=True).dense(), full_matrices=False)
        back = decoder._solver((left * values).mT) @ right.mH  # which part of each singular vector comes back
        parts[method] = back.diagonal()
        assert decoder.diagnosis.rank == int((values > 1e-2 * values[0]).sum())
    rank = decoder.diagnosis.rank
    torch.testing.assert_close(parts["svd"], (torch.arange(len(values)) < rank).double(), atol=1e-9, rtol=0)
    assert float(parts["gram"][rank]) > 0.01
    assert float(parts["gram"][:5].min()) > 0.999
    assert float(parts["gram"][values < 1e-5 * values[0]].max()) < 0.01


def test_a_layer_of_ours_can_be_read_back() -> None:
    layer = ssm.LRU(1, 40, 1, eigenvalues=0.999 * optimized(40, 60), normalize=False).double()
    x = noise(3, 60, 1)
    _, state = layer(x)
    B = torch.complex(*layer.B[..., 0].mT)
    u = decode(state.detach() / B.detach(), layer.eigenvalues().detach(), 60)
    torch.testing.assert_close(u, x[..., 0], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: decode(torch.zeros(3), torch.zeros(4), 5), "state"),
        (lambda: decode(torch.tensor([torch.nan] * 3), torch.zeros(3), 5), "state"),
        (lambda: decode(torch.zeros(3), torch.tensor([1.0, 0.5, torch.inf]), 5), "eigenvalues"),
        (lambda: decode(torch.zeros(0), torch.zeros(0), 5), "eigenvalues"),
        (lambda: decode(torch.zeros(3), torch.zeros(3), 0), "length"),
        (lambda: decode(torch.zeros(3), torch.zeros(3), 2.5), "length"),
        (lambda: decode(torch.zeros(3), torch.zeros(3), 2, cutoff=-1.0), "cutoff"),
        (lambda: decode(torch.zeros(3), torch.zeros(3), 2, tikhonov=2.0), "tikhonov"),
        (lambda: decode(torch.zeros(3), torch.zeros(3), 2, method="qr"), "method"),
        (lambda: decode(torch.zeros(3), torch.zeros(3), 2, initial=torch.zeros(2)), "initial"),
        (lambda: decode(torch.zeros(4, 3), torch.zeros(3), 2, initial=torch.zeros(2, 3)), "initial"),
        (lambda: decode(torch.zeros(3), torch.zeros(3), True), "length"),
        (lambda: decode(np.zeros(3, np.longdouble), torch.zeros(3), 2), "state"),
        (lambda: decode(np.zeros(3, object), torch.zeros(3), 2), "state"),
        (lambda: decode(torch.zeros(3), np.array(["a", "b", "c"]), 2), "eigenvalues"),
        (lambda: Decoder(torch.zeros(3), 2, precision=torch.int64), "precision"),
        (lambda: diagnose(torch.zeros(3), 2, precision=torch.float16), "precision"),
        (lambda: decode([1.0], torch.zeros(1), 2), "state"),
        (lambda: Decoder(torch.zeros(2, 3), 5), "eigenvalues"),
    ],
)
def test_errors_name_the_argument(call, argument: str) -> None:
    with pytest.raises(ssm.ArgumentError, match=f"^{argument}: expected") as caught:
        call()
    assert caught.value.argument == argument
