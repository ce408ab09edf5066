"""Hyena's short causal filter and the product of keys and values, computed by one kernel on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm.scan import resolve
from stablessm.scan.dispatch import forward_mode, plain, quick

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
    episode = None if reset is None else F.pad(reset.cumsum(1), (TAPS - 1, 0))
    return of_joined(joined, weight, episode)


def of_joined(joined: Tensor, weight: Tensor, episode: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute q and k ⊙ v like :func:`filtered`, from the array ``joined`` (B, 2 + T, 3 C), in which the tail is
    followed by z.

    ``episode`` (B, 2 + T) is a number for each step, which is the same for all steps of an episode (default: all steps
    are in one episode).
    """
    steps = joined.shape[1] - TAPS + 1
    y = joined[:, TAPS - 1 :] * weight[0]
    for j in range(1, TAPS):
        first = TAPS - 1 - j
        before = joined[:, first : first + steps]
        if episode is not None:
            before = before * (episode[:, first : first + steps] == episode[:, TAPS - 1 :])[..., None]
        y = torch.addcmul(y, before, weight[j])
    q, k, v = y.chunk(3, -1)
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
        again = torch.is_grad_enabled()  # with create_graph, the gradient must be differentiable
        if again or not (plain(d_q) and plain(d_u)):  # or vmap runs it for many gradients
            with torch.enable_grad():
                outputs = plainly(z, tail, weight, reset)
            grads = [d.to(y.dtype) for d, y in zip((d_q, d_u), outputs, strict=True)]
            wanted = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
            inputs = [ctx.saved_tensors[i] for i in wanted]
            found = torch.autograd.grad(outputs, inputs, grads, create_graph=again, allow_unused=True)
            return tuple(dict(zip(wanted, found, strict=True)).get(i) for i in range(4))
        d_z, d_weight = triton_hyena.backward(z, tail, reset, weight, d_q, d_u)
        d_tail = _tail_gradient(z, tail, weight, reset, d_q, d_u) if ctx.needs_input_grad[1] else None
        return d_z, d_tail, d_weight.to(weight.dtype), None


def _tail_gradient(z: Tensor, tail: Tensor, weight: Tensor, reset: Tensor | None, d_q: Tensor, d_u: Tensor) -> Tensor:
    """Compute the gradient of the tail (the two inputs before z) from the gradients d_q of q and d_u of k ⊙ v. The tail
    affects only the outputs of the first two steps.
    """
    few = slice(TAPS - 1)
    with torch.enable_grad():
        own = tail.detach().requires_grad_()
        outputs = plainly(z[:, few].detach(), own, weight.detach(), None if reset is None else reset[:, few])
    grads = [d[:, few].to(y.dtype) for d, y in zip((d_q, d_u), outputs, strict=True)]
    return torch.autograd.grad(outputs, own, grads)[0]
