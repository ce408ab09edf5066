"""The fused layer on a GPU: time in chunks, matrix products inside them, a scan from chunk to chunk.

:mod:`.triton_ssm_kernels` has the equations and the kernels around the products. These are cuBLAS's, in float32, or
TF32 after ``torch.set_float32_matmul_precision("high")``, as for PyTorch's own matrix products. The scan is
:mod:`.triton_backend`'s, in float64. States exist at the borders of chunks only.

This takes float32 and complex64 and whole chunks. A rest of less than a chunk, resets, lengths and float64 go through
:mod:`.ssm_blocked`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm.scan import ssm_blocked, triton_backend
from stablessm.scan import triton_ssm_kernels as kernels
from stablessm.scan.triton_launch import launch

BLOCK = 64
"""Rows and columns of a tile that is transposed at once."""
LARGE = 2**23
"""Numbers of an input from which on memory matters more than the number of launches."""
POWERS = 16
"""Powers of the decays that are made at once."""


def checkpoint_shape(
    x: Tensor, decay: Tensor, reset: Tensor | None, lengths: Tensor | None
) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of the checkpoints: the states that enter each chunk, (H, B, chunks, N)."""
    if not _chunked(x, decay, reset, lengths):
        return ssm_blocked.checkpoint_shape(x, decay)
    return (len(decay), len(x), x.shape[1] // _length(decay), decay.shape[1]), decay.dtype


def forward(
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state and checkpoints; shapes as in :func:`stablessm.scan.ssm_op.ssm_op`."""
    if not _chunked(x, decay, reset, lengths):
        return ssm_blocked.forward(x, decay, B, C, D, initial, reset, lengths, "triton")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    final = torch.empty(len(x), *decay.shape, dtype=decay.dtype, device=x.device)
    shape, dtype = checkpoint_shape(x, decay, reset, lengths)
    entering = torch.empty(shape, dtype=dtype, device=x.device)
    for part in _parts(x, decay):
        layer = _Layer(x, part, decay, B, C, D)
        final[:, part] = _forward(
            layer, x[..., part], None if initial is None else initial[:, part], y[..., part], entering[part]
        )
    if (steps := _whole(x, decay)) < x.shape[1]:
        rest, final, _ = ssm_blocked.forward(x[:, steps:], decay, B, C, D, final, None, None, "triton")
        y[:, steps:] = rest
    return y, final, entering


def _forward(layer: _Layer, x: Tensor, initial: Tensor | None, y: Tensor, entering: Tensor) -> Tensor:
    """The whole chunks of some channels: fills y and the states that enter the chunks; returns those after the last."""
    inputs = layer.turned(x)
    added = layer.states_of(torch.bmm(inputs, layer.V))
    entering[:, :, 0] = 0 if initial is None else initial.transpose(0, 1)
    entering[:, :, 1:] = added[:, :, :-1]
    flat = entering.flatten(0, 1)
    triton_backend.forward_into(flat, layer.jump, flat, None, None, False)
    layer.turn_back(torch.bmm(inputs, layer.T).baddbmm_(layer.rows_of(entering), layer.W.mT), y)
    return layer.after(entering, added[:, :, -1])


def backward(
    d_y: Tensor,
    d_final: Tensor,
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    checkpoints: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, decay, B, C, D and initial."""
    if not _chunked(x, decay, reset, lengths):
        return ssm_blocked.backward(d_y, d_final, x, decay, B, C, D, initial, reset, lengths, checkpoints, "triton")
    d_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    d_initial = torch.empty_like(d_final)
    steps, rest = _whole(x, decay), None
    if steps < x.shape[1]:
        before = torch.empty_like(d_final)
        for part in _parts(x, decay):
            layer = _Layer(x, part, decay, B, C, D)
            added = torch.bmm(layer.last_of(layer.turned(x[..., part])), layer.V)
            before[:, part] = layer.after(checkpoints[part], layer.complex_of(added))
        kept = ssm_blocked.forward(x[:, steps:], decay, B, C, D, before, None, None, "triton")[2]
        d_x[:, steps:], *rest, d_final = ssm_blocked.backward(
            d_y[:, steps:], d_final, x[:, steps:], decay, B, C, D, before, None, None, kept, "triton"
        )
    found = []
    for part in _parts(x, decay):
        layer = _Layer(x, part, decay, B, C, D)
        arrays = (d_y[..., part], x[..., part], d_final[:, part], checkpoints[part], d_x[..., part], d_initial[:, part])
        found.append(_backward(layer, *arrays))
    gradients = found[0] if len(found) == 1 else tuple(torch.cat(parts) for parts in zip(*found, strict=True))
    if rest is not None:
        gradients = tuple(total + part for total, part in zip(gradients, rest, strict=True))
    d_decay, d_B, d_C, d_D = gradients
    return d_x, d_decay, d_B, d_C, d_D, d_initial


def _backward(
    layer: _Layer, d_y: Tensor, x: Tensor, d_final: Tensor, entering: Tensor, d_x: Tensor, d_initial: Tensor
) -> tuple[Tensor, ...]:
    """The whole chunks of some channels: fills d_x and d_initial, returns gradients of decay, B, C and D.

    The states that enter chunks are a scan of what came before each: the initial state, and what a chunk added.
    """
    grads, last, jump = layer.turned(d_y), d_final.transpose(0, 1), layer.jump.view(entering[:, :, 0].shape)
    d_entering = layer.states_of(torch.bmm(grads, layer.W))
    d_entering[:, :, -1] += (jump.conj() * last).to(entering.dtype)
    d_jump, adjoint, _ = triton_backend.backward(
        d_entering.flatten(0, 1), layer.jump, entering.flatten(0, 1), None, None, False
    )
    d_jump = d_jump.view_as(jump).sum(1) + (last * entering[:, :, -1].conj()).sum(1)
    adjoint = adjoint.view_as(entering)
    d_initial.copy_(adjoint[:, :, 0].transpose(0, 1))
    d_added = d_entering  # whose memory is free now
    d_added[:, :, :-1] = adjoint[:, :, 1:]
    d_added[:, :, -1] = last
    del adjoint
    d_rows = layer.rows_of(d_added)
    layer.turn_back(torch.bmm(grads, layer.T.mT).baddbmm_(d_rows, layer.V.mT), d_x)
    d_W = torch.bmm(grads.mT, layer.rows_of(entering))
    inputs = layer.turned(x)
    d_T = torch.bmm(inputs.mT, grads)
    del grads
    return layer.collect(d_T, torch.bmm(inputs.mT, d_rows), d_W, d_jump)


def _chunked(x: Tensor, decay: Tensor, reset: Tensor | None, lengths: Tensor | None) -> bool:
    """Whether the chunks here can be made."""
    whole = reset is None and lengths is None and x.shape[1] >= _length(decay) and len(x) > 0 and decay.numel() > 0
    return whole and decay.dtype in (torch.float32, torch.complex64)


def _length(decay: Tensor) -> int:
    """Steps in a chunk: with many states a chunk is longer, so that the states at its borders stay few."""
    return 64 if decay.shape[1] <= 32 else 128


def _whole(x: Tensor, decay: Tensor) -> int:
    """The steps in whole chunks."""
    return x.shape[1] // _length(decay) * _length(decay)


def _parts(x: Tensor, decay: Tensor) -> list[slice]:
    """Channels to do at once: all, or a half where many states would take more memory than inputs and outputs."""
    channels = x.shape[2]
    if decay.shape[1] <= 32 or x.numel() < LARGE:
        return [slice(0, channels)]
    return [slice(0, channels // 2), slice(channels // 2, channels)]


class _Layer:
    """Some channels of a layer and the sizes of one call: matrices (channel, step, step or state), and rows for them.

    Rows are (sequence, chunk): an input is (channel, row, step), the states at the borders (channel, row, R) in real
    numbers, or (channel, sequence, chunk, N).
    """

    def __init__(self, x: Tensor, part: slice, decay: Tensor, B: Tensor, C: Tensor, D: Tensor | None) -> None:
        self.batch, self.channels, self.length = len(x), part.stop - part.start, _length(decay)
        self.chunks = x.shape[1] // self.length
        self.steps, self.rows, self.states = self.chunks * self.length, self.batch * self.chunks, decay.shape[1]
        self.is_complex = decay.is_complex()
        self.parameters = [_real(tensor.contiguous()) for tensor in (decay[part], B[part], C[part])]
        new = self.parameters[0].new_empty
        width = self.states * (2 if self.is_complex else 1)
        response, self.T = new(self.channels, self.length), new(self.channels, self.length, self.length)
        self.V, self.W = new(self.channels, self.length, width), new(self.channels, self.length, width)
        wide = torch.promote_types(decay.dtype, torch.float64)
        jump = torch.empty(self.channels, 1, self.states, dtype=wide, device=x.device)
        self._constants = {
            "IS_COMPLEX": self.is_complex,
            "LENGTH": self.length,
            "ROWS": POWERS,
            "STATES": 1 << (self.states - 1).bit_length(),
        }
        self._warps = 4 if self.states <= 32 else 8
        launch(
            kernels.generate_kernel,
            (self.channels,),
            (
                *self.parameters,
                self.T if D is None else D[part].contiguous(),
                response,
                self.T,
                self.V,
                self.W,
                _real(jump),
                self.states,
            ),
            {"SKIP": D is not None, **self._constants},
            self._warps,
        )
        self.jump = jump.expand(-1, self.batch, -1).reshape(-1, 1, self.states)
        """decay^LENGTH for every channel and sequence, as the scan takes it."""

    def turned(self, x: Tensor) -> Tensor:
        """(batch, time, channel) as rows, in float32."""
        flat = self.T.new_empty(self.channels, self.rows, self.length)
        self._turn(x, flat, back=False)
        return flat

    def turn_back(self, flat: Tensor, y: Tensor) -> None:
        """The inverse of ``turned``, into the first steps of y."""
        self._turn(y, flat, back=True)

    def _turn(self, x: Tensor, flat: Tensor, *, back: bool) -> None:
        grid = (-(-self.steps // BLOCK) * -(-self.channels // BLOCK) * self.batch,)
        arguments = (x, *x.stride(), flat, self.batch, self.steps, self.channels)
        launch(kernels.transpose_kernel, grid, arguments, {"BACK": back, "UNIT": x.stride(2) == 1, "BLOCK": BLOCK}, 4)

    def last_of(self, rows: Tensor) -> Tensor:
        """The last row of every sequence."""
        return rows.unflatten(1, (self.batch, self.chunks))[:, :, -1]

    def complex_of(self, numbers: Tensor) -> Tensor:
        """(…, R) real numbers as (…, N) states."""
        return torch.view_as_complex(numbers.unflatten(-1, (-1, 2))) if self.is_complex else numbers

    def states_of(self, rows: Tensor) -> Tensor:
        """(channel, row, R) as (channel, sequence, chunk, N)."""
        return self.complex_of(rows).unflatten(1, (self.batch, self.chunks))

    @staticmethod
    def rows_of(states: Tensor) -> Tensor:
        """The inverse of ``states_of``."""
        return _real(states).flatten(3).flatten(1, 2)

    def after(self, entering: Tensor, added: Tensor) -> Tensor:
        """The state after the last chunk, (batch, channel, N), from the last that entered one and what was added."""
        jump = self.jump.view(self.channels, self.batch, self.states)
        return (jump * entering[:, :, -1] + added).to(entering.dtype).transpose(0, 1).contiguous()

    def collect(self, d_T: Tensor, d_V: Tensor, d_W: Tensor, d_jump: Tensor) -> tuple[Tensor, ...]:
        """Gradients of decay, B, C and D."""
        found = [torch.empty_like(tensor) for tensor in self.parameters]
        d_D = self.T.new_empty(self.channels)
        d_response = torch.empty(self.channels, self.length, dtype=torch.float64, device=d_T.device)
        arguments = (*self.parameters, d_T, d_response, d_V, d_W, _real(d_jump), *found, d_D, self.states)
        launch(kernels.collect_kernel, (self.channels,), arguments, self._constants, self._warps)
        if self.is_complex:
            found = [torch.view_as_complex(tensor) for tensor in found]
        return *found, d_D


def _real(array: Tensor) -> Tensor:
    return torch.view_as_real(array.resolve_conj()) if array.is_complex() else array
