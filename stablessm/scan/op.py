"""The scan as a PyTorch operator: autograd, ``torch.compile``, ``torch.func.grad`` and ``vmap``.

Inside, everything has one form: ``decay`` is (B or 1, T or 1, C), ``drive`` (B, T, C), ``initial`` (B, C) or None,
``reset`` (B, T) bool or None. :func:`stablessm.scan.linear_scan` brings its arguments into it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode

from stablessm.scan import backends


@torch.library.custom_op("stablessm::scan", mutates_args=())
def scan_op(
    decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool, backend: str
) -> Tensor:
    """All states of h[t] = decay[t] h[t-1] + drive[t]."""
    return backends.load(backend).forward(decay, drive, initial, reset, reverse)


@torch.library.custom_op("stablessm::scan_backward", mutates_args=())
def scan_backward_op(
    grad: Tensor,
    decay: Tensor,
    states: Tensor,
    initial: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of decay, drive and initial, fused into one pass over time."""
    d_decay, d_drive, d_initial = backends.load(backend).backward(grad, decay, states, initial, reset, reverse)
    return d_decay, d_drive, d_initial if initial is not None else states.new_zeros(len(states), states.shape[2])


@scan_op.register_fake
def _(
    decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool, backend: str
) -> Tensor:
    return drive.new_empty(drive.shape)


@scan_backward_op.register_fake
def _(
    grad: Tensor,
    decay: Tensor,
    states: Tensor,
    initial: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, channels = states.shape
    return decay.new_empty(decay.shape), states.new_empty(states.shape), states.new_empty(batch, channels)


def plain(tensor: Tensor) -> bool:
    """Whether a backend may run on this tensor without the operator, whose dispatch costs more than a small scan.

    Not where somebody looks at operations, or where the tensor stands for many.
    """
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and _get_current_dispatch_mode() is None
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


def quick(signal: Tensor) -> bool:
    """Whether nobody looks: neither ``torch.compile`` nor ``torch.func`` nor a mode."""
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active() and plain(signal)


def in_three(decay: Tensor) -> Tensor:
    """(C,), (T, C) or (B, T, C) in three dimensions."""
    return decay if decay.dim() == 3 else decay[None, None] if decay.dim() == 1 else decay[None]


def eager(function: Any) -> Any:
    """The same autograd function in the older form, which PyTorch calls without binding arguments by name.

    ``torch.func`` needs the newer form; the older one saves a third of the time of a small call. For ``plain`` tensors.
    """

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            output = function.at_once(*args)
            function.setup_context(ctx, args, output)
            return output

        backward = function.backward
        jvp = function.jvp

    return Eager


class Scan(torch.autograd.Function):
    """The operator's derivatives: reverse and forward mode, and vmap."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        """All states."""
        return Scan.at_once(*args) if plain(args[1]) else scan_op(*args)

    @staticmethod
    def at_once(decay: Tensor, *args: Any) -> Tensor:
        """The same without the operator."""
        return backends.load(args[-1]).forward(in_three(decay), *args[:-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the states: they are all that the gradient needs beside the decay."""
        decay, _, initial, reset, ctx.reverse, ctx.backend = inputs
        ctx.save_for_backward(decay, initial, reset, output)
        ctx.save_for_forward(decay, initial, reset, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of decay, drive and initial."""
        given, initial, reset, states = ctx.saved_tensors
        decay = in_three(given)
        # With create_graph (double backward, torch.func) the gradient itself must be differentiable.
        again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        at_once: Any = _gradients_at_once if plain(grad) else scan_backward_op
        gradients = _gradients_by_scan if again else at_once
        d_decay, d_drive, d_initial = gradients(grad, decay, states, initial, reset, ctx.reverse, ctx.backend)
        if initial is not None:
            d_initial = (d_initial if initial.is_complex() else d_initial.real).to(initial.dtype)
        if given.dim() < 3:
            d_decay = d_decay.view(given.shape)
        return d_decay, d_drive, None if initial is None else d_initial, None, None, None

    @staticmethod
    def jvp(ctx: Any, d_decay: Tensor | None, d_drive: Tensor | None, d_initial: Tensor | None, *_: None) -> Tensor:
        """dh[t] = a[t] dh[t-1] + (da[t] h[t-1] + dx[t])."""
        given, initial, reset, states = ctx.saved_tensors
        decay, d_decay = in_three(given), None if d_decay is None else in_three(d_decay)
        drive = torch.zeros_like(states) if d_drive is None else d_drive
        if d_decay is not None:
            before = _without_reset(_before(states, initial, ctx.reverse), reset)
            drive = drive + (d_decay * before).to(drive.dtype)
        return scan(decay, drive, d_initial, reset, ctx.reverse, ctx.backend)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        decay: Tensor,
        drive: Tensor,
        initial: Tensor | None,
        reset: Tensor | None,
        reverse: bool,
        backend: str,
    ) -> tuple[Tensor, int]:
        """A mapped dimension joins the batch; where only a decay shared by the batch is mapped, the channels."""
        size = info.batch_size

        def front(tensor: Tensor | None, dim: int | None) -> Tensor | None:
            if tensor is None:
                return None
            return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

        a, x, h, r = (front(*pair) for pair in zip((decay, drive, initial, reset), in_dims, strict=False))
        assert a is not None
        assert x is not None
        _, batch, _, channels = x.shape
        if in_dims[0] is not None and a.shape[1] == 1 and batch > 1 and in_dims[3] is None:
            states = scan(
                a.permute(1, 2, 0, 3).flatten(2),
                x.permute(1, 2, 0, 3).flatten(2),
                None if h is None else h.transpose(0, 1).flatten(1),
                reset,
                reverse,
                backend,
            )
            return states.unflatten(2, (size, channels)), 2
        shared = in_dims[0] is None and a.shape[1] == 1
        a = decay if shared else a.expand(size, batch, *a.shape[2:]).flatten(0, 1)
        h, r = (None if tensor is None else tensor.flatten(0, 1) for tensor in (h, r))
        return scan(a, x.flatten(0, 1), h, r, reverse, backend).unflatten(0, (size, batch)), 0


scan_op.register_autograd(Scan.backward, setup_context=Scan.setup_context)
EagerScan = eager(Scan)


def choose(operator: Any, function: Any, eager_function: Any, at_once: bool, *tensors: Tensor | None) -> Any:
    """What to call: the operator in ``torch.compile``, the function in ``torch.func``, otherwise its quick forms.

    ``torch.compile`` cannot trace a function with a forward derivative, and ``torch.func`` does not see the
    derivative registered with an operator: each gets the form it knows. ``at_once`` is what :func:`quick` says.
    """
    if at_once:
        return eager_function.apply if _differentiated(*tensors) else function.at_once
    return operator if torch.compiler.is_compiling() else function.apply


def scan(
    decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool, backend: str
) -> Tensor:
    """The operator, differentiable everywhere; here the decay may have fewer dimensions.

    That saves a small call a view and its derivative.
    """
    at_once = quick(drive)
    if not at_once:
        decay = in_three(decay)
    run = choose(scan_op, Scan, EagerScan, at_once, drive, decay, initial)
    return run(decay, drive, initial, reset, reverse, backend)


def _differentiated(*tensors: Tensor | None) -> bool:
    """Whether a derivative of either kind is to come."""
    recorded = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return recorded or _forward_mode._current_level >= 0


def _gradients_at_once(grad: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return backends.load(args[-1]).backward(grad, *args[:-1])


def _before(states: Tensor, initial: Tensor | None, reverse: bool) -> Tensor:
    """h[t-1] at every t: the states one step later in scan order, ``initial`` first."""
    first = torch.zeros_like(states[:, :1]) if initial is None else initial.to(states.dtype)[:, None]
    parts = (states[:, 1:], first) if reverse else (first, states[:, :-1])
    return torch.cat(parts, 1)[:, : states.shape[1]]


def _without_reset(rows: Tensor, reset: Tensor | None) -> Tensor:
    return rows if reset is None else torch.where(reset[..., None], torch.zeros_like(rows), rows)


def _gradients_by_scan(
    grad: Tensor,
    decay: Tensor,
    states: Tensor,
    initial: Tensor | None,
    reset: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same gradients from differentiable operations: the adjoint of a scan is a scan the other way.

    λ[t] = g[t] + conj(a[t+1]) λ[t+1];  dx = λ;  da[t] = λ[t] conj(h[t-1]);  dh[-1] = conj(a[0]) λ[0].
    """
    wide = torch.promote_types(states.dtype, torch.float32)
    a = _without_reset(decay.to(wide).expand(states.shape), reset)
    after = _before(a, None, not reverse)
    adjoint = scan(after.conj(), grad.to(wide), None, None, not reverse, backend)
    d_decay = adjoint * _without_reset(_before(states.to(wide), initial, reverse), reset).conj()
    start = slice(-1, None) if reverse else slice(0, 1)
    d_initial = (a[:, start].conj() * adjoint[:, start]).sum(1)  # a sum, so that length 0 gives zeros
    return d_decay.sum_to_size(decay.shape).to(decay.dtype), adjoint.to(states.dtype), d_initial.to(states.dtype)


@scan_backward_op.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return torch.vmap(_gradients_by_scan, in_dims=in_dims)(*args), (0, 0, 0)
