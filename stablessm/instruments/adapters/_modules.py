"""Adapters for PyTorch modules: layers and models of this library, and the recurrences and cells of ``torch.nn``."""

from __future__ import annotations

import copy
import inspect
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from stablessm._errors import ArgumentError
from stablessm.instruments.adapters.facts import by_step, said, weight_of
from stablessm.instruments.adapters.stateful import NotSupportedError, Result, Stateful, result_of


class Module(Stateful):
    """The base class of adapters for modules whose inputs have the dtype of their weights."""

    def __init__(self, model: Any, d_input: int, dtype: torch.dtype | None = None) -> None:
        weight = weight_of(model)
        if weight is not None and weight.is_meta:
            raise ArgumentError("model", "initialized weights, not on the meta device", type(model).__name__)
        own = torch.float32 if weight is None else weight.dtype
        super().__init__(model, d_input, dtype or own, None if weight is None else weight.device)

    def step(self, x: Tensor, state: Any = None) -> Result:
        if not has_step(self.model):
            return self.run(x, state)
        y, state = self.model.step(x[:, 0], state)
        return y[:, None], state

    def cast(self, dtype: torch.dtype) -> Stateful:
        return self if dtype == self.dtype else type(self)(in_dtype(self.model, dtype), self.d_input)


@final
class Layer(Module):
    """An adapter for layers and models of this library, and for modules with the same methods."""

    def __init__(self, model: Any, d_input: int) -> None:
        super().__init__(model, d_input)
        self._run = by_step(model)
        self._options = inspect.signature(getattr(self._run, "forward", self._run)).parameters

    def run(self, x: Tensor, state: Any = None) -> Result:
        return result_of(self.model, self._run(x, state))

    def padded(self, x: Tensor, real: Tensor, state: Any = None) -> Result:
        if "lengths" not in self._options:
            return super().padded(x, real, state)
        return result_of(self.model, self._run(x, state, lengths=_lengths(real)))

    def restarted(self, x: Tensor, starts: Tensor, state: Any = None, real: Tensor | None = None) -> Result:
        if "reset" not in self._options:
            return super().restarted(x, starts, state, real)
        if real is not None and "lengths" not in self._options:
            raise NotSupportedError("the model takes no lengths")
        lengths = {} if real is None else {"lengths": _lengths(real)}
        return result_of(self.model, self._run(x, state, reset=starts, **lengths))


@final
class Recurrence(Module):
    """An adapter for ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM``."""

    batch_axis = 1

    def run(self, x: Tensor, state: Any = None) -> Result:
        first = self.model.batch_first
        y, state = self.model(x if first else x.transpose(0, 1), state)
        return (y if first else y.transpose(0, 1)), state

    def padded(self, x: Tensor, real: Tensor, state: Any = None) -> Result:
        lengths = _lengths(real).cpu()
        if int(lengths.min()) < 1:
            raise NotSupportedError("PackedSequence takes no empty sequences")
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, state = self.model(packed, state)
        return pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0], state


@final
class Cell(Module):
    """An adapter for ``nn.RNNCell``, ``nn.GRUCell`` and ``nn.LSTMCell``, which are called once per step."""

    def run(self, x: Tensor, state: Any = None) -> Result:
        outputs = []
        for x_t in x.unbind(1):
            state = self.model(x_t, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1), state


def has_step(model: Any) -> bool:
    """Return True for a module with a method ``step(x_t, state)``."""
    step = getattr(model, "step", None) if isinstance(model, nn.Module) else None
    return callable(step) and len(inspect.signature(step).parameters) > 1


def in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a module with floating-point weights in another dtype."""
    try:
        return copy.deepcopy(model).to(dtype)
    except Exception as error:  # quantized weights, hooks that cannot be copied
        raise NotSupportedError(f"the model cannot be copied to {dtype}: {said(error)}") from error


def _lengths(real: Tensor) -> Tensor:
    lengths = real.sum(1)
    if not torch.equal(real, torch.arange(real.shape[1], device=real.device) < lengths[:, None]):
        raise NotSupportedError("the model takes lengths: padding must be on the right")
    return lengths
