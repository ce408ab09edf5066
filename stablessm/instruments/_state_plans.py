"""Plans of calls that feed sequences to a model in parts; all plans must give the outputs of one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

Change = Callable[[Any], Any]
PADDING = -1
"""Number that marks padding in place of the number of a sequence."""


@final
@dataclass(frozen=True)
class Piece:
    """A part of one row of a batch: steps ``start`` to ``stop`` of a sequence, or stop - start steps of padding."""

    sequence: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@final
@dataclass(frozen=True)
class Feed:
    """One call of a model in a plan: the rows of the batch, the state before the call, and where the new state is
    stored.
    """

    rows: tuple[tuple[Piece, ...], ...]
    source: str | None = None
    """Name of the stored state from which the call starts; None for the initial state."""
    into: str = "state"
    """Name under which the new state is stored."""
    how: str = "run"
    """Method of the adapter that is called: run, step, padded, packed or restarted."""
    via: Change | None = None
    """Function that is applied to the state before the call, for example a copy."""
    keep: str | None = None
    """Name under which a copy of the state is stored before the call."""
    compared: bool = True
    """Whether the outputs are compared; False for a detour, a call with the inputs of other sequences."""


Plan = tuple[Feed, ...]


@final
@dataclass(frozen=True)
class Shape:
    """The number and length of the sequences that plans feed to a model."""

    rows: int
    steps: int

    def chunk(self, start: int, stop: int, **options: Any) -> Feed:
        """Return a call that feeds steps ``start`` to ``stop`` of all sequences.

        The call continues from the stored state, or from the initial state if ``start`` is 0.
        """
        rows = tuple((Piece(row, start, stop),) for row in range(self.rows))
        return Feed(rows, **{"source": "state" if start else None, **options})

    def chunks(self, *lengths: int, how: str = "run", start: int = 0) -> Iterator[Feed]:
        """Yield calls on consecutive chunks of the given lengths, from step ``start`` on.

        ``how`` is the method of the adapter that is called, such as ``run`` or ``step``.
        """
        for length in lengths:
            yield self.chunk(start, start + length, how=how)
            start += length

    def stepwise(self, start: int, stop: int | None = None) -> Iterator[Feed]:
        """Yield calls on the single steps from ``start`` to ``stop``."""
        yield from self.chunks(*[1] * ((stop or self.steps) - start), how="step", start=start)

    @property
    def half(self) -> int:
        """Return the number of steps of a prompt, half of the sequence."""
        return self.steps // 2


def carried(shape: Shape) -> list[Plan]:
    """Return one plan, a prompt followed by single steps, with which many test cases compare other plans."""
    return [(shape.chunk(0, shape.half), *shape.stepwise(shape.half))]


def step_by_step(shape: Shape) -> list[Plan]:
    """Return plans of single steps, from the beginning and after prompts."""
    last = shape.steps - 1
    return [tuple(shape.stepwise(0)), *carried(shape), (shape.chunk(0, last), *shape.stepwise(last))]


def chunks(shape: Shape, own: int | None = None) -> list[Plan]:
    """Return plans that split the sequence into chunks, with chunks of every length: a state may be lost at one length
    only.

    There are two plans for each length of an inner chunk. In one plan a short chunk comes before the inner chunk, in
    the other a long chunk. Across the plans, the first and the last chunk also have every length. If ``own`` is given,
    all plans use chunks of about this length instead. Sequences of single steps are tested by :func:`step_by_step`.
    """
    steps = shape.steps
    if own is None:
        inner = [way for length in range(2, steps - 2) for way in ([1, length], [steps - 2 - length, length])]
        ways = [[1], [steps], [steps - 2], [steps - 3], [2] * (steps // 2 - 1), [8] * (steps // 8 - 1), [2], *inner]
    else:
        ways = [[own, own], [own - 1, own], [2, own - 1, own]]
    return [tuple(shape.chunks(*way, *filter(None, [steps - sum(way)]))) for way in ways]


def _prompts(shape: Shape) -> list[int]:
    """Return the length of the prompt of each sequence; these lengths mostly differ from each other."""
    return [max(1, shape.steps - 4 - 3 * (row % 3) - row % 2) for row in range(shape.rows)]


def padding(shape: Shape, side: str) -> list[Plan]:
    """Return one plan: prompts as one batch, padded on one side to equal lengths, and then single steps."""
    lengths, rows = _prompts(shape), []
    for row, length in enumerate(lengths):
        real, pads = Piece(row, 0, length), Piece(PADDING, 0, max(lengths) - length)
        rows.append(tuple(part for part in ((pads, real) if side == "left" else (real, pads)) if len(part)))
    later = (
        Feed(tuple((Piece(row, length + i, length + i + 1),) for row, length in enumerate(lengths)), "state")
        for i in range(4)
    )
    return [(Feed(tuple(rows), how="padded"), *later)]


def unpadded(shape: Shape) -> list[Plan]:
    """Return plans that feed each prompt alone, unpadded, and then single steps: the reference for ``padding``."""
    return [
        (
            Feed(((Piece(row, 0, length),),)),
            *(Feed(((Piece(row, length + i, length + i + 1),),), "state") for i in range(4)),
        )
        for row, length in enumerate(_prompts(shape))
    ]


def padded_twice(shape: Shape) -> list[Plan]:
    """Return one plan: two calls with much padding on the right, and then single steps, with the state carried."""
    steps = shape.steps
    lengths = [((steps // 2, 2), (2, 5), (3, 4))[row % 3] for row in range(shape.rows)]
    feeds, at = [], [0] * shape.rows
    for both, source in zip(zip(*lengths, strict=True), (None, "state"), strict=True):
        rows = ((Piece(row, at[row], at[row] + n), Piece(PADDING, 0, max(both) - n)) for row, n in enumerate(both))
        feeds.append(Feed(tuple(tuple(filter(len, row)) for row in rows), source, how="padded"))
        at = [start + length for start, length in zip(at, both, strict=True)]
    for i in range(4):
        feeds.append(Feed(tuple((Piece(row, start + i, start + i + 1),) for row, start in enumerate(at)), "state"))
    return [tuple(feeds)]


def single(shape: Shape) -> list[Plan]:
    """Return one plan for each sequence alone, and one plan for the batch with its sequences in another order."""
    alone = [(Feed(((Piece(row, 0, shape.steps),),)),) for row in range(shape.rows)]
    turned = Feed(tuple((Piece((row + 1) % shape.rows, 0, shape.steps),) for row in range(shape.rows)))
    return [*alone, (turned,)]


def together(shape: Shape) -> list[Plan]:
    """Return one plan, which feeds all sequences as one batch: a chunk, two single steps and another chunk."""
    return [tuple(shape.chunks(shape.half - 1, 1, 1, shape.steps - shape.half - 1))]


def alone(shape: Shape) -> list[Plan]:
    """Return one plan for each sequence, with the calls of :func:`together` but a batch of this sequence only."""
    (plan,) = together(shape)
    return [tuple(replace(feed, rows=(feed.rows[row],)) for feed in plan) for row in range(shape.rows)]


def packing(shape: Shape) -> list[Plan]:
    """Return one plan: packed rows, each of which consists of the beginnings of several sequences."""
    third = shape.steps // 3
    lengths = [third + 1, third - 1 or 1, third]
    rows = [[Piece((row + i) % shape.rows, 0, length) for i, length in enumerate(lengths)] for row in range(shape.rows)]
    return [(Feed(tuple(map(tuple, rows)), how="packed"),)]


def restarts(shape: Shape) -> list[Plan]:
    """Return two plans of chunks with the state carried, in which new sequences begin inside the chunks.

    The steps at which sequences begin differ from row to row; some are the first step of a chunk. In the second plan,
    the first two chunks have padding on the right.
    """
    own, calls = [5, 1, 9, 3, 7, 2], [shape.half, shape.half, 1, 4]
    plans = []
    for pads in (0, 2):
        streams = [list(_beginnings(shape, row, own[row % 6 :] + own[: row % 6])) for row in range(shape.rows)]
        feeds: list[Feed] = []
        for number, length in enumerate(calls):
            rows, padded = [], pads if number < 2 else 0
            for row, stream in enumerate(streams):
                pad = padded * (1 + row) % 5
                parts = _taken(stream, length - pad)
                rows.append((*parts, *([Piece(PADDING, 0, pad)] if pad else [])))
            feeds.append(Feed(tuple(rows), "state" if feeds else None, how="restarted"))
        plans.append(tuple(feeds))
    return plans


def _beginnings(shape: Shape, row: int, lengths: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the steps of a row as pairs (sequence, step).

    The row consists of the first steps of one sequence, then the first steps of the next sequence, and so on.
    ``lengths`` contains the number of steps of each of these sequences; after the last entry, the entries are
    used again from the first.
    """
    for i in range(2 * shape.steps):
        for step in range(lengths[i % len(lengths)]):
            yield (row + i) % shape.rows, step


def _taken(stream: list[tuple[int, int]], count: int) -> list[Piece]:
    """Remove the first ``count`` steps of a row, and return them as pieces of sequences."""
    pieces: list[Piece] = []
    for sequence, step in stream[:count]:
        if pieces and step:
            pieces[-1] = Piece(sequence, pieces[-1].start, step + 1)
        else:
            pieces.append(Piece(sequence, step, step + 1))
    del stream[:count]
    return pieces


def _detour(shape: Shape, steps: int = 1, **options: Any) -> Feed:
    """Return a detour: a call that feeds the inputs of other sequences, and whose outputs are not compared."""
    rows = ((Piece((row + 1) % shape.rows, 0, steps),) for row in range(shape.rows))
    return Feed(tuple(rows), compared=False, **options)


def rollback(shape: Shape) -> list[Plan]:
    """Return one plan: a prompt, calls with other inputs, and steps from a copy of the state after the prompt."""
    half = shape.half
    detour = (_detour(shape, source="state", keep="copy"), _detour(shape, source="state"))
    back = shape.chunk(half, half + 1, source="copy", how="step")
    return [(shape.chunk(0, half), *detour, back, *shape.stepwise(half + 1))]


def undo(shape: Shape, record: Change, crop: Change) -> list[Plan]:
    """Return one plan, which feeds a prompt and one step of other inputs, and then removes this step with ``crop``.

    Before the step, ``record`` prepares the state so that the step can be removed.
    """
    half = shape.half
    back = shape.chunk(half, half + 1, via=crop, how="step")
    return [(shape.chunk(0, half), _detour(shape, source="state", via=record), back, *shape.stepwise(half + 1))]


def converted(shape: Shape, change: Change) -> list[Plan]:
    """Return one plan: a prompt, then single steps from ``change(state)``, a converted copy of the state after the
    prompt.

    After the first of these steps, other inputs are fed from the original state, which must not affect the copy.
    """
    half = shape.half
    first = shape.chunk(half, half + 1, source="prompt", via=change, how="step")
    detour = _detour(shape, source="prompt", into="prompt")
    return [(shape.chunk(0, half, into="prompt"), first, detour, *shape.stepwise(half + 1))]


def interleaved(shape: Shape) -> list[Plan]:
    """Return one plan: two batches whose calls alternate."""
    half = shape.half

    def turned(start: int, stop: int, **options: Any) -> Feed:
        rows = ((Piece((row + 1) % shape.rows, start, stop),) for row in range(shape.rows))
        return Feed(tuple(rows), into="other", **options)

    feeds = [shape.chunk(0, half), turned(0, half)]
    for i in range(half, shape.steps):
        feeds += [shape.chunk(i, i + 1, how="step"), turned(i, i + 1, source="other", how="step")]
    return [tuple(feeds)]


def reused(shape: Shape, reset: Change) -> list[Plan]:
    """Return one plan: a batch, then another batch that reuses the first batch's state object after a reset."""
    half = shape.half
    again = shape.chunk(0, half, source="state", via=reset)
    return [(_detour(shape, half), again, *shape.stepwise(half))]


def mutation(shape: Shape) -> list[Plan]:
    """Return one plan with two calls from the same state, to test that the first call does not change the state."""
    half = shape.half
    once = shape.chunk(half, half + 1, source="prompt", how="step")
    return [(shape.chunk(0, half, into="prompt"), once, once, *shape.stepwise(half + 1))]
