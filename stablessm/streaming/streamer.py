"""The ``Streamer``, which runs a model one sample at a time on a CPU, without allocating memory."""

from __future__ import annotations

import math
import os
from typing import Any, Protocol, final, overload

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._arguments import one_of
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError, BackendUnavailableError
from stablessm.scan import why_not
from stablessm.streaming.freeze import freeze
from stablessm.streaming.program import Program, Slot

BACKENDS = ("auto", "compiled", "numpy")


class _Runner(Protocol):
    x: np.ndarray
    y: np.ndarray

    def step(self) -> None: ...
    def run(self, x: np.ndarray, y: np.ndarray) -> None: ...
    def read(self, slot: Slot) -> list[np.ndarray]: ...
    def write(self, slot: Slot, parts: list[np.ndarray]) -> None: ...
    def arrays(self) -> list[np.ndarray]:
        """Return every array that a step reads or writes, except the weights; a copied streamer copies these arrays."""


@final
class Streamer:
    """Runs a model on a stream: each call ``y_t = streamer(x_t)`` computes one step, and the streamer keeps the state.

    The weights are copied at construction, and eigenvalues, gains and the discretization are computed once. llvmlite
    compiles the step to machine code; no C compiler is needed. Without llvmlite, the step runs in NumPy. A compiled
    call allocates no memory: **y_t is overwritten by the next call**, so copy it to keep it. A step runs in the calling
    thread, except for matrix products with large weights, which run on PyTorch's threads. Only one thread may use a
    streamer at a time. Denormal numbers are treated as zero, so that a step is not slower when the input is zero. A
    copy (``copy.copy``, ``copy.deepcopy``, ``pickle``) is an independent stream that continues from the same state.

    Args:
        model: one of the models below, with parameters in float32 or float64.
        batch: number of streams that run together.
        backend: ``compiled``, ``numpy`` or ``auto`` (``compiled`` if llvmlite is installed).

    A model is one of:

    - a layer: ``RealSSM``, ``LRU``, ``S4D``, ``ContinuousRNN``, ``MinGRU``, ``MinLSTM``, ``HGRN``, ``RGLRU`` or
      ``SelectiveSSM``;
    - a network: ``SequenceClassifier``, ``SequenceRegressor``, ``LanguageModel`` (each call returns the same as the
      network's method ``step``) or ``models.LinearRNNMLP``;
    - a model made by ``constructions.from_convolution``, ``volterra``, ``elementwise`` or ``kolmogorov_arnold``;
    - an ``nn.Sequential`` of these models and of ``Linear``, ``GELU``, ``SiLU``, ``ReLU``, ``Tanh``, ``Sigmoid``,
      ``Hardtanh``, ``Identity`` and ``Dropout``, which does nothing in a streamer.

    >>> import stablessm as ssm
    >>> layer = ssm.LRU(3, 32, 2)
    >>> streamer = Streamer(layer)
    >>> x = torch.randn(1, 100, 3)
    >>> y_t = [streamer(x[0, t]).clone() for t in range(100)]
    >>> torch.allclose(torch.stack(y_t), layer(x)[0][0], atol=1e-5)
    True
    """

    @checked
    def __init__(self, model: nn.Module, batch: Size = 1, *, backend: str = "auto") -> None:
        self.batch = batch
        one_of("backend", backend, BACKENDS)
        self.backend = _available(backend)
        """The backend in use: ``compiled`` or ``numpy``."""
        self._build(freeze(model))

    def _build(self, program: Program) -> None:
        self._program = program
        self.d_input, self.d_output = program.sizes[0], program.sizes[program.output]
        self.dtype = program.torch_dtype
        """The dtype of inputs, outputs and real states."""
        self._runner = _runner(program, self.batch, self.backend)
        self._step = self._runner.step
        x, y = self._runner.x, self._runner.y
        tokens = program.table is not None
        self._buffers = {x.shape[:1] if tokens else x.shape: (x, y, torch.from_numpy(y))}
        if self.batch == 1 and not tokens:
            self._buffers[x.shape[1:]] = (x[0], y[0], torch.from_numpy(y[0]))

    @overload
    def __call__(self, x_t: np.ndarray) -> np.ndarray: ...
    @overload
    def __call__(self, x_t: Tensor) -> Tensor: ...
    def __call__(self, x_t: Any) -> Any:
        """Run one step: return y_t for x_t (batch, d_input), x_t (d_input,) if batch is 1, or tokens (batch,).

        An array as input gives an array as output, and a tensor gives a tensor.
        """
        try:
            source, result, tensor = self._buffers[x_t.shape]
        except (KeyError, AttributeError, TypeError, RuntimeError):  # nested tensors have no shape
            raise self._refused("x_t", x_t, " or ".join(map(str, self._buffers))) from None
        array = x_t if type(x_t) is np.ndarray else _array("x_t", x_t)
        if self._program.table is None:
            if array.dtype is not source.dtype and array.dtype.kind not in "fiub":
                raise ArgumentError("x_t", "real numbers", array.dtype)
            source[...] = array
        else:
            np.take(self._program.table, self._tokens("x_t", array), 0, source, "clip")
        self._step()
        return tensor if isinstance(x_t, Tensor) else result

    @overload
    def run(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray: ...
    @overload
    def run(self, x: Tensor, out: Tensor | None = None) -> Tensor: ...
    def run(self, x: Any, out: Any = None) -> Any:
        """Run the model on a block of samples (batch, time, d_input), or tokens (batch, time), and return the outputs.

        The result is (batch, time, d_output). If ``out`` is given, the result is written to it and no memory is
        allocated (except for embeddings of tokens). ``out`` must be contiguous and writable, have the streamer's dtype,
        and not overlap ``x`` in memory.
        """
        table, sizes = self._program.table, () if self._program.table is not None else (self.d_input,)
        seen = _shape(x)
        if seen is None or len(seen) != 2 + len(sizes) or (seen[0], *seen[2:]) != (self.batch, *sizes):
            raise self._refused("x", x, f"({', '.join(map(str, (self.batch, 'time', *sizes)))})")
        array = _array("x", x)
        if table is None and array.dtype.kind not in "fiub":
            raise ArgumentError("x", "real numbers", array.dtype)
        block = np.ascontiguousarray(array if table is None else table[self._tokens("x", array)], self._program.dtype)
        shape = (*block.shape[:2], self.d_output)
        y = np.empty(shape, self._program.dtype) if out is None else self._checked_out(out, shape, array)
        self._runner.run(block, y)
        return out if out is not None else torch.from_numpy(y) if isinstance(x, Tensor) else y

    def _checked_out(self, out: Any, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
        """Return ``out`` as an array, after checking that writing to it cannot overwrite the input or a
        returned result.
        """
        y = _array("out", out)
        if y.shape != shape or y.dtype != self._program.dtype or not y.flags.c_contiguous:
            expected = f"shape {shape}, contiguous, {self._program.dtype}"
            raise ArgumentError("out", expected, f"shape {y.shape}, {y.dtype}, strides {y.strides}")
        if isinstance(out, Tensor) and y.size and not _is_shared(y, out):
            raise ArgumentError("out", "a tensor that has its numbers in memory", "a negated view or freed memory")
        if not y.flags.writeable or (isinstance(out, Tensor) and not _is_writable(y)):
            raise ArgumentError("out", "writable memory", "read-only memory")
        if np.may_share_memory(x, y) or np.may_share_memory(self._runner.y, y):
            raise ArgumentError("out", "memory apart from x and from the result of a step", "memory that overlaps")
        return y

    def reset(self) -> None:
        """Set the state to zero."""
        for slot in self._program.slots:
            zeros = np.zeros((self.batch, math.prod(slot.shape)), self._program.dtype)
            self._runner.write(slot, [zeros] * len(slot.values))

    @property
    def state(self) -> Any:
        """Return a copy of the state in the form that ``model.step`` takes: a tensor, or a tuple for several layers."""
        return self._read(self._program.structure)

    @state.setter
    def state(self, state: Any) -> None:
        pairs = self._pairs(self._program.structure, state)
        for slot, array in [(slot, self._state_of(slot, part)) for slot, part in pairs]:  # checks all parts first
            self._runner.write(slot, [array.real, array.imag][: len(slot.values)])

    def _state_of(self, slot: Slot, part: Any) -> np.ndarray:
        array = _array("state", part.detach().cpu() if isinstance(part, Tensor) and not part.is_meta else part)
        if array.shape != (self.batch, *slot.shape):
            raise ArgumentError("state", f"shape {(self.batch, *slot.shape)}", f"shape {array.shape}")
        kind, words = ("f", "real") if len(slot.values) == 1 else ("c", "complex")
        if array.dtype.kind != kind:
            raise ArgumentError("state", f"{words} numbers, as streamer.state has them", array.dtype)
        return array.reshape(self.batch, math.prod(slot.shape))

    def _read(self, structure: Any) -> Any:
        if structure is None or isinstance(structure, tuple):
            return structure and tuple(map(self._read, structure))
        slot = self._program.slots[structure]
        parts = [torch.from_numpy(np.array(part, self._program.dtype)) for part in self._runner.read(slot)]
        state = parts[0] if len(parts) == 1 else torch.complex(*parts)
        return state.reshape(self.batch, *slot.shape)

    def _pairs(self, structure: Any, state: Any) -> list[tuple[Slot, Any]]:
        """Pair each state of the program with the caller's tensor for this state; return the list of pairs.

        ``state`` is the caller's nested tuple of tensors, and ``structure`` the same tuple with the index of a state in
        place of each tensor.
        """
        if isinstance(structure, int):
            return [(self._program.slots[structure], state)]
        if structure is None:
            return []
        if not isinstance(state, tuple | list) or len(state) != len(structure):
            raise ArgumentError("state", f"a tuple of {len(structure)}", type(state).__name__)
        return [pair for inner, part in zip(structure, state, strict=True) for pair in self._pairs(inner, part)]

    def _tokens(self, name: str, tokens: np.ndarray) -> np.ndarray:
        """Return an array of tokens; raise an error if an entry is not a token of the model."""
        assert self._program.table is not None
        count = len(self._program.table)
        if tokens.dtype.kind not in "iu":
            raise ArgumentError(name, f"tokens, whole numbers from 0 to {count - 1}", tokens.dtype)
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < count:
            raise ArgumentError(name, f"tokens from 0 to {count - 1}", f"{tokens.min()} to {tokens.max()}")
        return tokens

    def _refused(self, name: str, x: Any, expected: str) -> ArgumentError:
        seen = _shape(x)
        got = type(x).__name__ if seen is None else f"shape {seen}"
        return ArgumentError(name, f"an array or tensor of shape {expected}", got)

    def __reduce__(self) -> Any:
        return _copied, (self._program, self.batch, self.backend, [array.copy() for array in self._runner.arrays()])

    def __repr__(self) -> str:
        sizes = f"d_input={self.d_input}, d_output={self.d_output}, batch={self.batch}"
        return f"Streamer({sizes}, {self._program.dtype}, {self.backend})"


def _shape(x: Any) -> tuple[int, ...] | None:
    """Return the shape of an array or tensor, or None for a value without a shape, such as a nested tensor."""
    try:
        return tuple(x.shape)
    except (AttributeError, TypeError, RuntimeError):
        return None


def _array(name: str, x: Any) -> np.ndarray:
    """Return a CPU tensor as a NumPy array that shares its memory; return a NumPy array unchanged."""
    if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        return x
    if not isinstance(x, Tensor):
        raise ArgumentError(name, "an array or tensor", type(x).__name__)
    try:
        return x.numpy()
    except (TypeError, RuntimeError) as error:  # a tensor on another device, with a gradient, in bfloat16, or sparse
        if x.is_neg() or x.is_conj():
            return _array(name, x.resolve_neg().resolve_conj())
        expected = "a dense tensor on the CPU without a gradient (x.detach()), of a dtype that NumPy has"
        raise ArgumentError(name, expected, f"{x.dtype} on {x.device}, requires_grad={x.requires_grad}") from error


def _is_shared(array: np.ndarray, tensor: Tensor) -> bool:
    """Return True if a contiguous array is the memory of the tensor, and the tensor's storage has all of it."""
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return array.__array_interface__["data"][0] == tensor.data_ptr() and end <= tensor.untyped_storage().nbytes()


def _is_writable(array: np.ndarray) -> bool:
    """Return False if an array cannot be written to, for example because it maps a read-only file."""
    if array.size and os.path.exists("/dev/zero"):
        flat: Any = array.reshape(-1)
        numbers = memoryview(flat)
        try:
            with open("/dev/zero", "rb", buffering=0) as zeros:
                zeros.readinto(numbers[:1])
                zeros.readinto(numbers[-1:])
        except OSError:
            return False
    return True


def _copied(program: Program, batch: int, backend: str, arrays: list[np.ndarray]) -> Streamer:
    """Create a streamer that runs the same program as another streamer and starts from a copy of its state.

    ``arrays`` contain the state of the other streamer.
    """
    streamer = object.__new__(Streamer)
    streamer.batch, streamer.backend = batch, _available(backend)
    streamer._build(program)
    for mine, given in zip(streamer._runner.arrays(), arrays, strict=True):
        mine[...] = given
    return streamer


def _available(backend: str) -> str:
    """Return the backend that a streamer uses: "compiled" or "numpy".

    ``backend`` is the backend that the caller requested, which may also be "auto".
    """
    missing = why_not("cpu")
    if backend == "compiled" and missing is not None:
        raise BackendUnavailableError(f"backend: 'compiled' was requested, but {missing}")
    return "numpy" if backend == "numpy" or missing is not None else "compiled"


def _runner(program: Program, batch: int, backend: str) -> _Runner:
    if backend == "numpy":
        from stablessm.streaming.numpy_runner import NumpyRunner  # this import requires scipy

        return NumpyRunner(program, batch)
    from stablessm.streaming.compiled_runner import CompiledRunner

    return CompiledRunner(program, batch)
