"""Matrix products W x + b of layers on a CPU, faster than PyTorch's linear function.

PyTorch multiplies float32 matrices with MKL, which uses only half of the vector width on AMD processors. oneDNN, which
PyTorch contains, uses the full width on every x86 processor. Results are written in blocks of rows to reused memory
(:mod:`.cpu.results`), so that large results do not pay for page faults. For few rows, as in the generation of text,
most time is spent on reading the weights, which PyTorch reads slowly: such products run on a kernel of this library
(:mod:`.cpu.product`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm.scan import backends
from stablessm.scan.cpu import results
from stablessm.scan.dispatch import forward_mode, onednn_linear, plain, quick

LEAST_PRODUCTS = 1 << 20
"""Below this number of multiplications, PyTorch's linear function takes less time than calling oneDNN."""
BLOCK_NUMBERS = 1 << 19
"""Numbers in a block of rows, which stays in the cache."""
FEW_ROWS = {torch.float32: 32, torch.float64: 32, torch.bfloat16: 8}
"""Largest number of rows that are multiplied by the kernel for few rows."""
LEAST_WEIGHTS = 1 << 16
"""Below this number of weights, PyTorch's linear function takes less time than the kernel for few rows if the weights
are in the cache, and not much more time if they are not."""


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute W x + b (…, d_output) for inputs x (…, d_input), like ``torch.nn.functional.linear``.

    >>> x, weight = torch.randn(64, 100, 20), torch.randn(30, 20)
    >>> torch.allclose(project(x, weight), x @ weight.mT, atol=1e-4)
    True
    """
    given = (x, weight) if bias is None else (x, weight, bias)
    if not x.is_cpu or not quick(*given) or x.numel() * weight.size(0) < LEAST_WEIGHTS or not _ordinary(*given):
        return F.linear(x, weight, bias)
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    if not differentiated and _few(x, weight) and (kernel := backends.cpu_kernels("product")) is not None:
        return kernel.linear(x, weight, bias)
    if not _large(x, weight):
        return F.linear(x, weight, bias)
    if differentiated:
        y: Tensor = _Projection.apply(x, weight, bias)
        return y
    return _product(x, weight, bias)


def _ordinary(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Return True if all tensors have one dtype and fitting shapes, and are in the memory of the CPU."""
    if x.dim() < 1 or weight.dim() != 2 or weight.size(1) != x.size(-1):
        return False
    if bias is not None and (bias.dim() != 1 or bias.size(0) != weight.size(0)):
        return False
    dtype = x.dtype
    for tensor in (x, weight) if bias is None else (x, weight, bias):
        if tensor.dtype != dtype or not tensor.is_cpu or tensor.layout != torch.strided or tensor.is_neg():
            return False
    return not torch.is_autocast_enabled("cpu") and not forward_mode()


def _few(x: Tensor, weight: Tensor) -> bool:
    """Return True if the kernel for few rows is faster for a product."""
    rows = FEW_ROWS.get(x.dtype, 0)
    return weight.numel() >= LEAST_WEIGHTS and x.numel() <= rows * weight.size(1) and weight.stride(1) == 1


def _large(x: Tensor, weight: Tensor) -> bool:
    """Return True if oneDNN is faster for a product: large, and of float32."""
    if onednn_linear is None or x.dtype != torch.float32 or x.dim() < 2:
        return False
    return x.numel() * len(weight) >= LEAST_PRODUCTS and bool(torch.backends.mkldnn.enabled)


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
