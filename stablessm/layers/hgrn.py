"""HGRN, the layer of hierarchically gated recurrent networks: forget gates with trained lower bounds."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm._checked import Size, checked
from stablessm.layers import initialize
from stablessm.layers.gated import UnitLayer
from stablessm.reparam import Reparameterization
from stablessm.scan.projection import project


@final
class HGRN(UnitLayer):
    """Hierarchically gated recurrent unit (HGRN, arXiv 2311.04823).

    h[t] = a[t] ⊙ h[t-1] + (1 - a[t]) ⊙ silu(B x[t] + b),  a[t] = γ + (1 - γ) ⊙ sigmoid(G x[t] + g),  γ = exp(λ),
    y[t] = C (h[t] ⊙ silu(O x[t])).

    γ is the lower bound of the forget gate a[t]. Any reparameterization (map) can give λ = f(w).

    Args:
        d_model: number of inputs, states and outputs.
        map: continuous-time reparameterization of λ, a name or an instance.
        eigenvalues: (d_model,) initial λ (default: time scales from one step to 1000 steps, evenly spaced in their
            logarithm). The time scale of a state is at least -1/λ steps, whatever the input is.

    >>> layer = HGRN(16)
    >>> y, state = layer(torch.randn(4, 100, 16))
    >>> y.shape, state.shape
    (torch.Size([4, 100, 16]), torch.Size([4, 16]))
    """

    form: ClassVar[str] = "hgrn"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w", "gate_bias")

    @checked
    def __init__(
        self, d_model: Size, *, map: str | Reparameterization = "best", eigenvalues: Tensor | None = None
    ) -> None:
        super().__init__(d_model, d_model, (d_model,), map=map)
        self._start = self._given(eigenvalues)
        self.w = nn.Parameter(torch.empty(d_model))
        self.gate_bias = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model))
        self.gate, self.B, self.out_gate, self.C = (nn.Parameter(torch.empty(d_model, d_model)) for _ in range(4))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set λ to the initial eigenvalues, biases to zero, and draw all other weights from a Gaussian."""
        start = initialize.spread_rates(len(self.w), 1.0, self.map.range[0]) if self._start is None else self._start
        self.w.copy_(self.map.weights(start))
        for bias in (self.gate_bias, self.bias):
            nn.init.zeros_(bias)
        for weight in (self.gate, self.B, self.out_gate, self.C):
            nn.init.normal_(weight, std=self.d_input**-0.5)

    def _rate(self) -> Tensor:
        return torch.expm1(self._rates())

    def _readout(self, states: Tensor, x: Tensor) -> Tensor:
        return project(states.to(self.C.dtype) * F.silu(project(x, self.out_gate)), self.C)
