"""Decoding of inputs that lie in a small basis, from a state that is much shorter than the input."""

from __future__ import annotations

import warnings
from functools import partial
from typing import final

import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm.reconstruction import _checks
from stablessm.reconstruction._checks import Array
from stablessm.reconstruction._equations import Equations, equations
from stablessm.reconstruction._solvers import dense_solver, options
from stablessm.reconstruction.diagnosis import Diagnosis, IllConditionedWarning, diagnosis, rehearsed_error


@final
@checked
class SparseDecoder:
    """A linear map from states after k steps to coefficients, α = Ω_k⁺ x, Ω_k = V_k Ψ_k (eq. 21, 22), computed once.

    Args:
        eigenvalues: (N,), or (M, R) for M input channels.
        basis: Ψ, real, (L, P), or (L, M, P); see :mod:`stablessm.reconstruction.bases`.
        length: k, at most L (default: L).
        cutoff: singular values of Ω below this part of the largest are dropped (default: precision of the state times
            the larger dimension of Ω). Rows are first divided by the norms of the rows of V.
        tikhonov: a, which adds (a σ_1)² |α|² to the squared residual.
        precision: dtype of the states, float32 or float64.

    >>> from stablessm.reconstruction.bases import dct
    >>> decoder = SparseDecoder(torch.polar(torch.ones(3), torch.arange(1.0, 4)), dct(100, 5), length=50)
    >>> decoder.diagnosis.rank, decoder(torch.zeros(3)).shape, decoder.coefficients(torch.zeros(3)).shape
    (5, torch.Size([50]), torch.Size([5]))
    """

    def __init__(
        self,
        eigenvalues: Array,
        basis: Array,
        length: Size | None = None,
        *,
        cutoff: float | None = None,
        tikhonov: float = 0.0,
        precision: torch.dtype = torch.float64,
    ) -> None:
        lam = _checks.spectrum(eigenvalues)
        functions = _checks.basis_functions(basis, None if lam.dim() == 1 else len(lam)).to(lam.device)
        self._basis = psi = first_steps(functions, length)
        self._shape = tuple(lam.shape)
        self._blocks, omega = mixed(lam, psi, _checks.resolution(eigenvalues))
        cutoff = options(cutoff, tikhonov, (omega.shape[0], omega.shape[1]), precision)
        self._solver = solve = dense_solver(omega, cutoff, tikhonov)
        unknowns, values, rank = psi.shape[-1], solve.singular_values, solve.rank
        held = _checks.finite("eigenvalues", eigenvalues)
        rehearse = partial(rehearsed_error, self, held, precision, unknowns, psi)
        self.diagnosis: Diagnosis = diagnosis(lam, len(psi), unknowns, len(omega), values, rank, precision, rehearse)
        """Diagnosis of how well the state determines α."""

    def __repr__(self) -> str:
        return f"SparseDecoder({self.diagnosis!r})"

    @property
    def basis_rank(self) -> int:
        """Rank of Ψ_k; coefficients of functions that are zero up to step k cannot be determined."""
        values = torch.linalg.svdvals(self._basis.flatten(0, -2))
        eps = torch.finfo(self.diagnosis.precision).eps
        return int((values > max(self._basis.shape) * eps * values[0]).sum())

    def coefficients(self, state: Array) -> Tensor:
        """Return α (…, P) from states (…, N) or (…, M, R). ``basis @ α`` continues the input past step k (eq. 29)."""
        x = _checks.states("state", state, self._shape).to(self._basis.device)
        channels = [x] if len(self._shape) == 1 else list(x.unbind(-2))
        c = torch.cat([block.right_side(part) for block, part in zip(self._blocks, channels, strict=True)], -1)
        flat = self._solver(c.reshape(c.shape[:-1].numel(), c.shape[-1]))
        return flat.reshape(*c.shape[:-1], flat.shape[-1]).to(_checks.real_dtype(state))

    def __call__(self, state: Array) -> Tensor:
        """Return inputs Ψ_k α, (…, k), or (…, k, M) with M channels."""
        alpha = self.coefficients(state)
        return torch.tensordot(alpha.to(torch.float64), self._basis, dims=([-1], [-1])).to(alpha.dtype)


@checked
def decode_sparse(
    state: Array,
    eigenvalues: Array,
    basis: Array,
    *,
    length: Size | None = None,
    cutoff: float | None = None,
    tikhonov: float = 0.0,
) -> Tensor:
    """Return the inputs u = Ψ_k α of the state x = V_k Ψ_k α = Ω_k α, with α = Ω_k⁺ x (LRU-UA eq. 6, 21 and 22).

    N = P/2 complex eigenvalues can suffice for an input of any length, if Ω_k is well conditioned
    (:func:`condition_number`). If the rank of Ω_k is below the rank of Ψ_k, an :class:`IllConditionedWarning` gives the
    rank and the remedy.

    Args:
        state: (…, N) after ``length`` steps, or (…, M, R) with eigenvalues (M, R): input channel m drives the R states
            of row m, and all channels share α (eq. 10 to 20).
        eigenvalues, basis, length, cutoff, tikhonov: see :class:`SparseDecoder`, which also returns α.

    Returns:
        (…, k), or (…, k, M) with M channels.

    >>> from stablessm.reconstruction.bases import haar
    >>> basis, lam = haar(64, 4), torch.polar(torch.full((8,), 0.99), torch.linspace(0.01, 1.5, 8)).to(torch.complex128)
    >>> u = basis @ torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    >>> state = sum(lam ** (63 - j) * u[j] for j in range(64))
    >>> torch.allclose(decode_sparse(state, lam, basis), u)
    True
    """
    precision = _checks.real_dtype(state)
    decoder = SparseDecoder(eigenvalues, basis, length, cutoff=cutoff, tikhonov=tikhonov, precision=precision)
    if decoder.diagnosis.rank < decoder.basis_rank:
        warnings.warn(IllConditionedWarning(decoder.diagnosis), stacklevel=3)  # the caller, past the decorator
    return decoder(state)


def mixed(lam: Tensor, psi: Tensor, eps: float) -> tuple[list[Equations], Tensor]:
    """Return the equations of each channel, and real Ω (equations, P), each row divided by the norm of the row of V."""
    if lam.dim() == 1:
        lam, psi = lam[None], psi[:, None]
    blocks = [equations(row, len(psi), real=True, eps=eps) for row in lam]
    return blocks, torch.cat([block.apply(psi[:, m].mT).mT for m, block in enumerate(blocks)])


def first_steps(psi: Tensor, length: int | None) -> Tensor:
    """Return Ψ_k, the first ``length`` rows."""
    if length is None:
        return psi
    if whole_number("length", length) > len(psi):
        raise ArgumentError("length", f"at most {len(psi)} (as in basis)", length)
    return psi[:length]
