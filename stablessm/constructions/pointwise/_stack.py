"""A stack of layers as one model with a state, and layers without memory."""

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
    """y = layer_L(… layer_1(x)); the state is a tuple, one entry for each layer.

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
        """Return the zero state of every layer."""
        return tuple(layer.initial_state(batch) for layer in self)

    def forward(self, x: Sequence, state: States | None = None) -> tuple[Sequence, States]:
        """Map (B, T, d_input) to (B, T, d_output), and also return the states after the last step."""
        after, y = [], self._cast(x)
        for layer, before in zip(self, self._before(state), strict=True):
            y, last = layer(y, before)
            after.append(last)
        return y.to(x.dtype), tuple(after)

    def step(self, x_t: Tensor, state: States | None = None) -> tuple[Tensor, States]:
        """Advance by one step: (B, d_input) to (B, d_output)."""
        after, y_t = [], self._cast(x_t)
        for layer, before in zip(self, self._before(state), strict=True):
            y_t, last = layer.step(y_t, before)
            after.append(last)
        return y_t.to(x_t.dtype), tuple(after)

    def _cast(self, x: Tensor) -> Tensor:
        """Return the numbers in the dtype of the parameters; outputs are converted back to the dtype of the input."""
        if not x.is_floating_point():
            raise ArgumentError("x", "real floating point numbers", x.dtype)
        return x.to(next(self.parameters()).dtype)

    def _before(self, state: States | None) -> tuple[State | None, ...]:
        return (None,) * len(self.layers) if state is None else state


def two_layers(A: np.ndarray, b: np.ndarray, C: np.ndarray, c: np.ndarray, activation: str) -> tuple[RealSSM, RealSSM]:
    """Build h1 = A x + b, then y = C σ(h1) + c: SSM-UA eq. 12–13 with W1 = W2 = 0, in double precision.

    Args:
        A, b: (m, d_in) and (m,), U1 and b1 of the paper.
        C, c: (d_out, m) and (d_out,), U2 and b2.
        activation: σ, by name.
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
