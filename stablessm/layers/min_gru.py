"""Minimal gated recurrent units, whose gates depend on the input alone: minGRU and minLSTM."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from stablessm._checked import Size, checked
from stablessm.layers.gated import UnitLayer, gate_bias
from stablessm.reparam import Reparameterization
from stablessm.scan.projection import project

START = -0.5
"""Initial λ of every state, for which the decay is the published gate."""


class _MinimalUnit(UnitLayer):
    """The base class of layers h[t] = a[t] ⊙ h[t-1] + (1 - a[t]) ⊙ (B x[t] + b) with a[t] = exp(2 λ softplus(z[t])).

    Each subclass defines how its gates compute z[t] from the input x[t].
    """

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w", "gate_bias")
    gates: ClassVar[int]
    """Number of gates per state."""

    @checked
    def __init__(
        self,
        d_input: Size,
        d_state: Size,
        d_output: Size | None = None,
        *,
        map: str | Reparameterization = "best",
        timescales: Sequence[float] = (1.0, 1000.0),
        eigenvalues: Tensor | None = None,
    ) -> None:
        super().__init__(d_input, d_state if d_output is None else d_output, (d_state,), map=map)
        self.timescales, self._start = timescales, self._given(eigenvalues)
        self.w = nn.Parameter(torch.empty(d_state))
        self.gate = nn.Parameter(torch.empty(self.gates * d_state, d_input))
        self.gate_bias = nn.Parameter(torch.empty(self.gates * d_state))
        self.B = nn.Parameter(torch.empty(d_state, d_input))
        self.bias = nn.Parameter(torch.empty(d_state))
        self.C = None if d_output is None else nn.Parameter(torch.empty(d_output, d_state))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the initial λ and biases, and draw all other weights at random.

        If the input is zero, the biases give the states the time scales that were passed to the constructor.
        """
        start = torch.full_like(self.w, START, dtype=torch.float64) if self._start is None else self._start
        self.w.copy_(self.map.weights(start))
        self.gate_bias.copy_(self._biases(gate_bias(len(self.w), self.timescales, -2 * start)))
        for weight in (self.gate, self.B):
            nn.init.normal_(weight, std=self.d_input**-0.5)
        nn.init.zeros_(self.bias)
        if self.C is not None:
            nn.init.normal_(self.C, std=len(self.w) ** -0.5)

    @abstractmethod
    def _biases(self, z: Tensor) -> Tensor:
        """Return the biases of the gates with which z[t] equals the argument ``z`` if the input is zero."""

    def _rate(self) -> Tensor:
        return 2 * self._rates()

    def _readout(self, states: Tensor, x: Tensor) -> Tensor:
        return states.to(x.dtype) if self.C is None else project(states.to(self.C.dtype), self.C)


@final
class MinGRU(_MinimalUnit):
    """Minimal gated recurrent unit (minGRU, arXiv 2410.01201), whose decays come from any reparameterization (map).

    h[t] = a[t] ⊙ h[t-1] + (1 - a[t]) ⊙ (B x[t] + b),  a[t] = exp(2 λ softplus(z[t])),  z = G x + g,
    with λ = f(w) for the map f. With the initial λ = -1/2 the decay is sigmoid(-z[t]), the published gate. The output
    is h, or C h if ``d_output`` is given.

    Args:
        d_input, d_state: sizes.
        d_output: size of the output (default: ``d_state``, without the readout C).
        map: continuous-time reparameterization of λ, a name or an instance.
        timescales: the shortest and longest initial time scale for a zero input, in steps.
        eigenvalues: (d_state,) initial λ (default: -1/2).

    >>> layer = MinGRU(3, 16)
    >>> y, state = layer(torch.randn(4, 100, 3))
    >>> y.shape, state.shape
    (torch.Size([4, 100, 16]), torch.Size([4, 16]))
    """

    form: ClassVar[str] = "min-gru"
    gates: ClassVar[int] = 1

    def _biases(self, z: Tensor) -> Tensor:
        return z


@final
class MinLSTM(_MinimalUnit):
    """Minimal LSTM with normalized gates (minLSTM, arXiv 2410.01201).

    h[t] = a[t] ⊙ h[t-1] + (1 - a[t]) ⊙ (B x[t] + b),  a[t] = exp(2 λ softplus(z[t])),  z = log i - log f,
    with the forget gate f = sigmoid(G x + g), the input gate i = sigmoid(G' x + g'), and λ from any reparameterization
    (map) of the weights w. With the initial λ = -1/2 the decay is f / (f + i), as published. The arguments are as in
    :class:`MinGRU`.

    >>> layer = MinLSTM(3, 16, 2)
    >>> y, state = layer(torch.randn(4, 100, 3))
    >>> y.shape, state.shape
    (torch.Size([4, 100, 2]), torch.Size([4, 16]))
    """

    form: ClassVar[str] = "min-lstm"
    gates: ClassVar[int] = 2

    def _biases(self, z: Tensor) -> Tensor:
        return torch.cat([-z, z])  # log i - log f is z for f = sigmoid(-z) and i = sigmoid(z)

    def _logits(self, x: Tensor) -> Tensor:
        return _with_negated_entry(self._gate_inputs(x))

    def _decays_at(self, logits: Tensor) -> Tensor:
        return super()._decays_at(_with_negated_entry(logits))


def _with_negated_entry(gates: Tensor) -> Tensor:
    """Return the gate inputs of a minLSTM with the other sign of the input gate: decays are monotone in the result."""
    forget, enter, candidate = gates.chunk(3, -1)
    return torch.cat([forget, -enter, candidate], -1)
