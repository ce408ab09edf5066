"""The linear scan as a PyTorch operator with autograd, ``torch.compile``, ``torch.func.grad`` and ``vmap``.

Arguments have the form of :class:`stablessm.scan.protocol.Recurrence`, which :func:`stablessm.scan.linear_scan`
prepares. An operator cannot take a NamedTuple, so the fields are separate arguments here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm.scan import backends
from stablessm.scan.checks import check_raw_recurrence
from stablessm.scan.dispatch import Forms, eager, plain, quick
from stablessm.scan.padding import without_resets
from stablessm.scan.protocol import Recurrence
from stablessm.scan.reference.linear import before, gradients


@torch.library.custom_op("stablessm::scan", mutates_args=())
def scan_op(
    decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool, backend: str
) -> Tensor:
    """The operator ``stablessm::scan``: compute all states of h[t] = decay[t] h[t-1] + drive[t]."""
    recurrence = Recurrence(decay, initial, reset, reverse)
    check_raw_recurrence(recurrence, drive=drive)
    return backends.load(backends.resolve(backend, drive.device)).linear.forward(recurrence, drive)


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
    """The operator ``stablessm::scan_backward``: compute the gradients with respect to decay, drive and initial."""
    recurrence = Recurrence(decay, initial, reset, reverse)
    check_raw_recurrence(recurrence, states=states, grad=grad)
    linear = backends.load(backends.resolve(backend, states.device)).linear
    d_decay, d_drive, d_initial = linear.backward(recurrence, states, grad)
    return d_decay, d_drive, states.new_zeros(len(states), states.shape[2]) if d_initial is None else d_initial


@scan_op.register_fake
def _(decay: Tensor, drive: Tensor, *rest: Any) -> Tensor:
    return drive.new_empty(drive.shape)


@scan_backward_op.register_fake
def _(grad: Tensor, decay: Tensor, states: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, channels = states.shape
    return decay.new_empty(decay.shape), states.new_empty(states.shape), states.new_empty(batch, channels)


def in_three(decay: Tensor) -> Tensor:
    """Return a view with three dimensions of a decay (C,), (T, C) or (B, T, C); missing dimensions have size 1."""
    return decay if decay.dim() == 3 else decay[None, None] if decay.dim() == 1 else decay[None]


class Scan(torch.autograd.Function):
    """The autograd function of the linear scan, with reverse mode, forward mode and vmap."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        """Compute all states h[t] of the scan by the operator :func:`scan_op`."""
        return Scan.at_once(*args) if plain(args[1]) else scan_op(*args)

    @staticmethod
    def at_once(decay: Tensor, *args: Any) -> Tensor:
        """Compute all states h[t] of the scan by calling the backend directly, without the operator."""
        drive, *rest, backend = args
        return backends.load(backend).linear.forward(Recurrence(in_three(decay), *rest), drive)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the decay and the states, from which the gradients are computed."""
        decay, _, initial, reset, ctx.reverse, ctx.backend = inputs
        ctx.save_for_backward(decay, initial, reset, output)
        ctx.save_for_forward(decay, initial, reset, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to decay, drive and initial."""
        given, initial, reset, states = ctx.saved_tensors
        # With create_graph (double backward, torch.func) the gradient itself must be differentiable.
        again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        at_once = plain(grad) and plain(states)  # not after torch.func.vjp, which leaves wrapped states
        run: Any = _gradients_by_scan if again else _gradients_at_once if at_once else scan_backward_op
        d_decay, d_drive, d_initial = run(grad, in_three(given), states, initial, reset, ctx.reverse, ctx.backend)
        if initial is not None:
            d_initial = (d_initial if initial.is_complex() else d_initial.real).to(initial.dtype)
        if given.dim() < 3:
            d_decay = d_decay.view(given.shape)
        return d_decay, d_drive, None if initial is None else d_initial, None, None, None

    @staticmethod
    def jvp(ctx: Any, d_decay: Tensor | None, d_drive: Tensor | None, d_initial: Tensor | None, *_: None) -> Tensor:
        """Compute the forward-mode derivative by the scan dh[t] = a[t] dh[t-1] + (da[t] h[t-1] + dx[t])."""
        given, initial, reset, states = ctx.saved_tensors
        decay, d_decay = in_three(given), None if d_decay is None else in_three(d_decay)
        drive = torch.zeros_like(states) if d_drive is None else d_drive
        if d_decay is not None:
            carried = without_resets(before(states, initial, ctx.reverse), reset)
            drive = drive + (d_decay * carried).to(drive.dtype)
        return scan(decay, drive, d_initial, reset, ctx.reverse, ctx.backend)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        """Run all scans of a ``vmap`` as one scan with a larger batch or more channels.

        The scan has more channels if the decay is mapped, is the same for all sequences of the batch, and resets are
        not mapped.
        """
        decay, drive, initial, reset, *rest = args
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
            a, x = (tensor.permute(1, 2, 0, 3).flatten(2) for tensor in (a, x))
            states = scan(a, x, None if h is None else h.transpose(0, 1).flatten(1), reset, *rest)
            return states.unflatten(2, (size, channels)), 2
        shared = in_dims[0] is None and a.shape[1] == 1
        a = decay if shared else a.expand(size, batch, *a.shape[2:]).flatten(0, 1)
        h, r = (None if tensor is None else tensor.flatten(0, 1) for tensor in (h, r))
        return scan(a, x.flatten(0, 1), h, r, *rest).unflatten(0, (size, batch)), 0


scan_op.register_autograd(Scan.backward, setup_context=Scan.setup_context)
_FORMS = Forms(scan_op, Scan, eager(Scan))


def scan(
    decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None, reverse: bool, backend: str
) -> Tensor:
    """Compute all states of the linear scan by the fastest way that supports the required derivatives.

    The ways are: to call the backend, an autograd function or the operator. The decay may have fewer than three
    dimensions: in small calls, a view with three dimensions and the derivative of this view would take a noticeable
    part of the time.
    """
    at_once = quick(drive)
    if not at_once:
        decay = in_three(decay)
    run = _FORMS.choose(at_once, drive, decay, initial)
    return run(decay, drive, initial, reset, reverse, backend)


def _gradients_at_once(grad: Tensor, decay: Tensor, states: Tensor, *args: Any) -> tuple[Tensor | None, ...]:
    *rest, backend = args
    return backends.load(backend).linear.backward(Recurrence(decay, *rest), states, grad)


def _gradients_by_scan(grad: Tensor, decay: Tensor, states: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients with respect to decay, drive and initial by PyTorch operations, which can be
    differentiated again.
    """
    *rest, backend = args

    def adjoint(recurrence: Recurrence, drive: Tensor) -> Tensor:
        return scan(recurrence.decay, drive, *recurrence[1:], backend)

    return gradients(Recurrence(decay, *rest), states, grad, adjoint)


@scan_backward_op.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return torch.vmap(_gradients_by_scan, in_dims=in_dims)(*args), (0, 0, 0)
