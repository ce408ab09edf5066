"""The gated recurrence of minGRU and similar layers: one kernel on a CPU, otherwise PyTorch operations and a scan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from stablessm.scan import backends
from stablessm.scan.dispatch import forward_mode, plain, quick
from stablessm.scan.linear import linear_scan
from stablessm.scan.protocol import Gated


def gated_scan(layer: Gated) -> Tensor:
    """Compute all states of h[t] = a[t] h[t-1] + (1 - a[t]) candidate[t] with a[t] = exp(rate softplus(z[t])).

    >>> half = torch.log(torch.ones(1, 3, 1).exp() - 1)
    >>> gated_scan(Gated(half, torch.ones(1, 3, 1), torch.tensor([-0.6931472]), None, None, False)).flatten().tolist()
    [0.5, 0.75, 0.875]
    """
    if not _fused(layer):
        return _by_scan(layer)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in layer[:4]):
        states: Tensor = _Fused.apply(*layer)
        return states
    return _cpu().forward(layer)


def gates(z: Tensor, rate: Tensor, below_one: bool) -> Tensor:
    """Compute a - 1 for the decay a = exp(rate softplus(z)); with ``below_one``, a stays below 1 after rounding."""
    change = torch.expm1(rate * softplus(z, threshold=50.0))
    return change.clamp(max=-torch.finfo(change.dtype).eps / 2) if below_one else change


def _by_scan(layer: Gated) -> Tensor:
    change = gates(layer.z, layer.rate, layer.below_one)
    return linear_scan(1 + change, -change * layer.candidate, layer.initial, reset=layer.reset)


def _fused(layer: Gated) -> bool:
    """Return True if the CPU kernels can compute a layer: plain tensors, and no forward-mode derivatives."""
    if layer.rate.dim() != 1 or not layer.z.numel() or not quick(layer.z) or forward_mode():
        return False
    return backends.resolve("auto", layer.z.device) == "cpu" and _cpu().supports(layer)


def _cpu() -> Any:
    from stablessm.scan.cpu import gated

    return gated


class _Fused(torch.autograd.Function):
    """The autograd function of the gated scan's CPU kernels, for plain tensors and reverse mode."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        *tensors, ctx.below_one = args
        states: Tensor = _cpu().forward(Gated(*args))
        ctx.save_for_backward(*tensors, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, states = ctx.saved_tensors
        layer = Gated._make((*tensors, ctx.below_one))
        if torch.is_grad_enabled() or not plain(grad):  # the gradient itself will be differentiated
            given = [tensor for tensor in layer[:4] if tensor is not None]

            def run(*parts: Tensor) -> Tensor:
                return _by_scan(Gated._make((*parts, *layer[len(parts) :])))

            found = torch.func.vjp(run, *given)[1](grad)
        else:
            found = _cpu().backward(layer, states, grad)
        return (*found[:3], found[3] if layer.initial is not None else None, None, None)
