"""The product of the decays of all steps, the factor by which a scan multiplies its initial state."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm._typing import Lengths
from stablessm.scan.checks import as_lengths
from stablessm.scan.padding import real_steps


def decay_product(
    decay: Tensor, batch: int, steps: int, *, dims: int = 1, reset: Tensor | None = None, lengths: Lengths = None
) -> Tensor:
    """Compute the factor (B, …) by which a scan multiplies each initial state: the product of the decays of all steps.

    The product is over the real (not padded) steps. It is zero if one of these steps is a reset.

    Args:
        decay: (…) if it is the same at every step, otherwise (T, …) or (B, T, …).
        batch, steps: B and T.
        dims: number of dimensions that … stands for: 1 for states (B, C), 2 for states (B, H, N).
        reset: (T,) or (B, T) bool.
        lengths: (B,) whole numbers: the number of real steps of each sequence.

    >>> decay_product(torch.tensor([0.5]), 2, 3, lengths=torch.tensor([0, 2])).flatten().tolist()
    [1.0, 0.25]
    """
    one, lengths = (1,) * dims, as_lengths(lengths, decay.device)
    real = None if lengths is None else real_steps(lengths, steps)
    if decay.dim() == dims:
        count = torch.full((batch,), steps, device=decay.device) if lengths is None else lengths
        product = power(decay, count.view(-1, *one))
    else:
        if real is not None:
            decay = torch.where(real.view(*real.shape, *one), decay, torch.ones_like(decay))
        product = decay.prod(-1 - dims).expand(batch, *decay.shape[-dims:])
    if reset is None:
        return product
    cut = (reset.expand(batch, steps) if real is None else reset & real).any(1).view(-1, *one)
    return torch.where(cut, torch.zeros_like(product), product)


def power(decay: Tensor, steps: Tensor) -> Tensor:
    """Compute decay**steps in float64, with 0**0 = 1.

    In complex64 the error would reach 1e-4 after 10,000 steps, and PyTorch's 0**0 is NaN for complex numbers.

    >>> power(torch.tensor([0.0, 2.0]), torch.tensor([[0], [3]])).tolist()
    [[1.0, 1.0], [0.0, 8.0]]
    """
    zero, wide = decay == 0, torch.promote_types(decay.dtype, torch.float64)
    base = torch.where(zero, torch.ones_like(decay), decay).to(wide) ** steps
    return torch.where(zero & (steps > 0), torch.zeros_like(base), base).to(decay.dtype)
