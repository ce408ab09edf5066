"""The operators of the Triton backend, which compile all their kernels in parallel at the first call."""

from __future__ import annotations

from functools import partial
from typing import final

from torch import Tensor

from stablessm.scan.protocol import DiagonalSSM, Recurrence
from stablessm.scan.triton import ahead, linear, ssm


@final
class Linear:
    """The linear scan of the Triton backend, which :mod:`.linear` computes."""

    backward = staticmethod(linear.backward)

    @staticmethod
    def forward(recurrence: Recurrence, drive: Tensor) -> Tensor:
        """Compute all states (B, T, C) of the recurrence h[t] = decay[t] h[t-1] + drive[t]."""
        ahead.running(partial(_scan, recurrence, drive))
        states = linear.forward(recurrence, drive)
        ahead.running(None)
        return states


@final
class SSM:
    """The fused layer of the Triton backend, which :mod:`.ssm` computes."""

    backward, checkpoint_shape = staticmethod(ssm.backward), staticmethod(ssm.checkpoint_shape)

    @staticmethod
    def forward(layer: DiagonalSSM) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the layer's output, final state and checkpoints."""
        ahead.running(partial(_layer, layer))
        found = ssm.forward(layer)
        ahead.running(None)
        return found


def _scan(given: Recurrence, drive: Tensor) -> None:
    recurrence = Recurrence(*map(ahead.meta, given))
    states = linear.forward(recurrence, ahead.meta(drive))
    if drive.requires_grad or given.decay.requires_grad:
        linear.backward(recurrence, states, states)


def _layer(given: DiagonalSSM) -> None:
    layer = DiagonalSSM(*map(ahead.meta, given))
    y, _, checkpoints = ssm.forward(layer)
    if given.x.requires_grad or given.decay.requires_grad:
        ssm.backward(layer, checkpoints, y, None)
