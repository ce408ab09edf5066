"""Computes the state from which each rank starts its steps, by a differentiable scan over the ranks.

The steps of rank r apply an affine map m_r to the state. Rank r needs m_{r-1}( … m_0(initial)). In round k = 0, 1, …,
rank r sends the composition of the maps of ranks r - 2^k + 1 to r to rank r + 2^k. After ⌈log₂ ranks⌉ rounds, every
rank has the composition of the maps of all earlier ranks. A message is a factor and an offset of the size of a state,
for any length of the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
import torch.distributed as dist
from torch import Tensor

from stablessm._checked import Count, checked
from stablessm._errors import ArgumentError
from stablessm._parts import nth_part

Group: TypeAlias = "dist.ProcessGroup | None"
"""The ranks that share a sequence, in the order of their parts of the sequence; None means all ranks."""


def place(group: Group = None) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; (0, 1) without ``torch.distributed``.

    The same program therefore runs with ``python`` and with ``torchrun``.

    >>> place()
    (0, 1)
    """
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


@checked
def own_steps(steps: Count, group: Group = None) -> slice:
    """Return the slice of time steps that belongs to this rank.

    The slices of all ranks are consecutive and about equally long.

    >>> x = torch.randn(2, 1000, 8)
    >>> x[:, own_steps(1000)].shape          # one rank: all of it
    torch.Size([2, 1000, 8])
    """
    rank, size = place(group)
    return nth_part(steps, rank, size)


@final
@checked
@dataclass(frozen=True)
class Affine:
    """The effect of a range of steps on the state of a recurrence: the affine map state ↦ factor · state + offset.

    For the recurrence h[t] = a[t] h[t-1] + x[t] over some steps, the factor is the product of the a[t], and the offset
    is the final state for the initial state zero. The composition of such maps is associative, as a parallel scan
    requires.

    Args:
        factor: a tensor of the shape of ``offset``; with ``matrix``, square matrices (B, K, K) for states (B, K, W).
        offset: (B, …).
        matrix: whether factor · state is a matrix product instead of an elementwise product.

    >>> halve, add = Affine(torch.tensor(0.5), torch.tensor(0.0)), Affine(torch.tensor(1.0), torch.tensor(3.0))
    >>> add.after(halve)(torch.tensor(8.0)).item(), halve.after(add)(torch.tensor(8.0)).item()
    (7.0, 5.5)
    """

    factor: Tensor
    offset: Tensor
    matrix: bool = False

    def times(self, value: Tensor) -> Tensor:
        """Return factor · value: a matrix product if ``matrix`` is set, otherwise an elementwise product."""
        return self._product("value", value)

    def __call__(self, state: Tensor) -> Tensor:
        """Return factor · state + offset: the state after the steps, if ``state`` is the state before the steps."""
        return self._product("state", state) + self.offset

    def _product(self, name: str, value: Tensor) -> Tensor:
        try:
            return self.factor @ value if self.matrix else self.factor * value
        except (RuntimeError, TypeError, ValueError) as error:
            expected = f"a tensor that goes with a factor {tuple(self.factor.shape)} on {self.factor.device}"
            raise ArgumentError(name, expected, value) from error

    def after(self, earlier: Affine) -> Affine:
        """Return the composition of two affine maps: first ``earlier``, then this map."""
        return Affine(self.times(earlier.factor), self(earlier.offset), self.matrix)

    def adjoint(self, gradient: Tensor) -> Affine:
        """Return the affine map of the backward pass over the steps, g ↦ factorᴴ · g + gradient.

        Here g is the gradient of the state after the steps, and factorᴴ is the conjugate (and transposed) factor.
        ``gradient`` is the part of the gradient of the state before the steps that does not come through g.
        """
        return Affine(self.factor.mH if self.matrix else self.factor.conj(), gradient, self.matrix)


@checked
def incoming(own: Affine, initial: Tensor | None = None, group: Group = None) -> Tensor:
    """Return the state before this rank's steps; the first rank starts from ``initial``, or from zeros.

    ``own`` is the effect of this rank's steps on the state. Every rank of the group must call this function, with maps
    of the same shape and dtype; only the first rank's ``initial`` is used. The backward pass communicates too, so
    either all ranks use the result in their loss, or none.

    >>> one = torch.ones(2, 3)
    >>> incoming(Affine(0.5 * one, one)).sum().item()          # one rank: nothing came before
    0.0
    """
    if initial is not None:
        if initial.shape != own.offset.shape:
            raise ArgumentError("initial", f"shape {tuple(own.offset.shape)}", f"shape {tuple(initial.shape)}")
        initial = initial.to(own.offset.dtype)
    return _scan_ranks(own, initial, group, False)


def _scan_ranks(own: Affine, initial: Tensor | None, group: Group, backwards: bool) -> Tensor:
    state: Tensor = _Incoming.apply(own.factor, own.offset, initial, own.matrix, group, backwards)
    return state


@final
class _Incoming(torch.autograd.Function):
    """The autograd function of the scan over ranks; its backward pass is a scan from the last rank to the first."""

    @staticmethod
    def forward(
        ctx: Any, factor: Tensor, offset: Tensor, initial: Tensor | None, matrix: bool, group: Group, backwards: bool
    ) -> Tensor:
        own = Affine(factor, offset, matrix)
        first = _position(group, backwards)[0] == 0
        start = torch.zeros_like(offset) if initial is None or not first else initial
        if first:  # the map that the first rank sends includes the initial state
            own = Affine(factor, own(start), matrix)
        before = joined_before(own, group, backwards)
        state = start.clone() if before is None else before.offset
        ctx.save_for_backward(factor, state)
        ctx.matrix, ctx.group, ctx.backwards, ctx.start = matrix, group, backwards, initial is not None and first
        return state

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        factor, state = ctx.saved_tensors
        own = Affine(factor, state, ctx.matrix).adjoint(gradient)
        behind = _scan_ranks(own, None, ctx.group, not ctx.backwards)
        d_factor = None
        if ctx.needs_input_grad[0]:
            d_factor = behind @ state.mH if ctx.matrix else behind * state.conj()
        return d_factor, behind, own(behind) if ctx.start else None, None, None, None


def joined_before(own: Affine, group: Group, backwards: bool = False) -> Affine | None:
    """Return the composition of the affine maps of all previous ranks, or None on the first rank; ``own`` is the map of
    this rank.

    With ``backwards``, the maps of all later ranks are composed instead.
    """
    position, size = _position(group, backwards)
    before: Affine | None = None
    distance = 1
    while distance < size:
        told = _exchange(own, distance if position + distance < size else 0, distance if position >= distance else 0,
                         group, backwards)  # fmt: skip
        if told is not None:
            before, own = told if before is None else before.after(told), own.after(told)
        distance *= 2
    return before


def _position(group: Group, backwards: bool) -> tuple[int, int]:
    rank, size = place(group)
    return (size - 1 - rank if backwards else rank), size


def _exchange(own: Affine, ahead: int, behind: int, group: Group, backwards: bool) -> Affine | None:
    """Send an affine map to the rank that is ``ahead`` places after this rank, and return the map that the rank
    ``behind`` places before this rank sent.

    A distance of 0 means that there is no such rank. If there is no rank that sends, the result is None. With
    ``backwards``, "after" and "before" are exchanged.
    """
    rank, sign = place(group)[0], -1 if backwards else 1
    operations = []
    if ahead:
        message = torch.cat([_numbers(own.factor), _numbers(own.offset)])
        operations.append(dist.P2POp(dist.isend, message, group=group, group_peer=rank + sign * ahead))
    sizes = [_numbers(tensor).numel() for tensor in (own.factor, own.offset)]
    heard = _numbers(own.offset).new_empty(sum(sizes))
    if behind:
        operations.append(dist.P2POp(dist.irecv, heard, group=group, group_peer=rank - sign * behind))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    if not behind:
        return None
    factor, offset = heard.split(sizes)
    return Affine(_like(factor, own.factor), _like(offset, own.offset), own.matrix)


def _numbers(tensor: Tensor) -> Tensor:
    """Return a tensor as a flat tensor of real numbers, because process groups cannot send complex tensors."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).flatten()


def _like(numbers: Tensor, tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return torch.view_as_complex(numbers.view(*tensor.shape, 2))
    return numbers.view(tensor.shape)
