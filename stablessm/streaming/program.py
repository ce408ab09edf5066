"""Programs: one step of a model as operations on real vectors.

Everything that depends only on weights is computed in advance. A *value* is a real vector with an index; value 0 is the
input. A complex vector is two values. States are values that persist from step to step. ``step_code`` compiles a
program to machine code; ``interpret`` runs a program in NumPy, and as a PyTorch module for export. Both give the same
results.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError, quoted


class Affine(NamedTuple):
    """The operation out = Σ_k weights_k source_k + bias, a sum of matrix products."""

    out: int
    sources: tuple[int, ...]
    weights: tuple[np.ndarray, ...]
    """(len(out), len(source)) each."""
    bias: np.ndarray


class Scale(NamedTuple):
    """The elementwise operation out = factor ⊙ source + plus, where ``plus`` is a constant or another value.

    If ``out`` and ``source`` are the same state, the operation is a real recurrence.
    """

    out: int
    source: int
    factor: np.ndarray
    plus: int | np.ndarray


class Gate(NamedTuple):
    """The real recurrence h = decay ⊙ h + drive, in which decay and drive depend on the input."""

    state: int
    decay: int
    drive: int


class Rotate(NamedTuple):
    """The complex recurrence h = decay ⊙ h + drive, with h as two values: its real part and its imaginary part."""

    real: int
    imag: int
    decay: np.ndarray
    drive_real: int
    drive_imag: int


class Channels(NamedTuple):
    """A diagonal recurrence with N states for each of H channels, as in S4D, with its readout.

    h = decay ⊙ h + gain ⊙ source, out = Re Σ_n weights_n h_n + skip ⊙ source. The values ``real`` and ``imag`` are the
    real and imaginary parts of h, flattened to vectors of H · N numbers.
    """

    out: int
    source: int
    real: int
    imag: int
    decay: np.ndarray
    gain: np.ndarray
    weights: np.ndarray
    """(H, N) complex each."""
    skip: np.ndarray


class Taps(NamedTuple):
    """A bank of H filters with K taps each: out[t] = Σ_{j<K} taps[:, j] ⊙ source[t-j] and oldest[t] = source[t-K].

    ``source``, ``out`` and ``oldest`` are values of size H. ``oldest`` is the input that leaves the window of the
    filters at this step. If a recurrence continues the filters beyond K taps, ``oldest`` is its input. The state
    ``past`` contains the last K inputs, oldest first: an array (K, U), flattened to a vector, where U is the number of
    different inputs. Filter h reads input number ``inputs[h]``.
    """

    out: int
    oldest: int
    source: int
    past: int
    taps: np.ndarray
    """(H, K), K at least 1."""
    inputs: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """Return, for each input in order, the index of one filter that reads this input."""
        return np.unique(self.inputs, return_index=True)[1]


class Product(NamedTuple):
    """The elementwise product out = left ⊙ right of two values."""

    out: int
    left: int
    right: int


class Slice(NamedTuple):
    """The operation out = source[start:stop], a part of a value."""

    out: int
    source: int
    start: int
    stop: int


class Spread(NamedTuple):
    """The operation that repeats each element of a value ``each`` times, and then the whole result ``whole`` times."""

    out: int
    source: int
    each: int
    whole: int


class Fold(NamedTuple):
    """The operation out[i] = Σ_j source[i · width + j], a sum over groups of ``width`` neighboring elements."""

    out: int
    source: int
    width: int


class Pointwise(NamedTuple):
    """The elementwise operation out = function(source), for one of the functions named in ``FUNCTIONS``."""

    out: int
    source: int
    function: str


class Reverse(NamedTuple):
    """The operation out[t] = source[T-1-t], the reversal of time, in programs for whole sequences only."""

    out: int
    source: int


Operation: TypeAlias = (
    Affine | Scale | Gate | Rotate | Channels | Taps | Product | Slice | Spread | Fold | Pointwise | Reverse
)

FUNCTIONS = (
    "relu", "hardtanh", "tanh", "sigmoid", "gelu", "silu", "phi",
    "relu_slope", "hardtanh_slope", "tanh_slope", "sigmoid_slope", "rsqrt", "reciprocal", "softplus", "expm1", "sqrt",
    "negative",
)  # fmt: skip
"""Functions of ``Pointwise``: φ(z) = (e^z - 1) / z, and ``negative`` limits z to numbers for which 1 + z < 1."""


class Slot(NamedTuple):
    """One state of the model in a program: its shape, and the indices of its values (two if it is complex)."""

    values: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def pair_shape(self) -> tuple[int, ...]:
        """Return the shape of the state as an array of real numbers; a complex state gets a last
        dimension of size 2.
        """
        return self.shape if len(self.values) == 1 else (*self.shape, 2)


class Program:
    """The operations of one step of a model, in order, which :func:`.freeze` creates from the model."""

    def __init__(self, d_input: int, dtype: torch.dtype, *, whole: bool = False) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ArgumentError("model", "parameters in float32 or float64", dtype)
        self.torch_dtype, self.whole = dtype, whole
        self.dtype = np.dtype(np.float32 if dtype == torch.float32 else np.float64)
        self.sizes = [d_input]
        self.operations: list[Operation] = []
        self.slots: list[Slot] = []
        self.output = 0
        self.table: np.ndarray | None = None
        """Embeddings (tokens, size of value 0) if the input is a token: value 0 is then its row."""
        self.structure: Any = []
        """The structure of the model's state, with the index of a slot in place of each tensor."""

    def value(self, size: int) -> int:
        """Add a value (a vector with ``size`` elements) to the program, and return its index."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def state(self, shape: tuple[int, ...], *, complex: bool = False) -> tuple[int, ...]:
        """Add a state that persists between steps, and return the indices of its values: two if complex,
        otherwise one.
        """
        values = tuple(self.value(int(np.prod(shape))) for _ in range(1 + complex))
        self.structure.append(len(self.slots))
        self.slots.append(Slot(values, shape))
        return values

    def affine(self, *terms: tuple[int, Tensor], bias: Tensor | None = None) -> int:
        """Append the sum of matrix products Σ weights source + bias, and return the index of the result.

        ``terms`` are pairs of the index of a source and a weight matrix. If there is only one source, its weights are
        the identity and there is no bias, nothing is appended, and the index of this source is returned.
        """
        source, first = terms[0]
        if len(terms) == 1 and bias is None and torch.equal(first, torch.eye(len(first)).to(first)):
            return source
        for source, weights in terms:
            if weights.shape[1] != self.sizes[source]:
                raise ArgumentError("model", f"a module with {self.sizes[source]} inputs", weights.shape[1])
        bias = torch.zeros(len(first)) if bias is None else bias
        sources, arrays = zip(*((source, self.array(weights)) for source, weights in terms), strict=True)
        return self._made(Affine, len(first), sources, arrays, self.array(bias))

    def scale(self, source: int, factor: Tensor, plus: int | Tensor | None = None, *, out: int | None = None) -> int:
        """Append the elementwise operation factor ⊙ source + plus, and return the index of the result.

        ``plus`` is a constant (default: 0) or the index of a value. ``out=source`` replaces a state by the result.
        """
        out = self.value(self.sizes[source]) if out is None else out
        plus = torch.zeros(1) if plus is None else plus
        constant = plus if isinstance(plus, int) else self.array(plus.expand(self.sizes[source]))
        self.operations.append(Scale(out, source, self.array(factor.expand(self.sizes[source])), constant))
        return out

    def _made(self, kind: type[Any], size: int, *arguments: Any) -> int:
        """Append an operation whose result is a new value with ``size`` numbers; return the value."""
        out = self.value(size)
        self.operations.append(kind(out, *arguments))
        return out

    def product(self, left: int, right: int) -> int:
        """Append the elementwise product left ⊙ right; return the result's index."""
        return self._made(Product, self.sizes[left], left, right)

    def gate(self, state: int, decay: int, drive: int) -> None:
        """Append the recurrence state = decay ⊙ state + drive to the program."""
        self.operations.append(Gate(state, decay, drive))

    def split(self, source: int, *sizes: int) -> list[int]:
        """Append operations that split a vector into parts of the given sizes; return the indices of the parts."""
        parts, start = [], 0
        for size in sizes:
            parts.append(self._made(Slice, size, source, start, start + size))
            start += size
        return parts

    def spread(self, source: int, *, each: int = 1, whole: int = 1) -> int:
        """Append an operation that repeats each element of a value ``each`` times, and then the whole result ``whole``
        times.

        Return the index of the result.
        """
        return self._made(Spread, self.sizes[source] * each * whole, source, each, whole)

    def fold(self, source: int, width: int) -> int:
        """Append an operation that sums every ``width`` neighboring elements of a value; return the index of the
        result.
        """
        return self._made(Fold, self.sizes[source] // width, source, width)

    def pointwise(self, source: int, function: str) -> int:
        """Append the elementwise operation function(source), and return the index of the result.

        If ``function`` is "linear", nothing is appended, and ``source`` is returned.
        """
        if function == "linear":
            return source
        if function not in FUNCTIONS:
            raise ArgumentError("model", f"activations among {', '.join(FUNCTIONS[:6])}", quoted(function))
        return self._made(Pointwise, self.sizes[source], source, function)

    def reverse(self, source: int) -> int:
        """Append an operation that reverses a value in time; return the index of the result.

        Raise an error if the program is for a single step.
        """
        if not self.whole:
            expected = "a model that reads forward in time, for a step (export_sequence accepts both directions)"
            raise ArgumentError("model", expected, "Bidirectional")
        return self._made(Reverse, self.sizes[source], source)

    def array(self, tensor: Tensor) -> np.ndarray:
        """Return a tensor as a NumPy array in the real or complex dtype of the program."""
        kind = np.result_type(self.dtype, np.complex64) if tensor.is_complex() else self.dtype
        return np.array(tensor.detach().cpu().resolve_conj().numpy(), dtype=kind)
