"""The CPU backend of the gated recurrence: prepares arrays for the kernels of :mod:`.gated_kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm.llvm.kernel import compiled
from stablessm.scan.cpu import results
from stablessm.scan.cpu.arguments import places
from stablessm.scan.cpu.gated_kernels import Spec, build
from stablessm.scan.protocol import Gated

SERIAL_STATES = 1 << 15
"""Below this number of states (of all steps) one thread takes less time than waking a second one."""
MOST_CHANNELS = 1 << 15
MANY = 16
"""Smallest batch size at which each unit of work is one whole sequence with all of its channels."""


def supports(layer: Gated) -> bool:
    """Return True if the CPU kernels support the number of channels and the dtype of a gated layer.

    The channels must fill at least one SIMD vector, and their states must fit on the stack.
    """
    lanes = _spec(layer, backward=False).lanes
    return lanes <= len(layer.rate) <= MOST_CHANNELS and layer.gates.dtype in (torch.float32, torch.float64)


def forward(layer: Gated) -> Tensor:
    """Compute all states (B, T, C) of a gated recurrence."""
    states = results.empty((*layer.gates.shape[:2], len(layer.rate)), layer.gates.dtype)
    _run(_spec(layer, backward=False), layer, {"states": states})
    return states


def backward(layer: Gated, states: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradients with respect to gates, rate, x and initial. The gradient of an argument that is None is
    None.
    """
    spec, dtype, (batch, _, channels) = _spec(layer, backward=True), states.dtype, states.shape
    tiles = -(-channels // spec.lanes)
    arrays = {"states": states, "grad": results.rows(grad, dtype), "d_gates": results.empty(layer.gates.shape, dtype)}
    if layer.x is not None:
        arrays["d_x"] = results.empty(states.shape, dtype)
    d_rate, d_initial = torch.zeros(batch, tiles, spec.lanes, dtype=dtype), torch.zeros(batch, channels, dtype=dtype)
    _run(spec, layer, arrays | {"d_rate": d_rate, "d_initial": d_initial})
    sums = d_rate.double().sum(0)
    overlap = tiles * spec.lanes - channels  # number of channels in both of the last two tiles
    total = torch.cat([sums[:-1].flatten(), sums[-1, overlap:]]).to(dtype)
    return arrays["d_gates"], total, arrays.get("d_x"), None if layer.initial is None else d_initial


def _spec(layer: Gated, *, backward: bool) -> Spec:
    return Spec(layer.form, backward, layer.gates.dtype == torch.float64, layer.below_one)


def _run(spec: Spec, layer: Gated, arrays: dict[str, Tensor]) -> None:
    (batch, steps, _), channels, dtype = layer.gates.shape, len(layer.rate), layer.gates.dtype
    initial = layer.gates.new_zeros(batch, channels) if layer.initial is None else layer.initial.contiguous()
    arrays = arrays | {
        "gates": results.rows(layer.gates, dtype), "rate": layer.rate.contiguous(), "initial": initial,
    }  # fmt: skip
    if layer.x is not None:
        arrays["x"] = results.rows(layer.x, dtype)
    if layer.reset is not None:
        arrays["reset"] = layer.reset.view(torch.uint8)
    tiles = -(-channels // spec.lanes)
    groups = 1 if batch >= MANY else tiles
    values = {"units": batch * groups, "groups": groups, "tiles": tiles, "channels": channels, "steps": steps}
    values |= places(arrays)
    workers = 1 if batch * steps * channels < SERIAL_STATES else torch.get_num_threads()
    if batch:
        compiled(build, spec)(values, workers)
