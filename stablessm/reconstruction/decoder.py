"""Decoding of past inputs from the state of a linear diagonal recurrence."""

from __future__ import annotations

import warnings
from functools import partial
from typing import final

import torch
from torch import Tensor

from stablessm._checked import Size, checked
from stablessm.reconstruction import _checks
from stablessm.reconstruction._checks import Array
from stablessm.reconstruction._equations import equations
from stablessm.reconstruction._solvers import Method, options, solver
from stablessm.reconstruction.diagnosis import Diagnosis, IllConditionedWarning, diagnosis, rehearsed_error


@final
@checked
class Decoder:
    """The linear map u = V⁺ x from the state x after ``length`` steps to the inputs u of these steps (LRU-UA eq. 5).

    V[n, j] = λ_n^(L-1-j) is the matrix that maps inputs to the state. The pseudoinverse V⁺ of V is computed once, when
    the decoder is created.

    Args:
        eigenvalues: eigenvalues (N,), complex, |λ| up to 1e290.
        length: number of inputs L since the start.
        real: whether inputs are real. Every complex eigenvalue then gives two equations, and N ≥ L/2 can suffice.
        cutoff: singular values below this fraction of the largest are dropped (default: machine epsilon of
            ``precision`` times the number of equations or of unknowns, whichever is larger). The rows of V are first
            scaled to norm 1. The cutoff is sharp with ``svd`` and smooth with ``gram``, which damps singular values
            near the cutoff.
        tikhonov: regularization α, which adds (α σ_1)² |u|² to the squared residual (default: none).
        method: ``svd`` is exact to the precision of the equations. ``gram`` does not form V (it needs about 130 N²
            bytes for a real input and 2N ≤ L), but loses singular values below 1e-7 of the largest. ``auto`` chooses by
            size.
        precision: dtype of the states, float32 or float64.

    >>> decoder = Decoder(torch.polar(torch.ones(3), torch.arange(3.0)), length=4)
    >>> decoder.diagnosis.rank, decoder(torch.tensor([1.0, 0.0, 0.0])).shape
    (4, torch.Size([4]))
    """

    def __init__(
        self,
        eigenvalues: Array,
        length: Size,
        *,
        real: bool = True,
        cutoff: float | None = None,
        tikhonov: float = 0.0,
        method: Method = "auto",
        precision: torch.dtype = torch.float64,
    ) -> None:
        lam = _checks.spectrum(eigenvalues, channels=False)
        self._equations = E = equations(lam, length, real=real, eps=_checks.resolution(eigenvalues))
        cutoff = options(cutoff, tikhonov, (E.count, length), precision)
        self._solver = solver(E, method, cutoff, tikhonov)
        values, rank = self._solver.singular_values, self._solver.rank
        held = _checks.finite("eigenvalues", eigenvalues)
        rehearse = partial(rehearsed_error, self, held, precision, length, real=real)
        self.diagnosis: Diagnosis = diagnosis(lam, length, length, E.count, values, rank, precision, rehearse)
        """Diagnosis of how well the state determines the input."""

    def __repr__(self) -> str:
        return f"Decoder({self.diagnosis!r})"

    def __call__(self, state: Array, *, initial: Array | None = None) -> Tensor:
        """Decode inputs (…, L) from states (…, N); ``initial`` is the state before the first input (default: zero)."""
        E = self._equations
        x = _checks.states("state", state, (len(E.factor),)).to(E.factor.device)
        before = None if initial is None else _checks.start("initial", initial, x, (len(E.factor),))
        c = E.right_side(x, before)
        u = self._solver(c.reshape(c.shape[:-1].numel(), E.count)).reshape(*c.shape[:-1], E.length)
        narrow = _checks.real_dtype(state)
        return u.to(narrow if E.real else torch.promote_types(narrow, torch.complex64))


@checked
def decode(
    state: Array,
    eigenvalues: Array,
    length: Size,
    *,
    initial: Array | None = None,
    real: bool = True,
    cutoff: float | None = None,
    tikhonov: float = 0.0,
    method: Method = "auto",
) -> Tensor:
    """Decode the last ``length`` inputs u, oldest first, from the state x of a recurrence x_k = Λ x_{k-1} + u_k.

    The function solves these equations (LRU-UA eq. 4, 5)::

        x[n] = Σ_j λ[n]^(L-1-j) u[j],   j = 0 … L-1

    The result is the least-squares solution of least norm. Powers are computed without overflow (|λ| up to 1e290), rows
    are scaled to norm 1, and the computation is in double precision; the result has the precision of the state. If the
    numerical rank is below ``length``, one :class:`IllConditionedWarning` states the rank and a remedy, for the channel
    with the lowest rank.

    Args:
        state: state (…, N) after ``length`` steps. With eigenvalues (M, R) it is (…, M, R), and input channel m drives
            the R states of row m (LRU-UA eq. 15 to 19).
        eigenvalues: eigenvalues (N,) or (M, R).
        length: number of steps L, at least 1.
        initial: state before the first of these inputs, in the shape of ``state`` or broadcast (default: zero).
        real, cutoff, tikhonov, method: see :class:`Decoder`.

    Returns:
        Inputs (…, length), or (…, length, M) with M channels; complex if not ``real``.

    >>> lam = torch.polar(torch.ones(4), torch.tensor([0.4, 1.2, 2.0, 2.8]))
    >>> state = torch.zeros(4)
    >>> for u in (1.0, -2.0, 3.0):
    ...     state = lam * state + u
    >>> decode(state, lam, length=3).round(decimals=4).tolist()
    [1.0, -2.0, 3.0]
    """
    shape = tuple(_checks.spectrum(eigenvalues).shape)
    lam = _checks.finite("eigenvalues", eigenvalues)  # in the precision of the argument
    x = _checks.states("state", state, shape)
    before = torch.zeros_like(x) if initial is None else _checks.start("initial", initial, x, shape)
    precision = _checks.real_dtype(state)
    dtype = precision if real else torch.promote_types(precision, torch.complex64)
    make = partial(Decoder, length=length, real=real, cutoff=cutoff, tikhonov=tikhonov, method=method)
    decoders = [make(values, precision=precision) for values in lam.reshape(-1, lam.shape[-1])]
    ends, starts = ((part if lam.dim() == 2 else part.unsqueeze(-2)).unbind(-2) for part in (x, before))
    parts = [d(end, initial=begin).to(dtype) for d, end, begin in zip(decoders, ends, starts, strict=True)]
    worst = min((decoder.diagnosis for decoder in decoders), key=lambda diagnosis: diagnosis.rank)
    if not worst.determined:
        warnings.warn(IllConditionedWarning(worst), stacklevel=3)  # the caller of decode, past its decorator
    return parts[0] if lam.dim() == 1 else torch.stack(parts, -1)
