"""Applies resets, and the lengths of right-padded sequences, to signals and states."""

from __future__ import annotations

import torch
from torch import Tensor


def real_steps(lengths: Tensor, steps: int) -> Tensor:
    """Return a bool mask (B, T) that is False at the padding of right-padded sequences and True at all other steps.

    >>> real_steps(torch.tensor([0, 2]), 3).tolist()
    [[False, False, False], [True, True, False]]
    """
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


def without_padding(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Return values (B, T, …) with zeros at padded steps, even where the padding is NaN."""
    if lengths is None:
        return values
    real = real_steps(lengths, values.shape[1])
    return torch.where(real.view(*real.shape, *(1,) * (values.dim() - 2)), values, torch.zeros_like(values))


def without_resets(values: Tensor, reset: Tensor | None) -> Tensor:
    """Return values (B, T, …) with zeros at the steps of resets, even where the values are NaN."""
    if reset is None:
        return values
    return torch.where(reset.view(*reset.shape, *(1,) * (values.dim() - 2)), torch.zeros_like(values), values)


def last_state(states: Tensor, before: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the state (B, …) after the last real (not padded) step of each sequence; for a sequence of length 0,
    return its state ``before``.

    ``states`` (B, T, …) are the states after every step; ``before`` is the state before the first step.
    """
    before = before.to(states.dtype)
    if not states.shape[1]:
        return torch.cat([before[:, None], states], 1)[:, 0]  # concatenated so that ``before`` has a gradient
    if lengths is None:
        return states[:, -1].clone()  # a view would keep all states in memory
    ends = lengths.view(-1, *(1,) * (states.dim() - 1))
    last = states.gather(1, (ends - 1).clamp(min=0).expand(-1, 1, *states.shape[2:]))[:, 0]
    return torch.where(ends[:, 0] == 0, before, last)
