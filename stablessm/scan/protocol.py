"""The arguments of scan backends and the functions that they implement: one protocol per operator.

A backend is a folder with one module per operator (``linear``, ``ssm``), each with the functions of the protocol below.
Arguments are checked and brought into the form stated here before a backend is called. A backend must return bitwise
identical results for the same input, so it must add numbers in a fixed order. Autograd, ``torch.compile``, ``vmap`` and
forward mode come from :mod:`.linear_op` and :mod:`.ssm_op`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Recurrence(NamedTuple):
    """The decay, initial state, resets and direction of the recurrence h[t] = decay[t] h[t-1] + drive[t]."""

    decay: Tensor
    """(B or 1, T or 1, C)."""
    initial: Tensor | None
    """(B, C), the state before the first step; None means zeros."""
    reset: Tensor | None
    """(B, T) bool: True where nothing is carried into a step."""
    reverse: bool
    """True if the recurrence runs from the last step to the first."""


class LinearBackend(Protocol):
    """Functions of a backend that compute all states of a linear recurrence and its gradients."""

    def forward(self, recurrence: Recurrence, drive: Tensor) -> Tensor:
        """Compute all states of the recurrence, with the shape (B, T, C) and dtype of ``drive``."""

    def backward(self, recurrence: Recurrence, states: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients with respect to decay (in its own shape), drive and initial.

        The gradient of initial may be None if there is no initial state. ``grad`` is the gradient of ``states``.
        """


class DiagonalSSM(NamedTuple):
    """A diagonal state-space layer and its input: y[t] = Re Σ_n C h[t] + D x[t] with h[t] = decay h[t-1] + B x[t].

    ``decay``, ``B``, ``C`` and ``initial`` have one real or complex dtype, float32 or better.
    """

    x: Tensor
    """(B, T, H), real."""
    decay: Tensor
    """(H, N), like B and C."""
    B: Tensor
    C: Tensor
    D: Tensor | None
    """(H,), real."""
    initial: Tensor | None
    """(B, H, N), the state before the first step; None means zeros."""
    reset: Tensor | None
    """(B, T) bool: True where nothing is carried into a step."""
    lengths: Tensor | None
    """(B,) int64, the number of real steps of each sequence."""

    @property
    def real_dtype(self) -> torch.dtype:
        """Return the real dtype of the states; for complex states, the dtype of their real parts."""
        return self.decay.dtype.to_real()

    def zero_state(self) -> Tensor:
        """Return a state (B, H, N) of zeros, in the dtype of the decay."""
        return self.decay.new_zeros(self.x.shape[0], *self.decay.shape)


class SSMBackend(Protocol):
    """Functions of a backend that compute the output, final state and gradients of a diagonal state-space layer."""

    def checkpoint_shape(self, layer: DiagonalSSM) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and dtype of the checkpoints that ``forward`` would return, without running the layer."""

    def forward(self, layer: DiagonalSSM) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, the final state, and the checkpoints from which ``backward`` recomputes the states."""

    def backward(
        self, layer: DiagonalSSM, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to x, decay, B, C, D and initial; None stands for the gradient of a missing
        argument.

        ``d_y`` and ``d_final`` are the gradients of the output and of the final state; ``d_final=None`` means zeros.
        """


class Selective(NamedTuple):
    """A selective state-space layer (S6 of Mamba) and its input.

    y[t] = Σ_n C_n[t] h_n[t] with h_n[t] = exp(delta[t] A_n) h_n[t-1] + delta[t] B_n[t] x[t], for every channel. All
    tensors have one real dtype, float32 or better.
    """

    x: Tensor
    """(B, T, H)."""
    delta: Tensor
    """(B, T, H), the time step of each channel."""
    A: Tensor
    """(H, N), the rates."""
    B: Tensor
    """(B, T, N)."""
    C: Tensor
    """(B, T, N)."""
    initial: Tensor | None
    """(B, H, N), the state before the first step; None means zeros."""
    reset: Tensor | None
    """(B, T) bool: True where nothing is carried into a step."""
    lengths: Tensor | None
    """(B,) int64, the number of real steps of each sequence."""
    below_one: bool
    """Whether delta A is limited so that every decay exp(delta A) is below 1 after rounding."""

    def zero_state(self) -> Tensor:
        """Return a state (B, H, N) of zeros, in the dtype of x."""
        return self.A.new_zeros(self.x.shape[0], *self.A.shape)


class Gated(NamedTuple):
    """A gated recurrence h[t] = a[t] h[t-1] + u[t] and its input.

    The ``form`` computes a and u from the inputs of the gates (:func:`stablessm.scan.gated.decay_and_drive`). All
    tensors have one real dtype, float32 or better.
    """

    form: str
    """``min-gru``, ``min-lstm``, ``hgrn`` or ``rg-lru``."""
    gates: Tensor
    """(B, T, k C): the inputs of the k gates, gate by gate."""
    rate: Tensor
    """(C,), negative in a stable recurrence."""
    x: Tensor | None
    """(B, T, C), the input of ``rg-lru``."""
    initial: Tensor | None
    """(B, C), the state before the first step; None means zeros."""
    reset: Tensor | None
    """(B, T) bool: True where nothing is carried into a step."""
    below_one: bool
    """Whether every decay is kept below 1 where it would be rounded to 1."""


class SelectiveBackend(Protocol):
    """Functions of a backend that compute the output, final state and gradients of a selective layer."""

    def forward(self, layer: Selective) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, the final state, and the checkpoints from which ``backward`` recomputes the states."""

    def backward(
        self, layer: Selective, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to x, delta, A, B, C and initial.

        The gradient of initial may be None if there is no initial state. ``d_y`` and ``d_final`` are the gradients of
        the output and of the final state; ``d_final=None`` means zeros.
        """


class Backend(NamedTuple):
    """The operators that one scan backend implements, such as the linear scan and the fused layer.

    To add an operator, add a field here and a module in the folder of each backend.
    """

    linear: LinearBackend
    ssm: SSMBackend
    selective: SelectiveBackend
