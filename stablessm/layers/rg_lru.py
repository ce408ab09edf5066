"""RG-LRU, the real-gated linear recurrent unit of Griffin and RecurrentGemma."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm.layers.gated import UnitLayer
from stablessm.reparam import Reparameterization

SHARPNESS = 8.0
"""The constant c of the published layer."""


@final
class RGLRU(UnitLayer):
    """Real-gated linear recurrent unit (RG-LRU of Griffin, arXiv 2402.19427).

    h[t] = a[t] ⊙ h[t-1] + √(1 - a[t]²) ⊙ i[t] ⊙ x[t],  a[t] = exp(8 λ r[t]),  y = h,
    with the gates r = sigmoid(R x + b) and i = sigmoid(I x + c). λ comes from any reparameterization (map) of the
    weights w; the published map is ``softplus``.

    Args:
        d_model: number of inputs, states and outputs.
        map: continuous-time reparameterization of λ, a name or an instance.
        blocks: the matrices R and I are block-diagonal with this number of blocks, which divides ``d_model``.
        eigenvalues: (d_model,) initial λ (default: exp(8 λ) is uniform between 0.9 and 0.999, as published).

    >>> layer = RGLRU(16, blocks=4)
    >>> y, state = layer(torch.randn(4, 100, 16))
    >>> y.shape, state.shape
    (torch.Size([4, 100, 16]), torch.Size([4, 16]))
    """

    form: ClassVar[str] = "rg-lru"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w", "gate_bias")

    @checked
    def __init__(
        self,
        d_model: Size,
        *,
        map: str | Reparameterization = "softplus",
        blocks: Size = 1,
        eigenvalues: Tensor | None = None,
    ) -> None:
        super().__init__(d_model, d_model, (d_model,), map=map)
        if d_model % blocks:
            raise ArgumentError("blocks", f"a divisor of d_model, {d_model}", blocks)
        self.blocks, self._start = blocks, self._given(eigenvalues)
        width = d_model // blocks
        self.w = nn.Parameter(torch.empty(d_model))
        self.gate = nn.Parameter(torch.empty(blocks, width, width))
        self.gate_bias = nn.Parameter(torch.empty(d_model))
        self.in_gate = nn.Parameter(torch.empty(blocks, width, width))
        self.in_gate_bias = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw λ unless it is given, set biases to zero, and draw the weights of the gates from a Gaussian."""
        start = self._start
        if start is None:
            start = torch.empty_like(self.w, dtype=torch.float64).uniform_(0.9, 0.999).log() / SHARPNESS
        self.w.copy_(self.map.weights(start))
        for weight, bias in ((self.gate, self.gate_bias), (self.in_gate, self.in_gate_bias)):
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
            nn.init.zeros_(bias)

    def _gate_inputs(self, x: Tensor) -> Tensor:
        bias = torch.cat([self.gate_bias, self.in_gate_bias])
        if self.blocks == 1:
            return self._projected(x, torch.cat([self.gate[0], self.in_gate[0]]), bias)
        parts = x.unflatten(-1, (self.blocks, -1))
        gates = [torch.einsum("...bi,boi->...bo", parts, weight).flatten(-2) for weight in (self.gate, self.in_gate)]
        return torch.cat(gates, -1).to(self._parameter_dtype()) + bias

    def _rate(self) -> Tensor:
        return SHARPNESS * self._rates()

    def _direct(self, x: Tensor) -> Tensor:
        return x.to(self._parameter_dtype())

    def _readout(self, states: Tensor, x: Tensor) -> Tensor:
        return states.to(x.dtype)

    def extra_repr(self) -> str:
        """Return the layer's options as text, for ``print(model)``."""
        return f"{super().extra_repr()}, blocks={self.blocks}"
