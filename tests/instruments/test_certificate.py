"""Lyapunov certificates against the decay they promise, and where lemma A.9 of IAT does not hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import schur

from stablessm import ArgumentError, NumericalError
from stablessm.instruments.certificate import lyapunov_certificate
from stablessm.instruments.radius import stability_radius

TIMES = ("continuous", "discrete")


def stable_matrix(seed, n, nonnormality, complex, time):
    """A rotated triangular matrix; ``nonnormality`` scales what is above the diagonal."""
    rng = np.random.default_rng(seed)
    if time == "continuous":
        eigenvalues = -(10 ** rng.uniform(-1.5, 1, n)) + 1j * rng.standard_normal(n)
    else:
        eigenvalues = (1 - 10 ** rng.uniform(-1.5, 0, n)) * np.exp(1j * rng.standard_normal(n))
    gaussian = rng.standard_normal((2, n, n)) + 1j * rng.standard_normal((2, n, n))
    if not complex:
        eigenvalues, gaussian = eigenvalues.real, gaussian.real
    Q = np.linalg.qr(gaussian[0])[0]
    return torch.tensor(Q @ (np.diag(eigenvalues) + nonnormality * np.triu(gaussian[1], 1)) @ Q.conj().T)


def proof_of(W, time):
    """The certificate; a matrix whose P is beyond double precision is another test's business."""
    try:
        return lyapunov_certificate(W, time=time)
    except NumericalError:
        return assume(False)


matrices = {
    "seed": st.integers(0, 2**32 - 1),
    "n": st.integers(1, 5),
    "nonnormality": st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    "complex": st.booleans(),
}


@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=60)
@given(**matrices)
def test_the_bound_is_never_exceeded(time, **parameters):
    W = stable_matrix(time=time, **parameters)
    proof = proof_of(W, time)
    if time == "continuous":
        t = torch.cat([torch.zeros(1), torch.logspace(-3, 2, 40)]).double()
        moved = torch.linalg.matrix_exp(W * t[:, None, None])
    else:
        t = torch.arange(100.0).double()
        moved = torch.stack([torch.linalg.matrix_power(W, k) for k in range(100)])
    size = torch.linalg.matrix_norm(moved, 2)
    assert bool((size <= proof.bound(t) * (1 + 1e-12)).all())


@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=60)
@given(**matrices)
def test_the_equation_and_its_summary(time, **parameters):
    W = stable_matrix(time=time, **parameters)
    proof = proof_of(W, time)
    P, one = proof.P, torch.eye(len(W), dtype=W.dtype)
    left = W.mH @ P + P @ W if time == "continuous" else W.mH @ P @ W - P
    size = float(torch.linalg.matrix_norm(W, 2))
    rounding = 100 * len(W) * 2.0**-52 * (1 + size) ** 2
    assert proof.residual <= rounding * proof.norm  # what rounding P does to the equation
    assert proof.residual == pytest.approx(float(torch.linalg.matrix_norm(left + one, 2)), rel=1e-3, abs=0)
    assert proof.norm == pytest.approx(float(torch.linalg.matrix_norm(P, 2)), rel=1e-9)
    cond = float(torch.linalg.cond(P))
    assert proof.constant**2 == pytest.approx(cond, rel=1e-9 + 10 * len(W) * 2.0**-52 * cond)
    eigenvalues = torch.linalg.eigvals(W)
    if time == "continuous":
        assert proof.abscissa == float(eigenvalues.real.max())
        assert proof.rate == pytest.approx(1 / (2 * proof.norm), rel=1e-9 + rounding * proof.norm)
        assert proof.rate <= -proof.abscissa * (1 + 1e-9)  # no proof of more than there is
        assert stability_radius(W) >= proof.rate * (1 - 1e-9) - rounding  # |PΔ + ΔᵀP| < 1 for |Δ| < 1/(2‖P‖)
    else:
        assert proof.abscissa == float(eigenvalues.abs().max())
        assert math.exp(-2 * proof.rate) == pytest.approx(1 - 1 / proof.norm, rel=1e-9 + rounding, abs=1e-13)
        assert math.exp(-proof.rate) >= proof.abscissa * (1 - 1e-9)


@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=40)
@given(**matrices)
def test_the_bound_of_normal_matrices_is_a_lower_bound_for_all(time, **parameters):
    W = stable_matrix(time=time, **parameters)
    proof = proof_of(W, time)
    assert proof.norm >= proof.normal_bound * (1 - 1e-6)
    normal = parameters["nonnormality"] == 0 or parameters["n"] == 1
    assert proof.is_normal == normal
    if normal:
        assert proof.norm == pytest.approx(proof.normal_bound, rel=1e-9)
        assert proof.normal_bound_holds


def test_the_counterexample_to_lemma_a9():
    proof = lyapunov_certificate(torch.tensor([[-1.0, 10.0], [0.0, -1.0]]))
    assert proof.norm == pytest.approx(13 + math.hypot(12.5, 2.5), rel=1e-9)
    assert proof.normal_bound == 0.5
    assert not proof.normal_bound_holds
    assert not proof.is_normal


def test_the_bound_of_the_lemma_can_hold_without_normality():
    proof = lyapunov_certificate(torch.tensor([[-0.1, 0.0, 0.0], [0.0, -5.0, 1.0], [0.0, 0.0, -5.0]]))
    assert proof.normal_bound_holds
    assert not proof.is_normal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_a_normal_matrix_is_recognized_in_its_own_precision(dtype):
    Q = torch.linalg.qr(torch.randn(20, 20, dtype=dtype))[0]
    W = Q @ torch.diag(-torch.rand(20) - 0.1).to(dtype) @ Q.mH
    proof = lyapunov_certificate(W)
    assert proof.is_normal
    assert proof.normal_bound_holds
    assert proof.P.dtype == (torch.complex128 if dtype.is_complex else torch.float64)


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e-4, 1e-2, 0.3])
def test_a_matrix_that_forgets_at_once(size):
    proof = lyapunov_certificate(np.array([[size]]), time="discrete")
    assert proof.bound(0) == pytest.approx(1, rel=1e-12)
    assert size * (1 - 1e-12) <= float(proof.bound(1)) <= size + 1e-15 / max(size, 2e-8)


@pytest.mark.parametrize(
    ("W", "time", "argument"),
    [
        (torch.tensor([[0.5]]), "continuous", "W"),
        (torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), "continuous", "W"),
        (torch.tensor([[-1.0]]), "discrete", "W"),
        (torch.zeros(2, 3), "continuous", "W"),
        (torch.zeros(0, 0), "discrete", "W"),
        (torch.tensor([[math.nan]]), "continuous", "W"),
        (torch.tensor([[-1.0]]), "sampled", "time"),
    ],
)
def test_wrong_arguments_are_named(W, time, argument):
    with pytest.raises(ArgumentError) as error:
        lyapunov_certificate(W, time=time)
    assert error.value.argument == argument


@pytest.mark.parametrize("time", TIMES)
def test_where_precision_ends_there_is_no_certificate(time):
    edge = -1e-15 if time == "continuous" else 1 - 1e-15
    W = torch.tensor([[edge, 1.0], [0.0, edge]], dtype=torch.float64)
    with pytest.raises(NumericalError, match="stability_radius"):
        lyapunov_certificate(W, time=time)
    with pytest.raises(NumericalError, match="overflows"):
        lyapunov_certificate(np.array([[0.5, 1e200], [0.0, 0.5]]), time="discrete")


def far_from_normal(seed, time):
    """A rotated triangular matrix, most of them with a Lyapunov equation beyond double precision."""
    rng = np.random.default_rng(seed)
    n, complex = int(rng.integers(2, 12)), bool(rng.random() < 0.5)
    above, turned = rng.standard_normal((2, n, n)) + (1j * rng.standard_normal((2, n, n)) if complex else 0)
    eigenvalues = -(10 ** rng.uniform(-3, 1, n)) if time == "continuous" else 1 - 10 ** rng.uniform(-3, 0, n)
    Q = np.linalg.qr(turned)[0] if rng.random() < 0.5 else np.eye(n)
    W = Q @ (np.diag(eigenvalues) + 10 ** rng.uniform(0, 2) * np.triu(above, 1)) @ Q.conj().T
    return W * (10 ** rng.uniform(-5, 5) if time == "continuous" else 1)


def refusal(W, time):
    """Why there is no certificate, if there is none; a matrix that rounding has made unstable is not meant."""
    try:
        lyapunov_certificate(W, time=time)
    except ArgumentError:
        assume(False)
    except NumericalError as error:
        return str(error)
    return None


@pytest.mark.parametrize("time", TIMES)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_matrix_far_from_normal_is_not_called_nearly_unstable(time, seed):
    W = far_from_normal(seed, time)
    n, reason = len(W), refusal(W, time)
    if reason is None:
        return
    radius, rounding = stability_radius(W, time=time), n * 2.0**-52 * np.linalg.norm(W)
    assert ("within rounding of instability" in reason) == (radius <= 10 * rounding)
    assert ("far from normal" in reason) == (radius > 10 * rounding)
    if radius > 10 * rounding:
        assert f"{radius:.3g}" in reason
        powers = np.clip(np.arange(n) - np.arange(n)[:, None], 0, None)
        assert refusal(schur(W, "complex")[0] * 1e-9**powers, time) is None
