"""The program as a PyTorch module without complex numbers, to be exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm.layers import activations
from stablessm.layers.zero_order_hold import phi
from stablessm.streaming.program import (
    Affine,
    Channels,
    Operation,
    Pointwise,
    Product,
    Program,
    Rotate,
    Scale,
    Slice,
    Taps,
)

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: activation.value for name, activation in activations.ACTIVATIONS.items()},
    **{f"{name}_slope": activation.slope for name, activation in activations.ACTIVATIONS.items()},
    "gelu": F.gelu,
    "silu": F.silu,
    "phi": phi,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
}


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
        for number, operation in enumerate(program.operations):
            for name, numbers in _constants(operation).items():
                self.register_buffer(f"{name}_{number}", torch.from_numpy(np.ascontiguousarray(numbers)))

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
        for number, operation in enumerate(self.program.operations):
            self._compute(
                operation, {name: getattr(self, f"{name}_{number}") for name in _constants(operation)}, values
            )
        after = []
        for slot in self.program.slots:
            new = [values[value].unflatten(1, slot.shape) for value in slot.values]
            after.append(new[0] if len(new) == 1 else torch.stack(new, -1))
        return values[self.program.output], *after

    def _compute(self, operation: Operation, constants: dict[str, Tensor], at: dict[int, Tensor]) -> None:
        match operation:
            case Affine(out, sources, _, _):
                total = F.linear(at[sources[0]], constants["weights0"], constants["bias"])
                for k, source in enumerate(sources[1:], 1):
                    total = total + F.linear(at[source], constants[f"weights{k}"])
                at[out] = total
            case Scale(out, source, _, plus):
                at[out] = constants["factor"] * at[source] + (at[plus] if isinstance(plus, int) else constants["plus"])
            case Rotate(real, imag, _, drive_real, drive_imag):
                at[real], at[imag] = _rotated(at[real], at[imag], constants, at[drive_real], at[drive_imag])
            case Channels(out, source, real, imag, decay, _, _, _):
                u, v = (at[value].unflatten(1, decay.shape) for value in (real, imag))
                x = at[source][..., None]
                u, v = _rotated(u, v, constants, constants["gain_real"] * x, constants["gain_imag"] * x)
                y = (constants["weights_real"] * u - constants["weights_imag"] * v).sum(-1)
                at[out], at[real], at[imag] = y + constants["skip"] * at[source], u.flatten(1), v.flatten(1)
            case Taps(out, oldest, source, past, taps, _):
                line = at[past].unflatten(1, (taps.shape[1], -1))[..., constants["index"]]
                seen = torch.cat([line, at[source][:, None]], 1)
                at[oldest] = seen[:, 0]
                at[out] = (seen[:, 1:].flip(1) * constants["taps"].mT).sum(1)
                at[past] = seen[:, 1:, constants["first"]].flatten(1)
            case Product(out, left, right):
                at[out] = at[left] * at[right]
            case Slice(out, source, start):
                at[out] = at[source][:, start : start + self.program.sizes[out]]
            case Pointwise(out, source, function):
                at[out] = FUNCTIONS[function](at[source])


def _rotated(
    u: Tensor, v: Tensor, constants: dict[str, Tensor], drive_real: Tensor, drive_imag: Tensor
) -> tuple[Tensor, Tensor]:
    a, b = constants["decay_real"], constants["decay_imag"]
    return a * u - b * v + drive_real, a * v + b * u + drive_imag


def _constants(operation: Operation) -> dict[str, np.ndarray]:
    """An operation's arrays by name; complex ones as two."""
    arrays: dict[str, np.ndarray] = {"first": operation.first} if isinstance(operation, Taps) else {}
    for name, value in vars(operation).items():
        if isinstance(value, tuple) and isinstance(value[0], np.ndarray):
            arrays |= {f"{name}{k}": part for k, part in enumerate(value)}
        elif isinstance(value, np.ndarray) and np.iscomplexobj(value):
            arrays |= {f"{name}_real": value.real, f"{name}_imag": value.imag}
        elif isinstance(value, np.ndarray):
            arrays[name] = value
    return arrays
