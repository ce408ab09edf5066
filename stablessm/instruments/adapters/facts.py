"""Facts about a model that decide how it is run: its input size, dtype, time step and mode."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError

_STATES = ("past_key_values", "cache_params", "state")
"""Names under which models return their state. A test determines whether the model can continue from the state."""


def is_transformer(model: Any) -> bool:
    """Return True for a model of the ``transformers`` library, without importing the library."""
    return any(base.__module__.startswith("transformers.") for base in type(model).__mro__) and hasattr(
        model, "get_input_embeddings"
    )


def state_name(model: Any) -> str | None:
    """Return the name of the argument of a model that takes its state; None if there is no such argument."""
    accepted = inspect.signature(model.forward).parameters
    return next((name for name in _STATES if name in accepted), None)


def input_size(model: Any, d_input: int | None) -> int:
    """Return the number of input channels that a model states, or ``d_input``; raise an error if the two disagree."""
    own = own_input_size(model)
    size = own if d_input is None else d_input
    if size is None:
        raise ArgumentError("d_input", "the number of input channels, which the model does not state", None)
    if size < 1 or own not in (None, size):
        raise ArgumentError("d_input", "at least 1" if own is None else f"{own} (the model's)", d_input)
    return size


def own_input_size(model: Any) -> int | None:
    """Return the number of input channels that a model states, or None if it states none."""
    own = getattr(model, "d_input", getattr(model, "input_size", None))
    return own if isinstance(own, int) else None


def by_step(model: Any) -> Any:
    """Return the callable that gives one output per step: ``model.sequence`` if it exists, otherwise the model."""
    run = getattr(model, "sequence", None)
    return run if callable(run) and hasattr(model, "initial_state") else model


def own_step(model: Any) -> float | None:
    """Return the time step of a model: its attribute ``dt``, or the ``dt`` of its submodules in continuous time if all
    of them have the same ``dt``.
    """
    parts = [model] if hasattr(model, "dt") or not isinstance(model, nn.Module) else model.modules()
    found = (getattr(part, "dt", None) for part in parts if getattr(part, "time", None) != "discrete")
    steps = {float(step) for step in found if isinstance(step, Real)}
    return steps.pop() if len(steps) == 1 else None


def takes_time_steps(model: Any) -> bool:
    """Return True for a recurrence in continuous time with ``step(x, state, dt=…)``."""
    if getattr(model, "time", None) != "continuous" or not callable(step := getattr(model, "step", None)):
        return False
    return "dt" in inspect.signature(step).parameters


def weight_of(model: Any) -> Tensor | None:
    """Return the first floating-point parameter or buffer of a module, which determines dtype and device of inputs."""
    tensors = chain(model.parameters(), model.buffers()) if isinstance(model, nn.Module) else ()
    return next((tensor for tensor in tensors if tensor.is_floating_point()), None)


def like(model: Any, x: Tensor) -> Tensor:
    """Return x on the device of a model's weights, if any, and in their dtype unless x has whole numbers."""
    weight = weight_of(model)
    return x if weight is None else x.to(weight.device, weight.dtype if x.is_floating_point() else x.dtype)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Return a context manager in which a model is in evaluation mode; on exit, the mode of each module is restored."""
    modules = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    with torch.backends.cudnn.flags(enabled=False):  # cuDNN cannot differentiate a recurrence in evaluation mode
        try:
            _set_modes(dict.fromkeys(modules, False))
            yield
        finally:
            _set_modes(modules)


def _set_modes(modes: dict[nn.Module, bool]) -> None:
    for module, mode in modes.items():
        if module.training != mode:  # setting an attribute of a module takes a microsecond
            module.training = mode


def name_of(model: Any) -> str:
    """Return the name of a function, or of the class of a model."""
    return getattr(model, "__name__", type(model).__name__)


def said(error: Exception) -> str:
    """Return the type of an error and the first line of its message, as a text."""
    return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0][:160]}"
