"""The reference scan: h[t] = a[t] h[t-1] + x[t] as a loop of PyTorch operations, differentiable to any order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stablessm.scan.padding import without_resets
from stablessm.scan.protocol import Recurrence


def forward(recurrence: Recurrence, drive: Tensor) -> Tensor:
    """Compute all states (B, T, C) of the recurrence h[t] = decay[t] h[t-1] + drive[t]."""
    decay, initial, reset, reverse = recurrence
    dtype = torch.promote_types(drive.dtype, torch.float32)
    batch, steps, channels = drive.shape
    if not steps:  # empty, but connected to the arguments in the autograd graph
        parts = [decay.expand(drive.shape), *([] if initial is None else [initial[:, None].expand(drive.shape)])]
        return sum(parts, drive).to(drive.dtype)
    # unbind instead of indexing, because the gradient of each index would be as large as the whole array
    a, x = decay.to(dtype).expand(batch, steps, channels).unbind(1), drive.to(dtype).unbind(1)
    state = drive.new_zeros(batch, channels, dtype=dtype) if initial is None else initial.to(dtype)
    states = [state] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        carried, by = state, a[t]
        if reset is not None:  # where, because NaN times zero is NaN
            zero = torch.zeros_like(state)
            carried, by = torch.where(reset[:, t, None], zero, state), torch.where(reset[:, t, None], zero, by)
        state = states[t] = by * carried + x[t]
    return torch.stack(states, dim=1).to(drive.dtype)


def backward(recurrence: Recurrence, states: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients with respect to decay, drive and initial."""
    return gradients(recurrence, states, grad, forward)


def gradients(
    recurrence: Recurrence, states: Tensor, grad: Tensor, scan: Callable[[Recurrence, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients with respect to decay, drive and initial, by operations that can be differentiated again.

    ``scan(recurrence, drive)`` computes the states of a recurrence. The adjoint of a scan is a scan in the other
    direction. With the decay a, the drive x, the states h and their gradient g (``grad``):

    λ[t] = g[t] + conj(a[t+1]) λ[t+1]; dx = λ; da[t] = λ[t] conj(h[t-1]); dh[-1] = conj(a[0]) λ[0].
    """
    decay, initial, reset, reverse = recurrence
    wide = torch.promote_types(states.dtype, torch.float32)
    a = without_resets(decay.to(wide).expand(states.shape), reset)
    after = before(a, None, not reverse)
    adjoint = scan(Recurrence(after.conj(), None, None, not reverse), grad.to(wide))
    d_decay = adjoint * without_resets(before(states.to(wide), initial, reverse), reset).conj()
    start = slice(-1, None) if reverse else slice(0, 1)
    d_initial = (a[:, start].conj() * adjoint[:, start]).sum(1)  # a sum gives zeros for length 0
    return d_decay.sum_to_size(decay.shape).to(decay.dtype), adjoint.to(states.dtype), d_initial.to(states.dtype)


def before(states: Tensor, initial: Tensor | None, reverse: bool) -> Tensor:
    """Return the state before every step: ``initial``, followed by all states except the last.

    With ``reverse``, the scan runs backward in time, so the state before step t is the state of step t + 1.
    """
    first = torch.zeros_like(states[:, :1]) if initial is None else initial.to(states.dtype)[:, None]
    parts = (states[:, 1:], first) if reverse else (first, states[:, :-1])
    return torch.cat(parts, 1)[:, : states.shape[1]]
