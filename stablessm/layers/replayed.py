"""Capture of a function as a CUDA graph, which a GPU replays without waiting for the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, final

import torch
from torch import Tensor

Result = TypeVar("Result")


@final
class Replayed(Generic[Result]):
    """A function captured as a CUDA graph, whose kernels run one after the other without waiting for the host.

    Args:
        function: Function of tensors with fixed shapes. It must not read values of tensors on the host.
        arguments: Arguments of a first call.
        state: Tensors that ``function`` changes in place. Capturing the graph calls ``function``, and then restores
            these tensors.
        generator: Random generator that ``function`` draws from (default: the generator of the device). The state of
            the generator before a call determines the random numbers, as without a graph. Capturing the graph also
            draws numbers.
    """

    def __init__(
        self,
        function: Callable[..., Result],
        arguments: Iterable[Tensor],
        state: Iterable[Tensor],
        generator: torch.Generator | None = None,
    ) -> None:
        state = list(state)
        before = [tensor.clone() for tensor in state]
        self.arguments = [argument.clone() for argument in arguments]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # compiles and selects kernels, allocates memory
                function(*self.arguments)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            self.result = function(*self.arguments)
        for tensor, kept in zip(state, before, strict=True):
            tensor.copy_(kept)

    def fits(self, arguments: Iterable[Tensor]) -> bool:
        """Return True if the arguments have the shapes of the first call."""
        return [argument.shape for argument in arguments] == [own.shape for own in self.arguments]

    def __call__(self, *arguments: Tensor) -> Result:
        """Replay the graph with new arguments; return the result of the graph, which the next call overwrites."""
        for own, argument in zip(self.arguments, arguments, strict=True):
            own.copy_(argument)
        self.graph.replay()
        return self.result
