"""Adapters: one interface to run models with a state, for layers, ``torch.nn``, functions, Hugging Face, reservoirs."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from stablessm._errors import ArgumentError
from stablessm.instruments import huggingface
from stablessm.instruments.systems import by_step, input_size, weight_of

STATEFUL = "one that carries a state: model(x, state) -> (y, state)"
Result = tuple[Tensor, Any]


class NotSupportedError(Exception):
    """Raised if a model does not support an operation by design; the message states the missing argument or method."""


class Stateful(ABC):
    """The base class of adapters, which run a model with a state in one common way.

    To run another kind of model, subclass this class: implement :meth:`run`, and the optional methods that the model
    supports. Inputs are (B, T, d_input), or token ids (B, T) if ``vocabulary`` is given.
    """

    vocabulary: int | None = None
    """Number of token ids; None for a model with real inputs."""
    never_generated: frozenset[int] = frozenset()
    """Tokens that :meth:`generate` never chooses, even if they are the most likely."""
    in_place = False
    """Whether the state that is passed to the model is updated in place, by design."""

    def __init__(self, model: Any, d_input: int, dtype: torch.dtype, device: torch.device | None = None) -> None:
        self.model, self.d_input, self.dtype = model, d_input, dtype
        self.device = device or torch.device("cpu")

    @abstractmethod
    def run(self, x: Tensor, state: Any = None) -> Result:
        """Run the model from a state (None: initial state); return outputs (B, T, d_output) and the final state."""

    def whole(self, x: Tensor) -> Tensor:
        """Return the outputs of one pass over whole sequences, without a state if the model supports that."""
        return self.run(x)[0]

    def step(self, x: Tensor, state: Any = None) -> Result:
        """Run a single step, x (B, 1, d_input), by the method of the model for single steps, if it has one."""
        return self.run(x, state)

    def padded(self, x: Tensor, real: Tensor, state: Any = None) -> Result:
        """Run a batch with padding; ``real`` (B, T) is False at padding, where outputs have no meaning."""
        raise NotSupportedError("how the model takes padding is not known; a Stateful of your own can define padded")

    def packed(self, x: Tensor, starts: Tensor) -> Tensor:
        """Return the outputs for packed rows of several sequences; ``starts`` (B, T) is True at their first steps."""
        raise NotSupportedError("the model takes no resets")

    def unseparated(self, x: Tensor, starts: Tensor) -> Tensor | None:
        """Return the outputs that :meth:`packed` would have if the model ignored ``starts``; None if unknown."""
        return None

    def reset(self, state: Any) -> Any:
        """Reset a state object to the state before the first step, and return it to be used again."""
        raise NotSupportedError("the state has no reset method")

    def record(self, state: Any) -> Any:
        """Prepare a state for a later call of :meth:`crop`, and return it."""
        raise NotSupportedError("the state cannot remove steps; copy it to return to it")

    def crop(self, state: Any, steps: int) -> Any:
        """Remove the last ``steps`` steps from a state that :meth:`record` prepared, and return it."""
        raise NotSupportedError("the state cannot remove steps; copy it to return to it")

    def generate(self, x: Tensor, steps: int) -> Tensor:
        """Generate tokens greedily; return the tokens of x and the new tokens, (B, T + steps)."""
        raise NotSupportedError("the model has no generate method")

    def only_attends(self) -> bool:
        """Return True if the state consists only of the keys and values of attention."""
        return False

    def without_positions(self) -> Stateful:
        """Return an adapter that does not pass positions, so that the model must derive them from its state."""
        raise NotSupportedError("the model takes no positions")

    def cast(self, dtype: torch.dtype) -> Stateful:
        """Return an adapter of a copy of the model in another dtype."""
        raise NotSupportedError("the model has no weights to convert")

    def inputs(self, rows: int, steps: int, generator: torch.Generator) -> Tensor:
        """Return random inputs for the model, (rows, steps, d_input): white noise."""
        x = torch.randn(rows, steps, self.d_input, generator=generator, dtype=torch.float64)
        return x.to(self.device, self.dtype)


class _Module(Stateful):
    """The base class of adapters for modules whose inputs have the dtype of their weights."""

    def __init__(self, model: Any, d_input: int, dtype: torch.dtype | None = None) -> None:
        weight = weight_of(model)
        if weight is not None and weight.is_meta:
            raise ArgumentError("model", "initialized weights, not on the meta device", type(model).__name__)
        own = torch.float32 if weight is None else weight.dtype
        super().__init__(model, d_input, dtype or own, None if weight is None else weight.device)

    def cast(self, dtype: torch.dtype) -> Stateful:
        return self if dtype == self.dtype else type(self)(in_dtype(self.model, dtype), self.d_input)


@final
class _Layer(_Module):
    """An adapter for layers and models of this library, and for modules with the same methods."""

    def __init__(self, model: Any, d_input: int) -> None:
        super().__init__(model, d_input)
        self._run = by_step(model)
        self._options = inspect.signature(getattr(self._run, "forward", self._run)).parameters

    def run(self, x: Tensor, state: Any = None) -> Result:
        return _checked(self.model, self._run(x, state))

    def step(self, x: Tensor, state: Any = None) -> Result:
        if not hasattr(self.model, "step"):
            return self.run(x, state)
        y, state = self.model.step(x[:, 0], state)
        return y[:, None], state

    def padded(self, x: Tensor, real: Tensor, state: Any = None) -> Result:
        if "lengths" not in self._options:
            return super().padded(x, real, state)
        return _checked(self.model, self._run(x, state, lengths=_lengths(real)))

    def packed(self, x: Tensor, starts: Tensor) -> Tensor:
        if "reset" not in self._options:
            return super().packed(x, starts)
        return self._run(x, None, reset=starts)[0]


@final
class _Recurrence(_Module):
    """An adapter for ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM``."""

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
class _Cell(_Module):
    """An adapter for ``nn.RNNCell``, ``nn.GRUCell`` and ``nn.LSTMCell``, which are called once per step."""

    def run(self, x: Tensor, state: Any = None) -> Result:
        outputs = []
        for x_t in x.unbind(1):
            state = self.model(x_t, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1), state


@final
class _Function(_Module):
    """An adapter for any ``(x, state) -> (y, state)``: a module, or a function of tensors or of NumPy or JAX arrays.

    A function of a single step is called once per step, with x (B, d_input).
    """

    def __init__(self, model: Any, d_input: int, dtype: torch.dtype | None = None) -> None:
        known = dtype is not None or weight_of(model) is not None
        for each in (dtype,) if known else (torch.float64, torch.float32):
            super().__init__(model, d_input, each)
            try:
                self._call = _found_call(self)
                return
            except ArgumentError:
                if known or each == torch.float32:
                    raise

    def run(self, x: Tensor, state: Any = None) -> Result:
        return self._call(x, state)

    def cast(self, dtype: torch.dtype) -> Stateful:
        return super().cast(dtype) if weight_of(self.model) is not None else _Function(self.model, self.d_input, dtype)


def _found_call(function: _Function) -> Callable[[Tensor, Any], Result]:
    """Find the way to call a function (tensors or arrays, whole or per step) that gives one output per step.

    If no way works, the error of the first way is raised.
    """
    model, x = function.model, function.inputs(2, 3, torch.Generator().manual_seed(0))

    def on_tensors(x: Tensor, state: Any) -> Result:
        return _checked(model, model(x, state))

    def on_arrays(x: Tensor, state: Any) -> Result:
        return _checked(model, model(x.numpy(force=True), state))

    def per_step(call: Callable[[Tensor, Any], Result]) -> Callable[[Tensor, Any], Result]:
        def run(x: Tensor, state: Any) -> Result:
            outputs = []
            for x_t in x.unbind(1):
                y, state = call(x_t, state)
                outputs.append(y)
            return torch.stack(outputs, 1), state

        return run

    ways = [on_tensors, per_step(on_tensors)]
    if weight_of(model) is None:
        ways += [on_arrays, per_step(on_arrays)]
    reasons: list[ArgumentError] = []
    for way in ways:
        try:
            y, _ = way(x, None)
            if y.dim() == 3 and y.shape[:2] == x.shape[:2]:
                return way
            steps = f"an output with {x.shape[1]} time steps, as its input"
            reasons.append(ArgumentError("model", steps, f"{name_of(model)}, whose output has shape {tuple(y.shape)}"))
        except ArgumentError as error:
            reasons.append(error)
        except Exception as error:  # whatever a foreign function raises
            reasons.append(ArgumentError("model", STATEFUL, f"{name_of(model)}, which raised {said(error)}"))
    raise reasons[0]


@final
class _Reservoir(Stateful):
    """An adapter for nodes and models of reservoirpy (0.4), which store their state themselves."""

    def __init__(self, model: Any, d_input: int) -> None:
        super().__init__(model, d_input, torch.float64)
        if not model.initialized:
            model.initialize(np.zeros((1, d_input)))

    def run(self, x: Tensor, state: Any = None) -> Result:
        nodes = list(getattr(self.model, "nodes", None) or [self.model])
        outputs, after = [], []
        for row, sequence in enumerate(x.numpy(force=True)):
            self.model.reset()
            for node, held in zip(nodes, state[row] if state is not None else (), strict=state is not None):
                node.state = {name: array.copy() for name, array in held.items()}
            outputs.append(torch.from_numpy(np.array(self.model.run(sequence))))
            after.append([{name: np.array(array) for name, array in node.state.items()} for node in nodes])
        return torch.stack(outputs), after


def as_stateful(model: Any, *, d_input: int | None = None) -> Stateful:
    """Return an adapter for a model with a state, or raise an ArgumentError that states why the model has none.

    An adapter (an instance of a subclass of :class:`Stateful`) is returned unchanged.

    >>> y, state = as_stateful(nn.LSTMCell(3, 8)).run(torch.zeros(2, 5, 3))
    >>> tuple(y.shape), len(state)
    ((2, 5, 8), 2)
    """
    if isinstance(model, Stateful):
        return model
    if not callable(model) and not hasattr(model, "run"):
        raise ArgumentError("model", "a callable or module", type(model).__name__)
    if huggingface.is_transformer(model):
        from stablessm.instruments._hf_adapter import HuggingFace

        return HuggingFace(model)
    d_input = input_size(model, d_input)
    if type(model).__module__.partition(".")[0] == "reservoirpy":
        return _Reservoir(model, d_input)
    if isinstance(model, nn.RNNBase):
        if model.bidirectional:
            raise ArgumentError("model", "a causal model", f"{name_of(model)}, which is bidirectional")
        return _Recurrence(model, d_input)
    if isinstance(model, nn.RNNCellBase):
        return _Cell(model, d_input)
    return _Layer(model, d_input) if hasattr(model, "initial_state") else _Function(model, d_input)


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


def _checked(model: Any, result: Any) -> Result:
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ArgumentError("model", STATEFUL, f"{name_of(model)}, which returns a {type(result).__name__}")
    y, state = result
    if not isinstance(y, Tensor):
        y = torch.from_numpy(np.array(y))
    return y, state


def name_of(model: Any) -> str:
    """Return the name of a function, or of the class of a model."""
    return getattr(model, "__name__", type(model).__name__)


def said(error: Exception) -> str:
    """Return the type of an error and the first line of its message, as a text."""
    return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0][:160]}"
