"""A single step of any model with a state, as a map from rows of numbers to rows of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm import _tensors
from stablessm._errors import ArgumentError
from stablessm.instruments._states import is_array, numbers_in
from stablessm.instruments.adapters import as_stateful, has_adapter, said
from stablessm.instruments.adapters.facts import own_input_size, weight_of
from stablessm.instruments.dynamics._layout import Layout, Place, layout_of, place_of, repeated

Step: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
"""Function from the input of one step (or None) and a state to an output and the next state."""

_EXPECTED = "a model with a state: (x, state) -> (y, state)"


@final
@dataclass(frozen=True)
class Stepper:
    """A model with a common interface: :meth:`advance` advances several states by one step.

    Each state is a row of real numbers.
    """

    step: Step
    layout: Layout
    place: Place
    frame: Any
    """A state with one row, which provides the structure and the whole numbers of states."""
    start: Tensor
    """First state (1, n), or one first state per sequence (B, n)."""
    inputs: Tensor | None
    """Inputs of each step (B, T, …); (1, 1, …) for a constant input; None if the model takes no inputs."""
    taken: int = 0
    """Number of inputs that the model read to produce the first state."""
    shape: tuple[int, ...] = ()
    """Shape of the input of one step and row, as the model takes it."""
    vectorized: bool = False
    """Whether ``torch.vmap`` is applied to the model."""
    alone: bool = False
    """Whether the caller gave no inputs."""
    module: Any = None
    """Model of the caller."""

    @property
    def size(self) -> int:
        """Return the number of real numbers in a state of the model."""
        return self.layout.size

    def framed(self, rows: int) -> Any:
        """Return a state object with the given number of rows, from which other states copy their structure."""
        return repeated(self.frame, rows, int(self.place[-1])) if self.place.startswith("axis") else self.frame

    def advance(self, rows: Tensor, x: Tensor | None, frame: Any) -> tuple[Tensor, Any]:
        """Advance R states of n numbers, (R, n), by one step; return the next states as rows (R, n), and as a state
        object.

        ``x`` are the inputs of the step, and ``frame`` is a state object from which the states copy their structure.
        The returned state object is the ``frame`` of the next step.
        """
        if self.place == "single" and not self.vectorized:
            parts = [self._single(rows[i : i + 1], None if x is None else x[i], frame) for i in range(len(rows))]
            return torch.cat([part for part, _ in parts]), parts[-1][1]
        if self.vectorized:
            run = lambda row, now: self._single(row[None], now, frame)[0][0]  # noqa: E731
            return torch.vmap(run, in_dims=(0, None if x is None else 0))(rows, x), frame
        _, state = self.step(self._placed(x), self.layout.unpack(rows, frame, self.place))
        return self.layout.pack(state, self.place), state

    def _single(self, row: Tensor, x: Tensor | None, frame: Any) -> tuple[Tensor, Any]:
        _, state = self.step(None if x is None else x.reshape(self.shape), self.layout.unpack(row, frame, "single"))
        return self.layout.pack(state, "single"), state

    def _placed(self, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        if self.place == "last":
            return x.reshape(len(x), *self.shape).movedim(0, -1)
        return x.reshape(len(x), *(self.shape[1:] if self.place.startswith("axis") else self.shape))

    def at(self, t: int, rows: int) -> Tensor | None:
        """Return the inputs of step t for ``rows`` rows; each sequence supplies the inputs of equally many rows."""
        if self.inputs is None:
            return None
        now = self.inputs[:, 0 if self.alone else t + self.taken]
        return now.repeat_interleave(rows // len(now), 0)


def stepper(model: Any, inputs: Any, state: Any) -> Stepper:
    """Return a stepper that runs a model step by step, or raise an ArgumentError if that is not possible."""
    if not callable(model):
        raise ArgumentError("model", "a callable or module", type(model).__name__)
    x = None if inputs is None else sequences(inputs)
    known = _known(model, x, state)
    return _function(model, x, state) if known is None else known


def sequences(inputs: Any) -> Tensor:
    """Convert inputs to the shape (B, T, …); a single sequence becomes a batch of one sequence."""
    try:
        x = _tensors.as_tensor(inputs).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        got = repr(inputs) if isinstance(inputs, str) else type(inputs).__name__
        raise ArgumentError("inputs", "a tensor or array of numbers", got) from error
    whole = not (x.is_floating_point() or x.is_complex())
    if not x.numel() or x.dim() not in ((1, 2) if whole else (1, 2, 3)):
        expected = "(time,), (time, d_input) or (batch, time, d_input), or tokens (time,) or (batch, time)"
        raise ArgumentError("inputs", expected, f"shape {tuple(x.shape)}")
    if not whole and not bool(x.isfinite().all()):
        raise ArgumentError("inputs", "finite numbers", "NaN or infinity")
    return x if x.dim() == (2 if whole else 3) else x[None]


def _known(model: Any, x: Tensor | None, state: Any) -> Stepper | None:
    """Return the stepper of a model that has an adapter; None for any other callable."""
    if not has_adapter(model):
        return None
    tokens = x is not None and not x.is_floating_point()
    width = None if x is None else 1 if tokens or x.dim() != 3 else x.shape[-1]
    adapter = as_stateful(model, d_input=own_input_size(model) or width)
    alone, place = x is None, place_of(adapter)
    if x is None:
        x = torch.zeros(1, 1, adapter.d_input)
    elif not tokens:
        x = x if x.dim() == 3 else x[..., None]
        if x.shape[-1] != adapter.d_input:
            raise ArgumentError("inputs", f"{adapter.d_input} channels", f"shape {tuple(x.shape)}")
    x = x.to(adapter.device) if tokens else x.to(adapter.device, adapter.dtype)
    step = lambda now, held: adapter.step(now[:, None], held)  # noqa: E731
    taken = 0
    if state is None and hasattr(model, "initial_state"):
        state = model.initial_state(1)
    if state is None:
        state, taken = _tried(step, x[:, 0], None), 1
    elif len(x) > 1:
        state = repeated(state, len(x), adapter.batch_axis)
    layout = layout_of(state, place, precise=False)
    if not layout.size:
        raise ArgumentError("model", _EXPECTED, f"{type(model).__name__}, whose state has no numbers")
    frame = state if len(x) == 1 else _tried(step, x[:1, 0], None)
    start = layout.pack(state, place)
    return Stepper(step, layout, place, frame, start, x, taken, (1, *x.shape[2:]), module=model, alone=alone)


def _tried(step: Step, x: Any, state: Any) -> Any:
    try:
        result = step(x, state)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentError("model", _EXPECTED, f"a call that raised {said(error)}") from error
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError("model", _EXPECTED, f"a call that returned {type(result).__name__}")
    return result[1]


def _function(model: Any, x: Tensor | None, state: Any) -> Stepper:
    """Return the stepper of a function.

    Several shapes of the input and types of the state are tried; the first combination that the function accepts is
    used.
    """
    if x is None and state is None:
        raise ArgumentError("state", "the first state, since the model has neither inputs nor a state of its own", None)
    reasons: list[Exception] = []
    steps = [model] if x is None else [model, lambda now, held: model(now.numpy(force=True), held)]
    if any(is_array(part) and not isinstance(part, Tensor) for part in numbers_in(state)):
        steps.reverse()  # a function of arrays
    for step in steps:
        for shape, first, precise in _forms(model, x, state):
            try:
                made = _of_form(model, step, x, shape, first, precise)
            except ArgumentError as reason:
                reasons.append(reason)
            else:
                return _for_many_rows(made)
    raise reasons[0]


def _forms(model: Any, x: Tensor | None, state: Any) -> Iterator[tuple[tuple[int, ...], Any, bool]]:
    """Yield combinations of input shape, first state and precision that a function may accept."""
    shapes: list[tuple[int, ...]] = [()]
    if x is not None:
        own = tuple(x.shape[2:])
        shapes = [own, (1, *own), (1, 1, *own)]
        shapes = shapes[::-1] if isinstance(model, nn.Module) or state is None else shapes
        shapes += [()] if own == (1,) else []
    for first in _first_states(state):
        for precise in (True, False):
            for shape in shapes:
                yield shape, first, precise


def _first_states(state: Any) -> list[Any]:
    """Return a first state in all types that a function may accept: made of tensors, as one array, or unchanged."""
    numbers = isinstance(state, tuple | list) and all(isinstance(part, int | float) for part in state)
    if isinstance(state, float | int):
        return [torch.tensor(float(state)), float(state)]
    if not numbers or state is None:
        return [state]
    values = [float(part) for part in state]
    as_tensors = type(state)(map(torch.tensor, values))
    return [as_tensors, torch.tensor(values, dtype=torch.float64), np.array(values), type(state)(values)]


def _of_form(model: Any, step: Step, x: Tensor | None, shape: tuple[int, ...], first: Any, precise: bool) -> Stepper:
    weight = weight_of(model)
    now = None
    if x is not None:
        dtype = (torch.float64 if weight is None else weight.dtype) if precise else torch.float32
        x = x.to(dtype) if x.is_floating_point() else x
        now, x = x[0, 0].reshape(shape), x
    taken = 0
    if first is None:
        first, taken = _tried(step, now, None), 1
    layout = layout_of(first, "single", precise=precise)
    if not layout.size:
        raise ArgumentError("state" if taken == 0 else "model", "a state of real numbers", type(first).__name__)
    row = layout.pack(first, "single")
    if not bool(row.isfinite().all()):
        raise ArgumentError("state" if taken == 0 else "model", "a first state of finite numbers", "NaN or infinity")
    after = _tried(step, now, layout.unpack(row, first, "single"))
    layout.pack(after, "single")
    pairs = zip(layout.leaves, layout_of(after, "single", precise=False).leaves, strict=True)
    if any(torch.finfo(a.dtype).eps > torch.finfo(b.dtype).eps for b, a in pairs):
        layout = layout_of(after, "single", precise=False)  # the function computes in single precision
        row = layout.pack(first, "single")
    made = Stepper(step, layout, "single", first, row, x, taken, shape, alone=x is None, module=model)
    if x is not None and len(x) > 1:
        made = replace(made, start=row.expand(len(x), -1))
    return made


def _for_many_rows(single: Stepper) -> Stepper:
    """Return a stepper that runs many rows in one call, if the function allows that; otherwise the given stepper.

    Several ways to pass many rows are tried; the first that gives the same results as single calls is used.
    """
    rows = _probes(single)
    x = single.at(0, len(rows) * (1 if single.inputs is None else len(single.inputs)))
    x = None if x is None else x[: len(rows)]
    wanted, _ = single.advance(rows, x, single.frame)
    ways = [replace(single, place=place) for place in ("last", "first")]
    if all(leaf.shape[:1] == (1,) for leaf in single.layout.leaves) and single.shape[:1] in ((1,), ()):
        leaves = tuple(replace(leaf, shape=leaf.shape[1:]) for leaf in single.layout.leaves)
        ways.insert(0, replace(single, place="axis 0", layout=Layout(leaves)))
    if single.layout.differentiable:
        ways.append(replace(single, vectorized=True))
    for way in ways:
        if any(leaf.kind == "number" for leaf in single.layout.leaves):
            break
        try:
            found, _ = way.advance(rows, x, way.framed(len(rows)))
        except Exception:  # whatever it raised, the function does not take rows in this way
            continue
        close = 100 * max(torch.finfo(leaf.dtype).eps for leaf in single.layout.leaves)
        size = close * (1e-30 + float(wanted.nan_to_num().abs().max()))
        if found.shape == wanted.shape and torch.allclose(found, wanted, rtol=close, atol=size, equal_nan=True):
            return way
    return single


def _probes(single: Stepper) -> Tensor:
    """Return test states (count, n) near the first state.

    ``count`` differs from the lengths of all axes of the state, so that no other axis can be taken for the batch axis.
    """
    sizes = {size for leaf in single.layout.leaves for size in leaf.shape}
    count = next(n for n in range(3, 99) if n not in sizes)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, single.size, generator=generator, dtype=torch.float64)
    first = single.start[:1]
    size = float(first.abs().max()) or 1.0
    return (first + 0.01 * size * noise).to(first.dtype)
