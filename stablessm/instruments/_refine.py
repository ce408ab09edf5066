"""The last stage of the search for a supremum: random changes of the best inputs, and lines through these inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from stablessm.instruments._supremum import Search

FLAT = 0.01
"""Difference of neighboring responses, relative to the largest, below which no size is tried between them."""

MINOR = 0.2
"""Size of a local maximum, relative to the largest response, from which on it is refined."""

CONVERGED = 1e-3
"""A round is idle if its relative gain is below this at every time; two idle rounds end the refinement of a line."""

PASSES = 3
"""Largest number of times that inputs are refined because the response lasts longer than before."""

REFINED = 1024
"""Largest number of times for which inputs are refined along a line."""

LINES = 4
"""Number of lines along which inputs are refined."""

POOL_STEPS = 2**20
"""Number of time steps (summed over inputs) of a round of refinement."""

LARGEST_MOVE, SHRINK = 0.7, 0.7
"""Size of the first random vectors, relative to the input, and the factor by which they shrink in each round."""

MOST_CHANNELS = 16
"""Largest number of input channels for which random changes are tried: with more channels, few changes are better."""


def refine(search: Search, rounds: int, samples: int, generator: torch.Generator) -> None:
    """Try random changes of the best inputs, and inputs on the lines through 0 and these inputs.

    The changes are made in ``rounds`` rounds, and the number of inputs in a round grows with ``samples``.

    Both improve inputs that gradient ascent cannot improve. Random changes help if the model is piecewise linear: its
    largest response lies on a kink, where gradients jump. Lines help if the model has a threshold: the response at a
    given time is large only for inputs in a narrow range, and each time has another range.
    """
    if 1 < search.system.d_input <= MOST_CHANNELS:
        _mutate(search, rounds, samples, generator)
    for _ in range(PASSES):
        until = search.searched
        _refine_lines(search, rounds, samples)
        if search.searched <= until:
            break


def _mutate(search: Search, rounds: int, samples: int, generator: torch.Generator) -> None:
    """Measure the responses to the best inputs plus random vectors, whose size decreases from round to round.

    The number of inputs in a round grows with ``samples``.
    """
    until = search.searched
    count = max(16, min(4 * samples, POOL_STEPS // until))
    for index in range(rounds):
        best, led = torch.unique(search.best[:until], dim=0, return_counts=True)
        chosen = torch.multinomial(led.double(), count, replacement=True, generator=generator)
        moved = torch.randn(count, best.shape[1], generator=generator, dtype=best.dtype)
        size = torch.linalg.vector_norm(best[chosen], dim=1, keepdim=True) * LARGEST_MOVE * SHRINK**index
        points = best[chosen] + size * moved / best.shape[1] ** 0.5
        too_long = torch.linalg.vector_norm(points, dim=1, keepdim=True) / search.reach
        search.evaluate(search.own(points / too_long.clamp(min=1)), until)
        search.follow(until)


def _refine_lines(search: Search, rounds: int, samples: int) -> None:
    """Measure the responses to inputs on lines through 0.

    If a large response differs between two neighboring sizes of inputs, further sizes between these two are tried.
    """
    times = search.times(REFINED)
    if not len(times):
        return
    until = search.searched
    directions = _directions(search, times)
    count = max(16, min(4 * samples, POOL_STEPS // until) // len(directions))
    for direction in directions:
        sizes = search.sizes(max(8, count // 2))
        sizes = torch.cat([sizes, -sizes, search.best[:until].unique(dim=0) @ direction]).unique()
        sizes = sizes[:: max(1, len(sizes) // (2 * count))]
        line, idle = Line(), 0
        for _ in range(rounds + 1):
            known = search.value.copy()
            line.add(sizes, search.rows(search.own(sizes[:, None] * direction), until, times))
            search.follow(until)
            idle = 0 if (search.value > (1 + CONVERGED) * known + search.rounding).any() else idle + 1
            sizes = line.proposed(count)
            if idle > 1 or not len(sizes):
                break


def _directions(search: Search, times: Tensor) -> Tensor:
    """Return the most frequent directions (n, d_input) of the best inputs at the given times.

    Opposite directions count as one.
    """
    unit = torch.nn.functional.normalize(search.best[times], dim=1, eps=0).round(decimals=6)
    unit = unit * torch.where(unit.gather(1, unit.abs().argmax(1, keepdim=True)) < 0, -1.0, 1.0)
    found, led = unit.unique(dim=0, return_counts=True)
    return torch.nn.functional.normalize(found[led.topk(min(LINES, len(found))).indices], dim=1, eps=0)


class Line:
    """The known inputs in one direction: their sizes in increasing order, and the responses to them at some times."""

    def __init__(self) -> None:
        self.sizes = self.responses = torch.zeros(0, dtype=torch.float64)

    def add(self, sizes: Tensor, responses: Tensor) -> None:
        """Add n inputs with the given sizes (n,), and their responses (n, number of times)."""
        known = self.responses if len(self.responses) else responses[:0]
        self.sizes, order = torch.cat([self.sizes, sizes]).sort()
        self.responses = torch.cat([known, responses])[order]

    def proposed(self, count: int) -> Tensor:
        """Return about ``count`` new sizes between the known sizes, at which the response may be larger."""
        largest, best = self.responses.max(0)
        sizes = torch.cat([self._beside(largest, count), self._from_time_to_time(largest, best)])
        return sizes[~torch.isin(sizes, self.sizes)].unique()

    def _beside(self, largest: Tensor, count: int) -> Tensor:
        """Return about ``count`` new sizes, each between a size at which the response has a local maximum and a
        neighboring size.

        ``largest`` contains the largest known response at each time.
        """
        responses = self.responses
        change = (responses[1:] - responses[:-1]) / largest
        peak = torch.ones_like(responses, dtype=torch.bool)
        peak[1:] &= change >= 0
        peak[:-1] &= change <= 0
        change = torch.where(change.abs() > FLAT, change.abs(), 0)
        change[self.sizes.diff() <= 4 * torch.finfo(change.dtype).eps * self.sizes[1:].abs()] = 0
        found = []
        for least, most in ((1.0, 2 * count), (MINOR, count)):
            some = peak & (responses >= least * largest)
            gaps = torch.where(some[1:] | some[:-1], change, 0).sum(1)
            found.append(gaps.topk(min(most, int((gaps > 0).sum()))).indices)
        chosen = torch.cat(found).unique()
        width = self.sizes.diff()
        inner = max(1, count // max(1, len(chosen)))
        part = torch.arange(1, inner + 1, dtype=width.dtype) / (inner + 1)
        return (self.sizes[chosen, None] + width[chosen, None] * part).flatten()

    def _from_time_to_time(self, largest: Tensor, best: Tensor) -> Tensor:
        """Return new sizes, one for each time at which a larger response probably exists.

        ``largest`` contains the largest known response at each time, and ``best`` the index of the size that gave this
        response (the best size). A larger response probably exists where the logarithm of the largest response is
        clearly below the mean of the logarithms at the time before and the time after. The new size is the mean of the
        best sizes at these two neighboring times; there is none if the two sizes have different signs.
        """
        value, size = largest.log(), self.sizes[best]
        dips = value[1:-1] < (value[:-2] + value[2:]) / 2 - FLAT / 2
        between = size[:-2] * size[2:] > 0
        return ((size[:-2] + size[2:]) / 2)[dips & between]
