"""A PyTorch module without complex numbers that runs a program for one step, for export."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm.layers import activations
from stablessm.layers.zero_order_hold import phi
from stablessm.scan.gated import below_zero, softplus
from stablessm.streaming.interpret import Library, Values, constants, lowered
from stablessm.streaming.program import Program

_ACTIVATIONS = activations.ACTIVATIONS.items()
TORCH = Library(
    torch.concatenate,
    lambda vector, each: vector[..., None].expand(*vector.shape, each).flatten(-2),
    {
        **{name: activation.value for name, activation in _ACTIVATIONS},
        **{f"{name}_slope": activation.slope for name, activation in _ACTIVATIONS},
        "gelu": F.gelu, "silu": F.silu, "phi": phi, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
        "softplus": lambda z: softplus(z) if z.dtype == torch.float32 else F.relu(z) + torch.exp(-z.abs()).log1p(),
        "expm1": torch.expm1, "sqrt": torch.sqrt, "negative": below_zero,
    },
)  # fmt: skip
"""onnxruntime has no softplus in float64."""


class FrozenModule(nn.Module, ABC):
    """A module with constant weights that runs a program as y, *states = module(x, *states).

    A complex state is a pair of real numbers, (B, …, 2). ``torch.view_as_real`` converts the state of a layer to such a
    pair, and ``torch.view_as_complex`` converts the pair back.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        if program.table is not None:
            self.register_buffer("table", torch.from_numpy(program.table))
        self._names = [tuple(constants(operation)) for operation in program.operations]
        for number, operation in enumerate(program.operations):
            for name, numbers in constants(operation).items():
                self.register_buffer(f"{name}_{number}", torch.from_numpy(numbers))

    @abstractmethod
    def _run(self, values: Values) -> None:
        """Run all operations.

        ``values`` contains the input (value 0) and the flattened states (B, size). The method adds the results of the
        operations to ``values``, and replaces the states.
        """

    @abstractmethod
    def _final(self, value: Tensor) -> Tensor:
        """Return the new value of a state as (B, size), given the ``value`` that :meth:`_run` stored for this state."""

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """Return the states before the first step, all zeros, for ``batch`` sequences."""
        return tuple(
            torch.zeros(batch, *slot.pair_shape, dtype=self.program.torch_dtype) for slot in self.program.slots
        )

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Run the program for the input x and the states before it; return the output and the states after it."""
        values = {0: x if self.program.table is None else F.embedding(x, self.get_buffer("table"))}
        for slot, state in zip(self.program.slots, states, strict=True):
            parts = (state,) if len(slot.values) == 1 else state.unbind(-1)
            values |= {value: part.flatten(1) for value, part in zip(slot.values, parts, strict=True)}
        self._run(values)
        after = []
        for slot, state in zip(self.program.slots, states, strict=True):
            if not math.prod(slot.shape):  # ONNX cannot reshape an empty state, and nothing replaces it
                after.append(state.clone())
                continue
            new = [self._final(values[value]).unflatten(1, slot.shape) for value in slot.values]
            after.append(new[0] if len(new) == 1 else torch.stack(new, -1))
        return values[self.program.output], *after

    def _numbers(self, number: int) -> dict[str, Tensor]:
        """Return the constant tensors, such as weights, of the operation with index ``number``, by name."""
        return {name: getattr(self, f"{name}_{number}") for name in self._names[number]}

    def _call(self, number: int) -> tuple[int, Callable[[Values], Tensor]]:
        """Return the index of an operation's first result, and the function that computes this result from all values.

        ``number`` is the index of the operation.
        """
        operation = self.program.operations[number]
        return operation[0], lowered(operation, self._numbers(number), TORCH)


@final
class StepModule(FrozenModule):
    """A module that runs one step of a program.

    x is (B, d_input), or tokens (B,), and y is (B, d_output).

    >>> import stablessm as ssm
    >>> from stablessm.streaming.freeze import freeze
    >>> layer = ssm.LRU(3, 8, 2)
    >>> step = StepModule(freeze(layer))
    >>> x_t = torch.randn(4, 3)
    >>> y_t, pairs = step(x_t, *step.initial_state(4))
    >>> torch.allclose(y_t, layer.step(x_t)[0], atol=1e-6), pairs.shape
    (True, torch.Size([4, 8, 2]))
    """

    def _run(self, values: Values) -> None:
        for number in range(len(self.program.operations)):
            out, function = self._call(number)
            values[out] = function(values)

    def _final(self, value: Tensor) -> Tensor:
        return value
