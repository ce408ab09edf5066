"""Networks that are compared by ``ext-approximation``. Their mixers are attention, gated recurrences or linear
recurrences, and they have at most a given number of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm.models import Block
from stablessm.models.mixers import mixer_of

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention",), "gated": ("GRU", "HGRN", "selective"), "linear": ("LRU", "S4D"),
}  # fmt: skip
"""The mixers of each family."""
MIXERS = tuple(name for names in FAMILIES.values() for name in names)
HEADS, LAYERS, STATES = 4, 2, 16


@final
class Attention(nn.Module):
    """Causal softmax attention with four heads and rotary positions. Like a layer of this package, ``forward`` takes
    and returns a state; attention ignores this state.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.joined, self.output = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, state: None = None, **_: Any) -> tuple[Tensor, None]:
        """Apply attention to x (B, T, d_model); return outputs of the same shape, and ``state`` unchanged."""
        rows = self.joined(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotated(rows[:2])
        y = F.scaled_dot_product_attention(q, k, rows[2], is_causal=True)
        return self.output(y.transpose(1, 2).flatten(2)), state


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of channels of x (…, T, D) by angles that are proportional to the position (rotary position
    embedding). Every pair has its own angle per position.

    >>> x = torch.randn(1, 6, 4).expand(6, 6, 4)[:, :1].transpose(0, 1)  # one vector at six positions
    >>> gram = rotated(x)[0] @ rotated(x)[0].T
    >>> bool((gram.diagonal(1) - gram[0, 1]).abs().max() < 1e-5)         # depends on the difference of positions
    True
    """
    half = x.shape[-1] // 2
    rates = 1000.0 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angles = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)[:, None] * rates
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


@final
class Gated(nn.Module):
    """The GRU of PyTorch, which always starts from a zero state. Like a layer of this package, ``forward`` takes and
    returns a state; the GRU ignores this state.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.GRU(d_model, d_model, batch_first=True)

    def forward(self, x: Tensor, state: None = None, **_: Any) -> tuple[Tensor, None]:
        """Apply the GRU to x (B, T, d_model); return outputs of the same shape, and ``state`` unchanged."""
        return self.inner(x)[0], state


@final
class Network(nn.Module):
    """A network that maps (B, T, 1) to (B, T, 1). It consists of a linear encoder, two blocks and a linear readout. A
    block applies normalization, the mixer, GELU and a gate, and adds the result to its input.
    """

    def __init__(self, mixer: str, d_model: int, length: int) -> None:
        super().__init__()
        self.encoder, self.readout = nn.Linear(1, d_model), nn.Linear(d_model, 1)
        self.blocks = nn.ModuleList(Block(d_model, _mixer(mixer, d_model, length)) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs (B, T, 1) to outputs (B, T, 1)."""
        x = self.encoder(x)
        for block in self.blocks:
            x = block(x)[0]
        return self.readout(x)


def _mixer(name: str, d_model: int, length: int) -> nn.Module:
    if name in ("attention", "GRU"):
        return Attention(d_model) if name == "attention" else Gated(d_model)
    return mixer_of(name.lower(), d_model, STATES, timescales=(2.0, float(length)))


def network(mixer: str, budget: int, length: int, seed: int) -> Network:
    """Return an untrained network with this mixer and the largest width that needs at most ``budget`` parameters. The
    width is a multiple of 2 (with attention, of 8). The initial time scales of recurrences, except for the
    GRU, are from 2 to ``length`` steps.

    >>> net = network("attention", 4000, 64, 0)
    >>> parameters(net), net(torch.randn(2, 5, 1)).shape
    (3377, torch.Size([2, 5, 1]))
    """
    step = 2 * HEADS if mixer == "attention" else 2
    with torch.random.fork_rng(devices=[]):
        width = step
        while parameters(Network(mixer, width + step, length)) <= budget:
            width += step
        torch.manual_seed(seed)
        return Network(mixer, width, length)


def parameters(model: nn.Module) -> int:
    """Return the number of parameters of a network."""
    return sum(p.numel() for p in model.parameters())
