"""Ascent of the search for the memory function: changes inputs by gradients and at random to increase responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from stablessm.instruments._supremum import Search

TIMES = 48
"""Largest number of times for which inputs are improved by gradient ascent; each input is then tried at all times."""

POOL_STEPS = 2**18
"""Number of time steps (summed over inputs) per step of an ascent without gradients."""

CONVERGED = 1e-3
"""The ascent ends after a step whose relative gain is smaller than this at every time."""

STRETCH = 2.0
"""Factor by which the ascent first changes the size of an input."""

GRADIENT_ELEMENTS = 2**22
"""Largest number of values that autograd may keep for one gradient."""


def ascend(search: Search, steps: int, samples: int, generator: torch.Generator) -> bool:
    """Improve up to ``samples`` of the best inputs in ``steps`` steps of gradient ascent and of random changes;
    return False if there is no gradient.
    """
    times = search.times(TIMES)
    differentiable = search.system.d_input > 1
    pool = min(samples, max(8, POOL_STEPS // search.searched))
    for step in range(steps if len(times) else 0):
        shorter = 0.5**step
        best, led = torch.unique(search.best[: search.searched], dim=0, return_counts=True)
        best = best[led.topk(min(pool, len(best))).indices]
        one, other = (torch.randint(len(best), (len(best),), generator=generator) for _ in range(2))
        weight = torch.rand(len(best), 1, generator=generator, dtype=best.dtype)
        # a threshold between two fixed points makes a narrow peak, which can be resolved in one dimension
        parts = (1.0,) if search.system.d_input > 1 else (1.0, 1 / 8, 1 / 64)
        proposed = [best * STRETCH ** (sign * part * shorter) for part in parts for sign in (1, -1)]
        proposed.append(best + weight * (best[one] - best[other]))
        if differentiable:
            x = search.best[times]
            try:
                slope = torch.cat([_slope(search, *some) for some in _groups(search, search.own(x), times)])
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                differentiable = False
            else:
                length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
                # the direction of the gradient is optimal for a linear model, a power iteration for a convex one
                proposed.append(search.bound * slope)
                proposed += [x + part * shorter * length * slope for part in (1.0, 0.25)]
        moved, known = torch.cat(proposed), torch.from_numpy(search.value.copy())
        too_long = torch.linalg.vector_norm(moved, dim=1, keepdim=True) / search.reach
        search.search(search.own(moved / too_long.clamp(min=1)))
        gained = torch.from_numpy(search.value) > (1 + CONVERGED) * known + search.rounding
        if step > 2 and not gained.any():
            break
    return differentiable


def _groups(search: Search, x: Tensor, times: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Split inputs into groups whose gradients fit in memory, and yield these groups with their times."""
    size = max(1, GRADIENT_ELEMENTS // ((int(times.max()) + 1 + search.warm_up) * search.system.width))
    return zip(x.split(size), times.split(size), strict=True)


def _slope(search: Search, x: Tensor, times: Tensor) -> Tensor:
    """Return the direction in which to change each input so that the response to it grows fastest at a given time.

    The directions are unit vectors (n, d_input). ``times`` (n,) contains the time for each input.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        speed = search.speeds(x, torch.cat(list(search.velocities(x, int(times.max()) + 1)), 1))
        own = speed.gather(1, times[:, None].to(speed.device)).clamp(min=torch.finfo(speed.dtype).tiny)
        (slope,) = torch.autograd.grad(own.log().sum(), x)
    return torch.nn.functional.normalize(slope.double().nan_to_num().cpu(), dim=1)
