"""Runs a program, which is one step of a model, as machine code without allocating memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch

from stablessm.llvm import threads
from stablessm.llvm.compiler import MachineCode
from stablessm.llvm.target import target_machine
from stablessm.streaming.memory import Memory
from stablessm.streaming.program import Program
from stablessm.streaming.step_code import build


def _on_threads(run: Callable[..., None], workers: np.ndarray) -> Callable[..., None]:
    """Return ``run``, which first stores the current number of PyTorch's threads in the array ``workers``."""

    def call(*arguments: int) -> None:
        workers[0] = 1 if threads.team_to_join() is None else torch.get_num_threads()
        run(*arguments)

    return call


@final
class CompiledRunner:
    """A program (one step of a model) compiled to machine code for one batch size.

    ``step`` holds the GIL: a step takes microseconds, but a thread that releases the GIL may have to wait milliseconds
    until it gets the GIL back.
    """

    def __init__(self, program: Program, batch: int) -> None:
        self._memory = Memory(program, batch)
        self.read, self.write = self._memory.read, self._memory.write
        self.x = np.zeros((batch, program.sizes[0]), program.dtype)
        self.y = np.zeros((batch, program.sizes[program.output]), program.dtype)
        module = build(program, self._memory, self.x, self.y, target_machine().triple)
        self._code = MachineCode(module, ("step", "block"), threads.symbols())
        step: Any = ctypes.PYFUNCTYPE(None)(self._code.address("step"))
        step.keeps = (self._code, self._memory, self.x, self.y)  # the step may outlive its runner
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        block: Callable[[int, int, int], None] = kind(self._code.address("block"))
        workers = self._memory.workers
        if "GOMP_parallel" in module.globals:
            step, block = _on_threads(step, workers), _on_threads(block, workers)
        self.step: Callable[[], None] = step
        self._block = block

    def arrays(self) -> list[np.ndarray]:
        """Return every array that the compiled code reads or writes, except the weights."""
        return [self.x, self.y, *self._memory.arrays()]

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Run the steps of a block of samples without the GIL.

        x contains the samples, and y receives the outputs; both are contiguous arrays (batch, time, size).
        """
        self._block(x.ctypes.data, y.ctypes.data, x.shape[1])
