"""The accuracy with which past inputs can be decoded from a state, and the state size that a tolerance requires."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from stablessm._checked import Share, Size, checked
from stablessm._errors import ArgumentError, NumericalError
from stablessm.reconstruction import _checks
from stablessm.reconstruction._checks import Array
from stablessm.reconstruction._equations import equations
from stablessm.reconstruction._solvers import options
from stablessm.reconstruction.decoder import Decoder
from stablessm.reconstruction.diagnosis import Diagnosis, diagnosis
from stablessm.reconstruction.placements import uniform_ring
from stablessm.reconstruction.sparse import SparseDecoder, first_steps, mixed

_DOUBT = 0.01
"""Probability that all tested rings meet the tolerance although fewer than the stated share of all rings do."""


@checked
def condition_number(eigenvalues: Array, length: Size, *, basis: Array | None = None, real: bool = False) -> float:
    """Return the condition number κ = σ_max / σ_min of decoding ``length`` inputs from a state.

    This is the condition number of the matrix V[n, j] = λ_n^(L-1-j) (LRU-UA eq. 4) or, if a basis Ψ is given, of
    Ω = V Ψ (eq. 6). The paper plots κ², the condition number of VᵀV.

    κ is computed from singular values, not from a Gram matrix. Values of κ up to about 1e15 are accurate, and larger
    values are lower bounds. V is scaled by one common factor to avoid overflow; κ is inf if σ_min underflows. Without a
    basis and with N < L, σ_min is the smallest of the N singular values. With a basis, κ is inf if there are fewer
    equations than functions, because the coefficients are then not determined.

    Args:
        eigenvalues: eigenvalues λ (N,), complex.
        length: number of inputs L.
        basis: real functions Ψ (L, P); only the first L rows of a longer basis are used.
        real: replace the rows of V by their real and imaginary parts, without duplicates, which are the equations
            for a real input.

    >>> lam = torch.exp(2j * torch.pi * torch.arange(8, dtype=torch.float64) / 8)
    >>> round(condition_number(lam, 8), 10), condition_number(0.9 * lam.real, 8) > 1e12
    (1.0, True)
    """
    lam = _checks.spectrum(eigenvalues, channels=False)
    E = equations(lam, length, real=real, eps=_checks.resolution(eigenvalues))
    if basis is None:
        matrix = E.dense()
    else:
        psi = first_steps(_checks.basis_functions(basis, None).to(lam.device), length)
        if E.count < psi.shape[1]:
            return math.inf
        matrix = E.apply(psi.mT.contiguous()).mT
    scale = (E.log_norm - E.log_norm.max()).exp()
    if E.rows is not None:
        scale = torch.cat([scale, scale])[E.rows]
    values = torch.linalg.svdvals(matrix.mul_(scale[:, None]))
    smallest = float(values[-1])
    return float(values[0]) / smallest if smallest > 0 else math.inf


@checked
def diagnose(
    eigenvalues: Array,
    length: Size,
    *,
    basis: Array | None = None,
    cutoff: float | None = None,
    precision: torch.dtype = torch.float64,
) -> Diagnosis:
    """Diagnose how well a state determines a real input of ``length`` steps; only the eigenvalues are required.

    Args:
        eigenvalues: eigenvalues (N,), or (M, R) for M channels with a basis (L, M, P).
        length: number of inputs L.
        basis: functions of which the inputs are linear combinations (default: any input).
        cutoff: as in :func:`decode`.
        precision: dtype of the state, float32 or float64.

    >>> print(diagnose(torch.tensor([0.5, 0.9]), length=3))
    rank 2 of 3: the state determines 2 of 3 unknowns, the rest is set to 0. 2 equations are too few: use at least 3 \
states instead of 2. or decode_sparse in a basis of at most 2 functions, if the input is known to lie in one
    """
    lam = _checks.spectrum(eigenvalues, channels=basis is not None)
    eps = _checks.resolution(eigenvalues)
    psi = None
    if basis is None:
        matrix = equations(lam, length, real=True, eps=eps).dense()
    else:
        functions = _checks.basis_functions(basis, None if lam.dim() == 1 else len(lam)).to(lam.device)
        psi = first_steps(functions, length)
        matrix = mixed(lam, psi, eps)[1]
    count, unknowns = matrix.shape
    cutoff = options(cutoff, 0.0, (count, unknowns), precision)
    values = torch.linalg.svdvals(matrix)
    rank = int((values > cutoff * values[0]).sum())

    def rehearse() -> float:
        return _decoder(eigenvalues, length, psi, precision, cutoff).diagnosis.expected_error

    return diagnosis(lam, length, unknowns, count, values, rank, precision, rehearse)


@checked
def required_state_size(
    length: Size,
    r_min: float,
    r_max: float = 1.0,
    tol: Share = 1e-3,
    basis: Array | None = None,
    *,
    precision: torch.dtype = torch.float64,
    quantile: Share = 0.95,
    draws: Size | None = None,
    largest: Size | None = None,
    progress: bool = True,
) -> int:
    """Return how many random eigenvalues suffice to decode a real input with a relative error of at most ``tol``.

    The eigenvalues are drawn at random from the ring r_min ≤ |λ| ≤ r_max, several times. The error of one draw is its
    ``Diagnosis.expected_error``: the root mean square error over white inputs (with a basis, over inputs with white
    coefficients), including the rounding errors of recurrence and decoder. The function returns the smallest N for
    which the error of each of ``draws`` draws is at most ``tol``. With the default number of draws, at least the
    fraction ``quantile`` of all possible draws then has an error of at most ``tol``, with a confidence of 99 %. (This
    is Wilks' tolerance limit, draws = log 0.01 / log quantile, which holds for every distribution of errors.)

    Args:
        length: number of inputs L.
        r_min, r_max: smallest and largest radius, as in :func:`uniform_ring`.
        tol: relative error, between 0 and 1.
        basis: functions (L, P) of which the inputs are linear combinations (default: any input).
        precision: dtype of the state and the eigenvalues, float32 or float64.
        quantile: fraction of all possible draws whose error shall be at most ``tol``, between 0 and 1.
        draws: number of draws, with seeds 0, 1, … (default: 90 for the default ``quantile``). Fewer draws are faster,
            but say nothing about other draws.
        largest: largest N to try (default: 4 L). If it does not suffice, a :class:`~stablessm.NumericalError` says why.
        progress: show a progress bar in a terminal.

    >>> required_state_size(16, r_min=0.99, tol=1e-3)
    8
    """
    from tqdm import tqdm

    most = 4 * length if largest is None else largest
    psi = None if basis is None else _checks.basis_functions(basis, None)
    if psi is not None and len(psi) != length:  # the first rows of independent functions may be dependent
        raise ArgumentError("basis", f"{length} rows (length)", len(psi))
    draws = math.ceil(math.log(_DOUBT) / math.log(quantile)) if draws is None else draws
    size = min(-(-(length if psi is None else psi.shape[1]) // 2), most)  # two real equations per state
    for seed in tqdm(range(draws), unit="ring", delay=1, leave=False, disable=None if progress else True):
        ring = uniform_ring(most, r_min, r_max, seed=seed).to(precision.to_complex())
        size = _least_size(ring, size, tol, partial(_decoder, length=length, basis=psi, precision=precision))
        if size > most:
            found = diagnose(ring, length, basis=psi, precision=precision)
            raise NumericalError(
                f"no state of up to {most} on the ring {r_min:g} ≤ |λ| ≤ {r_max:g} decodes {length} steps to "
                f"an error of {tol:g}; at {most} the error is {found.expected_error:.2g}",
                found.advice[0] if found.advice else "raise tol or r_min, or use a float64 state",
            )
    return size


def _least_size(ring: Tensor, size: int, tol: float, decoder: Callable[[Tensor], Decoder | SparseDecoder]) -> int:
    """Return the smallest number of eigenvalues, at least ``size``, with which the decoder meets the tolerance.

    The eigenvalues are the first entries of ``ring``, and ``decoder`` creates a decoder for them. If the decoder for
    all entries of ``ring`` does not meet the tolerance, len(ring) + 1 is returned.
    """

    def meets(count: int) -> bool:
        return decoder(ring[:count]).diagnosis.expected_error <= tol

    # more eigenvalues only add rows, so the error decreases
    return size if meets(size) else bisect_left(range(len(ring) + 1), True, size + 1, key=meets)


def _decoder(
    eigenvalues: Array, length: int, basis: Tensor | None, precision: torch.dtype, cutoff: float | None = None
) -> Decoder | SparseDecoder:
    if basis is None:
        return Decoder(eigenvalues, length, cutoff=cutoff, precision=precision)
    return SparseDecoder(eigenvalues, basis, cutoff=cutoff, precision=precision)
