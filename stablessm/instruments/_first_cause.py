"""Finds the first operation that turned finite numbers into NaN or infinity, and names the kind of error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from stablessm.instruments._nested import tensors_in
from stablessm.scan.dispatch import operation_mode

Cause: TypeAlias = Literal["masked softmax", "log", "division", "domain", "exp", "recurrent weight", "overflow"]

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
_EXP = {"exp", "exp2", "expm1", "sinh", "cosh", "special_expm1"}
_MADE = ("empty", "new_empty", "full", "new_full", "fill", "scalar_tensor", "masked_fill", "where", "lift_fresh")
"""Beginnings of the names of operations that write what they are told, or nothing."""


def first_cause(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Cause | None:
    """Run a module once more and return why its output is not finite; None if this time it is."""
    watch = _Watch()
    try:
        with torch.no_grad(), _unharmed(module), watch:
            module(*args, **kwargs)
    except Exception:  # whatever it raised; what was seen before that counts
        pass
    return watch.cause if watch.done else watch.fell


def unstable_weight(module: nn.Module) -> tuple[str, float] | None:
    """Return the square ``weight_hh`` of a module with the largest spectral radius above one, and the radius."""
    found = {}
    for name, weight in module.named_parameters(recurse=False):
        if name.startswith("weight_hh") and weight.dim() == 2 and weight.shape[0] == weight.shape[1]:
            found[name] = float(torch.linalg.eigvals(weight.detach().double().nan_to_num()).abs().max())
    worst = max(found, key=lambda name: found[name], default=None)
    return None if worst is None or found[worst] <= 1 else (worst, found[worst])


@contextmanager
def _unharmed(module: nn.Module) -> Iterator[None]:
    """Restore buffers (running means) and the random state at the end."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])


class _Watch(operation_mode()):  # type: ignore[misc]
    """Checks the result of every operation until one is bad."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False
        self.cause: Cause | None = None
        self.fell: Cause | None = None  # what made a -∞, which may be meant to

    def operation(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run an operation and look at its arguments and results."""
        before = [tensor for _, tensor in tensors_in((args, kwargs), "")] if not self.done else []
        smallest = [_zeros(value) for value in args] if not self.done else []
        result = function(*args, **kwargs)
        name = name.removesuffix("_")
        if self.done or name.startswith(_MADE):
            return result
        made = [tensor for _, tensor in tensors_in(result, "")]
        if any(bool((tensor.isnan() | (tensor.abs() == math.inf) & ~_negative(tensor)).any()) for tensor in made):
            self.done = True
            numbers = [torch.tensor(value) for value in args if isinstance(value, float)]
            self.cause = self._named(
                name, before + numbers, smallest, any(bool(tensor.isnan().any()) for tensor in made)
            )
        elif self.fell is None and name in _LOG | _DIVISION and any(bool(_negative(t).any()) for t in made):
            self.fell = "log" if name in _LOG else "division"
        return result

    def _named(self, name: str, before: list[Tensor], zeros: list[bool], nan: bool) -> Cause | None:
        if nan and ("softmax" in name or "attention" in name):
            return "masked softmax"
        if name in _LOG:
            return "log"
        if name in _DIVISION and (any(zeros) or nan):
            return "division"
        if self.fell is not None and any(bool(_negative(tensor).any()) for tensor in before):
            return self.fell
        if name in _EXP:
            return "exp"
        if name in _POLES or (nan and name in _DOMAIN):
            return "domain"
        return "overflow" if name in _PRODUCTS or any(map(_large, before)) else None


def _negative(tensor: Tensor) -> Tensor:
    """Return where a tensor is -∞."""
    return torch.isneginf(tensor) if tensor.is_floating_point() else torch.zeros_like(tensor, dtype=torch.bool)


def _large(tensor: Tensor) -> bool:
    """Return whether a tensor holds finite numbers whose products can overflow."""
    finite = tensor.abs()[tensor.isfinite()]
    return finite.numel() > 0 and bool(finite.max() > torch.finfo(tensor.dtype).max ** 0.5 / 16)


def _zeros(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool((value == 0).any())
    return isinstance(value, int | float) and value == 0
