"""The fused layer as a PyTorch operator: autograd, ``torch.compile``, ``torch.func.grad``, ``vmap`` and ``jvp``.

Inside, everything has one form: ``x`` is (B, T, H) real; ``decay``, ``B`` and ``C`` are (H, N) and ``initial``
(B, H, N) or None, all of one real or complex dtype, float32 at least; ``D`` is (H,) real or None, ``reset`` (B, T) bool
or None, ``lengths`` (B,) int64 or None. :func:`stablessm.scan.ssm_scan` brings its arguments into it.

A backend's ``forward`` returns the output, the final state, and one tensor of checkpoints from which its ``backward``
finds the states again; ``checkpoint_shape(x, decay, reset, lengths)`` tells that tensor's shape and dtype without
running anything.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from stablessm.scan.checks import autocast_enabled, checked_lengths
from stablessm.scan.op import choose, eager, plain, quick, scan
from stablessm.scan.reference_ssm_backend import by_states, last_state, real_steps


@functools.cache
def load(name: str) -> ModuleType:
    """The backend's module, with ``forward``, ``backward`` and ``checkpoint_shape``."""
    return importlib.import_module(f"stablessm.scan.{name}_ssm_backend")


def _run(backend: str, direction: str, first: Tensor, *rest: Any) -> Any:
    """A backend's ``forward`` or ``backward``. Autocast would shorten the products of matrices in it."""
    function, device = getattr(load(backend), direction), first.device.type
    if not autocast_enabled(device):
        return function(first, *rest)
    with torch.autocast(device, enabled=False):
        return function(first, *rest)


def _sound(lengths: Tensor | None, x: Tensor) -> Tensor | None:
    """Lengths that no kernel leaves its arrays by: while it compiles nobody knows their values.

    On a GPU, which is not waited for, they are cut to what there is.
    """
    if lengths is None or lengths.is_cpu:
        return checked_lengths(lengths, *x.shape[:2])
    return lengths.clamp(0, x.shape[1])


@torch.library.custom_op("stablessm::ssm_scan", mutates_args=())
def ssm_op(
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """y[t] = Re Σ_n C h[t] + D x[t] with h[t] = decay h[t-1] + B x[t]; the final state; checkpoints."""
    return _run(backend, "forward", x, decay, B, C, D, initial, reset, _sound(lengths, x))


@torch.library.custom_op("stablessm::ssm_scan_backward", mutates_args=())
def ssm_backward_op(
    d_y: Tensor,
    d_final: Tensor | None,
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    checkpoints: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, decay, B, C, D and initial (or nothing); states are made again from the checkpoints."""
    inputs = (x, decay, B, C, D, initial, reset, _sound(lengths, x))
    *rest, d_initial = _run(backend, "backward", d_y, d_final, *inputs, checkpoints)
    return *rest, decay.new_empty(0) if d_initial is None else d_initial


@ssm_op.register_fake
def _(
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    shape, dtype = load(backend).checkpoint_shape(x, decay, reset, lengths)
    return x.new_empty(x.shape), decay.new_empty(len(x), *decay.shape), x.new_empty(shape, dtype=dtype)


@ssm_backward_op.register_fake
def _(
    d_y: Tensor,
    d_final: Tensor | None,
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    checkpoints: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    parameter = decay.new_empty(decay.shape)
    d_D = x.new_empty(decay.shape[0], dtype=decay.real.dtype)
    states = decay.new_empty(0) if initial is None else decay.new_empty(initial.shape)
    return x.new_empty(x.shape), parameter, torch.empty_like(parameter), torch.empty_like(parameter), d_D, states


class SSM(torch.autograd.Function):
    """The operator's derivatives: reverse and forward mode, and vmap."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Output, final state, checkpoints."""
        return SSM.at_once(*args) if plain(args[0]) else ssm_op(*args)

    @staticmethod
    def at_once(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The same without the operator."""
        return _run(args[-1], "forward", *args[:-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Keep the inputs and the checkpoints: no array of the size of all states."""
        *tensors, ctx.backend = inputs
        checkpoints = output[2]
        ctx.mark_non_differentiable(checkpoints)
        ctx.set_materialize_grads(False)  # or the checkpoints would get a gradient of zeros as large as they are
        ctx.save_for_backward(*tensors, checkpoints)
        ctx.save_for_forward(*tensors, checkpoints)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor | None, d_final: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        """Gradients of x, decay, B, C, D and initial."""
        *tensors, checkpoints = ctx.saved_tensors
        d_y = torch.zeros_like(tensors[0]) if d_y is None else d_y
        # With create_graph (double backward, torch.func) the gradient itself must be differentiable.
        again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        at_once = plain(d_y) and (d_final is None or plain(d_final)) and not again
        gradients: Any = _gradients_at_once if at_once else _gradients_by_states if again else ssm_backward_op
        *rest, d_D, d_initial = gradients(d_y, d_final, *tensors, checkpoints, ctx.backend)
        D, initial = tensors[4:6]
        return (*rest, None if D is None else d_D, None if initial is None else d_initial, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor, None]:
        """dh[t] = a dh[t-1] + (da h[t-1] + dB x[t] + B dx[t]);  dy[t] = Re Σ (dC h[t] + C dh[t]) + dD x + D dx."""
        x, decay, B, C, D, initial, reset, lengths, _ = ctx.saved_tensors
        d_x, d_decay, d_B, d_C = (
            torch.zeros_like(value) if tangent is None else tangent
            for value, tangent in zip((x, decay, B, C), tangents, strict=False)
        )
        d_D, d_initial = tangents[4:6]
        signal, d_signal = (tensor.to(decay.real.dtype) for tensor in (x, d_x))
        if lengths is not None:
            real = real_steps(lengths, x.shape[1])[..., None]
            signal, d_signal = (torch.where(real, u, torch.zeros_like(u)) for u in (signal, d_signal))
        before = decay.new_zeros(len(x), *decay.shape) if initial is None else initial

        def states(drive: Tensor, start: Tensor | None) -> Tensor:
            start = None if start is None else start.flatten(1)
            return scan(decay.flatten()[None, None], drive.flatten(2), start, reset, False, ctx.backend).view_as(drive)

        h = torch.cat([before[:, None], states(signal[..., None] * B, before)], 1)
        kept = (
            h[:, :-1] if reset is None else torch.where(reset[..., None, None], torch.zeros_like(h[:, 1:]), h[:, :-1])
        )
        d_drive = d_decay * kept + signal[..., None] * d_B + d_signal[..., None] * B
        start = torch.zeros_like(before) if d_initial is None else d_initial
        d_h = states(d_drive, start)
        d_y = (d_C * h[:, 1:] + C * d_h).sum(-1)
        d_y = d_y.real if d_y.is_complex() else d_y
        if D is not None:
            d_y = d_y + D * d_signal
        if d_D is not None:
            d_y = d_y + d_D * signal
        if lengths is not None:
            d_y = torch.where(real, d_y, torch.zeros_like(d_y))
        return d_y.to(x.dtype), last_state(d_h, start, lengths), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """By states: a mapped decay, B or C is a layer of its own, which no backend's kernels know."""
        y, final = torch.vmap(by_states, in_dims=in_dims)(*args)
        return (y, final, y.new_empty(0)), (0, 0, None)


ssm_op.register_autograd(SSM.backward, setup_context=SSM.setup_context)
EagerSSM = eager(SSM)


def ssm(
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Output and final state, differentiable everywhere (as :func:`stablessm.scan.op.scan`)."""
    run = choose(ssm_op, SSM, EagerSSM, quick(x), x, decay, B, C, D, initial)
    y, final, _ = run(x, decay, B, C, D, initial, reset, lengths, backend)
    return y, final


def _gradients_at_once(d_y: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return _run(args[-1], "backward", d_y, *args[:-1])


def _gradients_by_states(
    d_y: Tensor, d_final: Tensor | None, x: Tensor, decay: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    initial: Tensor | None, reset: Tensor | None, lengths: Tensor | None, _: Tensor, backend: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The same gradients from differentiable operations."""
    d_final = decay.new_zeros(len(x), *decay.shape) if d_final is None else d_final
    skip = x.new_zeros(len(decay), dtype=decay.real.dtype) if D is None else D
    start = decay.new_zeros(len(x), *decay.shape) if initial is None else initial

    outputs = functools.partial(by_states, reset=reset, lengths=lengths, backend=backend)
    return torch.func.vjp(outputs, x, decay, B, C, skip, start)[1]((d_y, d_final))


@ssm_backward_op.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return torch.vmap(_gradients_by_states, in_dims=in_dims)(*args), (0,) * 6
