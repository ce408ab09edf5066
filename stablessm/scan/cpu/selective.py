"""The CPU backend of the selective layer: prepares arrays for the kernels of :mod:`.selective_kernels`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from stablessm.llvm.kernel import compiled
from stablessm.scan.cpu import results
from stablessm.scan.cpu.arguments import places
from stablessm.scan.cpu.selective_kernels import Spec, build
from stablessm.scan.protocol import Selective

SERIAL_STATES = 1 << 16
"""Below this number of states (of all steps) one thread takes less time than waking a second one."""
CELL_STATES = 512
"""Number of vectors of states in a cell, whose states and decays the backward pass keeps in the cache."""
LEAST_STEPS, MOST_STEPS = 8, 64
"""Smallest and largest number of steps per cell."""


def forward(layer: Selective) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the layer's output, its final state, and the checkpoints that ``backward`` needs."""
    spec = Spec(False, layer.A.dtype == torch.float64, layer.below_one)
    state = _packed(layer.zero_state() if layer.initial is None else layer.initial, spec)
    arrays = _arrays(layer, spec) | {"state": state}
    batch, steps, channels = arrays["x"].shape
    tiles, states = channels // spec.lanes, layer.A.shape[1]
    cells = -(-steps // _cell(states))
    checkpoints = results.empty((batch, cells, tiles, states, spec.lanes), layer.A.dtype)
    y = (results.empty if layer.lengths is None else results.zeros)(arrays["x"].shape, layer.A.dtype)
    _run(spec, layer, arrays | {"checkpoints": checkpoints, "y": y})
    return _own_channels(y, layer), _unpacked(state, layer), checkpoints


def backward(layer: Selective, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients with respect to x, delta, A, B, C and initial.

    The gradient of initial is None if there is no initial state.
    """
    spec = Spec(True, layer.A.dtype == torch.float64, layer.below_one)
    carry = _packed(layer.zero_state() if d_final is None else d_final, spec)
    arrays = _arrays(layer, spec) | {"checkpoints": checkpoints, "state": carry, "d_y": _rows(d_y, spec)}
    batch, steps, channels = arrays["x"].shape
    tiles, states, dtype = channels // spec.lanes, layer.A.shape[1], layer.A.dtype
    room = results.empty if layer.lengths is None else results.zeros
    d_x, d_delta = (room(arrays["x"].shape, dtype) for _ in range(2))
    d_A = results.zeros((batch, tiles, states, spec.lanes), dtype)
    d_B, d_C = (room((tiles, batch, steps, -(-states // spec.lanes) * spec.lanes), dtype) for _ in range(2))
    arrays |= {"d_x": d_x, "d_delta": d_delta, "d_A": d_A, "d_B": d_B, "d_C": d_C}
    _run(spec, layer, arrays)
    rates = _unpacked(d_A.double().sum(0, keepdim=True), layer)[0].to(dtype)
    sums = (part.sum(0)[..., :states].contiguous() for part in (d_B, d_C))
    d_initial = None if layer.initial is None else _unpacked(carry, layer)
    return _own_channels(d_x, layer), _own_channels(d_delta, layer), rates, *sums, d_initial


def _cell(states: int) -> int:
    """Return the number of time steps between two stored states (checkpoints) for a layer with ``states`` states per
    channel.
    """
    return max(LEAST_STEPS, min(MOST_STEPS, CELL_STATES // max(1, states)))


def _arrays(layer: Selective, spec: Spec) -> dict[str, Tensor]:
    ends = torch.full(layer.x.shape[:1], layer.x.shape[1]) if layer.lengths is None else layer.lengths
    arrays = {
        "x": _rows(layer.x, spec), "delta": _rows(layer.delta, spec), "A": _packed(layer.A[None], spec),
        "B": results.rows(layer.B, layer.A.dtype), "C": results.rows(layer.C, layer.A.dtype), "ends": ends.contiguous(),
    }  # fmt: skip
    return arrays if layer.reset is None else arrays | {"reset": layer.reset.view(torch.uint8)}


def _rows(signal: Tensor, spec: Spec) -> Tensor:
    """Return a signal (B, T, channels), padded with channels of zeros until the channels fill whole SIMD vectors."""
    lack = -signal.shape[2] % spec.lanes
    return results.rows(pad(signal, (0, lack)) if lack else signal, signal.dtype)


def _packed(states: Tensor, spec: Spec) -> Tensor:
    """Copy states (B, H, N) to the layout (B, tiles, N, lanes).

    A tile is one SIMD vector of ``lanes`` channels. The channels of a tile are adjacent in memory.
    """
    lack = -states.shape[1] % spec.lanes
    states = pad(states, (0, 0, 0, lack)) if lack else states
    return states.unflatten(1, (-1, spec.lanes)).transpose(2, 3).clone(memory_format=torch.contiguous_format)


def _unpacked(packed: Tensor, layer: Selective) -> Tensor:
    """Copy packed states back to the shape (B, H, N): the inverse of :func:`_packed`. The result is never a view."""
    return packed.transpose(2, 3).flatten(1, 2)[:, : layer.A.shape[0]].clone(memory_format=torch.contiguous_format)


def _own_channels(signal: Tensor, layer: Selective) -> Tensor:
    channels = layer.A.shape[0]
    return signal if signal.shape[2] == channels else signal[..., :channels].contiguous()


def _run(spec: Spec, layer: Selective, arrays: dict[str, Tensor]) -> None:
    batch, steps, channels = arrays["x"].shape
    states, lanes = layer.A.shape[1], spec.lanes
    tiles, cell = channels // lanes, _cell(states)
    units = batch * tiles
    if not units * steps:
        return
    values = {"units": units, "tiles": tiles, "states": states, "padded": -(-states // lanes) * lanes, "cell": cell}
    values["cells"] = -(-steps // cell)
    values |= places(arrays)
    if spec.backward:
        values["sums_tile"], values["sums_batch"], values["sums_time"] = arrays["d_B"].stride()[:3]
    workers = 1 if units * lanes * steps * states < SERIAL_STATES else torch.get_num_threads()
    compiled(build, spec)(values, workers)
