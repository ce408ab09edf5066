"""Who takes part, and which steps are whose."""

from __future__ import annotations

from typing import TypeAlias

import torch.distributed as dist

from stablessm._arguments import whole_number
from stablessm._parts import nth_part

Group: TypeAlias = "dist.ProcessGroup | None"
"""The ranks that share a sequence, in their order; None for all."""


def place(group: Group = None) -> tuple[int, int]:
    """This process's rank in the group, and how many there are; (0, 1) where nothing is distributed.

    So the same program runs with ``python`` and with ``torchrun``.

    >>> place()
    (0, 1)
    """
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def own_steps(steps: int, group: Group = None) -> slice:
    """Which of a sequence's steps this rank holds: the ranks' parts follow each other and differ by one step at most.

    >>> import torch
    >>> x = torch.randn(2, 1000, 8)
    >>> x[:, own_steps(1000)].shape          # one rank: all of it
    torch.Size([2, 1000, 8])
    """
    rank, size = place(group)
    return nth_part(whole_number("steps", steps, 0), rank, size)
