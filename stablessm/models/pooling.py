"""Pooling: reduces a sequence to one vector, the mean of its steps or its last step.

Pooling maps (B, T, C) to (B, C), over the real steps of the last episode of each sequence; an empty sequence gives
zeros. A class for pooling has four methods. ``whole`` pools the given steps together with the earlier steps that
``state`` summarizes. ``running`` returns (B, T, C), at each step the result of ``whole`` for the sequence up to that
step, and the state after the last step. ``step`` is one step of ``running``. ``initial_state`` returns the state before
the first step; it takes the number of channels, device and dtype from ``like`` (C,).
"""

from __future__ import annotations

from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from stablessm.scan import linear_scan
from stablessm.scan.checks import check_pair, check_state
from stablessm.scan.padding import last_state, real_steps


@final
class Last:
    """Pooling that returns the last step of a sequence; it needs no state."""

    def initial_state(self, like: Tensor, batch: int) -> tuple[()]:
        """Return (), because this pooling has no state."""
        return ()

    def whole(self, h: Tensor, state: Any, lengths: Tensor | None, reset: Tensor | None) -> Tensor:
        """Return the last real step of each sequence in h (B, T, C), as (B, C); ``state`` and ``reset`` are ignored."""
        return last_state(h, torch.zeros_like(h[:, :1]).sum(1), lengths)

    def running(self, h: Tensor, state: Any, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Any]:
        """Return h unchanged and an empty state: the last step of the sequence so far is always the present step."""
        return h, ()

    def step(self, h_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return h_t unchanged and an empty state."""
        return h_t, ()


@final
class Mean:
    """Pooling that returns the mean over the steps of a sequence, computed in float32 or better.

    The state of the pooling is the sum of the steps so far, (B, C), and the number of these steps, (B, 1).
    """

    def initial_state(self, like: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        """Return the state before the first step: a sum (B, C) and a number of steps (B, 1), both zero."""
        zeros = torch.zeros(batch, len(like), dtype=_wide(like), device=like.device)
        return zeros, zeros[:, :1]

    def _parts(self, h_t: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        if state is None:
            return self.initial_state(h_t.new_empty(h_t.shape[-1]), h_t.shape[0])
        total, count = check_pair(state)
        check_state(total, tuple(h_t.shape), h_t)
        check_state(count, (h_t.shape[0], 1), h_t)
        return total, count

    def whole(self, h: Tensor, state: Any, lengths: Tensor | None, reset: Tensor | None) -> Tensor:
        """Return the mean over the real steps of each sequence, or of its last episode if there are resets, (B, C).
        Earlier steps that ``state`` contains count, too.

        The mean is computed as a product with a vector of zeros and ones, which avoids a copy.
        """
        steps, dtype = h.shape[1], _wide(h)
        if lengths is None and reset is None and state is None and steps:
            return h.mean(1, dtype=dtype)
        total, count = self._parts(h.new_empty(h.shape[0], h.shape[-1]), state)
        counted = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device)
        if lengths is not None:
            counted = real_steps(lengths, steps)
        if reset is not None:
            starts = reset & counted
            episode = starts.cumsum(1)
            counted = counted & (episode == episode[:, -1:])
            total, count = (torch.where(starts.any(1, keepdim=True), 0.0, part) for part in (total, count))
        with torch.autocast(h.device.type, enabled=False):
            total = total + (counted[:, None].to(dtype) @ h.to(dtype))[:, 0]
        return total / (count + counted.sum(1, keepdim=True)).clamp(min=1)

    def running(self, h: Tensor, state: Any, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Any]:
        """Return, for each step, the mean of h over all steps of its episode up to this step, (B, T, C); also return
        the state after the last step.
        """
        h = h.to(_wide(h))
        total, count = self._parts(h.new_empty(h.shape[0], h.shape[-1]), state)
        sums = linear_scan(h.new_ones(h.shape[-1]), h, total, reset=reset)
        counts = linear_scan(h.new_ones(1), torch.ones_like(h[..., :1]), count, reset=reset)
        return sums / counts, (last_state(sums, total, lengths), last_state(counts, count, lengths))

    def step(self, h_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the mean of all steps up to this step, (B, C), and the next state."""
        total, count = self._parts(h_t, state)
        total, count = total + h_t, count + 1
        return total / count, (total, count)


def _wide(h: Tensor) -> torch.dtype:
    return torch.promote_types(h.dtype, torch.float32)


Pooling: TypeAlias = Last | Mean
