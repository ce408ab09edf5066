"""A model that applies layers in sequence, and a function that builds two layers that use only the current input."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError
from stablessm._typing import Sequence, State
from stablessm.layers import RealSSM
from stablessm.layers.base import SequenceLayer

States: TypeAlias = tuple[State, ...]


@final
class LayerStack(nn.Module):
    """A model that applies several layers in sequence; its state is a tuple with one entry per layer.

    >>> from stablessm.layers import LRU
    >>> model = LayerStack(LRU(1, 4, 3), LRU(3, 4, 2))
    >>> y, state = model(torch.randn(8, 20, 1))
    >>> y_t, state = model.step(torch.randn(8, 1), state)
    >>> y.shape, y_t.shape, len(state)
    (torch.Size([8, 20, 2]), torch.Size([8, 2]), 2)
    """

    def __init__(self, *layers: SequenceLayer) -> None:
        super().__init__()
        for before, after in pairwise(layers):
            if before.d_output != after.d_input:
                raise ArgumentError("layers", f"d_input {before.d_output} (d_output before it)", after.d_input)
        self.layers = nn.ModuleList(layers)
        self.d_input, self.d_output = layers[0].d_input, layers[-1].d_output

    def __iter__(self) -> Iterator[SequenceLayer]:
        return (cast(SequenceLayer, layer) for layer in self.layers)

    def initial_state(self, batch: int) -> States:
        """Return the zero states of all layers for a batch."""
        return tuple(layer.initial_state(batch) for layer in self)

    def forward(self, x: Sequence, state: States | None = None) -> tuple[Sequence, States]:
        """Apply all layers to a sequence (B, T, d_input); return outputs (B, T, d_output) and the final states."""
        after, y = [], self._cast(x)
        for layer, before in zip(self, self._before(state), strict=True):
            y, last = layer(y, before)
            after.append(last)
        return y.to(x.dtype), tuple(after)

    def step(self, x_t: Tensor, state: States | None = None) -> tuple[Tensor, States]:
        """Advance by one step: map an input (B, d_input) to the output (B, d_output), and return the new states."""
        after, y_t = [], self._cast(x_t)
        for layer, before in zip(self, self._before(state), strict=True):
            y_t, last = layer.step(y_t, before)
            after.append(last)
        return y_t.to(x_t.dtype), tuple(after)

    def _cast(self, x: Tensor) -> Tensor:
        """Convert the input to the dtype of the parameters; raise an ArgumentError for an input that is not floating
        point.
        """
        if not x.is_floating_point():
            raise ArgumentError("x", "real floating point numbers", x.dtype)
        return x.to(next(self.parameters()).dtype)

    def _before(self, state: States | None) -> tuple[State | None, ...]:
        return (None,) * len(self.layers) if state is None else state


def two_layers(A: np.ndarray, b: np.ndarray, C: np.ndarray, c: np.ndarray, activation: str) -> tuple[RealSSM, RealSSM]:
    """Build two layers that compute h1 = A x + b and y = C σ(h1) + c at each step, in float64.

    The layers have no memory: they compute SSM-UA eq. 12–13 with W1 = W2 = 0.

    Args:
        A, b: weights (m, d_in) and (m,), which are U1 and b1 in the paper.
        C, c: weights (d_out, m) and (d_out,), which are U2 and b2 in the paper.
        activation: name of σ.
    """
    identity = np.eye(len(c))
    return _memoryless(A, b, C, activation), _memoryless(identity, c, identity, "linear")


@torch.no_grad()
def _memoryless(B: np.ndarray, b: np.ndarray, C: np.ndarray, activation: str) -> RealSSM:
    m, d_input = B.shape
    options = {"map": "direct", "time": "discrete", "mode": "scan", "activation": activation}
    with torch.random.fork_rng(devices=[]):  # the layer draws weights, which are then replaced
        layer = RealSSM(d_input, m, len(C), eigenvalues=torch.zeros(m), **options).double()  # type: ignore[arg-type]
    assert layer.bias is not None
    for parameter, value in ((layer.B, B), (layer.bias, b), (layer.C, C)):
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return layer
