"""Lyapunov certificates: matrices that prove how fast a linear recurrence decays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from stablessm import _tensors
from stablessm._checked import checked
from stablessm._display import Result
from stablessm._errors import ArgumentError, NumericalError
from stablessm._typing import Time
from stablessm.instruments._dense import distance_to_instability, spectral_bound, square_matrix

_DOUBLINGS = 60  # 2^60 terms: enough for every spectral radius below 1 that float64 can hold


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class LyapunovCertificate(Result):
    """The result of :func:`lyapunov_certificate`: a proof of how fast the recurrence with a stable matrix W decays."""

    time: Time
    P: Tensor
    """Matrix P (N, N), Hermitian and positive definite, float64."""
    norm: float
    """Norm ‖P‖₂."""
    abscissa: float
    """Spectral abscissa max Re λ in continuous time, or spectral radius max |λ| in discrete time."""
    normal_bound: float
    """Value of ‖P‖₂ for a normal W: 1/(2β₀) with β₀ = -abscissa, in discrete time 1/(1 - abscissa²)."""
    normal_bound_holds: bool
    """Whether ‖P‖₂ ≤ ``normal_bound``, up to the square root of the precision of W."""
    is_normal: bool
    """Whether W commutes with its adjoint, up to the precision of W."""
    rate: float
    """Proven decay rate, per unit of time or per step."""
    constant: float
    """Factor √cond(P) of the bound."""
    residual: float
    """2-norm of the residual of the equation."""

    def __str__(self) -> str:
        return (
            f"every state decays at least as fast as {self.constant:.4g} e^(-{self.rate:.4g} t); |P| = {self.norm:.4g}"
        )

    def bound(self, t: float | Tensor) -> Tensor:
        """Return ``constant`` · e^(-``rate`` t), a proven upper bound of ‖e^(Wt)‖₂ (in discrete time, of ‖W^t‖₂) for
        t ≥ 0.
        """
        return self.constant * torch.exp(-self.rate * _tensors.as_tensor(t, dtype=torch.float64))


@checked
def lyapunov_certificate(W: Tensor | np.ndarray, *, time: Time = "continuous") -> LyapunovCertificate:
    """Compute a matrix P that proves how fast dx/dt = Wx, or x[k+1] = W x[k], decays, for a stable matrix W.

    P solves WᵀP + PW = -I (IAT eq. 66), or WᵀPW - P = -I in discrete time.

    Along dx/dt = Wx the energy V = xᵀPx falls by |x|² ≥ V/‖P‖₂ per unit of time, so::

        |e^(Wt) x| ≤ √cond(P) e^(-t/(2‖P‖₂)) |x|        |W^k x| ≤ √cond(P) (1 - 1/‖P‖₂)^(k/2) |x|

    ``rate`` is the exponent of this bound, reduced by the effect of the residual and of rounding, so that the proof
    holds for the computed P. W may be complex; ᵀ is then the adjoint. A matrix that is nearly unstable, or too far from
    normal for double precision, has no certificate; the error says which.

    IAT lemma A.9 (eq. 68) states ‖P‖₂ ≤ 1/(2β₀) with β₀ = -max Re λ. Its proof assumes orthogonal eigenvectors, so it
    covers normal W. In general 1/(2β₀) bounds ‖P‖₂ from *below* (insert an eigenvector), so that the lemma holds only
    if ‖P‖₂ = 1/(2β₀).

    >>> proof = lyapunov_certificate(torch.tensor([[-1.0, 10.0], [0.0, -1.0]]))
    >>> round(proof.norm, 1), proof.normal_bound, proof.normal_bound_holds, proof.is_normal
    (25.7, 0.5, False, False)
    >>> bool(proof.bound(1.0) > 3.7)                                    # ‖e^W‖₂ = 3.71: it grows first
    True
    """
    A = square_matrix("W", W)
    if not len(A):
        raise ArgumentError("W", "at least one state", "shape (0, 0)")
    abscissa = spectral_bound(torch.linalg.eigvals(A), time)
    _require_stable(abscissa, time)
    P, residual, rounding = _solve(A, time)
    spectrum = torch.linalg.eigvalsh(P)
    norm = float(spectrum[-1])
    low = float(spectrum[0]) - len(A) * torch.finfo(torch.float64).eps * norm  # less its rounding error
    proven = (1 - residual - rounding) / norm
    if not (low > 0 and proven > 0):
        met = f"the residual is {residual + rounding:.3g}, and P has eigenvalues from {low:.3g} to {norm:.3g}"
        raise _beyond_precision(A, time, met)
    dtype = _tensors.as_tensor(W).dtype
    eps = torch.finfo(dtype if dtype.is_floating_point or dtype.is_complex else torch.float64).eps
    normal_bound = -0.5 / abscissa if time == "continuous" else 1 / ((1 - abscissa) * (1 + abscissa))
    commutator = torch.linalg.matrix_norm(A @ A.mH - A.mH @ A)
    return LyapunovCertificate(
        time=time,
        P=P,
        norm=norm,
        abscissa=abscissa,
        normal_bound=normal_bound,
        normal_bound_holds=norm <= normal_bound * (1 + eps**0.5),
        is_normal=bool(commutator <= 10 * len(A) * eps * torch.linalg.matrix_norm(A) ** 2),
        rate=proven / 2 if time == "continuous" else -0.5 * math.log1p(-proven),
        constant=math.sqrt(norm / low),
        residual=residual,
    )


def _solve(A: Tensor, time: Time) -> tuple[Tensor, float, float]:
    """Solve the Lyapunov equation; return P, the norm of the residual, and a bound of the rounding error of the
    residual.
    """
    one = torch.eye(len(A), dtype=A.dtype)
    if time == "continuous":
        from scipy.linalg import solve_continuous_lyapunov

        P = torch.from_numpy(solve_continuous_lyapunov(A.mH.resolve_conj().numpy(), -one.numpy()))
    else:  # powers of a non-normal W grow first and lose digits; a second round recovers them
        P = _stein(A, one)
        P = P + _stein(A, A.mH @ P @ A - P + one)
    if not bool(P.isfinite().all()):
        raise _beyond_precision(A, time, "P overflows")
    P = (P + P.mH) / 2
    norm, size = (float(torch.linalg.matrix_norm(matrix, 2)) for matrix in (P, A))
    left, terms = (A.mH @ P + P @ A, 2 * size) if time == "continuous" else (A.mH @ P @ A - P, 1 + size**2)
    rounding = 4 * len(A) * torch.finfo(torch.float64).eps * norm * terms
    return P, float(torch.linalg.matrix_norm(left + one, 2)), rounding


def _stein(A: Tensor, Q: Tensor) -> Tensor:
    """Solve AᵀPA - P = -Q by the series P = Σ (Aᵏ)ᵀ Q Aᵏ; every round doubles the number of terms."""
    P, power = Q, A
    for _ in range(_DOUBLINGS):
        P, power = P + power.mH @ P @ power, power @ power
        if not bool(power.any()):
            break
    return P


def _beyond_precision(A: Tensor, time: Time, detail: str) -> NumericalError:
    """Return the error for a stable matrix for which no certificate can be computed: a nearly unstable or far from
    normal one.
    """
    radius = distance_to_instability(A, time)
    if radius <= 10 * len(A) * torch.finfo(torch.float64).eps * float(torch.linalg.matrix_norm(A)):
        cause = "W is within rounding of instability (stability_radius says how near)"
        remedy = "move its eigenvalues inwards"
    else:
        size = "‖W‖" if time == "continuous" else "‖W‖²"
        cause = f"W is so far from normal that eps ‖P‖ {size} is not small, though the stability radius is {radius:.3g}"
        remedy = (
            "scale the states of the Schur form T of W (scipy.linalg.schur(W, 'complex')): the matrix T[i, j] δ^(j-i) "
            "with a small δ has the same eigenvalues and a certificate; or move the eigenvalues of W inwards"
        )
    return NumericalError(f"no certificate in double precision, though W is stable: {detail}; {cause}", remedy)


def _require_stable(abscissa: float, time: Time) -> None:
    remedy = "shift or scale W, or train it through a stable map (stablessm.reparam)"
    if time == "continuous" and abscissa >= 0:
        raise ArgumentError("W", f"a stable matrix, Re λ < 0 ({remedy})", f"Re λ = {abscissa:.6g}")
    if time == "discrete" and abscissa >= 1:
        raise ArgumentError("W", f"a stable matrix, |λ| < 1 ({remedy})", f"|λ| = {abscissa:.6g}")
