"""The selective state-space layer of Mamba (S6): time step, input and readout depend on the input."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm.layers.gated import GatedLayer
from stablessm.reparam import Reparameterization
from stablessm.scan import selective_scan
from stablessm.scan.gated import below_zero, softplus
from stablessm.scan.projection import project


@final
class SelectiveSSM(GatedLayer):
    """Selective state-space layer (S6 of Mamba, arXiv 2312.00752), with any reparameterization (map) of its decay
    rates.

    For each channel: h_n[t] = exp(δ[t] λ_n) h_n[t-1] + δ[t] B_n[t] x[t],  y[t] = Σ_n C_n[t] h_n[t] + D x[t]. The time
    step is δ = softplus(G P x + g) with trained matrices G and P. B[t] and C[t] are linear in the input of all
    channels. The published map is ``exp``.

    Args:
        d_model: number of input and output channels.
        d_state: number of states per channel.
        map: continuous-time reparameterization of λ, a name or an instance.
        dt_rank: number of rows of P, the rank of the matrix G P (default: d_model / 16, rounded up).
        dt_min, dt_max: initial time steps for a zero input are drawn log-uniformly between these two values.
        eigenvalues: (d_state,) or (d_model, d_state) initial λ (default: -1 … -d_state; a map that does not reach
            -d_state starts from smaller rates and larger time steps, with the same decays).

    The ``dt`` of a call is in samples: 2.0 means that the input lasted twice the usual time.

    >>> layer = SelectiveSSM(32, d_state=16)
    >>> y, state = layer(torch.randn(4, 100, 32))
    >>> y.shape, state.shape
    (torch.Size([4, 100, 32]), torch.Size([4, 32, 16]))
    """

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w", "gate_bias")

    @checked
    def __init__(
        self,
        d_model: Size,
        d_state: Size = 16,
        *,
        map: str | Reparameterization = "exp",
        dt_rank: Size | None = None,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        eigenvalues: Tensor | None = None,
    ) -> None:
        super().__init__(d_model, d_model, (d_model, d_state), map=map)
        if not 0 < dt_min <= dt_max:
            raise ArgumentError("dt_min, dt_max", "0 < dt_min <= dt_max", f"{dt_min}, {dt_max}")
        self.dt_rank = -(-d_model // 16) if dt_rank is None else dt_rank
        self.dt_min, self.dt_max, self._start = dt_min, dt_max, self._given(eigenvalues)
        self.w = nn.Parameter(torch.empty(d_model, d_state))
        self.projection = nn.Parameter(torch.empty(self.dt_rank + 2 * d_state, d_model))
        self.gate = nn.Parameter(torch.empty(d_model, self.dt_rank))
        self.gate_bias = nn.Parameter(torch.empty(d_model))
        self.D = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the initial λ, draw the time steps, set D to one, and draw all other weights as ``nn.Linear`` does."""
        channels, states = self.state_shape
        scale = min(1.0, -0.9 * self.map.range[0] / states)
        start = -scale * torch.arange(1.0, states + 1, dtype=torch.float64, device=self.w.device)
        start = start.expand(channels, states) if self._start is None else self._start
        self.w.copy_(self.map.weights(start))
        nn.init.uniform_(self.projection, -(channels**-0.5), channels**-0.5)
        nn.init.uniform_(self.gate, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        steps = torch.empty_like(self.gate_bias, dtype=torch.float64)
        steps.uniform_(math.log(self.dt_min / scale), math.log(self.dt_max / scale))
        self.gate_bias.copy_(steps.exp().expm1().log())
        nn.init.ones_(self.D)

    def _inputs(self, x: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the time steps δ (…, d_model), B (…, d_state) and C (…, d_state) from the input.

        All three are in float32 or better.
        """
        sizes = (self.dt_rank, self.state_shape[1], self.state_shape[1])
        low, B, C = project(x, self.projection).split(sizes, -1)
        delta = softplus(self._projected(low, self.gate, self.gate_bias))
        delta = delta if dt is None else delta * dt[..., None]
        return delta, B.to(delta.dtype), C.to(delta.dtype)

    def _logits(self, x: Tensor) -> Tensor:
        return self._projected(project(x, self.projection[: self.dt_rank]), self.gate, self.gate_bias)

    def _decays_at(self, logits: Tensor) -> Tensor:
        return self._decayed(softplus(logits))

    def _decayed(self, delta: Tensor) -> Tensor:
        exponent = delta[..., None] * self._rates()
        return (below_zero(exponent) if self.map.is_stable else exponent).exp()

    def _gates(self, x: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        delta, B, _ = self._inputs(x, dt)
        return self._decayed(delta), (delta * x)[..., None] * B[..., None, :]

    def _readout(self, states: Tensor, x: Tensor) -> Tensor:
        C = self._inputs(x, None)[2]
        return (torch.einsum("...hn,...n->...h", states, C) + self.D * x).to(x.dtype)

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        delta, B, C = self._inputs(x, dt)
        return selective_scan(
            x, delta, self._rates(), B, C, self.D, initial=state, reset=reset, lengths=lengths,
            below_one=self.map.is_stable,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the layer's options as text, for ``print(model)``."""
        return f"{self.state_shape[0]}, {self.state_shape[1]}, map={self.map!r}, dt_rank={self.dt_rank}"
