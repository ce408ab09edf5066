"""The reference of the fused layer: a scan for all states, then the readout, differentiable to any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm.scan.linear import linear_scan
from stablessm.scan.padding import last_state, without_padding
from stablessm.scan.protocol import DiagonalSSM


def checkpoint_shape(layer: DiagonalSSM) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of the empty tensor that ``forward`` returns in place of checkpoints."""
    return (0,), layer.x.dtype


def forward(layer: DiagonalSSM) -> tuple[Tensor, Tensor, Tensor]:
    """Return the layer's output, its final state, and an empty tensor in place of checkpoints."""
    return (*by_states(layer, "reference"), layer.x.new_empty(0))


def backward(layer: DiagonalSSM, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None) -> tuple[Tensor, ...]:
    """Compute the gradients with respect to x, decay, B, C, D and initial."""
    return gradients_by_states(layer, d_y, d_final, "reference")


def by_states(layer: DiagonalSSM, backend: str) -> tuple[Tensor, Tensor]:
    """Compute a diagonal layer's output and final state with all states (B, T, H, N) in memory.

    The states are computed by a backend of ``linear_scan``.
    """
    x, decay, B, C, D, initial, reset, lengths = layer
    signal = without_padding(x.to(decay.real.dtype), lengths)
    before = x.new_zeros(x.shape[0], *decay.shape, dtype=decay.dtype) if initial is None else initial
    drive = (signal[..., None] * B).flatten(2)
    states = linear_scan(decay.flatten(), drive, before.flatten(1), reset=reset, backend=backend)
    states = states.unflatten(2, decay.shape)
    y = (states * C).sum(-1)
    y = y.real if y.is_complex() else y
    if D is not None:
        y = y + D * signal
    return without_padding(y, lengths).to(x.dtype), last_state(states, before, lengths)


def gradients_by_states(layer: DiagonalSSM, d_y: Tensor, d_final: Tensor | None, backend: str) -> tuple[Tensor, ...]:
    """Compute the gradients with respect to x, decay, B, C, D and initial by operations that can be differentiated
    again.

    ``d_y`` and ``d_final`` are the gradients of the output and of the final state; ``backend`` computes the scans.
    """
    zero = layer.zero_state()
    D = layer.x.new_zeros(len(layer.decay), dtype=layer.decay.real.dtype) if layer.D is None else layer.D
    initial = zero if layer.initial is None else layer.initial

    def outputs(*tensors: Any) -> tuple[Tensor, Tensor]:
        return by_states(DiagonalSSM._make((*tensors, *layer[6:])), backend)

    pull_back = torch.func.vjp(outputs, *layer[:4], D, initial)[1]
    return pull_back((d_y, zero if d_final is None else d_final))
