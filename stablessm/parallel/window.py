"""The last inputs of a short filter, as a state that ranks can pass to each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stablessm._typing import Lengths
from stablessm.parallel.carry import Affine
from stablessm.scan.checks import as_lengths


def last_inputs(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    tail: Tensor,
    *,
    lengths: Lengths = None,
    reset: Tensor | None = None,
    dt: object = None,
) -> Affine:
    """Return how the steps x change the last K inputs (B, K, W) of a filter with W channels, as an affine map.

    The last K inputs are called the *tail*. If x has K steps or more, the tail after x does not depend on the tail
    before x; a shorter x shifts the earlier inputs. A reset at a real step removes everything before it.

    Args:
        function: from steps of x to inputs of the filter (…, W).
        x: (B, T, D), this rank's steps, of which only the last K are used.
        tail: an example of a tail, for its shape and dtype; its numbers are not used.
        lengths, reset: as in a layer.
        dt: not used, because a filter counts samples.

    >>> window = last_inputs(lambda x: 10 * x, torch.ones(1, 1, 1), torch.zeros(1, 2, 1))
    >>> window(torch.tensor([[[3.0], [4.0]]])).flatten().tolist()
    [4.0, 10.0]
    """
    batch, steps, _ = x.shape
    size, device = tail.shape[1], x.device
    given = as_lengths(lengths, device)
    ends = torch.full((batch,), steps, device=device) if given is None else given
    back = torch.arange(-size, 0, device=device)  # -K … -1: positions relative to the end, and rows of the tail
    where = ends[:, None] + back
    here, kept = where >= 0, torch.ones(batch, dtype=torch.bool, device=device)
    if reset is not None and steps:
        step = torch.arange(steps, device=device)
        last = torch.where(reset & (step < ends[:, None]), step, -1).amax(1)
        here, kept = here & (where >= last[:, None]), last < 0
    chosen = x.new_zeros(batch, size, x.shape[2])
    if steps:
        chosen = x.gather(1, where.clamp(min=0)[..., None].expand_as(chosen))
    offset = torch.where(here[..., None], function(chosen).to(tail.dtype), torch.zeros_like(tail))
    moved = (where[..., None] == back) & kept[:, None, None]
    return Affine(moved.to(tail.dtype), offset, matrix=True)
