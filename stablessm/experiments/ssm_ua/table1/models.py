"""The models of ``su-table1``: a causal convolution, a causal attention block, and the four architectures that are
compared, all of the same size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm.experiments.frame.memories import Chain
from stablessm.layers import RealSSM

NAMES = ("RNN", "SSM", "TCN", "transformer")


@dataclass(frozen=True)
class Shape:
    """The common size of the architectures: number of layers L, width m, kernel size K, and number of heads."""

    layers: int = 4
    width: int = 16
    kernel: int = 4
    heads: int = 2


@final
class CausalConvolution(nn.Conv1d):
    """A causal convolution. Inputs and outputs have the shape (batch, time, channel)."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the convolution, padded with zeros on the left."""
        return super().forward(F.pad(x.mT, (self.dilation[0] * (self.kernel_size[0] - 1), 0))).mT


@final
class Block(nn.Module):
    """A pre-norm transformer block with causal attention. It is written with plain matrix products, so that PyTorch can
    count its operations.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to x (batch, time, width); return outputs of the same shape."""
        steps = x.shape[1]
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        score = q @ k.mT * q.shape[-1] ** -0.5
        future = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
        mixed = score.masked_fill(future, -torch.inf).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norms[1](x))


def core(name: str, shape: Shape) -> Chain:
    """Return the layers of an architecture, which map (batch, time, width) to the same shape."""
    m, depths = shape.width, range(shape.layers)
    if name == "RNN":
        return Chain(nn.RNN(m, m, shape.layers, batch_first=True))
    if name == "transformer":
        return Chain(*[Block(m, shape.heads) for _ in depths])
    if name == "SSM":
        layers: list[nn.Module] = [RealSSM(m, m, m, mode="scan") for _ in depths]
    else:
        layers = [CausalConvolution(m, m, shape.kernel, dilation=shape.kernel**depth) for depth in depths]
    return Chain(*[module for layer in layers for module in (layer, nn.Tanh())])


def receiver(name: str, shape: Shape) -> Chain:
    """Return a model that consists of a linear map from one input channel to the width, followed by the layers of an
    architecture.
    """
    return Chain(nn.Linear(1, shape.width), *core(name, shape))


def linear_tcn(shape: Shape, channels: int) -> Chain:
    """Return a temporal convolutional network (TCN) without activations. It has one input, one output, and ``channels``
    channels in between.
    """
    layers = [
        CausalConvolution(channels, channels, shape.kernel, dilation=shape.kernel**depth, bias=False)
        for depth in range(shape.layers)
    ]
    return Chain(nn.Linear(1, channels, bias=False), *layers, nn.Linear(channels, 1, bias=False))


def kept(name: str, shape: Shape, steps: int) -> int:
    """Return the number of values that an architecture must store to continue a sequence after this number of steps."""
    if name == "TCN":
        span = [(shape.kernel - 1) * shape.kernel**depth for depth in range(shape.layers)]
        return shape.width * sum(min(each, steps) for each in span)
    return shape.layers * shape.width * (2 * steps if name == "transformer" else 1)


def formula(name: str, shape: Shape) -> int:
    """Return the number of weights according to the formula of the published table, for inputs, states and outputs of
    width m.
    """
    m = shape.width
    return shape.layers * {"TCN": shape.kernel * m * m, "transformer": 3 * m * m}.get(name, m * (m + m + m))
