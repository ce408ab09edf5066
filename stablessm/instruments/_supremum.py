"""Search for the memory function: the largest |d/dt H_t(u^x)| at each time t, for inputs u^x that jump from 0 to x."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import NumericalError
from stablessm.instruments._ascent import TIMES, ascend
from stablessm.instruments._linear import largest_gain, reach
from stablessm.instruments._refine import refine
from stablessm.instruments._tangent import linearized, tangents
from stablessm.instruments.systems import CHUNK_ELEMENTS, SHORTEST, STATE_ELEMENTS, System

ROUNDS = 4
"""Number of times that a linear model of the measured responses proposes inputs, before the ascent."""

RAYS = 8
"""Number of the best directions along which all sizes of input are tried."""

SEARCHED = 2**14
"""Number of steps that are searched; later steps are measured with the best inputs of the last half of these steps."""

MORE, SHORT_RUNS = 4, 8
"""Factors for the numbers of inputs that run until the response has decayed, and that run over ``SHORTEST`` steps."""

SMALLEST = 1e-6
"""Size of the smallest input, relative to the bound: small enough for a model to be linear."""

NONLINEAR = 0.01
"""Relative difference from the linear response up to which a response counts as linear."""

LONGEST_GRADIENT = 2**19
"""Largest number of time steps (summed over inputs) for one gradient."""

LEADERS = 4
"""Number of inputs with which the steps after ``SEARCHED`` are measured."""


class Search:
    """The search for the input that gives the largest value of the memory function at each time.

    Inputs are constant from time 0 on, and the derivative of the response is measured. With ``brief``, inputs last one
    step, and the response itself is measured. For a linear model both give the same values.
    """

    def __init__(
        self, system: System, horizon: int, dt: float, norm: str, bound: float, warm_up: int, brief: bool = False
    ) -> None:
        self.brief = brief
        self.system, self.horizon, self.dt, self.norm, self.bound = system, horizon, dt, norm, bound
        self.warm_up = warm_up
        self.reach, self.limit = reach(norm, bound), min(horizon, SEARCHED)
        self._value = torch.zeros(horizon, dtype=torch.float64)
        self.best = torch.zeros(horizon, system.d_input, dtype=torch.float64)
        self.lengths = torch.zeros(horizon, dtype=torch.int64)  # of the runs that gave the largest values, in steps
        self._gram = torch.zeros(system.d_input, system.d_input, dtype=torch.float64)
        self._cross: Tensor | None = None
        self._largest_output, self._eps, self.note = 0.0, torch.finfo(system.dtype).eps, "inputs as given"

    @property
    def value(self) -> np.ndarray:
        """Return the largest value of the memory function found at each time, as an array (T,)."""
        return self._value.numpy()

    @property
    def maximizer(self) -> np.ndarray:
        """Return the input that gave the largest value at each time, as an array (T, d_input)."""
        return self.best.numpy()

    @property
    def searched(self) -> int:
        """Return the number of steps, from the first, that the search covers.

        These are 1.25 times the steps until the memory function falls to its rounding error, plus ``SHORTEST``, and at
        most ``SEARCHED``.
        """
        alive = (self._value[: self.limit] > 8 * self.rounding).nonzero()
        return min(self.limit, int(alive[-1] * 1.25) + SHORTEST) if len(alive) else self.limit

    @property
    def rounding(self) -> float:
        """Return the rounding error of the measured memory function, estimated from the largest output and the machine
        epsilon.
        """
        return self._eps * self._largest_output / self.dt / (self.bound if self.norm == "ball" else 1.0)

    def run(self, samples: int, ascent: int, seed: int) -> None:
        """Search over inputs of all sizes and inputs from a linearized model, then improve the best inputs by ascent.

        ``samples`` is the number of random inputs, and ``ascent`` the largest number of ascent steps.
        """
        d = self.system.d_input
        generator = torch.Generator().manual_seed(seed)
        self.evaluate(self.spread(samples, generator), self.limit)
        self.search(self.spread(MORE * samples, generator))
        self.evaluate(self.spread(SHORT_RUNS * samples, generator), min(SHORTEST, self.limit))
        self.note = f"{samples} inputs"
        if d <= samples and (system := linearized(self.system)) is not None:
            self._linearize(system)
            self.note += ", the linearization at rest"
        if d > 1:
            for _ in range(ROUNDS if self._linear_model_fits() else 0):
                self.search(self.own(self._proposed()))
            self.search(self._on_rays(self._leading(self.times(RAYS)), samples // 4))
        if ascent:
            by_gradient = ascend(self, ascent, samples, torch.Generator().manual_seed(seed))
            refine(self, 2 * ascent, samples, torch.Generator().manual_seed(seed + 1))
            self.note += f", {ascent} steps of {'gradient ascent' if by_gradient else 'ascent'}"
        if self.limit < self.horizon:
            leaders = self._leaders()
            self.evaluate(self.own(leaders), self.horizon)
            self.note += f", after {self.limit} steps {len(leaders)} of them"

    def _linearize(self, system: System) -> None:
        """Compute the memory function for very small inputs from the linearization ``system`` of the model, and update
        the largest value at each time.

        The inputs have the size ``SMALLEST`` times the bound. The model itself also runs on inputs of this size. If the
        response of the model differs from the linear response from some time on, as near an unstable fixed point, the
        largest values from that time on are not updated.
        """
        at, size, until = 0, SMALLEST * self.bound, self.searched
        channels = torch.eye(system.d_input, device=system.device, dtype=system.dtype)
        small = self.velocities(size * channels, until)
        with tangents():
            for velocity, real in zip(self.velocities(channels, until, system), small, strict=True):
                rounding = 8 * self._eps * self._largest_output / self.dt
                off = _length(real - size * velocity) > NONLINEAR * size * _length(velocity) + rounding
                linear = int((~off.any(0)).long().cumprod(0).sum())
                gain, inputs, _ = largest_gain(velocity[:, :linear].permute(1, 2, 0), self.norm, self.bound)
                gain = gain.nan_to_num(0, 0)  # a model may have no derivative at rest
                value = gain * (size / (size + 1) if self.norm == "plus_one" else SMALLEST)
                self._keep(at, value, inputs * SMALLEST, until)
                at += len(value)
                if linear < velocity.shape[1]:
                    break

    def _leaders(self) -> Tensor:
        """Return the inputs that most often gave the largest value in the last half of the searched steps."""
        late = slice(self.limit // 2, self.limit)
        alive = self._value[late] > 8 * self.rounding
        led = self.best[late][alive] if bool(alive.any()) else self.best[self._value.argmax()][None]
        inputs, times = torch.unique(led, dim=0, return_counts=True)
        return inputs[times.topk(min(LEADERS, len(inputs))).indices]

    def around(self, point: Tensor, size: float, count: int) -> Tensor:
        """Return random inputs around ``point``, at distances of about ``size`` times the length of ``point``."""
        noise = torch.randn(count, len(point), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        moved = point + size * point.norm() * self.own(noise)
        return moved * (self.reach / moved.norm(dim=1, keepdim=True)).clamp(max=1)

    def evaluate(self, points: Tensor, horizon: int) -> None:
        """Measure the responses to given inputs over ``horizon`` steps, and update the largest value at each time."""
        for some in points.split(self.together(horizon)) if len(points) else ():
            for _ in self._evaluated(some, horizon):
                pass

    def search(self, points: Tensor) -> None:
        """Measure the responses to given inputs up to step ``searched``, and update the largest value at each time.

        Later steps are measured with only one input: the best input at step ``searched``. Otherwise the curve would
        fall to zero where the search ends.
        """
        until = self.searched
        self.evaluate(points, until)
        self.follow(until)

    def follow(self, until: int) -> None:
        """Measure the response after step ``until`` to the input that gave the largest value at this step.

        Nothing is measured if the memory function has already decayed.
        """
        if until < self.limit and float(self._value[until - 1]) > 8 * self.rounding:
            self.evaluate(self.own(self.best[until - 1 : until]), self.limit)

    def rows(self, points: Tensor, horizon: int | None = None, times: Tensor | slice = slice(None)) -> Tensor:
        """Return the size of the output's rate of change for each of the n inputs ``points``, and update the largest
        value at each time.

        The result has the shape (n, ·), with one entry for each of the given times (default: all).
        """
        horizon = self.horizon if horizon is None else horizon
        groups = points.split(self.together(horizon))
        return torch.cat([torch.cat(list(self._evaluated(some, horizon)), 1)[:, times] for some in groups])

    def _evaluated(self, points: Tensor, horizon: int) -> Iterator[Tensor]:
        """Yield the size of the output's rate of change for each of the n inputs ``points``, in pieces (n, ·) of the
        time axis.
        """
        inputs, at, whole = points.double().cpu(), 0, horizon >= self.searched
        if whole:
            self._gram += inputs.mT @ inputs
        for velocity in self.velocities(points, horizon):
            speed = self.speeds(points, velocity).double().cpu()
            if whole:
                self._remember(inputs, velocity, at)
            best, index = speed.max(0)
            self._keep(at, best, inputs[index], horizon)
            at += len(best)
            yield speed

    def _keep(self, at: int, value: Tensor, inputs: Tensor, length: int) -> None:
        """Update the largest value of the memory function at each time, and the inputs that gave these values.

        ``value`` and ``inputs`` are the new values and their inputs, from time step ``at`` on, found in a run of
        ``length`` steps. Raises an error if a value is not finite, because the supremum then does not exist and the
        search could not choose the next inputs.
        """
        bad = (~value.isfinite()).nonzero()
        if len(bad):
            raise not_finite(at + int(bad[0]), size=float(torch.linalg.vector_norm(inputs[bad[0]])))
        now = slice(at, at + len(value))
        known = self._value[now]
        better = value > known
        self._value[now] = torch.where(better, value, known)
        self.best[now] = torch.where(better[:, None], inputs, self.best[now])
        self.lengths[now] = torch.where(better, length, self.lengths[now])

    def together(self, horizon: int) -> int:
        """Return the number of inputs to run at once, given the horizon and the size of the state."""
        if self.system.streams:
            return max(1, STATE_ELEMENTS // (4 * SHORTEST * self.system.width) - 1)
        width = (horizon + self.warm_up) * max(self.system.d_input, self.system.d_output)
        return max(1, 8 * CHUNK_ELEMENTS // width)

    def speeds(self, points: Tensor, velocity: Tensor) -> Tensor:
        """Return the size (n, T) of the output's rate of change, |d/dt H_t(u^x)|, normalized as ``norm`` says."""
        speed = _length(velocity)
        if self.norm == "ball":
            return speed / self.bound
        return speed / (points.abs().amax(1, keepdim=True) + 1) if self.norm == "plus_one" else speed

    def velocities(self, points: Tensor, horizon: int, linear: System | None = None) -> Iterator[Tensor]:
        """Yield the output's rate of change, d/dt H_t(u^x), in pieces (n, ·, d_output) of the time axis.

        ``points`` (n, d_input) are the inputs x. If a linearized system ``linear`` is given, it runs instead of the
        model.
        """
        x = torch.cat([torch.zeros_like(points[:1]), points])

        def drive(start: int, stop: int) -> Tensor:
            held = x[:, None].expand(-1, max(0, stop - max(start, 0)), -1)
            if self.brief:
                held = held * (torch.arange(max(start, 0), max(stop, 0), device=x.device) == 0)[:, None]
            before = x.new_zeros(len(x), max(0, min(stop, 0) - start), x.shape[1])
            return torch.cat([before, held], 1) if before.shape[1] else held

        last, skip = None, self.warm_up
        # the tangents in the state of a linearized system may change although its values do not
        system, steady = (self.system, 0) if linear is None else (linear, None)
        for y in system.outputs(drive, -self.warm_up, horizon, steady=steady):
            if linear is None:
                self._largest_output = max(self._largest_output, float(_length(y.detach()).nan_to_num().max()))
                self._eps = max(self._eps, torch.finfo(y.dtype).eps)  # some models leave double precision on the way
            moved = y[1:] - y[:1]
            change = moved
            if not self.brief:
                change = moved.diff(dim=1, prepend=torch.zeros_like(moved[:, :1]) if last is None else last)
            change = change[:, skip:]
            last, skip = moved[:, -1:], max(0, skip - y.shape[1])
            if change.shape[1]:
                yield change / self.dt

    def _remember(self, inputs: Tensor, velocity: Tensor, at: int) -> None:
        """Add measured responses to the sums from which the best linear model of the responses is computed.

        ``velocity`` (n, ·, d_output) is the output's rate of change for n ``inputs``, from time step ``at`` on.
        """
        if not self._linear_model_fits() or at >= self.limit:
            return
        if self._cross is None:
            self._cross = torch.zeros(self.limit, self.system.d_input, self.system.d_output, dtype=torch.float64)
        seen = velocity[:, : self.limit - at].double().cpu()
        self._cross[at : at + seen.shape[1]] += torch.einsum("nd,nto->tdo", inputs, seen)

    def _linear_model_fits(self) -> bool:
        """Return True if a linear model of the responses can be computed.

        The system must have several input channels, and the model, which is a matrix for each time, must fit in memory.
        """
        elements = self.limit * self.system.d_input * self.system.d_output
        return self.system.d_input > 1 and elements <= 8 * CHUNK_ELEMENTS

    def _proposed(self) -> Tensor:
        """Return inputs that may increase the largest value at some times.

        A linear model of the measured responses predicts the best input and the largest value at each time. The
        returned inputs belong to the times at which the predicted value is largest compared with the largest value
        found so far.
        """
        cross = torch.as_tensor(self._cross)[: self.searched]
        slopes = torch.linalg.pinv(self._gram, hermitian=True) @ cross
        left, gain, _ = torch.linalg.svd(slopes, full_matrices=False)  # one matrix (d_input, d_output) per time
        known = self._value[: self.searched]
        ratio = torch.where(known > 8 * self.rounding, gain[:, 0] / known, 0)
        return self.bound * left[ratio.topk(min(TIMES, self.searched)).indices, :, 0]

    def times(self, most: int) -> Tensor:
        """Return about ``most`` times at which the response has not decayed: the peak, evenly spaced and log-spaced
        times.
        """
        alive = (self._value[: self.searched] > 8 * self.rounding).nonzero()[:, 0]
        if not len(alive):
            return alive
        last = int(alive[-1])
        half = max(1, min(most, LONGEST_GRADIENT // (last + 1))) // 2 + 1
        peak = [float(self._value[: self.limit].argmax())]
        spread = np.concatenate([np.geomspace(1, last + 1, half) - 1, np.linspace(0, last, half), peak])
        return alive[torch.searchsorted(alive, torch.from_numpy(spread.round().astype(np.int64)))].unique()

    def _leading(self, times: Tensor) -> Tensor:
        """Return the distinct directions (unit vectors) of the best inputs found for the given times."""
        return _unit(
            torch.unique(_unit(self.best[times]).round(decimals=6), dim=0)
        )  # rounded, so that equal directions coincide

    def spread(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random inputs of many sizes and their negatives; with several channels, half have the largest size."""
        d = self.system.d_input
        longest = count // 2 if d > 1 else 0
        count = count if d > 1 else max(1, count // 2)
        directions = _unit(torch.randn(count, d, generator=generator, dtype=torch.float64))
        sizes = torch.cat([torch.full((longest,), self.reach, dtype=torch.float64), self.sizes(count - longest)])
        points = sizes[:, None] * directions
        return self.own(torch.cat([points, -points]))

    def _on_rays(self, directions: Tensor, samples: int) -> Tensor:
        """Return inputs of ``samples`` sizes in the given directions (n, d_input) and in the opposite directions."""
        sizes = self.sizes(max(1, samples))
        points = (sizes[:, None, None] * directions).flatten(0, 1)
        return self.own(torch.cat([points, -points]))

    def sizes(self, samples: int) -> Tensor:
        """Return sizes of inputs up to the largest: half of them logarithmically spaced from a tiny size, half evenly
        spaced.
        """
        even = torch.linspace(0, self.bound, samples // 2 + 1, dtype=torch.float64)[1:]
        low, high = math.log10(SMALLEST * self.bound), math.log10(self.reach)
        return torch.cat([torch.logspace(low, high, samples - len(even), dtype=torch.float64).flip(0), even])

    def own(self, points: Tensor) -> Tensor:
        return points.to(self.system.device, self.system.dtype)


def not_finite(step: int, size: float | None = None) -> NumericalError:
    """Return the error for an output that is not finite at the given step, after an input of the given size."""
    remedies = ["run the model within `with stablessm.trace_divergence(model):`, which names the module and the cause"]
    if size is not None:
        remedies.insert(0, "measure smaller inputs (bound=)")
    if step:
        remedies.insert(0, "measure a shorter horizon")
    what = "the input" if size is None else f"the input of size {size:.3g}"
    return NumericalError(f"the model's output is not finite {step} steps after {what}", ", or ".join(remedies))


def _unit(points: Tensor) -> Tensor:
    return torch.nn.functional.normalize(points, dim=1, eps=0)


def _length(y: Tensor) -> Tensor:
    return torch.linalg.vector_norm(y, dim=-1)
