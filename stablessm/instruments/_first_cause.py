"""Search for the first operation that turned finite numbers into NaN or infinity, and for the cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from stablessm.instruments._nested import tensors_in
from stablessm.scan.dispatch import operation_mode

Cause: TypeAlias = Literal[
    "masked softmax", "log", "division", "domain", "exp", "infinity", "slope", "recurrent weight", "overflow"
]

OFTEN = 8
"""A square matrix that takes part in at least this many products of one pass counts as a recurrent weight."""

_LOG = {"log", "log2", "log10", "log1p", "logit", "xlogy", "special_xlog1py", "log_sigmoid_forward"}
_DIVISION = {
    "div", "true_divide", "reciprocal", "rsqrt", "remainder", "fmod", "mean", "nanmean", "var", "std", "var_mean",
    "addcdiv", "linalg_inv_ex", "linalg_solve_ex", "native_batch_norm", "native_group_norm", "native_layer_norm",
    "nll_loss_forward", "nll_loss2d_forward",
}  # fmt: skip
_DOMAIN = {"sqrt", "asin", "acos", "acosh", "atanh", "erfinv", "pow"}
_POLES = {"atanh", "erfinv", "lgamma", "digamma", "polygamma"}
_PRODUCTS = {"pow", "prod", "cumprod"}
"""Operations whose results overflow although their arguments are moderate."""
_MATRIX_PRODUCTS = {"mm", "bmm", "addmm", "mv", "addmv", "matmul", "linear"}
_STEEP_AT = {"sqrt": 0, "pow": 0, "asin": 1, "acos": 1, "acosh": 1}
"""Modulus of the argument at which the slope of a function is infinite."""
_EXP = {"exp", "exp2", "expm1", "sinh", "cosh", "special_expm1"}
_MADE = ("empty", "new_empty", "full", "new_full", "fill", "scalar_tensor", "masked_fill", "where", "lift_fresh")
"""Prefixes of the names of operations that write given values, or leave memory uninitialized."""


def first_cause(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, steep: bool = False
) -> tuple[Cause | None, frozenset[int]]:
    """Run a module again; return the cause of the first bad value, and the matrices that were multiplied many times.

    The cause is None if all values are finite. With ``steep`` it is ``slope`` if all values are finite but a function
    has an infinite slope, which shows only in the gradient. The matrices are given by their addresses.
    """
    watch = _Watch()
    try:
        with torch.no_grad(), _unharmed(module), watch:
            module(*args, **kwargs)
    except Exception:  # the operations before the exception count
        pass
    often = frozenset(address for address, times in watch.products.items() if times >= OFTEN)
    hidden: Cause | None = "slope" if steep and watch.steep else watch.fell
    return watch.cause if watch.done else hidden, often


def unstable_weight(
    module: nn.Module, *, often: frozenset[int] = frozenset(), repeated: bool = False
) -> tuple[str, float] | None:
    """Return the name and the spectral radius of the recurrent matrix with the largest spectral radius; None unless
    above 1.

    A square matrix is recurrent if its name begins with ``weight_hh``, if it is among ``often`` (addresses), or if the
    module ran repeatedly in one pass.
    """
    found = {}
    for name, weight in module.named_parameters(recurse=False):
        recurrent = repeated or name.startswith("weight_hh") or weight.data_ptr() in often
        if recurrent and weight.dim() == 2 and weight.shape[0] == weight.shape[1]:
            found[name] = float(torch.linalg.eigvals(weight.detach().double().nan_to_num()).abs().max())
    worst = max(found, key=lambda name: found[name], default=None)
    return None if worst is None or found[worst] <= 1 else (worst, found[worst])


@contextmanager
def _unharmed(module: nn.Module) -> Iterator[None]:
    """Return a context that, at its end, restores the buffers of a module (such as running means) and the
    random state.
    """
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])


class _Watch(operation_mode()):  # type: ignore[misc]
    """A PyTorch dispatch mode that checks the result of every operation until a NaN or infinity occurs."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False
        self.cause: Cause | None = None
        self.fell: Cause | None = None  # the operation that made the first -∞, which may be intended
        self.steep = False
        self.products: Counter[int] = Counter()

    def operation(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a PyTorch operation and, if its result contains the first NaN or infinity, store the cause."""
        name = name.removesuffix("_")
        before = [tensor for _, tensor in tensors_in((args, kwargs), "")] if not self.done else []
        smallest = [_zeros(value) for value in args] if not self.done else []
        if not self.done and name in _MATRIX_PRODUCTS:
            self.products.update(tensor.data_ptr() for tensor in before if tensor.dim() == 2)
        self.steep = self.steep or _is_steep(name, args)
        result = function(*args, **kwargs)
        if self.done or name.startswith(_MADE):
            return result
        made = [tensor for _, tensor in tensors_in(result, "")]
        if any(bool((tensor.isnan() | (tensor.abs() == math.inf) & ~_negative(tensor)).any()) for tensor in made):
            self.done = True
            numbers = [torch.tensor(value) for value in args if isinstance(value, float)]
            nan = any(bool(tensor.isnan().any()) for tensor in made)
            self.cause = self._named(name, before + numbers, smallest, nan)
            if name == "pow" and smallest[0] and not nan and _has_negative(args[1]):
                self.cause = "division"
        elif self.fell is None and _falls(made) and (name in _LOG | _DIVISION or not _falls(before)):
            self.fell = "log" if name in _LOG else "division" if name in _DIVISION else "overflow"
        return result

    def _named(self, name: str, before: list[Tensor], zeros: list[bool], nan: bool) -> Cause | None:
        if nan and ("softmax" in name or "attention" in name):
            return "masked softmax"
        if name in _LOG:
            return "log"
        if name in _DIVISION and (any(zeros) or nan):
            return "division"
        if self.fell is not None and _falls(before):
            return self.fell
        if name in _EXP:
            return "exp"
        if name in _POLES or (nan and name in _DOMAIN):
            return "domain"
        if nan and _falls(before):
            return "infinity"
        return "overflow" if name in _PRODUCTS or any(map(_large, before)) else None


def _negative(tensor: Tensor) -> Tensor:
    """Return a mask of the entries of a tensor that are -∞."""
    return torch.isneginf(tensor) if tensor.is_floating_point() else torch.zeros_like(tensor, dtype=torch.bool)


def _falls(tensors: list[Tensor]) -> bool:
    return any(bool(_negative(tensor).any()) for tensor in tensors)


def _large(tensor: Tensor) -> bool:
    """Return True if a tensor contains finite numbers so large that their products can overflow."""
    finite = tensor.abs()[tensor.isfinite()]
    return finite.numel() > 0 and bool(finite.max() > torch.finfo(tensor.dtype).max ** 0.5 / 16)


def _is_steep(name: str, args: tuple[Any, ...]) -> bool:
    """Return True if the slope of a function is infinite at one of its arguments."""
    if name not in _STEEP_AT or not isinstance(args[0], Tensor):
        return False
    root = name != "pow" or (isinstance(args[1], float) and 0 < args[1] < 1)
    return root and bool((args[0].abs() == _STEEP_AT[name]).any())


def _has_negative(value: Any) -> bool:
    return bool((torch.as_tensor(value) < 0).any())


def _zeros(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool((value == 0).any())
    return isinstance(value, int | float) and value == 0
