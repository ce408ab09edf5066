"""The truth: h[t] = a[t] h[t-1] + x[t] as a loop of PyTorch operations, differentiable to any order."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool) -> Tensor:
    """All states; shapes as in :func:`stablessm.scan.op.scan_op`."""
    low_precision = drive.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if low_precision else drive.dtype
    batch, steps, channels = drive.shape
    if not steps:
        return drive.clone()
    a, x = decay.to(dtype).expand(batch, steps, channels), drive.to(dtype)
    state = x.new_zeros(batch, channels) if initial is None else initial.to(dtype)
    states = [state] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        if reset is not None:
            state = torch.where(reset[:, t, None], torch.zeros_like(state), state)
        state = states[t] = a[:, t] * state + x[:, t]
    return torch.stack(states, dim=1).to(drive.dtype)
