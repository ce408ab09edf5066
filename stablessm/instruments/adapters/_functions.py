"""Adapters for functions of tensors or arrays, and for nodes of reservoirpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.instruments._states import leaves
from stablessm.instruments.adapters._modules import Module
from stablessm.instruments.adapters.facts import name_of, said, weight_of
from stablessm.instruments.adapters.stateful import STATEFUL, Result, Stateful, result_of

Call: TypeAlias = Callable[[Tensor, Any], Result]
"""Function from an input (B, T, d_input) and a state to an output (B, T, d_output) and a state."""


@final
class Function(Module):
    """An adapter for any ``(x, state) -> (y, state)``: a module, or a function of PyTorch, NumPy or JAX arrays.

    A function of a single step is called once per step, with x (B, d_input).
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

    The function is called with tensors or arrays, and with whole sequences or single steps. If no way works, the error
    of the first way is raised.
    """
    model, x = function.model, function.inputs(2, 3, torch.Generator().manual_seed(0))

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

    ways = [on_tensors, per_step(on_tensors)]
    if weight_of(model) is None:
        ways += [on_arrays, per_step(on_arrays)]
    reasons: list[ArgumentError] = []
    for way, stepwise in zip(ways, [ways[1], None, *ways[3:], None], strict=False):
        try:
            y, _ = way(x, None)
            if y.dim() == 3 and y.shape[:2] == x.shape[:2]:
                return (stepwise if stepwise and _keeps_all_steps(way, stepwise, x) else way), y.dtype
            steps = f"an output with {x.shape[1]} time steps, as its input"
            reasons.append(ArgumentError("model", steps, f"{name_of(model)}, whose output has shape {tuple(y.shape)}"))
        except ArgumentError as error:
            reasons.append(error)
        except Exception as error:  # whatever a foreign function raises
            reasons.append(ArgumentError("model", STATEFUL, f"{name_of(model)}, which raised {said(error)}"))
    raise reasons[0]


def _keeps_all_steps(whole: Call, stepwise: Call, x: Tensor) -> bool:
    """Return True if a function is meant for single steps, although it also runs on whole sequences.

    Such a function treats a whole sequence (``whole``) as a single step. The shape of its state then depends on the
    length of the sequence. If the function is called once per step (``stepwise``), the shape is always the same.
    """

    def shapes(run: Call, steps: int) -> list[tuple[int, ...]]:
        return [tuple(leaf.shape) for _, leaf in leaves(run(x[:, :steps], None)[1])]

    try:
        return shapes(whole, 2) != shapes(whole, 3) and shapes(stepwise, 2) == shapes(stepwise, 3)
    except Exception:  # it takes no single steps
        return False


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
        parts = zip(*after, strict=True)
        return torch.stack(outputs), [
            {name: np.stack([row[name] for row in rows]) for name in rows[0]} for rows in parts
        ]
