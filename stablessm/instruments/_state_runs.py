"""Runs the calls of a plan, and compares the outputs of the model and its modules with their outputs in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from stablessm.instruments import _states
from stablessm.instruments._state_plans import PADDING, Feed, Plan
from stablessm.instruments.adapters import Stateful


@final
@dataclass(frozen=True)
class Difference:
    """The difference between the outputs of a plan and of one pass: its size, and the step at which it starts."""

    error: float
    """Largest difference relative to the largest |output|; infinite if an output is not a number."""
    of_channel: Tensor | None = None
    """Largest difference of each channel relative to the largest |output| of that channel; None if it is unknown."""
    first: int | None = None
    """First step of a sequence with a difference above the tolerance."""
    note: str = ""
    """Description of what is wrong with the outputs, apart from their values."""


def outputs(adapter: Stateful, x: Tensor, plan: Plan) -> Iterator[tuple[Feed, Tensor]]:
    """Run the calls of a plan one after the other; yield each call with its outputs."""
    states: dict[str, Any] = {}
    for feed in plan:
        state = None if feed.source is None else states[feed.source]
        if feed.keep is not None:
            states[feed.keep] = _states.copied(state)
        if feed.via is not None:
            state = feed.via(state)
        given = inputs(x, feed)
        if feed.how == "packed":
            yield feed, adapter.packed(given, starts(feed, given))
            continue
        if feed.how == "restarted":
            real = _real(feed, given)
            every = bool(real.all())
            y, states[feed.into] = adapter.restarted(given, starts(feed, given), state, None if every else real)
        elif feed.how == "padded":
            y, states[feed.into] = adapter.padded(given, _real(feed, given), state)
        else:
            y, states[feed.into] = (adapter.step if feed.how == "step" else adapter.run)(given, state)
        yield feed, y


def compare(pairs: Iterator[tuple[Feed, Tensor]], whole: Tensor, tol: float) -> Difference:
    """Return the difference between the outputs of the calls of a plan and the outputs of one pass.

    ``pairs`` are the calls with their outputs, from :func:`outputs`. ``whole`` (S, T, ...) contains the outputs of one
    pass over S sequences. ``tol`` is the tolerance, relative to the largest |output|.
    """
    scale, channels = float(whole.abs().max()) or 1.0, _channel_scales(whole)
    worst, of_channel, first = 0.0, torch.zeros_like(channels, dtype=torch.float64), None
    for feed, y in pairs:
        if not feed.compared:
            continue
        steps = sum(map(len, feed.rows[0]))
        if y.shape[:2] != (len(feed.rows), steps) or y.shape[2:] != whole.shape[2:]:
            start = min(piece.start for _, _, piece in _pieces(feed))
            note = f"returned shape {tuple(y.shape)} for {len(feed.rows)} x {steps} inputs"
            return Difference(math.inf, None, start, note)
        for row, at, piece in _pieces(feed):
            got, expected = y[row, at : at + len(piece)], whole[piece.sequence, piece.start : piece.stop]
            apart = distance(got, expected) / scale
            worst = max(worst, float(apart.max()))
            of_channel = torch.maximum(of_channel, apart_of_channels(got, expected, channels))
            late = (apart > tol).nonzero()
            if len(late):
                begin = piece.start + int(late[0])
                first = begin if first is None else min(first, begin)
    return Difference(worst, of_channel, first)


def assembled(adapter: Stateful, x: Tensor, ways: Sequence[Plan], whole: Tensor) -> Tensor:
    """Run plans and return their outputs, assembled to whole sequences; steps without outputs are taken from
    ``whole``.
    """
    result = whole.clone()
    for plan in ways:
        for feed, y in outputs(adapter, x, plan):
            for row, at, piece in _pieces(feed):
                result[piece.sequence, piece.start : piece.stop] = y[row, at : at + len(piece)]
    return result


def apart(u: Tensor, v: Tensor) -> Tensor:
    """Return |u - v|, infinite where an entry is not a number."""
    wide = torch.complex128 if u.is_complex() else torch.float64
    return (u.to(wide) - v.to(wide)).abs().nan_to_num(nan=math.inf, posinf=math.inf)


def distance(u: Tensor, v: Tensor) -> Tensor:
    """Return the largest |u - v| at each step, (T,); infinite where an entry is not a number."""
    difference = apart(u, v)
    return difference.flatten(1).amax(1) if difference.numel() else difference.new_zeros(len(u))


def apart_of_channels(u: Tensor, v: Tensor, scales: Tensor) -> Tensor:
    """Return the largest |u - v| of each channel over all steps, relative to the scale of the channel."""
    return (apart(u, v) / scales).amax(0)


def _channel_scales(whole: Tensor) -> Tensor:
    """Return the largest |output| of each channel, float64; for a channel of zeros, the largest of all channels."""
    size = apart(whole, torch.zeros_like(whole)).flatten(0, 1).amax(0)
    if not size.numel():
        return size
    return torch.where(size > 0, size, size.max()).clamp_min(torch.finfo(size.dtype).tiny)


def largest(y: Tensor, whole: Tensor) -> float:
    """Return the largest |y - whole|, relative to the largest |whole|."""
    scale = float(whole.abs().max()) or 1.0
    return max(float(distance(a / scale, b / scale).max()) for a, b in zip(y, whole, strict=True))


def largest_of_channels(y: Tensor, whole: Tensor) -> Tensor:
    """Return the largest |y - whole| in each channel, relative to the largest |whole| in the channel."""
    return apart_of_channels(y.flatten(0, 1), whole.flatten(0, 1), _channel_scales(whole))


def first_layer(adapter: Stateful, x: Tensor, plan: Plan, tol: float) -> str | None:
    """Return the name of the first module whose outputs in a plan differ from its outputs in one pass, or None."""
    model = adapter.model
    if not isinstance(model, nn.Module):
        return None
    with _recording(model) as seen:
        adapter.whole(x)
        expected = dict(seen)
    kept: dict[tuple[str, int], list[tuple[Feed, Tensor]]] = {key: [] for key in expected}
    runs = outputs(adapter, x, plan)
    while True:
        with _recording(model) as seen:
            try:
                feed, _ = next(runs)
            except StopIteration:
                break
            except Exception:  # the call that failed has no outputs; the calls before it have
                break
        for key in kept:
            if key in seen:
                kept[key].append((feed, seen[key]))
    for key, whole in expected.items():
        last = whole.dim() == 3 and whole.shape[1] != x.shape[1] == whole.shape[2]  # (B, channel, T) of convolutions
        whole = whole.mT if last else whole
        if whole.dim() < 3 or whole.shape[:2] != x.shape[:2]:
            continue
        found = [(feed, y.mT if last and y.dim() == 3 else y) for feed, y in kept[key]]
        pairs = [(feed, y) for feed, y in found if y.shape[2:] == whole.shape[2:] and _fits(feed, y)]
        if pairs and compare(iter(pairs), whole, tol).first is not None:
            return key[0]
    return None


def _fits(feed: Feed, y: Tensor) -> bool:
    return y.dim() >= 3 and tuple(y.shape[:2]) == (len(feed.rows), sum(map(len, feed.rows[0])))


@contextmanager
def _recording(model: nn.Module) -> Iterator[dict[tuple[str, int], Tensor]]:
    """Return a context manager that records the outputs of all modules inside it, as a dictionary.

    The keys are (name of the module, number of the call), in the order in which the calls end.
    """
    seen: dict[tuple[str, int], Tensor] = {}
    calls: dict[str, int] = {}

    def hook(name: str) -> Any:
        def keep(_: nn.Module, __: Any, result: Any) -> None:
            first = result[0] if isinstance(result, tuple | list) and result else result
            if isinstance(first, Tensor) and first.is_floating_point():
                calls[name] = calls.get(name, 0) + 1
                seen[name, calls[name]] = first.detach().clone()

        return keep

    handles = [part.register_forward_hook(hook(name)) for name, part in model.named_modules() if name]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _pieces(feed: Feed) -> Iterator[tuple[int, int, Any]]:
    """Yield (row, first step in the row, piece) for every piece of a sequence in a call; padding is left out."""
    for row, pieces in enumerate(feed.rows):
        at = 0
        for piece in pieces:
            if piece.sequence != PADDING:
                yield row, at, piece
            at += len(piece)


def inputs(x: Tensor, feed: Feed) -> Tensor:
    """Return the input batch for a call of a plan.

    Padding contains the first input of the first sequence; it must not affect the outputs.
    """
    steps = sum(map(len, feed.rows[0]))
    given = x[:1, :1].expand(len(feed.rows), steps, *x.shape[2:]).clone()
    for row, at, piece in _pieces(feed):
        given[row, at : at + len(piece)] = x[piece.sequence, piece.start : piece.stop]
    return given


def _real(feed: Feed, given: Tensor) -> Tensor:
    real = torch.zeros(given.shape[:2], dtype=torch.bool, device=given.device)
    for row, at, piece in _pieces(feed):
        real[row, at : at + len(piece)] = True
    return real


def starts(feed: Feed, given: Tensor) -> Tensor:
    """Return a mask (B, T) for the inputs ``given`` of a call: True where a row has the first step of a sequence."""
    first = torch.zeros(given.shape[:2], dtype=torch.bool, device=given.device)
    for row, at, piece in _pieces(feed):
        first[row, at] = piece.start == 0
    return first
