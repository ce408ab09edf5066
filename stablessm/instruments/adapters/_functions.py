"""Adapters for functions of tensors or arrays, and for nodes of reservoirpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.instruments._states import numbers_in, rebuilt
from stablessm.instruments.adapters._modules import Module
from stablessm.instruments.adapters.facts import name_of, said, weight_of
from stablessm.instruments.adapters.stateful import STATEFUL, Result, Stateful, result_of

Call: TypeAlias = Callable[[Tensor, Any], Result]
"""Function from an input (B, T, d_input) and a state to an output (B, T, d_output) and a state."""


@final
class Function(Module):
    """An adapter for any ``(x, state) -> (y, state)``: a module, or a function of PyTorch, NumPy or JAX arrays.

    A function of a single step is called once per step, with x (B, d_input), or once per step and sequence, with x
    (d_input,). In the latter case the states of all sequences are stacked, with the batch as their first axis.
    """

    def __init__(self, model: Any, d_input: int, dtype: torch.dtype | None = None) -> None:
        known = dtype is not None or weight_of(model) is not None
        for each in (dtype,) if known else (torch.float64, torch.float32):
            super().__init__(model, d_input, each)
            try:
                self._call, found = _found_call(self)
                if dtype is None and torch.finfo(found).eps > torch.finfo(self.dtype).eps:
                    self.dtype = found  # the function rounds to single precision, as JAX does
                return
            except ArgumentError:
                if known or each == torch.float32:
                    raise

    def run(self, x: Tensor, state: Any = None) -> Result:
        return self._call(x, state)

    def cast(self, dtype: torch.dtype) -> Stateful:
        return super().cast(dtype) if weight_of(self.model) is not None else Function(self.model, self.d_input, dtype)


def _found_call(function: Function) -> tuple[Call, torch.dtype]:
    """Try several ways to call a function; return the first that gives one output per step, and the dtype of the
    outputs.

    The function is called with tensors or arrays, and with whole sequences, single steps (with or without a time axis),
    or single steps of single sequences. A way has to work for two sizes of the batch and two lengths: one of them may
    equal another size of the function, and be taken for it. Ways that also continue from the returned state, by one
    step, come first: a function of single steps that takes a whole sequence for one step cannot. If no way works, the
    error of the first way is raised.
    """
    model, x = function.model, function.inputs(5, 3, torch.Generator().manual_seed(0))

    def on_tensors(x: Tensor, state: Any) -> Result:
        return result_of(model, model(x, state))

    def on_arrays(x: Tensor, state: Any) -> Result:
        return result_of(model, model(x.numpy(force=True), state))

    def per_step(call: Call) -> Call:
        def run(x: Tensor, state: Any) -> Result:
            outputs = []
            for x_t in x.unbind(1):
                y, state = call(x_t, state)
                outputs.append(y)
            return torch.stack(outputs, 1), state

        return run

    calls = [on_tensors] if weight_of(model) is not None else [on_tensors, on_arrays]
    ways = [way for call in calls for way in (call, per_step(call))]
    ways += [per_step(partial(way, call)) for way in (_in_window, _per_sequence) for call in calls]
    reasons: list[ArgumentError] = []
    for lasting, way in product((True, False), ways):
        try:
            for part in (x, x[:2, :2]):
                state = None
                for piece in (part, part[:, -1:])[: 1 + lasting]:
                    y, state = way(piece, state)
                    if y.dim() != 3 or y.shape[:2] != piece.shape[:2]:
                        steps, got = f"an output with {piece.shape[1]} time steps, as its input", tuple(y.shape)
                        raise ArgumentError("model", steps, f"{name_of(model)}, whose output has shape {got}")
            return way, y.dtype
        except ArgumentError as error:
            reasons.append(error)
        except Exception as error:  # whatever a foreign function raises
            reasons.append(ArgumentError("model", STATEFUL, f"{name_of(model)}, which raised {said(error)}"))
    raise reasons[0]


def _in_window(call: Call, x: Tensor, state: Any) -> Result:
    """Call a function of sequences of one step (B, 1, d_input) with a step x (B, d_input)."""
    y, state = call(x[:, None], state)
    return y[:, 0], state


def _per_sequence(call: Call, x: Tensor, state: Any) -> Result:
    """Call a function of a step (d_input,) once per sequence of a step x (B, d_input); return stacked outputs and
    states.
    """
    rows = [call(x[i], None if state is None else rebuilt(state, itemgetter(i))) for i in range(len(x))]
    after = [state for _, state in rows]
    if len({repr(rebuilt(state, type)) for state in after}) > 1 or not list(numbers_in(after[0])):
        raise ArgumentError("model", "a state of floating-point arrays", f"a state of type {type(after[0]).__name__}")
    return torch.stack([y for y, _ in rows]), _stacked(after)


def _stacked(states: list[Any]) -> Any:
    """Return one state whose arrays are the stacked numbers and arrays of several states of the same structure."""
    columns = zip(*map(numbers_in, states), strict=True)
    return rebuilt(states[0], lambda first: (torch if isinstance(first, Tensor) else np).stack(next(columns)))


@final
class Reservoir(Stateful):
    """An adapter for a node or model of reservoirpy 0.4, which stores its own state; the sequences of a batch run one
    by one.

    The state is a list with one dictionary of arrays (B, …) for each node.
    """

    def __init__(self, model: Any, d_input: int) -> None:
        super().__init__(model, d_input, torch.float64)
        try:
            if not model.initialized:
                model.initialize(np.zeros((1, d_input)))
            self.run(torch.zeros(1, 2, d_input, dtype=self.dtype))
        except Exception as error:  # such as a readout that was not fitted
            got = f"{name_of(model)}, which raised {said(error)}"
            raise ArgumentError("model", "a fitted node or model of reservoirpy that runs", got) from error

    def run(self, x: Tensor, state: Any = None) -> Result:
        nodes = list(getattr(self.model, "nodes", None) or [self.model])
        outputs, after = [], []
        for row, sequence in enumerate(x.numpy(force=True)):
            self.model.reset()
            for node, held in zip(nodes, () if state is None else state, strict=state is not None):
                node.state = {name: np.array(array[row]) for name, array in held.items()}
            outputs.append(torch.from_numpy(np.array(self.model.run(sequence))))
            after.append([{name: np.array(array) for name, array in node.state.items()} for node in nodes])
        return torch.stack(outputs), _stacked(after)
