"""The activations of the papers, by name, with their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from stablessm._errors import ArgumentError


class Activation(NamedTuple):
    """σ and σ', elementwise."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


ACTIVATIONS = {
    "linear": Activation(lambda z: z, torch.ones_like),
    "hardtanh": Activation(torch.nn.functional.hardtanh, lambda z: (z.abs() < 1).to(z.dtype)),
    "tanh": Activation(torch.tanh, lambda z: 1 - torch.tanh(z) ** 2),
    "sigmoid": Activation(torch.sigmoid, lambda z: torch.sigmoid(z) * torch.sigmoid(-z)),
    "relu": Activation(torch.relu, lambda z: (z > 0).to(z.dtype)),
}
"""Every activation, by name."""


def get(name: str) -> Activation:
    """The activation called ``name``.

    >>> get("hardtanh").value(torch.tensor([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    if name not in ACTIVATIONS:
        raise ArgumentError("activation", f"one of {', '.join(map(repr, ACTIVATIONS))}", repr(name))
    return ACTIVATIONS[name]
