"""The reference of the selective layer: a scan for all states, then the readout, differentiable to any order."""

from __future__ import annotations

from torch import Tensor

from stablessm.scan.protocol import Selective
from stablessm.scan.selective_states import by_states, gradients_by_states


def forward(layer: Selective) -> tuple[Tensor, Tensor, Tensor]:
    """Return the layer's output, its final state, and an empty tensor in place of checkpoints."""
    return (*by_states(layer, "reference"), layer.x.new_empty(0))


def backward(layer: Selective, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None) -> tuple[Tensor, ...]:
    """Compute the gradients with respect to x, delta, A, B, C and initial."""
    return gradients_by_states(layer, d_y, d_final, "reference")
