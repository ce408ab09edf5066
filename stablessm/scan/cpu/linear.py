"""The CPU backend of the linear scan: passes PyTorch tensors to the kernels of :mod:`.linear_kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm.llvm.emitter import VECTOR_BYTES
from stablessm.llvm.kernel import compiled
from stablessm.scan.cpu import results
from stablessm.scan.cpu.arguments import address
from stablessm.scan.cpu.linear_kernels import TILE_BYTES, Spec, build
from stablessm.scan.protocol import Recurrence

STREAM_BYTES = 8 << 20
"""Size of the states above which stores bypass the cache, because states would leave the cache before they are read."""
PREFETCH_BYTES = 1 << 10
"""Size of a row above which rows are prefetched, because processors do not predict strides of this length."""
SERIAL_BYTES = 64 << 10
"""Size of the states below which one thread computes them, because waking a second thread would take longer."""


def forward(recurrence: Recurrence, drive: Tensor) -> Tensor:
    """Compute all states (B, T, C) of the recurrence h[t] = decay[t] h[t-1] + drive[t]."""
    decay, initial, reset, reverse = recurrence
    dtype = torch.promote_types(drive.dtype, torch.float32)
    states = results.empty(drive.shape, dtype)
    if not states.numel():
        return states.to(drive.dtype)
    if initial is None:
        initial = results.zeros((1, drive.shape[-1]), dtype)
    arrays = {"decay": decay, "drive": drive, "initial": initial, "states": states}
    _run({name: _rows(array, dtype) for name, array in arrays.items()}, states, reset, reverse)
    return results.converted(states, drive.dtype)


def backward(recurrence: Recurrence, states: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients with respect to decay, drive and initial of the linear recurrence."""
    decay, initial, reset, reverse = recurrence
    dtype = torch.promote_types(states.dtype, torch.float32)
    batch, steps, channels = states.shape
    d_drive = results.empty(states.shape, dtype)
    d_initial = results.zeros((batch, channels), dtype)
    per_step = decay.shape[1] > 1
    # A sum over all steps stays in float64 until the sum over the batch is taken, where terms may cancel.
    sums = torch.promote_types(dtype, torch.float64)
    d_decay = results.empty((batch, steps if per_step else 1, channels), dtype if per_step else sums)
    if not states.numel():
        return torch.zeros_like(decay), d_drive.to(states.dtype), d_initial.to(states.dtype)
    if initial is None:
        initial = results.zeros((1, channels), dtype)
    inputs = {"decay": decay, "grad": grad, "initial": initial, "states": states}
    outputs = {"d_drive": d_drive, "d_decay": d_decay, "d_initial": d_initial}
    arrays = {name: _rows(array, dtype) for name, array in inputs.items()}
    arrays |= {name: _rows(array, array.dtype) for name, array in outputs.items()}
    _run(arrays, states, reset, reverse)
    reduced = d_decay if decay.shape[0] == batch else _sum_over_batch(d_decay)
    return (
        results.converted(reduced, decay.dtype),
        results.converted(d_drive, states.dtype),
        results.converted(d_initial, states.dtype),
    )


def _sum_over_batch(array: Tensor) -> Tensor:
    """Return the sum of an array over its batch dimension, as an array (1, time, channel).

    The order of the additions does not depend on the number of threads.
    """
    return torch.stack([part.sum(0, keepdim=True) for part in array.split(1 << 14)]).sum(0)


def _rows(array: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an array as real numbers of the given dtype, in the shape (batch, time, scalar) or (batch, scalar).

    A complex number becomes two real numbers. The numbers of a row are adjacent in memory.
    """
    array = results.rows(array, dtype)
    return torch.view_as_real(array).flatten(-2) if array.is_complex() else array


def _run(arrays: dict[str, Tensor], states: Tensor, reset: Tensor | None, reverse: bool) -> None:
    batch, steps, _ = states.shape
    scalars = arrays["states"].shape[-1]
    if reset is not None:
        arrays["reset"] = reset.to(torch.uint8)
    values = {"steps": steps, "channels": scalars}
    for name, array in arrays.items():
        start, batch_stride = address(name, array), 0 if array.shape[0] == 1 else array.stride(0)
        if not name.endswith("initial"):
            time_stride = 0 if array.shape[1] == 1 else array.stride(1)
            if reverse:
                start += (steps - 1) * time_stride * array.element_size()
                time_stride = -time_stride
            values[f"{name}_time"] = time_stride
        values[name], values[f"{name}_batch"] = start, batch_stride
    stored = [array for name, array in arrays.items() if name.startswith("d_")] or [arrays["states"]]
    row_bytes = scalars * stored[0].element_size()  # stored rows are adjacent
    aligned = all((array.data_ptr() | row_bytes) % VECTOR_BYTES == 0 for array in stored)
    size = states.numel() * states.element_size()
    spec = Spec(
        backward="grad" in arrays,
        double=arrays["states"].dtype == torch.float64,
        complex=states.is_complex(),
        per_step=arrays["decay"].shape[1] > 1,
        reset=reset is not None,
        stream=aligned and size >= STREAM_BYTES,
        prefetch="drive" in arrays and row_bytes >= PREFETCH_BYTES,
    )
    values["units"] = batch * -(-row_bytes // TILE_BYTES)
    compiled(build, spec)(values, workers=1 if size < SERIAL_BYTES else torch.get_num_threads())
