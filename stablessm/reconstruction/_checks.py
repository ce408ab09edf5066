"""Checks of the arguments of the reconstruction functions. Most checks return the argument in double precision."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from stablessm import _tensors
from stablessm._errors import ArgumentError

Array: TypeAlias = "Tensor | np.ndarray"

LARGEST = 1e290
"""Largest allowed |λ|; beyond about 1e300 intermediate products overflow."""


def finite(argument: str, value: object) -> Tensor:
    """Convert an array to a tensor; raise an ArgumentError unless all its entries are finite numbers."""
    tensor = _tensor(argument, value)
    if tensor.dtype == torch.bool or tensor.is_meta:
        raise ArgumentError(argument, "numbers", "flags" if not tensor.is_meta else "a tensor on the meta device")
    if not bool(tensor.isfinite().all()):
        raise ArgumentError(argument, "finite numbers", "NaN or infinity")
    return tensor


def _tensor(argument: str, value: object) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if not hasattr(value, "__array__"):
        raise ArgumentError(argument, "a tensor or an array", type(value).__name__)
    array = value.__array__()
    try:
        return _tensors.as_tensor(array)
    except TypeError as error:  # objects, strings, longdouble
        raise ArgumentError(argument, "numbers in double precision or less", f"dtype {array.dtype}") from error


def spectrum(eigenvalues: Array, *, channels: bool = True) -> Tensor:
    """Check eigenvalues and return them in complex128.

    The shape must be (N,) or, if ``channels`` is true, (N,) or (M, R) for M channels of R states.
    """
    tensor = finite("eigenvalues", eigenvalues)
    if tensor.dim() not in (1, 1 + channels) or not tensor.numel():
        expected = "shape (N,), or (M, R) for M channels" if channels else "shape (N,)"
        raise ArgumentError("eigenvalues", expected, f"shape {tuple(tensor.shape)}")
    lam = tensor.to(torch.complex128)
    if float(lam.abs().max()) > LARGEST:
        raise ArgumentError("eigenvalues", f"|λ| of at most {LARGEST:g}", f"{float(lam.abs().max()):g}")
    return lam


def states(argument: str, state: Array, shape: tuple[int, ...]) -> Tensor:
    """Check that states have the shape (…, *shape), and return them in complex128.

    ``argument`` is the name of the argument in error messages.
    """
    tensor = finite(argument, state)
    if tuple(tensor.shape[tensor.dim() - len(shape) :]) != shape or tensor.dim() < len(shape):
        wanted = ", ".join(map(str, shape))
        raise ArgumentError(argument, f"shape (…, {wanted}), as eigenvalues", f"shape {tuple(tensor.shape)}")
    return tensor.to(torch.complex128)


def real_dtype(state: Array) -> torch.dtype:
    """Return the real dtype in which to decode a state: float32 for single or half precision, otherwise float64."""
    dtype = _tensor("state", state).dtype
    narrow = (torch.complex64, torch.float32, torch.float16, torch.bfloat16, torch.complex32)
    return torch.float32 if dtype in narrow else torch.float64


def resolution(eigenvalues: Array) -> float:
    """Return the relative precision of eigenvalues: the machine epsilon of float32 or float64, depending on their
    dtype.
    """
    return torch.finfo(real_dtype(eigenvalues)).eps


def start(argument: str, initial: Array, state: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Check initial states and return them, broadcast to the shape of the states ``state``.

    ``argument`` is the name of the argument in error messages, and ``shape`` the shape of a single state.
    """
    before = states(argument, initial, shape).to(state.device)
    try:
        return before.expand(state.shape)
    except RuntimeError as error:
        expected = f"shape {tuple(state.shape)} (as state), or one for all"
        raise ArgumentError(argument, expected, f"shape {tuple(before.shape)}") from error


def basis_functions(basis: Array, channels: int | None) -> Tensor:
    """Check a basis of inputs and return it in float64: shape (L, P), or (L, M, P) for M channels."""
    tensor = finite("basis", basis)
    expected = "shape (L, P)" if channels is None else f"shape (L, {channels}, P), as rows of eigenvalues"
    right = tensor.dim() == (2 if channels is None else 3) and (channels is None or tensor.shape[1] == channels)
    if not right or not tensor.numel():
        raise ArgumentError("basis", expected, f"shape {tuple(tensor.shape)}")
    if tensor.is_complex():
        raise ArgumentError("basis", "real functions (cosines and sines for a Fourier basis)", tensor.dtype)
    return tensor.to(torch.float64)
