"""The program in NumPy: what runs where llvmlite is not installed. Buffers are allocated once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

import numpy as np
from scipy import special

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
    Slot,
    Taps,
)


@final
class NumpyRunner:
    """Every value is an array (batch, size); an operation is a list of calls that write into them."""

    def __init__(self, program: Program, batch: int) -> None:
        self._values = [np.zeros((batch, size), program.dtype) for size in program.sizes]
        self._calls = [call for operation in program.operations for call in self._lower(operation)]
        self.x, self.y = self._values[0], self._values[program.output]
        if any(program.output in slot.values for slot in program.slots):  # a caller may write into what it gets
            self.y = np.empty_like(self.y)
            self._calls.append(partial(np.copyto, self.y, self._values[program.output]))

    def step(self) -> None:
        """From ``x`` to ``y``."""
        for call in self._calls:
            call()

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """Over a block, (batch, time, size) each."""
        for t in range(x.shape[1]):
            self.x[...] = x[:, t]
            self.step()
            y[:, t] = self.y

    def read(self, slot: Slot) -> list[np.ndarray]:
        """A state's values, (batch, size) each."""
        return [self._values[value] for value in slot.values]

    def write(self, slot: Slot, parts: list[np.ndarray]) -> None:
        """Set a state's values."""
        for value, part in zip(slot.values, parts, strict=True):
            self._values[value][...] = part

    def _like(self, value: int) -> np.ndarray:
        return np.empty_like(self._values[value])

    def _lower(self, operation: Operation) -> list[Callable[[], object]]:
        at = self._values
        match operation:
            case Affine(out, sources, weights, bias):
                calls: list[Callable[[], object]] = [partial(np.matmul, at[sources[0]], weights[0].T, out=at[out])]
                part = self._like(out)
                for source, W in zip(sources[1:], weights[1:], strict=True):
                    calls.append(partial(np.matmul, at[source], W.T, out=part))
                    calls.append(partial(np.add, at[out], part, out=at[out]))
                return [*calls, partial(np.add, at[out], bias, out=at[out])] if bias.any() else calls
            case Scale(out, source, factor, plus):
                shift = at[plus] if isinstance(plus, int) else plus
                return [
                    partial(np.multiply, at[source], factor, out=at[out]),
                    partial(np.add, at[out], shift, out=at[out]),
                ]
            case Rotate(real, imag, decay, drive_real, drive_imag):
                return _complex_step(at[real], at[imag], decay, at[drive_real], at[drive_imag])
            case Channels(out, source, real, imag, decay, gain, weights, skip):
                u, v = (at[value].reshape(-1, *decay.shape) for value in (real, imag))
                x, drive, part = at[source][..., None], [np.empty_like(u) for _ in range(2)], self._like(out)
                return [
                    partial(np.multiply, x, gain.real, out=drive[0]),
                    partial(np.multiply, x, gain.imag, out=drive[1]),
                    *_complex_step(u, v, decay, drive[0], drive[1]),
                    partial(np.multiply, at[source], skip, out=at[out]),
                    partial(np.multiply, u, weights.real, out=drive[0]),
                    partial(np.sum, drive[0], axis=-1, out=part),
                    partial(np.add, at[out], part, out=at[out]),
                    partial(np.multiply, v, weights.imag, out=drive[1]),
                    partial(np.sum, drive[1], axis=-1, out=part),
                    partial(np.subtract, at[out], part, out=at[out]),
                ]
            case Taps(out, oldest, source, past, taps, index):
                H, K = taps.shape
                line = at[past].reshape(len(at[past]), K, len(operation.first))
                seen = np.empty((len(line), K + 1, H), taps.dtype)
                part, ordered = np.empty_like(seen[:, 1:]), np.ascontiguousarray(taps.T[::-1])
                return [
                    partial(np.take, line, index, axis=2, out=seen[:, :K]),
                    partial(np.copyto, seen[:, K], at[source]),
                    partial(np.copyto, at[oldest], seen[:, 0]),
                    partial(np.multiply, seen[:, 1:], ordered, out=part),
                    partial(np.sum, part, axis=1, out=at[out]),
                    partial(np.take, seen[:, 1:], operation.first, axis=2, out=line),
                ]
            case Product(out, left, right):
                return [partial(np.multiply, at[left], at[right], out=at[out])]
            case Slice(out, source, start):
                return [partial(np.copyto, at[out], at[source][:, start : start + at[out].shape[1]])]
            case Pointwise(out, source, function):
                return [partial(FUNCTIONS[function], at[source], at[out])]


def _complex_step(
    real: np.ndarray, imag: np.ndarray, decay: np.ndarray, drive_real: np.ndarray, drive_imag: np.ndarray
) -> list[Callable[[], object]]:
    """h = decay h + drive, in place."""
    a, b = np.ascontiguousarray(decay.real), np.ascontiguousarray(decay.imag)
    cross, part = np.empty_like(real), np.empty_like(real)
    return [
        partial(np.multiply, real, b, out=cross),
        partial(np.multiply, imag, b, out=part),
        partial(np.multiply, real, a, out=real),
        partial(np.subtract, real, part, out=real),
        partial(np.add, real, drive_real, out=real),
        partial(np.multiply, imag, a, out=imag),
        partial(np.add, imag, cross, out=imag),
        partial(np.add, imag, drive_imag, out=imag),
    ]


def _gelu(z: np.ndarray, out: np.ndarray) -> None:
    special.ndtr(z, out)
    np.multiply(z, out, out=out)


def _silu(z: np.ndarray, out: np.ndarray) -> None:
    special.expit(z, out)
    np.multiply(z, out, out=out)


def _hardtanh_slope(z: np.ndarray, out: np.ndarray) -> None:
    np.absolute(z, out=out)
    np.less(out, 1.0, out=out)


def _tanh_slope(z: np.ndarray, out: np.ndarray) -> None:
    np.tanh(z, out=out)
    np.multiply(out, out, out=out)
    np.subtract(1.0, out, out=out)


def _sigmoid_slope(z: np.ndarray, out: np.ndarray) -> None:
    """1 / (2 cosh(z / 2))², and where that would overflow its square is 0 in any precision."""
    np.absolute(z, out=out)
    np.minimum(out, 160.0, out=out)
    np.divide(out, 2.0, out=out)
    np.cosh(out, out=out)
    np.multiply(out, 2.0, out=out)
    np.power(out, -2.0, out=out)


def _rsqrt(z: np.ndarray, out: np.ndarray) -> None:
    np.sqrt(z, out=out)
    np.reciprocal(out, out=out)


FUNCTIONS: dict[str, Callable[[np.ndarray, np.ndarray], object]] = {
    "relu": lambda z, out: np.maximum(z, 0.0, out=out),
    "hardtanh": lambda z, out: np.clip(z, -1.0, 1.0, out=out),
    "tanh": lambda z, out: np.tanh(z, out=out),
    "sigmoid": special.expit,
    "gelu": _gelu,
    "silu": _silu,
    "phi": special.exprel,
    "relu_slope": lambda z, out: np.greater(z, 0.0, out=out),
    "hardtanh_slope": _hardtanh_slope,
    "tanh_slope": _tanh_slope,
    "sigmoid_slope": _sigmoid_slope,
    "rsqrt": _rsqrt,
    "reciprocal": lambda z, out: np.reciprocal(z, out=out),
}
