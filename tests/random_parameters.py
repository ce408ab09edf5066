"""Models without a parameter that is zero or one: a wrong sign, a dropped term or a forgotten factor then shows."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def randomized(model: Module) -> Module:
    """Give every parameter and buffer that starts as a constant (biases, D, norms, statistics) random values.

    A constant keeps its sign, so that a variance stays positive and an eigenvalue stable.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
            noise = 0.3 * torch.randn_like(tensor)
            tensor.copy_(torch.where(tensor == 0, noise, tensor * noise.exp()))
    return model
