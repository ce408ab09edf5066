"""Search for the weights in a ball that maximize the distance of a model from its target, for many models at once."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm.instruments._model_stack import Stack
from stablessm.instruments._weight_balls import WeightBall, Weights

FIRST_STEP, LAST_STEP = 2.0, 0.1
"""Lengths of the first and last step of an ascent, relative to the radius; between them they shrink geometrically."""


def largest_distances(
    stack: Stack, starts: Weights, ball: WeightBall, radii: Tensor, *, steps: int, progress: bool
) -> Tensor:
    """Search for the weights in a ball for which the distance of a model from its target is largest.

    The result (M, R) contains the largest distance for each of M models and R radii of the ball.

    The search is a gradient ascent from random starts (M, samples, …) on the boundary of the ball. All radii use the
    same starts. With 0 steps, only the starts are evaluated. A step follows the gradient of the logarithm of the
    distance and is projected back onto the ball. The length of a step decreases from ``FIRST_STEP`` to ``LAST_STEP``.
    The result is the largest value over all starts and steps.
    """
    from tqdm import tqdm

    models, samples = next(iter(starts.values())).shape[:2]
    if not len(radii):
        return radii.new_zeros(models, 0)
    radii = radii.to(stack.device)
    cases = torch.cartesian_prod(torch.arange(models), torch.arange(len(radii)), torch.arange(samples))
    best = []
    with tqdm(total=len(cases) * (steps + 1), unit="model", disable=None if progress else True) as bar:
        for case in cases.to(stack.device).split(stack.chunk):
            which, radius, start = case.unbind(1)
            own = {name: w[which] for name, w in stack.weights.items()}
            change = {name: s[which, start] for name, s in starts.items()}
            highest = radii.new_zeros(len(case))
            for step in range(steps + 1):
                copies = {name: w + _times(radii[radius], change[name]) for name, w in own.items()}
                if step == steps:
                    with torch.no_grad():
                        values = stack.values(copies, which)
                else:
                    values, gradients = stack.values_and_gradients(copies, which)
                    length = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (step / max(1, steps - 1))
                    uphill = ball.steepest(gradients)
                    change = ball.project({name: c + length * uphill[name] for name, c in change.items()})
                highest = values.double().maximum(highest)  # remains on the device: fetching it would wait for a GPU
                bar.update(len(case))
            best.append(highest)
    return torch.cat(best).reshape(models, len(radii), samples).amax(2).cpu()


def _times(radius: Tensor, change: Tensor) -> Tensor:
    """Multiply each of P stacked changes of weights by its own radius β_i."""
    return radius.to(change).reshape(-1, *(1,) * (change.dim() - 1)) * change
