"""Search for the module, time step and mode that produced the first NaN, infinity or exploding value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal, Self, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from stablessm._arguments import real_number
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.instruments._bad_values import Order, bad_entries, first_bad, is_bad, is_spoilt
from stablessm.instruments._divergence_report import Divergence, DivergenceError, Phase
from stablessm.instruments._first_cause import OFTEN, first_cause, unstable_weight
from stablessm.instruments._nested import is_numeric, tensors_in
from stablessm.instruments.modes import Mode, mapped_weight, report_modes

__all__ = ["Divergence", "DivergenceError", "DivergenceTrace", "trace_divergence"]


@checked
def trace_divergence(
    model: nn.Module, *, when: Literal["raise", "record"] = "raise", limit: float | None = None
) -> DivergenceTrace:
    """Return a context that watches a model and reports the first value or gradient that is not finite.

    The outputs of all modules are checked in the forward pass, gradients in the backward pass, parameters and buffers
    at the start of the block and again when an output is bad. An input of a module is bad if it contains NaN or +∞;
    attention masks consist of -∞. A bad input that does not affect an output, such as padding, is not reported, unless
    a gradient turns bad afterwards.

    When an output is bad, its module runs again, operation by operation, to find the ``cause``; when a gradient is bad,
    the whole model does. The random state and the buffers are restored. Results do not change. The cost is one sum over
    every output and gradient, each of which waits for a GPU. The inside of a compiled module is not watched, its
    outputs are.

    Args:
        model: Any module.
        when: ``raise`` a ``DivergenceError`` at the first divergence, or ``record`` it as ``trace.report``.
        limit: Values and gradients with a larger modulus count as diverged, too (default: none do).

    >>> import stablessm as ssm
    >>> layer = ssm.RealSSM(1, 2, 1, map="direct", eigenvalues=torch.tensor([-1.0, 0.5]))
    >>> with trace_divergence(nn.ModuleList([layer]), when="record") as trace:
    ...     y, state = layer(torch.ones(1, 500, 1))
    >>> trace.report.module, trace.report.mode.index, trace.report.mode.eigenvalue
    ('0', (1,), (0.5+0j))
    """
    return DivergenceTrace(model, when, limit)


@final
@dataclass(frozen=True)
class _Call:
    """A running call of a module, with the arguments of the call."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def inputs(self) -> Iterator[tuple[str, Tensor, Order]]:
        return _sequence_first(chain(tensors_in(self.args, "input"), tensors_in(self.kwargs, "input")), self.module)


@final
@dataclass
class _Seen:
    """A tensor whose gradient is watched: the module and output that produced it, and the modules that read it."""

    producer: str
    path: str
    order: Order
    readers: list[str] = field(default_factory=list)
    handle: RemovableHandle | None = None


@final
class DivergenceTrace:
    """The context manager that ``trace_divergence`` returns; ``report`` is the first divergence, or None."""

    def __init__(self, model: nn.Module, when: Literal["raise", "record"], limit: float | None) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError("model", "an nn.Module, whose submodules can be watched", type(model).__name__)
        if when not in ("raise", "record"):
            raise ArgumentError("when", "'raise' or 'record'", repr(when))
        if limit is not None:
            real_number("limit", limit, 0)
        self.report: Divergence | None = None
        self._model, self._when, self._limit = model, when, limit
        self._handles: list[RemovableHandle] = []
        self._running: list[_Call] = []
        self._outermost: _Call | None = None
        self._ran: Counter[str] = Counter()
        self._seen = WeakTensorKeyDictionary()
        self._paused = False

    def __enter__(self) -> Self:
        self._paused = False
        self._found(self._bad_parameter(""))
        for name, module in self._model.named_modules():
            if "_orig_mod" not in name.split("."):  # a compiled module ignores hooks, or cannot be compiled with them
                self._handles += [
                    module.register_forward_pre_hook(partial(self._before, name), with_kwargs=True),
                    module.register_forward_hook(partial(self._after, name), always_call=True),
                ]
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(partial(self._parameter_gradient, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._paused = True  # a graph may outlive its tensors and keep hooks that cannot be removed here
        for handle in (*self._handles, *(seen.handle for seen in self._seen.values())):
            handle.remove()
        self._handles.clear()
        self._running.clear()
        self._outermost = None

    def _before(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._off():
            return
        call = _Call(name, module, args, kwargs)
        if not self._running:
            self._ran.clear()
            self._outermost = call
        self._running.append(call)
        for path, tensor, order in call.inputs():
            if tensor.requires_grad:
                self._watch(tensor, name, path, order).readers.append(name)

    def _after(self, name: str, module: nn.Module, _: Any, output: Any) -> None:
        if self._off() or not self._running or self._running[-1].module is not module:
            return  # the last two conditions: the module was running when the block began
        outputs = list(_sequence_first(tensors_in(output, "output"), module))
        for path, tensor, order in outputs:
            if is_bad(tensor, self._limit):
                self._found(self._forward(path, tensor, order, [state for _, state, _ in outputs[1:]]))
                return
            if tensor.requires_grad:
                self._watch(tensor, name, path, order)
        self._running.pop()
        self._ran[name] += 1

    def _watch(self, tensor: Tensor, producer: str, path: str, order: Order) -> _Seen:
        if tensor not in self._seen:
            seen = self._seen[tensor] = _Seen(producer, path, order)
            seen.handle = tensor.register_hook(partial(self._gradient, seen))
        return self._seen[tensor]

    def _gradient(self, seen: _Seen, gradient: Tensor | None) -> None:
        # The gradient is None for an unused output of an operation whose other outputs are used.
        if gradient is None or self._off() or not is_bad(gradient, self._limit):
            return
        # This is the first bad gradient, so the gradients at the outputs of the modules that read the tensor were good.
        readers = [a for a in seen.readers if not any(b != a and _within(b, a) for b in seen.readers)]
        name, tensor = seen.producer, f"the gradient arriving at {seen.path}"
        if readers:
            others = ", ".join(map(repr, dict.fromkeys(readers[1:])))
            name, tensor = readers[0], "the gradient at its input" + (f", which {others} read too," if others else "")
        report = self._bad_input() or self._divergence("gradient", name, tensor, gradient, seen.order)
        from_loss = not readers and self._outermost is not None and name == self._outermost.name
        self._found(self._explained(report, None if from_loss else self._outermost))

    def _parameter_gradient(self, qualified: str, gradient: Tensor) -> None:
        if self._off() or not is_bad(gradient, self._limit):
            return
        name, _, own = qualified.rpartition(".")
        label = f"the gradient of parameter {own}"
        report = self._bad_input() or self._divergence("gradient", name, label, gradient, parameter=own)
        self._found(self._explained(report, self._outermost))

    def _bad_input(self) -> Divergence | None:
        """Return a report if an input of the model contains a NaN, infinity or exploding value; otherwise None."""
        if (call := self._outermost) is None:
            return None
        found = ((place, value, order) for place, value, order in call.inputs() if is_spoilt(value, self._limit))
        return next((self._divergence("input", call.name, *bad) for bad in found), None)

    def _forward(self, path: str, tensor: Tensor, order: Order, states: list[Tensor]) -> Divergence:
        """Return a report on a bad output, with its origin: a parameter, an input, the module, or code
        between modules.
        """
        call = self._running[-1]
        bad = self._bad_parameter(call.name)
        if bad is not None:
            return bad
        for outer, inner in zip([None, *self._running], self._running, strict=False):
            for place, value, value_order in inner.inputs():
                if not is_spoilt(value, self._limit):
                    continue
                if outer is None:
                    return self._divergence("input", inner.name, place, value, value_order)
                label = f"a value on its way into {inner.name!r}"
                bad = self._bad_parameter(outer.name)
                report = bad or self._divergence("forward", outer.name, label, value, value_order)
                return bad or self._explained(report, outer)
        report = self._divergence("forward", call.name, path, tensor, order, states)
        if report.time == 0 and not call.kwargs:
            self._paused = True
            moment = _replay(call.module, *call.args, limit=self._limit)
            self._paused = False
            if moment is not None:
                time, y, state = moment
                states = [part for _, part in tensors_in(state, "state")]
                here = self._divergence("forward", call.name, path, y[:, None], order, states)
                report = replace(here, index=(*here.index[:1], time, *here.index[2:]), time=time)
        return self._explained(report, call)

    def _explained(self, report: Divergence, call: _Call | None) -> Divergence:
        """Add to a report the cause of the divergence: the first bad operation, or an unstable recurrence that ran
        before.
        """
        if report.phase == "input":
            return report
        cause, often, forward = None, frozenset[int](), report.phase == "forward"
        if call is not None:
            self._paused = True
            cause, often = first_cause(call.module, call.args, call.kwargs, steep=not forward)
            self._paused = False
        if report.mode is not None and report.mode.unstable:
            return replace(report, cause="recurrent weight")
        if cause not in (None, "overflow", "exp"):
            return replace(report, cause=cause)
        # values that overflow here may have grown in a recurrence before
        for name in (report.module, *(sorted(self._ran) if forward else ())):
            module, near = self._model.get_submodule(name), _within(name, report.module)
            repeated = near and (name == report.module) + self._ran[name] >= OFTEN
            found = unstable_weight(module, often=often, repeated=repeated)
            if found is not None and (near or _grows(module)):
                qualified = ".".join(filter(None, (name, found[0])))
                return replace(report, cause="recurrent weight", weight=qualified, radius=found[1])
        return replace(report, cause=cause)

    def _bad_parameter(self, name: str) -> Divergence | None:
        module = self._model.get_submodule(name)
        for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
            for qualified, tensor in tensors:
                # a buffer may hold a mask of -∞, a parameter may not
                wrong = is_spoilt if kind == "buffer" else is_bad
                if is_numeric(tensor) and wrong(tensor.detach(), None):
                    inner, _, own = qualified.rpartition(".")
                    owner = ".".join(filter(None, (name, inner)))
                    return self._divergence("parameter", owner, f"{kind} {own}", tensor, parameter=own)
        return None

    def _divergence(
        self,
        phase: Phase,
        name: str,
        label: str,
        tensor: Tensor,
        order: Order = None,
        states: Sequence[Tensor] = (),
        parameter: str | None = None,
    ) -> Divergence:
        tensor, module = tensor.detach(), self._model.get_submodule(name)
        index = first_bad(
            bad_entries(tensor, None if phase == "parameter" else self._limit), order, phase == "gradient"
        )
        batch = time = channel = None
        if order is not None:
            (batch, time), channel = (index[:2] if order == "batch" else index[1::-1]), index[2]
        known = index if parameter is not None and mapped_weight(module) == parameter else None
        mode = None if phase == "input" else self._blame(name, states, known, phase == "forward")
        value = float(tensor[index].abs())
        return Divergence(phase, name, type(module).__name__, label, value, index, batch, time, channel, mode)

    def _blame(self, name: str, states: Sequence[Tensor], index: tuple[int, ...] | None, forward: bool) -> Mode | None:
        """Return the mode that most likely caused a divergence: the mode at ``index``, or the largest or fastest
        growing mode.

        If the module has no modes, the fastest growing unstable mode of the model is returned; in the forward pass, one
        of a module that has already run, if there is one.
        """
        try:
            modes = report_modes(self._model)
        except (ArgumentError, RuntimeError):  # no recurrence, or a matrix too bad to have eigenvalues
            return None
        own = [i for i in range(len(modes)) if modes.module[i] == name and index in (None, modes.index[i])]
        growth, size = np.nan_to_num(modes.growth, nan=np.inf), np.zeros(len(modes))
        for state in states:
            if state.dim() > 1 and state.numel() and state[0].numel() == len(own):
                size[own] = state.detach().abs().nan_to_num(nan=math.inf).amax(0).flatten().double().cpu().numpy()
        unstable = np.flatnonzero(modes.growth > 0).tolist()
        before = [i for i in unstable if forward and modes.module[i] in self._ran]
        candidates = own or before or unstable
        return modes[max(candidates, key=lambda i: (size[i], growth[i]))] if candidates else None

    def _found(self, report: Divergence | None) -> None:
        self.report = report
        if report is not None and self._when == "raise":
            raise DivergenceError(report)

    def _off(self) -> bool:
        return self.report is not None or self._paused or torch.compiler.is_compiling()


def _sequence_first(tensors: Iterable[tuple[str, Tensor]], module: nn.Module) -> Iterator[tuple[str, Tensor, Order]]:
    """Yield the tensors of a module; the first is marked as a sequence, with its order of axes, if it has three
    dimensions.
    """
    first: Order = "time" if getattr(module, "batch_first", True) is False else "batch"
    for i, (path, tensor) in enumerate(tensors):
        yield path, tensor, first if i == 0 and tensor.dim() == 3 else None


def _grows(module: nn.Module) -> bool:
    """Return True if the values of a recurrence can grow, because its nonlinearity is not tanh."""
    return "tanh" not in str(getattr(module, "mode", getattr(module, "nonlinearity", ""))).lower()


def _within(name: str, outer: str) -> bool:
    return not outer or f"{name}.".startswith(f"{outer}.")


@torch.no_grad()
def _replay(module: Any, x: Tensor, state: Any = None, *, limit: float | None) -> tuple[int, Tensor, Any] | None:
    """Run a module step by step; return the first bad step with its output and state, or None.

    This is necessary because a convolution spreads one overflow over all times.
    """
    try:
        for time, x_t in enumerate(x.unbind(1)):
            y, state = module.step(x_t, state)
            if is_bad(y, limit):
                return time, y, state
    except Exception:  # the module has no step(), or one with another signature
        pass
    return None
