"""The program as a PyTorch module without complex numbers, to be exported."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm.layers import activations
from stablessm.layers.zero_order_hold import phi
from stablessm.streaming.interpret import Library, constants, lowered
from stablessm.streaming.program import Program

_ACTIVATIONS = activations.ACTIVATIONS.items()
TORCH = Library(
    torch.concatenate,
    {
        **{name: activation.value for name, activation in _ACTIVATIONS},
        **{f"{name}_slope": activation.slope for name, activation in _ACTIVATIONS},
        "gelu": F.gelu, "silu": F.silu, "phi": phi, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
    },
)  # fmt: skip


@final
class StepModule(nn.Module):
    """y_t, *states = step(x_t, *states), with weights frozen and complex states as pairs: (B, …, 2).

    ``torch.view_as_real`` of a layer's state is such a pair, ``torch.view_as_complex`` goes back.

    >>> import stablessm as ssm
    >>> from stablessm.streaming.freeze import freeze
    >>> layer = ssm.LRU(3, 8, 2)
    >>> step = StepModule(freeze(layer))
    >>> x_t = torch.randn(4, 3)
    >>> y_t, pairs = step(x_t, *step.initial_state(4))
    >>> torch.allclose(y_t, layer.step(x_t)[0], atol=1e-6), pairs.shape
    (True, torch.Size([4, 8, 2]))
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

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """Zeros."""
        return tuple(
            torch.zeros(batch, *slot.pair_shape, dtype=self.program.torch_dtype) for slot in self.program.slots
        )

    def forward(self, x_t: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """One step: (B, d_input), or tokens (B,), to (B, d_output)."""
        values = {0: x_t if self.program.table is None else F.embedding(x_t, self.get_buffer("table"))}
        for slot, state in zip(self.program.slots, states, strict=True):
            parts = (state,) if len(slot.values) == 1 else state.unbind(-1)
            values |= {value: part.flatten(1) for value, part in zip(slot.values, parts, strict=True)}
        for number, (operation, names) in enumerate(zip(self.program.operations, self._names, strict=True)):
            numbers = {name: getattr(self, f"{name}_{number}") for name in names}
            values[operation[0]] = lowered(operation, numbers, TORCH)(values)
        after = []
        for slot in self.program.slots:
            new = [values[value].unflatten(1, slot.shape) for value in slot.values]
            after.append(new[0] if len(new) == 1 else torch.stack(new, -1))
        return values[self.program.output], *after
