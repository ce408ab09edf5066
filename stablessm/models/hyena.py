"""Multiplicative inputs and outputs around a recurrence: what recall needs and a sum over the past cannot do."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm.scan.reference_ssm_backend import real_steps

TAPS = 3
"""Steps that the short filter sees, its own and those before."""


@final
class Hyena(nn.Module):
    """y = W (q ⊙ m(k ⊙ v)), with (q, k, v) a short causal filter of three linear maps of x, and m a recurrence.

    The operator of Hyena and H3, the models of paper 004, figures 4 to 6: k ⊙ v with k from the step before writes a
    pair of tokens, q reads it again. State in and out, ``step``, ``lengths``, ``reset`` and ``dt`` are those of a
    layer; the state is (the last inputs of the filter (B, 2, 3 d_model), the state of m).

    Args:
        d_model: channels in and out.
        inner: m, a layer from d_model to d_model channels.

    >>> from stablessm.layers import S4D
    >>> y, state = Hyena(8, S4D(8, 4))(torch.randn(2, 10, 8))
    >>> y.shape
    torch.Size([2, 10, 8])
    """

    def __init__(self, d_model: int, inner: nn.Module) -> None:
        super().__init__()
        self.d_model, self.inner = d_model, inner
        self.projection = nn.Linear(d_model, 3 * d_model)
        self.filter = nn.Parameter(torch.empty(TAPS, 3 * d_model))
        self.output = nn.Linear(d_model, d_model)
        nn.init.uniform_(self.filter, -(TAPS**-0.5), TAPS**-0.5)

    def initial_state(self, batch: int) -> tuple[Tensor, Any]:
        """Zeros, and the initial state of the recurrence."""
        weight = self.projection.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        tail = torch.zeros(batch, TAPS - 1, 3 * self.d_model, dtype=dtype, device=weight.device)
        return tail, self.inner.initial_state(batch)  # type: ignore[operator]

    def forward(
        self,
        x: Tensor,
        state: tuple[Tensor, Any] | None = None,
        *,
        lengths: Tensor | None = None,
        reset: Tensor | None = None,
        dt: float | Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Any]]:
        """As a layer: (B, T, d_model) to the same, and the state."""
        tail, inner = self.initial_state(len(x)) if state is None else state
        z = self.projection(x)
        joined = torch.cat([tail.to(z.dtype), z], 1)
        episode = None if reset is None else F.pad(reset.expand(x.shape[:2]).cumsum(1), (TAPS - 1, 0))
        q, k, v = self._filtered(joined, episode).chunk(3, -1)
        y, inner = self.inner(k * v, inner, lengths=lengths, reset=reset, dt=dt)
        y = self.output(q * y)
        if lengths is not None:
            y = torch.where(real_steps(lengths, x.shape[1])[..., None], y, torch.zeros_like(y))
        return y, (_tail(joined, episode, lengths).to(tail.dtype), inner)

    def step(
        self, x_t: Tensor, state: tuple[Tensor, Any] | None = None, *, dt: float | Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Any]]:
        """One step of ``forward``: (B, d_model) to the same."""
        tail, inner = self.initial_state(len(x_t)) if state is None else state
        z = self.projection(x_t)
        joined = torch.cat([tail.to(z.dtype), z[:, None]], 1)
        q, k, v = self._filtered(joined, None)[:, 0].chunk(3, -1)
        y, inner = self.inner.step(k * v, inner, dt=dt)  # type: ignore[operator]
        return self.output(q * y), (joined[:, 1:].to(tail.dtype), inner)

    def _filtered(self, joined: Tensor, episode: Tensor | None) -> Tensor:
        """Σ_j filter_j z[t - j] over the steps of the same episode."""
        steps = joined.shape[1] - TAPS + 1
        y = joined[:, TAPS - 1 :] * self.filter[0]
        for j in range(1, TAPS):
            first = TAPS - 1 - j
            before = joined[:, first : first + steps]
            if episode is not None:
                before = before * (episode[:, first : first + steps] == episode[:, TAPS - 1 :])[..., None]
            y = torch.addcmul(y, before, self.filter[j])
        return y


def _tail(joined: Tensor, episode: Tensor | None, lengths: Tensor | None) -> Tensor:
    """The last inputs, as far as they belong to the last episode."""
    steps = joined.shape[1] - TAPS + 1
    ends = torch.full((len(joined),), steps, device=joined.device) if lengths is None else lengths
    where = ends[:, None] + torch.arange(TAPS - 1, device=joined.device)
    tail = joined.gather(1, where[..., None].expand(-1, -1, joined.shape[-1]))
    if episode is None:
        return tail
    mine = episode.gather(1, where)
    return tail * (mine == mine[:, -1:])[..., None]
