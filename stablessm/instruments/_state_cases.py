"""The test cases that :func:`stablessm.check_state` runs on the state of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.instruments import _state_plans as plans
from stablessm.instruments import _states
from stablessm.instruments._state_check import Check
from stablessm.instruments._state_runs import distance, inputs, largest, outputs, starts
from stablessm.instruments.adapters import NotSupportedError, Stateful, said
from stablessm.instruments.state_report import FAIL, PASS, UNCLEAR, UNSUPPORTED, StateCase

LARGE = 200_000_000
"""Number of weights above which no copy in float64 is made."""
LESS_EXACT = 3.0
"""Largest allowed error of single steps in another dtype, relative to the sum of the errors of one pass and of rounding
the state. For 200 correct models, this ratio was at most 1.3."""
LONGEST = 1024
"""Largest chunk length in the config of a model for which chunks of about this length are tested."""
Make: TypeAlias = Callable[[plans.Shape], list[plans.Plan]]
Case: TypeAlias = Callable[[Check, str], StateCase]


def _of(make: Make) -> Case:
    """Create a test case that runs the plans that ``make`` returns.

    If the plans fail for a batch, they run again for a single sequence. The note of the result says if that succeeds.
    """

    def case(check: Check, name: str) -> StateCase:
        found = check.run(name, make(check.shape))
        if found.status == FAIL and check.run(name, make(replace(check.shape, rows=1))).passed:
            return replace(found, note=f"{found.note}; a single sequence gives correct outputs")
        return found

    return case


def _against(make: Make, truth: Make) -> Case:
    """Create a test case in which the plans of ``make`` must give the same outputs as the plans of ``truth``."""
    return lambda check, name: check.run(name, make(check.shape), truth=check.carried(truth(check.shape)))


def _chunks(check: Check, name: str) -> StateCase:
    """Test chunks of every length, including lengths near the chunk length in the model's config if there is one."""
    found, own = _of(plans.chunks)(check, name), check.adapter.chunk
    if found.status != PASS or own <= check.shape.steps // 2 or own > LONGEST:
        return found
    try:
        longer = Check(check.adapter, plans.Shape(2, 2 * own + 3), check.seed, check.given_tol)
    except ArgumentError:  # the model has fewer positions
        return found
    return _of(partial(plans.chunks, own=own))(longer, name)


def _right_padding(check: Check, name: str) -> StateCase:
    """Test that padding on the right of prompts changes neither the outputs of the prompts nor later outputs.

    For attention, the padding stays in the cache, where sliding windows and position biases count it; ``transformers``
    requires padding on the left before generation. A recurrent state must ignore the padding.
    """
    (plan,) = plans.padding(check.shape, side="right")
    truth = check.carried(plans.unpadded(check.shape))
    case = check.run(name, [plan], truth=truth)
    if case.status == FAIL and check.adapter.only_attends() and check.run(name, [plan[:1]], truth=truth).passed:
        raise NotSupportedError(
            "the padded pass is correct; to continue from its cache, attention needs padding on the left"
        )
    later = check.carried(plans.carried(check.shape))
    return _both(case, lambda: check.run(name, plans.padded_twice(check.shape), truth=later))


def _batch(check: Check, name: str) -> StateCase:
    """Test that each sequence gives the same outputs alone, and in a batch in another order.

    The sequence alone and the batch are each run in one pass, and with the state carried from call to call.
    """
    case = _of(plans.single)(check, name)
    return _both(case, partial(_against(plans.alone, plans.together), check, name))


def _converted(change: plans.Change) -> Case:
    return _against(partial(plans.converted, change=change), plans.carried)


def _packing(check: Check, name: str) -> StateCase:
    """Test rows into which several sequences are packed.

    If the model ignores the borders between the sequences, the result is that the model does not support packing.
    """
    (plan,) = plans.packing(check.shape)
    case = check.run(name, [plan])
    if case.status == FAIL and case.error is not None:
        given = inputs(check.x, plan[0])
        apart = check.adapter.unseparated(given, starts(plan[0], given))
        if apart is not None and largest(check.adapter.packed(given, starts(plan[0], given)), apart) <= check.tol:
            raise NotSupportedError("position_ids that start again do not separate sequences")
    for each in plans.restarts(check.shape):
        case = _both(case, partial(check.run, name, [each]))
    return case


def _rollback(check: Check, name: str) -> StateCase:
    adapter, truth = check.adapter, check.carried(plans.carried(check.shape))
    case = check.run(name, plans.rollback(check.shape), "copied", truth)
    crop = plans.undo(check.shape, adapter.record, partial(adapter.crop, steps=1))
    return _both(case, lambda: check.run(name, crop, "copied, cropped", truth))


def _reuse(check: Check, name: str) -> StateCase:
    truth = check.carried(plans.carried(check.shape))
    case = check.run(name, plans.interleaved(check.shape), "two batches in turn", truth)
    reset = plans.reused(check.shape, check.adapter.reset)
    return _both(case, lambda: check.run(name, reset, "two batches in turn, reset", truth))


def _both(case: StateCase, other: Callable[[], StateCase]) -> StateCase:
    """Combine the result ``case`` of a test with the result of a second test, ``other``.

    - If ``case`` failed, the second test does not run, and ``case`` is returned.
    - If the model does not support the second test, ``case`` is returned.
    - Otherwise the result of the second test is returned, with the larger of the two errors.
    """
    if case.status == FAIL:
        return case
    try:
        found = other()
    except NotSupportedError:
        return case
    return found if found.error is None else replace(found, error=max(found.error, case.error or 0.0))


def _positions(check: Check, name: str) -> StateCase:
    """Test whether a prompt, a chunk and single steps work if no positions are passed to the model."""
    ways, adapter = plans.carried(check.shape), check.adapter
    truth = check.carried(ways)
    check.adapter = adapter.without_positions()
    try:
        return check.run(name, ways, truth=truth)
    finally:
        check.adapter = adapter


def _mutation(check: Check, name: str) -> StateCase:
    if check.adapter.in_place:
        raise NotSupportedError("the cache is updated in place, as documented; copy.deepcopy keeps one")
    return check.run(name, plans.mutation(check.shape), truth=check.carried(plans.carried(check.shape)))


def _dtype(dtype: torch.dtype) -> Case:
    """Create a test case for another dtype, in which running step by step must be about as accurate as one pass.

    Errors are differences from the outputs in float64. The test compares the medians of the errors over the steps after
    a prompt, because in a mixture of experts rounding can change the choice of the expert at single steps. The error of
    single steps may be ``LESS_EXACT`` times the sum of two errors: of one pass, and of exact steps after each of which
    the state is rounded.
    """

    def case(check: Check, name: str) -> StateCase:
        try:
            lower = check.adapter.cast(dtype)
        except ArgumentError as error:
            raise NotSupportedError(f"the model does not run in {str(dtype).removeprefix('torch.')}") from error
        x = check.x if check.adapter.vocabulary is not None else check.x.to(dtype)
        half, plan = check.shape.half, plans.step_by_step(check.shape)[1]
        exact, given, truth = _exact(check, x)
        scale = float(truth.abs().max()) or 1.0

        def median(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
            return float(torch.cat([distance(a, b) for a, b in parts]).median()) / scale

        def stepwise(adapter: Stateful, x: Tensor, plan: plans.Plan) -> float:
            later = [(feed, y) for feed, y in outputs(adapter, x, plan) if feed.source is not None]
            rows = [(piece, y[i]) for feed, y in later for i, (piece,) in enumerate(feed.rows)]
            return median((y, truth[piece.sequence, piece.start : piece.stop]) for piece, y in rows)

        try:
            one_pass = median((y[half:], z[half:]) for y, z in zip(lower.whole(x), truth, strict=True))
        except Exception as error:  # whatever a foreign model raises
            raise NotSupportedError(f"the whole pass raised {said(error)}") from error
        apart = stepwise(lower, x, plan)
        rounding = partial(_states.rounded, dtype=dtype)
        try:
            of_state = stepwise(exact, given, (plan[0], *(replace(feed, via=rounding) for feed in plan[1:])))
        except Exception:  # the model has no steps in this dtype
            of_state = 0.0
        carried = check.carried([plan])
        own = median((y[half:], z[half:]) for y, z in zip(carried, check.whole, strict=True))
        tol = LESS_EXACT * (one_pass + of_state) + torch.finfo(dtype).eps / 4 + own
        if apart <= tol and largest(carried, check.whole) > check.tol:
            full = str(check.adapter.dtype).removeprefix("torch.")
            return StateCase(name, UNCLEAR, apart, tol, note=f"not judged: single steps are already wrong in {full}")
        note = f"median over steps; one pass {one_pass:.0e}"
        return StateCase(name, PASS if apart <= tol else FAIL, apart, tol, note=note)

    return case


def _exact(check: Check, x: Tensor) -> tuple[Stateful, Tensor, Tensor]:
    """Return a copy of the model, its inputs and its outputs, all in float64. If float64 is not possible, or if the
    model has more than ``LARGE`` weights, return the model itself, with the inputs and outputs in its own dtype.
    """
    try:
        weights = check.adapter.model.parameters() if isinstance(check.adapter.model, torch.nn.Module) else ()
        if sum(weight.numel() for weight in weights) <= LARGE:
            adapter, given = check.adapter.cast(torch.float64), x.double() if x.is_floating_point() else x
            return adapter, given, adapter.whole(given)
    except Exception:  # whatever a foreign model raises
        pass
    given = x.to(check.adapter.dtype) if x.is_floating_point() else x
    return check.adapter, given, check.adapter.whole(given)


def _generate(check: Check, name: str) -> StateCase:
    """Test generation: greedy tokens must have the largest logits in one pass over all tokens."""
    half, steps = check.shape.half, check.shape.steps
    if check.adapter.vocabulary is None:
        raise NotSupportedError("the model does not generate tokens")
    tokens = check.adapter.generate(check.x[:, :half], steps - half)
    logits = check.adapter.whole(tokens)[:, half - 1 : -1].double()
    logits[..., list(check.adapter.never_generated)] = -torch.inf
    chosen = logits.gather(2, tokens[:, half:, None])[..., 0]
    short = (logits.amax(2) - chosen) / (float(check.whole.abs().max()) or 1.0)
    late = (short > check.tol).any(0).nonzero()
    lack, first = float(short.max()), half + int(late[0]) if len(late) else None
    return StateCase(name, FAIL if first is not None else PASS, lack, check.tol, first)


def _causal(check: Check, name: str) -> StateCase:
    """Test causality: a change of the second half of the inputs must not change the first half of the outputs."""
    half = check.shape.half
    other = torch.cat([check.x[:, :half], check.x[:, half:].roll(1, 0)], 1)
    apart = torch.stack([distance(a, b) for a, b in zip(check.adapter.whole(other), check.whole, strict=True)])
    apart = apart[:, :half].amax(0) / (float(check.whole.abs().max()) or 1.0)
    late = (apart > check.tol).nonzero()
    if not len(late):
        return StateCase(name, PASS, float(apart.max()), check.tol)
    note = f"outputs before step {half} change with the input after it"
    return StateCase(name, FAIL, float(apart.max()), check.tol, int(late[0]), note=note)


CASES: dict[str, Case] = {
    "causal": _causal,
    "step by step": _of(plans.step_by_step),
    "chunks": _chunks,
    "left padding": _against(partial(plans.padding, side="left"), plans.unpadded),
    "right padding": _right_padding,
    "batch": _batch,
    "packing": _packing,
    "default positions": _positions,
    "rollback": _rollback,
    "state copied": _converted(_states.copied),
    "state saved": _converted(_states.saved),
    "state moved": _converted(_states.moved),
    "float32": _dtype(torch.float32),
    "bfloat16": _dtype(torch.bfloat16),
    "cache reuse": _reuse,
    "cache mutation": _mutation,
    "generate": _generate,
}
"""Test cases by name, in the order in which they run."""


def run_case(check: Check, name: str) -> StateCase:
    """Run the test case with the given name and return its result."""
    try:
        return CASES[name](check, name)
    except NotSupportedError as reason:
        return StateCase(name, UNSUPPORTED, note=str(reason))
    except Exception as error:  # whatever a foreign model raises is the result
        return StateCase(name, FAIL, None, check.tol, note=f"raised {said(error)}")
