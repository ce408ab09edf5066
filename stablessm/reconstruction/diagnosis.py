"""The report on how well a state determines its past inputs: rank, condition number, measured error, and advice."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from stablessm._display import Result

_INPUTS = 32
"""Smallest number of random (white) inputs that are decoded to measure the expected error."""


class IllConditionedWarning(UserWarning):
    """Warns that a state does not determine all inputs to be decoded; ``diagnosis`` is the full report."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(str(diagnosis))
        self.diagnosis = diagnosis


@final
@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Result):
    """The diagnosis of a decoding problem: how well a state determines the past inputs."""

    length: int
    """Number of inputs."""
    unknowns: int
    """Number of unknowns: inputs, or coefficients in a basis."""
    equations: int
    """Number of equations; for a real input, two per complex eigenvalue or conjugate pair and one per real one."""
    rank: int
    """Number of singular values above the cutoff, for equations with rows of norm 1."""
    condition: float
    """Largest over smallest singular value, for equations with rows of norm 1; inf with too few equations."""
    precision: torch.dtype
    """Dtype of the state."""
    advice: tuple[str, ...]
    """Possible remedies; empty if the state determines all unknowns."""
    _rehearse: Callable[[], float] = field(repr=False)

    @cached_property
    def expected_error(self) -> float:
        """Return the relative root mean square error of decoding random inputs from a state.

        The inputs are white or, with a basis, have white coefficients. At the first access, a recurrence that rounds to
        ``precision`` at every step processes at least 32 test inputs, the solver decodes these inputs from the final
        states, and the error is measured. For 30 other inputs, the root mean square error lies between a third of this
        number and three times this number. The error is inf if a state overflows.
        """
        return self._rehearse()

    @property
    def determined(self) -> bool:
        """Return True if the state determines all unknowns: all inputs or, with a basis, all coefficients."""
        return self.rank == self.unknowns

    def __str__(self) -> str:
        fixed = f"rank {self.rank} of {self.unknowns}: the state determines " + (
            f"all of them, to {self.expected_error:.2g} in {str(self.precision).removeprefix('torch.')}"
            if self.determined
            else f"{self.rank} of {self.unknowns} unknowns, the rest is set to 0"
        )
        return ". ".join((fixed, *self.advice))


def diagnosis(
    eigenvalues: Tensor,
    length: int,
    unknowns: int,
    equations: int,
    singular_values: Tensor,
    rank: int,
    precision: torch.dtype,
    rehearse: Callable[[], float],
) -> Diagnosis:
    """Create the report on a decoding problem from the singular values and the rank of its equations.

    ``unknowns`` and ``equations`` are the numbers of unknowns and of equations; the rows of the equations must have
    norm 1. The function ``rehearse`` measures the expected error, and is called at most once.
    """
    full = len(singular_values) == unknowns and float(singular_values[-1]) > 0
    return Diagnosis(
        length=length,
        unknowns=unknowns,
        equations=equations,
        rank=rank,
        condition=float(singular_values[0] / singular_values[-1]) if full else math.inf,
        precision=precision,
        advice=() if rank == unknowns else _advice(eigenvalues, length, unknowns, equations, rank, precision),
        _rehearse=rehearse,
    )


def _advice(
    eigenvalues: Tensor, length: int, unknowns: int, equations: int, rank: int, precision: torch.dtype
) -> tuple[str, ...]:
    moduli, eps = eigenvalues.abs(), torch.finfo(precision).eps
    result = []
    if equations < unknowns:
        more = math.ceil(eigenvalues.numel() * unknowns / equations)
        result.append(f"{equations} equations are too few: use at least {more} states instead of {eigenvalues.numel()}")
    forgotten = float((moduli**length < eps).to(torch.float64).mean())
    if forgotten > 0 and rank < min(equations, unknowns):
        result.append(
            f"{forgotten:.0%} of the eigenvalues have |λ|^{length} below the precision and have lost the first inputs: "
            f"use |λ| of at least {eps ** (0.1 / length):.6g} (see reconstruction.optimized)"
        )
    elif rank < min(equations, unknowns):
        result.append("eigenvalues are too close to each other: spread their angles (reconstruction.optimized)")
    if float(moduli.max()) > 1 and length * math.log(float(moduli.max())) > -math.log(eps):
        result.append("with |λ| above 1 old inputs dominate the state: use |λ| of at most 1")
    if rank:
        result.append(f"or decode_sparse in a basis of at most {rank} functions, if the input is known to lie in one")
    return tuple(result)


def rehearsed_error(
    decode: Callable[[Tensor], Tensor],
    eigenvalues: Tensor,
    precision: torch.dtype,
    unknowns: int,
    basis: Tensor | None = None,
    *,
    real: bool = True,
) -> float:
    """Run a recurrence on white inputs, decode them from the final state, and return the relative error.

    The error includes the rounding errors of recurrence and solver, and the part of the inputs that the state does not
    determine. The error is inf if the state overflows.

    Args:
        decode: function from the final states (K, …) of K input sequences to these inputs (K, L), or (K, L, M) for M
            channels.
        eigenvalues: eigenvalues (N,), or (M, R) for M channels, in the dtype in which the recurrence stores them.
        precision: dtype to which the state is rounded at every step.
        unknowns: number of inputs L or, with a basis, number of functions P.
        basis: functions (L, P), or (L, M, P); the inputs are sums of these functions with white coefficients.
        real: whether inputs are real.
    """
    u = white(unknowns, real=real).to(eigenvalues.device)
    if basis is not None:
        u = torch.tensordot(u, basis.to(u), dims=([1], [-1]))
    state = torch.zeros(len(u), *eigenvalues.shape, dtype=precision.to_complex(), device=u.device)
    for u_k in u.to(precision if real else state.dtype).unbind(1):
        state = (eigenvalues * state + u_k[..., None]).to(state.dtype)
    if not bool(state.isfinite().all()):
        return math.inf
    return float((decode(state).to(u.dtype) - u).norm() / u.norm())


def white(unknowns: int, *, real: bool = True) -> Tensor:
    """Return K fixed test inputs (K, unknowns), float64 or complex128, that stand for random white inputs.

    The inputs form blocks with orthogonal rows. If a block has as many rows as unknowns, the mean of |A u|² over its
    rows u is proportional to the expectation over white inputs, for any matrix A. All inputs of a block are scaled by
    the same random factor between 1 and 2, so that rounding differs between blocks.

    >>> u = white(3)
    >>> torch.allclose(u.mT @ u, u.square().sum() / 3 * torch.eye(3, dtype=torch.float64))
    True
    """
    count = min(unknowns, _INPUTS)
    shape, dtype = (-(-_INPUTS // count), unknowns, count), torch.float64 if real else torch.complex128
    generator = torch.Generator().manual_seed(0)
    rows = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=dtype))[0].mT
    sizes = 1 + torch.rand(shape[0], 1, 1, generator=generator, dtype=torch.float64)
    return (sizes * math.sqrt(unknowns) * rows).flatten(0, 1)
