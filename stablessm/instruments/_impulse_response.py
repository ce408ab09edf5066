"""Outputs of a linear model, computed from its responses to a zero input and to an impulse in each channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm.scan import causal_convolution

SHIFTED_BYTES = 2**25
"""Largest size at which all shifts of the inputs are stored, so that a matrix product replaces FFTs."""


@final
@dataclass(frozen=True)
class ImpulseResponse:
    """Computes outputs y = H(0) + Σ_i r_i * x_i of linear models for fixed inputs x, from impulse responses r_i.

    r_i is the response of a model to an impulse in channel i, H(0) its output for zero input, and * the convolution.
    """

    inputs: Tensor
    shifted: Tensor | None
    """All shifts x[b, t-s, i] of the inputs, as a matrix (d_input · T, B · T) with rows (i, s) and columns (b, t)."""

    @classmethod
    def on(cls, inputs: Tensor) -> ImpulseResponse:
        """Prepare the computation of outputs for given inputs (B, T, d_input).

        If memory allows, all shifted copies of the inputs are stored, so that each convolution becomes one product with
        a matrix.
        """
        batch, steps, channels = inputs.shape
        if batch * steps**2 * channels * inputs.element_size() > SHIFTED_BYTES:
            return cls(inputs, None)
        past = F.pad(inputs.permute(2, 0, 1), (steps - 1, 0)).unfold(-1, steps, 1)  # (i, b, t, reversed s)
        return cls(inputs, past.flip(-1).permute(0, 3, 1, 2).reshape(channels * steps, batch * steps).contiguous())

    def outputs(self, call: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the outputs (B, T, d_output) of an affine model, computed from its outputs for only 1 + d_input
        sequences.

        >>> x = torch.randn(8, 5, 2, dtype=torch.float64)
        >>> torch.allclose(ImpulseResponse.on(x).outputs(lambda x: 1 + x.cumsum(1)), 1 + x.cumsum(1))
        True
        """
        batch, steps, channels = self.inputs.shape
        nothing = self.inputs.new_zeros(1, steps, channels)
        impulses = nothing.repeat(channels, 1, 1)
        impulses[:, 0] = torch.eye(channels, dtype=nothing.dtype, device=nothing.device)
        (zero,) = call(nothing)  # separately: under vmap a scan over a batch of one needs no copies
        response = call(impulses) - zero  # (d_input, T, d_output)
        if self.shifted is not None:
            # vmap turns vector-matrix products into one matrix product, but matrix-matrix products into a loop.
            columns = [column @ self.shifted for column in response.flatten(0, 1).unbind(1)]
            return zero + torch.stack(columns, -1).unflatten(0, (batch, steps))
        size = response.shape[-1]
        signal = self.inputs[..., None].expand(batch, steps, channels, size).flatten(2)
        return zero + causal_convolution(signal, response.movedim(0, 1).flatten(1)).unflatten(-1, (channels, size)).sum(
            2
        )


def is_linear(model: nn.Module, inputs: Tensor, outputs: Tensor) -> bool:
    """Return True if a model has a method ``kernel`` and its impulse response reproduces the given outputs."""
    kernel = getattr(model, "kernel", None)
    if not callable(kernel):
        return False
    try:
        kernel(inputs.new_zeros(1))
    except Exception:  # our nonlinear layers raise; other models may mean something else by `kernel`
        return False
    again = ImpulseResponse.on(inputs).outputs(lambda x: only_output(model(x)))
    tolerance = 100 * torch.finfo(outputs.dtype).eps ** 0.75
    return torch.allclose(again, outputs, rtol=tolerance, atol=tolerance * float(outputs.abs().max()))


def only_output(answer: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return the output y from the result of a model, which is y or (y, state)."""
    return answer[0] if isinstance(answer, tuple) else answer
