"""The Hyena operator: a recurrence between two elementwise products, with which a model can recall earlier tokens."""

from __future__ import annotations

from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from stablessm._arguments import whole_number
from stablessm._checked import Size, checked
from stablessm._typing import Dt, Lengths, Reset
from stablessm.layers.at_once import linear, linear_parameters, multiplies_at_once
from stablessm.models.hyena_filter import TAPS as TAPS
from stablessm.models.hyena_filter import filtered, of_joined
from stablessm.scan.checks import check_pair, check_reset, check_signal, check_state, checked_lengths
from stablessm.scan.padding import last_inputs, without_padding

States: TypeAlias = tuple[Tensor, Any] | None
"""The last inputs of the filter, and the state of the recurrence."""


@final
class Hyena(nn.Module):
    """The Hyena operator, a recurrence m between two products: y = W (q ⊙ m(k ⊙ v)).

    Here q, k and v are linear maps of the input x, followed by a short causal filter, and W is a linear map. The papers
    on H3 and Hyena introduced this operator, and StableSSM uses it in figures 4 to 6. The product k ⊙ v can combine a
    token with the token before it, the recurrence m stores the product, and q reads it later. The module is called like
    a layer (``step``, ``lengths``, ``reset``, ``dt``). The state of the module is a pair: the last two inputs of the
    filter (B, 2, 3 d_model), and the state of m.

    Args:
        d_model: number of input and output channels.
        inner: the recurrence m, a layer from d_model to d_model channels.

    >>> from stablessm.layers import S4D
    >>> y, state = Hyena(8, S4D(8, 4))(torch.randn(2, 10, 8))
    >>> y.shape
    torch.Size([2, 10, 8])
    """

    @checked
    def __init__(self, d_model: Size, inner: nn.Module) -> None:
        super().__init__()
        self.d_model, self.inner = d_model, inner
        self.projection = nn.Linear(d_model, 3 * d_model)
        self.filter = nn.Parameter(torch.empty(TAPS, 3 * d_model))
        self.output = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new random weights for the short filter."""
        nn.init.uniform_(self.filter, -(TAPS**-0.5), TAPS**-0.5)

    def initial_state(self, batch: int) -> tuple[Tensor, Any]:
        """Return the state before the first step: zeros as the last inputs of the filter, and the initial state of the
        recurrence.
        """
        batch = batch if torch.compiler.is_compiling() else whole_number("batch", batch, 0)
        return self._zeros(batch), self.inner.initial_state(batch)  # type: ignore[operator]

    def forward(
        self, x: Tensor, state: States = None, *, lengths: Lengths = None, reset: Reset = None, dt: Dt = None
    ) -> tuple[Tensor, tuple[Tensor, Any]]:
        """Compute the output (B, T, d_model) and the final state for a sequence x (B, T, d_model).

        The other arguments are those of a layer.
        """
        check_signal(
            "x", x, ("batch", "time", "d_model"), self.d_model, self.filter, self.projection._parameters.get("weight")
        )
        check_reset(reset, *x.shape[:2])
        lengths = checked_lengths(lengths, x)
        tail, inner = (None, None) if state is None else self._parts(state, x.shape[0])
        reset = None if reset is None else reset.expand(x.shape[:2])
        z = linear(self.projection, x)
        q, u = filtered(z, tail, self.filter, reset)
        y, inner = self.inner(u, inner, lengths=lengths, reset=reset, dt=dt)
        before = self._zeros(x.shape[0]) if tail is None else tail
        return without_padding(linear(self.output, q * y), lengths), (last_inputs(z, before, reset, lengths), inner)

    def step(self, x_t: Tensor, state: States = None, *, dt: Dt = None) -> tuple[Tensor, tuple[Tensor, Any]]:
        """Run one step of ``forward``: return the output (B, d_model) for x_t (B, d_model), and the next state."""
        check_signal(
            "x_t", x_t, ("batch", "d_model"), self.d_model, self.filter, self.projection._parameters.get("weight")
        )
        tail, inner = self.initial_state(x_t.shape[0]) if state is None else self._parts(state, x_t.shape[0])
        if self._runs_at_once(x_t):
            return self._step_at_once(x_t, tail, inner, dt)
        z = linear(self.projection, x_t)
        joined = torch.cat([tail.to(z.dtype), z[:, None]], 1)
        q, u = of_joined(joined, self.filter)
        y, inner = self.inner.step(u[:, 0], inner, dt=dt)  # type: ignore[operator]
        return linear(self.output, q[:, 0] * y), (joined[:, 1:].to(tail.dtype), inner)

    def _step_onto(self, x_t: Tensor, state: States, norm: nn.LayerNorm, *, dt: Dt = None) -> tuple[Tensor, Any]:
        """Compute x_t + y_t, where y_t is the output of ``step`` for norm(x_t); return the sum and the next state.

        Call this method only if ``_runs_at_once`` returns True.
        """
        tail, inner = self.initial_state(x_t.shape[0]) if state is None else self._parts(state, x_t.shape[0])
        return self._step_at_once(x_t, tail, inner, dt, (norm.weight, norm.bias, norm.eps), onto=x_t)

    def _runs_at_once(self, x_t: Tensor) -> bool:
        """Return True if a step can run as fused Triton kernels, which combine projection, filter,
        products and output.
        """
        parameters = linear_parameters(self.projection, self.output)
        return parameters is not None and multiplies_at_once(x_t, self.filter, *parameters)

    def _step_at_once(
        self, x_t: Tensor, tail: Tensor, inner: Any, dt: Dt, norm: Any = None, onto: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Any]]:
        from stablessm.layers import triton_linear
        from stablessm.models import triton_hyena

        z = triton_linear.linear(x_t, self.projection.weight, self.projection.bias, norm=norm)
        q, u, tail = triton_hyena.step(z, tail.float().contiguous(), self.filter)
        y, inner = self.inner.step(u, inner, dt=dt)  # type: ignore[operator]
        return triton_linear.linear(y, self.output.weight, self.output.bias, times=q, onto=onto), (tail, inner)

    def _parts(self, state: Any, batch: int) -> tuple[Tensor, Any]:
        tail, inner = check_pair(state)
        check_state(tail, (batch, TAPS - 1, 3 * self.d_model), self.filter)
        return tail, inner

    def _zeros(self, batch: int) -> Tensor:
        dtype = torch.promote_types(self.filter.dtype, torch.float32)
        return torch.zeros(batch, TAPS - 1, 3 * self.d_model, dtype=dtype, device=self.filter.device)
