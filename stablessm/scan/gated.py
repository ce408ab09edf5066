"""Gated recurrences: on a CPU, one kernel computes gates and states; otherwise PyTorch computes the gates and a scan
computes the states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stablessm.scan import backends
from stablessm.scan.dispatch import forward_mode, plain, quick
from stablessm.scan.linear import linear_scan
from stablessm.scan.plain_gradients import plain_gradients
from stablessm.scan.protocol import Gated


def softplus(z: Tensor) -> Tensor:
    """Compute log(1 + e^z), accurately in float64 too."""
    return functional.softplus(z, threshold=50.0)


def below_zero(change: Tensor) -> Tensor:
    """Return ``change``, clamped such that 1 + change is below 1 even after rounding.

    >>> (1 + below_zero(torch.zeros(1))).item() < 1
    True
    """
    return change.clamp(max=-torch.finfo(change.dtype).eps / 2)


def gated_scan(layer: Gated) -> Tensor:
    """Compute all states (B, T, C) of a gated recurrence, such as a minGRU.

    >>> half = torch.log(torch.ones(1, 3, 1).exp() - 1)
    >>> gates = torch.cat([half, torch.ones(1, 3, 1)], -1)
    >>> rate = torch.tensor([-0.6931472])
    >>> gated_scan(Gated("min-gru", gates, rate, None, None, None, False)).flatten().tolist()
    [0.5, 0.75, 0.875]
    """
    if not _fused(layer):
        return _by_scan(layer)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in layer[1:5]):
        states: Tensor = _Fused.apply(*layer)
        return states
    return backends.cpu_kernels("gated").forward(layer)


def decay_and_drive(
    form: str, gates: Tensor, rate: Tensor, x: Tensor | None, below_one: bool, dt: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the decay a and the drive u of h[t] = a[t] h[t-1] + u[t] from gate inputs (…, k C) and rates (C,).

    =============  =====================================  ==============================
    form           a                                      u
    =============  =====================================  ==============================
    ``min-gru``    exp(rate softplus(z))                  (1 - a) c
    ``min-lstm``   the same, z = softplus(-f) - softplus(-i)  (1 - a) c
    ``hgrn``       1 + rate sigmoid(-z)                   (1 - a) silu(c)
    ``rg-lru``     exp(rate sigmoid(z))                   √(1 - a²) sigmoid(i) x
    =============  =====================================  ==============================

    The k gate inputs are, in order: z, c (``min-gru``); f, i, c (``min-lstm``); z, c (``hgrn``); z, i (``rg-lru``).
    The decay of a step of length ``dt`` is a^dt. With ``below_one``, a stays below 1 where it would be rounded to 1.
    """
    if form == "hgrn":
        z, candidate = gates.chunk(2, -1)
        change = rate * torch.sigmoid(-z)
        if dt is not None:
            change = torch.expm1(dt * torch.log1p(change.clamp(min=torch.finfo(change.dtype).eps - 1)))
        return _decayed(change, functional.silu(candidate), below_one, dt)
    rate = rate if dt is None else rate * dt
    if form == "rg-lru":
        assert x is not None
        z, i = gates.chunk(2, -1)
        exponent = rate * torch.sigmoid(z)
        gain = (-torch.expm1(2 * exponent)).clamp(min=torch.finfo(exponent.dtype).tiny).sqrt()
        return _decayed(torch.expm1(exponent), None, below_one, dt)[0], gain * torch.sigmoid(i) * x
    *parts, candidate = gates.chunk(2 if form == "min-gru" else 3, -1)
    z = parts[0] if form == "min-gru" else softplus(-parts[0]) - softplus(-parts[1])
    return _decayed(torch.expm1(rate * softplus(z)), candidate, below_one, dt)


def _decayed(change: Tensor, candidate: Tensor | None, below_one: bool, dt: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the decay a = 1 + change and the drive (1 - a) · candidate; without a candidate, the drive is 1 - a.

    With ``below_one``, rounding cannot make a equal to 1 where the time step ``dt`` is positive.
    """
    if below_one:
        limited = below_zero(change)
        change = limited if dt is None else torch.where(dt > 0, limited, change)
    return 1 + change, -change if candidate is None else -change * candidate


def _by_scan(layer: Gated) -> Tensor:
    form, gates, rate, x, initial, reset, below_one = layer
    return linear_scan(*decay_and_drive(form, gates, rate, x, below_one), initial, reset=reset)


def _fused(layer: Gated) -> bool:
    """Return True if the CPU kernels can compute a layer: plain tensors, and no forward-mode derivatives."""
    if not layer.gates.numel() or not quick(layer.gates) or forward_mode():
        return False
    kernels = backends.cpu_kernels("gated") if layer.gates.is_cpu else None
    return kernels is not None and kernels.supports(layer)


class _Fused(torch.autograd.Function):
    """The autograd function of the gated scan's CPU kernels; supports only plain tensors and reverse mode."""

    @staticmethod
    def forward(ctx: Any, form: str, *args: Any) -> Tensor:
        *tensors, ctx.below_one = args
        ctx.form = form
        states: Tensor = backends.cpu_kernels("gated").forward(Gated(form, *args))
        ctx.save_for_backward(*tensors, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, states = ctx.saved_tensors
        layer = Gated._make((ctx.form, *tensors, ctx.below_one))
        if torch.is_grad_enabled() or not plain(grad):  # the gradient itself is differentiated

            def again(*parts: Tensor) -> tuple[Tensor]:
                return (_by_scan(Gated._make((layer.form, *parts, *layer[5:]))),)

            ours = plain_gradients(again, layer[1:5], ctx.needs_input_grad[1:5], (grad,))
        else:
            ours = backends.cpu_kernels("gated").backward(layer, states, grad)
        return None, *ours, None, None
