"""The fused diagonal SSM layer on a GPU: matrix products within chunks of time, and a recurrence between chunks.

:mod:`.ssm_kernels` has the equations, and all kernels except the matrix products. The matrix products (:mod:`.matmul`)
have the accuracy of float32, or of TF32 after ``torch.set_float32_matmul_precision("high")``, like the matrix products
of PyTorch. States are computed only at the borders of chunks, by a recurrence in float64. The checkpoints for the
backward pass are these states and, if the input is small, the transposed input, which saves a launch.

float32 and complex64 are computed here. Resets, lengths and float64 use :mod:`stablessm.scan.ssm_blocked`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stablessm.scan import ssm_blocked
from stablessm.scan.protocol import DiagonalSSM
from stablessm.scan.triton import ssm_kernels as kernels
from stablessm.scan.triton.launch import Launch
from stablessm.scan.triton.matmul import multiply, sum_of_products

BLOCK = 64
"""Number of rows and columns of a tile of ``transpose_kernel``."""
ROWS = 16
"""Number of rows (lags) of a tile in the kernels that compute powers of the decay."""
WALK_ROWS = 8
"""Number of chunks in a tile of ``enter_kernel`` and ``leave_kernel``."""
STAGES = 3
"""Number of pipeline stages of the loops over tiles: the next tiles are loaded while one is computed."""
LAGS = 32
"""Number of diagonals that a program of ``diagonals_kernel`` sums."""
LARGE = 2**23
"""Number of input elements above which saving memory is preferred to saving launches."""
PARTS = 2
"""Number of parts into which the channels of a large layer with many states are divided, to save memory."""


def checkpoint_shape(layer: DiagonalSSM) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of the checkpoints.

    The checkpoints are the states at chunk starts and, if the input is not too large, a copy of the input.
    """
    if not _chunked(layer):
        return ssm_blocked.checkpoint_shape(layer)
    x, decay = layer.x, layer.decay
    numbers = decay.shape[1] * (2 if decay.is_complex() else 1)
    return (len(decay), len(x) * -(-x.shape[1] // _length(decay.shape[1])), _kept(x, decay) + numbers), torch.float32


def forward(layer: DiagonalSSM) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the layer's output, its final state, and the checkpoints that ``backward`` needs."""
    if not _chunked(layer):
        return ssm_blocked.forward(layer, "triton")
    x, decay, initial = layer.x, layer.decay, layer.initial
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    final = torch.empty((len(x), *decay.shape), dtype=decay.dtype, device=x.device)
    shape, dtype = checkpoint_shape(layer)
    checkpoints = torch.empty(shape, dtype=dtype, device=x.device)
    x = x.resolve_neg()
    if initial is not None:
        initial = initial.resolve_conj().resolve_neg().contiguous()
    for part, at in _parts(x, decay):
        ends = _view(at, initial, 1), _view(at, y, 2), _view(at, checkpoints, 0), _view(at, final, 1)
        _forward(part, _ready(at, *layer[1:5]), _view(at, x, 2), *ends)
    return y, final, checkpoints


def _forward(
    layer: _Layer,
    parameters: tuple[Any, ...],
    x: Tensor,
    initial: Tensor | None,
    y: Tensor,
    checkpoints: Tensor,
    final: Tensor,
) -> None:
    """Compute the output, checkpoints and final states for a part of the channels, and write them to the given tensors.

    ``parameters`` are decay, B, C and D of these channels.
    """
    kept, entering = layer.split(checkpoints)
    made, inputs, both = layer.generate(*parameters), layer.turned(x, kept), layer.rows(layer.width, x.device)
    multiply(inputs, made.M, both)
    tail = None if layer.rest == layer.length else layer.tail_added(inputs, made.M)
    layer.enter(both, tail, initial, made.jumps, entering, final)
    multiply(entering, made.W.mT, both[..., : layer.length], add=True)
    layer.turn_back(both, y)


def backward(
    layer: DiagonalSSM, checkpoints: Tensor, d_y: Tensor, d_final: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Compute the gradients with respect to x, decay, B, C, D and initial.

    The gradient of initial is None if there is no initial state.
    """
    if not _chunked(layer):
        return ssm_blocked.backward(layer, checkpoints, d_y, d_final, "triton")
    x, decay, initial = layer.x, layer.decay, layer.initial
    d_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    d_initial = None if initial is None else torch.empty(initial.shape, dtype=decay.dtype, device=x.device)
    d_decay, d_B, d_C = (torch.empty(decay.shape, dtype=decay.dtype, device=x.device) for _ in range(3))
    d_D = torch.empty(len(decay), dtype=decay.dtype.to_real(), device=x.device)
    x, d_y = x.resolve_neg(), d_y.resolve_neg()
    if d_final is not None:
        d_final = d_final.resolve_conj().resolve_neg().contiguous()
    for part, at in _parts(x, decay):
        given = _Given(_view(at, d_y, 2), _view(at, d_final, 1), _view(at, x, 2), _view(at, checkpoints, 0))
        d_parameters = tuple(_view(at, gradient, 0) for gradient in (d_decay, d_B, d_C, d_D))
        _backward(part, _ready(at, *layer[1:5]), given, _view(at, d_x, 2), d_parameters, _view(at, d_initial, 1))
    return d_x, d_decay, d_B, d_C, d_D, d_initial


class _Given(NamedTuple):
    """The tensors that a backward pass receives, restricted to a part of the channels."""

    d_y: Tensor
    d_final: Tensor | None
    x: Tensor
    checkpoints: Tensor


def _backward(
    layer: _Layer,
    parameters: tuple[Any, ...],
    given: _Given,
    d_x: Tensor,
    d_parameters: tuple[Tensor, ...],
    d_initial: Tensor | None,
) -> None:
    """Compute the gradients for a part of the channels, and write them to the given tensors.

    ``parameters`` are decay, B, C and D of these channels. Tensors as large as x are deleted as early as possible, to
    save memory.
    """
    d_y, d_final, x, checkpoints = given
    kept, entering = layer.split(checkpoints)
    made, both = layer.generate(*parameters), layer.turned(d_y, layer.rows(layer.width, x.device))
    grads, d_entering = both[..., : layer.length], layer.rows(layer.numbers, x.device)
    multiply(grads, made.W, d_entering)
    d_jumps = layer.leave(d_entering, entering, made.jumps, d_final, both, d_initial)
    del d_entering
    d_W = sum_of_products(grads, entering)
    tail = None if d_final is None else layer.reals(d_final.transpose(0, 1))
    d_inputs = layer.rows(layer.length, x.device)
    multiply(both, made.M.mT, d_inputs)
    if tail is not None:
        layer.tail_of(d_inputs).baddbmm_(tail, layer.into_final(made.M).mT)
    layer.turn_back(d_inputs, d_x)
    del d_inputs, made
    inputs = layer.turned(x) if kept is None else kept
    d_M = sum_of_products(inputs, both)
    if tail is not None:
        layer.into_final(d_M).baddbmm_(layer.tail_of(inputs).mT, tail)
    layer.collect(parameters[:3], d_M, d_W, d_jumps, d_parameters)


class ChunkMatrices(NamedTuple):
    """The matrices of a chunk, which map its inputs and first state to its outputs and next state (see
    :mod:`.ssm_kernels`).
    """

    M: Tensor
    """T and V side by side, (channel, LENGTH, LENGTH + R)."""
    W: Tensor
    """W, (channel, LENGTH, R)."""
    jumps: Tensor
    """decay^LENGTH and decay^rest, (2, channel, N) in double precision."""


class _Layer:
    """The sizes and kernel launches of a layer for inputs of one shape, computed once and reused.

    A row is one chunk of one sequence. The N states of a channel are R real numbers: 2 N if they are complex, else N.
    """

    def __init__(self, batch: int, steps: int, channels: int, states: int, is_complex: bool) -> None:
        self.batch, self.steps, self.channels, self.length = batch, steps, channels, _length(states)
        self.chunks = -(-steps // self.length)
        self.rest = steps - (self.chunks - 1) * self.length
        self.is_complex, self.pairs = is_complex, 2 if is_complex else 1
        self.numbers = states * self.pairs
        self.width = self.length + self.numbers
        bits, per_row = self.length.bit_length() - 1, self.width // self.pairs
        flag, after_T = {"IS_COMPLEX": is_complex}, 4 * self.length
        block = min(32, 1 << (states - 1).bit_length())
        columns = batch * channels * -(-states // block)
        rows = {"ROWS": WALK_ROWS, "BLOCK": block, "SPREAD": min(WALK_ROWS, max(1, 32 // block)), "STAGES": STAGES}
        blocks = channels * (self.length // ROWS)
        powers = {**flag, "BITS": bits, "ROWS": ROWS}
        made = {**powers, "STATES": 1 << (states - 1).bit_length()}
        told, offsets = (channels, states, per_row, self.rest), (0, 0, 0, 0, 0, after_T, 0, 0)
        options: Any = {"offsets": offsets, "warps": 2 if states <= 32 else 4}
        self._generates = {
            skip: Launch(kernels.generate_kernel, blocks, told, {"SKIP": skip, **made}, **options)
            for skip in (False, True)
        }
        sizes = {"LENGTH": self.length, "ROWS": ROWS}
        self._toeplitz = Launch(kernels.toeplitz_kernel, blocks, (self.width,), sizes, warps=4)
        diagonals = {**sizes, "LAGS": LAGS}
        programs = channels * (self.length // LAGS)
        self._diagonals = Launch(kernels.diagonals_kernel, programs, (self.width,), diagonals, warps=1)
        collected = {**powers, "BLOCK": min(16, block), "STAGES": STAGES}
        programs, to_V = channels * -(-states // min(16, block)), (0, 0, 0, 0, after_T, 0, 0, 0, 0, 0)
        self._collect = Launch(kernels.collect_kernel, programs, (batch, *told), collected, offsets=to_V, warps=1)
        self._columns, self._walks, self._per_row = columns, {**flag, **rows}, per_row
        self._after_T, self._states = after_T, states

    def generate(self, decay: Tensor, B: Tensor, C: Tensor, D: Tensor | None) -> ChunkMatrices:
        """Compute the matrices that describe one chunk, for every channel, from the layer's decay, B, C and D."""
        device, real = decay.device, decay.dtype.to_real()
        M = torch.empty((self.channels, self.length, self.width), dtype=real, device=device)
        W = torch.empty((self.channels, self.length, self.numbers), dtype=real, device=device)
        response = torch.empty((self.channels, self.length), dtype=real, device=device)
        wide = torch.complex128 if self.is_complex else torch.float64
        jumps = torch.empty((2, self.channels, self._states), dtype=wide, device=device)
        self._generates[D is not None](decay, B, C, M if D is None else D, response, M, W, jumps)
        self._toeplitz(response, M)
        return ChunkMatrices(M, W, jumps)

    def rows(self, width: int, device: torch.device) -> Tensor:
        """Return an uninitialized float32 tensor of shape (channel, row, width)."""
        return torch.empty((self.channels, self.batch * self.chunks, width), dtype=torch.float32, device=device)

    def split(self, checkpoints: Tensor) -> tuple[Tensor | None, Tensor]:
        """Split the checkpoints into two views: the copy of the input (None if there is no copy) and the states at
        chunk starts.
        """
        kept = checkpoints.shape[2] - self.numbers
        return (checkpoints[..., :kept], checkpoints[..., kept:]) if kept else (None, checkpoints)

    def turned(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Copy x (batch, time, channel) to a float32 tensor (channel, row, step), where a row is one chunk of one
        sequence; return this tensor.

        ``rows`` is the tensor that receives the copy in its first columns (default: a new tensor).
        """
        rows = self.rows(self.length, x.device) if rows is None else rows
        self._turn(x.stride(), rows.stride(1), False)(x, rows)
        return rows

    def turn_back(self, flat: Tensor, y: Tensor) -> None:
        """Copy the rows in ``flat`` to y (batch, time, channel), the inverse of :meth:`turned`."""
        self._turn(y.stride(), flat.stride(1), True)(y, flat)

    @functools.lru_cache(maxsize=16)  # noqa: B019 (layers are cached anyway)
    def _turn(self, strides: tuple[int, ...], width: int, back: bool) -> Launch:
        programs = self.chunks * (self.length // BLOCK) * -(-self.channels // BLOCK) * self.batch
        numbers = (*strides, self.batch, self.steps, self.channels, self.chunks, width)
        constants = {"BACK": back, "UNIT": strides[2] == 1, "LENGTH": self.length, "BLOCK": BLOCK}
        return Launch(kernels.transpose_kernel, programs, numbers, constants, warps=4)

    def enter(
        self, both: Tensor, tail: Tensor | None, initial: Tensor | None, jumps: Tensor, entering: Tensor, final: Tensor
    ) -> None:
        """Compute the states at the starts of chunks and the final states; write them to ``entering`` and ``final``.

        A state is R real numbers. The last R columns of ``both`` contain the contribution of each chunk to the state
        after it. ``tail`` is the contribution of the last chunk if this chunk is not complete. ``jumps`` are the
        factors by which a state is multiplied over a whole chunk and over the last chunk.
        """
        flags, offsets = {"INITIAL": initial is not None, "WHOLE": tail is None}, (self._after_T, *[0] * 5)
        launch = self._walk(kernels.enter_kernel, entering.stride(1), final.stride(0), offsets, **flags)
        launch(both, both if tail is None else tail, both if initial is None else initial, jumps, entering, final)

    def leave(
        self,
        d_entering: Tensor,
        entering: Tensor,
        jumps: Tensor,
        d_final: Tensor | None,
        both: Tensor,
        d_initial: Tensor | None,
    ) -> Tensor:
        """Compute the backward pass of :meth:`enter`; return the gradient of ``jumps``, and write the other gradients.

        The gradient of the initial state is written to ``d_initial``. The gradients of the contributions of the chunks
        to the states after them are written to the last R columns of ``both``.
        """
        d_jumps = torch.empty((2, self.channels, self.batch, self._states), dtype=jumps.dtype, device=jumps.device)
        given = d_initial if d_final is None else d_final
        per_batch, offsets = 0 if given is None else given.stride(0), (0, 0, 0, 0, self._after_T, 0, 0)
        flags = {"FINAL": d_final is not None, "INITIAL": d_initial is not None}
        launch = self._walk(kernels.leave_kernel, entering.stride(1), per_batch, offsets, **flags)
        final, initial = (d_jumps if tensor is None else tensor for tensor in (d_final, d_initial))
        launch(d_entering, entering, jumps, final, both, d_jumps, initial)
        return d_jumps

    @functools.lru_cache(maxsize=16)  # noqa: B019
    def _walk(self, kernel: Any, held: int, per_batch: int, offsets: tuple[int, ...], **flags: bool) -> Launch:
        per_row = (self._per_row, held // self.pairs)
        numbers = (self.batch, self.channels, self.chunks, self._states, *per_row, per_batch)
        return Launch(kernel, self._columns, numbers, {**flags, **self._walks}, offsets=offsets, warps=1)

    def tail_of(self, rows: Tensor) -> Tensor:
        """Return a view of the steps in the incomplete last chunk of each sequence, (channel, sequence, steps)."""
        return rows.unflatten(1, (self.batch, self.chunks))[:, :, -1, : self.rest]

    def tail_added(self, inputs: Tensor, M: Tensor) -> Tensor:
        """Compute the contribution of the inputs in the incomplete last chunk to the final state.

        The result has the shape (channel, sequence, R); R real numbers are one state.
        """
        return torch.bmm(self.tail_of(inputs), self.into_final(M))

    def into_final(self, M: Tensor) -> Tensor:
        """Return the block of the matrix M that maps the inputs in the incomplete last chunk to the final state."""
        return M[:, self.length - self.rest :, self.length :]

    @staticmethod
    def reals(states: Tensor) -> Tensor:
        """Return a view of states (channel, sequence, N) as real numbers: 2 N numbers if complex, otherwise N."""
        return torch.view_as_real(states).flatten(2) if states.is_complex() else states

    def collect(
        self,
        parameters: tuple[Tensor, ...],
        d_M: Tensor,
        d_W: Tensor,
        d_jumps: Tensor,
        found: tuple[Tensor, ...],
    ) -> None:
        """Compute the gradients with respect to decay, B, C and D from the gradients of the matrices, and write them to
        ``found``.

        ``parameters`` are decay, B and C.
        """
        d_response = torch.empty((self.channels, self.length), dtype=torch.float64, device=d_M.device)
        *d_parameters, d_D = found
        self._diagonals(d_M, d_response, d_D)
        self._collect(*parameters, d_response, d_M, d_W, d_jumps, *d_parameters)


_layer = functools.lru_cache(maxsize=256)(_Layer)


def _chunked(layer: DiagonalSSM) -> bool:
    """Return True if this module supports the layer; otherwise ``ssm_blocked`` computes the layer."""
    whole = layer.reset is None and layer.lengths is None and layer.x.numel() > 0 and layer.decay.numel() > 0
    return whole and layer.decay.dtype in (torch.float32, torch.complex64)


def _length(states: int) -> int:
    """Return the number of steps per chunk: more for many states, so that fewer states are stored at chunk borders."""
    return 64 if states <= 32 else 128


def _kept(x: Tensor, decay: Tensor) -> int:
    """Return the number of columns of the checkpoints that contain a copy of the input; 0 if the input is too large."""
    return _length(decay.shape[1]) if x.numel() <= LARGE else 0


def _parts(x: Tensor, decay: Tensor) -> list[tuple[_Layer, slice | None]]:
    """Divide the channels into parts that are computed one after the other; return the layer and the slice of each
    part.

    If there is only one part, its slice is None, which means all channels. There are several parts if the input is
    large and the layer has many states: the intermediate results would otherwise take more memory than inputs and
    outputs.
    """
    batch, steps, channels = x.shape
    kind = (decay.shape[1], decay.is_complex())
    if decay.shape[1] <= 32 or x.numel() <= LARGE or channels == 1:
        return [(_layer(batch, steps, channels, *kind), None)]
    size = -(-channels // PARTS)
    slices = [slice(start, min(start + size, channels)) for start in range(0, channels, size)]
    return [(_layer(batch, steps, at.stop - at.start, *kind), at) for at in slices]


def _view(at: slice | None, tensor: Any, dim: int) -> Any:
    """Return a view of a tensor restricted to the channels ``at``, where ``dim`` is the channel dimension.

    If ``at`` is None, which means all channels, return the tensor itself: to create a view takes as much time on the
    CPU as to launch a kernel.
    """
    return tensor if at is None or tensor is None else tensor.narrow(dim, at.start, at.stop - at.start)


def _ready(at: slice | None, *parameters: Tensor | None) -> tuple[Any, ...]:
    """Return the parameters of some channels, as contiguous tensors without lazy conjugation or negation.

    ``at`` is a slice of the channels, or None for all channels.
    """
    chosen = (_view(at, tensor, 0) for tensor in parameters)
    return tuple(None if tensor is None else tensor.resolve_conj().resolve_neg().contiguous() for tensor in chosen)
