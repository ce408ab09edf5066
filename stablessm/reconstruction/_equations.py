"""The linear equations between a state and its past inputs, scaled so that no power of an eigenvalue overflows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from stablessm.reconstruction._powers import powers, powers_of_pair, reciprocal

_EPS = torch.finfo(torch.float64).eps
_TWIN = 8
"""Eigenvalues that are conjugates within this many eps of each other give the same equations for a real input."""

_ELEMENTS = 2**22
"""Largest number of intermediate values that a batch may need; larger batches are split."""


@final
@dataclass(frozen=True, eq=False)
class Equations:
    """The linear equations E u = c between L inputs u and the state that they produce.

    Row n of E is row n of the Vandermonde matrix V[n, j] = λ_n^(L-1-j) (LRU-UA eq. 4), divided by its norm. For
    |λ_n| > 1 the row is divided by λ_n^(L-1) first, which leaves powers of 1/λ_n. The right side c is the state,
    divided by the same numbers. These N equations are complex. For real inputs they are replaced by their real and
    imaginary parts, without duplicates.

    V is not stored. The exponent p = L-1-j is written as p = a S + b with b < S, where S, about √L, is a power of two.
    The entry of E is the product of ``coarse``[n, a] and ``fine``[n, b]. The entries with the largest exponents are
    stored in ``tail``.
    """

    length: int
    real: bool
    fine: Tensor
    """λ^b for b < S if |λ| ≤ 1 (N, S)."""
    coarse: Tensor
    """λ^(a S) for a < A if |λ| ≤ 1, divided by the norms (N, A)."""
    tail: Tensor
    """Powers with exponents of at least A S, divided by the norms (N, L - A S)."""
    factor: Tensor
    """Complex factor by which each state is multiplied to give c (N,)."""
    log_norm: Tensor
    """Logarithm of the norm of each row of V (N,)."""
    last: Tensor
    """Factor λ^L · ``factor`` of the state before the first input (N,)."""
    rows: Tensor | None
    """Indices of the 2N real equations that are used; None if all N complex equations are used."""

    @property
    def count(self) -> int:
        """Return the number of equations, which are real for real inputs and complex otherwise."""
        return len(self.fine) if self.rows is None else len(self.rows)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the equations and the unknowns: float64 for real inputs, otherwise complex128."""
        return torch.float64 if self.real else torch.complex128

    def right_side(self, state: Tensor, initial: Tensor | None = None) -> Tensor:
        """Return the right side c (…, count) of the equations for states (…, N).

        ``initial`` is the state before the first input (default: zero).
        """
        c = state * self.factor
        return self._kept(c if initial is None else c - initial * self.last)

    def dense(self) -> Tensor:
        """Return the full matrix E (count, L), computed in pieces to save memory."""
        result = torch.empty(self.count, self.length, dtype=self.dtype, device=self.fine.device)
        size = max(1, _ELEMENTS // self.length)
        for start in range(0, len(self.fine), size):
            some = slice(start, start + size)
            main = (self.coarse[some, :, None] * self.fine[some, None, :]).flatten(1)
            part = torch.cat([main, self.tail[some]], 1).flip(1)
            if self.rows is None:
                result[some] = part
                continue
            for offset, values in ((start, part.real), (len(self.fine) + start, part.imag)):
                kept = (self.rows >= offset) & (self.rows < offset + len(part))
                result[kept] = values[self.rows[kept] - offset]
        return result

    def apply(self, u: Tensor) -> Tensor:
        """Return the product E u for inputs u (B, L)."""
        return torch.cat([self._kept(self._apply(part.flip(1))) for part in u.split(self._chunk())])

    def adjoint(self, c: Tensor) -> Tensor:
        """Return the product Eᴴ c for right sides c (B, count)."""
        parts = (self._adjoint(part).flip(1) for part in c.split(self._chunk()))
        return torch.cat([part.real if self.real else part for part in parts])

    def outer_gram(self) -> Tensor:
        """Return the Gram matrix E Eᴴ (count, count) of the rows of E, computed in O(N² √L) operations."""
        hermitian = self._product(conjugate=True)
        if self.rows is None:
            return hermitian
        plain = self._product(conjugate=False)
        top = torch.cat([(hermitian + plain).real, (plain - hermitian).imag], 1)
        low = torch.cat([(plain + hermitian).imag, (hermitian - plain).real], 1)
        return torch.cat([top, low])[self.rows][:, self.rows] / 2

    def inner_gram(self) -> Tensor:
        """Return the Gram matrix Eᴴ E (L, L) of the columns of E."""
        result = torch.zeros(self.length, self.length, dtype=self.dtype, device=self.fine.device)
        size = max(1, _ELEMENTS // self.length)
        for start in range(0, self.count, size):
            part = self._some(start, start + size)
            result.addmm_(part.mH, part)
        return result

    def _some(self, start: int, stop: int) -> Tensor:
        c = torch.zeros(min(stop, self.count) - start, self.count, dtype=self.dtype, device=self.fine.device)
        c.diagonal(start).fill_(1)
        return self.adjoint(c).conj()

    def _product(self, *, conjugate: bool) -> Tensor:
        fine, coarse, tail = (
            part @ (part.mH if conjugate else part.mT) for part in (self.fine, self.coarse, self.tail)
        )
        return fine.mul_(coarse).add_(tail)

    def _apply(self, backwards: Tensor) -> Tensor:
        size = self.fine.shape[1]
        main, rest = backwards.to(torch.complex128).split([self.length - self.tail.shape[1], self.tail.shape[1]], 1)
        blocks = main.unflatten(1, (self.coarse.shape[1], size)) @ self.fine.mT
        return (blocks * self.coarse.mT).sum(1) + rest @ self.tail.mT

    def _adjoint(self, c: Tensor) -> Tensor:
        if self.rows is not None:
            full = c.new_zeros(len(c), 2 * len(self.fine))
            full[:, self.rows] = c
            c = torch.complex(*full.chunk(2, 1))
        main = ((c[:, None] * self.coarse.mT.conj()) @ self.fine.conj()).flatten(1)
        return torch.cat([main, c @ self.tail.conj()], 1)

    def _kept(self, c: Tensor) -> Tensor:
        return c if self.rows is None else torch.cat([c.real, c.imag], -1)[..., self.rows]

    def _chunk(self) -> int:
        return max(1, _ELEMENTS // (len(self.fine) * self.coarse.shape[1]))


def equations(eigenvalues: Tensor, length: int, *, real: bool, eps: float = _EPS) -> Equations:
    """Return the linear equations between the inputs of ``length`` steps and the final state, for eigenvalues (N,).

    ``real`` states whether the inputs are real, and ``eps`` is the relative precision of the eigenvalues.
    """
    grows = eigenvalues.abs() > 1
    inverse = reciprocal(torch.where(grows, eigenvalues, 1))
    inner = length.bit_length() // 2
    size = 2**inner
    whole, rest = divmod(length, size)
    fine, coarse = powers(torch.where(grows, 1, eigenvalues), inner, whole + 1)
    back_fine, back_coarse = powers_of_pair(inverse, inner, whole + 1)
    last = coarse[:, -1] * fine[:, rest]
    back_tail = back_fine[:, :rest].flip(1)
    jump = back_fine[:, rest : rest + 1]  # rest < size
    first = back_coarse[:, -1] * back_fine[:, rest - 1] if rest else back_coarse[:, -2] * back_fine[:, -1]
    pick = grows[:, None]
    tail = torch.where(pick, back_tail, coarse[:, -1:] * fine[:, :rest])
    coarse = torch.where(pick, jump * back_coarse[:, :-1].flip(1), coarse[:, :-1])
    fine = torch.where(pick, back_fine.flip(1), fine)
    norm = (_square(fine) * _square(coarse) + _square(tail)).sqrt()
    factor = torch.where(grows, first, 1) / norm
    grown = torch.where(grows, (length - 1) * eigenvalues.abs().clamp(min=1).log(), 0)
    return Equations(
        length=length,
        real=real,
        fine=fine,
        coarse=coarse / norm[:, None],
        tail=tail / norm[:, None],
        factor=factor,
        log_norm=norm.log() + grown,
        last=torch.where(grows, eigenvalues, last) / norm,
        rows=_distinct(eigenvalues, _TWIN * eps) if real else None,
    )


def _square(part: Tensor) -> Tensor:
    return part.abs().square().sum(1)


def _distinct(eigenvalues: Tensor, tolerance: float) -> Tensor:
    """Return the indices of the independent equations among the real parts of N complex equations, followed by their
    imaginary parts.

    A complex eigenvalue, or a pair of conjugate eigenvalues, gives two independent equations; a real eigenvalue gives
    one. ``tolerance`` is the relative difference up to which two eigenvalues count as equal.
    """
    kept = torch.ones(len(eigenvalues), dtype=torch.bool, device=eigenvalues.device)
    order = torch.arange(len(eigenvalues), device=eigenvalues.device)
    for part in order.split(max(1, _ELEMENTS // len(eigenvalues))):
        twin = (eigenvalues[part, None].conj() - eigenvalues).abs() <= tolerance * eigenvalues.abs()
        kept[part] = ~(twin & (order < part[:, None])).any(1)
    has_phase = eigenvalues.imag.abs() > tolerance * eigenvalues.abs()
    return torch.cat([kept, kept & has_phase]).nonzero()[:, 0]
