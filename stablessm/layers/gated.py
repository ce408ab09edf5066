"""The base class of layers whose decays depend on the input."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from stablessm._checked import NotNegative, checked
from stablessm._errors import ArgumentError
from stablessm._typing import Dt, Times
from stablessm.layers import initialize
from stablessm.layers.mapped import MappedLayer
from stablessm.reparam import Reparameterization
from stablessm.scan.checks import check_tensor
from stablessm.scan.gated import decay_and_drive, gated_scan
from stablessm.scan.projection import project
from stablessm.scan.protocol import Gated

FASTEST = -1e4
"""Largest rate per step; the decay is 0 in every precision."""


class GatedLayer(MappedLayer):
    """The base class of recurrences h[t] = a[t] ⊙ h[t-1] + u[t] in which the decay a[t] depends on the input.

    log a[t] = λ Δ(x[t]) dt, where λ = f(w) < 0 comes from weights w by any continuous-time map f, and Δ(x) > 0 comes
    from a gate. dt is the time between two samples: any number that is not negative, 1 by default. With a stable map,
    0 ≤ a[t] < 1 for all weights and inputs if dt > 0. Rounding cannot change this: a[t] is at most the largest number
    below 1 in the precision of the recurrence, which is float32 or better.
    """

    activation: ClassVar[str] = "gated"
    """Not ``linear``: the layer has no kernel."""

    def __init__(
        self, d_input: int, d_output: int, state_shape: tuple[int, ...], *, map: str | Reparameterization
    ) -> None:
        super().__init__(d_input, d_output, state_shape, complex_state=False, map=map, time="continuous")

    @abstractmethod
    def _gates(self, x: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute the decays a and the terms u of the recurrence for inputs x (…, d_input).

        Both are tensors (…, *state_shape) in float32 or better.
        """

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues λ in the shape of the state; a step of length Δ(x) has the decay exp(λ Δ(x))."""
        return self.map(self.w.to(self._parameter_dtype()))

    def kernel(self, times: Times) -> Tensor:
        """Raise an error: the response to an impulse depends on the other inputs, so there is no kernel."""
        raise ArgumentError("layer", "a linear layer, since only a linear layer has a kernel", type(self).__name__)

    @checked
    def decays(self, x: Tensor, *, dt: Dt = None) -> Tensor:
        """Compute the decays a[t] for inputs x (B, T, d_input): (B, T, …), in float32 or better; ``dt`` is as in
        ``forward``.

        >>> import stablessm as ssm
        >>> layer = ssm.MinGRU(3, 8)
        >>> a = layer.decays(1e6 * torch.randn(2, 5, 3))
        >>> a.shape, bool((a.abs() < 1).all())
        (torch.Size([2, 5, 8]), True)
        """
        check_tensor("x", x, 3, "(batch, time, d_input)")
        batch, steps = self._check("x", x, 3, "(batch, time, d_input)")
        return self._decays(x, self._checked_dt(dt, (), (steps,), (batch, steps)))

    @checked
    @torch.no_grad()
    def slowest_decays(self, bound: NotNegative) -> Tensor:
        """Compute the largest decay a[t] that each state can have for any input with |x| ≤ ``bound`` in every channel.

        A decay is a monotone function of a number that is affine in the input. The largest decay is therefore at an end
        of the range of this number, and some input attains it. For a ``MinLSTM``, whose decays depend on two such
        numbers, the result is an upper bound.

        >>> import stablessm as ssm
        >>> layer = ssm.MinGRU(3, 8)
        >>> bool((layer.decays(2 * torch.rand(1, 100, 3) - 1) <= layer.slowest_decays(1.0) + 1e-6).all())
        True
        """
        like = self._parameter()
        center = self._logits(torch.zeros(1, self.d_input, dtype=like.dtype, device=like.device))
        reach = (self._logits(torch.eye(self.d_input, dtype=like.dtype, device=like.device)) - center).abs().sum(0)
        return torch.maximum(*(self._decays_at(center + sign * bound * reach)[0] for sign in (1, -1)))

    @abstractmethod
    def _logits(self, x: Tensor) -> Tensor:
        """Compute the numbers z(x) that determine the decays, for inputs x (B, d_input).

        Each number is an affine function of x, and each decay is a monotone function of these numbers.
        """

    @abstractmethod
    def _decays_at(self, logits: Tensor) -> Tensor:
        """Compute the decays (B, *state_shape) from the numbers z(x) that ``_logits`` returns."""

    def _decays(self, x: Tensor, dt: Tensor | None) -> Tensor:
        return self._gates(x, dt)[0]

    def _projected(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Compute W x + b in float32 or better, for the ``weight`` W and the ``bias`` b.

        The dtype of W may be wider than the dtype of b.
        """
        if bias.dtype == weight.dtype:
            return project(x, weight, bias).to(self._parameter_dtype())
        return project(x, weight).to(self._parameter_dtype()) + bias

    def _rates(self) -> Tensor:
        """Compute λ, clamped to at least -10,000 per step, because an infinite rate times zero would be NaN.

        The clamping changes no decay, because e^(-10,000) is 0 in every precision.
        """
        return self.eigenvalues().clamp(min=FASTEST)

    def _states(self, x: Tensor, state: Tensor | None, reset: Tensor | None, dt: Tensor | None) -> Tensor:
        return self._scanned(*self._gates(x, dt), state, reset)

    def _advance(self, x_t: Tensor, state: Tensor, dt: Tensor | None) -> Tensor:
        decay, drive = self._gates(x_t, dt)
        return decay * state + drive

    def extra_repr(self) -> str:
        """Return the layer's sizes and map as text, for ``print(model)``."""
        sizes = dict.fromkeys((self.d_input, *self.state_shape, self.d_output))
        return f"{', '.join(map(str, sizes))}, map={self.map!r}"


class UnitLayer(GatedLayer):
    """The base class of gated layers that run as a fused scan.

    The class attribute ``form`` is the name of the formulas with which the scan computes the decays a[t] and the terms
    u[t] (:func:`stablessm.scan.gated.decay_and_drive`).
    """

    form: ClassVar[str]
    gate: nn.Parameter
    gate_bias: nn.Parameter
    B: nn.Parameter
    bias: nn.Parameter

    def _gate_inputs(self, x: Tensor) -> Tensor:
        """Compute the arguments of the gates, which are affine functions of x, as one tensor.

        In its last dimension, the tensor has one entry per gate and state, gate after gate. If the input of the
        recurrence is also an affine function of x, as it is here, the entries of this input follow the entries of the
        gates.
        """
        return self._projected(x, torch.cat([self.gate, self.B]), torch.cat([self.gate_bias, self.bias]))

    @abstractmethod
    def _rate(self) -> Tensor:
        """Compute the rates (d_state,) that the formulas for the decays require, from the eigenvalues λ.

        The class attribute ``form`` names the formulas, which are listed at
        :func:`stablessm.scan.gated.decay_and_drive`.
        """

    def _direct(self, x: Tensor) -> Tensor | None:
        """Return the input that enters the recurrence directly, not through a gate; None if there is no such input."""
        return None

    def _logits(self, x: Tensor) -> Tensor:
        return self._gate_inputs(x)

    def _decays_at(self, logits: Tensor) -> Tensor:
        like = logits.new_zeros(len(logits), *self.state_shape)
        return decay_and_drive(self.form, logits, self._rate(), like, self.map.is_stable)[0]

    def _gates(self, x: Tensor, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        step = None if dt is None else dt[..., None]
        inputs, stable = self._gate_inputs(x), self.map.is_stable
        return decay_and_drive(self.form, inputs, self._rate(), self._direct(x), stable, step)

    def _states(self, x: Tensor, state: Tensor | None, reset: Tensor | None, dt: Tensor | None) -> Tensor:
        if dt is not None:
            return super()._states(x, state, reset, dt)
        reset = None if reset is None else reset.expand(x.shape[:2])
        inputs, stable = self._gate_inputs(x), self.map.is_stable
        return gated_scan(Gated(self.form, inputs, self._rate(), self._direct(x), state, reset, stable))


def gate_bias(count: int, timescales: Sequence[float], unit: Tensor) -> Tensor:
    """Return ``count`` biases b such that the rates ``unit`` · softplus(b) are 1/τ for given time scales τ.

    The time scales are evenly spaced in their logarithm, from ``timescales[0]`` to ``timescales[1]``.

    >>> b = gate_bias(3, (1.0, 100.0), torch.tensor(1.0))
    >>> (1 / torch.nn.functional.softplus(b)).round(decimals=4).tolist()
    [1.0, 10.0, 100.0]
    """
    shortest, longest = timescales if len(timescales) == 2 else (0.0, 0.0)
    if not 0 < shortest <= longest:
        raise ArgumentError("timescales", "0 < shortest <= longest", tuple(timescales))
    with torch.device("cpu"):
        rates = 1 / initialize.timescales(count, shortest, longest)
    return torch.log(torch.expm1(rates.to(unit.device) / unit.double()))
