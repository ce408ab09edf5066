"""A rehearsal: a recurrence that rounds takes white inputs in, and a decoder reads them back."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_INPUTS = 32
"""Number of white inputs, at least."""


def rehearsed_error(
    decode: Callable[[Tensor], Tensor],
    eigenvalues: Tensor,
    precision: torch.dtype,
    unknowns: int,
    basis: Tensor | None = None,
    *,
    real: bool = True,
) -> float:
    """Return the relative root mean square error of white inputs that were read back; inf if a state overflows.

    The rounding of the recurrence, the rounding of the solver and what the state does not fix are all in it.

    Args:
        decode: states (K, …) to inputs (K, L), or (K, L, M) for M channels.
        eigenvalues: (N,), or (M, R) for M channels, in the precision in which the recurrence holds them.
        precision: of the state, which is rounded at every step.
        unknowns: L, or the number of functions in ``basis``.
        basis: (L, P), or (L, M, P); inputs are its functions with white coefficients.
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
    """Return white inputs (K, unknowns) in blocks of orthogonal rows, in double precision: the same in every call.

    The mean of |A u|² over a full block is that over all white inputs for any matrix A, without a sampling error.
    Blocks have random sizes between 1 and 2, so that few unknowns are not always rounded in the same way.

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
