"""The linear recurrent unit: a complex diagonal recurrence in discrete time."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from stablessm._checked import Finite, Size, checked
from stablessm._renamed import renamed
from stablessm._typing import Times
from stablessm.layers import initialize
from stablessm.layers.at_once import multiplies_at_once
from stablessm.layers.diagonal import DiagonalLayer, Mode
from stablessm.layers.factor_kind import Gain, Kind
from stablessm.layers.factors import Weights, discrete_gain
from stablessm.layers.real_ssm import discrete_powers
from stablessm.reparam import Reparameterization
from stablessm.scan.projection import project


@final
@renamed("normalise")
class LRU(DiagonalLayer):
    """Linear recurrent unit: a complex diagonal recurrence in discrete time (LRU-UA eq. 2).

    h[k] = λ ⊙ h[k-1] + γ ⊙ (B x[k]),  y = Re(C h) + D x, with λ = f(w) e^{iθ}.

    Args:
        d_input, d_state, d_output: sizes; d_state counts complex states.
        map: discrete-time reparameterization of the modulus, a name or an instance.
        r_min, r_max, max_phase: initial eigenvalues are drawn uniformly in area from the ring r_min ≤ |λ| ≤ r_max with
            phases from 0 to max_phase.
        normalize: whether γ = √(1 - |λ|²), so that white noise gives states of variance one for every λ; otherwise
            γ = 1.
        skip: whether the layer has the direct term D x.
        eigenvalues: (d_state,) complex: initial eigenvalues (default: drawn from the ring).
        mode: ``scan``, ``conv`` or ``auto``.

    The ``dt`` of a call is in steps: between two samples the state decays by λ^dt.

    >>> layer = LRU(3, 32, 2, r_min=0.9, r_max=0.99)
    >>> y, state = layer(torch.randn(4, 100, 3))
    >>> y.shape, state.dtype, all(not p.is_complex() for p in layer.parameters())
    (torch.Size([4, 100, 2]), torch.complex64, True)
    """

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w", "phase")

    @checked
    def __init__(
        self,
        d_input: Size,
        d_state: Size,
        d_output: Size,
        *,
        map: str | Reparameterization = "best",
        r_min: float = 0.5,
        r_max: float = 0.99,
        max_phase: Finite = 2 * math.pi,
        normalize: bool = True,
        skip: bool = True,
        eigenvalues: Tensor | None = None,
        mode: Mode = "auto",
    ) -> None:
        super().__init__(d_input, d_output, (d_state,), complex_state=True, map=map, time="discrete", mode=mode)
        self.r_min, self.r_max, self.max_phase, self.normalize = r_min, r_max, max_phase, normalize
        self._start = self._given(eigenvalues)
        self.w = nn.Parameter(torch.empty(d_state))
        self.phase = nn.Parameter(torch.empty(d_state))
        self.B = nn.Parameter(torch.empty(d_state, 2, d_input))
        self.C = nn.Parameter(torch.empty(d_output, d_state, 2))
        self.D = nn.Parameter(torch.empty(d_output, d_input)) if skip else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the eigenvalues from the ring, unless they were given, and B, C and D from Gaussian distributions.

        B and C are complex.
        """
        ring = (self.r_min, self.r_max, self.max_phase)
        start = initialize.ring(len(self.w), *ring) if self._start is None else self._start
        self.w.copy_(self.map.weights(start.abs()))
        self.phase.copy_(start.angle())
        nn.init.normal_(self.B, std=(2 * self.d_input) ** -0.5)
        nn.init.normal_(self.C, std=len(self.w) ** -0.5)
        if self.D is not None:
            nn.init.normal_(self.D, std=self.d_input**-0.5)

    def eigenvalues(self) -> Tensor:
        """Return the complex eigenvalues λ as a tensor (d_state,)."""
        return self._discretize(None)[0]

    @checked
    def kernel(self, times: Times) -> Tensor:
        """Return the impulse response Re(C λ^k γ B) at whole steps k: (len(times), d_output, d_input)."""
        decay, gain = self._discretize(None)
        B, C = self.B.to(gain.dtype), self.C.to(gain.dtype)
        inputs = torch.complex(B[:, 0], B[:, 1]) * gain[:, None]
        readout = torch.complex(C[..., 0], C[..., 1])
        return torch.einsum("on,tn,ni->toi", readout, discrete_powers(decay, times), inputs).real

    def _discretize(self, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        dtype = self._parameter_dtype()
        modulus, phase = self.map(self.w.to(dtype)), self.phase.to(dtype)
        gain = discrete_gain(self._gain, self.map, self.w.to(dtype))
        if dt is not None:
            phase = torch.where(modulus < 0, phase + math.pi, phase) * dt[..., None]
            modulus = modulus.abs() ** dt[..., None]
        return torch.complex(modulus * phase.cos(), modulus * phase.sin()), gain

    def _weights_of_factors(self) -> Weights:
        return Weights(Kind.of(self.map, gain=self._gain), self.map, self.w, self.phase, None)

    @property
    def _gain(self) -> Gain:
        return "variance" if self.normalize else "one"

    def _drive(self, x: Tensor, gain: Tensor) -> Tensor:
        pairs = project(x, self.B.flatten(0, 1)).unflatten(-1, (-1, 2)).to(gain.dtype)
        return torch.view_as_complex(pairs) * gain

    def _readout(self, states: Tensor, x: Tensor) -> Tensor:
        # Re(C h) = Re C · Re h - Im C · Im h, as one real product
        pairs = torch.view_as_real(states.resolve_conj()).flatten(-2).to(self.C.dtype)
        signs = self.C.new_tensor([1.0, -1.0])
        y = project(pairs, (self.C * signs).flatten(1))
        return y if self.D is None else y + project(x, self.D)

    def _step_at_once(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor] | None:
        if not multiplies_at_once(x_t, self.B, self.C, self.D):
            return None
        from stablessm.layers import triton_dense

        held = state.resolve_conj().resolve_neg().contiguous()
        return triton_dense.step(x_t, self.B, None, self._step_factors(), self.C, self.D, held)

    def extra_repr(self) -> str:
        """Return the layer's options as text, for ``print(model)``."""
        return f"{self.d_input}, {len(self.w)}, {self.d_output}, map={self.map!r}, normalize={self.normalize}"
