"""A convolution layer that can run step by step.

The first taps of a filter are applied to a short buffer of past inputs, and the later taps are computed by a
recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._arguments import whole_number
from stablessm._checked import Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm.layers import S4D
from stablessm.scan import causal_convolution, evaluate
from stablessm.scan.checks import check_device, check_tensor

GroupState: TypeAlias = tuple[Tensor, Tensor | None]
"""State of a group: the last inputs (B, K, H) and the states of the modes (B, H, N)."""


@final
@dataclass(frozen=True, repr=False)
class FilterFit(Result):
    """A report on the recurrence that replaces one filter: its size and its error."""

    order: int
    """Number of real states: one for a real mode, two for a conjugate pair; 0 without modes."""
    taps: int
    """Number of first taps that are exact; all taps of a buffered filter."""
    sup_error: float
    """Largest |filter - kernel| over the length of the filter (for a finite filter, also beyond it)."""
    l1_error: float
    """Σ |filter - kernel|: outputs differ by at most this times sup |x|."""
    relative_error: float
    """Relative error l1_error / Σ |filter|, which ``tol`` limits; 0 for a filter of zeros."""
    reason: str = ""
    """The reason why no recurrence was found and the filter keeps a buffer; empty if a recurrence was found."""

    @property
    def failed(self) -> bool:
        """Return True if the filter keeps a buffer because no recurrence met the tolerance."""
        return bool(self.reason)


@final
class ChannelGroup(nn.Module):
    """Several filters that are computed together: exact first taps, and a recurrence with kernel ρ for the later taps.

    y[t] = Σ_{j<K} taps[j] x[t-j] + Σ_{k≥0} ρ(k) x[t-K-k]

    Args:
        filters: indices of the filters in the layer (H,).
        sources: input channel of each filter (H,).
        taps: first taps of each filter (H, K), K ≥ 0.
        modes: an S4D of H channels without a direct term, whose kernel is ρ; None for a plain buffer of K inputs.
    """

    filters: Tensor
    inputs: Tensor
    source: Tensor

    def __init__(self, filters: Tensor, sources: Tensor, taps: Tensor, modes: S4D | None) -> None:
        super().__init__()
        inputs, source = sources.unique(return_inverse=True)  # filters of one input share its buffer
        for name, index in (("filters", filters), ("inputs", inputs), ("source", source)):
            self.register_buffer(name, index)
        self.taps = nn.Parameter(taps)
        self.modes = modes

    def initial_state(self, batch: int) -> GroupState:
        """Return the zero state for a batch."""
        past = self.taps.new_zeros(self.state_shapes(batch)[0])
        return past, None if self.modes is None else self.modes.initial_state(batch)

    def state_shapes(self, batch: int) -> list[tuple[int, ...]]:
        """Return the shapes of the tensors in a state for a batch."""
        modes = [] if self.modes is None else [(batch, *self.modes.state_shape)]
        return [(batch, self.taps.shape[1], len(self.inputs)), *modes]

    def forward(self, x: Tensor, state: GroupState) -> tuple[Tensor, GroupState]:
        """Apply the filters to a sequence (B, T, d_input); return the outputs (B, T, H) and the final state."""
        past, inner = state
        seen = torch.cat([past, x[..., self.inputs].to(past.dtype)], 1)
        steps, size = x.shape[1], self.taps.shape[1]
        spread = seen[..., self.source]
        y = torch.zeros_like(spread[:, size:])
        if size and steps:
            kernel = nn.functional.pad(self.taps, (0, steps)).mT
            y = y + causal_convolution(spread, kernel)[:, size:]
        if self.modes is not None:
            late, inner = self.modes(spread[:, :steps], inner)
            y = y + late
        return y.to(x.dtype), (seen[:, steps:].clone(), inner)  # a view would keep the whole sequence in memory

    def step(self, x_t: Tensor, state: GroupState) -> tuple[Tensor, GroupState]:
        """Advance by one step: map an input (B, d_input) to the outputs of this step, and return the new state."""
        past, inner = state
        seen = torch.cat([past, x_t[:, None, self.inputs].to(past.dtype)], 1)
        spread = seen[..., self.source]
        y = (spread[:, 1:].flip(1) * self.taps.mT).sum(1)  # not a matrix product, whose precision autocast would reduce
        if self.modes is not None:
            late, inner = self.modes.step(spread[:, 0], inner)
            y = y + late
        return y.to(x_t.dtype), (seen[:, 1:].clone(), inner)

    def kernel(self, length: int) -> Tensor:
        """Return the impulse response of every filter of the group, (H, length), in float64."""
        taps = self.taps.double()[:, :length]
        rest = length - taps.shape[1]
        if self.modes is None or not rest:
            return nn.functional.pad(taps, (0, rest))
        decay, weights = self._modes()
        return torch.cat([taps, 2 * evaluate(weights, decay, rest).real], 1)

    def tail(self, start: int) -> Tensor:
        """Return an upper bound (H,) on the sum Σ |kernel| of each filter from step ``start`` on.

        The bound is Σ_n 2 |C_n| |λ_n|^(start-K) / (1 - |λ_n|), where K is the number of taps, λ_n are the eigenvalues
        of the modes per step and C_n their weights.
        """
        if self.modes is None:
            return self.taps.double()[:, start:].abs().sum(1)
        decay, weights = self._modes()
        size = decay.abs()
        return (2 * weights.abs() * size ** (start - self.taps.shape[1]) / (1 - size)).sum(1)

    def _modes(self) -> tuple[Tensor, Tensor]:
        assert self.modes is not None
        rates = torch.complex(self.modes.map(self.modes.w.double()), self.modes.frequency.double())
        step = self.modes.log_dt.double().exp()[:, None]
        return torch.exp(rates * step), torch.view_as_complex(self.modes.C.double()) * step


@final
class RecurrentConvolution(nn.Module):
    """A layer that applies long filters in constant memory, by recurrences.

    The output is y[b, t, c] = Σ_k filters[c, k] x[b, t-k, c] or, for dense filters (d_out, d_in, length), the sum of
    such terms over the input channels. :func:`from_convolution` builds this layer. Filters of similar order are
    computed by one ``S4D``. A filter that no short sum of exponentials approximates is computed with a buffer of past
    inputs as long as the filter.

    >>> from stablessm.constructions.filters.from_convolution import from_convolution
    >>> layer = from_convolution(0.9 ** torch.arange(200.0)[None], tol=1e-6)
    >>> y, state = layer(torch.ones(1, 3, 1))
    >>> torch.allclose(y.flatten(), torch.tensor([1.0, 1.9, 2.71])), layer.state_size
    (True, 3)
    >>> y_t, state = layer.step(torch.ones(1, 1), state)
    >>> round(y_t.item(), 4)
    3.439
    """

    @checked
    def __init__(self, groups: list[ChannelGroup], shape: tuple[int, ...], fits: tuple[FilterFit, ...]) -> None:
        super().__init__()
        self.groups = nn.ModuleList(groups)
        self.shape, self.fits = shape, fits
        self.d_output, self.d_input = shape[0], shape[-1]

    @property
    def error(self) -> np.ndarray:
        """Return the relative ℓ1 error of each filter, as an array (channels,) or (d_out, d_in)."""
        return np.array([fit.relative_error for fit in self.fits]).reshape(self.shape)

    @property
    def orders(self) -> np.ndarray:
        """Return the order of the exponential sum of each filter, as an array (channels,) or (d_out, d_in)."""
        return np.array([fit.order for fit in self.fits]).reshape(self.shape)

    @property
    def failed(self) -> tuple[tuple[int, ...], ...]:
        """Return the indices, (channel,) or (output, input), of the filters for which no recurrence met the
        tolerance.
        """
        places = np.ndindex(self.shape)
        return tuple(place for place, fit in zip(places, self.fits, strict=True) if fit.failed)

    @property
    def state_size(self) -> int:
        """Return the number of real numbers in the state of one sequence; a complex number counts twice."""
        leaves = (leaf for group in self._groups() for leaf in group.initial_state(1) if leaf is not None)
        return sum(leaf.numel() * (2 if leaf.is_complex() else 1) for leaf in leaves)

    def initial_state(self, batch: int) -> tuple[GroupState, ...]:
        """Return the zero state for a batch."""
        batch = batch if torch.compiler.is_compiling() else whole_number("batch", batch, 0)
        return tuple(group.initial_state(batch) for group in self._groups())

    def forward(self, x: Tensor, state: tuple[GroupState, ...] | None = None) -> tuple[Tensor, tuple[GroupState, ...]]:
        """Apply the filters to a sequence (B, T, d_input); return outputs (B, T, d_output) and the state after the last
        step.

        Calls of ``step`` with the same inputs give the same outputs.
        """
        return self._run(x, state, 3)

    def step(self, x_t: Tensor, state: tuple[GroupState, ...] | None = None) -> tuple[Tensor, tuple[GroupState, ...]]:
        """Advance by one step: map an input (B, d_input) to the outputs of this step, and return the new state."""
        return self._run(x_t, state, 2)

    @checked
    def kernel(self, length: Size) -> Tensor:
        """Return the impulse response of every filter, (channels, length) or (d_out, d_in, length), in float64."""
        result = torch.zeros(len(self.fits), length, dtype=torch.float64, device=next(self.parameters()).device)
        for group in self._groups():
            result[group.filters] = group.kernel(length)
        return result.unflatten(0, self.shape)

    def extra_repr(self) -> str:
        """Return the number of filters, the state size and the largest error, for ``print(model)``."""
        size = " x ".join(map(str, self.shape))
        return f"{size} filters, {self.state_size} numbers of state, relative error {self.error.max(initial=0.0):.1e}"

    def _run(self, x: Tensor, state: tuple[GroupState, ...] | None, rank: int) -> tuple[Tensor, tuple[GroupState, ...]]:
        name = "x" if rank == 3 else "x_t"
        check_tensor(name, x)
        check_device(name, x, self.groups[0].taps if len(self.groups) else x)  # type: ignore[arg-type]
        if x.dim() != rank or x.shape[-1] != self.d_input or not x.is_floating_point():
            letters = "(batch, time, d_input)" if rank == 3 else "(batch, d_input)"
            got = f"shape {tuple(x.shape)} of {x.dtype}"
            raise ArgumentError(name, f"real numbers {letters} with {self.d_input} channels", got)
        state = self.initial_state(len(x)) if state is None else state
        self._check_state(state, len(x))
        y = x.new_zeros(*x.shape[:-1], len(self.fits))
        after = []
        for group, before in zip(self._groups(), state, strict=True):
            part, new = group(x, before) if rank == 3 else group.step(x, before)
            y = y.index_copy(-1, group.filters, part)
            after.append(new)
        return (y.unflatten(-1, self.shape).sum(-1) if len(self.shape) == 2 else y), tuple(after)

    def _check_state(self, state: tuple[GroupState, ...], batch: int) -> None:
        ours = [shape for group in self._groups() for shape in group.state_shapes(batch)]
        try:
            given = [tuple(leaf.shape) for group in state for leaf in group if leaf is not None]
        except (TypeError, AttributeError):  # no pairs of tensors
            raise ArgumentError("state", "the state that forward and step return", type(state).__name__) from None
        if ours != given or len(state) != len(self.groups):
            raise ArgumentError("state", f"shapes {ours}", given)

    def _groups(self) -> list[ChannelGroup]:
        return [group for group in self.groups if isinstance(group, ChannelGroup)]
