"""Normalization layers for arrays (B, T, C), in which padded steps do not affect real steps."""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Norm: TypeAlias = Literal["layer", "batch", "none"]


@final
class BatchNorm(nn.BatchNorm1d):
    """Batch normalization of (B, T, C) or (B, C), with one mean and deviation per channel over all real steps.

    >>> norm = BatchNorm(3)
    >>> norm(torch.randn(4, 10, 3), torch.arange(10) < torch.tensor([[10], [7], [1], [0]])).shape
    torch.Size([4, 10, 3])
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalize x (B, T, C). In training, the mean and variance are computed over the steps for which ``real`` (B,
        T) is True (default: all steps); in evaluation, the running mean and variance are used.
        """
        if real is None or not self.training:
            return super().forward(x.reshape(-1, x.shape[-1])).view(x.shape)
        normal = torch.zeros_like(x)
        normal[real] = super().forward(x[real]).to(normal.dtype)
        return normal


@final
class LayerNorm(nn.LayerNorm):
    """Layer normalization over the channels of each step of (B, T, C). Each step is normalized separately, so padded
    steps do not affect real steps.
    """

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Normalize every step of x (B, T, C) over its channels; ``real`` is ignored."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


@final
class NoNorm(nn.Module):
    """A module without effect, used where a block has no normalization."""

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Return x unchanged."""
        return x


def norm_of(name: Norm, channels: int) -> nn.Module:
    """Return the normalization with a given name: a module ``norm`` that is called as ``norm(x, real)``, where ``real``
    (B, T) is True at the steps that are not padding.
    """
    if name == "layer":
        return LayerNorm(channels)
    return BatchNorm(channels) if name == "batch" else NoNorm()
