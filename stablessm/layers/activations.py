"""The activation functions that the papers use, by name, with their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from stablessm._arguments import one_of
from stablessm._errors import ArgumentError, quoted


class Activation(NamedTuple):
    """An activation function σ and its derivative σ', both elementwise."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


# Named functions, because a layer with a lambda as attribute cannot be pickled.
def _linear(z: Tensor) -> Tensor:
    return z


def _hardtanh_slope(z: Tensor) -> Tensor:
    return (z.abs() < 1).to(z.dtype)


def _tanh_slope(z: Tensor) -> Tensor:
    return 1 - torch.tanh(z) ** 2


def _sigmoid_slope(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * torch.sigmoid(-z)


def _relu_slope(z: Tensor) -> Tensor:
    return (z > 0).to(z.dtype)


ACTIVATIONS = {
    "linear": Activation(_linear, torch.ones_like),
    "hardtanh": Activation(torch.nn.functional.hardtanh, _hardtanh_slope),
    "tanh": Activation(torch.tanh, _tanh_slope),
    "sigmoid": Activation(torch.sigmoid, _sigmoid_slope),
    "relu": Activation(torch.relu, _relu_slope),
}
"""Every activation, by name."""


def require_linear(activation: str) -> None:
    """Raise an ArgumentError unless a layer with this activation has a kernel."""
    if activation != "linear":
        raise ArgumentError("activation", "'linear', since only a linear layer has a kernel", quoted(activation))


def get(name: str) -> Activation:
    """Return the activation function with a given name, and its derivative.

    >>> get("hardtanh").value(torch.tensor([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    return ACTIVATIONS[one_of("activation", name, ACTIVATIONS)]
