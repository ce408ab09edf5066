"""The truth of the fused layer: all states by a scan, then the readout, differentiable to any order."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm.scan.linear import linear_scan


def forward(
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state and no checkpoints; shapes as in :func:`stablessm.scan.ssm_op.ssm_op`."""
    return (*by_states(x, decay, B, C, D, initial, reset, lengths, "reference"), x.new_empty(0))


def by_states(
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Output and final state, with all states (B, T, H, N) in memory, made by a backend of ``linear_scan``."""
    signal = x.to(decay.real.dtype)
    if lengths is not None:
        real = real_steps(lengths, x.shape[1])[..., None]
        signal = torch.where(real, signal, torch.zeros_like(signal))
    before = x.new_zeros(len(x), *decay.shape, dtype=decay.dtype) if initial is None else initial
    drive = (signal[..., None] * B).flatten(2)
    states = linear_scan(decay.flatten(), drive, before.flatten(1), reset=reset, backend=backend)
    states = states.unflatten(2, decay.shape)
    y = _real((states * C).sum(-1))
    if D is not None:
        y = y + D * signal
    if lengths is not None:
        y = torch.where(real, y, torch.zeros_like(y))
    return y.to(x.dtype), last_state(states, before, lengths)


def real_steps(lengths: Tensor, steps: int) -> Tensor:
    """(B, T) bool: which steps of right-padded sequences are real."""
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


def last_state(states: Tensor, before: Tensor, lengths: Tensor | None) -> Tensor:
    """The state (B, …) after the last real step of states (B, T, …); ``before`` where there is none."""
    before = before.to(states.dtype)
    if not states.shape[1]:
        return torch.cat([before[:, None], states], 1)[:, 0]  # joined, so that its gradient is defined as any other
    if lengths is None:
        return states[:, -1].clone()  # a view would keep all states in memory
    ends = lengths.view(-1, *(1,) * (states.dim() - 1))
    last = states.gather(1, (ends - 1).clamp(min=0).expand(-1, 1, *states.shape[2:]))[:, 0]
    return torch.where(ends[:, 0] == 0, before, last)


def _real(values: Tensor) -> Tensor:
    return values.real if values.is_complex() else values
