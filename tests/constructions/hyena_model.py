"""A small Hyena: the model whose long filters the conversion turns into recurrences."""

from __future__ import annotations

import gzip
import math
import os
import random
from pathlib import Path

import torch
from torch import Tensor, nn

from stablessm.scan import causal_convolution

VOCABULARY = 64


class ImplicitFilter(nn.Module):
    """y = k ∗ x + d x for each channel, with k(t) = MLP(position) · (e^(-αt) + shift) as in Hyena."""

    def __init__(self, channels: int, length: int, hidden: int = 32, bands: int = 2, shift: float = 0.0) -> None:
        super().__init__()
        self.length, self.shift = length, shift
        self.frequency = nn.Parameter(torch.full((hidden,), 5.0))
        self.first = nn.Linear(1 + 2 * bands, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, channels, bias=False)
        self.direct = nn.Parameter(torch.randn(channels))
        decay = -math.log(1e-2) / torch.tensor([1.5, 0.3])
        self.register_buffer("decay", torch.linspace(float(decay[0]), float(decay[1]), channels))

    def filters(self, length: int) -> Tensor:
        """(channels, length), with the direct term in the first tap."""
        t = torch.arange(length, dtype=self.direct.dtype)[:, None] / self.length
        bands = torch.arange(1, (self.first.in_features - 1) // 2 + 1)
        angle = 2 * math.pi * t * bands
        hidden = torch.sin(self.frequency * self.first(torch.cat([t, angle.cos(), angle.sin()], 1)))
        taps = self.last(torch.sin(self.frequency * self.second(hidden)))
        taps = taps * (torch.exp(-t * self.decay) + self.shift) * self.length**-0.5
        first = torch.zeros_like(taps)
        first[0] = self.direct
        return (taps + first).T

    def forward(self, x: Tensor) -> Tensor:
        return causal_convolution(x, self.filters(x.shape[1]).T)


class HyenaBlock(nn.Module):
    """Order 2: three projections, a short convolution, gate, long filter, gate; then an MLP."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, groups=3 * width, padding=2)
        self.long = ImplicitFilter(width, length)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        u = self.short(self.project(self.norm(x)).mT)[..., : x.shape[1]].mT
        gate, key, value = u.chunk(3, -1)
        x = x + self.out(gate * self.long(key * value))
        return x + self.mlp(self.norm_mlp(x))


class Hyena(nn.Module):
    """Tokens (B, T) to logits (B, T, vocabulary)."""

    def __init__(self, width: int = 16, layers: int = 2, length: int = 1024) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(*(HyenaBlock(width, length) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def text(characters: int = 20_000) -> Tensor:
    """Token numbers of tinyshakespeare where it is, else of sentences drawn from a small grammar."""
    folder = os.environ.get("STABLESSM_DATA")
    path = Path(folder, "tinyshakespeare.txt.gz") if folder else None
    if path is not None and path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            letters = file.read(characters)
    else:
        draw = random.Random(0)
        who, does = ["the king", "a fool", "my lord", "she"], ["loves", "fears", "forgets", "calls for"]
        sentences = (f"{draw.choice(who)} {draw.choice(does)} {draw.choice(who)}.\n" for _ in range(characters // 10))
        letters = "".join(sentences)[:characters]
    number = {letter: i % VOCABULARY for i, letter in enumerate(sorted(set(letters)))}
    return torch.tensor([number[letter] for letter in letters])


def train(model: Hyena, tokens: Tensor, steps: int, length: int = 128, batch: int = 8) -> float:
    """Adam on next-token prediction; the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    loss = torch.tensor(math.nan)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - length - 1, (batch,), generator=generator)
        piece = tokens[starts[:, None] + torch.arange(length + 1)]
        logits = model(piece[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
