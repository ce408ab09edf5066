"""Adapters: one interface to run models with a state, for layers, ``torch.nn``, functions, Hugging Face, reservoirs."""

from __future__ import annotations

from typing import Any

from torch import nn

from stablessm._errors import ArgumentError
from stablessm.instruments.adapters._functions import Function, Reservoir
from stablessm.instruments.adapters._modules import Cell, Layer, Recurrence
from stablessm.instruments.adapters.facts import input_size, is_transformer, name_of, said
from stablessm.instruments.adapters.stateful import STATEFUL, NotSupportedError, Result, Stateful

__all__ = ["STATEFUL", "NotSupportedError", "Result", "Stateful", "as_stateful", "has_adapter", "name_of", "said"]


def has_adapter(model: Any) -> bool:
    """Return True if the type of a model determines how to call it; False for other callables."""
    kinds = (Stateful, nn.RNNBase, nn.RNNCellBase)
    known = isinstance(model, kinds) or hasattr(model, "initial_state") or is_transformer(model)
    return known or type(model).__module__.partition(".")[0] == "reservoirpy"


def as_stateful(model: Any, *, d_input: int | None = None, causal: bool = True) -> Stateful:
    """Return an adapter for a model with a state, or raise an ArgumentError that states why the model has none.

    An adapter (an instance of a subclass of :class:`Stateful`) is returned unchanged. With ``causal=False`` a
    bidirectional recurrence is also accepted; its state cannot be carried.

    >>> import torch
    >>> y, state = as_stateful(nn.LSTMCell(3, 8)).run(torch.zeros(2, 5, 3))
    >>> tuple(y.shape), len(state)
    ((2, 5, 8), 2)
    """
    if isinstance(model, Stateful):
        return model
    if not callable(model) and not hasattr(model, "run"):
        raise ArgumentError("model", "a callable or module", type(model).__name__)
    if is_transformer(model):
        from stablessm.instruments.adapters._huggingface import HuggingFace

        return HuggingFace(model)
    d_input = input_size(model, d_input)
    if type(model).__module__.partition(".")[0] == "reservoirpy":
        return Reservoir(model, d_input)
    if isinstance(model, nn.RNNBase):
        if causal and model.bidirectional:
            raise ArgumentError("model", "a causal model", f"{name_of(model)}, which is bidirectional")
        return Recurrence(model, d_input)
    if isinstance(model, nn.RNNCellBase):
        return Cell(model, d_input)
    return Layer(model, d_input) if hasattr(model, "initial_state") else Function(model, d_input)
