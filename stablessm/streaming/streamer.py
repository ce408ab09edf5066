"""One sample at a time, on a CPU, without an allocation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, final, overload

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._arguments import one_of, whole_number
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


@final
class Streamer:
    """y_t = streamer(x_t): the numbers of ``model(x)``, one sample at a time, from weights frozen when it was made.

    Eigenvalues, gains and discretisation are computed once; the step becomes machine code for this model (by
    llvmlite, without a compiler at hand) or, where llvmlite is not installed, NumPy calls. The state is kept inside. A
    compiled call allocates nothing: **y_t is overwritten by the next call**, copy it to keep it. One thread computes,
    and denormal numbers count as zero, so that silence is as fast as sound. A streamer serves one thread at a time.

    Args:
        model: a layer (``RealSSM``, ``LRU``, ``S4D``, ``ContinuousRNN``), a ``SequenceClassifier``,
            ``SequenceRegressor`` or ``LanguageModel`` (at every step what its ``step`` gives), ``models.LinearRNNMLP``,
            what ``constructions.from_convolution``, ``volterra``, ``elementwise`` or ``kolmogorov_arnold`` made, or an
            ``nn.Sequential`` of these and of ``Linear``, ``GELU``, ``SiLU``, ``ReLU``, ``Tanh``, ``Sigmoid``,
            ``Hardtanh``, ``Dropout`` (off) and ``Identity``; parameters in float32 or float64. Later changes of its
            weights are not seen.
        batch: how many streams run in step.
        backend: ``compiled``, ``numpy`` or ``auto``.

    >>> import stablessm as ssm
    >>> layer = ssm.LRU(3, 32, 2)
    >>> streamer = Streamer(layer)
    >>> x = torch.randn(1, 100, 3)
    >>> y_t = [streamer(x[0, t]).clone() for t in range(100)]
    >>> torch.allclose(torch.stack(y_t), layer(x)[0][0], atol=1e-5)
    True
    """

    def __init__(self, model: nn.Module, batch: int = 1, *, backend: str = "auto") -> None:
        self.batch = whole_number("batch", batch)
        one_of("backend", backend, BACKENDS)
        missing = why_not("cpu")
        if backend == "compiled" and missing is not None:
            raise BackendUnavailableError(f"backend: 'compiled' was asked for, but {missing}")
        self.backend = "numpy" if backend == "numpy" or missing is not None else "compiled"
        """What runs: ``compiled`` or ``numpy``."""
        self._program = program = freeze(model)
        self.d_input, self.d_output = program.sizes[0], program.sizes[program.output]
        self.dtype = program.torch_dtype
        """Of inputs, outputs and real states."""
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
        """One step. x_t: (batch, d_input), or (d_input,) if batch is 1, or tokens (batch,).

        An array gives an array, a tensor a tensor.
        """
        try:
            source, result, tensor = self._buffers[x_t.shape]
        except (KeyError, AttributeError):
            raise self._refused("x_t", x_t, " or ".join(map(str, self._buffers))) from None
        given = isinstance(x_t, np.ndarray)
        array = x_t if given else x_t.numpy()
        if self._program.table is None:
            source[...] = array
        else:
            np.take(self._program.table, self._tokens("x_t", array), 0, source, "clip")
        self._step()
        return result if given else tensor

    @overload
    def run(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray: ...
    @overload
    def run(self, x: Tensor, out: Tensor | None = None) -> Tensor: ...
    def run(self, x: Any, out: Any = None) -> Any:
        """A block of samples, (batch, time, d_input) or tokens (batch, time), from the state it is in.

        The result is (batch, time, d_output). ``out`` takes it if given: contiguous, of the streamer's dtype, so that
        nothing is allocated (but the embeddings of tokens).
        """
        table, sizes = self._program.table, () if self._program.table is not None else (self.d_input,)
        if getattr(x, "ndim", None) != 2 + len(sizes) or (x.shape[0], *x.shape[2:]) != (self.batch, *sizes):
            raise self._refused("x", x, f"({', '.join(map(str, (self.batch, 'time', *sizes)))})")
        given = isinstance(x, np.ndarray)
        array = x if given else x.numpy()
        block = np.ascontiguousarray(array if table is None else table[self._tokens("x", array)], self._program.dtype)
        shape = (*block.shape[:2], self.d_output)
        y = np.empty(shape, self._program.dtype) if out is None else out if given else out.numpy()
        if y.shape != shape or y.dtype != self._program.dtype or not y.flags.c_contiguous:
            expected = f"shape {shape}, contiguous, {self._program.dtype}"
            raise ArgumentError("out", expected, f"shape {y.shape}, {y.dtype}")
        self._runner.run(block, y)
        return out if out is not None else y if given else torch.from_numpy(y)

    def reset(self) -> None:
        """Back to the zero state."""
        for slot in self._program.slots:
            zeros = np.zeros((self.batch, math.prod(slot.shape)), self._program.dtype)
            self._runner.write(slot, [zeros] * len(slot.values))

    @property
    def state(self) -> Any:
        """The state as the model's own ``step`` takes it, a copy: a tensor, or a tuple of them for several layers."""
        return self._read(self._program.structure)

    @state.setter
    def state(self, state: Any) -> None:
        for slot, part in self._pairs(self._program.structure, state):
            array = np.asarray(part.detach().cpu() if isinstance(part, Tensor) else part)
            if array.shape != (self.batch, *slot.shape):
                raise ArgumentError("state", f"shape {(self.batch, *slot.shape)}", f"shape {array.shape}")
            if np.iscomplexobj(array) and len(slot.values) == 1:
                raise ArgumentError("state", "real numbers", array.dtype)
            array = array.reshape(self.batch, math.prod(slot.shape))
            self._runner.write(slot, [array.real, array.imag][: len(slot.values)])

    def _read(self, structure: Any) -> Any:
        if structure is None or isinstance(structure, tuple):
            return structure and tuple(map(self._read, structure))
        slot = self._program.slots[structure]
        parts = [torch.from_numpy(np.array(part, self._program.dtype)) for part in self._runner.read(slot)]
        state = parts[0] if len(parts) == 1 else torch.complex(*parts)
        return state.reshape(self.batch, *slot.shape)

    def _pairs(self, structure: Any, state: Any) -> list[tuple[Slot, Any]]:
        """Every slot with what a caller has for it."""
        if isinstance(structure, int):
            return [(self._program.slots[structure], state)]
        if structure is None:
            return []
        if not isinstance(state, Sequence) or len(state) != len(structure):
            raise ArgumentError("state", f"a tuple of {len(structure)}", type(state).__name__)
        return [pair for inner, part in zip(structure, state, strict=True) for pair in self._pairs(inner, part)]

    def _tokens(self, name: str, tokens: np.ndarray) -> np.ndarray:
        """The same, if they are tokens that the model knows."""
        assert self._program.table is not None
        count = len(self._program.table)
        if not np.issubdtype(tokens.dtype, np.integer):
            raise ArgumentError(name, f"tokens, whole numbers from 0 to {count - 1}", tokens.dtype)
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < count:
            raise ArgumentError(name, f"tokens from 0 to {count - 1}", f"{tokens.min()} to {tokens.max()}")
        return tokens

    def _refused(self, name: str, x: Any, expected: str) -> ArgumentError:
        got = f"shape {tuple(x.shape)}" if hasattr(x, "shape") else type(x).__name__
        return ArgumentError(name, f"an array or tensor of shape {expected}", got)

    def __repr__(self) -> str:
        sizes = f"d_input={self.d_input}, d_output={self.d_output}, batch={self.batch}"
        return f"Streamer({sizes}, {self._program.dtype}, {self.backend})"


def _runner(program: Program, batch: int, backend: str) -> _Runner:
    if backend == "numpy":
        from stablessm.streaming.numpy_runner import NumpyRunner  # requires scipy

        return NumpyRunner(program, batch)
    from stablessm.streaming.compiled_runner import CompiledRunner

    return CompiledRunner(program, batch)
