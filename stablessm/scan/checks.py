"""Checks of a scan's arguments before a backend is called, so that every backend raises the same errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError, quoted
from stablessm._typing import Lengths
from stablessm.scan.protocol import DiagonalSSM, Recurrence

LOW_PRECISION = (torch.float16, torch.bfloat16)
REAL_DTYPE = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
"""The real dtype of each dtype that computations use; reading ``tensor.real.dtype`` would take four operations."""
DTYPES = (*LOW_PRECISION, *REAL_DTYPE)
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_WHOLE = (torch.int8, torch.int16, torch.int32, *_UNSIGNED)
"""Dtypes of lengths that are converted to int64."""


def autocast_enabled(device: str) -> bool:
    """Return True if autocast is enabled for a type of device, such as "cuda"; False for "meta", which has no
    autocast.
    """
    return device != "meta" and torch.is_autocast_enabled(device)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context manager that turns autocast off, so that matrix products keep full precision."""
    return torch.autocast(device, enabled=False) if autocast_enabled(device) else nullcontext()


def check_tensor(name: str, value: object, rank: int | None = None, letters: str = "(batch, time, channel)") -> None:
    """Raise an error unless a value is a dense tensor and, if ``rank`` is given, has ``rank`` dimensions.

    The error states the name of the value, ``name``, and the names of the expected dimensions, ``letters``.
    """
    if not isinstance(value, Tensor):
        raise ArgumentError(name, "a tensor", type(value).__name__)
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        got = "a nested tensor" if value.is_nested else value.layout
        raise ArgumentError(name, "a dense tensor (x.to_dense(), x.dequantize(), x.to_padded_tensor(0))", got)
    if rank is not None and value.dim() != rank:
        raise ArgumentError(name, f"{rank} dimensions {letters}", f"shape {tuple(value.shape)}")


def check_dtype(name: str, value: Tensor, parameters: Iterable[Tensor | None]) -> None:
    """Raise an error unless a tensor has the dtype of one of the parameters.

    Under autocast, the dtypes of the tensor and the parameters may differ if none of these dtypes is float64.
    """
    dtypes = {parameter.dtype for parameter in parameters if parameter is not None and parameter.is_floating_point()}
    if value.dtype in dtypes or not dtypes:
        return
    if autocast_enabled(value.device.type) and torch.float64 not in (value.dtype, *dtypes):
        return
    own = min(dtypes, key=lambda dtype: dtype.itemsize)
    remedy = f"convert {name} with {name}.to({own}), or the module with .to({value.dtype})"
    raise ArgumentError(name, f"dtype {own}, as the parameters have ({remedy})", value.dtype)


def check_signal(
    name: str, x: Tensor, letters: Sequence[str], channels: int, like: Tensor, projection: Tensor | None = None
) -> None:
    """Raise an error unless x is a dense real tensor with ``channels`` channels, on the device of ``like``.

    ``letters`` are the names of the dimensions of x; the channels are the last dimension. If ``projection`` (a matrix
    that multiplies x) is given, x must have the dtype of the matrix.
    """
    check_tensor(name, x, len(letters), f"({', '.join(letters)})")
    if x.shape[-1] != channels:
        raise ArgumentError(name, f"{channels} channels ({letters[-1]})", f"{x.shape[-1]}")
    if not x.is_floating_point() or x.dtype.itemsize < 2:
        raise ArgumentError(name, "a real floating point dtype (not float8)", x.dtype)
    check_device(name, x, like)
    check_dtype(name, x, [projection])


def check_state(state: Tensor, shape: tuple[int, ...], like: Tensor, *, complex: bool = False) -> None:
    """Raise an error unless a state is a dense tensor of the given shape on the device of ``like``.

    The state must be complex if ``complex`` is True, otherwise real.
    """
    check_tensor("state", state)
    if state.shape != shape:
        raise ArgumentError("state", f"shape {shape}", f"shape {tuple(state.shape)}")
    if not (state.is_complex() if complex else state.is_floating_point()):
        kind = "complex" if complex else "real floating point"
        raise ArgumentError("state", f"a {kind} dtype, as forward and step return it", state.dtype)
    check_device("state", state, like)


def check_pair(state: Any) -> tuple[Any, Any]:
    """Return the two parts of a state; raise an error unless the state is a tuple or list of two parts."""
    if state is None:
        return None, None
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise ArgumentError("state", "the pair that forward or step returned", type(state).__name__)
    return state[0], state[1]


def check_device(name: str, value: Tensor, like: Tensor) -> None:
    """Raise an error unless a tensor is on the device of ``like``, a weight of the layer."""
    if value.device != like.device:
        raise ArgumentError(name, f"a tensor on {like.device} (as the weights)", value.device)


def check_same_device(like: str, first: Tensor, **tensors: Tensor | None) -> None:
    """Raise an error unless all tensors are on the device of the tensor ``first``, which errors call ``like``."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != first.device:
            raise ArgumentError(name, f"a tensor on {first.device} (as {like})", tensor.device)


def check_shapes(shapes: Mapping[str, Sequence[int]], tensors: Mapping[str, Tensor | None], match: str = "") -> None:
    """Raise an error unless each tensor that is not None has the shape that ``shapes`` states; ``match`` says why."""
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor is not None and tensor.shape != shape:
            raise ArgumentError(name, f"shape {tuple(shape)}{match}", f"shape {tuple(tensor.shape)}")


def check_kinds(like: str, **tensors: Tensor | None) -> None:
    """Raise an error unless all tensors are floating point or complex, and on the device of the first tensor.

    ``like`` is the name of the first tensor, for the error message. Tensors that are None are skipped.
    """
    device = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        check_tensor(name, tensor)
        if tensor.dtype not in DTYPES:
            raise ArgumentError(name, "a floating point or complex dtype", tensor.dtype)
        device = device or tensor.device
        if tensor.device != device:
            raise ArgumentError(name, f"a tensor on {device} (as {like})", tensor.device)


def check_arguments(decay: Tensor, drive: Tensor, initial: Tensor | None, reset: Tensor | None) -> None:
    """Raise an error unless the ranks, sizes, dtypes and devices of a scan's arguments agree."""
    batch, steps, channels = _check_recurrence("drive", decay, drive, initial)
    allowed = {1: (channels,), 2: (steps, channels), 3: (batch, steps, channels)}
    if decay.shape != allowed.get(decay.dim()):
        expected = " or ".join(str(shape) for shape in allowed.values())
        raise ArgumentError("decay", f"shape {expected} to match drive", f"shape {tuple(decay.shape)}")
    check_reset(reset, batch, steps)
    check_same_device("drive", drive, reset=reset)


def check_raw_recurrence(recurrence: Recurrence, **signals: Tensor) -> None:
    """Raise an error unless the arguments of the operator ``stablessm::scan`` are valid.

    All ``signals`` (drive, gradient, states) must have the same shape (B, T, C).
    """
    decay, initial, reset, _ = recurrence
    (name, first), *others = signals.items()
    batch, steps, channels = _check_recurrence(name, decay, first, initial)
    if (
        decay.dim() != 3
        or decay.shape[0] not in (1, batch)
        or decay.shape[1:] not in ((1, channels), (steps, channels))
    ):
        expected = f"shape ({batch} or 1, {steps} or 1, {channels})"
        raise ArgumentError("decay", expected, f"shape {tuple(decay.shape)}")
    for other, tensor in others:
        check_like(other, tensor, tuple(first.shape), first.dtype, first.device)
    _check_raw_reset(reset, first)


def check_raw_layer(layer: DiagonalSSM) -> None:
    """Raise an error unless the arguments of the operator ``stablessm::ssm_scan`` are valid."""
    if check_layer(layer):
        raise ArgumentError("decay", f"shape ({layer.x.shape[2]}, N)", f"shape {tuple(layer.decay.shape)}")
    dtype = layer.decay.dtype
    if dtype not in REAL_DTYPE:
        raise ArgumentError("decay", "float32 or better", dtype)
    expected = {"B": dtype, "C": dtype, "initial": dtype, "D": REAL_DTYPE[dtype]}
    for name, kind in expected.items():
        tensor = getattr(layer, name)
        if tensor is not None and tensor.dtype != kind:
            raise ArgumentError(name, f"dtype {kind}, as decay", tensor.dtype)
    _check_raw_reset(layer.reset, layer.x)
    if layer.lengths is not None:
        check_tensor("lengths", layer.lengths)
        if layer.lengths.dtype != torch.int64 or layer.lengths.shape != layer.x.shape[:1]:
            raise ArgumentError("lengths", f"int64, shape {tuple(layer.x.shape[:1])}", layer.lengths)
        check_same_device("x", layer.x, lengths=layer.lengths)


def check_layer(layer: DiagonalSSM) -> bool:
    """Raise an error unless the tensors of a layer fit together; return True if all channels share N states.

    If all channels share N states (as in an LRU), every state reads all inputs, and B and C are matrices. The result is
    False if every channel has N states of its own (as in S4D). Resets and lengths are not checked here.
    """
    x, decay, C, tensors = layer.x, layer.decay, layer.C, layer._asdict()
    check_tensor("x", x, 3)
    for name in ("decay", "B", "C"):
        check_tensor(name, tensors[name])
    check_kinds("x", **{name: tensors[name] for name in DiagonalSSM._fields[:6]})
    for name in ("x", "D"):
        if tensors[name] is not None and tensors[name].is_complex():
            raise ArgumentError(name, "a real dtype", tensors[name].dtype)
    batch, _, channels = x.shape
    if decay.dim() not in (1, 2) or (decay.dim() == 2 and decay.shape[0] != channels):
        raise ArgumentError("decay", f"shape ({channels}, N) or (N,) to match x", f"shape {tuple(decay.shape)}")
    dense, states = decay.dim() == 1, decay.shape[-1]
    shapes: dict[str, tuple[int, ...]]
    if dense:
        outputs = C.shape[0] if C.dim() else 0
        shapes = {"B": (states, channels), "C": (outputs, states), "D": (outputs, channels), "initial": (batch, states)}
    else:
        shapes = {"B": decay.shape, "C": decay.shape, "D": (channels,), "initial": (batch, *decay.shape)}
    check_shapes(shapes, tensors)
    return dense


def check_like(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Raise an error unless a tensor is dense and has a given shape, dtype and device."""
    check_tensor(name, tensor)
    if (tensor.shape, tensor.dtype, tensor.device) != (shape, dtype, device):
        got = f"shape {tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device}"
        raise ArgumentError(name, f"shape {tuple(shape)}, {dtype}, on {device}", got)


def _check_recurrence(name: str, decay: Tensor, drive: Tensor, initial: Tensor | None) -> torch.Size:
    check_tensor(name, drive, 3)
    check_tensor("decay", decay)
    check_kinds(name, **{name: drive, "decay": decay, "initial": initial})
    for other, tensor in (("decay", decay), ("initial", initial)):
        if tensor is not None and tensor.is_complex() and not drive.is_complex():
            expected = f"a real dtype, because the states have {name}'s dtype {drive.dtype}"
            raise ArgumentError(other, expected, tensor.dtype)
    batch, _, channels = drive.shape
    if initial is not None and initial.shape != (batch, channels):
        raise ArgumentError("initial", f"shape {(batch, channels)} (batch, channel)", f"shape {tuple(initial.shape)}")
    return drive.shape


def _check_raw_reset(reset: Tensor | None, signal: Tensor) -> None:
    if reset is not None:
        check_like("reset", reset, tuple(signal.shape[:2]), torch.bool, signal.device)


def check_reset(reset: Tensor | None, batch: int, steps: int) -> None:
    """Raise an error unless ``reset`` is None or a bool tensor of shape (T,) or (B, T)."""
    if reset is None:
        return
    check_tensor("reset", reset)
    if reset.dtype != torch.bool:
        raise ArgumentError("reset", "dtype torch.bool", reset.dtype)
    if reset.shape != {1: (steps,), 2: (batch, steps)}.get(reset.dim()):
        raise ArgumentError("reset", f"shape {(steps,)} or {(batch, steps)}", f"shape {tuple(reset.shape)}")


def check_flags(**flags: bool) -> None:
    """Raise an error unless every flag is True or False.

    Other values are not accepted, because Python would treat even the text "False" as true.
    """
    for name, flag in flags.items():
        if flag is not True and flag is not False:
            raise ArgumentError(name, "True or False", quoted(flag))


def as_lengths(lengths: Lengths, device: torch.device) -> Tensor | None:
    """Return lengths as a tensor; a list, tuple or array of whole numbers becomes a tensor on ``device``. Whole numbers
    become int64, because a shorter dtype would overflow in index arithmetic.

    >>> as_lengths([3, 1], torch.device("cpu"))
    tensor([3, 1])
    """
    if lengths is None:
        return None
    if isinstance(lengths, Tensor):
        return lengths.long() if lengths.dtype in _WHOLE else lengths
    if not isinstance(lengths, list | tuple) and getattr(lengths, "ndim", 0) != 1:
        raise ArgumentError("lengths", "a tensor or a list of whole numbers", type(lengths).__name__)
    numbers = [whole_number("lengths", number, 0) for number in lengths]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def checked_lengths(lengths: Lengths, x: Tensor) -> Tensor | None:
    """Return the lengths of the B sequences in x as int64; raise an error unless all lengths are whole numbers from 0
    to T.
    """
    if lengths is None:
        return None
    lengths = as_lengths(lengths, x.device)
    assert lengths is not None
    batch, steps = x.shape[:2]
    check_tensor("lengths", lengths)
    if lengths.dtype != torch.int64:
        raise ArgumentError("lengths", "an integer dtype", lengths.dtype)
    if lengths.shape != (batch,):
        raise ArgumentError("lengths", f"shape {(batch,)} (batch,)", f"shape {tuple(lengths.shape)}")
    low, high = extremes(lengths) or (0, 0)
    if low < 0 or high > steps:
        raise ArgumentError("lengths", f"values from 0 to {steps} (time)", f"{low if low < 0 else high}")
    return lengths


def extremes(values: Tensor) -> tuple[int, int] | None:
    """Return the smallest and the largest entry of an integer tensor, or None.

    The result is None if there are no entries, or if their values are unknown, as inside ``torch.compile`` and
    ``torch.vmap``.
    """
    if torch.compiler.is_compiling() or not values.numel():
        return None
    try:
        return int(values.min()), int(values.max())
    except RuntimeError:  # under torch.vmap
        return None


def check_all_finite(**tensors: Tensor | None) -> None:
    """Raise an error if a tensor contains NaN or infinity; the error states the first of these numbers
    and its index.
    """
    for name, tensor in tensors.items():
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            where = (~torch.isfinite(tensor)).nonzero()[0].tolist()
            raise ArgumentError(name, "finite values", f"{tensor[tuple(where)].item()} at index {tuple(where)}")
