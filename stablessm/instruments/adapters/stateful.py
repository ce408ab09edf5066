"""The interface through which every model with a state is run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.instruments.adapters.facts import name_of

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
    most_exact = torch.float64
    """Most exact dtype in which the model is checked; a more exact model is checked as a copy in float32."""
    never_generated: frozenset[int] = frozenset()
    """Tokens that :meth:`generate` never chooses, even if they are the most likely."""
    chunk = 0
    """Length of the chunks into which the code of the model cuts a sequence; 0 if that is unknown."""
    batch_axis = 0
    """Axis of the batch in the tensors or arrays of the state."""
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
        """Run a single step x (B, 1, d_input), with the model's own method for single steps if there is one."""
        return self.run(x, state)

    def padded(self, x: Tensor, real: Tensor, state: Any = None) -> Result:
        """Run a batch with padding from a state; return the outputs and the final state.

        ``real`` (B, T) is False at padding. The outputs at padding have no meaning.
        """
        raise NotSupportedError("how the model takes padding is not known; a Stateful of your own can define padded")

    def packed(self, x: Tensor, starts: Tensor) -> Tensor:
        """Return the outputs for rows into which several sequences are packed.

        ``starts`` (B, T) is True at the first step of a sequence.
        """
        return self.restarted(x, starts)[0]

    def restarted(self, x: Tensor, starts: Tensor, state: Any = None, real: Tensor | None = None) -> Result:
        """Run rows that contain several sequences from a state; return the outputs and the final state.

        ``starts`` (B, T) is True at the first step of a sequence. The outputs of a sequence must not depend on the
        steps before its first step. ``real`` (B, T), if given, is False at padding.
        """
        raise NotSupportedError("the model takes no resets")

    def unseparated(self, x: Tensor, starts: Tensor) -> Tensor | None:
        """Return the outputs that packed rows would have if the model ignored ``starts``; None if they are unknown."""
        return None

    def reset(self, state: Any) -> Any:
        """Reset a state object to the state before the first step, and return the object."""
        raise NotSupportedError("the state has no reset method")

    def record(self, state: Any) -> Any:
        """Prepare a state so that :meth:`crop` can later remove steps from it, and return the state."""
        raise NotSupportedError("the state cannot remove steps; copy it to return to it")

    def crop(self, state: Any, steps: int) -> Any:
        """Remove the last ``steps`` steps from a state, which :meth:`record` has prepared, and return the state."""
        raise NotSupportedError("the state cannot remove steps; copy it to return to it")

    def generate(self, x: Tensor, steps: int) -> Tensor:
        """Generate tokens greedily; return the tokens of x followed by the new tokens as (B, T + steps)."""
        raise NotSupportedError("the model has no generate method")

    def only_attends(self) -> bool:
        """Return True if the state consists only of the keys and values of attention."""
        return False

    def without_positions(self) -> Stateful:
        """Return an adapter that passes no positions to the model, which must derive the positions from its state."""
        raise NotSupportedError("the model takes no positions")

    def cast(self, dtype: torch.dtype) -> Stateful:
        """Return an adapter of a copy of the model in another dtype."""
        raise NotSupportedError("the model has no weights to convert")

    def inputs(self, rows: int, steps: int, generator: torch.Generator) -> Tensor:
        """Return random inputs for the model: white noise (rows, steps, d_input), or tokens (rows, steps)."""
        if self.vocabulary is not None:
            return torch.randint(self.vocabulary, (rows, steps), generator=generator).to(self.device)
        x = torch.randn(rows, steps, self.d_input, generator=generator, dtype=torch.float64)
        return x.to(self.device, self.dtype)


def result_of(model: Any, result: Any) -> Result:
    """Check that a model returned a pair (y, state), convert y to a tensor, and return the pair."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ArgumentError("model", STATEFUL, f"{name_of(model)}, which returns a {type(result).__name__}")
    y, state = result
    if not isinstance(y, Tensor):
        y = torch.from_numpy(np.array(y))
    return y, state
