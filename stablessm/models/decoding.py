"""Repeats one step of a model, each time from the state that the previous step returned, as a CUDA graph if
possible.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from stablessm.layers.replayed import Replayed
from stablessm.layers.states import mapped, tensors
from stablessm.scan.dispatch import copy_all

Step: TypeAlias = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""A function ``step(x, state) -> (y, state)``."""
PLAIN = 3
"""Number of calls before a step is captured, because the capture takes as long as a few calls."""


@final
class CapturedStep:
    """A function ``step(x, state) -> (y, state)`` captured as a CUDA graph, with x, y and state in fixed memory.

    A GPU replays all kernels of the step without waiting for the CPU. Without the graph, launching the kernels from the
    CPU takes most of the time of a generated token.

    Args:
        step: the function. The shapes and dtypes of its tensors must not depend on values in tensors.
        x: the input of the first step, from which shape, dtype and device are read.
        state: the state before the first step: tensors in nested tuples.
        generator: random generator that ``step`` draws from. The state of the generator before a call determines the
            random numbers, as without a graph. Capturing the graph also draws numbers.
    """

    def __init__(self, step: Step, x: Tensor, state: Any, generator: torch.Generator | None = None) -> None:
        self.x, self.state = x.clone(), mapped(state, torch.clone)
        self._graph = Replayed(self._run(step), (), (), generator)
        self._load(x, state)

    def _run(self, step: Step) -> Callable[[], Tensor]:
        def run() -> Tensor:
            y, state = step(self.x, self.state)
            copy_all(tensors(self.state), tensors(state))
            return y

        return run

    def __call__(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Replay the graph; return the output and the next state. The next call overwrites the memory of both."""
        self._load(x, state)
        return self._graph(), self.state

    def _load(self, x: Tensor, state: Any) -> None:
        if x is not self.x:
            self.x.copy_(x)
        if state is not self.state:
            copy_all(tensors(self.state), tensors(state))

    def fits(self, x: Tensor, state: Any) -> bool:
        """Return True if this input and state have the shapes and dtypes for which the graph was captured."""
        if state is self.state and x.shape == self.x.shape:
            return True
        given = [(tensor.shape, tensor.dtype) for tensor in (x, *tensors(state))]
        return given == [(own.shape, own.dtype) for own in (self.x, *tensors(self.state))]


@final
class Repeated:
    """A function ``step(x, state) -> (y, state)`` that is captured as a CUDA graph after a few calls, if possible.

    On a CPU, and if the step cannot be captured, the function itself is called; the results are the same. Tensors that
    the function reads, such as weights, must stay at the same place in memory, and must not change.

    Args:
        step: the function.
        generator: random generator that ``step`` draws from.
    """

    def __init__(self, step: Step, generator: torch.Generator | None = None) -> None:
        self._step, self._generator = step, generator
        self._calls, self._can_capture = 0, True
        self._captured: CapturedStep | None = None

    def __call__(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Run one step; return the output and the next state. The next call may overwrite the memory of both."""
        if self._captured is None or not self._captured.fits(x, state):
            self._calls += 1
            if self._calls <= PLAIN or not self._can_capture or not _on_gpu(x, state):
                return self._step(x, state)
            self._captured, self._calls = self._capture(x, state), 0
        run = self._captured or self._step
        return run(x, state)

    def _capture(self, x: Tensor, state: Any) -> CapturedStep | None:
        generator = self._generator
        spare = None if generator is None else generator.clone_state()
        try:
            with torch.cuda.device(x.device):
                captured = CapturedStep(self._step, x, state, generator)
        except RuntimeError as error:  # a step that waits for the GPU or copies from the host cannot be captured
            warnings.warn(f"generating without a CUDA graph, because a step cannot be captured: {error}", stacklevel=2)
            torch.cuda.synchronize(x.device)
            if generator is not None and spare is not None:
                generator.graphsafe_set_state(spare)  # the generator's old state would still be marked as captured
            self._can_capture = False
            return None
        if generator is not None and spare is not None:
            generator.set_state(spare.get_state())
        return captured


def _on_gpu(x: Tensor, state: Any) -> bool:
    """Return True if all tensors are on one GPU and no capture or compilation is in progress."""
    devices = {tensor.device for tensor in (x, *tensors(state))}
    if len(devices) > 1 or x.device.type != "cuda" or torch.compiler.is_compiling():
        return False
    return not torch.cuda.is_current_stream_capturing()
