"""A target that is a random recurrent network with fixed weights."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor

from stablessm._checked import NotNegative, Positive, Size, checked
from stablessm._errors import ArgumentError
from stablessm.layers import ContinuousRNN, activations
from stablessm.targets.base import Target

STATE_ELEMENTS = 8_000_000
"""Largest number of state values that are held in memory at once; a larger batch is computed in parts."""


@final
@checked
@dataclass(frozen=True)
class TeacherRNN(Target):
    """A random recurrent network with fixed weights: dh/dt = σ(W h + U x), y = C h, integrated by Euler steps (IAT eq.
    1).

    IAT states only that teachers are random and have 256 states. Here W is a normal matrix in a random orthonormal
    basis, with eigenvalues -(1 ± iφ)/τ, where τ is log-uniform in ``timescales`` and φ is uniform in [0,
    ``oscillation``]. U and C are Gaussian with variances 1/d_input and 1/d_state. There is no bias, so a zero input
    gives a zero output.

    For a constant input the state of every teacher converges, in continuous time and with Euler steps. The proof is a
    Lyapunov function: with z = W h + U x, the sum V = Σ_i ∫_0^{z_i} σ(s) ds decreases at every step if dt (1 + φ²) < 2
    τ, because 0 ≤ σ' ≤ 1. Longer time scales converge more slowly. The memory function has no closed form.

    Args:
        d_state, d_input, d_output: number of states, inputs and outputs.
        activation: σ: ``tanh``, ``hardtanh``, ``relu`` or ``linear``.
        seed: seed of W, U and C; the global random state is not changed.
        timescales: shortest and longest time scale τ.
        oscillation: largest phase in radians by which a mode turns while it decays by a factor of e.
        dt: time between samples, in the unit of ``timescales``.

    >>> teacher = TeacherRNN(32, seed=3, timescales=(1.0, 30.0))
    >>> teacher(torch.randn(4, 100, 1)).shape, teacher == TeacherRNN(32, seed=3, timescales=(1.0, 30.0))
    (torch.Size([4, 100, 1]), True)
    """

    d_state: Size = 256
    d_input: Size = 1
    d_output: Size = 1
    activation: str = "tanh"
    seed: int = 0
    timescales: tuple[float, float] = (1.0, 10.0)
    oscillation: NotNegative = 1.0
    dt: Positive = 0.1

    has_memory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        shortest, longest = self.timescales
        if not 0 < shortest <= longest < math.inf:
            raise ArgumentError("timescales", "two positive numbers, the shorter first", self.timescales)
        if not self.dt * (1 + self.oscillation**2) < 2 * shortest:
            most = 2 * shortest / (1 + self.oscillation**2)
            raise ArgumentError("dt", f"less than {most:g}, where Euler steps become unstable", self.dt)
        if float(activations.get(self.activation).value(torch.zeros(()))) != 0:
            raise ArgumentError("activation", "a function with σ(0) = 0", repr(self.activation))

    @cached_property
    def layer(self) -> ContinuousRNN:
        """A recurrent layer with the weights of the teacher, in float64, whose memory and stability the instruments can
        measure. The weights are not trained.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            layer = ContinuousRNN(
                self.d_input, self.d_state, self.d_output, activation=self.activation, dt=self.dt, bias=False,
                eigenvalues=self._eigenvalues(),
            )  # fmt: skip
        return layer.double().requires_grad_(False)

    def _eigenvalues(self) -> Tensor:
        """Draw the eigenvalues of W: conjugate pairs, and one real eigenvalue if ``d_state`` is odd."""
        shortest, longest = self.timescales
        pairs, single = divmod(self.d_state, 2)
        tau = shortest * (longest / shortest) ** torch.rand(pairs + single, dtype=torch.float64)
        phi = self.oscillation * torch.rand(pairs, dtype=torch.float64)
        upper = torch.complex(-1 / tau[:pairs], phi / tau[:pairs])
        return torch.cat([upper, upper.conj(), -1 / tau[pairs:]])

    def _respond(self, x: Tensor) -> Tensor:
        layer = copy.deepcopy(self.layer).to(x.device, x.dtype)
        size = max(1, STATE_ELEMENTS // (self.d_state * max(1, x.shape[1])))
        return torch.cat([layer(some)[0] for some in x.split(size)])
