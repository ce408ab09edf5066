"""Matrix products W x + b of layers, computed by oneDNN on x86 processors and otherwise by PyTorch's linear function.

PyTorch multiplies float32 matrices with MKL, which uses only half of the vector width on AMD processors. oneDNN, which
PyTorch contains, uses the full width on every x86 processor. Results are written in blocks of rows to reused memory
(:mod:`.cpu.results`), so that large results do not pay for page faults.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm.scan.cpu import results
from stablessm.scan.dispatch import forward_mode, onednn_linear, plain, quick

LEAST_PRODUCTS = 1 << 20
"""Below this number of multiplications, PyTorch's linear function takes less time than calling oneDNN."""
BLOCK_NUMBERS = 1 << 19
"""Numbers in a block of rows, which stays in the cache."""


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute W x + b (…, d_output) for inputs x (…, d_input), like ``torch.nn.functional.linear``.

    >>> x, weight = torch.randn(64, 100, 20), torch.randn(30, 20)
    >>> torch.allclose(project(x, weight), x @ weight.mT, atol=1e-4)
    True
    """
    if not _fast(x, weight, bias):
        return F.linear(x, weight, bias)
    given = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        y: Tensor = _Projection.apply(x, weight, bias)
        return y
    return _product(x, weight, bias)


def _fast(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return True if oneDNN is faster for this product: a large product of plain float32 tensors on a CPU."""
    if onednn_linear is None or x.dtype != torch.float32 or x.device.type != "cpu" or not quick(x):
        return False
    if x.dim() < 2 or x.numel() * len(weight) < LEAST_PRODUCTS:
        return False
    if any(tensor is not None and (tensor.dtype != x.dtype or not plain(tensor)) for tensor in (weight, bias)):
        return False
    return bool(torch.backends.mkldnn.enabled) and not torch.is_autocast_enabled("cpu") and not forward_mode()


class _Projection(torch.autograd.Function):
    """The autograd function of :func:`project`; supports only plain tensors and reverse mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows, wide = _rows(x), _rows(grad)
        d_bias = wide.sum(0) if of_bias else None
        if torch.is_grad_enabled() or not plain(grad):  # the gradient itself is differentiated
            return grad @ weight, wide.mT @ rows, d_bias
        d_x = _product(wide, weight.mT, None).view(x.shape) if of_x else None
        return d_x, _outer(wide, rows) if of_weight else None, d_bias


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y, rows = results.empty((*x.shape[:-1], len(weight)), x.dtype), _rows(x)
    weight = weight if weight.is_contiguous() or weight.mT.is_contiguous() else weight.contiguous()
    size = max(1, BLOCK_NUMBERS // max(weight.shape))
    if len(rows) <= size:
        return _linear(rows, weight, bias).view(y.shape)
    for source, target in zip(rows.split(size), y.flatten(0, -2).split(size), strict=True):
        target.copy_(_linear(source, weight, bias))
    return y


def _outer(grad: Tensor, x: Tensor) -> Tensor:
    """Compute Σ_t grad[t] x[t]ᵀ, (d_output, d_input), which is the gradient of W."""
    size = max(1, BLOCK_NUMBERS // max(grad.shape[1], x.shape[1]))
    total = x.new_zeros(x.shape[1], grad.shape[1])
    for some, others in zip(x.split(size), grad.split(size), strict=True):
        total += _linear(some.mT, others.mT, None)
    return total.mT


def _rows(x: Tensor) -> Tensor:
    """Return x as a matrix whose rows do not overlap in memory, copied if necessary: oneDNN is slow for overlapping
    rows.
    """
    rows = x.flatten(0, -2)
    return rows if rows.stride(1) == 1 and rows.stride(0) >= rows.shape[1] else rows.contiguous()


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    assert onednn_linear is not None
    return onednn_linear(x, weight, bias, "none", [], "")
