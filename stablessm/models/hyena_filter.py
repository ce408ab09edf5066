"""Hyena's short causal filter and the product of keys and values, computed by one kernel on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm.scan import resolve
from stablessm.scan.dispatch import forward_mode, plain, quick
from stablessm.scan.plain_gradients import plain_gradients
from stablessm.scan.short_convolution import tap_sum

TAPS = 3
"""Length of the filter: the present step and the two steps before it."""


def filtered(z: Tensor, tail: Tensor | None, weight: Tensor, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute q and k ⊙ v for the filter (q, k, v)[t] = Σ_j weight_j z[t - j], j = 0, 1, 2, which reads only steps of
    the same episode.

    Args:
        z: (B, T, 3 C) the inputs of the filter: C channels for q, for k and for v.
        tail: (B, 2, 3 C) the two steps before z (default: zeros).
        weight: (3, 3 C) the filter: the weights of the present step and of the two steps before it.
        reset: (B, T) bool: True at the first step of an episode.

    >>> one = torch.ones(1, 4, 3)
    >>> q, kv = filtered(one, None, torch.ones(3, 3))
    >>> q.flatten().tolist(), kv.flatten().tolist()
    ([1.0, 2.0, 3.0, 3.0], [1.0, 4.0, 9.0, 9.0])
    """
    if resolve("auto", z.device) == "triton" and z.numel() and quick(z) and not forward_mode():
        q, u = _Filtered.apply(z.contiguous(), tail, weight, reset)
        return q, u
    return plainly(z, tail, weight, reset)


def plainly(z: Tensor, tail: Tensor | None, weight: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the result of :func:`filtered` by PyTorch operations, which are differentiable to any order."""
    joined = F.pad(z, (0, 0, TAPS - 1, 0)) if tail is None else torch.cat([tail.to(z.dtype), z], 1)
    return of_joined(joined, weight, reset)


def of_joined(joined: Tensor, weight: Tensor, reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute q and k ⊙ v like :func:`filtered`, from the array ``joined`` (B, 2 + T, 3 C), in which the tail is
    followed by z.
    """
    q, k, v = tap_sum(joined, weight, reset).chunk(3, -1)
    return q, k * v


class _Filtered(torch.autograd.Function):
    """The autograd function of the GPU kernels that compute :func:`filtered`."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, tail: Tensor | None, weight: Tensor, reset: Tensor | None) -> Any:
        from stablessm.models import triton_hyena

        ctx.save_for_backward(z, tail, weight, reset)
        return triton_hyena.forward(z, tail, reset, weight)

    @staticmethod
    def backward(ctx: Any, d_q: Tensor, d_u: Tensor) -> tuple[Tensor | None, ...]:
        from stablessm.models import triton_hyena

        z, tail, weight, reset = ctx.saved_tensors
        if torch.is_grad_enabled() or not (plain(d_q) and plain(d_u)):  # with create_graph, or under vmap
            return plain_gradients(plainly, ctx.saved_tensors, ctx.needs_input_grad, (d_q, d_u))
        d_z, d_weight = triton_hyena.backward(z, tail, reset, weight, d_q, d_u)
        d_tail = None
        if ctx.needs_input_grad[1]:  # the tail affects only the outputs of the first two steps
            few = slice(TAPS - 1)
            inputs = z[:, few], tail, weight, None if reset is None else reset[:, few]
            d_tail = plain_gradients(plainly, inputs, (False, True, False, False), (d_q[:, few], d_u[:, few]))[1]
        return d_z, d_tail, d_weight.to(weight.dtype), None
