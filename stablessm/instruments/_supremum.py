"""The supremum of |d/dt H_t(u^x)| over inputs x, for every t at once: a lower bound by search."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from stablessm.instruments.systems import CHUNK_ELEMENTS, System

TIMES = 48
"""For this many times, at most, an input is improved by gradient ascent; every input counts at every time."""

ROUNDS = 4
"""How often a linear model of what was seen proposes inputs, before the ascent."""

LONGEST_GRADIENT = 2**19
"""Steps (over all inputs) that a gradient may run back over."""


def reach(norm: str, bound: float) -> float:
    """The longest input to try: a ball has a surface, the other supremum runs over all inputs."""
    return 100 * bound if norm == "plus_one" else bound


class Search:
    """The best input so far for each time."""

    def __init__(
        self, system: System, horizon: int, dt: float, norm: str, bound: float, warm_up: int, progress: bool
    ) -> None:
        self.system, self.horizon, self.dt, self.norm, self.bound = system, horizon, dt, norm, bound
        self.warm_up, self.progress = warm_up, progress
        self.reach = reach(norm, bound)
        self._value = torch.zeros(horizon, dtype=torch.float64)
        self._best = torch.zeros(horizon, system.d_input, dtype=torch.float64)
        self._gram = torch.zeros(system.d_input, system.d_input, dtype=torch.float64)
        self._cross: Tensor | float = 0.0
        self._largest_output, self._eps, self.note = 0.0, torch.finfo(system.dtype).eps, "inputs as given"

    @property
    def value(self) -> np.ndarray:
        """(T,)"""
        return self._value.numpy()

    @property
    def maximiser(self) -> np.ndarray:
        """(T, d_input)"""
        return self._best.numpy()

    @property
    def rounding(self) -> float:
        """eps · max |y|, as a value of M."""
        return self._eps * self._largest_output / self.dt / (self.bound if self.norm == "ball" else 1.0)

    def run(self, samples: int, ascent: int, seed: int) -> None:
        """A grid in one dimension; points on the sphere, then ascent, in more."""
        if self.system.d_input == 1:
            self.evaluate(self._grid(samples))
            self.note = f"a grid of {2 * max(1, samples // 2)} inputs"
            return
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(samples, self.system.d_input, generator=generator, dtype=torch.float64)
        points *= self._sizes(samples)[:, None] / torch.linalg.vector_norm(points, dim=1, keepdim=True)
        self.evaluate(self._own(points))
        self.note = f"{samples} inputs on spheres"
        for _ in range(ROUNDS if self._linear_model_fits() else 0):
            self.evaluate(self._own(self._proposed()))
        if ascent and self._ascend(ascent):
            self.note += f", {ascent} steps of gradient ascent"

    def evaluate(self, points: Tensor) -> Tensor:
        """M of each input, (n, T); keeps what is better than before."""
        width = (self.horizon + self.warm_up) * max(self.system.d_input, self.system.d_output)
        size = max(1, 8 * CHUNK_ELEMENTS // width)
        rows = []
        for some in points.split(size):
            velocity = self._velocities(some, self.horizon)
            self._remember(some, velocity)
            rows.append(self._speeds(some, velocity).double().cpu())
            best, index = rows[-1].max(0)
            better = (best > self._value) | (best.isnan() & ~self._value.isnan())  # a NaN is kept, to be reported
            self._value = torch.where(better, best, self._value)
            self._best = torch.where(better[:, None], some.double().cpu()[index], self._best)
        return torch.cat(rows)

    def _speeds(self, points: Tensor, velocity: Tensor) -> Tensor:
        """|d/dt H_t(u^x)| normalised, (n, T)."""
        speed = _length(velocity)
        if self.norm == "ball":
            return speed / self.bound
        return speed / (points.abs().amax(1, keepdim=True) + 1) if self.norm == "plus_one" else speed

    def _velocities(self, points: Tensor, horizon: int) -> Tensor:
        """d/dt H_t(u^x), (n, horizon, d_output)."""
        x = torch.cat([torch.zeros_like(points[:1]), points])

        def drive(start: int, stop: int) -> Tensor:
            held = x[:, None].expand(-1, max(0, stop - max(start, 0)), -1)
            before = x.new_zeros(len(x), max(0, min(stop, 0) - start), x.shape[1])
            return torch.cat([before, held], 1) if before.shape[1] else held

        pieces, last = [], None
        for y in self.system.outputs(drive, -self.warm_up, horizon, progress=self.progress):
            self._largest_output = max(self._largest_output, float(_length(y.detach()).nan_to_num().max()))
            self._eps = max(self._eps, torch.finfo(y.dtype).eps)  # some models leave double precision on the way
            moved = y[1:] - y[:1]
            pieces.append(moved.diff(dim=1, prepend=torch.zeros_like(moved[:, :1]) if last is None else last))
            last = moved[:, -1:]
        return torch.cat(pieces, 1)[:, self.warm_up :] / self.dt

    def _remember(self, points: Tensor, velocity: Tensor) -> None:
        """Sums from which the best linear model of what was seen follows."""
        if self._linear_model_fits():
            x = points.double().cpu()
            self._gram += x.mT @ x
            self._cross = self._cross + torch.einsum("nd,nto->tdo", x, velocity.double().cpu())

    def _linear_model_fits(self) -> bool:
        """Whether a matrix for each time is little enough to keep."""
        return self.horizon * self.system.d_input * self.system.d_output <= 8 * CHUNK_ELEMENTS

    def _proposed(self) -> Tensor:
        """What that linear model thinks best, for the times at which it sees most to gain."""
        slopes = torch.linalg.pinv(self._gram, hermitian=True) @ torch.as_tensor(self._cross).nan_to_num(0, 0, 0)
        left, gain, _ = torch.linalg.svd(slopes, full_matrices=False)  # of (T, d_input, d_output)
        ratio = torch.where(self._value > 8 * self.rounding, gain[:, 0] / self._value, 0)
        return self.bound * left[ratio.topk(min(TIMES, self.horizon)).indices, :, 0]

    def _ascend(self, steps: int) -> bool:
        """Improve the inputs of a few times; False if the model has no gradient."""
        alive = (self._value > 8 * self.rounding).nonzero()[:, 0]
        if not len(alive):
            return True
        last = int(alive[-1])
        count = max(1, min(TIMES, LONGEST_GRADIENT // (last + 1)))
        spread = np.concatenate([np.geomspace(1, last + 1, count // 2 + 1) - 1, np.linspace(0, last, count // 2 + 1)])
        times = torch.from_numpy(np.unique(spread.round().astype(np.int64)))
        for step in range(steps):
            x = self._own(self._best[times])
            try:
                slope = torch.cat([self._slope(*some) for some in self._groups(x, times)])
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # not differentiable
                return False
            x = x.double().cpu()
            # the first step jumps to the end of the gradient, which is the answer for a linear model
            length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            moved = self.bound * slope if step == 0 else x + 0.5**step * length * slope
            too_long = torch.linalg.vector_norm(moved, dim=1, keepdim=True) / self.reach
            self.evaluate(self._own(moved / too_long.clamp(min=1)))
        return True

    def _groups(self, x: Tensor, times: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Few enough inputs at once: a gradient keeps every output on the way."""
        width = (int(times.max()) + 1 + self.warm_up) * max(self.system.d_input, self.system.d_output)
        size = max(1, CHUNK_ELEMENTS // width)
        return zip(x.split(size), times.split(size), strict=True)

    def _slope(self, x: Tensor, times: Tensor) -> Tensor:
        """The direction in which each input's own time gains most, (n, d_input)."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            speed = self._speeds(x, self._velocities(x, int(times.max()) + 1))
            own = speed.gather(1, times[:, None].to(speed.device)).clamp(min=torch.finfo(speed.dtype).tiny)
            (slope,) = torch.autograd.grad(own.log().sum(), x)
        return torch.nn.functional.normalize(slope.double().nan_to_num().cpu(), dim=1)

    def _grid(self, samples: int) -> Tensor:
        size = self._sizes(max(1, samples // 2))
        return self._own(torch.cat([size, -size])[:, None])

    def _sizes(self, samples: int) -> Tensor:
        """Lengths to try: even up to the bound of a ball, whose surface mostly wins; logarithmic without a ball."""
        if self.norm == "plus_one":
            return self.bound * torch.logspace(-2, 2, samples, dtype=torch.float64)
        if self.system.d_input == 1:
            return self.bound * torch.linspace(1 / samples, 1, samples, dtype=torch.float64)
        inside = torch.linspace(0, 1, samples, dtype=torch.float64)
        return torch.where(torch.arange(samples) % 4 == 0, self.bound * inside.clamp(min=0.05), self.bound)

    def _own(self, points: Tensor) -> Tensor:
        return points.to(self.system.device, self.system.dtype)


def _length(y: Tensor) -> Tensor:
    return torch.linalg.vector_norm(y, dim=-1)
