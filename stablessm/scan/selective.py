"""The public function ``selective_scan``: it checks and normalizes its arguments, and calls the operator."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from stablessm._errors import ArgumentError
from stablessm._typing import Lengths
from stablessm.scan import backends
from stablessm.scan.checks import (
    check_flags,
    check_kinds,
    check_reset,
    check_same_device,
    check_shapes,
    check_tensor,
    checked_lengths,
)
from stablessm.scan.dispatch import exporting
from stablessm.scan.padding import without_padding
from stablessm.scan.protocol import Selective
from stablessm.scan.selective_op import selective
from stablessm.scan.selective_states import by_states


def selective_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    initial: Tensor | None = None,
    *,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    reset: Tensor | None = None,
    lengths: Lengths = None,
    below_one: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute a selective state-space layer (S6 of Mamba, arXiv 2312.00752), from its input to its output.

    For each of H channels with N states, whose time step and readout depend on the input:

    h_n[t] = exp(delta[t] A_n) h_n[t-1] + delta[t] B_n[t] x[t],  y[t] = (Σ_n C_n[t] h_n[t] + D x[t]) · silu(z[t]).

    The states are stored only every 8 to 64 steps; the backward pass recomputes the states of the other steps.

    Args:
        x: (B, T, H), real.
        delta: (B, T, H), the time steps, usually positive.
        A: (H, N), the rates; the recurrence is stable if all rates are negative and all time steps are positive.
        B, C: (B, T, N), shared by all channels.
        D: (H,) (default: no direct term).
        z: (B, T, H), the input of the output gate (default: no gate).
        initial: (B, H, N), the state before the first step (default: zeros).
        delta_bias: (H,), added to ``delta`` (default: nothing).
        delta_softplus: whether softplus is applied to ``delta``, after the bias is added.
        reset: (T,) or (B, T), bool. True at a step that takes nothing from the previous state.
        lengths: (B,): the number of real steps of each right-padded sequence. Padding is ignored, its output is zero.
        below_one: whether every decay is kept below 1 where exp(delta A) would be rounded to 1, for A < 0 < delta.
        backend: ``auto`` (chosen by device), or one of :data:`stablessm.scan.NAMES`.

    Returns:
        The output (B, T, H) in the dtype of x, and the state (B, H, N) after the last step, in float32 or better.

    float16 and bfloat16 are computed in float32. The result is differentiable in every tensor. The same input gives
    bitwise identical results.

    >>> one = torch.ones(1, 3, 1)
    >>> y, final = selective_scan(one, one, A=torch.tensor([[-0.6931472]]), B=one, C=one)
    >>> y.flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    _check(x, A, delta=delta, B=B, C=C, D=D, z=z, initial=initial, delta_bias=delta_bias)
    check_flags(delta_softplus=delta_softplus, below_one=below_one)
    layer = _prepared(Selective(x, delta, A, B, C, initial, reset, checked_lengths(lengths, x), below_one))
    step = layer.delta if delta_bias is None else layer.delta + delta_bias.to(layer.delta.dtype)
    layer = layer._replace(delta=softplus(step) if delta_softplus else step)
    y, final = _run(layer, backend)
    y = y if D is None else y + D.to(y.dtype) * layer.x
    y = y if z is None else y * silu(without_padding(z.to(y.dtype), layer.lengths))
    return y.to(x.dtype), final


def _prepared(layer: Selective) -> Selective:
    """Return the layer with all tensors in one dtype, float32 or better, and zeros in place of padding."""
    x, delta, A, B, C, initial, reset, lengths, below_one = layer
    check_reset(reset, *x.shape[:2])
    check_same_device("x", x, reset=reset, lengths=lengths)
    given = [tensor for tensor in (x, delta, A, B, C, initial) if tensor is not None]
    wide = functools.reduce(torch.promote_types, (tensor.dtype for tensor in given), torch.float32)
    x, delta, B, C = (without_padding(tensor.to(wide), lengths) for tensor in (x, delta, B, C))
    initial = None if initial is None else initial.to(wide)
    reset = None if reset is None else reset.expand(x.shape[:2])
    return Selective(x, delta, A.to(wide), B, C, initial, reset, lengths, below_one)


def _run(layer: Selective, backend: str) -> tuple[Tensor, Tensor]:
    name = backends.resolve(backend, layer.x.device)
    return (by_states if name == "reference" or exporting() else selective)(layer, name)


def _check(x: Tensor, A: Tensor, **others: Tensor | None) -> None:
    """Raise an error unless all tensors are real, on the device of x, and of matching shapes."""
    check_tensor("x", x, 3)
    check_tensor("A", A, 2, "(channel, state)")
    for name in ("delta", "B", "C"):
        check_tensor(name, others[name], 3)
    tensors = {"A": A, **others}
    check_kinds("x", x=x, **tensors)
    (batch, steps, channels), states = x.shape, A.shape[1]
    shapes = {
        "delta": x.shape, "A": (channels, states), "B": (batch, steps, states), "C": (batch, steps, states),
        "D": (channels,), "z": x.shape, "initial": (batch, channels, states), "delta_bias": (channels,),
    }  # fmt: skip
    for name, tensor in {"x": x, **tensors}.items():
        if tensor is not None and tensor.is_complex():
            raise ArgumentError(name, "a real dtype", tensor.dtype)
    check_shapes(shapes, tensors, " to match x and A")
