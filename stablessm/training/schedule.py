"""The learning rate over a run."""

from __future__ import annotations

import math


def rate(step: int, steps: int, warmup: float) -> float:
    """The factor of the learning rate at a step: linear over the warm-up, then half a cosine down to zero.

    The first step is not at rate 0, and the last is the last above it.

    >>> [round(rate(step, 8, 0.25), 3) for step in range(8)]
    [0.333, 0.667, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067]
    """
    rising = math.floor(warmup * steps)
    if step < rising:
        return (step + 1) / (rising + 1)
    return (1 + math.cos(math.pi * (step - rising) / (steps - rising))) / 2
