"""Runs a program one operation after the other on NumPy arrays or PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stablessm.streaming import program as ops

Values: TypeAlias = dict[int, Any]


class Library(NamedTuple):
    """Functions that have different names in NumPy and in PyTorch, under common names."""

    concatenate: Callable[[list[Any], int], Any]
    repeat: Callable[[Any, int], Any]
    """Repeat each element of the last dimension."""
    functions: Mapping[str, Callable[[Any], Any]]
    """Functions by the names in ``program.FUNCTIONS``."""


def constants(operation: ops.Operation) -> dict[str, np.ndarray]:
    """Return the constant arrays of an operation by name, such as its weights.

    A complex array is split into its real and its imaginary part; the arrays of a list are numbered. The taps of
    filters are in the order of the delay line: the tap of the oldest input comes first. For filters, the array
    ``first`` contains, for each input, the index of one filter that reads this input.
    """
    fields = operation._asdict()
    if isinstance(operation, ops.Taps):
        fields |= {"taps": operation.taps.T[::-1], "first": operation.first}
    arrays: dict[str, np.ndarray] = {}
    for name, value in fields.items():
        if isinstance(value, tuple) and isinstance(value[0], np.ndarray):
            arrays |= {f"{name}{k}": part for k, part in enumerate(value)}
        elif isinstance(value, np.ndarray):
            parts = (
                {f"{name}_real": value.real, f"{name}_imag": value.imag} if np.iscomplexobj(value) else {name: value}
            )
            arrays |= parts
    return {name: np.array(array, order="C") for name, array in arrays.items()}  # no views with negative strides


def lowered(operation: ops.Operation, numbers: Mapping[str, Any], library: Library) -> Callable[[Values], Any]:
    """Return a function that computes the first result of an operation, given all values of the program.

    ``numbers`` are the :func:`constants` of the operation. The function takes a dict from index to value (batch, size),
    adds further results of the operation to the dict, and never modifies an array.
    """
    match operation:
        case ops.Affine(_, sources, _, bias):
            weights = [numbers[f"weights{k}"].T for k in range(len(sources))]
            start = numbers["bias"] if bias.any() else None
            return lambda at: _affine([at[source] for source in sources], weights, start)
        case ops.Scale(_, source, _, plus):
            factor, constant = numbers["factor"], numbers.get("plus")
            if isinstance(plus, int):
                return lambda at: factor * at[source] + at[plus]
            return lambda at: factor * at[source] + constant
        case ops.Gate(state, by, drive):
            return lambda at: at[by] * at[state] + at[drive]
        case ops.Rotate(real, imag, _, drive_real, drive_imag):

            def rotate(at: Values) -> Any:
                u, at[imag] = _rotated(at[real], at[imag], numbers, at[drive_real], at[drive_imag])
                return u

            return rotate
        case ops.Channels(_, source, real, imag, decay, _, _, _):

            def channels(at: Values) -> Any:
                u, v = (at[value].reshape(-1, *decay.shape) for value in (real, imag))
                x, flat = at[source][..., None], at[real].shape
                u, v = _rotated(u, v, numbers, numbers["gain_real"] * x, numbers["gain_imag"] * x)
                at[real], at[imag] = u.reshape(flat), v.reshape(flat)
                y = (numbers["weights_real"] * u - numbers["weights_imag"] * v).sum(-1)
                return y + numbers["skip"] * at[source]

            return channels
        case ops.Taps(_, oldest, source, past, taps, _):

            def filters(at: Values) -> Any:
                flat = at[past].shape
                line = at[past].reshape(flat[0], taps.shape[1], -1)[..., numbers["inputs"]]
                seen = library.concatenate([line, at[source][:, None]], 1)
                at[oldest], seen = seen[:, 0], seen[:, 1:]
                at[past] = seen[..., numbers["first"]].reshape(flat)
                return (seen * numbers["taps"]).sum(1)

            return filters
        case ops.Product(_, left, right):
            return lambda at: at[left] * at[right]
        case ops.Slice(_, source, start, stop):
            return lambda at: at[source][..., start:stop]
        case ops.Spread(_, source, each, whole):
            return lambda at: library.concatenate([library.repeat(at[source], each)] * whole, -1)
        case ops.Fold(_, source, width):
            return lambda at: at[source].reshape(*at[source].shape[:-1], -1, width).sum(-1)
        case ops.Pointwise(_, source, name):
            function = library.functions[name]
            return lambda at: function(at[source])
        case ops.Reverse(_, source):
            return lambda at: at[source].flip(1)


def _affine(sources: list[Any], weights: list[Any], bias: Any) -> Any:
    total = sources[0] @ weights[0]
    for source, matrix in zip(sources[1:], weights[1:], strict=True):
        total = total + source @ matrix
    return total if bias is None else total + bias


def _rotated(u: Any, v: Any, numbers: Mapping[str, Any], drive_real: Any, drive_imag: Any) -> tuple[Any, Any]:
    """Compute the real and imaginary parts of decay · h + drive, for h = u + iv.

    ``numbers`` contains the real and imaginary parts of the decay.
    """
    a, b = numbers["decay_real"], numbers["decay_imag"]
    return a * u - b * v + drive_real, a * v + b * u + drive_imag
