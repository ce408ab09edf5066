"""Decoding of inputs that are combinations of a few known functions, from a state much shorter than the input."""

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
    """The linear map α = Ω_k⁺ x from the state x after k steps to the coefficients α of the inputs in a basis Ψ.

    Ω_k = V_k Ψ_k (LRU-UA eq. 21, 22), where V_k[n, j] = λ_n^(k-1-j) maps k inputs to the state, and Ψ_k are the first k
    rows of Ψ. The pseudoinverse of Ω_k is computed once, when the decoder is created.

    Args:
        eigenvalues: eigenvalues (N,), or (M, R) for M input channels.
        basis: real functions Ψ (L, P), or (L, M, P); see :mod:`stablessm.reconstruction.bases`.
        length: number of steps k, at most L (default: L).
        cutoff: singular values of Ω below this fraction of the largest are dropped (default: machine epsilon of
            ``precision`` times the larger dimension of Ω). Rows are first divided by the norms of the rows of V.
        tikhonov: regularization a, which adds (a σ_1)² |α|² to the squared residual (default: none).
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
        """Return the rank of Ψ_k, the first k rows of the basis.

        Basis functions that are zero during these k steps do not add to the rank.
        """
        values = torch.linalg.svdvals(self._basis.flatten(0, -2))
        eps = torch.finfo(self.diagnosis.precision).eps
        return int((values > max(self._basis.shape) * eps * values[0]).sum())

    def coefficients(self, state: Array) -> Tensor:
        """Return the coefficients α (…, P) for states (…, N) or (…, M, R).

        ``basis @ α`` gives the inputs of all L steps: the inputs up to step k, and a prediction of the later inputs
        (LRU-UA eq. 29).
        """
        x = _checks.states("state", state, self._shape).to(self._basis.device)
        channels = [x] if len(self._shape) == 1 else list(x.unbind(-2))
        c = torch.cat([block.right_side(part) for block, part in zip(self._blocks, channels, strict=True)], -1)
        flat = self._solver(c.reshape(c.shape[:-1].numel(), c.shape[-1]))
        return flat.reshape(*c.shape[:-1], flat.shape[-1]).to(_checks.real_dtype(state))

    def __call__(self, state: Array) -> Tensor:
        """Decode the inputs Ψ_k α of the first k steps from states; return (…, k), or (…, k, M) with M channels."""
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
    """Decode inputs that are combinations of the functions of a basis Ψ from a state (LRU-UA eq. 6, 21 and 22).

    The inputs of k = ``length`` steps are u = Ψ_k α with unknown coefficients α, where Ψ_k are the first k rows of the
    basis. Then the state is x = V_k Ψ_k α = Ω_k α with the matrix V_k of :func:`decode`, so that α = Ω_k⁺ x. The
    function returns u.

    N = P/2 complex eigenvalues can suffice for an input of any length, if Ω_k is well conditioned
    (:func:`condition_number`). If the rank of Ω_k is below the rank of Ψ_k, an :class:`IllConditionedWarning` states
    the rank and a remedy.

    Args:
        state: state (…, N) after ``length`` steps, or (…, M, R) with eigenvalues (M, R): input channel m drives the R
            states of row m, and all channels share α (LRU-UA eq. 10 to 20).
        eigenvalues, basis, length, cutoff, tikhonov: see :class:`SparseDecoder`, which also returns α.

    Returns:
        Inputs (…, k), or (…, k, M) with M channels.

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
    """Return the equations of each channel, and the matrix Ω (equations, P) of the equations for all coefficients.

    ``lam`` are the eigenvalues, ``psi`` is the basis, and ``eps`` the relative precision of the eigenvalues.

    The equations E_m u_m = c_m of channel m relate its inputs u_m to its states (:class:`Equations`). The inputs are
    u_m = Ψ_m α, where Ψ_m = ``psi[:, m]`` is the basis of the channel and α are P coefficients that all channels share.
    Ω has the rows of E_m Ψ_m of all channels, so that Ω α = c.
    """
    if lam.dim() == 1:
        lam, psi = lam[None], psi[:, None]
    blocks = [equations(row, len(psi), real=True, eps=eps) for row in lam]
    return blocks, torch.cat([block.apply(psi[:, m].mT).mT for m, block in enumerate(blocks)])


def first_steps(psi: Tensor, length: int | None) -> Tensor:
    """Return Ψ_k, the first k = ``length`` rows of a basis."""
    if length is None:
        return psi
    if whole_number("length", length) > len(psi):
        raise ArgumentError("length", f"at most {len(psi)} (as in basis)", length)
    return psi[:length]
