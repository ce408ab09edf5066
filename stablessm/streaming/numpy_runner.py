"""Runs a program in NumPy, for machines without llvmlite."""

from __future__ import annotations

from typing import final

import numpy as np
from scipy import special

from stablessm.streaming.interpret import Library, constants, lowered
from stablessm.streaming.program import Program, Slot

NUMPY = Library(
    np.concatenate,
    lambda vector, each: np.repeat(vector, each, -1),
    {
        "relu": lambda z: np.maximum(z, 0.0),
        "hardtanh": lambda z: np.clip(z, -1.0, 1.0),
        "tanh": np.tanh,
        "sigmoid": special.expit,
        "gelu": lambda z: z * special.ndtr(z),
        "silu": lambda z: z * special.expit(z),
        "phi": special.exprel,
        "relu_slope": lambda z: (z > 0).astype(z.dtype),
        "hardtanh_slope": lambda z: (np.abs(z) < 1).astype(z.dtype),
        "tanh_slope": lambda z: 1.0 - np.tanh(z) ** 2,
        "sigmoid_slope": lambda z: special.expit(z) * special.expit(-z),
        "rsqrt": lambda z: 1.0 / np.sqrt(z),
        "reciprocal": np.reciprocal,
        "softplus": lambda z: np.logaddexp(z, z.dtype.type(0)),
        "expm1": np.expm1,
        "sqrt": np.sqrt,
        "negative": lambda z: np.minimum(z, -np.finfo(z.dtype).eps / 2),
    },
)


@final
class NumpyRunner:
    """Runs a program in NumPy; every value is an array (batch, size), which each step replaces by a new array."""

    def __init__(self, program: Program, batch: int) -> None:
        self._calls = [(op[0], lowered(op, constants(op), NUMPY)) for op in program.operations]
        self._at = {value: np.zeros((batch, size), program.dtype) for value, size in enumerate(program.sizes)}
        self._output = program.output
        self.x, self.y = self._at[0], np.zeros_like(self._at[program.output])

    def step(self) -> None:
        """Run one step of the program, from the array ``x`` to the array ``y``."""
        at = self._at
        for value, call in self._calls:
            at[value] = call(at)
        self.y[...] = self._at[self._output]

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Run the steps of a block of samples x (batch, time, size), and write the outputs to y (batch, time, size)."""
        for t in range(x.shape[1]):
            self.x[...] = x[:, t]
            self.step()
            y[:, t] = self.y

    def arrays(self) -> list[np.ndarray]:
        """Return every array that a step reads or writes, except the weights."""
        return [*self._at.values(), self.y]

    def read(self, slot: Slot) -> list[np.ndarray]:
        """Return one state of the model as a list of arrays (batch, size).

        The list contains one array or, for a complex state, two arrays: the real and the imaginary parts.
        """
        return [self._at[value] for value in slot.values]

    def write(self, slot: Slot, parts: list[np.ndarray]) -> None:
        """Set one state of the model to ``parts``, a list of arrays as :meth:`read` returns it."""
        for value, part in zip(slot.values, parts, strict=True):
            self._at[value] = np.array(part, self.y.dtype)
