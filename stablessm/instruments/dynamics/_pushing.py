"""Jacobian-vector products of one step of a model, by forward differentiation or by finite differences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stablessm.instruments._tangent import tangents
from stablessm.instruments.dynamics._stepping import Stepper

_TRIED = (1e-5, 1e-3)
"""Relative sizes of the finite differences with which a forward derivative is compared."""


SMALL = 8
"""Largest size of a state for which backward differentiation is faster."""


@final
@dataclass(frozen=True)
class Pusher:
    """A step of a model that also computes Jacobian-vector products J v."""

    stepper: Stepper
    mode: Literal["forward derivatives", "backward derivatives", "finite differences"]
    """Method to compute J v; finite differences if the model cannot be differentiated."""

    @property
    def eps(self) -> float:
        """Return the expected relative error of a Jacobian-vector product J v."""
        eps = max(torch.finfo(leaf.dtype).eps for leaf in self.stepper.layout.leaves)
        return eps ** (2 / 3) if self.mode == "finite differences" else eps

    def matrices(self, rows: Tensor, x: Tensor | None, frame: Any, scale: float) -> Any:
        """Advance R states of n numbers, (R, n), by one step; return the next states, Jacobian matrices and a state
        object.

        The Jacobian matrices (R, n, n) are the derivatives of the next states with respect to the states ``rows``. The
        returned state object is the ``frame`` of the next step.

        Args:
            rows: states (R, n).
            x: inputs of this step, or None.
            frame: state object of the model, from which states copy their structure.
            scale: size of the states, to which the size of finite differences is proportional.
        """
        count, size = rows.shape
        if self.mode == "backward derivatives":
            return self._backward(rows, x)
        eye = torch.eye(size, dtype=torch.float64).repeat(count, 1)
        wide, now = rows.repeat_interleave(size, 0), None if x is None else x.repeat_interleave(size, 0)
        after, moved, frame = self.push(wide, eye, now, frame, scale)
        return after[::size], moved.reshape(count, size, size).mT, frame

    def _backward(self, rows: Tensor, x: Tensor | None) -> Any:
        with torch.enable_grad():
            before = rows.detach().requires_grad_()
            after, _ = self.stepper.advance(before, x, self.stepper.frame)
            lines = [
                torch.autograd.grad(after[:, i].sum(), before, retain_graph=True, materialize_grads=True)[0]
                for i in range(rows.shape[1])
            ]
        return after.detach(), torch.stack(lines, 1).double(), self.stepper.frame

    def push(self, rows: Tensor, directions: Tensor, x: Tensor | None, frame: Any, scale: float) -> Any:
        """Advance R states of n numbers, (R, n), by one step; return the next states, the products J v and a state
        object.

        The products (R, n), in float64, are J v for each state, with its Jacobian matrix J and its direction v from
        ``directions``. The other arguments and the state object are as in :meth:`matrices`.
        """
        if self.mode == "finite differences":
            return self._difference(rows, directions, x, frame, scale * (self.eps**0.5))
        if self.stepper.vectorized:
            step = lambda state: self.stepper.advance(state, x, frame)[0]  # noqa: E731
            after, moved, *_ = torch.func.jvp(step, (rows,), (directions.to(rows.dtype),))
            return after.detach(), moved.detach().double(), frame
        with tangents():
            made = forward_ad.make_dual(rows, directions.to(rows.dtype))
            after, frame = self.stepper.advance(made, x, frame)
            value, tangent = forward_ad.unpack_dual(after)
            moved = torch.zeros_like(value) if tangent is None else tangent
            return value.detach(), moved.detach().double(), plain(self.stepper, value, frame)

    def _difference(self, rows: Tensor, directions: Tensor, x: Tensor | None, frame: Any, size: float) -> Any:
        length = torch.linalg.vector_norm(directions, dim=1, keepdim=True).clamp(min=1e-300)
        change = (directions * (size / length)).to(rows.dtype)
        after, frame_after = self.stepper.advance(rows, x, frame)
        ahead, _ = self.stepper.advance(rows + change, x, frame)
        behind, _ = self.stepper.advance(rows - change, x, frame)
        moved = (ahead.double() - behind.double()) * (length / (2 * size))
        return after, moved, frame_after


def plain(stepper: Stepper, rows: Tensor, frame: Any) -> Any:
    """Return a state object for the next step: the state that the model accepts, with values that carry no derivatives.

    ``rows`` are the next states as one matrix (R, n) without derivatives. ``frame`` is the state object that the model
    returned, whose tensors may carry derivatives.
    """
    return frame if stepper.place in ("single", "first", "last") else stepper.layout.unpack(rows, frame, stepper.place)


def pusher(stepper: Stepper) -> Pusher:
    """Return a :class:`Pusher` that uses derivatives if they agree with finite differences, else finite differences."""
    forward, finite = Pusher(stepper, "forward derivatives"), Pusher(stepper, "finite differences")
    if not stepper.layout.differentiable:
        return finite
    generator = torch.Generator().manual_seed(1)
    rows = stepper.start[:1].repeat(3, 1)
    direction = torch.randn(3, stepper.size, generator=generator, dtype=torch.float64)
    x = stepper.at(0, len(stepper.start) * 3)
    x, frame = None if x is None else x[:1].expand(3, *x.shape[1:]), stepper.framed(3)
    scale = float(rows.abs().max()) or 1.0
    try:
        _, exact, _ = forward.push(rows, direction, x, frame, scale)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):  # an operation without a forward derivative
        return pusher(replace(stepper, vectorized=False)) if stepper.vectorized else finite
    sizes = [finite._difference(rows, direction, x, frame, scale * size)[1] for size in _TRIED]
    close = 1e-4 if rows.dtype == torch.float64 and not isinstance(stepper.module, torch.nn.Module) else 5e-2
    if not any(near(exact, found, close) for found in sizes) and near(sizes[0], sizes[1], close):
        return finite
    backward = Pusher(stepper, "backward derivatives")
    if stepper.size > SMALL or stepper.vectorized or stepper.place.startswith("axis"):
        return forward
    try:
        _, matrix, _ = backward.matrices(rows, x, frame, scale)
    except RuntimeError:  # an operation without a backward derivative
        return forward
    return backward if near((matrix @ direction[..., None])[..., 0], exact, 1e-6) else forward


def near(a: Tensor, b: Tensor, close: float) -> bool:
    """Return True if a differs from b by at most the fraction ``close`` of the size of b."""
    return bool((a - b).norm() <= close * b.norm() + 1e-12)
