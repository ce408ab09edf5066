"""The scan in standard PyTorch operations, for exported programs that run without this package (``torch.export``).

The length may be unknown when a program is exported, so there is no loop over steps and no branch on a shape. States
are computed by doubling, in rounds with the reach s = 1, 2, 4, …: after the round with reach s, h[t] includes the
drives of the steps t-2s+1 … t. Rounds with a reach below ``BLOCK`` work inside blocks of time, on all steps; later
rounds join the blocks, with one step per block. Complex numbers are pairs of real tensors.

In the functions below, ``h`` are states, ``a`` products of decays, ``place`` positions in time, and ``start`` is the
first position of the episode to which each position belongs.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from stablessm.scan.protocol import Recurrence

BLOCK, LONGEST = 32, 2**30
"""Number of steps per block, and the largest number of steps of a sequence."""

Parts: TypeAlias = tuple[Tensor, ...]
"""A real tensor as a tuple of one, or a complex tensor as its real and imaginary parts."""


def forward(recurrence: Recurrence, drive: Tensor) -> Tensor:
    """Compute all states of h[t] = a[t] h[t-1] + x[t], like a backend's ``forward``, for at most 2³⁰ steps."""
    decay, initial, reset, reverse = recurrence
    if reverse:
        turned = Recurrence(decay.flip(1), initial, None if reset is None else reset.flip(1), False)
        return forward(turned, drive.flip(1)).flip(1)
    wide = torch.promote_types(torch.promote_types(drive.dtype, decay.dtype), torch.float32)
    before = drive.new_zeros(drive.shape[0], drive.shape[2]) if initial is None else initial
    states = scan_parts(in_parts(decay.to(wide)), in_parts(drive.to(wide)), in_parts(before.to(wide)), reset)
    return joined(states).to(drive.dtype)


def in_parts(tensor: Tensor) -> Parts:
    """Return a tensor's real and imaginary parts as a tuple; the tuple of a real tensor contains only the tensor."""
    return torch.view_as_real(tensor.resolve_conj()).unbind(-1) if tensor.is_complex() else (tensor,)


def joined(parts: Parts) -> Tensor:
    """Join the parts of a real or complex tensor: the inverse of :func:`in_parts`."""
    return torch.complex(*parts) if len(parts) == 2 else parts[0]


def scan_parts(decay: Parts, drive: Parts, initial: Parts, reset: Tensor | None = None) -> Parts:
    """Compute all states (B, T, C) of h[t] = decay[t] h[t-1] + drive[t]; complex numbers are pairs of real tensors.

    Args:
        decay: (1 or B, 1 or T, C). Products of decays are computed in float64, because they have many factors.
        drive: (B, T, C).
        initial: (B, C), the state before the first step.
        reset: (B, T) bool, as in :func:`stablessm.linear_scan`.

    >>> ones = torch.ones(1, 4, 1)
    >>> scan_parts((ones[:, :1] / 2,), (ones,), (ones[:, 0],))[0].flatten().tolist()
    [1.5, 1.75, 1.875, 1.9375]
    """
    h = tuple(torch.cat([first[:, None], part], 1) for first, part in zip(initial, drive, strict=True))
    a = tuple(part.double() for part in decay)
    if not _constant(a):
        a = tuple(torch.cat([first, part], 1) for first, part in zip(_ones(a), a, strict=True))
    place = torch.arange(h[0].shape[1], device=h[0].device)
    start = torch.zeros_like(place) if reset is None else _episode_starts(place, reset)
    h, factor, a = _within_blocks(h, a, place, start)
    # Two more than the number of full blocks, because torch.export would fix a dimension that can be 1 at 1.
    ends = (torch.arange(h[0].shape[1] // BLOCK + 2, device=place.device) + 1) * BLOCK - 1
    existing = ends.clamp(max=h[0].shape[1] - 1)
    at_ends = tuple(part.index_select(1, existing) for part in h)
    if not _constant(a):
        a = tuple(part.index_select(1, existing) for part in a)
    carried = _across_blocks(at_ends, a, ends, start.index_select(-1, existing))
    block = place // BLOCK
    entering = tuple(part.index_select(1, (block - 1).clamp(min=0)) for part in carried)
    h = _plus_where(block * BLOCK - 1 >= start, h, _times(factor, entering))
    return tuple(part[:, 1:] for part in h)


def _within_blocks(h: Parts, a: Parts, place: Tensor, start: Tensor) -> tuple[Parts, Parts, Parts]:
    """Compute the states of each block as if the state before the block were zero.

    Return the states, the product of the decays from the start of the block to each step, and the products of decays
    that :func:`_across_blocks` requires.
    """
    constant, reach, powers = _constant(a), 1, a
    first = torch.maximum(start, place // BLOCK * BLOCK)
    while reach < BLOCK:
        if constant:  # powers become a¹ … a^(2 reach)
            powers = tuple(torch.cat(pair, 1) for pair in zip(powers, _times(a, powers), strict=True))
        h, a = _doubled(h, a, (place - reach).clamp(min=0), place - reach >= first)
        reach *= 2
    return h, tuple(part.index_select(1, place % BLOCK) for part in powers) if constant else a, a


def _across_blocks(h: Parts, a: Parts, ends: Tensor, start: Tensor) -> Parts:
    """Compute the states at the ends of all blocks.

    The arguments are results of :func:`_within_blocks`, in which every block starts from zero.
    """
    place, reach = torch.arange(h[0].shape[1], device=ends.device), 1
    while reach * BLOCK < LONGEST:
        h, a = _doubled(h, a, (place - reach).clamp(min=0), ends - reach * BLOCK >= start)
        reach *= 2
    return h


def _doubled(h: Parts, a: Parts, source: Tensor, exists: Tensor) -> tuple[Parts, Parts]:
    """Double the number of steps that each state covers: add a · h[source] to h, and multiply a by a[source].

    ``source`` is the earlier position from which each position takes a state. Where ``exists`` is False, there is no
    such position, and h and a do not change. There, products are discarded instead of multiplied by zero, because a
    power of an unstable decay may be infinite, and ∞ times zero is NaN.
    """
    if _constant(a):
        longer = _times(a, a)
    else:
        longer = _times(a, tuple(part.index_select(1, source) for part in a))
        longer = tuple(torch.where(exists[..., None], new, old) for new, old in zip(longer, a, strict=True))
    return _plus_where(exists, h, _times(a, tuple(part.index_select(1, source) for part in h))), longer


def _plus_where(exists: Tensor, h: Parts, more: Parts) -> Parts:
    there, zero = exists[..., None], h[0].new_zeros(())
    return tuple(part + torch.where(there, term, zero) for part, term in zip(h, more, strict=True))


def _episode_starts(place: Tensor, reset: Tensor) -> Tensor:
    """Return the position of the last reset at or before each position in time, or 0 if there is no such reset.

    The shape is (B, T + 1). Position 0 is the initial state, and position t + 1 is step t.
    """
    return torch.nn.functional.pad(torch.where(reset, place[1:], 0), (1, 0)).cummax(1).values


def _constant(decay: Parts) -> bool:
    """Return True if the decay is the same at every step, that is, has only one entry along time.

    Inside ``torch.export`` an unknown number of steps is a symbol and not an ``int``. The result is then False, so that
    the exported program works for any number of steps.
    """
    steps = decay[0].shape[1]
    return isinstance(steps, int) and steps == 1


def _ones(parts: Parts) -> Parts:
    """Return a decay of 1 for each sequence and channel, (B, 1, C), with an imaginary part of 0 if ``parts`` is
    complex.
    """
    shape = (parts[0].shape[0], 1, parts[0].shape[2])
    return tuple(part.new_full(shape, float(number == 0)) for number, part in enumerate(parts))


def _times(a: Parts, h: Parts) -> Parts:
    """Compute the product a · h in the dtype of ``h``. The factors and the result are tuples of real and imaginary
    parts.
    """
    real, *imag = (part.to(h[0].dtype) for part in a)
    if not imag:
        return (real * h[0],)
    return real * h[0] - imag[0] * h[1], real * h[1] + imag[0] * h[0]
