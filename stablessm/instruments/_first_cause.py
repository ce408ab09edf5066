"""Search for the first operation that turned finite numbers into NaN or infinity, and for the cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.weak import WeakTensorKeyDictionary

from stablessm.instruments._growth import MATRIX_PRODUCTS, OFTEN, Growth
from stablessm.instruments._nested import tensors_in
from stablessm.scan.dispatch import operation_mode

Cause: TypeAlias = Literal[
    "masked softmax",
    "log",
    "division",
    "domain",
    "exp",
    "infinity",
    "slope",
    "recurrent weight",
    "overflow",
    "index",
    "loss",
]

_LOG = {
    "log",
    "log2",
    "log10",
    "log1p",
    "logit",
    "xlogy",
    "special_xlog1py",
    "log_sigmoid_forward",
    "logdet",
    "_linalg_slogdet",
}
_DIVISION = {
    "div", "true_divide", "reciprocal", "rsqrt", "remainder", "fmod", "mean", "nanmean", "var", "std", "var_mean",
    "addcdiv", "linalg_inv_ex", "linalg_solve_ex", "_linalg_solve_ex", "native_batch_norm", "native_group_norm",
    "native_layer_norm", "nll_loss_forward", "nll_loss2d_forward", "_weight_norm", "_weight_norm_interface",
}  # fmt: skip
_MOMENTS = {"mean", "nanmean", "var", "std", "var_mean", "native_batch_norm", "native_group_norm", "native_layer_norm"}
"""Operations that square or sum their argument, which overflows if the argument is large."""
_DOMAIN = {"sqrt", "asin", "acos", "acosh", "atanh", "erfinv", "pow"}
_POLES = {"atanh", "erfinv", "special_ndtri", "lgamma", "digamma", "polygamma"}
_PRODUCTS = {"pow", "prod", "cumprod"}
"""Operations whose results overflow although their arguments are moderate."""
_STEEP_AT = {"sqrt": 0, "pow": 0, "special_entr": 0, "asin": 1, "acos": 1, "acosh": 1}
"""Modulus of the argument at which the slope of a function is infinite."""
_STEEP_AT_ORIGIN = {"hypot", "atan2", "xlogy"}
"""Functions of two arguments without a slope where both arguments are 0."""
_VECTORS = {"_linalg_eigh": 0, "linalg_eig": 0, "_linalg_svd": 1}
"""Operations whose vectors have no slope if two eigenvalues or singular values are equal, and the index of these
values in the result."""
_EXP = {"exp", "exp2", "expm1", "sinh", "cosh", "special_expm1"}
_MADE = ("empty", "new_empty", "full", "new_full", "fill", "scalar_tensor", "masked_fill", "where", "lift_fresh")
"""Prefixes of the names of operations that write given values, or leave memory uninitialized."""


@final
@dataclass(frozen=True)
class Replay:
    """The result of running a module again while every operation is watched."""

    cause: Cause | None
    """Kind of the first operation with a bad result; None if all values are finite."""
    place: str
    """Name of the module that this operation belongs to."""
    often: frozenset[int]
    """Addresses of the matrices that were multiplied many times."""
    growing: tuple[Tensor, float] | None
    """The weight whose repeated products grow fastest, and the factor by which the values grow per product."""


def first_cause(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    steep: bool = False,
    place: Callable[[], str] = str,
) -> Replay:
    """Run a module again with the same arguments, and return what the operations show about the first bad value.

    With ``steep``, the function searches for the cause of a bad gradient, among the operations that depend on a
    trainable tensor. If all values of these operations are finite, the cause is ``slope`` if a function has an infinite
    slope, or ``overflow`` if values are so large that products with them overflow. ``place`` returns the name of the
    module that is running.
    """
    watch = _Watch(steep, place)
    try:
        buffers = {
            name: buffer.clone() for name, buffer in module.named_buffers()
        }  # a forward pass may write into them
        with torch.no_grad(), torch.random.fork_rng(), watch:
            functional_call(module, buffers, args, dict(kwargs))
    except Exception:  # the operations before the exception count
        pass
    often = frozenset(address for address, times in watch.products.items() if times >= OFTEN)
    cause, at = watch.cause, watch.at
    if not watch.done:
        cause, at = ("slope", watch.steep_at) if steep and watch.steep else (watch.fell, watch.fell_at)
        cause = cause or ("overflow" if steep and watch.large else None)
    return Replay(cause, at, often, watch.growth.fastest())


def unstable_weight(
    module: nn.Module, *, often: frozenset[int] = frozenset(), repeated: bool = False
) -> tuple[str, float] | None:
    """Return the name and the spectral radius of an unstable recurrent matrix of a module.

    This is the recurrent matrix with the largest spectral radius; None if all spectral radii are at most 1. A square
    matrix counts as recurrent if its name begins with ``weight_hh``, if its memory address is in ``often`` (matrices
    that were multiplied many times), or if the module ran repeatedly in one pass (``repeated``).
    """
    found = {}
    for name, weight in module.named_parameters(recurse=False):
        recurrent = repeated or name.startswith("weight_hh") or weight.data_ptr() in often
        if recurrent and weight.dim() == 2 and weight.shape[0] == weight.shape[1]:
            found[name] = float(torch.linalg.eigvals(weight.detach().double().nan_to_num()).abs().max())
    worst = max(found, key=lambda name: found[name], default=None)
    return None if worst is None or found[worst] <= 1 else (worst, found[worst])


class _Watch(operation_mode()):  # type: ignore[misc]
    """A PyTorch dispatch mode that checks the result of every operation until a NaN or infinity occurs."""

    def __init__(self, gradient: bool, place: Callable[[], str]) -> None:
        super().__init__()
        self.gradient, self.place = gradient, place
        self.done = self.steep = self.large = False
        self.cause: Cause | None = None
        self.fell: Cause | None = None  # the operation that made the first -∞, which may be intended
        self.at = self.fell_at = self.steep_at = ""
        self.products: Counter[int] = Counter()
        self.growth = Growth()
        self._trained = WeakTensorKeyDictionary()

    def operation(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a PyTorch operation and, if its result contains the first NaN or infinity, store the cause."""
        name = name.removesuffix("_")
        if self.done:
            return function(*args, **kwargs)
        before = [tensor for _, tensor in tensors_in((args, kwargs), "")]
        smallest, negative = [_zeros(value) for value in args], list(map(_has_negative, args))
        if name in MATRIX_PRODUCTS:
            self.products.update(tensor.data_ptr() for tensor in before if tensor.dim() == 2)
        counts = not self.gradient or any(tensor.requires_grad or tensor in self._trained for tensor in before)
        if counts and not self.steep and _is_steep(name, args):
            self.steep, self.steep_at = True, self.place()
        result = function(*args, **kwargs)
        if counts and not self.steep and name in _VECTORS and _has_equal(result[_VECTORS[name]]):
            self.steep, self.steep_at = True, self.place()
        made = [tensor for _, tensor in tensors_in(result, "")]
        self.growth.add(name, before, made)
        if self.gradient and counts and name != "detach":
            self._trained.update((tensor, True) for tensor in made)
        if counts and not name.startswith(_MADE):
            self._check(name, args, before, made, smallest, negative)
        return result

    def _check(
        self, name: str, args: Any, before: list[Tensor], made: list[Tensor], smallest: list[bool], negative: list[bool]
    ) -> None:
        if any(bool((tensor.isnan() | (tensor.abs() == math.inf) & ~_negative(tensor)).any()) for tensor in made):
            self.done, self.at = True, self.place()
            numbers = [torch.tensor(float(value)) for value in args if isinstance(value, int | float)]
            nan = any(bool(tensor.isnan().any()) for tensor in made)
            self.cause = self._named(name, before + numbers, smallest, nan)
            if name == "native_batch_norm" and len(negative) > 4 and negative[4]:  # the running variance
                self.cause = "domain"
            if name == "pow" and not nan:
                if smallest[0] and negative[1]:
                    self.cause = "division"
                elif not isinstance(args[0], Tensor):
                    self.cause = "exp"
            if self.cause is not None and self.cause == self.fell:
                self.at = self.fell_at
        elif self.fell is None and _falls(made) and (name in _LOG | _DIVISION or not _falls(before)):
            kinds: dict[Cause, set[str]] = {"log": _LOG, "division": _DIVISION, "domain": _POLES}
            given = any(bool(torch.as_tensor(it).isinf().any()) for it in args if isinstance(it, Tensor | float))
            other: Cause = "infinity" if given else "overflow"
            self.fell = next((kind for kind, names in kinds.items() if name in names), other)
            self.fell_at = self.place()
        self.large = self.large or (self.gradient and any(is_large(tensor, 1e4) for tensor in before + made))

    def _named(self, name: str, before: list[Tensor], zeros: list[bool], nan: bool) -> Cause | None:
        if nan and "attention" in name and any(map(is_large, before[:2])):  # products of queries and keys
            return "overflow"
        if nan and ("softmax" in name or "attention" in name):
            return "masked softmax"
        if name in _LOG:
            return "log"
        if name in _MOMENTS and any(map(is_large, before)):
            return "overflow"
        if name in _DIVISION and (any(zeros) or nan or not any(map(is_large, before))):
            return "division"
        if self.fell is not None and _falls(before):
            return self.fell
        if name in _EXP:
            return "exp"
        if name in _POLES or (nan and name in _DOMAIN):
            return "domain"
        if nan and _falls(before):
            return "infinity"
        finite = not nan and all(bool(tensor.isfinite().all()) for tensor in before)
        return "overflow" if finite or name in _PRODUCTS or any(map(is_large, before)) else None


def _negative(tensor: Tensor) -> Tensor:
    """Return a mask of the entries of a tensor that are -∞."""
    return torch.isneginf(tensor) if tensor.is_floating_point() else torch.zeros_like(tensor, dtype=torch.bool)


def _falls(tensors: list[Tensor]) -> bool:
    return any(bool(_negative(tensor).any()) for tensor in tensors)


def is_large(tensor: Tensor, than: float | None = None) -> bool:
    """Return True if a tensor contains finite numbers with a modulus above ``than``.

    By default, this limit is so large that products of numbers above the limit can overflow.
    """
    finite = tensor.detach().abs()
    finite = finite[finite.isfinite()]
    limit = torch.finfo(tensor.dtype).max ** 0.5 / 16 if than is None else than
    return finite.numel() > 0 and bool(finite.max() > limit)


def _is_steep(name: str, args: tuple[Any, ...]) -> bool:
    """Return True if the slope of a function is infinite at one of its arguments."""
    if name in _STEEP_AT_ORIGIN:
        return bool(((args[0] == 0) & (args[1] == 0)).any())
    if name not in _STEEP_AT or not isinstance(args[0], Tensor):
        return False
    steep = args[0].abs() == _STEEP_AT[name]
    if name == "pow":
        exponent = torch.as_tensor(args[1], device=steep.device)
        steep = steep & (exponent > 0) & (exponent < 1)
    return bool(steep.any())


def _has_equal(values: Tensor) -> bool:
    """Return True if two values along the last axis are equal."""
    return int((values[..., None] == values[..., None, :]).sum()) > values.numel()


def _has_negative(value: Any) -> bool:
    if isinstance(value, Tensor) and not value.is_complex():
        return bool((value < 0).any())
    return isinstance(value, int | float) and value < 0


def _zeros(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool((value == 0).any())
    return isinstance(value, int | float) and value == 0
