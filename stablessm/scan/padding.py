"""Applies resets, and the lengths of right-padded sequences, to signals and states."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from stablessm.scan.dispatch import exporting


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


def last_inputs(x: Tensor, before: Tensor, reset: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Return the last K real (not padded) inputs (B, K, …) of each sequence, with zeros for inputs of earlier episodes.

    ``x`` (B, T, C) are the inputs, and ``before`` (B, K, C) are the K inputs before the first step; the result has the
    dtype of ``before``. ``reset`` has shape (B, T).
    """
    (batch, steps, width), count = x.shape, before.shape[1]
    if lengths is None and reset is None and not exporting():
        return torch.cat([before, x[:, max(0, steps - count) :].to(before.dtype)], 1)[:, min(steps, count) :]
    ends = torch.full((batch,), steps, device=x.device) if lengths is None else lengths
    where = ends[:, None] + torch.arange(count, device=x.device)  # index into ``before`` and x, joined
    if steps:
        later = x.gather(1, (where - count).clamp(min=0)[..., None].expand(-1, -1, width)).to(before.dtype)
        early = before.gather(1, where.clamp(max=count - 1)[..., None].expand(-1, -1, width))
        before = torch.where((where < count)[..., None], early, later)
    if reset is None:
        return before
    episode = pad(reset.cumsum(1), (count, 0)).gather(1, where)
    return torch.where((episode == episode[:, -1:])[..., None], before, torch.zeros_like(before))
