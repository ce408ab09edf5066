"""Finds the module, step and mode that made the first NaN, infinity or exploding value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Literal, Self, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from stablessm._arguments import real_number
from stablessm._checked import checked
from stablessm._display import Result
from stablessm._errors import ArgumentError, NumericalError
from stablessm.instruments._first_cause import Cause, first_cause, unstable_weight
from stablessm.instruments._nested import is_numeric, tensors_in
from stablessm.instruments.modes import Mode, mapped_weight, report_modes

Phase: TypeAlias = Literal["parameter", "input", "forward", "gradient"]
Order: TypeAlias = Literal["batch", "time"] | None
"""Which dimension of a sequence comes first, if it is one."""

_REMEDY: dict[Phase, str] = {
    "parameter": "the update before this broke it: clip gradients, lower the learning rate, or give the recurrent "
    "parameters a rate of their own (stablessm.param_groups)",
    "input": "clean the data; what pads a sequence belongs outside it (lengths=)",
    "forward": "look at the size of what goes in: normalize it, lower the learning rate, or leave float16",
    "gradient": "look for an operation with an infinite slope (sqrt, log, norm or division at 0) and add an epsilon "
    "inside it; or clip gradients",
}
_CAUSES: dict[Cause, tuple[str, str]] = {
    "masked softmax": (
        "a softmax over nothing but -∞",
        "every row of an attention mask must leave at least one position visible (its own, or a padding token); or "
        "replace the outputs of fully masked rows by 0 with torch.where",
    ),
    "log": (
        "the logarithm of 0 or of a negative number",
        "clamp the argument (clamp(min=1e-12)) or use log_softmax, logsigmoid or log1p, which do not reach 0",
    ),
    "division": (
        "a division by 0, or a mean or a variance of too few values",
        "add an epsilon to the denominator, or skip empty and constant inputs",
    ),
    "domain": ("a root or a power of a number outside its domain", "clamp the argument to the domain of the function"),
    "exp": ("an exponential that overflows", "subtract the maximum first (softmax, logsumexp) or clamp the exponent"),
    "recurrent weight": (
        "a recurrent weight outside the stable region",
        "scale it to a spectral radius of at most 1 (nn.init.orthogonal_, weight decay), use tanh instead of relu, or "
        "use a layer with a stable map (stablessm.LRU, stablessm.RealSSM)",
    ),
    "overflow": ("finite numbers whose sum or product overflows", _REMEDY["forward"]),
}
_STABLE = (
    "use a stable map ('best' or 'exp', for a matrix 'skew_minus_psd'), which no weight makes unstable; or a "
    "smaller dt under Euler"
)


@final
@dataclass(frozen=True, repr=False)
class Divergence(Result):
    """The first tensor that diverged, in the order of computation."""

    phase: Phase
    """``parameter``: it was bad before it was used. ``input``: so was what came into the model. ``forward``: a value
    computed from good ones. ``gradient``: one in the backward pass."""
    module: str
    """Qualified name; empty for the model itself."""
    kind: str
    """Its class."""
    tensor: str
    """Which tensor: ``output[0]``, ``parameter w``, …"""
    value: float
    """The modulus of its first bad entry."""
    index: tuple[int, ...]
    """Where that is: the earliest in time, for a gradient the latest, which comes first on its way back."""
    batch: int | None
    time: int | None
    channel: int | None
    """The index read as (batch, time, channel), if it is one of a sequence."""
    mode: Mode | None
    """The recurrent mode most to blame: of the module, or, if it has none, an unstable one anywhere in the model."""
    cause: Cause | None = None
    """The kind of operation that made the first bad number of good ones, found by running the module once more."""
    weight: str | None = None
    """Qualified name of the recurrent weight to blame, if ``cause`` is a recurrent weight of a dense matrix."""
    radius: float | None = None
    """The spectral radius of that weight."""

    @property
    def remedy(self) -> str:
        """Return what to do about it."""
        if self.mode is not None and self.mode.unstable:
            return _STABLE
        return _REMEDY[self.phase] if self.cause is None else _CAUSES[self.cause][1]

    def __str__(self) -> str:
        where = f"index {self.index}"
        if self.time is not None:
            where = f"batch {self.batch}, time {self.time}, channel {self.channel}"
        place = f"{self.module!r} ({self.kind})" if self.module else f"the model ({self.kind})"
        blame = "" if self.mode is None else f"; most to blame: {self.mode}{', unstable' * self.mode.unstable}"
        cause = "" if self.cause is None else f"; cause: {_CAUSES[self.cause][0]}"
        radius = "" if self.weight is None else f" ({self.weight}, spectral radius {self.radius:.3g})"
        return f"{self.phase}: {self.value:.3g} in {self.tensor} of {place} at {where}{blame}{cause}{radius}"


@final
class DivergenceError(NumericalError):
    """Raised at a divergence; ``report`` names the module, tensor and step."""

    @checked
    def __init__(self, report: Divergence) -> None:
        super().__init__(str(report), report.remedy)
        self.report = report


@checked
def trace_divergence(
    model: nn.Module, *, when: Literal["raise", "record"] = "raise", limit: float | None = None
) -> DivergenceTrace:
    """Watch a model within a ``with`` block, and name the first value or gradient that is not finite.

    Outputs of all modules are looked at as they come, gradients on their way back, parameters and buffers once at the
    start and again when an output is bad. What comes into a module counts as bad if it holds a NaN or +∞; -∞ is what
    attention masks are made of. An input that is bad but does no harm (a padding) raises no alarm; if a gradient is bad
    afterwards, the input is named.

    Where an output is bad, its module is run once more, operation by operation, to find the ``cause``; random numbers
    and buffers are put back. Results do not change. It costs one sum over every output and gradient, and on a GPU a
    wait for each. Inside compiled modules nothing is seen; what comes out of them is.

    Args:
        model: any module.
        when: ``raise`` a ``DivergenceError`` at the first one, or ``record`` it as ``trace.report`` and go on.
        limit: values and gradients with a larger modulus count as diverged, too.

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
    """A module that is running, and what came into it."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def inputs(self) -> Iterator[tuple[str, Tensor, Order]]:
        return _sequence_first(chain(tensors_in(self.args, "input"), tensors_in(self.kwargs, "input")), self.module)


@final
@dataclass
class _Seen:
    """A tensor whose gradient will come by: which module made it, as which output, and which modules read it."""

    producer: str
    path: str
    order: Order
    readers: list[str] = field(default_factory=list)
    handle: RemovableHandle | None = None


@final
class DivergenceTrace:
    """The context of ``trace_divergence``; ``report`` is the first divergence, or None."""

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
        self._ran: set[str] = set()
        self._seen = WeakTensorKeyDictionary()
        self._paused = False

    def __enter__(self) -> Self:
        self._paused = False
        self._found(self._bad_parameter(""))
        for name, module in self._model.named_modules():
            if "_orig_mod" not in name.split("."):  # what is compiled runs without hooks, or breaks on them
                self._handles += [
                    module.register_forward_pre_hook(partial(self._before, name), with_kwargs=True),
                    module.register_forward_hook(partial(self._after, name), always_call=True),
                ]
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(partial(self._parameter_gradient, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._paused = True  # a graph may outlive its tensors, and with it hooks that nothing here can reach
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
            return  # the last two: it was running when the block began
        outputs = list(_sequence_first(tensors_in(output, "output"), module))
        for path, tensor, order in outputs:
            if _bad(tensor, self._limit):
                self._found(self._forward(path, tensor, order, [state for _, state, _ in outputs[1:]]))
                return
            if tensor.requires_grad:
                self._watch(tensor, name, path, order)
        self._running.pop()
        self._ran.add(name)

    def _watch(self, tensor: Tensor, producer: str, path: str, order: Order) -> _Seen:
        if tensor not in self._seen:
            seen = self._seen[tensor] = _Seen(producer, path, order)
            seen.handle = tensor.register_hook(partial(self._gradient, seen))
        return self._seen[tensor]

    def _gradient(self, seen: _Seen, gradient: Tensor | None) -> None:
        # None comes to an output that nobody used, when its operation has others that somebody did.
        if gradient is None or self._off() or not _bad(gradient, self._limit):
            return
        # Whatever read it had good gradients at its outputs, or this would not be the first bad one.
        readers = [a for a in seen.readers if not any(b != a and _within(b, a) for b in seen.readers)]
        name, tensor = seen.producer, f"the gradient arriving at {seen.path}"
        if readers:
            others = ", ".join(map(repr, dict.fromkeys(readers[1:])))
            name, tensor = readers[0], "the gradient at its input" + (f", which {others} read too," if others else "")
        report = self._bad_input() or self._divergence("gradient", name, tensor, gradient, seen.order)
        self._found(self._explained(report, None))

    def _parameter_gradient(self, qualified: str, gradient: Tensor) -> None:
        if self._off() or not _bad(gradient, self._limit):
            return
        name, _, own = qualified.rpartition(".")
        label = f"the gradient of parameter {own}"
        report = self._bad_input() or self._divergence("gradient", name, label, gradient, parameter=own)
        self._found(self._explained(report, None))

    def _bad_input(self) -> Divergence | None:
        """Return a bad value among what came into the model; it may do no harm before the gradient."""
        if (call := self._outermost) is None:
            return None
        found = ((place, value, order) for place, value, order in call.inputs() if _spoilt(value, self._limit))
        return next((self._divergence("input", call.name, *bad) for bad in found), None)

    def _forward(self, path: str, tensor: Tensor, order: Order, states: list[Tensor]) -> Divergence:
        """Return the report on a bad output: caused by a parameter, an input, code between modules, or the module."""
        call = self._running[-1]
        bad = self._bad_parameter(call.name)
        if bad is not None:
            return bad
        for outer, inner in zip([None, *self._running], self._running, strict=False):
            for place, value, value_order in inner.inputs():
                if not _spoilt(value, self._limit):
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
        """Return the report with its cause: the first bad operation, or the recurrence that made values grow."""
        if report.phase == "input":
            return report
        cause: Cause | None = None
        if call is not None:
            self._paused = True
            cause = first_cause(call.module, call.args, call.kwargs)
            self._paused = False
        if report.mode is not None and report.mode.unstable:
            return replace(report, cause="recurrent weight")
        if cause not in (None, "overflow", "exp"):
            return replace(report, cause=cause)
        # what overflows here may have grown in a recurrence before
        for name in (report.module, *(sorted(self._ran) if call is not None else ())):
            module = self._model.get_submodule(name)
            if (found := unstable_weight(module)) and (name == report.module or _grows(module)):
                qualified = ".".join(filter(None, (name, found[0])))
                return replace(report, cause="recurrent weight", weight=qualified, radius=found[1])
        return replace(report, cause=cause)

    def _bad_parameter(self, name: str) -> Divergence | None:
        module = self._model.get_submodule(name)
        for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
            for qualified, tensor in tensors:
                # a buffer may hold a mask of -∞, a parameter may not
                wrong = _spoilt if kind == "buffer" else _bad
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
        index = _first(_mask(tensor, None if phase == "parameter" else self._limit), order, phase == "gradient")
        batch = time = channel = None
        if order is not None:
            (batch, time), channel = (index[:2] if order == "batch" else index[1::-1]), index[2]
        known = index if parameter is not None and mapped_weight(module) == parameter else None
        mode = None if phase == "input" else self._blame(name, states, known, phase == "forward")
        value = float(tensor[index].abs())
        return Divergence(phase, name, type(module).__name__, label, value, index, batch, time, channel, mode)

    def _blame(self, name: str, states: Sequence[Tensor], index: tuple[int, ...] | None, forward: bool) -> Mode | None:
        """Return the mode at the index; otherwise the mode of the module with the largest state or the fastest growth.

        Where it has none, the fastest growing unstable one; on the way forward of what has run before, if it has any.
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
    """Return the tensors with the sequence, which has three dimensions, first and states after it."""
    first: Order = "time" if getattr(module, "batch_first", True) is False else "batch"
    for i, (path, tensor) in enumerate(tensors):
        yield path, tensor, first if i == 0 and tensor.dim() == 3 else None


def _bad(tensor: Tensor, limit: float | None) -> bool:
    tensor = tensor.detach()
    if limit is not None:
        return tensor.numel() > 0 and not bool(tensor.abs().amax() <= limit)  # so written that NaN is bad
    # One pass without a temporary; a sum of finite numbers may overflow, so look again.
    return not bool(tensor.sum().isfinite()) and not bool(tensor.isfinite().all())


def _mask(tensor: Tensor, limit: float | None) -> Tensor:
    return ~tensor.isfinite() if limit is None else ~(tensor.abs() <= limit)


def _spoilt(tensor: Tensor, limit: float | None) -> bool:
    """Return ``_bad``, except that -∞ alone, as in attention masks, is not bad."""
    tensor = tensor.detach()  # what a block that is computed again saves must not depend on what is found in it
    if not _bad(tensor, limit):
        return False
    return tensor.is_complex() or bool((_mask(tensor, limit) & (tensor != -math.inf)).any())


def _first(bad: Tensor, order: Order, latest: bool) -> tuple[int, ...]:
    """Return the first index that is True, time before batch in a sequence; or the latest in time."""
    if order is None:
        return _unravel(bad)
    times = bad.transpose(0, 1) if order == "batch" else bad
    time, *rest = _unravel(times.flip(0) if latest else times)
    time = len(times) - 1 - time if latest else time
    return (rest[0], time, rest[1]) if order == "batch" else (time, *rest)


def _unravel(bad: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(bad.flatten().byte().argmax(), bad.shape))


def _grows(module: nn.Module) -> bool:
    """Return whether nothing in a recurrence keeps its values bounded, as far as one can tell."""
    return "tanh" not in str(getattr(module, "mode", getattr(module, "nonlinearity", ""))).lower()


def _within(name: str, outer: str) -> bool:
    return not outer or f"{name}.".startswith(f"{outer}.")


@torch.no_grad()
def _replay(module: Any, x: Tensor, state: Any = None, *, limit: float | None) -> tuple[int, Tensor, Any] | None:
    """Return the first bad step with its output and state: a convolution spreads one overflow over all times."""
    try:
        for time, x_t in enumerate(x.unbind(1)):
            y, state = module.step(x_t, state)
            if _bad(y, limit):
                return time, y, state
    except Exception:  # a diagnosis must not fail for a reason of its own: no step(), or another kind of one
        pass
    return None
