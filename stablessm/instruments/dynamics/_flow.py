"""Runs any causal model on whole sequences, and differentiates its outputs with respect to inputs and states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from stablessm._errors import ArgumentError, NumericalError
from stablessm.instruments import systems
from stablessm.instruments._precision import doubled
from stablessm.instruments._tangent import tangents
from stablessm.instruments.adapters import as_stateful
from stablessm.instruments.adapters.facts import by_step, evaluating, is_transformer, name_of
from stablessm.instruments.dynamics._layout import Layout, Place, layout_of, place_of
from stablessm.instruments.dynamics._pushing import near
from stablessm.instruments.dynamics._stepping import sequences

Run: TypeAlias = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""(inputs (R, T, d), state or None) -> (outputs (R, T, d_output), state or None)."""

CAUSAL = 1e-5
"""Smallest change of earlier outputs, relative to the largest output, that shows that a model is not causal."""


class Pushed(NamedTuple):
    """The result of :meth:`Flow.push`: outputs and states after some steps, and their first-order changes."""

    y: Tensor
    dy: Tensor
    state: Tensor | None
    dstate: Tensor | None
    frame: Any


@final
@dataclass
class Flow:
    """A causal model with a batch of input sequences; tokens are represented by their embeddings."""

    run: Run
    x: Tensor
    """Inputs (B, T, d), or the embeddings of tokens."""
    place: Place
    carries: bool
    """Whether the model returns a state."""
    differences: bool = False
    """Whether derivatives are finite differences."""
    change: float | None = None
    """Size of a finite difference (default: from the precision)."""
    layout: Layout | None = None

    def push(self, x: Tensor, dx: Tensor, state: Tensor | None, dstate: Tensor | None, frame: Any) -> Pushed:
        """Run R sequences x (R, T, d) from states (R, n); return outputs and final states with their derivatives.

        The derivatives dy and dstate of the result are the first-order changes of the outputs and final states if x
        changes by ``dx`` and the first states by ``dstate``. ``frame`` is a state object as the model returns it, which
        provides the structure of the states.
        """
        if self.differences:
            return self._difference(x, dx, state, dstate, frame)
        with tangents():
            held = None
            if state is not None and self.layout is not None:
                held = self.layout.unpack(forward_ad.make_dual(state, dstate), frame, self.place)
            y, after = self.run(forward_ad.make_dual(x.contiguous(), dx), held)
            rows = self._packed(after)
            value, change = (None, None) if rows is None else _parts(rows)
            return Pushed(*_parts(y), value, change, after)

    def _difference(self, x: Tensor, dx: Tensor, state: Tensor | None, dstate: Tensor | None, frame: Any) -> Pushed:
        h = (self.change or torch.finfo(x.dtype).eps ** (1 / 3)) * (float(self.x.abs().max()) or 1.0)
        ends = []
        for sign in (h, -h):
            held = None
            if state is not None and dstate is not None and self.layout is not None:
                held = self.layout.unpack(state + sign * dstate, frame, self.place)
            y, after = self.run(x + sign * dx, held)
            ends.append((y, self._packed(after), after))
        (y, rows, after), (y_behind, rows_behind, _) = ends
        if rows is None or rows_behind is None:
            return Pushed(y, (y - y_behind) / (2 * h), None, None, after)
        return Pushed(y, (y - y_behind) / (2 * h), (rows + rows_behind) / 2, (rows - rows_behind) / (2 * h), after)

    def _packed(self, state: Any) -> Tensor | None:
        if not self.carries:
            return None
        if self.layout is None:
            self.layout = layout_of(state, self.place, precise=False)
        return self.layout.pack(state, self.place)


def _parts(dual: Tensor) -> tuple[Tensor, Tensor]:
    value, tangent = forward_ad.unpack_dual(dual)
    return value.detach(), torch.zeros_like(value) if tangent is None else tangent.detach()


@contextmanager
def flow(model: Any, inputs: Any, *, precise: bool) -> Iterator[Flow]:
    """Return a context manager that yields a :class:`Flow` for a model and its inputs.

    Inputs are (time,), (time, d_input), (batch, time, d_input), or tokens. With ``precise``, a copy of a module runs in
    float64 if that is possible.
    """
    x = sequences(inputs)
    if x.is_complex():
        raise ArgumentError("inputs", "real numbers or tokens", x.dtype)
    tokens = not x.is_floating_point()
    x = x[..., None] if not tokens and x.dim() == 2 else x
    model = doubled(model) if precise else model
    with evaluating(model):
        found, hook = _of_tokens(model, x) if tokens else (_of_values(model, x), None)
        try:
            _require_causal(model, found)
            found.differences = _needs_differences(found)
            yield found
        finally:
            if hook is not None:
                hook.remove()


def _require_causal(model: Any, found: Flow) -> None:
    """Raise an error if the outputs are not finite, differ from call to call, or depend on later inputs."""
    with torch.no_grad():
        y = found.run(found.x[:1], None)[0]
        if not bool(y.isfinite().all()):
            raise NumericalError("the outputs of the model on these inputs are not finite", "give smaller inputs")
        # a float64 function may round to float32 internally
        tol = CAUSAL if torch.finfo(y.dtype).eps < 1e-5 else 5e-2
        systems.require_causal(name_of(model), lambda x: found.run(x, None)[0], found.x[:1], y, tol)


def _of_values(model: Any, x: Tensor) -> Flow:
    try:
        adapter = as_stateful(model, d_input=x.shape[-1])
    except ArgumentError:
        system = systems.as_system(model, d_input=x.shape[-1])
        if system.pooled:
            raise ArgumentError("model", "an output at every step", "one output per sequence") from None
        return Flow(lambda u, _: (system.call(u, None)[0], None), x.to(system.device, system.dtype), "axis 0", False)
    return _tested(Flow(adapter.run, x.to(adapter.device, adapter.dtype), place_of(adapter), True))


def _of_tokens(model: Any, tokens: Tensor) -> tuple[Flow, Any]:
    """Return a flow whose inputs are embeddings of tokens, and a hook for the first embedding layer of the model.

    The hook replaces the output of the embedding layer by the inputs of the flow, and must be removed afterwards.
    """
    parts = model.modules() if isinstance(model, nn.Module) else ()
    tables = [part for part in parts if isinstance(part, nn.Embedding)]
    if is_transformer(model):
        tables = [model.get_input_embeddings()]
    if not tables:
        raise ArgumentError("inputs", "real numbers, since the model has no embedding of tokens", "whole numbers")
    given: list[Tensor] = []
    with torch.no_grad():
        x = tables[0](tokens.to(tables[0].weight.device)).detach()
    hook = tables[0].register_forward_hook(lambda module, args, output: given[-1] if given else output)
    call = as_stateful(model).run if is_transformer(model) else by_step(model)

    def run(embedded: Tensor, state: Any) -> tuple[Tensor, Any]:
        given.append(embedded)
        try:
            ids = torch.zeros(embedded.shape[:2], dtype=torch.long, device=embedded.device)
            return call(ids, state)
        finally:
            given.clear()

    return _tested(Flow(run, x, "axis 0", True)), hook


def _tested(found: Flow) -> Flow:
    """Return the given flow, after two checks: of the shape of the outputs, and whether the model can carry its state.

    The result of the second check is stored as ``carries``.
    """
    with torch.no_grad():
        y, state = found.run(found.x[:1, :3], None)
        if y.dim() != 3 or y.shape[1] != min(3, found.x.shape[1]):
            raise ArgumentError("model", "outputs (batch, time, d_output)", f"shape {tuple(y.shape)}")
        try:
            before = layout_of(state, found.place, precise=False)
            _, state = found.run(found.x[:1, :2], state)
            found.carries = before.size > 0 and layout_of(state, found.place, precise=False) == before
        except ArgumentError:
            found.carries = False
    return found


def _needs_differences(found: Flow) -> bool:
    """Return True if finite differences must be used, because forward derivatives do not exist or are wrong."""
    x = found.x[:1, :4].clone()
    dx = torch.ones_like(x)
    with torch.no_grad():
        try:
            exact = found.push(x, dx, None, None, None)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):  # an operation without a derivative
            return True
        finite = [
            Flow(found.run, found.x, found.place, False, differences=True, change=change)
            .push(x, dx, None, None, None)
            .dy
            for change in (1e-5, 1e-3)
        ]
    if any(near(exact.dy, each, 1e-2) for each in finite):
        return False
    return near(finite[0], finite[1], 1e-2)  # a model that rounds to float32 internally has no accurate differences
