"""A common interface with which the instruments run sequence models, with a carried state if there is one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stablessm import _tensors
from stablessm._errors import ArgumentError
from stablessm.instruments._nested import tensors_in
from stablessm.instruments._repeatable import NoisyError, alike, require_repeatable
from stablessm.instruments.adapters import as_stateful, has_adapter, said
from stablessm.instruments.adapters.facts import evaluating, input_size, is_transformer, weight_of

Call: TypeAlias = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""Function from an input (B, T, d_input) and a state to an output (B, T, d_output) or (B, d_output) and a state."""

Drive: TypeAlias = Callable[[int, int], Tensor]
"""Function from (start, stop) to the input of these steps (B, stop - start, d_input); ``start`` may be negative."""

CHUNK_ELEMENTS = 2**21
"""Largest number of input or output values of a chunk."""

STATE_ELEMENTS = 2**22
"""Largest number of state values of a chunk: a layer may store the state of every step."""

PROBED = 256
"""Smallest number of future inputs that are tested for an effect on earlier outputs. A model that carries its state is
tested over at most as many outputs."""

FAINT = 1e-3
"""Relative effect of inputs up to which they may be left out after the outputs of a model that looks ahead."""

_BATCH = 32
"""Number of sequences in the batch that shows whether a model mixes its sequences."""

SHORTEST, LONGEST = 16, 8192
"""Shortest and longest chunk, in steps."""


@dataclass(frozen=True)
class System:
    """A sequence model with the interface that all instruments use: a function that runs the model, its shapes and
    properties.
    """

    model: Any
    call: Call
    d_input: int
    d_output: int
    dtype: torch.dtype
    device: torch.device
    streams: bool
    """Whether the state can be carried from one chunk to the next."""
    pooled: bool = False
    """Whether the model returns one output per sequence; it then runs on every beginning of the sequence."""
    ahead: int = 0
    """Number of steps of input after the last output on which outputs can depend; see :func:`seeing_ahead`."""
    input: str = "input"
    """Name of the input in messages and plots."""
    longest: int | None = None
    """Largest number of steps that the model accepts."""
    held: int = 1
    """Number of values in the largest tensor of the state of one sequence."""

    def with_callback(self, tell: Callable[[], object]) -> System:
        """Return a copy of the system that calls ``tell`` whenever the system runs, for example to show progress."""

        def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
            tell()
            return self.call(x, state)

        return replace(self, call=call)

    @property
    def width(self) -> int:
        """Return a lower bound on the number of values that the model keeps in memory per step of one sequence."""
        return max(self.d_input, self.d_output, self.held)

    def outputs(
        self, drive: Drive, start: int, stop: int, *, state: Any = None, steady: int | None = None
    ) -> Iterator[Tensor]:
        """Run the model from step ``start`` to ``stop``; yield the outputs in pieces (B, ·, d_output).

        ``drive`` returns the inputs of given steps. A model that carries its state runs in chunks of bounded length, so
        that its use of memory is bounded. If ``steady`` is given, the input must be constant from step ``steady`` on:
        after a chunk that does not change the state, the outputs of this chunk are repeated without running the model
        again.
        """
        beyond = self.ahead  # a model that looks ahead must not see the end of the input
        if self.longest is not None and stop - start + beyond > self.longest:
            most = (self.longest if not beyond else self.longest // 2) + start
            raise ArgumentError("horizon", f"at most {most} steps (the model's positions)", stop)
        if self.pooled:
            yield from self._of_beginnings(drive, start, stop)
        elif self.streams:
            yield from self._of_chunks(drive, start, stop, state, steady)
        else:
            yield self.call(drive(start, stop + beyond), None)[0][:, : stop - start]

    def _of_chunks(self, drive: Drive, start: int, stop: int, state: Any, steady: int | None) -> Iterator[Tensor]:
        rows, again = drive(start, start).shape[0], None
        size = min(CHUNK_ELEMENTS // (rows * max(self.d_input, self.d_output)), STATE_ELEMENTS // (rows * self.held))
        size = min(max(size, SHORTEST), LONGEST)
        for first, last in _chunks(start, stop, size):
            if again is not None:
                yield again[:, torch.arange(last - first) % again.shape[1]]
                continue
            before = state
            y, state = self.call(drive(first, last), state)
            if steady is not None and first >= steady and not y.requires_grad and _unchanged(before, state):
                again = y
            yield y

    def _of_beginnings(self, drive: Drive, start: int, stop: int) -> Iterator[Tensor]:
        for last in range(start, stop):
            yield self.call(drive(start, last + 1), None)[0][:, None]


def as_system(model: Any, *, d_input: int | None = None, output: Any = None) -> System:
    """Return a model as a system that the instruments can run, or raise an ArgumentError that states why not.

    These models can be run:

    - our layers and models, and modules with the same methods,
    - ``torch.nn`` recurrences, Hugging Face models (with embeddings as inputs), and reservoirpy nodes,
    - adapters of your own (:class:`stablessm.instruments.Stateful`),
    - any function ``(x, state) -> (y, state)``,
    - any callable from (B, T, d_input) to (B, T, d_output), or to (B, d_output) for one output per sequence.

    >>> as_system(torch.nn.GRU(3, 8)).streams, as_system(lambda x: x.cumsum(1), d_input=2).streams
    (True, False)
    """
    if not callable(model) and not has_adapter(model):
        raise ArgumentError("model", "a callable or module", type(model).__name__)
    if is_transformer(model):
        from stablessm.instruments import huggingface

        return huggingface.embedding_system(model, output)
    if output is not None:
        raise ArgumentError("output", "None (only a Hugging Face model has several)", output)
    d_input = input_size(model, d_input)
    weight = weight_of(model)
    if weight is not None and weight.is_meta:
        raise ArgumentError("model", "initialized weights, not on the meta device", type(model).__name__)

    def stateful(causal: bool) -> System:
        adapter = as_stateful(model, d_input=d_input, causal=causal)
        return completed(System(model, adapter.run, d_input, 0, adapter.dtype, adapter.device, streams=True))

    if has_adapter(model):
        return stateful(causal=False)
    unsuited = []
    if weight is None and _takes_state(model):
        try:
            return stateful(causal=True)
        except ArgumentError as reason:
            unsuited.append(reason)
    call = _without_state(model)
    if weight is not None:
        return completed(System(model, call, d_input, 0, weight.dtype, weight.device, streams=False))
    precise = System(model, call, d_input, 0, torch.float64, torch.device("cpu"), streams=False)
    single = replace(precise, dtype=torch.float32)  # a function around a model in single precision
    reasons = []
    on_arrays = replace(precise, call=lambda x, state: call(x.numpy(force=True), state))  # type: ignore[arg-type]
    for system in (precise, single, on_arrays):
        try:
            return completed(system)
        except NoisyError:  # less precision would only hide it
            raise
        except ArgumentError as reason:
            reasons.append(reason)
    raise next((reason for reason in reasons + unsuited if "raised" not in str(reason)), reasons[1])


def _takes_state(model: Any) -> bool:
    """Return True for a function of two arguments, which may be an input and a state."""
    try:
        kinds = [parameter.kind for parameter in inspect.signature(model).parameters.values()]
    except (TypeError, ValueError):
        return False
    return len(kinds) == 2 and all(kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD) for kind in kinds)


def completed(system: System) -> System:
    """Run a system on short sequences; return the system with four attributes that are found from its outputs and
    states.

    The attributes are the output size, whether the model returns one output per sequence, whether the model carries its
    state, and the size of the state. Raises an error if the outputs are random or if the sequences of a batch mix.
    """
    with evaluating(system.model), torch.no_grad():
        short, long = (tuple(_try(system, torch.zeros(2, steps, system.d_input)).shape) for steps in (5, 7))
        # one number per step, or per sequence, without an axis of its own
        if (short, long) in (((2, 5), (2, 7)), ((2,), (2,))):
            bare = system.call
            system = replace(system, call=lambda x, state: _with_axis(*bare(x, state)))
            short, long = (*short, 1), (*long, 1)
        pooled = len(short) == 2 and short == long and short[0] == 2
        if not pooled and (short[:2], long[:2], len(short)) != ((2, 5), (2, 7), 3):
            expected = "output (batch, time, d_output) or (batch, d_output)"
            raise ArgumentError("model", expected, f"shape {short} for an input of 2 sequences of 5 steps")
        _require_repeatable(system, 6)
        if not _rows_are_apart(system):
            _require_repeatable(system, 6, calls=64, rows=_BATCH)  # rare noise looks like this, too
            expected = "sequences in a batch that do not mix: (batch, time, channel), as with batch_first=True"
            raise ArgumentError("model", expected, type(system.model).__name__)
        state = None if pooled else _carried(system)
        held = max((tensor.numel() // 2 for _, tensor in tensors_in(state, "")), default=1)
        return replace(system, pooled=pooled, d_output=short[-1], streams=state is not None, held=max(1, held))


def _chunks(start: int, stop: int, longest: int) -> list[tuple[int, int]]:
    """Divide steps into chunks (start, stop) whose lengths double up to ``longest``.

    >>> _chunks(0, 300, 128)
    [(0, 64), (64, 192), (192, 300)]
    """
    bounds, size = [start], min(4 * SHORTEST, longest)
    while bounds[-1] < stop:
        bounds.append(min(bounds[-1] + size, stop))
        size = min(2 * size, longest)
    return list(pairwise(bounds))


def _with_axis(y: Tensor, state: Any) -> tuple[Tensor, Any]:
    return y[..., None], state


def _try(system: System, x: Tensor) -> Tensor:
    try:
        y, _ = system.call(x.to(system.device, system.dtype), None)
    except ArgumentError:
        raise
    except Exception as error:
        shape = f"(batch, time, {system.d_input})" if system.dtype.is_floating_point else "token ids (batch, time)"
        expected = f"a callable that takes {shape}" + ("; or pass tokens=" if system.input == "embedding" else "")
        if getattr(getattr(system.model, "config", None), "is_encoder_decoder", False):
            expected += "; of an encoder-decoder model give model.get_encoder(), or a function of one input"
        elif system.dtype in (torch.float16, torch.bfloat16):
            expected += f" in {str(system.dtype).removeprefix('torch.')} on this device; model.float() may run"
        raise ArgumentError("model", expected, f"{type(system.model).__name__}, which raised {said(error)}") from error
    if not isinstance(y, Tensor) or not y.is_floating_point():
        cure = "return the tensor alone"
        if isinstance(y, Tensor):
            cure = f"convert it with {'torch.view_as_real(y)' if y.is_complex() else 'y.double()'}"
        expected = f"a real floating point tensor as output ({cure})"
        raise ArgumentError("model", expected, f"{getattr(y, 'dtype', type(y).__name__)}")
    return y


def seeing_ahead(system: System, steps: int) -> System:
    """Test whether a model looks ahead; return the system with ``ahead``, the number of further inputs that it gets.

    A model looks ahead if one of its first ``steps`` outputs changes when the ``steps`` inputs after them, or at least
    ``PROBED`` inputs, change. (A Hugging Face model is tested with ``steps`` inputs.) A model that looks ahead gets
    ``steps`` further inputs. If these are too few for the outputs, but three times as many or at least ``PROBED``
    inputs are (nearly) enough, it gets this larger number. A model that carries its state is tested over at most
    ``PROBED`` steps; if the model looks ahead, it runs in one pass.

    >>> shifted = as_system(lambda x: torch.cat([x[:, 20:], 0 * x[:, :20]], 1), d_input=1)
    >>> seeing_ahead(shifted, 100).ahead, seeing_ahead(as_system(lambda x: x.cumsum(1), d_input=1), 100).ahead
    (100, 0)
    """
    if system.pooled:
        return system
    tested = min(steps, PROBED) if system.streams else steps
    tested = tested if system.longest is None else min(tested, system.longest // 2)
    if tested < 1:
        return system
    short = system.longest is not None or is_transformer(system.model)
    stop = tested + (tested if short else max(tested, PROBED))
    with evaluating(system.model), torch.no_grad():
        if not _sees(system, tested, tested, stop):
            return system
        _require_repeatable(system, stop)  # noise that begins late looks like this, too
        most = max(3 * steps, steps + PROBED)
        further = system.longest is None and _sees(system, steps, 2 * steps, steps + most)
        enough = further and not _sees(system, steps, steps + most, 2 * steps + most, least=FAINT)
    return replace(system, streams=False, ahead=most if enough else steps)


def _sees(system: System, outputs: int, start: int, stop: int, least: float = 0.0) -> bool:
    """Return True if the first ``outputs`` outputs change when the inputs from ``start`` to ``stop`` change.

    Relative changes up to ``least`` or up to rounding errors do not count. Several pasts are tried, because a threshold
    or a gate may let the future through only after some inputs.
    """
    simple = not system.dtype.is_floating_point or is_transformer(system.model) or stop * system.width > CHUNK_ELEMENTS
    sizes = torch.tensor([1, -1, 8, -8][: 1 if simple else 4], device=system.device)[:, None, None]
    x = _probe(system, stop, rows=4 * len(sizes)).unflatten(0, (-1, 4))
    x[:, :, :start] = (sizes * x[0, :1, :start])[:, None]
    if system.dtype.is_floating_point:  # both larger and zero: the model may compare the future with the past
        x[:, 1, start:] *= 10 * sizes
        x[:, 2, start:] = 0
    y = _try(system, x.flatten(0, 1))[:, :outputs].unflatten(0, (-1, 4))
    return not all(alike(past[0], other, past, least) for past in y for other in past[1:])


def require_causal(name: str, run: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, tol: float) -> None:
    """Raise an ArgumentError if a model reads the future or is random; ``y`` is the result of ``run(x)``.

    The test changes the second half of x (B, T, d), once by scaling and once by large noise; the first half of the
    outputs must not change. The test is repeated with the change one step later, because a model that works in blocks
    may be causal only at the edges of its blocks.

    >>> x = torch.randn(1, 8, 1)
    >>> require_causal("cumsum", lambda x: x.cumsum(1), x, x.cumsum(1), 1e-4)
    """
    if not float((run(x) - y).abs().max()) <= tol * float(y.abs().max()):
        raise ArgumentError("model", "the same output for the same input", f"{name}, which gives another one")
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x)
    noise = 3 * (x.abs().max() if bool(x.any()) else 1) * noise
    half = x.shape[1] // 2
    for start in {half, half + 1} & set(range(1, x.shape[1])):
        for future in (1.5 * x, noise):
            z = run(torch.cat([x[:, :start], future[:, start:]], 1))
            scale = max(float(y.abs().max()), float(z.nan_to_num(0, 0, 0).abs().max()))
            if not float((z - y)[:, :start].abs().max()) <= tol * scale:
                got = f"{name}, whose outputs before step {start} change with the inputs from that step on"
                raise ArgumentError("model", "a causal model", got)


def _require_repeatable(system: System, steps: int, calls: int = 8, rows: int = 2) -> None:
    x = _probe(system, steps, rows)
    require_repeatable(lambda: _try(system, x), calls)


def _rows_are_apart(system: System) -> bool:
    """Return True if the model gives the same outputs for a sequence alone and for the same sequence in a batch.

    The first and the last sequence of a batch are tried, because a recurrence over the batch axis does not change the
    first.
    """
    x = _probe(system, 6, _BATCH)
    batch, ends = _try(system, x), [_try(system, row) for row in (x[:1], x[-1:])]
    if any(row.shape != batch[:1].shape for row in ends):
        return False
    # a GPU sums in another order for another batch size, and a deep model can amplify the difference
    return alike(batch[[0, -1]], torch.cat(ends), batch, torch.finfo(batch.dtype).eps ** 0.5)


def _carried(system: System) -> Any:
    """Return the final state of a short run if the model can continue from a state; otherwise None."""
    if not system.streams:
        return None
    x = _probe(system, 12)
    whole = _try(system, x)
    try:
        first, state = system.call(x[:, :5], None)
        second, _ = system.call(x[:, 5:], state)
    except Exception:  # whatever it raised, it cannot continue from a state
        return None
    goes_on = first.shape[1] + second.shape[1] == 12 and alike(torch.cat([first, second], 1), whole, whole)
    return state if goes_on else None


def _unchanged(before: Any, after: Any) -> bool:
    """Return True if two states are bitwise equal, and False for states of unknown types.

    >>> _unchanged([torch.ones(2), 3], [torch.ones(2), 3]), _unchanged((torch.ones(2), 3), (torch.ones(2), 4))
    (True, False)
    """
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return before is not after and torch.equal(before, after)  # the same tensor may have been overwritten
    if isinstance(before, tuple | list) and isinstance(after, tuple | list):
        return len(before) == len(after) and all(map(_unchanged, before, after))
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return before.keys() == after.keys() and all(_unchanged(before[key], after[key]) for key in before)
    return isinstance(before, int | float | str) and type(before) is type(after) and before == after


def _probe(system: System, steps: int, rows: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if not system.dtype.is_floating_point:
        return torch.randint(0, 2, (rows, steps, system.d_input), generator=generator).to(system.device)
    x = torch.randn(rows, steps, system.d_input, generator=generator, dtype=torch.float64)
    return x.to(system.device, system.dtype)


def _without_state(model: Any) -> Call:
    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y = model(x.clone() if isinstance(x, Tensor) else x.copy())  # a function may overwrite its input
        y = y[0] if isinstance(y, tuple) else y
        return (y if isinstance(y, Tensor) else _as_tensor(y, x)), None

    return call


def _as_tensor(y: Any, x: Tensor | np.ndarray) -> Any:
    """Convert arrays and lists that a function returned to tensors; return other results unchanged."""
    if isinstance(y, Tensor) or not (isinstance(y, list | memoryview | np.generic) or hasattr(y, "__array__")):
        return y
    array = np.asarray(y)
    if array.dtype == object or array.dtype == np.longdouble:  # PyTorch has no such types
        array = array.astype(np.float64)
    return _tensors.as_tensor(array, device=x.device if isinstance(x, Tensor) else None)
