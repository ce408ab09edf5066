"""The truth: h[t] = a[t] h[t-1] + x[t] as a loop of PyTorch operations, differentiable to any order."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool) -> Tensor:
    """All states; shapes as in :func:`stablessm.scan.op.scan_op`."""
    dtype = torch.promote_types(drive.dtype, torch.float32)
    batch, steps, channels = drive.shape
    if not steps:  # nothing, but a function of its arguments
        parts = [decay.expand(drive.shape), *([] if initial is None else [initial[:, None].expand(drive.shape)])]
        return sum(parts, drive).to(drive.dtype)
    # unbind, not indexing: the gradient of an index is as large as the whole array, at every step
    a, x = decay.to(dtype).expand(batch, steps, channels).unbind(1), drive.to(dtype).unbind(1)
    state = drive.new_zeros(batch, channels, dtype=dtype) if initial is None else initial.to(dtype)
    states = [state] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        carried, by = state, a[t]
        if reset is not None:  # by choice: a product with zero would keep a NaN
            zero = torch.zeros_like(state)
            carried, by = torch.where(reset[:, t, None], zero, state), torch.where(reset[:, t, None], zero, by)
        state = states[t] = by * carried + x[t]
    return torch.stack(states, dim=1).to(drive.dtype)
