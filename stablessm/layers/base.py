"""The base class of all layers: the common interface, and the handling of states, padding, resets and time steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from stablessm import _tensors
from stablessm._arguments import MOST, whole_number
from stablessm._checked import require, rule_of
from stablessm._errors import ArgumentError
from stablessm._typing import Dt, Lengths, Reset, Sequence, State, Times
from stablessm.layers.forms import Input, packed, unbatched
from stablessm.scan.checks import (
    autocast_enabled,
    check_device,
    check_dtype,
    check_reset,
    check_state,
    check_tensor,
    checked_lengths,
)  # fmt: skip
from stablessm.scan.padding import last_state, without_padding


class SequenceLayer(nn.Module, ABC):
    """A layer that maps a sequence (B, T, d_input) causally to a sequence (B, T, d_output) and carries a state.

    A layer also accepts a ``PackedSequence`` and a single sequence (T, d_input), as ``torch.nn.GRU`` does.

    Parameters are real tensors; complex numbers are stored as pairs. A subclass implements ``_states``, ``_advance``,
    ``_readout``, ``eigenvalues``, ``kernel`` and ``reset_parameters``. Add a new subclass to the table of layers in the
    tests, which check that every layer satisfies this interface.
    """

    recurrent_parameters: ClassVar[tuple[str, ...]]
    """Names of the parameters that set the dynamics; ``param_groups`` gives them their own learning rate."""

    def __init__(self, d_input: int, d_output: int, state_shape: tuple[int, ...], *, complex_state: bool) -> None:
        super().__init__()
        for name, size in (("d_input", d_input), ("d_output", d_output), *(("d_state", n) for n in state_shape)):
            whole_number(name, size)
        self.d_input, self.d_output = d_input, d_output
        self.state_shape, self.complex_state = state_shape, complex_state

    @abstractmethod
    def reset_parameters(self) -> None:
        """Initialize every parameter again, as at construction."""

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of the recurrence, differentiable with respect to the parameters."""

    @abstractmethod
    def kernel(self, times: Times) -> Tensor:
        """Return the impulse response: the outputs at the given times after an impulse at time 0.

        The direct term D x is left out. The shape is (len(times), d_output, d_input), or (len(times), channels) for
        layers whose channels do not mix.
        """

    @abstractmethod
    def _states(self, x: Tensor, state: Tensor | None, reset: Tensor | None, dt: Tensor | None) -> Tensor:
        """Compute the state after each step, (B, T, …), from an initial state (None means zeros)."""

    @abstractmethod
    def _advance(self, x_t: Tensor, state: Tensor, dt: Tensor | None) -> Tensor:
        """Compute the next state (B, …) from the input of one step and the present state."""

    @abstractmethod
    def _readout(self, states: Tensor, x: Tensor) -> Tensor:
        """Compute the outputs from states and inputs, for a single step or for a sequence."""

    def initial_state(self, batch: int) -> State:
        """Return a state of zeros for ``batch`` sequences, in float32 or better."""
        if not torch.compiler.is_compiling():
            batch = whole_number("batch", batch, 0)
        return torch.zeros(batch, *self.state_shape, dtype=self._state_dtype(), device=self._parameter().device)

    def forward(
        self, x: Input, state: State | None = None, *, lengths: Lengths = None, reset: Reset = None, dt: Dt = None
    ) -> tuple[Sequence, State]:
        """Compute the outputs (B, T, d_output) and the last state for a batch of sequences (B, T, d_input).

        Args:
            x: (B, T, d_input), in the dtype of the parameters; or, as ``torch.nn.GRU`` accepts them, one sequence
                (T, d_input) or a ``PackedSequence``, without ``lengths``.
            state: the state that an earlier call returned (default: zeros).
            lengths: (B,) whole numbers: the number of real steps of each right-padded sequence. Padding changes no real
                step, the output at padded steps is zero, and the returned state is the state after the last real step.
            reset: (T,) or (B, T) bool: True at the first step of a new episode, which starts from the zero state.
            dt: the time since the previous sample: a number, (T,) or (B, T) (default: the layer's own time step).

        Returns:
            The output (B, T, d_output) and the state after the last step. For one sequence, neither has a batch
            dimension. For a ``PackedSequence``, the output is packed in the same way, and the states are in the order
            before packing. Under autocast the output has the dtype of autocast; the state has the dtype of the
            recurrence.
        """
        if isinstance(x, PackedSequence):
            return packed(self.forward, x, state, lengths=lengths, reset=reset, dt=dt)
        *batches, steps = self._check("x", x, 3, "(batch, time, d_input) or 2 (time, d_input)")
        state = self._checked_state(state, *batches)
        if not batches:
            return unbatched(self.forward, x, state, lengths=lengths, reset=reset, dt=dt)
        (batch,) = batches
        check_reset(reset, batch, steps)
        lengths = checked_lengths(lengths, x)
        step_sizes = self._checked_dt(dt, (), (steps,), (batch, steps))
        x = without_padding(x, lengths)  # a NaN in the padding must not reach an FFT or a gradient
        y, final = self._run(x, state, lengths, reset, step_sizes)
        return without_padding(_in_dtype_of(x, y), lengths), final

    def step(self, x_t: Tensor, state: State | None = None, *, dt: Dt = None) -> tuple[Tensor, State]:
        """Run one step of ``forward``: return the output (B, d_output) and the next state.

        Args:
            x_t: (B, d_input), or (d_input,) for a single sequence; output and state then have no batch dimension.
            state: the state that an earlier call returned (default: zeros).
            dt: the time since the previous sample: a number or (B,) (default: the layer's own time step).
        """
        batches = self._check("x_t", x_t, 2, "(batch, d_input) or 1 (d_input)")
        state = self._checked_state(state, *batches)
        if not batches:
            return unbatched(self.step, x_t, state, dt=dt)
        (batch,) = batches
        state = self.initial_state(batch) if state is None else state
        step_size = self._checked_dt(dt, (), (batch,))
        single = state.dtype in (torch.float32, torch.complex64)
        if single and step_size is None and (found := self._step_at_once(x_t, state)) is not None:
            return found
        new = self._advance(x_t, state, step_size)
        return _in_dtype_of(x_t, self._readout(new, x_t)), new

    def _step_at_once(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor] | None:
        """Compute one step with a few Triton kernels; return the output and the next state, as :meth:`step` does.

        The result is None if the kernels do not support the layer or its tensors.
        """
        return None

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, reset: Tensor | None, dt: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        states = self._states(x, state, reset, dt)
        before = self.initial_state(x.shape[0]) if state is None else state
        return self._readout(states, x), last_state(states, before, lengths)

    def _check(self, name: str, x: Tensor, rank: int, letters: str) -> tuple[int, ...]:
        """Check the shape, dtype and device of an input x, and return x.shape[:-1].

        ``rank`` is the number of dimensions of a batch of inputs, and ``letters`` are the names of these dimensions. A
        single input without the batch dimension is allowed too.
        """
        if not isinstance(x, Tensor) or x.is_nested or x.dim() != rank - 1:
            check_tensor(name, x, rank, letters)
        if x.shape[-1] != self.d_input:
            raise ArgumentError(name, f"{self.d_input} channels (d_input)", f"{x.shape[-1]}")
        if not x.is_floating_point() or x.dtype.itemsize < 2:
            raise ArgumentError(name, "a real floating point dtype", x.dtype)
        check_device(name, x, self._parameter())
        check_dtype(name, x, self._parameters.values())
        return tuple(x.shape[:-1])

    def _checked_state(self, state: Tensor | None, *batch: int) -> Tensor | None:
        if state is None:
            return None
        check_state(state, (*batch, *self.state_shape), self._parameter(), complex=self.complex_state)
        return state.to(self._state_dtype())

    def _checked_dt(self, dt: float | Tensor | None, *shapes: tuple[int, ...]) -> Tensor | None:
        if dt is None:
            return None
        dt = self._tensor_of(dt)
        if dt.shape != {len(shape): shape for shape in shapes}.get(dt.dim()):
            raise ArgumentError("dt", " or ".join(f"shape {shape}" for shape in shapes), f"shape {tuple(dt.shape)}")
        if not torch.compiler.is_compiling() and not bool(((dt >= 0) & (dt < math.inf)).all()):
            wrong = dt[~((dt >= 0) & (dt < math.inf))].flatten()[0]
            raise ArgumentError("dt", "finite time steps, none negative", f"{wrong.item()}")
        return dt

    def _tensor_of(self, dt: float | Tensor) -> Tensor:
        like = self._parameter()
        if isinstance(dt, Tensor) and (
            dt.is_complex() or dt.is_meta != like.is_meta or dt.is_sparse or dt.is_quantized or dt.is_nested
        ):
            raise ArgumentError("dt", "a real dtype and a dense layout", f"{dt.dtype}, {dt.layout}, on {dt.device}")
        if isinstance(dt, bool) or (isinstance(dt, Tensor) and dt.dtype == torch.bool):
            raise ArgumentError("dt", "numbers", "bool")
        if isinstance(dt, int) and abs(dt) >= MOST:
            raise ArgumentError("dt", f"a number below {MOST}", "a larger one")
        if not isinstance(dt, Tensor | float | int):
            require("dt", dt, rule_of(ArrayLike))
        return _tensors.as_tensor(dt, dtype=self._parameter_dtype(), device=like.device)

    def _parameter(self) -> Tensor:
        """Return one of the parameters, from which the dtype and device of the layer can be read."""
        return next(self.parameters())

    def _state_dtype(self) -> torch.dtype:
        return torch.promote_types(self._parameter_dtype(), torch.complex64 if self.complex_state else torch.float32)

    def _parameter_dtype(self) -> torch.dtype:
        return torch.promote_types(self._parameter().dtype, torch.float32)


def _in_dtype_of(x: Tensor, y: Tensor) -> Tensor:
    """Return an output y in the dtype of the input x; under autocast, in the dtype of autocast unless y is float64."""
    if not autocast_enabled(y.device.type):
        return y.to(x.dtype)
    return y if y.dtype == torch.float64 else y.to(torch.get_autocast_dtype(y.device.type))
