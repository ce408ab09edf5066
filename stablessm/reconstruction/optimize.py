"""Eigenvalues that are optimized for decoding inputs of a given length (LRU-UA section 3.1 leaves the choice open)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm.reconstruction import _checks
from stablessm.reconstruction._checks import Array
from stablessm.reconstruction.conditioning import condition_number, diagnose


@checked
def optimized(count: Size, length: Size, *, r_max: float = 1.0, basis: Array | None = None) -> Tensor:
    """Return ``count`` eigenvalues with |λ| ≤ r_max whose states determine ``length`` real inputs as well as possible.

    The result has the shape (N,) and dtype complex128.

    The criterion is the condition number κ of the equations for a real input (``condition_number(…, real=True)``), in
    which λ and its conjugate count as one eigenvalue. All eigenvalues have the modulus r_max, because a smaller modulus
    reduces the smallest singular value of the matrix V of the equations. The angles are chosen as follows:

    - Without a basis, 2N ≥ L: θ_n = π(n + ½)/N. With their conjugates these are 2N evenly spaced points on the
      circle, so the columns of V are orthogonal: κ = 1 for r_max = 1. (The roots of unity would require N = L.)
    - Without a basis, 2N < L: N of the L-th roots of unity above the real axis, so the rows of V are orthogonal: κ = 1
      for r_max = 1. For r_max < 1 the better of the two placements is returned; κ is about r_max^(1 - 2N).
    - With a basis: a greedy choice among the L-th roots of unity, and another among the points midway between them.
      Each step takes the point whose equations add most to the equations of the points chosen before. Of the two
      placements, the one whose equations have the higher rank is returned; if the ranks are equal, the one with the
      smaller κ.

    Args:
        count: number of eigenvalues N.
        length: number of inputs L.
        r_max: largest modulus, above 0; below 1 for a recurrence that must forget.
        basis: functions (L, P) of which the inputs are linear combinations; N = P/2 can then suffice.

    >>> lam = optimized(4, length=8)
    >>> round(condition_number(lam, 8, real=True), 9), condition_number(lam.sqrt(), 8, real=True) > 1e3
    (1.0, True)
    """
    if not 0 < r_max <= 1:
        raise ArgumentError("r_max", "above 0 and at most 1", r_max)
    if basis is not None:
        psi = _checks.basis_functions(basis, None)
        if len(psi) != length:
            raise ArgumentError("basis", f"{length} rows (length)", len(psi))
        return min((_greedy(count, psi, r_max, half) for half in (0.0, 0.5)), key=lambda lam: _sort_key(lam, psi))
    even = r_max * _turn((torch.arange(count, dtype=torch.float64) + 0.5) / (2 * count))
    if 2 * count >= length:
        return even
    steps = (torch.arange(count, dtype=torch.float64) + 0.5) * length / (2 * count)
    roots = r_max * _turn(steps.round().clamp(1, (length - 1) // 2) / length)
    return roots if r_max == 1 else min(even, roots, key=lambda lam: condition_number(lam, length, real=True))


def _sort_key(lam: Tensor, psi: Tensor) -> tuple[int, float]:
    """Return a sort key of eigenvalues, lower is better: (number of undetermined coefficients, condition number).

    The number of undetermined coefficients comes first, because a set of eigenvalues that determines fewer coefficients
    can have the smaller condition number.
    """
    found = diagnose(lam, len(psi), basis=psi)
    return found.unknowns - found.rank, found.condition


def _greedy(count: int, psi: Tensor, r_max: float, half: float) -> Tensor:
    """Choose ``count`` eigenvalues from the points r_max e^(2πi(k + half)/L), k = 0, 1, …, one after the other.

    The inputs are linear combinations of the columns of ``psi`` (L, P). An eigenvalue at one of the points gives two
    equations for the P coefficients, which are the rows of a matrix. Each step takes the point whose rows have the
    largest norm after the parts in the span of the rows chosen before are subtracted. When the chosen rows span the
    whole space, the next steps start again with the full rows of the remaining points.
    """
    length = len(psi)
    k = torch.arange((length + 1) // 2 if half else length // 2 + 1, dtype=torch.float64)
    if count > len(k):
        raise ArgumentError("count", f"at most {len(k)} with a basis of length {length}", count)
    p = torch.arange(length, dtype=torch.float64)
    weights = r_max**p * _turn(half * p / length)
    omega = length * torch.fft.ifft(psi.flip(0) * weights[:, None], dim=0)[: len(k)]
    rows = torch.stack([omega.real, omega.imag], 1)
    unseen, chosen, free = rows, [], torch.ones(len(k), dtype=torch.bool)
    for _ in range(count):
        gain = torch.where(free, unseen.square().sum((1, 2)), -1)
        best = int(gain.argmax())
        chosen.append(best)
        free[best] = False
        seen = torch.linalg.qr(unseen[best].mT)[0]
        unseen = unseen - (unseen @ seen) @ seen.mT
        if float(unseen.square().sum()) < 1e-12 * float(rows.square().sum()):
            unseen = rows
    return r_max * _turn((k[chosen] + half) / length)


def _turn(part: Tensor) -> Tensor:
    """Return the point e^(2πi part) on the unit circle, where ``part`` is a fraction of a full turn."""
    return torch.polar(torch.ones_like(part), 2 * math.pi * part)
