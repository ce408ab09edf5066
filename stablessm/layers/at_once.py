"""The decision whether a module computes one step with one Triton kernel or with several PyTorch operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stablessm.scan import resolve
from stablessm.scan.checks import autocast_enabled
from stablessm.scan.dispatch import forward_mode, quick
from stablessm.scan.projection import project

FEW = 4
"""Largest batch size at which the kernels multiply matrices at least as fast as cuBLAS in every dtype."""
PRODUCTS = 2**23
"""Largest number of float32 products in a matrix product, because the kernels compute these without tensor cores."""


def runs_at_once(x_t: Tensor, *parameters: Tensor | None) -> bool:
    """Return True if a Triton kernel can compute a step of a module with these parameters for the input x_t (B, C).

    The kernels compute no gradients, and require contiguous tensors of one dtype on a GPU.
    """
    if torch.is_grad_enabled() or not quick(x_t) or forward_mode() or resolve("auto", x_t.device) != "triton":
        return False
    dtype = x_t.dtype
    if dtype == torch.float64 or not x_t.numel() or autocast_enabled(x_t.device.type) or not x_t.is_contiguous():
        return False
    for tensor in parameters:
        if tensor is not None and (tensor.dtype != dtype or not tensor.is_contiguous()):
            return False
    return not x_t.is_neg()


def multiplies_at_once(x_t: Tensor, *parameters: Tensor | None) -> bool:
    """Return True if a Triton kernel can compute the matrix products of a step, at least as fast as cuBLAS.

    x_t (B, C) is the input of the step, and ``parameters`` are its weights and biases.
    """
    rows = x_t.shape[0]  # len() of a tensor takes longer
    if x_t.dtype == torch.float32 and rows > FEW:
        for tensor in parameters:
            if tensor is not None and rows * tensor.numel() > PRODUCTS:
                return False
    return runs_at_once(x_t, *parameters)


def linear_parameters(*modules: Any) -> list[Tensor] | None:
    """Return the weights and biases of ``nn.Linear`` modules as one list, in the order of the modules.

    Return None if a module has hooks or is not an ``nn.Linear``.
    """
    if any(type(module) is not nn.Linear or _has_hooks(module) for module in modules):
        return None
    return [tensor for module in modules for tensor in (module.weight, module.bias)]


def _has_hooks(module: nn.Module) -> bool:
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


def linear(module: nn.Module, x: Tensor) -> Tensor:
    """Return module(x), computed by :func:`~stablessm.scan.projection.project` for an ``nn.Linear`` without hooks."""
    parameters = linear_parameters(module) if x.is_cpu else None
    return module(x) if parameters is None else project(x, *parameters)
