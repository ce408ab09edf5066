"""The fused layer as a PyTorch operator with autograd, ``torch.compile``, ``torch.func.grad``, ``vmap`` and ``jvp``.

Arguments have the form of :class:`stablessm.scan.protocol.DiagonalSSM`, which :func:`stablessm.scan.ssm_scan` prepares.
An operator cannot take a NamedTuple, so its fields are separate arguments, followed by the name of the backend.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm.scan import backends
from stablessm.scan.checks import autocast_enabled, check_like, check_raw_layer, checked_lengths
from stablessm.scan.dispatch import Forms, eager, plain, quick
from stablessm.scan.linear_op import scan
from stablessm.scan.padding import last_state, without_padding, without_resets
from stablessm.scan.protocol import DiagonalSSM
from stablessm.scan.reference.ssm import by_states, gradients_by_states

_TENSORS = "Tensor x, Tensor decay, Tensor B, Tensor C, Tensor? D, Tensor? initial, Tensor? reset, Tensor? lengths"
_LAYER = f"{_TENSORS}, str backend"


def _run(backend: str, direction: str, layer: DiagonalSSM, *rest: Any) -> Any:
    """Call ``forward`` or ``backward`` of a backend (``direction``) with autocast off.

    Autocast would make matrix products less accurate.
    """
    function, device = getattr(backends.load(backend).ssm, direction), layer.x.device.type
    if not autocast_enabled(device):
        return function(layer, *rest)
    with torch.autocast(device, enabled=False):
        return function(layer, *rest)


def _sound(*args: Any) -> tuple[str, str, DiagonalSSM]:
    """Check the arguments of the operator ``stablessm::ssm_scan``; return the arguments with which to call
    :func:`_run`.

    On a CPU, lengths are checked, except during compilation, when their values are unknown. On a GPU, a check would
    have to wait for the GPU, so lengths are clamped to the number of steps instead.
    """
    layer = DiagonalSSM(*args[:-1])
    check_raw_layer(layer)
    backend, x, lengths = backends.resolve(args[-1], layer.x.device), layer.x, layer.lengths
    if lengths is None:
        return backend, "forward", layer
    sound = checked_lengths(lengths, x) if lengths.is_cpu else lengths.clamp(0, x.shape[1])
    return backend, "forward", layer._replace(lengths=sound)


@torch.library.custom_op("stablessm::ssm_scan", mutates_args=(), schema=f"({_LAYER}) -> (Tensor, Tensor, Tensor)")
def ssm_op(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The operator ``stablessm::ssm_scan``: compute a diagonal layer's output, final state and checkpoints.

    y[t] = Re Σ_n C h[t] + D x[t] with h[t] = decay h[t-1] + B x[t].
    """
    return _run(*_sound(*args))


@torch.library.custom_op(
    "stablessm::ssm_scan_backward",
    mutates_args=(),
    schema=f"(Tensor d_y, Tensor? d_final, Tensor checkpoints, {_LAYER}) -> ({', '.join(['Tensor'] * 6)})",
)
def ssm_backward_op(d_y: Tensor, d_final: Tensor | None, checkpoints: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """The operator ``stablessm::ssm_scan_backward``: compute the gradients with respect to x, decay, B, C, D and
    initial.

    The gradient of initial is an empty tensor if there is no initial state.
    """
    backend, _, layer = _sound(*args)
    x, shape_and_dtype = layer.x, backends.load(backend).ssm.checkpoint_shape(layer)
    check_like("checkpoints", checkpoints, *shape_and_dtype, x.device)
    check_like("d_y", d_y, tuple(x.shape), x.dtype, x.device)
    if d_final is not None:
        check_like("d_final", d_final, (x.shape[0], *layer.decay.shape), layer.decay.dtype, x.device)
    *rest, d_initial = _run(backend, "backward", layer, checkpoints, d_y, d_final)
    return *rest, layer.decay.new_empty(0) if d_initial is None else d_initial


@ssm_op.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    *fields, backend = args
    layer = DiagonalSSM(*fields)
    shape, dtype = backends.load(backend).ssm.checkpoint_shape(layer)
    return layer.x.new_empty(layer.x.shape), layer.zero_state(), layer.x.new_empty(shape, dtype=dtype)


@ssm_backward_op.register_fake
def _(d_y: Tensor, d_final: Tensor | None, checkpoints: Tensor, *args: Any) -> tuple[Tensor, ...]:
    layer = DiagonalSSM(*args[:-1])
    x, decay = layer.x, layer.decay
    d_decay, d_B, d_C = (decay.new_empty(decay.shape) for _ in range(3))
    d_D = x.new_empty(decay.shape[0], dtype=layer.real_dtype)
    d_initial = decay.new_empty(0 if layer.initial is None else layer.initial.shape)
    return x.new_empty(x.shape), d_decay, d_B, d_C, d_D, d_initial


class SSM(torch.autograd.Function):
    """The autograd function of the diagonal layer, with reverse mode, forward mode and vmap."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the layer's output, final state and checkpoints, computed by the operator :func:`ssm_op`."""
        return SSM.at_once(*args) if plain(args[0]) else ssm_op(*args)

    @staticmethod
    def at_once(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the layer's output, final state and checkpoints, computed by the backend directly, without the
        operator.
        """
        *layer, backend = args
        return _run(backend, "forward", DiagonalSSM(*layer))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Save the inputs and the checkpoints for ``backward``, but not all states."""
        *tensors, ctx.backend = inputs
        checkpoints = output[2]
        ctx.mark_non_differentiable(checkpoints)
        ctx.set_materialize_grads(False)  # otherwise autograd allocates a zero gradient for the checkpoints
        ctx.save_for_backward(*tensors, checkpoints)
        ctx.save_for_forward(*tensors, checkpoints)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor | None, d_final: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to x, decay, B, C, D and initial."""
        *tensors, checkpoints = ctx.saved_tensors
        d_y = torch.zeros_like(tensors[0]) if d_y is None else d_y
        # With create_graph (double backward, torch.func) the gradient itself must be differentiable.
        again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        at_once = plain(checkpoints) and plain(d_y) and (d_final is None or plain(d_final)) and not again
        gradients: Any = _gradients_at_once if at_once else _gradients_by_states if again else ssm_backward_op
        *rest, d_D, d_initial = gradients(d_y, d_final, checkpoints, *tensors, ctx.backend)
        D, initial = tensors[4:6]
        return (*rest, None if D is None else d_D, None if initial is None else d_initial, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor, None]:
        """Compute the forward-mode derivatives of the output and of the final state.

        The derivative of the output is dy[t] = Re Σ (dC h[t] + C dh[t]) + dD x + D dx. Here dh[t] = a dh[t-1] + (da
        h[t-1] + dB x[t] + B dx[t]) is the derivative of the state, and a is the decay.
        """
        x, decay, B, C, D, initial, reset, lengths, _ = ctx.saved_tensors
        d_x, d_decay, d_B, d_C = (
            torch.zeros_like(value) if tangent is None else tangent
            for value, tangent in zip((x, decay, B, C), tangents, strict=False)
        )
        d_D, d_initial = tangents[4:6]
        signal, d_signal = (without_padding(tensor.to(decay.real.dtype), lengths) for tensor in (x, d_x))
        before = decay.new_zeros(x.shape[0], *decay.shape) if initial is None else initial

        def states(drive: Tensor, start: Tensor | None) -> Tensor:
            start = None if start is None else start.flatten(1)
            return scan(decay.flatten()[None, None], drive.flatten(2), start, reset, False, ctx.backend).view_as(drive)

        h = torch.cat([before[:, None], states(signal[..., None] * B, before)], 1)
        d_drive = d_decay * without_resets(h[:, :-1], reset) + signal[..., None] * d_B + d_signal[..., None] * B
        start = torch.zeros_like(before) if d_initial is None else d_initial
        d_h = states(d_drive, start)
        d_y = (d_C * h[:, 1:] + C * d_h).sum(-1)
        d_y = d_y.real if d_y.is_complex() else d_y
        if D is not None:
            d_y = d_y + D * d_signal
        if d_D is not None:
            d_y = d_y + d_D * signal
        return without_padding(d_y, lengths).to(x.dtype), last_state(d_h, start, lengths), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """Run all layers of a ``vmap`` as one layer with more channels.

        If resets or lengths are mapped, a scan computes all states in memory instead.
        """
        if in_dims[6] is not None or in_dims[7] is not None:  # reset and lengths belong to a sequence, not to a channel
            y, final = torch.vmap(lambda *args: by_states(DiagonalSSM(*args[:-1]), args[-1]), in_dims=in_dims)(*args)
            return (y, final, y.new_empty(0)), (0, 0, None)
        size, axes = info.batch_size, (2, 0, 0, 0, 0, 1)  # dimension of the channels in each argument

        def joined(tensor: Tensor | None, dim: int | None, axis: int) -> Any:
            if tensor is None:
                return None
            front = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            return front.movedim(0, axis).flatten(axis, axis + 1)

        *rows, backend = args[6:]
        layers = DiagonalSSM(*(joined(*each) for each in zip(args, in_dims, axes, strict=False)), *rows)
        y, final = ssm(layers, backend)
        return (y.unflatten(2, (size, -1)), final.unflatten(1, (size, -1)), y.new_empty(0)), (2, 1, None)


ssm_op.register_autograd(SSM.backward, setup_context=SSM.setup_context)
_FORMS = Forms(ssm_op, SSM, eager(SSM))


def ssm(layer: DiagonalSSM, backend: str) -> tuple[Tensor, Tensor]:
    """Compute the output and final state of a layer by the fastest way that supports the required derivatives.

    The ways are: to call the backend, an autograd function or the operator.
    """
    run = _FORMS.choose(quick(layer.x), *layer[:6])
    y, final, _ = run(*layer, backend)
    return y, final


def _gradients_at_once(d_y: Tensor, d_final: Tensor | None, checkpoints: Tensor, *args: Any) -> tuple[Tensor, ...]:
    *layer, backend = args
    return _run(backend, "backward", DiagonalSSM(*layer), checkpoints, d_y, d_final)


def _gradients_by_states(d_y: Tensor, d_final: Tensor | None, _: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Compute the gradients of all arguments by PyTorch operations, which can be differentiated again."""
    *layer, backend = args
    return gradients_by_states(DiagonalSSM(*layer), d_y, d_final, backend)


@ssm_backward_op.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return torch.vmap(_gradients_by_states, in_dims=in_dims)(*args), (0,) * 6
