"""Least-squares solvers that ignore small singular values.

The solvers use a singular value decomposition or, for large problems, a Gram matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, final

import torch
from torch import Tensor

from stablessm._errors import ArgumentError, NumericalError
from stablessm.reconstruction._equations import Equations

Method: TypeAlias = Literal["auto", "svd", "gram"]

_EPS = torch.finfo(torch.float64).eps
_DENSE_WORK = 3e10
"""Largest rows · columns · min(rows, columns) for which "auto" uses the singular value decomposition (about 10 s)."""

_ROUNDS = 30


class Solver(Protocol):
    """A least-squares solver: called with right-hand sides (B, equations), it returns unknowns (B, unknowns)."""

    @property
    def singular_values(self) -> Tensor:
        """Return the singular values of the equations, largest first."""

    @property
    def rank(self) -> int:
        """Return the number of singular values of the equations above the cutoff."""

    def __call__(self, right_side: Tensor) -> Tensor:
        """Return the least-squares solution of least norm for each right-hand side."""


def options(cutoff: float | None, tikhonov: float, shape: tuple[int, int], precision: torch.dtype) -> float:
    """Check the options of a solver; return the cutoff for singular values, relative to the largest.

    The default is the machine epsilon of ``precision`` times the larger dimension of the matrix.
    """
    if precision not in (torch.float32, torch.float64):
        raise ArgumentError("precision", "torch.float32 or torch.float64", precision)
    for name, value in (("cutoff", cutoff), ("tikhonov", tikhonov)):
        if value is not None and not 0 <= value < 1:
            raise ArgumentError(name, "0 or more and below 1, relative to the largest singular value", value)
    return max(shape) * torch.finfo(precision).eps if cutoff is None else cutoff


@final
@dataclass(frozen=True, eq=False)
class DenseSolver:
    """A least-squares solver by singular value decomposition, with a cutoff for small singular values and Tikhonov
    damping.
    """

    left: Tensor
    """Left singular vectors times the filter factors (equations, rank)."""
    right: Tensor
    """Right singular vectors (rank, unknowns)."""
    singular_values: Tensor
    rank: int

    def __call__(self, right_side: Tensor) -> Tensor:
        """Return the least-squares solution of least norm for each right-hand side."""
        return right_side @ self.left.conj() @ self.right.conj()


def dense_solver(A: Tensor, cutoff: float, tikhonov: float) -> DenseSolver:
    """Build a least-squares solver for a matrix A from the singular value decomposition of A.

    The options are as for :func:`solver`.
    """
    left, values, right = torch.linalg.svd(A, full_matrices=False)
    rank = int((values > cutoff * values[0]).sum())
    kept = values[:rank]
    factors = kept / (kept.square() + (tikhonov * values[0]).square())
    return DenseSolver(left[:, :rank] * factors, right[:rank], values, rank)


@final
@dataclass(frozen=True, eq=False)
class GramSolver:
    """A least-squares solver that combines a Cholesky factor of the smaller Gram matrix with iterative refinement.

    The equations are E x = c. A multiple δ of the identity is added to the Gram matrix E Eᴴ (or Eᴴ E), just enough that
    a Cholesky factor exists. The eigenvalues of the Gram matrix are squares of the singular values σ of E, so that
    singular values below about 1e-7 of the largest are lost. Iterative refinement repeats x += Eᴴ (E Eᴴ + δ)⁻¹ (c - E
    x). Each round multiplies the error in the direction of a singular value σ by δ / (σ² + δ). The residuals c - E x
    are computed with E itself, so that the rounding of the Gram matrix does not limit the final accuracy.

    The shift δ also serves as a cutoff for small singular values. The cutoff is smooth, because the rounds end when
    they no longer converge: components with singular values near the cutoff are damped, and some components below the
    cutoff remain. ``rank`` counts as if the cutoff were sharp.
    """

    equations: Equations
    factor: Tensor
    wide: bool
    ridge: float
    singular_values: Tensor
    rank: int

    def __call__(self, right_side: Tensor) -> Tensor:
        """Return the least-squares solution of least norm for each right-hand side."""
        E = self.equations
        if not len(right_side):
            return right_side.new_zeros(0, E.length)
        scale = float(right_side.abs().max()) or 1.0
        y = torch.zeros_like(right_side) if self.wide else E.adjoint(torch.zeros_like(right_side))
        before = torch.inf
        for _ in range(_ROUNDS):
            x = E.adjoint(y) if self.wide else y
            residual = right_side - E.apply(x)
            step = self._solve(residual - self.ridge * y if self.wide else E.adjoint(residual) - self.ridge * y)
            size = float(step.abs().max())
            if size > before / 2:  # convergence has ended: the rest is rounding
                break
            y, before = y + step, size
            if size <= _EPS * scale:
                break
        return E.adjoint(y) if self.wide else y

    def _solve(self, b: Tensor) -> Tensor:
        return torch.cholesky_solve(b.mT, self.factor).mT


def gram_solver(E: Equations, cutoff: float, tikhonov: float) -> GramSolver:
    """Build a least-squares solver from the Gram matrix, in which very small singular values are lost to rounding.

    The arguments are as for :func:`solver`.
    """
    wide = E.count <= E.length
    gram = E.outer_gram() if wide else E.inner_gram()
    squares = torch.linalg.eigvalsh(gram).flip(0)
    largest = float(squares[0])
    noise = 4 * len(gram) ** 0.5 * _EPS * largest
    values = torch.where(squares > noise, squares, 0).sqrt()
    ridge = (tikhonov**2) * largest
    factor = _cholesky(gram, max(ridge, noise, (cutoff**2) * largest))
    return GramSolver(E, factor, wide, ridge, values, int((values > cutoff * values[0]).sum()))


def _cholesky(gram: Tensor, shift: float) -> Tensor:
    gram.diagonal().add_(shift)
    for _ in range(8):
        factor, failed = torch.linalg.cholesky_ex(gram)
        if not int(failed):
            return factor
        gram.diagonal().add_(shift)
        shift *= 2
    raise NumericalError("the Gram matrix has no Cholesky factor", "set tikhonov=1e-6, or use method='svd'")


def solver(E: Equations, method: Method, cutoff: float, tikhonov: float) -> Solver:
    """Return a least-squares solver for the equations; the method "auto" chooses by the size of the problem.

    ``cutoff`` and ``tikhonov`` are as in :class:`.Decoder`.
    """
    small = E.count * E.length * min(E.count, E.length) <= _DENSE_WORK
    if method == "svd" or (method == "auto" and small):
        return dense_solver(E.dense(), cutoff, tikhonov)
    return gram_solver(E, cutoff, tikhonov)
