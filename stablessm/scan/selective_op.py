"""The selective layer with derivatives: a backend's kernels, or all states in memory for transforms and compilation.

Arguments have the form of :class:`stablessm.scan.protocol.Selective`, followed by the name of the backend.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm.scan import backends
from stablessm.scan.dispatch import forward_mode, plain, quick
from stablessm.scan.protocol import Selective
from stablessm.scan.selective_states import by_states, gradients_by_states


class _Eager(torch.autograd.Function):
    """The autograd function that calls a backend's kernels; supports only plain tensors and reverse mode."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        *tensors, ctx.below_one, ctx.backend = args
        layer = Selective._make((*tensors, ctx.below_one))
        y, final, checkpoints = backends.load(ctx.backend).selective.forward(layer)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, checkpoints)
        return y, final

    @staticmethod
    def backward(ctx: Any, d_y: Tensor | None, d_final: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, checkpoints = ctx.saved_tensors
        layer = Selective._make((*tensors, ctx.below_one))
        d_y = torch.zeros_like(layer.x) if d_y is None else d_y
        found: tuple[Tensor | None, ...]
        if torch.is_grad_enabled() or not (plain(d_y) and (d_final is None or plain(d_final))):
            found = gradients_by_states(layer, d_y, d_final, ctx.backend)  # these gradients can be differentiated again
        else:
            found = backends.load(ctx.backend).selective.backward(layer, checkpoints, d_y, d_final)
        *rest, d_initial = found
        return *rest, None if layer.initial is None else d_initial, None, None, None, None


def selective(layer: Selective, backend: str) -> tuple[Tensor, Tensor]:
    """Compute the output and final state of a layer by the kernels of a backend.

    Inside ``torch.compile``, ``torch.func`` transforms and forward-mode differentiation, a scan computes all states in
    memory instead.
    """
    if not quick(layer.x) or forward_mode():
        return by_states(layer, backend)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in layer[:6]):
        return _Eager.apply(*layer, backend)
    return backends.load(backend).selective.forward(layer)[:2]
