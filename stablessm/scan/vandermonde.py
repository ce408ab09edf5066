"""Powers of a decay for a range of times, and sums with these powers, without the error of repeated multiplication.

T repeated products in float32 have an error of T·1e-7; these powers are computed in double precision and rounded once.
Sums over states write the time as t = j L + s with a block length L, so that no array (T, states) is needed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError
from stablessm.scan.checks import check_kinds, check_tensor


def powers(decay: Tensor, length: int) -> Tensor:
    """Compute decay**t for t = 0 … length-1, of shape (length, *decay.shape), by doubling.

    >>> powers(torch.tensor([2.0]), 5).flatten().tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0]
    """
    check_kinds("decay", decay=decay)
    length = length if torch.compiler.is_compiling() else whole_number("length", length, 0)
    square = decay.to(torch.promote_types(decay.dtype, torch.float64))[None]
    result = torch.ones_like(square)
    while len(result) < length:
        result = torch.cat([result, result * square])
        square = square * square
    return result[:length].to(decay.dtype)


def evaluate(weights: Tensor, decay: Tensor, length: int) -> Tensor:
    """Compute Σ_n weights[…, n] · decay[…, n]**t for t = 0 … length-1, of shape (…, length).

    >>> evaluate(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0]), 4).tolist()
    [2.0, 3.0, 5.0, 9.0]
    """
    check_kinds("weights", weights=weights, decay=decay)
    length = length if torch.compiler.is_compiling() else whole_number("length", length, 0)
    if not weights.dim() or weights.shape[-1:] != decay.shape[-1:]:
        raise ArgumentError("decay", f"the shape of weights, {tuple(weights.shape)}", f"shape {tuple(decay.shape)}")
    _check_batches(weights=weights, decay=decay)
    inner, outer = _levels(length)
    dtype = torch.promote_types(weights.dtype, decay.dtype)
    weights, (fine, coarse) = weights.to(dtype), _two_levels(decay.to(dtype), inner, outer)
    return ((weights.unsqueeze(-2) * coarse) @ fine.mT).flatten(-2)[..., :length]


def accumulate(signal: Tensor, decay: Tensor) -> Tensor:
    """Compute Σ_t decay[…, n]**(T-1-t) · signal[…, t], the state (…, N) of a recurrence after a signal (…, T).

    This is the transpose of :func:`evaluate`, with time reversed.

    >>> accumulate(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0])).tolist()
    [6.0, 11.0]
    """
    check_tensor("signal", signal)
    check_tensor("decay", decay)
    check_kinds("signal", signal=signal, decay=decay)
    if not signal.dim() or not decay.dim():
        raise ArgumentError("signal, decay", "shapes (…, T) and (…, N)", f"{tuple(signal.shape)}, {tuple(decay.shape)}")
    _check_batches(signal=signal, decay=decay)
    length = signal.shape[-1]
    inner, outer = _levels(length)
    signal = torch.nn.functional.pad(signal.to(decay.dtype).flip(-1), (0, inner * outer - length))
    blocks = signal.unflatten(-1, (outer, inner))
    fine, coarse = _two_levels(decay, inner, outer)
    return ((blocks @ fine) * coarse).sum(-2)


def _check_batches(**given: Tensor) -> None:
    """Raise an error unless the shapes of all tensors, without their last dimension, can be broadcast together."""
    if torch.compiler.is_compiling():
        return
    try:
        torch.broadcast_shapes(*(tensor.shape[:-1] for tensor in given.values()))
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given.values())
        expected = "shapes that can be broadcast, apart from the last size"
        raise ArgumentError(", ".join(given), expected, shapes) from error


def _levels(length: int) -> tuple[int, int]:
    inner = max(1, math.isqrt(length))
    return inner, max(1, -(-length // inner))


def _two_levels(decay: Tensor, inner: int, outer: int) -> tuple[Tensor, Tensor]:
    """Compute the two factors of decay**(s + j · inner): decay**s for s = 0 … inner - 1, and decay**(j · inner) for j =
    0 … outer - 1.
    """
    exact = decay.to(torch.promote_types(decay.dtype, torch.float64))  # raising to powers increases the rounding error
    jump = powers(exact, inner + 1)[-1]
    return powers(decay, inner).movedim(0, -2), powers(jump, outer).to(decay.dtype).movedim(0, -2)
