"""Normalisation over the channels of (B, T, C), without a transpose; padding counts for nothing."""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Norm: TypeAlias = Literal["layer", "batch", "none"]


@final
class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of (B, T, C) or (B, C), a mean and deviation a channel over every real step.

    >>> norm = BatchNorm(3)
    >>> norm(torch.randn(4, 10, 3), torch.arange(10) < torch.tensor([[10], [7], [1], [0]])).shape
    torch.Size([4, 10, 3])
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalised; ``real`` (B, T) says which steps the statistics of training are taken over."""
        if real is None or not self.training:
            return super().forward(x.reshape(-1, x.shape[-1])).view(x.shape)
        normal = torch.zeros_like(x)
        normal[real] = super().forward(x[real]).to(normal.dtype)
        return normal


@final
class LayerNorm(nn.LayerNorm):
    """Every step of (B, T, C) by itself, so that it does not matter which steps are real."""

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalised."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


@final
class NoNorm(nn.Module):
    """x as it is."""

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """The argument itself."""
        return x


def norm_of(name: Norm, channels: int) -> nn.Module:
    """A module called as ``norm(x, real)``."""
    if name == "layer":
        return LayerNorm(channels)
    return BatchNorm(channels) if name == "batch" else NoNorm()
