"""A real diagonal state-space layer with dense input and readout."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from stablessm._checked import Positive, Size, checked
from stablessm._errors import ArgumentError, quoted
from stablessm._renamed import renamed
from stablessm._typing import Time, Times
from stablessm.layers import activations, discretize, initialize
from stablessm.layers.at_once import multiplies_at_once
from stablessm.layers.diagonal import DiagonalLayer, Mode
from stablessm.layers.factor_kind import Kind
from stablessm.layers.factors import Weights, discrete_gain
from stablessm.reparam import Reparameterization
from stablessm.scan import powers
from stablessm.scan.projection import project


@final
@renamed("discretisation")
class RealSSM(DiagonalLayer):
    """State-space layer with real eigenvalues, in continuous or discrete time (StableSSM eq. 2–3, SSM-UA eq. 1–4).

    dh/dt = Λ h + B x + b,  y = C σ(h) + D x, with a real diagonal Λ. With ``average``, dh/dt = Λ (h - B x - b).

    Args:
        d_input, d_state, d_output: sizes.
        map: reparameterization of the eigenvalues, a name or an instance (``stablessm.reparam``).
        time: ``continuous`` (λ < 0, discretized with ``dt``) or ``discrete`` (h[k] = λ h[k-1] + B x[k] + b, or with
            ``average`` h[k] = λ h[k-1] + (1 - λ)(B x[k] + b)).
        dt: the time between samples, in your unit of time (default: 1); continuous time only.
        discretization: ``zoh`` (the default), ``bilinear`` or ``exponential``; continuous time only.
        activation: name of σ, which is applied to the states before the readout.
        bias: whether the layer has the bias b.
        skip: whether the layer has the direct term D x.
        eigenvalues: (d_state,) initial eigenvalues. By default their time scales are evenly spaced in their logarithm
            and span a factor of 1000; the shortest is one step, or longer if the map does not allow that. With the same
            seed and the same eigenvalues, layers with different maps start as the same function.
        average: whether each state is a moving average of its input B x + b, whose weights sum to one, so that slow
            states do not add up the mean of the inputs.
        mode: ``scan``, ``conv`` or ``auto``.

    >>> layer = RealSSM(d_input=1, d_state=64, d_output=1, map="best", time="continuous", dt=0.1)
    >>> y, state = layer(torch.randn(8, 500, 1))
    >>> y_t, state = layer.step(torch.randn(8, 1), state)
    >>> y.shape, y_t.shape, state.shape
    (torch.Size([8, 500, 1]), torch.Size([8, 1]), torch.Size([8, 64]))
    """

    @checked
    def __init__(
        self,
        d_input: Size,
        d_state: Size,
        d_output: Size,
        *,
        map: str | Reparameterization = "best",
        time: Time = "continuous",
        dt: Positive | None = None,
        discretization: str | None = None,
        activation: str = "linear",
        bias: bool = True,
        skip: bool = False,
        eigenvalues: Tensor | None = None,
        average: bool = False,
        mode: Mode = "auto",
    ) -> None:
        super().__init__(d_input, d_output, (d_state,), complex_state=False, map=map, time=time, mode=mode)
        for name, value in (("dt", dt), ("discretization", discretization)):
            if time == "discrete" and value is not None:
                raise ArgumentError(name, "None in discrete time", quoted(value))
        self.dt, self.discretization = 1.0 if dt is None else dt, discretization or "zoh"
        self.activation, self.average = activation, average
        self._method, self._activate = discretize.get(self.discretization), activations.get(activation).value
        self._start = self._given(eigenvalues)
        self.w = nn.Parameter(torch.empty(d_state))
        self.B = nn.Parameter(torch.empty(d_state, d_input))
        self.bias = nn.Parameter(torch.empty(d_state)) if bias else None
        self.C = nn.Parameter(torch.empty(d_output, d_state))
        self.D = nn.Parameter(torch.empty(d_output, d_input)) if skip else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the initial eigenvalues, draw B and C, and set the bias and D to zero.

        B is drawn such that white noise as input gives a stationary state of variance one, on average over the draws,
        for every eigenvalue inside the stable region. For other eigenvalues there is no stationary state. B is then
        scaled such that a state on the stability boundary reaches the variance one after a million steps.

        With ``average``, B is drawn such that a constant input, whose channels are independent with variance one, gives
        states of variance one. White noise then gives the variance (1 - a)/(1 + a) for a decay a, which is small for
        slow states.

        A recurrence in float32 rounds its decay. For |λ| dt below 1e-6, states can therefore be up to twice as large or
        half as large as in exact arithmetic. For |λ| dt below 3e-8, the decay is rounded to 1, and states grow without
        limit. In float64 (``layer.double()``), such errors occur only for |λ| dt below 1e-15.
        """
        start = self._default_eigenvalues() if self._start is None else self._start
        self.w.copy_(self.map.weights(start))
        decay, gain = self._discretize(None)
        nn.init.normal_(self.B, std=self.d_input**-0.5)
        if not self.average:
            self.B.mul_((self._forgotten(decay).sqrt() / gain)[:, None])
        nn.init.normal_(self.C, std=len(self.w) ** -0.5)
        for zero in (self.bias, self.D):
            if zero is not None:
                nn.init.zeros_(zero)

    def _forgotten(self, decay: Tensor) -> Tensor:
        """Compute 1 - a² for the decays a of all states, without cancellation.

        For states that do not decay, the result is 1e-6.
        """
        rough, w = 1 - decay**2, self.w.double()
        if self.time == "continuous":
            exact = discretize.forgotten(self.discretization, self.map(w) * self.dt)
        else:
            exact = self.map.distance(w) * (1 + self.map(w).abs())
        exact = torch.where(exact > 0, exact, 1e-6).to(rough)
        return torch.where(rough > 1e-5, rough, exact)  # below this, a difference in float32 would lose its digits

    def eigenvalues(self) -> Tensor:
        """Return the real eigenvalues λ as a tensor (d_state,)."""
        return self.map(self.w.to(self._parameter_dtype()))

    @checked
    def kernel(self, times: Times) -> Tensor:
        """Return the kernel ρ(t) = C e^{λ t} B, or C λ^k B in discrete time: (len(times), d_output, d_input).

        With ``average``, the kernel is C e^{λ t} |Λ| B, or C λ^k (1 - Λ) B in discrete time.
        """
        activations.require_linear(self.activation)
        if self.time == "continuous":
            modes = torch.exp(self.eigenvalues() * times[:, None].to(self._parameter_dtype()))
        else:
            modes = discrete_powers(self.eigenvalues(), times)
        return torch.einsum(
            "on,tn,ni->toi", self.C.to(modes.dtype), modes * self._shares(self.eigenvalues()), self.B.to(modes.dtype)
        )

    def _shares(self, eigenvalues: Tensor) -> Tensor:
        """Return the factor by which the input B x + b of each state is multiplied.

        The factor is 1 by default. With ``average``, it is -λ in continuous time and 1 - λ in discrete time.
        """
        if self.time == "continuous" and self.average:
            return -eigenvalues
        return discrete_gain("average" if self.average else "one", self.map, self.w.to(eigenvalues.dtype))

    def _discretize(self, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        eigenvalues = self.eigenvalues()
        if self.time == "continuous":
            step = eigenvalues.new_full((1,), self.dt) if dt is None else dt[..., None]
            decay, gain = self._method(eigenvalues, step)
            return decay, gain * self._shares(eigenvalues) if self.average else gain
        if dt is None:
            return eigenvalues, self._shares(eigenvalues)
        if not torch.compiler.is_compiling() and bool((eigenvalues < 0).any()):
            lowest = eigenvalues.min().item()
            raise ArgumentError("dt", "none, since a negative eigenvalue has no real power", f"dt with λ = {lowest}")
        decay = eigenvalues ** dt[..., None]
        return decay, self._shares(eigenvalues).expand_as(decay)

    def _weights_of_factors(self) -> Weights:
        known = self.time == "discrete" or self.discretization == "zoh"
        kind = Kind.of(self.map, dt=self.dt, gain="average" if self.average else "one") if known else None
        return Weights(kind, self.map, self.w, None, None)

    def _drive(self, x: Tensor, gain: Tensor) -> Tensor:
        return project(x, self.B, self.bias).to(gain.dtype) * gain

    def _readout(self, states: Tensor, x: Tensor) -> Tensor:
        y = project(self._activate(states).to(self.C.dtype), self.C)
        return y if self.D is None else y + project(x, self.D)

    def _step_at_once(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor] | None:
        if not multiplies_at_once(x_t, self.B, self.bias, self.C, self.D):
            return None
        from stablessm.layers import triton_dense, triton_linear

        factors, held = self._step_factors(), state.contiguous()
        if self.activation == "linear":
            return triton_dense.step(x_t, self.B, self.bias, factors, self.C, self.D, held)
        new = triton_linear.advance(x_t, self.B, self.bias, factors, held)
        direct = None if self.D is None else (x_t, self.D)
        return triton_linear.linear(self._activate(new), self.C, second=direct), new

    def _default_eigenvalues(self) -> Tensor:
        low = self.map.range[0]
        if self.time == "continuous":
            return initialize.spread_rates(len(self.w), self.dt, low)
        return initialize.spread_rates(len(self.w), 1.0, math.log(low) if low > 0 else -math.inf).exp()

    def extra_repr(self) -> str:
        """Return the layer's options as text, for ``print(model)``."""
        own = f"dt={self.dt:g}, {self.discretization}" if self.time == "continuous" else "discrete"
        own += ", average" * self.average
        return f"{self.d_input}, {len(self.w)}, {self.d_output}, map={self.map!r}, {own}, {self.activation}"


def discrete_powers(decay: Tensor, times: Tensor) -> Tensor:
    """Return decay**k for whole times k ≥ 0, with shape (len(times), *decay.shape)."""
    steps = times.round().long()
    if bool((steps != times).any() | (steps < 0).any()):
        wrong = times[(steps != times) | (steps < 0)][0].item()
        raise ArgumentError("times", "whole numbers of steps from 0 up (discrete time)", wrong)
    return powers(decay, int(steps.max()) + 1 if len(steps) else 1)[steps]
