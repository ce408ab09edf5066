"""The memory of a compiled program: its arrays, aligned and padded to whole SIMD vectors."""

from __future__ import annotations

from typing import final

import numpy as np
from llvmlite import ir

from stablessm.llvm.emitter import VECTOR_BYTES, pointer_to
from stablessm.streaming.program import Channels, Program, Slot, Taps


@final
class Memory:
    """The arrays of a compiled program: values and states, (batch, padded size) each, and weights.

    The weights of padding are zero, so that padding never affects other elements. Recurrences carry their states in
    float64 (``wide``), because a stream has no end and a slow mode would accumulate rounding errors. ``values``
    contains the same states, rounded to the dtype of the program.
    """

    def __init__(self, program: Program, batch: int) -> None:
        self.batch, self.dtype, self._sizes = batch, program.dtype, program.sizes
        self.lanes = VECTOR_BYTES // self.dtype.itemsize
        self._kept: list[np.ndarray] = []
        self.values = [self._zeros((batch, self.padded(size))) for size in program.sizes]
        self._channels = {op.real: self._channel_states(op) for op in program.operations if isinstance(op, Channels)}
        self._lines = {op.past: (self._delay_line(op), op) for op in program.operations if isinstance(op, Taps)}
        others = self._channels.keys() | self._lines.keys()
        states = (value for slot in program.slots for value in slot.values if slot.values[0] not in others)
        self.wide = {value: self._zeros(self.values[value].shape, np.float64) for value in states}
        self.workers = np.ones(1, np.int32)
        """The number of threads that compute large products."""

    def size(self, value: int) -> int:
        """Return the number of elements of a value of the program, without padding."""
        return self._sizes[value]

    def padded(self, size: int) -> int:
        """Return a size rounded up to a multiple of the number of elements of a SIMD vector."""
        return -(-size // self.lanes) * self.lanes

    @staticmethod
    def pointer(array: np.ndarray) -> ir.Constant:
        """Return the address of an array in this memory as a constant for LLVM code."""
        return pointer_to(array.ctypes.data, ir.DoubleType() if array.itemsize == 8 else ir.FloatType())

    def constant(self, array: np.ndarray) -> ir.Constant:
        """Return the address of a copy of an array; the copy lives as long as this object."""
        kept = self._zeros(array.shape)
        kept[...] = array
        self._kept.append(kept)
        return self.pointer(kept)

    def vector(self, array: np.ndarray) -> ir.Constant:
        """Return the address of a copy of an array that is padded with zeros; the copy lives as long as this object."""
        return self.constant(np.pad(array, (0, self.padded(len(array)) - len(array))))

    def channel_states(self, op: Channels) -> np.ndarray:
        """Return the float64 array in which an operation stores its states, of shape (batch, H / lanes, N, 2, lanes).

        The array contains each state divided by its gain, because the recurrence of the divided states needs no gain.
        The 2 stands for real and imaginary parts.
        """
        return self._channels[op.real][0]

    def delay_line(self, op: Taps) -> np.ndarray:
        """Return the array of the last K inputs of each of the H filters of a bank, where K is the number of taps.

        The shape of the array is (batch, H / lanes, K, lanes).
        """
        return self._lines[op.past][0]

    def read(self, slot: Slot) -> list[np.ndarray]:
        """Return one state of the model as a list of arrays (batch, size).

        The list contains one array or, for a complex state, two arrays: the real and the imaginary parts.
        """
        if slot.values[0] in self._lines:
            line, op = self._lines[slot.values[0]]
            H, K = op.taps.shape
            inputs = line.swapaxes(1, 2).reshape(self.batch, K, self.padded(H))[..., op.first]
            return [inputs.reshape(self.batch, K * len(op.first))]
        if slot.values[0] not in self._channels:
            return [self.values[value][:, : self._sizes[value]] for value in slot.values]
        memory, gain = self._channels[slot.values[0]]
        scaled = (memory[..., 0, :] + 1j * memory[..., 1, :]).swapaxes(2, 3)  # (batch, H / lanes, lanes, N)
        state = (scaled.reshape(self.batch, -1, gain.shape[1])[:, : len(gain)] * gain).reshape(self.batch, -1)
        return [state.real, state.imag]

    def write(self, slot: Slot, parts: list[np.ndarray]) -> None:
        """Set one state of the model to ``parts``, a list of arrays as :meth:`read` returns it."""
        if slot.values[0] in self._lines:
            line, op = self._lines[slot.values[0]]
            H, K = op.taps.shape
            spread = np.zeros((self.batch, K, self.padded(H)), self.dtype)
            spread[..., :H] = parts[0].reshape(self.batch, K, len(op.first))[..., op.inputs]
            line[...] = spread.reshape(self.batch, K, line.shape[1], self.lanes).swapaxes(1, 2)
            return
        if slot.values[0] not in self._channels:
            for value, part in zip(slot.values, parts, strict=True):
                for array in (self.values[value], self.wide[value]):
                    array[:, : self._sizes[value]] = part
            return
        memory, gain = self._channels[slot.values[0]]
        state = (parts[0] + 1j * parts[1].astype(np.float64)).reshape(self.batch, *gain.shape)
        padded = np.zeros((self.batch, self.padded(len(gain)), gain.shape[1]), state.dtype)
        padded[:, : len(gain)] = np.divide(state, gain, out=np.zeros_like(state), where=gain != 0)
        scaled = padded.reshape(self.batch, -1, self.lanes, gain.shape[1]).swapaxes(2, 3)
        memory[..., 0, :], memory[..., 1, :] = scaled.real, scaled.imag

    def arrays(self) -> list[np.ndarray]:
        """Return every array of the program except the weights."""
        states = [array for array, _ in (*self._channels.values(), *self._lines.values())]
        return [*self.values, *self.wide.values(), *states]

    def _channel_states(self, op: Channels) -> tuple[np.ndarray, np.ndarray]:
        channels, states = op.decay.shape
        shape = (self.batch, self.padded(channels) // self.lanes, states, 2, self.lanes)
        return self._zeros(shape, np.float64), op.gain

    def _delay_line(self, op: Taps) -> np.ndarray:
        H, K = op.taps.shape
        return self._zeros((self.batch, self.padded(H) // self.lanes, K, self.lanes))

    def _zeros(self, shape: tuple[int, ...], dtype: type | None = None) -> np.ndarray:
        kind = np.dtype(dtype or self.dtype)
        size = int(np.prod(shape)) * kind.itemsize
        raw = np.zeros(size + VECTOR_BYTES, np.uint8)
        start = -raw.ctypes.data % VECTOR_BYTES
        return raw[start : start + size].view(kind).reshape(shape)
