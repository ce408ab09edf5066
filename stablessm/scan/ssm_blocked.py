"""The fused layer for any backend of ``linear_scan``; it keeps only the states of one block of time steps in memory.

The state before each block is stored; the backward pass recomputes the other states, from the last block to the first.
The states of a block take about as much memory as x, so the memory of the layer is a small multiple of the memory of
its input for any number of states. This implementation is slower than kernels that keep states in registers, but
supports every dtype, resets and lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm.scan.linear import linear_scan
from stablessm.scan.padding import without_padding, without_resets
from stablessm.scan.protocol import DiagonalSSM

LEAST_STEPS = 64
"""Smallest number of steps per block; shorter blocks cost more in calls than they save in memory."""


def checkpoint_shape(layer: DiagonalSSM) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of the checkpoints, which are the states before every block of steps."""
    return (len(layer.x), len(_blocks(layer)), *layer.decay.shape), layer.decay.dtype


def forward(layer: DiagonalSSM, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the final state, and the checkpoints for ``backward``; ``backend`` computes the scans."""
    x, _, _, C, D, initial, _, lengths = layer
    signal = without_padding(x.to(layer.real_dtype), lengths)
    y = torch.zeros_like(signal) if D is None else D * signal
    state = layer.zero_state() if initial is None else initial.clone()
    final = state.clone()
    shape, dtype = checkpoint_shape(layer)
    checkpoints = torch.empty(shape, dtype=dtype, device=x.device)
    for i, block in enumerate(_blocks(layer)):
        checkpoints[:, i] = state
        states = _states(layer._replace(x=signal), state, block, backend)
        y[:, block] += _real(torch.einsum("bthn,hn->bth", states, C))
        state = states[:, -1]
        if lengths is None:
            final = state
        else:
            last = lengths - 1 - block.start  # the last real step, relative to this block
            here = (last >= 0) & (last < states.shape[1])
            index = last.clamp(0, states.shape[1] - 1)
            found = states[torch.arange(len(x), device=x.device), index]
            final = torch.where(here[:, None, None], found, final)
    return without_padding(y, lengths).to(x.dtype), final.clone(), checkpoints


def backward(
    layer: DiagonalSSM, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients with respect to x, decay, B, C, D and initial, from the last block of time to the first.

    With the decay a, the states h, their gradients λ and the gradient g of the output:

    λ[t] = conj(C) g[t] + conj(a) λ[t+1];  dx = Re Σ conj(B) λ;  da = Σ λ[t] conj(h[t-1]);  dB = Σ λ x;
    dC = Σ g conj(h).
    """
    x, decay, B, C, D, _, reset, lengths = layer
    d_final = layer.zero_state() if d_final is None else d_final
    dtype, wide = layer.real_dtype, torch.promote_types(decay.dtype, torch.float64)
    signal, grad = (without_padding(tensor.to(dtype), lengths) for tensor in (x, d_y))
    batch, steps, _ = x.shape
    d_x = torch.zeros_like(grad) if D is None else D * grad
    d_decay, d_B, d_C = (torch.zeros(decay.shape, dtype=wide, device=x.device) for _ in range(3))
    last = torch.full((batch,), steps, device=x.device) if lengths is None else lengths
    d_initial = torch.where((last == 0)[:, None, None], d_final, torch.zeros_like(d_final))
    adjoint = torch.zeros_like(d_final)  # the adjoint of the step after the block
    cut = None if reset is None else torch.cat([reset[:, 1:], reset[:, :1]], 1)  # no gradient passes a reset
    for i, block in reversed(list(enumerate(_blocks(layer)))):
        states = _states(layer._replace(x=signal), checkpoints[:, i], block, backend)
        drive = grad[:, block, :, None] * C.conj()
        ends = torch.arange(block.start, block.stop, device=x.device) == (last - 1)[:, None]
        drive = drive + torch.where(ends[..., None, None], d_final[:, None], torch.zeros_like(d_final[:, None]))
        adjoints = linear_scan(
            decay.conj().flatten(), drive.flatten(2), adjoint.flatten(1),
            reset=None if cut is None else cut[:, block], reverse=True, backend=backend,
        ).unflatten(2, decay.shape)  # fmt: skip
        before = torch.cat([checkpoints[:, i, None], states[:, :-1]], 1)
        before = without_resets(before, None if reset is None else reset[:, block])
        d_x[:, block] += _real(torch.einsum("bthn,hn->bth", adjoints, B.conj()))
        d_decay += torch.einsum("bthn,bthn->hn", adjoints, before.conj())
        d_B += torch.einsum("bthn,bth->hn", adjoints, signal[:, block].to(decay.dtype))
        d_C += torch.einsum("bthn,bth->hn", states.conj(), grad[:, block].to(decay.dtype))
        adjoint = adjoints[:, 0]
    carried = decay.conj() * adjoint
    if reset is not None and steps:
        carried = without_resets(carried[:, None], reset[:, :1])[:, 0]
    d_D = (signal * grad).sum((0, 1))
    d_decay, d_B, d_C = (gradient.to(decay.dtype) for gradient in (d_decay, d_B, d_C))
    return without_padding(d_x, lengths).to(x.dtype), d_decay, d_B, d_C, d_D, d_initial + carried


def _blocks(layer: DiagonalSSM) -> list[slice]:
    """Return the blocks into which the time steps are divided, as slices."""
    steps, numbers = layer.x.shape[1], layer.decay.shape[1] * (2 if layer.decay.is_complex() else 1)
    size = max(LEAST_STEPS, -(-steps // max(1, numbers)))
    return [slice(start, min(start + size, steps)) for start in range(0, steps, size)]


def _states(layer: DiagonalSSM, before: Tensor, block: slice, backend: str) -> Tensor:
    """Compute the states of a block of time from the state before the block, by a scan of the given backend."""
    drive = (layer.x[:, block, :, None] * layer.B).flatten(2)
    cut = None if layer.reset is None else layer.reset[:, block]
    states = linear_scan(layer.decay.flatten(), drive, before.flatten(1), reset=cut, backend=backend)
    return states.unflatten(2, layer.decay.shape)


def _real(values: Tensor) -> Tensor:
    return values.real if values.is_complex() else values
