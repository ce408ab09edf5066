"""A training step on many ranks, played through: every rank has a clock, every message its time."""

from __future__ import annotations

import math

import numpy as np
from _cost import Machine, Network, Plan, step_cost


def simulated_seconds(
    network: Network, machine: Machine, plan: Plan, *, steps: int, batch: int, jitter: float = 0.0, seed: int = 0
) -> float:
    """Seconds of a step with ``plan.sequence`` ranks that wait for one another where the scan over ranks makes them.

    A rank goes on as soon as it has what it needs: the first never waits in the forward pass, the last never in the
    backward pass, and one that has fallen behind finds the next message there already. That is why
    :func:`_cost.step_cost` counts a rank's lag once, and not in every layer.

    Args:
        network, machine, plan, steps, batch: as for ``step_cost``.
        jitter: how uneven ranks are: the deviation of the time of a layer, relative to its mean.
        seed: of the jitter.

    >>> plan = Plan(sequence=64)
    >>> seconds = simulated_seconds(Network(), Machine(), plan, steps=2**20, batch=1)
    >>> seconds / step_cost(Network(), Machine(), plan, steps=2**20, batch=1).seconds < 1.01
    True
    """
    cost = step_cost(network, machine, plan, steps=steps, batch=batch)
    sequences, random = math.ceil(batch / plan.data), np.random.default_rng(seed)
    there = cost.compute / sequences / network.n_layers / (4 if network.recompute else 3)  # and twice that back
    message = machine.message(network.carry() / 2 / plan.tensor, plan.tensor * plan.sequence)
    forward = [False] * network.n_layers
    backward = ([False, True] if network.recompute else [True]) * network.n_layers
    clocks = np.zeros(plan.sequence)
    for back in (forward + backward) * sequences:
        uneven = 1 + jitter * random.standard_normal(plan.sequence)
        clocks += there * (2 if back else 1) * np.maximum(uneven, 0.0)
        for _ in ("the short filter's", "the recurrence's"):
            clocks = _exchanged(clocks, message, back)
    return float(clocks.max()) + cost.gradients + cost.products


def _exchanged(clocks: np.ndarray, message: float, backwards: bool) -> np.ndarray:
    """When each rank knows the state before it: messages over 1, 2, 4, … ranks, sent as soon as the last was heard."""
    clocks = clocks[::-1].copy() if backwards else clocks.copy()
    distance = 1
    while distance < len(clocks):
        arrival = clocks[:-distance] + message
        clocks[distance:] = np.maximum(clocks[distance:], arrival)
        distance *= 2
    return clocks[::-1] if backwards else clocks
