"""A residual block: norm, mixing in time, activation, gate and sum, optionally followed by an MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm._arguments import one_of, real_number
from stablessm._checked import Count, Size, checked
from stablessm._typing import Dt, Lengths, Reset
from stablessm.layers.at_once import linear, linear_parameters, multiplies_at_once
from stablessm.models.hyena import Hyena
from stablessm.models.norms import LayerNorm, Norm, norm_of
from stablessm.scan.checks import check_dtype, check_signal, checked_lengths
from stablessm.scan.padding import real_steps


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "silu": F.silu, "relu": F.relu, "none": _identity
}  # fmt: skip
"""Activation functions that follow the mixer, by name."""


@final
class TiedDropout(nn.Module):
    """Dropout of whole channels with one mask per sequence, as in S4, so that it adds no noise in time.

    The mask has shape (B, 1, C), so it needs little memory and few random numbers.

    >>> dropped = TiedDropout(0.5)(torch.ones(2, 100, 8))
    >>> bool((dropped == dropped[:, :1]).all())
    True
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = real_number("dropout", p, 0, 1, include_low=True)

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """Drop random channels of each sequence in x (B, T, C) during training; if ``onto`` is given, add it to the
        result.
        """
        if not self.training or not self.p:
            return x if onto is None else onto + x
        mask = F.dropout(x.new_ones(x.shape[0], 1, x.shape[-1]), self.p)
        return x * mask if onto is None else torch.addcmul(onto, x, mask)

    def extra_repr(self) -> str:
        """Return the dropout rate as text, for ``print(model)``."""
        return f"{self.p:g}"


@final
class Block(nn.Module):
    """A residual block: x + dropout(gate(dropout(σ(mixer(norm(x)))))), with an optional x + dropout(mlp(norm(x))).

    With ``prenorm=False`` the norm comes after the sum instead. The gate is a gated linear unit, applied at each step:
    it maps its input a to (Va + b) ⊙ sigmoid(Wa + c) with trained V, W, b and c.

    Args:
        d_model: number of input and output channels.
        mixer: a layer from d_model to d_model channels: a layer of stablessm, :class:`~stablessm.models.Hyena`, or any
            module with ``y, state = m(x, state, lengths=, reset=, dt=)``, ``m.step(x_t, state, dt=)`` and
            ``m.initial_state(batch)``.
        norm: ``layer``, ``batch`` or ``none``.
        prenorm: whether the norm comes before the mixer (True) or after the sum (False).
        activation: σ, one of ``gelu``, ``silu``, ``relu`` and ``none``.
        gate: whether the block has a gate.
        mlp: hidden channels of the MLP (with GELU), as a multiple of d_model; 0 for none.
        dropout: probability that training sets a channel of a sequence to zero.

    >>> from stablessm.layers import S4D
    >>> block = Block(16, S4D(16, 8, map="best"), dropout=0.1)
    >>> y, state = block(torch.randn(4, 100, 16))
    >>> y_t, state = block.step(torch.randn(4, 16), state)
    >>> y.shape, y_t.shape
    (torch.Size([4, 100, 16]), torch.Size([4, 16]))
    """

    @checked
    def __init__(
        self,
        d_model: Size,
        mixer: nn.Module,
        *,
        norm: Norm = "layer",
        prenorm: bool = True,
        activation: str = "gelu",
        gate: bool = True,
        mlp: Count = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_model, self.prenorm = d_model, prenorm
        self.activation = one_of("activation", activation, ACTIVATIONS)
        self.norm, self.mixer = norm_of(norm, d_model), mixer
        self.gate = nn.Linear(d_model, 2 * d_model) if gate else None
        self.dropout = TiedDropout(dropout)
        self.mlp_norm = norm_of(norm, d_model) if mlp else None
        self.wide = nn.Linear(d_model, mlp * d_model) if mlp else None
        self.narrow = nn.Linear(mlp * d_model, d_model) if mlp else None

    def initial_state(self, batch: int) -> Any:
        """Return the state of the block before the first step, which is the initial state of its mixer."""
        return self.mixer.initial_state(batch)  # type: ignore[operator]

    def forward(
        self, x: Tensor, state: Any = None, *, lengths: Lengths = None, reset: Reset = None, dt: Dt = None
    ) -> tuple[Tensor, Any]:
        """Compute the output (B, T, d_model) of the block for x (B, T, d_model), and the final state of its mixer.

        The arguments are those of a layer. Outputs at padded steps are meaningless, but finite if the inputs are.
        """
        self._check("x", x, ("batch", "time", "d_model"))
        lengths = checked_lengths(lengths, x)
        real = None if lengths is None else real_steps(lengths, x.shape[1])
        y, state = self.mixer(self._before(self.norm, x, real), state, lengths=lengths, reset=reset, dt=dt)
        return self._after(x, y, real), state

    def step(self, x_t: Tensor, state: Any = None, *, dt: Dt = None) -> tuple[Tensor, Any]:
        """Run one step of ``forward``: return the output (B, d_model) for x_t (B, d_model), and the next state."""
        self._check("x_t", x_t, ("batch", "d_model"))
        if self._runs_at_once(x_t):
            return self._step_at_once(x_t, state, dt)
        x = x_t[:, None]
        y, state = self.mixer.step(self._before(self.norm, x, None)[:, 0], state, dt=dt)  # type: ignore[operator]
        return self._after(x, y[:, None], None)[:, 0], state

    def _runs_at_once(self, x_t: Tensor) -> bool:
        """Return True if a step can run as a few fused Triton kernels: in evaluation, for a Hyena block with layer
        norms.
        """
        if not isinstance(self.mixer, Hyena) or not self.prenorm or self.activation != "none" or self.gate is not None:
            return False
        norms: Any = (self.norm, self.mlp_norm)
        parameters = linear_parameters(self.wide, self.narrow)
        if parameters is None or not all(type(norm) is LayerNorm for norm in norms) or self.training:
            return False
        scales = [tensor for norm in norms for tensor in (norm.weight, norm.bias)]
        return multiplies_at_once(x_t, *scales, *parameters) and self.mixer._runs_at_once(x_t)

    def _step_at_once(self, x_t: Tensor, state: Any, dt: Dt) -> tuple[Tensor, Any]:
        from stablessm.layers import triton_linear

        parts: Any = (self.mixer, self.mlp_norm, self.wide, self.narrow)
        mixer, norm, wide, narrow = parts
        x, state = mixer._step_onto(x_t, state, self.norm, dt=dt)
        y = triton_linear.linear(x, wide.weight, wide.bias, norm=(norm.weight, norm.bias, norm.eps), gelu=True)
        return triton_linear.linear(y, narrow.weight, narrow.bias, onto=x), state

    def _check(self, name: str, x: Tensor, letters: tuple[str, ...]) -> None:
        """Raise an error unless x has the dimensions that ``letters`` names, d_model channels, and a dtype with which
        the block can compute. The error message calls x ``name``. Norms in float32 also accept 16-bit inputs.
        """
        check_signal(name, x, letters, self.d_model, next(self.parameters(), x))
        scale = getattr(self.norm, "weight", None)
        if scale is not None and (scale.dtype != torch.float32 or x.dtype.itemsize >= 4):
            check_dtype(name, x, [scale])

    def _before(self, norm: nn.Module, x: Tensor, real: Tensor | None) -> Tensor:
        return norm(x, real) if self.prenorm else x

    def _sum(self, norm: nn.Module, x: Tensor, y: Tensor, real: Tensor | None) -> Tensor:
        x = self.dropout(y, onto=x)
        return x if self.prenorm else norm(x, real)

    def _after(self, x: Tensor, y: Tensor, real: Tensor | None) -> Tensor:
        y = ACTIVATIONS[self.activation](y)
        if self.gate is not None:
            y = F.glu(linear(self.gate, self.dropout(y)), -1)
        x = self._sum(self.norm, x, y, real)
        if self.mlp_norm is None or self.wide is None or self.narrow is None:
            return x
        y = F.gelu(linear(self.wide, self._before(self.mlp_norm, x, real)))
        return self._sum(self.mlp_norm, x, linear(self.narrow, self.dropout(y)), real)
