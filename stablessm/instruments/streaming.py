"""The check that a model gives the same outputs in chunks, step by step, and in one pass over whole sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from stablessm._checked import Seed, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm.instruments._state_runs import apart
from stablessm.instruments._states import leaves
from stablessm.instruments.adapters import STATEFUL, as_stateful, name_of
from stablessm.instruments.adapters.facts import evaluating
from stablessm.instruments.systems import require_causal

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Default tolerance relative to the largest output; 5e-2 in other dtypes."""


@final
@dataclass(frozen=True, repr=False)
class StreamingDifference(Result):
    """The difference between the outputs of a model in one way of streaming and its outputs in one pass."""

    way: str
    """Name of the way of streaming: ``step``, or for example ``chunks of 1, 63``."""
    absolute: float
    """Largest |difference| of the outputs; infinite if an output is not a number."""
    relative: float
    """``absolute`` divided by the largest |output|."""
    batch: int
    time: int
    channel: int
    """Index of the largest difference."""
    first: int | None
    """First time step with a difference above the tolerance."""
    state: float
    """Largest |difference| of the final states, relative to their largest entry; infinite if they do not match."""

    def __str__(self) -> str:
        where = f"at batch {self.batch}, time {self.time}, channel {self.channel}"
        began = "" if self.first is None else f", from time {self.first} on"
        return f"{self.way}: {self.relative:.1e} ({self.absolute:.1e} absolute) {where}{began}; state {self.state:.1e}"


@final
@dataclass(frozen=True, repr=False)
class StreamingReport(Result):
    """The result of :func:`check_streaming`: the difference for every way of streaming that was tried."""

    differences: tuple[StreamingDifference, ...]
    tol: float

    @property
    def ok(self) -> bool:
        """Return True if all outputs and final states agree within the tolerance."""
        return all(max(difference.relative, difference.state) <= self.tol for difference in self.differences)

    @property
    def worst(self) -> StreamingDifference:
        """Return the way of streaming with the largest difference of outputs or final states."""
        return max(self.differences, key=lambda difference: max(difference.relative, difference.state))

    def __str__(self) -> str:
        verdict = "streams the same numbers" if self.ok else "does not stream the same numbers"
        return "\n".join([f"{verdict} (tolerance {self.tol:.0e})", *(f"  {entry}" for entry in self.differences)])


@torch.no_grad()
@checked
def check_streaming(
    model: Callable[..., Any],
    *,
    d_input: Size | None = None,
    length: Size = 64,
    batch: Size = 2,
    chunks: Sequence[Sequence[int]] | None = None,
    seed: Seed = 0,
    tol: float | None = None,
) -> StreamingReport:
    """Compare a model's outputs in one pass, in chunks with the state carried, and step by step; return the
    differences.

    The input is white noise. The model is any model that :func:`stablessm.check_state` takes, with real inputs; the
    inputs of a Hugging Face model are added to the embedding of a neutral token. If the model has a method
    ``step(x_t, state)``, this method is also compared. Modules run in evaluation mode. :func:`stablessm.check_state`
    also checks padding, copies of the state and other dtypes.

    Args:
        model: Module or callable.
        d_input: Number of input channels (default: the model's ``d_input`` or ``input_size``).
        length, batch: Shape of the input.
        chunks: Lists of chunk lengths; the lengths of each list add up to ``length``. Every list is one comparison. By
            default there are four lists: one step and the rest; all steps but one and the last step; three chunks of
            about equal length; chunks of one step.
        seed: Seed of the input.
        tol: Largest difference that counts as agreement. Differences of outputs are divided by the largest output, and
            differences of final states by the largest entry of the state (default: 1e-9 if the output is float64, 1e-4
            if it is float32, else 5e-2).

    Raises:
        ArgumentError: The model cannot stream: it returns no state, or looks ahead in time.

    >>> import stablessm as ssm
    >>> check_streaming(ssm.LRU(3, 8, 2)).ok, check_streaming(torch.nn.LSTM(3, 8)).ok
    (True, True)
    """
    ways = _default_chunks(length) if chunks is None else [tuple(way) for way in chunks]
    for way in ways:
        if sum(way) != length or min(way, default=0) < 1:
            raise ArgumentError("chunks", f"positive lengths that add up to {length} (length)", way)
    adapter = as_stateful(model, d_input=d_input)
    x = torch.randn(batch, length, adapter.d_input, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x.to(adapter.device, adapter.dtype)
    with evaluating(adapter.model):
        y, final = adapter.run(x)
        if not _tensors(final):
            raise ArgumentError("model", STATEFUL, f"{name_of(model)}, which returns no state")
        tol = TOLERANCE.get(y.dtype, 5e-2) if tol is None else tol
        require_causal(name_of(model), lambda u: adapter.run(u)[0], x, y, tol)
        runs = {_label(way): _carried(adapter.run, x.split(list(way), 1)) for way in ways}
        if hasattr(model, "step"):
            runs["step"] = _carried(adapter.step, x.split(1, 1))
    return StreamingReport(tuple(_compare(label, y, z, final, last, tol) for label, (z, last) in runs.items()), tol)


def _carried(run: Any, pieces: Sequence[Tensor]) -> tuple[Tensor, Any]:
    """Run pieces of a sequence with the state carried from each to the next; return joined outputs and final state."""
    outputs, state = [], None
    for piece in pieces:
        y, state = run(piece, state)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def _default_chunks(length: int) -> list[tuple[int, ...]]:
    if length < 4:
        raise ArgumentError("length", "at least 4", length)
    third = length // 3
    return [(1, length - 1), (length - 1, 1), (third, third - 1 or 1, length - third - (third - 1 or 1)), (1,) * length]


def _label(way: Sequence[int]) -> str:
    shown = list(map(str, way))
    return f"chunks of {', '.join(shown if len(way) <= 4 else [*shown[:2], '…', shown[-1]])}"


def _tensors(state: Any) -> list[Tensor]:
    return [torch.as_tensor(leaf) for _, leaf in leaves(state)]


def _compare(way: str, y: Tensor, z: Tensor, final: Any, last: Any, tol: float) -> StreamingDifference:
    difference = apart(y, z)
    scale = float(y.abs().max()) or 1.0
    batch, time, channel = (int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    absolute = float(difference[batch, time, channel])
    late = (difference > tol * scale).any(-1).any(0).nonzero()
    ours, truth, state = _tensors(last), _tensors(final), math.inf
    if [leaf.shape for leaf in ours] == [leaf.shape for leaf in truth]:
        pairs = zip(truth, ours, strict=True)
        state = max(float(apart(u, v).max()) / (float(u.abs().max()) or 1.0) for u, v in pairs if u.numel())
    first = int(late[0]) if len(late) else None
    return StreamingDifference(way, absolute, absolute / scale, batch, time, channel, first, state)
