"""A target that solves the Lotka-Volterra equations; the input to the target controls the predators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch
from torch import Tensor

from stablessm._checked import Positive, checked
from stablessm._errors import ArgumentError
from stablessm.targets.base import Target

Solver: TypeAlias = Literal["euler", "rk4"]


@final
@checked
@dataclass(frozen=True)
class LotkaVolterra(Target):
    """A predator-prey system driven by the input. The output is the state z = (z₁, z₂) of the system after every step.

    dz₁/dt = z₁ (a - b z₂) for the prey, dz₂/dt = -z₂ (c - d z₁) + x for the predators (LRU-UA eq. 37, 38).

    The defaults are the values in LRU-UA (appendix E.3): Euler steps of 0.0075 from z(0) = (1, 0.5). The input is
    constant during a step.

    Unlike the other targets, the system does not start at rest: a zero input gives a nonzero output, and a delayed
    input does not simply delay the output. The map is causal. Over a finite time, the change of the output by an input
    is a continuous, bounded and regular function of the input (regular: very short pulses hardly change the output).
    Nothing keeps z positive: an input that drives z₂ far below 0 makes z₁ explode. The memory function has no closed
    form. If the system starts at rest, z(0) = (c/d, a/b), the map is time-homogeneous.

    >>> target = LotkaVolterra()
    >>> target(torch.zeros(1, 2048, 1)).shape
    torch.Size([1, 2048, 2])
    """

    a: Positive = 1.0
    b: Positive = 0.6
    c: Positive = 1.0
    d: Positive = 0.3
    start: tuple[float, float] = (1.0, 0.5)
    """Initial state z(0)."""
    dt: Positive = 0.0075
    solver: Solver = "euler"
    """``euler``, as in the paper, or the more accurate ``rk4`` (the classical Runge–Kutta method)."""

    d_input = 1
    d_output = 2
    has_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.start) != 2:
            raise ArgumentError("start", "two numbers", self.start)

    def _respond(self, x: Tensor) -> Tensor:
        z = x.new_tensor(self.start).expand(len(x), 2)
        states = []
        for control in x.unbind(1):
            z = z + self.dt * self._slope(z, control[:, 0])
            states.append(z)
        return torch.stack(states, 1) if states else x.new_empty(len(x), 0, 2)

    def _slope(self, z: Tensor, control: Tensor) -> Tensor:
        """Return the average rate of change of the state over one step of the solver: z after the step is z + dt times
        this rate.
        """
        first = self._velocity(z, control)
        if self.solver == "euler":
            return first
        second = self._velocity(z + self.dt / 2 * first, control)
        third = self._velocity(z + self.dt / 2 * second, control)
        return (first + 2 * second + 2 * third + self._velocity(z + self.dt * third, control)) / 6

    def _velocity(self, z: Tensor, control: Tensor) -> Tensor:
        prey, predators = z.unbind(-1)
        return torch.stack([prey * (self.a - self.b * predators), predators * (self.d * prey - self.c) + control], -1)
