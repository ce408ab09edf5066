"""The distance of a dense matrix from the nearest unstable matrix, by an iteration with lower and upper bounds."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from stablessm import _tensors
from stablessm._checked import require, rule_of
from stablessm._errors import ArgumentError, NumericalError
from stablessm._typing import Time

TOLERANCE = 1e-10
"""Relative tolerance of ``distance_to_instability``."""

_ROUNDS, _NEAREST = 100, 64


def square_matrix(argument: str, W: object) -> Tensor:
    """Check that W is a finite square matrix, and return it in double precision on the CPU."""
    if not isinstance(W, Tensor) and not hasattr(W, "__array__"):
        raise ArgumentError(argument, "a square matrix (tensor or array)", type(W).__name__)
    require(argument, W, rule_of(Tensor | np.ndarray))
    M = _tensors.as_tensor(W).detach().cpu()
    if M.dim() != 2 or M.shape[0] != M.shape[1]:
        raise ArgumentError(argument, "a square matrix", f"shape {tuple(M.shape)}")
    if not bool(M.isfinite().all()):
        raise ArgumentError(argument, "finite entries", "NaN or infinity")
    return M.to(torch.complex128 if M.is_complex() else torch.float64)


def spectral_bound(eigenvalues: Tensor, time: Time) -> float:
    """Return max Re λ in continuous time (spectral abscissa), or max |λ| in discrete time (spectral radius)."""
    return float((eigenvalues.real if time == "continuous" else eigenvalues.abs()).max())


def distance_to_instability(W: Tensor, time: Time) -> float:
    """Return the distance of W to the nearest unstable matrix in the 2-norm; 0 if W is not stable.

    The distance is the minimum of σ_min(zI - W) over z on the imaginary axis, or on the unit circle in discrete time.
    The value of σ_min at any such z is an upper bound of the minimum. The method (Boyd and Balakrishnan 1990) repeats
    these steps:

    - Choose a level just below the smallest value so far. (The first values are computed next to the eigenvalues.)
    - Find all z at which a singular value of zI - W equals the level. These z are eigenvalues of a Hamiltonian matrix
      (Byers 1988), or of a symplectic pencil in discrete time.
    - Evaluate σ_min at these z and midway between them. If no value lies below the level, the level is a lower bound of
      the minimum, and the iteration ends.

    The convergence is quadratic.

    >>> distance_to_instability(torch.tensor([[-3.0]]).double(), "continuous")
    3.0
    """
    if not len(W):
        return math.inf
    if time == "continuous":  # a power of two changes no digit
        unit = 2.0 ** (math.frexp(float(W.abs().max()))[1] - 1)
        return unit * _bracket(W / unit, time)
    return _bracket(W, time)


def _bracket(W: Tensor, time: Time) -> float:
    eigenvalues = torch.linalg.eigvals(W)
    if spectral_bound(eigenvalues, time) >= (0 if time == "continuous" else 1):
        return 0.0
    # the rounding error of σ_min
    rounding = len(W) * torch.finfo(torch.float64).eps * (1 + float(torch.linalg.matrix_norm(W)))
    best = _smallest(W, _points(eigenvalues, torch.ones_like(eigenvalues), time, real=not W.is_complex()))
    for _ in range(_ROUNDS):
        level = best - max(TOLERANCE * best, rounding)
        if level <= 0:
            return best
        found = _smallest(W, _points(*_crossings(W, level, time), time, real=not W.is_complex()))
        if found > level:
            return min(best, found)
        best = found
    raise NumericalError(
        f"the stability radius did not settle within {_ROUNDS} rounds; it is at most {best:.6g}",
        "balance the matrix (scipy.linalg.matrix_balance) or drop negligible entries",
    )


def _smallest(W: Tensor, z: Tensor) -> float:
    """Return the smallest σ_min(zI - W) over the given points z, computed one at a time to save memory."""
    one = torch.eye(len(W), dtype=z.dtype)
    return min(float(torch.linalg.svdvals(point * one - W)[-1]) for point in z)


def _crossings(W: Tensor, level: float, time: Time) -> tuple[Tensor, Tensor]:
    """Return tensors α and β whose fractions z = α/β include all points z of the stability boundary at which ``level``
    is a singular value of zI - W.

    Let u and v be singular vectors for the singular value ``level``: (zI - W) v = level u and (zI - W)* u = level v.
    Substituting z* = -z on the imaginary axis, or z* = 1/z on the unit circle, gives a linear eigenvalue problem for z,
    whose eigenvalues are the fractions.
    """
    one, none = torch.eye(len(W), dtype=W.dtype), torch.zeros_like(W)
    shift = level * one
    if time == "continuous":
        z = torch.linalg.eigvals(_blocks(W, shift, -shift, -W.mH))
        return z, torch.ones_like(z)
    from scipy.linalg import eigvals

    pencil = _blocks(W, shift, none, one), _blocks(one, none, shift, W.mH)
    alpha, beta = eigvals(*(block.numpy() for block in pencil), homogeneous_eigvals=True)
    return torch.from_numpy(alpha), torch.from_numpy(beta)


def _points(alpha: Tensor, beta: Tensor, time: Time, *, real: bool) -> Tensor:
    """Return the points of the stability boundary that are closest to the fractions α/β, and the midpoints between
    these points.

    Only the 64 fractions nearest to the boundary are used, or all fractions on the boundary if there are more than 64.
    Fractions away from the boundary are used too, because rounding moves a double eigenvalue off the boundary by √eps
    or more. A point that is used without need costs one evaluation, but a missing point would invalidate the result.
    For a real matrix W (``real``), points below the real axis are left out, because σ_min(zI - W) is the same at z and
    at its conjugate.
    """
    if time == "continuous":
        off, along = alpha.real.abs(), alpha.imag
    else:  # α/β may overflow; its angle and how |α| compares with |β| do not
        off, along = (alpha.abs() - beta.abs()).abs() / (alpha.abs() + beta.abs()), (alpha * beta.conj()).angle()
    s = along[off.argsort()[: max(_NEAREST, int((off < 1e-8).sum()))]]
    if real:  # σ_min is even in s, and so is the list of eigenvalues
        s = torch.cat([s[s >= 0], s.new_tensor([0.0] if time == "continuous" else [0.0, math.pi])])
    s = s.sort().values
    following = s[1:] if time == "continuous" else torch.cat([s[1:], s[:1] + 2 * math.pi])
    s = torch.cat([s, (s[: len(following)] + following) / 2])
    return torch.complex(torch.zeros_like(s), s) if time == "continuous" else torch.polar(torch.ones_like(s), s)


def _blocks(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return torch.cat([torch.cat([a, b], 1), torch.cat([c, d], 1)])
