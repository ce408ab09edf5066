"""The selective layer computed with all its states (B, T, H, N) in memory, for any backend of ``linear_scan``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm.scan.gated import below_zero
from stablessm.scan.linear import linear_scan
from stablessm.scan.padding import last_state, without_padding
from stablessm.scan.protocol import Selective


def by_states(layer: Selective, backend: str) -> tuple[Tensor, Tensor]:
    """Compute a selective layer's output and final state with all states (B, T, H, N) in memory.

    The states are computed by a backend of ``linear_scan``.
    """
    x, delta, A, B, C, initial, reset, lengths, below_one = layer
    exponent = delta[..., None] * A
    if below_one:  # the limit changes the value but not the gradient
        exponent = exponent + (below_zero(exponent) - exponent).detach()
    decay = torch.exp(exponent)
    drive = (delta * x)[..., None] * B[:, :, None]
    before = layer.zero_state() if initial is None else initial
    states = linear_scan(decay.flatten(2), drive.flatten(2), before.flatten(1), reset=reset, backend=backend)
    states = states.unflatten(2, A.shape)
    y = (states * C[:, :, None]).sum(-1)
    return without_padding(y, lengths), last_state(states, before, lengths)


def gradients_by_states(layer: Selective, d_y: Tensor, d_final: Tensor | None, backend: str) -> tuple[Tensor, ...]:
    """Compute the gradients with respect to x, delta, A, B, C and initial by operations that can be differentiated
    again.

    ``d_y`` and ``d_final`` are the gradients of the output and of the final state; ``backend`` computes the scans.
    """
    zero = layer.zero_state()
    initial = zero if layer.initial is None else layer.initial

    def outputs(*tensors: Any) -> tuple[Tensor, Tensor]:
        return by_states(Selective._make((*tensors, *layer[6:])), backend)

    pull_back = torch.func.vjp(outputs, *layer[:5], initial)[1]
    return pull_back((d_y, zero if d_final is None else d_final))
