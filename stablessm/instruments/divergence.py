"""Search for the module, time step and mode that produced the first NaN, infinity or exploding value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from stablessm._checked import Positive, checked
from stablessm._errors import ArgumentError
from stablessm.instruments._bad_values import Order, bad_entries, first_bad, is_bad, is_mask, is_spoilt
from stablessm.instruments._divergence_calls import Call, Seen, first_bad_step, grows, sequence_first, within
from stablessm.instruments._divergence_report import Divergence, DivergenceError, Phase
from stablessm.instruments._first_cause import Replay, first_cause, is_large, unstable_weight
from stablessm.instruments._growth import OFTEN, qualified_name
from stablessm.instruments._nested import is_numeric, tensors_in
from stablessm.instruments.modes import Mode, mapped_weight, report_modes

__all__ = ["Divergence", "DivergenceError", "DivergenceTrace", "trace_divergence"]

When: TypeAlias = Literal["raise", "record"]


@checked
def trace_divergence(model: nn.Module, *, when: When = "raise", limit: Positive | None = None) -> DivergenceTrace:
    """Return a context manager that watches a model and reports the first value or gradient that is not finite.

    The outputs of all modules are checked in the forward pass, gradients in the backward pass, parameters and buffers
    at the start of the block and again when an output is bad. An input of a module is bad if it contains NaN, +∞ or -∞.
    An attention mask may contain -∞. A tensor is taken for a mask if the name of its argument contains "mask", if all
    its other entries are 0, or if a module without floating-point inputs returned it without a gradient. A bad input
    that does not affect an output, such as padding, is not reported, unless a gradient becomes bad afterwards. An index
    outside the table of an ``nn.Embedding`` is reported too.

    When an output is bad, its module runs again, operation by operation, to find the ``cause``; when a gradient is bad,
    the whole model runs again. The random state and the buffers are restored. Results do not change. The cost is one
    sum over every output and gradient; on a GPU, each sum forces a synchronization. Of a compiled module, only the
    outputs are watched.

    Args:
        model: Any module.
        when: ``raise`` a ``DivergenceError`` at the first divergence, or ``record`` it as ``trace.report``.
        limit: Values and gradients with a larger modulus also count as diverged (default: no limit).

    >>> import stablessm as ssm
    >>> layer = ssm.RealSSM(1, 2, 1, map="direct", eigenvalues=torch.tensor([-1.0, 0.5]))
    >>> with trace_divergence(nn.ModuleList([layer]), when="record") as trace:
    ...     y, state = layer(torch.ones(1, 500, 1))
    >>> trace.report.module, trace.report.mode.index, trace.report.mode.eigenvalue
    ('0', (1,), (0.5+0j))
    """
    return DivergenceTrace(model, when, limit)


@final
class DivergenceTrace:
    """The context manager that ``trace_divergence`` returns; ``report`` is the first divergence, or None."""

    def __init__(self, model: nn.Module, when: When, limit: float | None) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError("model", "an nn.Module, whose submodules can be watched", type(model).__name__)
        self.report: Divergence | None = None
        self._model, self._when, self._limit = model, when, limit
        self._handles: list[RemovableHandle] = []
        self._running: list[Call] = []
        self._outermost: Call | None = None
        self._outputs: list[Tensor] = []
        self._ran: Counter[str] = Counter()
        self._seen = WeakTensorKeyDictionary()
        self._paused = False
        self._replayed: list[str] = []

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
        self._outputs.clear()

    def _before(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._paused:
            self._replayed.append(name)
        if self._off():
            return
        call = Call(name, module, args, kwargs)
        if not self._running:
            self._ran.clear()
            self._outermost = call
        self._running.append(call)
        for path, tensor, order in call.inputs():
            if tensor.requires_grad:
                self._watch(tensor, name, path, order).readers.append(name)
        if isinstance(module, nn.Embedding) and args and isinstance(args[0], Tensor) and args[0].numel():
            outside = (args[0] < 0) | (args[0] >= module.num_embeddings)
            if bool(outside.any()):
                report = self._divergence("forward", name, "input[0]", args[0], entries=outside)
                self._found(replace(report, cause="index"))

    def _after(self, name: str, module: nn.Module, _: Any, output: Any) -> None:
        if self._paused and self._replayed:
            self._replayed.pop()
        if self._off() or not self._running or self._running[-1].module is not module:
            return  # the last two conditions hold if the module was running when the block began
        outputs = list(sequence_first(tensors_in(output, "output"), module))
        mask = (
            next(self._running[-1].inputs(), None) is None
        )  # the output of a module without floating-point inputs may be a mask
        for path, tensor, order in outputs:
            bad = is_spoilt if mask and not tensor.requires_grad else is_bad
            if bad(tensor, self._limit):
                self._found(self._forward(path, tensor, order, [state for _, state, _ in outputs[1:]]))
                return
            if tensor.requires_grad:
                self._watch(tensor, name, path, order).final |= len(self._running) == 1
        self._running.pop()
        self._ran[name] += 1
        if not self._running:
            self._outputs = [tensor.detach() for _, tensor, _ in outputs]

    def _watch(self, tensor: Tensor, producer: str, path: str, order: Order) -> Seen:
        if tensor not in self._seen:
            seen = self._seen[tensor] = Seen(producer, path, order)
            seen.handle = tensor.register_hook(partial(self._gradient, seen))
        return self._seen[tensor]

    def _gradient(self, seen: Seen, gradient: Tensor | None) -> None:
        # The gradient is None for an unused output of an operation whose other outputs are used.
        if gradient is None or self._off() or not is_bad(gradient, self._limit):
            return
        # This is the first bad gradient, so the gradients at the outputs of the modules that read the tensor were good.
        readers = [a for a in seen.readers if not any(b != a and within(b, a) for b in seen.readers)]
        from_loss = not readers and seen.final
        replay = None if from_loss else self._again(self._outermost, gradient=True)
        name, tensor = seen.producer, f"the gradient arriving at {seen.path}"
        if readers:
            if replay is not None and replay.cause is not None:  # a reader that contains the operation comes first
                readers.sort(key=lambda reader: not within(replay.place, reader))
            others = ", ".join(map(repr, dict.fromkeys(readers[1:])))
            name, tensor = readers[0], "the gradient at its input" + (f", which {others} read too," if others else "")
        report = self._bad_input() or self._divergence("gradient", name, tensor, gradient, seen.order)
        if from_loss and report.phase == "gradient":
            large = any(is_large(y, 1e4) for y in self._outputs)
            if not large and not math.isfinite(report.value):
                self._found(replace(report, cause="loss", mode=None))  # no mode made finite outputs a bad gradient
                return
            report = replace(report, cause="overflow" if large else None)
        self._found(self._explained(report, replay))

    def _parameter_gradient(self, qualified: str, gradient: Tensor) -> None:
        if self._off() or not is_bad(gradient, self._limit):
            return
        name, _, own = qualified.rpartition(".")
        label = f"the gradient of parameter {own}"
        report = self._bad_input() or self._divergence("gradient", name, label, gradient, parameter=own)
        self._found(self._explained(report, self._again(self._outermost, gradient=True)))

    def _bad_input(self) -> Divergence | None:
        """Return a report if an input of the model is NaN, infinite or above the limit; otherwise None."""
        if (call := self._outermost) is None:
            return None
        found = ((place, value, order) for place, value, order in call.inputs() if is_spoilt(value, self._limit))
        return next((self._divergence("input", call.name, *bad) for bad in found), None)

    def _forward(self, path: str, tensor: Tensor, order: Order, states: list[Tensor]) -> Divergence:
        """Return a report on an output of the running module that is NaN, infinite or above the limit.

        The report names the origin of the value: a parameter, an input of the model, the module itself, or the code of
        an outer module.
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
                return bad or self._explained(report, self._again(outer), outer)
        report = self._divergence("forward", call.name, path, tensor, order, states)
        if report.time == 0 and not call.kwargs:
            self._paused = True
            moment = first_bad_step(call.module, *call.args, limit=self._limit)
            self._paused = False
            if moment is not None:
                time, y, state = moment
                states = [part for _, part in tensors_in(state, "state")]
                here = self._divergence("forward", call.name, path, y[:, None], order, states)
                report = replace(here, index=(*here.index[:1], time, *here.index[2:]), time=time)
        replay = self._again(call)
        masked = replay is not None and replay.cause == "masked softmax"
        low = None if masked else self._low_value()
        return low or self._explained(report, replay, call)

    def _low_value(self) -> Divergence | None:
        """Return a report on the first input of a running module that contains -∞ but is not a mask, or None."""
        for outer, inner in zip([None, *self._running], self._running, strict=False):
            for place, value, order in inner.inputs():
                if not is_bad(value, None) or (place != "input[0]" and is_mask(place, value)):
                    continue
                if outer is None:
                    return self._divergence("input", inner.name, place, value, order)
                label = f"a value on its way into {inner.name!r}"
                return self._explained(
                    self._divergence("forward", outer.name, label, value, order), self._again(outer), outer
                )
        return None

    def _again(self, call: Call | None, gradient: bool = False) -> Replay | None:
        """Run a module again and watch every operation.

        If the module is called many times in a loop, such as the cell of a recurrence, the module that contains the
        loop runs instead.

        With ``gradient``, search for the cause of a bad gradient instead of the cause of a bad output.
        """
        if call is None:
            return None
        if self._ran[call.name] >= OFTEN:
            call = next((a for a in reversed(self._running) if self._ran[a.name] < OFTEN), call)
        self._paused = True
        place = lambda: self._replayed[-1] if self._replayed else ""  # noqa: E731
        replay = first_cause(call.module, call.args, call.kwargs, steep=gradient, place=place)
        self._replayed.clear()
        self._paused = False
        return replay

    def _explained(self, report: Divergence, replay: Replay | None, call: Call | None = None) -> Divergence:
        """Return a report with the cause of the divergence added.

        The cause is the first operation with a bad result or, if this operation overflowed, an unstable recurrence that
        ran before.
        """
        if report.phase == "input":
            return report
        forward, cause = report.phase == "forward", report.cause if replay is None else replay.cause
        mode = report.mode if report.mode is not None and report.mode.unstable else None
        if mode is not None and within(mode.module, report.module):
            return replace(report, cause="recurrent weight")
        report = replace(report, cause=cause, mode=None if mode is not None else report.mode)
        if cause not in (None, "overflow", "exp"):
            return report
        # values that overflow here may have grown in a recurrence
        often = frozenset[int]() if replay is None else replay.often
        inside = [name for name in self._ran if within(name, report.module)]
        for name in (report.module, *sorted(inside)):
            repeated = (name == report.module) + self._ran[name] >= OFTEN
            if (found := self._unstable_weight(name, often, repeated)) is not None:
                return replace(report, cause="recurrent weight", weight=found[0], radius=found[1])
        growing = None if replay is None or cause == "exp" else replay.growing
        if growing is not None and (weight := qualified_name(self._model, growing[0])) is not None:
            return replace(report, cause="recurrent weight", weight=weight, radius=growing[1])
        # a recurrence elsewhere is suspected if what it returned was large
        if forward and (call is None or any(is_large(value, 1e4) for _, value, _ in call.inputs())):
            if mode is not None:
                return replace(report, cause="recurrent weight", mode=mode)
            for name in sorted(self._ran):
                found = self._unstable_weight(name, often, False) if grows(self._model.get_submodule(name)) else None
                if found is not None:
                    return replace(report, cause="recurrent weight", weight=found[0], radius=found[1])
        if mode is not None and not forward and self._was_large(mode.module):
            return replace(report, cause="recurrent weight", mode=mode)
        return report

    def _unstable_weight(self, name: str, often: frozenset[int], repeated: bool) -> tuple[str, float] | None:
        found = unstable_weight(self._model.get_submodule(name), often=often, repeated=repeated)
        return found and (".".join(filter(None, (name, found[0]))), found[1])

    def _was_large(self, name: str) -> bool:
        """Return True if a watched output of a module is so large that products with it may overflow."""
        return any(is_large(y, 1e4) for y, seen in self._seen.items() if seen.producer == name)

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
        entries: Tensor | None = None,
    ) -> Divergence:
        tensor, module = tensor.detach(), self._model.get_submodule(name)
        if entries is None:
            entries = bad_entries(tensor, None if phase == "parameter" else self._limit)
        index = first_bad(entries, order, phase == "gradient")
        batch = time = channel = None
        if order is not None:
            (batch, time), channel = (index[:2] if order == "batch" else index[1::-1]), index[2]
        known = index if parameter is not None and mapped_weight(module) == parameter else None
        mode = None if phase == "input" else self._blame(name, states, known, phase == "forward")
        if phase == "parameter" and mode is not None and mode.module != name:
            mode = None
        value = float(tensor[index].abs() if is_numeric(tensor) else tensor[index])
        return Divergence(phase, name, type(module).__name__, label, value, index, batch, time, channel, mode)

    def _blame(self, name: str, states: Sequence[Tensor], index: tuple[int, ...] | None, forward: bool) -> Mode | None:
        """Return the mode that most likely caused a divergence, or None.

        This is the mode of the module ``name`` at ``index`` or, without an index, the unstable mode of this module with
        the largest state (if no states are known, with the fastest growth). Otherwise the result is the fastest growing
        unstable mode of the modules that have already run in the forward pass. If these have no unstable mode, it is
        the fastest growing unstable mode of the model. In the forward pass of a module that has modes, all of them
        stable, the rest of the model is not considered, and the result is None.
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
        unstable = np.flatnonzero(growth > 0).tolist()
        before = [i for i in unstable if forward and modes.module[i] in self._ran]
        likely = own if index is not None else [i for i in own if i in unstable]
        candidates = likely or before or ([] if own and forward else unstable)
        return modes[max(candidates, key=lambda i: (size[i], growth[i]))] if candidates else None

    def _found(self, report: Divergence | None) -> None:
        self.report = report
        if report is not None and self._when == "raise":
            raise DivergenceError(report)

    def _off(self) -> bool:
        return self.report is not None or self._paused or torch.compiler.is_compiling()
