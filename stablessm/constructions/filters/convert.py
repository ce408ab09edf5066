"""Conversion of a model with long filters to a model that streams in constant memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from stablessm._checked import Count, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError, NumericalError
from stablessm.constructions.filters.from_convolution import from_convolution
from stablessm.constructions.filters.layer import FilterFit, RecurrentConvolution
from stablessm.instruments.adapters.facts import evaluating
from stablessm.layers import Bidirectional, SequenceLayer
from stablessm.scan.checks import check_tensor


@final
@checked
@dataclass(frozen=True, repr=False)
class LongFilter(Result):
    """The filter with which a module convolves its input over time."""

    taps: Tensor
    """Filter values of shape (channels, length), or (d_out, d_in, length): y[t] = Σ_k taps[k] x[t-k]."""
    finite: bool
    """Whether the filter is zero after its last tap. Otherwise its later values are unspecified."""
    channels_last: bool = True
    """Whether the module is called on (batch, time, channel); otherwise on (batch, channel, time)."""
    bias: Tensor | None = None
    """Bias (d_out,) that is added to the output."""


Find: TypeAlias = Callable[[str, nn.Module], LongFilter | None]


@final
@dataclass(frozen=True, repr=False)
class ConvertedModule(Result):
    """A report on one module that :func:`convert` replaced: its filters, their errors, and the size of its state."""

    name: str
    fits: tuple[FilterFit, ...]
    """Recurrence and error of each filter."""
    state_size: int
    """Number of real numbers in the state of one sequence."""

    def __str__(self) -> str:
        orders = sorted(fit.order for fit in self.fits)
        worst = max(fit.relative_error for fit in self.fits)
        kept = [fit for fit in self.fits if not fit.order]
        failed = [fit for fit in kept if fit.failed]
        parts = [f"{len(self.fits)} filters", f"orders {orders[0]} to {orders[-1]}", f"relative error {worst:.1e}"]
        if failed:
            parts.append(f"{len(failed)} buffered ({failed[0].reason})")
        elif kept:
            parts.append(f"{len(kept)} exact from {max(fit.taps for fit in kept)} taps")
        return f"{self.name or '(the model)'}: {', '.join(parts)}; {self.state_size} numbers of state"

    __repr__ = __str__


class _Tape:
    """Holds the states of all replaced modules during one pass, in the order in which the modules are called.

    A module that is called twice has two states.
    """

    def __init__(self) -> None:
        self._before: tuple[Any, ...] | None = None
        self._after: list[Any] | None = None
        """New states of the current pass; None outside a pass, where states are not stored."""

    def run(self, call: Callable[[], Tensor], state: tuple[Any, ...] | None) -> tuple[Tensor, tuple[Any, ...]]:
        after: list[Any] = []
        self._before, self._after = state, after
        try:
            y = call()
            if state is not None and len(after) != len(state):
                raise ArgumentError("state", f"{len(after)} states (one for each call)", len(state))
            return y, tuple(after)
        finally:
            self._before = self._after = None

    def take(self) -> Any:
        if self._before is None or self._after is None:
            return None
        if len(self._after) >= len(self._before):
            raise ArgumentError("state", f"more than {len(self._before)} states (one for each call)", "no more")
        return self._before[len(self._after)]

    def put(self, state: Any) -> None:
        if self._after is not None:
            self._after.append(state)


class _Replacement(nn.Module):
    """A module that replaces another module; missing attributes are read from the replaced module."""

    def __init__(self, tape: _Tape) -> None:
        super().__init__()
        self._tape = tape

    def _stand_in_for(self, replaced: nn.Module) -> None:
        """Store the replaced module, from which missing attributes are read; must be the last call in ``__init__``."""
        self.training = replaced.training
        self.__dict__["replaced"] = replaced  # not a submodule: its parameters stay out of the model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "replaced" not in self.__dict__:  # while it is being copied
                raise
            return getattr(self.__dict__["replaced"], name)


@final
class _Streamed(_Replacement):
    """A recurrence that replaces a convolution and keeps the axis order of its inputs and outputs."""

    def __init__(self, replaced: nn.Module, found: LongFilter, layer: RecurrentConvolution, tape: _Tape) -> None:
        super().__init__(tape)
        self.layer, self.channels_last = layer.train(replaced.training), found.channels_last
        self.bias = None if found.bias is None else nn.Parameter(found.bias.detach().clone())
        self._stand_in_for(replaced)

    def forward(self, x: Tensor) -> Tensor:
        x, state = x if self.channels_last else x.mT, self._tape.take()
        if x.shape[1] == 1:
            y_t, state = self.layer.step(x[:, 0], state)
            y = y_t[:, None]
        else:
            y, state = self.layer(x, state)
        self._tape.put(state)
        y = y if self.bias is None else y + self.bias
        return y if self.channels_last else y.mT


@final
class _Carried(_Replacement):
    """A wrapper of a recurrent layer in a converted model that carries the state of the layer between calls."""

    def __init__(self, layer: nn.Module, tape: _Tape) -> None:
        super().__init__(tape)
        self.layer = layer
        self._stand_in_for(layer)

    def forward(self, x: Tensor, state: Any = None, **options: Any) -> tuple[Tensor, Any]:
        carried = self._tape.take()
        y, after = self.layer(x, state if carried is None else carried, **options)
        self._tape.put(after)
        return y, after


@final
class StreamingModel(nn.Module):
    """A model returned by :func:`convert`, to call as ``y, state = model(x, state)`` or ``model.step(x_t, state)``.

    ``model.model`` is the converted copy of the original model; each call of ``model.model`` starts from the zero
    state.

    >>> class Decaying(nn.Module):
    ...     def filters(self, length):
    ...         return 0.8 ** torch.arange(float(length)).expand(4, length)
    ...
    ...     def forward(self, x):
    ...         return causal_convolution(x, self.filters(x.shape[1]).T)
    >>> from stablessm.scan import causal_convolution
    >>> streaming = convert(Decaying(), 1e-4, length=200, example=torch.ones(1, 50, 4))
    >>> print(streaming.report())
    (the model): 4 filters, orders 1 to 1, relative error ...; 12 numbers of state
    >>> y, state = streaming(torch.ones(1, 2, 4))
    >>> y_t, state = streaming.step(torch.ones(1, 4), state)
    >>> [round(value, 3) for value in y_t.flatten().tolist()]                        # 1 + 0.8 + 0.64
    [2.44, 2.44, 2.44, 2.44]
    """

    difference: float | None
    """Largest |y - original| on the example divided by the largest |original|; None without an example."""

    @checked
    def __init__(self, model: nn.Module, tape: _Tape, modules: tuple[ConvertedModule, ...]) -> None:
        super().__init__()
        self.model, self.converted, self._tape = model, modules, tape
        self.training, self.difference = model.training, None

    def forward(self, x: Tensor, state: tuple[Any, ...] | None = None) -> tuple[Tensor, tuple[Any, ...]]:
        """Map a sequence (batch, time, …) to outputs (batch, time, …), and return the states after the last step."""
        self._check("x", x, 2)
        if not isinstance(state, tuple | list | None):
            raise ArgumentError("state", "the state that forward and step return", type(state).__name__)
        y, state = self._tape.run(lambda: self.model(x), state)
        if not isinstance(y, Tensor) or y.shape[:2] != x.shape[:2]:
            got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            cut = "cut what a Conv1d pads by [..., :steps], not by [..., :-padding]"
            expected = f"an output {(*x.shape[:2], '…')}; {cut}"
            raise ArgumentError("model", expected, got)
        return y, state

    def step(self, x_t: Tensor, state: tuple[Any, ...] | None = None) -> tuple[Tensor, tuple[Any, ...]]:
        """Advance by one step: map an input (batch, …), or tokens (batch,), to the output (batch, …) of this step."""
        self._check("x_t", x_t, 1)
        y, state = self(x_t[:, None], state)
        return y[:, 0], state

    @staticmethod
    def _check(name: str, x: Tensor, least: int) -> None:
        check_tensor(name, x)
        if x.dim() < least:
            raise ArgumentError(name, f"at least {least} dimensions", f"shape {tuple(x.shape)}")

    @property
    def state_size(self) -> int:
        """Return the number of real numbers in the states of all converted filters, for one sequence of any length."""
        return sum(module.state_size for module in self.converted)

    @property
    def failed(self) -> tuple[tuple[str, int], ...]:
        """Return (module name, index) of each filter that keeps a buffer because no recurrence met the tolerance."""
        every = ((module.name, i, fit) for module in self.converted for i, fit in enumerate(module.fits))
        return tuple((name, i) for name, i, fit in every if fit.failed)

    def report(self) -> str:
        """Return a text that describes each replaced module in one line."""
        return "\n".join(map(str, self.converted))


@torch.no_grad()
@checked
def convert(
    model: nn.Module,
    tol: float,
    *,
    length: Size | None = None,
    find: Find | None = None,
    example: Tensor | None = None,
    max_order: Size = 128,
    head: Count = 1,
    dtype: torch.dtype = torch.float64,
) -> StreamingModel:
    """Return a copy of a model in which recurrences replace long filters, so that generation needs constant memory.

    Two kinds of modules are replaced:

    - modules with a method ``filters(length) -> (channels, length)`` that are called on (batch, time, channel),
    - causal ``nn.Conv1d`` with stride 1, depthwise or with one group, and padded by dilation · (kernel - 1). The model
      must cut the output of this convolution to the length of its input.

    ``find`` describes other modules. The state of recurrent layers (of this library, and ``nn.RNN``, ``nn.GRU``,
    ``nn.LSTM`` with ``batch_first``) is carried. All other modules must act on each step separately; this is checked
    if an ``example`` is given. Every module keeps its training or evaluation mode.

    Args:
        model: a module from (batch, time, …) to (batch, time, …), for example from tokens to logits. It is not changed.
        tol: for each filter, the largest allowed Σ |filter - kernel| / Σ |filter|. A filter that needs more than
            ``max_order`` states is computed exactly, with a buffer as long as the filter; ``report()`` states the
            number of such filters and the reason.
        length: number of steps of ``filters(length)`` that are fitted; after these steps, the filter of the recurrence
            is the continuation of the fitted exponentials.
        find: function from the name and the module to a :class:`LongFilter`, or to None to apply the rules above.
        example: an input for two checks with dropout off. First, the converted model must give the same output step by
            step as in one pass. Second, its output must agree with the output of the original up to 100 ``tol`` or
            1e-3 (the larger of the two) of the largest value. ``difference`` of the result is this relative difference.
        max_order, head, dtype: as in :func:`from_convolution`.

    Raises:
        ArgumentError: the model has nothing to convert, a convolution of another kind, or a layer that looks ahead.
        NumericalError: the output for the example differs step by step, or from the original.
    """
    fit = partial(from_convolution, tol=tol, max_order=max_order, head=head, dtype=dtype)
    conversion = _Conversion(find, length, fit)
    streaming = StreamingModel(conversion.walk("", copy.deepcopy(model)), conversion.tape, tuple(conversion.converted))
    if not streaming.converted:
        raise ArgumentError("model", "a module with filters(length), or a causal nn.Conv1d", type(model).__name__)
    if isinstance(streaming.model, _Streamed) and not streaming.model.channels_last:
        expected = "a module from (batch, time, …) to (batch, time, …)"
        raise ArgumentError("model", expected, f"{type(model).__name__} on (batch, channel, time)")
    if example is not None:
        streaming.difference = _check(model, streaming, example, max(1e-3, 100 * tol))
    return streaming


@final
class _Conversion:
    """Walks through a model, replaces long filters by recurrences, and wraps recurrent layers to carry their states."""

    def __init__(self, find: Find | None, length: int | None, fit: Callable[..., RecurrentConvolution]) -> None:
        self._find, self._length, self._fit = find, length, fit
        self.tape, self.converted = _Tape(), list[ConvertedModule]()
        self._replaced: dict[int, nn.Module] = {}

    def walk(self, name: str, module: nn.Module) -> nn.Module:
        """Return the module that takes the place of a given module; a module that is used twice gets one replacement.

        Modules that contain others are returned themselves, with the modules inside them replaced.
        """
        if id(module) not in self._replaced:
            self._replaced[id(module)] = self._replacement(name, module)
        return self._replaced[id(module)]

    def _replacement(self, name: str, module: nn.Module) -> nn.Module:
        found = self._find(name, module) if self._find is not None else None
        found = _by_rule(name, module, self._length) if found is None else found
        if found is not None:
            layer = self._fit(found.taps, finite=found.finite).to(found.taps.device)
            self.converted.append(ConvertedModule(name, layer.fits, layer.state_size))
            return _Streamed(module, found, layer, self.tape)
        if isinstance(module, Bidirectional) or (isinstance(module, nn.RNNBase) and module.bidirectional):
            raise ArgumentError("model", "no layer that looks ahead", f"{name or 'the model'}: {module}")
        if isinstance(module, SequenceLayer | nn.RNNBase):
            return _Carried(module, self.tape)
        for key, child in list(module._modules.items()):  # named_children() leaves out a module's second place
            if child is not None:
                setattr(module, key, self.walk(f"{name}.{key}" if name else key, child))
        return module


def _by_rule(name: str, module: nn.Module, length: int | None) -> LongFilter | None:
    if callable(getattr(module, "filters", None)):
        if length is None:
            raise ArgumentError("length", f"a number of steps, for the filters of {name or 'the model'}", "None")
        taps, fewer = (_taps(name, module, steps) for steps in (length, max(1, length // 2)))
        off = (taps[:, : fewer.shape[1]] - fewer).abs().max().item()
        if not off <= 1e-5 * taps.abs().max().item():
            expected = f"the first taps of {_method(name, length)}, whatever the length"
            raise ArgumentError(_method(name, fewer.shape[1]), expected, f"others, by up to {off:.1e}")
        return LongFilter(taps, finite=False)
    if not isinstance(module, nn.Conv1d) or module.kernel_size == (1,):
        return None
    (size,), (dilation,), groups = module.kernel_size, module.dilation, module.groups
    depthwise = groups == module.in_channels == module.out_channels
    causal = module.stride == (1,) and module.padding == (dilation * (size - 1),) and module.padding_mode == "zeros"
    if not causal or not (depthwise or groups == 1):
        expected = "Conv1d of stride 1, depthwise or with one group, padded by dilation * (kernel - 1); or find="
        raise ArgumentError("model", expected, f"{name or 'the model'}: {module}")
    weight = module.weight.flip(-1)  # a Conv1d correlates
    taps = weight.new_zeros(*weight.shape[:2], dilation * (size - 1) + 1)
    taps[..., ::dilation] = weight
    return LongFilter(taps[:, 0] if depthwise else taps, finite=True, channels_last=False, bias=module.bias)


def _method(name: str, length: int) -> str:
    return f"{name or 'model'}.filters({length})"


def _taps(name: str, module: nn.Module, length: int) -> Tensor:
    taps = module.filters(length)  # type: ignore[operator]
    if not isinstance(taps, Tensor) or taps.dim() != 2 or taps.shape[1] != length or not len(taps):
        got = f"shape {tuple(taps.shape)}" if isinstance(taps, Tensor) else type(taps).__name__
        raise ArgumentError(_method(name, length), f"shape (channels, {length})", got)
    return taps


def _check(model: nn.Module, streaming: StreamingModel, example: Tensor, allowed: float) -> float:
    """Check a converted model on an example; return the relative difference of its outputs from the original outputs.

    The outputs of the converted model in one pass must agree with its outputs step by step, and with the outputs of the
    original model up to the relative difference ``allowed``.
    """
    if example.dim() < 2 or not example.numel():
        raise ArgumentError("example", "an input (batch, time, …), not empty", f"shape {tuple(example.shape)}")
    with evaluating(model), evaluating(streaming):
        original = model(example)
        whole, _ = streaming(example)
        state, steps = None, []
        for x_t in example.split(1, dim=1):
            y_t, state = streaming(x_t, state)
            steps.append(y_t)
    scale = original.abs().max().item()
    apart = (torch.cat(steps, 1) - whole).abs().max().item()
    if not apart <= 1e-3 * scale:
        what = f"the output step by step differs by {apart:.1e} from the output of one pass"
        raise NumericalError(what, "describe every module that mixes time steps with find=")
    difference = (whole - original).abs().max().item()
    if not difference <= allowed * scale:
        what = f"the converted model differs by {difference:.1e} from the original, whose largest output is {scale:.1e}"
        raise NumericalError(what, "check that filters(length), or what find= returns, is what each module applies")
    return difference / scale if scale else 0.0
