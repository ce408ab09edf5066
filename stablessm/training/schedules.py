"""Learning-rate schedules: the factor by which the learning rate is multiplied at each step.

Let S be the total number of steps, s = 0 … S - 1 the number of a step and w = ⌊warmup · S⌋. The factor is
(s + 1) / (w + 1) in the warm-up (s < w). After the warm-up it is:

- ``constant``: 1.
- ``linear``: (S - s) / (S - w).
- ``cosine``: (1 + cos(π (s - w) / (S - w))) / 2.
- ``wsd`` (warm-up, stable, decay): min(1, (S - s) / (d + 1)) with d = ⌊cooldown · S⌋: the factor falls in the last d
  steps.

The factor is never 0, not even at the first or the last step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

Name: TypeAlias = Literal["constant", "linear", "cosine", "wsd"]
_AFTER_WARMUP: Mapping[Name, Callable[[int, int, int], float]] = {
    "constant": lambda left, most, cooling: 1.0,
    "linear": lambda left, most, cooling: left / most,
    "cosine": lambda left, most, cooling: (1 + math.cos(math.pi * (most - left) / most)) / 2,
    "wsd": lambda left, most, cooling: min(1.0, left / (cooling + 1)),
}
"""Factor after the warm-up, from the numbers of steps that are left, after the warm-up, and in the cooldown."""


def rate(step: int, steps: int, warmup: float, schedule: Name = "cosine", cooldown: float = 0.2) -> float:
    """Return the factor by which the base learning rate is multiplied at a step.

    Args:
        step: number of the step, from 0.
        steps: total number of steps.
        warmup: fraction of the steps in which the factor rises.
        schedule: shape of the factor after the warm-up.
        cooldown: fraction of the steps in which the factor falls, at the end; only for ``wsd``.

    >>> [round(rate(step, 8, 0.25), 3) for step in range(8)]
    [0.333, 0.667, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067]
    >>> [round(rate(step, 8, 0.25, "linear"), 3) for step in range(8)]
    [0.333, 0.667, 1.0, 0.833, 0.667, 0.5, 0.333, 0.167]
    >>> [round(rate(step, 8, 0.25, "wsd", cooldown=0.375), 3) for step in range(8)]
    [0.333, 0.667, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    rising = math.floor(warmup * steps)
    if step < rising:
        return (step + 1) / (rising + 1)
    return _AFTER_WARMUP[schedule](steps - step, steps - rising, math.floor(cooldown * steps))
