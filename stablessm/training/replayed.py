"""A function that a GPU repeats without asking the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, final

import torch
from torch import Tensor

Result = TypeVar("Result")


@final
class Replayed(Generic[Result]):
    """``function`` as a CUDA graph: its kernels run one after the other, however long the host takes for each.

    Args:
        function: of tensors whose shapes stay, without any look at their values from the host.
        arguments: of a first call.
        state: tensors that it changes in place. Making the graph calls it, and puts them back.
        generator: from which it draws, if not the device's own; where that stands before a call decides what is
            drawn, as without a graph. Making the graph draws.
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
            for _ in range(3):  # kernels are compiled and chosen, memory is asked for
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
        """Whether these have the shapes of the first call."""
        return [argument.shape for argument in arguments] == [own.shape for own in self.arguments]

    def __call__(self, *arguments: Tensor) -> Result:
        """Return the result, which the next call overwrites."""
        for own, argument in zip(self.arguments, arguments, strict=True):
            own.copy_(argument)
        self.graph.replay()
        return self.result
