"""Decoding of the number of steps since the start from a state that is driven by the constant input 1."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stablessm._checked import checked
from stablessm._errors import ArgumentError, NumericalError, quoted
from stablessm.reconstruction import _checks
from stablessm.reconstruction._checks import Array


@checked
def timestamp(state0: Array, lam0: float) -> Tensor:
    """Return the number of steps k since the start, from a state that has received the input 1 at every step.

    The state is x = Σ_{i<k} λ₀^i = (1 - λ₀^k) / (1 - λ₀) (LRU-UA section 3.1), so::

        k = log(1 - x (1 - λ₀)) / log λ₀

    Args:
        state0: state of the eigenvalue λ₀ with input 1, of any shape; real, or complex with zero imaginary part.
        lam0: λ₀, real, between 0 and 1. (The logarithm of a complex number is not unique.)

    Returns:
        Numbers of steps (int64), in the shape of ``state0``.

    Raises:
        NumericalError: consecutive steps cannot be distinguished, or the state lies between steps. If λ₀ and every step
            are rounded to the precision eps of the state, the state has an error of up to 2 eps x².

    >>> timestamp(torch.tensor([0.0, 1.0, 1.5, 1.75]), lam0=0.5)
    tensor([0, 1, 2, 3])
    """
    x = _checks.finite("state0", state0)
    if isinstance(lam0, bool) or not isinstance(lam0, float) or not 0 < lam0 < 1:
        raise ArgumentError("lam0", "a real number between 0 and 1", quoted(lam0))
    if x.is_complex():
        if bool(x.imag.any()):
            raise ArgumentError("state0", "real numbers, since λ₀ and its input are", "an imaginary part")
        x = x.real
    eps = torch.finfo(x.dtype if x.is_floating_point() else torch.float64).eps
    x = x.to(torch.float64)
    limit = 1 / (1 - lam0)
    if bool((x < 0).any()) or bool((x > limit * (1 + 4 * eps * limit)).any()):
        got = f"{float(x.min()):.6g} to {float(x.max()):.6g}"
        raise ArgumentError("state0", f"from 0 to the limit 1/(1 - λ₀) = {limit:.6g}", got)
    gone = x * (1 - lam0)
    left = 1 - gone  # λ₀^k
    # Step j adds an error of at most eps x_j (a product and a sum), of which the share λ₀^(k-j) remains at step k:
    # Σ_j λ₀^(k-j) x_j ≤ x². The rounding of λ₀ and the rounding in this function add half of this bound each.
    off = 2 * eps * x.square() * (1 - lam0)
    unclear = off > 0.25 * left * -math.log(lam0)
    if bool(unclear.any()):
        raise NumericalError(
            f"a step cannot be distinguished from the next step where λ₀^k = {float(left[unclear].min()):.2g}",
            "use a state in float64, or a λ₀ nearer to 1 - 1/L for L steps",
        )
    k = torch.log1p(-gone) / math.log(lam0)
    if bool(((k - k.round()).abs() > 0.25).any()):
        raise NumericalError("a state lies between two steps", "drive it with the constant 1 from the zero state")
    return k.round().to(torch.int64)
