"""The S4D layer: N complex states for each of H independent channels."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from stablessm._arguments import one_of
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm._renamed import renamed
from stablessm._typing import Times
from stablessm.layers import discretize, initialize
from stablessm.layers.at_once import runs_at_once
from stablessm.layers.diagonal import DiagonalLayer, Mode
from stablessm.layers.factor_kind import Kind
from stablessm.layers.factors import Weights
from stablessm.reparam import Reparameterization
from stablessm.scan import accumulate, causal_convolution, evaluate, ssm_scan
from stablessm.scan.decay_product import power


@final
@renamed("discretisation")
class S4D(DiagonalLayer):
    """An S4D layer: a diagonal recurrence with N complex states for each of H channels, which do not mix.

    For each channel: dh/dt = λ h + x, y = 2 Re Σ_n C_n h_n + D x, with λ = f(w) + iω. Each channel has its own time
    step. Each state represents a conjugate pair, hence the factor 2 Re.

    Args:
        d_model: H, the number of input and output channels.
        d_state: N, the number of complex states per channel.
        map: continuous-time reparameterization of Re λ, a name or an instance.
        init: initial eigenvalues: ``lin``, ``inv`` or ``legs``.
        dt_min, dt_max: the time step of each channel is initially drawn log-uniformly between these two values.
        discretization: ``zoh``, ``bilinear`` or ``exponential``.
        eigenvalues: (N,) or (H, N) complex: initial eigenvalues (default: ``init``).
        mode: ``scan`` (fused: no state is written to memory), ``conv`` or ``auto``, which is the scan.

    The ``dt`` of a call is in samples: 2.0 means that the input lasted twice the usual time.

    >>> layer = S4D(d_model=16, d_state=32)
    >>> y, state = layer(torch.randn(4, 100, 16))
    >>> y.shape, state.shape
    (torch.Size([4, 100, 16]), torch.Size([4, 16, 32]))
    """

    recurrent_parameters: ClassVar[tuple[str, ...]] = ("w", "frequency", "log_dt")

    @checked
    def __init__(
        self,
        d_model: Size,
        d_state: Size = 32,
        *,
        map: str | Reparameterization = "exp",
        init: str = "lin",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        discretization: str = "zoh",
        eigenvalues: Tensor | None = None,
        mode: Mode = "auto",
    ) -> None:
        shape = (d_model, d_state)
        super().__init__(d_model, d_model, shape, complex_state=True, map=map, time="continuous", mode=mode)
        one_of("init", init, initialize.S4D)
        if not 0 < dt_min <= dt_max:
            raise ArgumentError("dt_min, dt_max", "0 < dt_min <= dt_max", f"{dt_min}, {dt_max}")
        self.init, self.dt_min, self.dt_max, self.discretization = init, dt_min, dt_max, discretization
        self._method = discretize.get(discretization)
        self._start = self._given(eigenvalues)
        self.w = nn.Parameter(torch.empty(shape))
        self.frequency = nn.Parameter(torch.empty(shape))
        self.log_dt = nn.Parameter(torch.empty(d_model))
        self.C = nn.Parameter(torch.empty(*shape, 2))
        self.D = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the initial eigenvalues, draw the time steps, and draw C (complex) and D from Gaussians of variance 1."""
        start = initialize.S4D[self.init](self.state_shape[1]) if self._start is None else self._start
        start = start.expand(self.state_shape)
        self.w.copy_(self.map.weights(start.real))
        self.frequency.copy_(start.imag)
        self.log_dt.uniform_(math.log(self.dt_min), math.log(self.dt_max))
        nn.init.normal_(self.C, std=0.5**0.5)
        nn.init.normal_(self.D)

    def eigenvalues(self) -> Tensor:
        """Return the complex eigenvalues λ as a tensor (H, N)."""
        dtype = self._parameter_dtype()
        return torch.complex(self.map(self.w.to(dtype)), self.frequency.to(dtype))

    @checked
    def kernel(self, times: Times) -> Tensor:
        """Return the kernel of each channel at the given times, (len(times), H).

        The kernel is 2 Re Σ_n C_n e^{λ_n Δ t} Δ, where Δ is the time step of the channel and t is in samples.
        """
        dtype = self._parameter_dtype()
        step, times = self.log_dt.to(dtype).exp(), times.to(dtype)
        modes = torch.exp(self.eigenvalues() * step[:, None] * times[:, None, None])
        return 2 * (modes * self._weights()).sum(-1).real * step

    def _weights(self) -> Tensor:
        return torch.view_as_complex(self.C.to(self._parameter_dtype()))

    def _discretize(self, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        step = self.log_dt.to(self._parameter_dtype()).exp()
        step = step if dt is None else step * dt[..., None]
        return self._method(self.eigenvalues(), step[..., None])

    def _weights_of_factors(self) -> Weights:
        kind = Kind.of(self.map) if self.discretization == "zoh" else None
        return Weights(kind, self.map, self.w, self.frequency, self.log_dt)

    def _drive(self, x: Tensor, gain: Tensor) -> Tensor:
        return x[..., None].to(gain.real.dtype) * gain

    def _readout(self, states: Tensor, x: Tensor) -> Tensor:
        return self._with_skip(2 * torch.einsum("...hn,hn->...h", states, self._weights()).real, x)

    def _with_skip(self, y: Tensor, x: Tensor) -> Tensor:
        return y.to(x.dtype) + self.D * x

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if dt is not None and dt.dim():
            return super()._run(x, state, lengths, reset, dt)
        decay, gain = self._factors(dt)
        if not x.shape[1] or not self._convolves(x, reset, dt):
            wide = x.to(torch.promote_types(x.dtype, self.D.dtype))
            return ssm_scan(wide, decay, gain, 2 * self._weights(), self.D, state, reset=reset, lengths=lengths)
        weights, steps, signal = self._weights(), x.shape[1], x.to(gain.real.dtype)
        y = causal_convolution(signal, 2 * evaluate(weights * gain, decay, steps).real.mT)
        if lengths is not None:
            signal = _moved_to_the_end(signal, lengths)
        final = gain * accumulate(signal.mT, decay)
        if state is not None:
            y = y + 2 * evaluate(weights * decay * state, decay, steps).real.mT
            passed = lengths if lengths is not None else torch.tensor([steps], device=x.device)
            final = final + power(decay, passed[:, None, None]) * state
        return self._with_skip(y, x), final

    def _step_at_once(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor] | None:
        if not runs_at_once(x_t, self.C, self.D):
            return None
        from stablessm.layers import triton_channels

        held = state.resolve_conj().resolve_neg().contiguous()
        return triton_channels.step(x_t, self._step_factors(), self.C, self.D, held)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load the parameters as usual, and copy C if its address is not aligned for complex numbers.

        ``load_state_dict(assign=True)`` can leave C at such an address.
        """
        super()._load_from_state_dict(*args, **kwargs)
        aligned = self.C.storage_offset() % 2 == 0 and self.C.data_ptr() % (2 * self.C.element_size()) == 0
        if not (aligned and self.C.is_contiguous()):
            own = self.C.detach().clone(memory_format=torch.contiguous_format)
            self.C = nn.Parameter(own, self.C.requires_grad)

    def extra_repr(self) -> str:
        """Return the layer's options as text, for ``print(model)``."""
        return f"{self.state_shape[0]}, {self.state_shape[1]}, map={self.map!r}, {self.init}, {self.discretization}"


def _moved_to_the_end(signal: Tensor, lengths: Tensor) -> Tensor:
    """Return right-padded sequences with their real steps moved to the end, and zeros before the real steps."""
    steps = signal.shape[1]
    index = torch.arange(steps, device=signal.device) - (steps - lengths)[:, None]
    moved = signal.gather(1, index.clamp(min=0)[..., None].expand_as(signal))
    return torch.where(index[..., None] >= 0, moved, torch.zeros_like(moved))
