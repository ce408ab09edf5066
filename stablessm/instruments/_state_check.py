"""Compares the outputs of a model that runs in different ways with its true outputs, which are computed in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.instruments import _state_plans as plans
from stablessm.instruments import _states
from stablessm.instruments._state_runs import assembled, compare, first_layer, largest, largest_of_channels, outputs
from stablessm.instruments.adapters import NotSupportedError, Stateful, name_of, said
from stablessm.instruments.state_report import FAIL, PASS, UNCLEAR, StateCase

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}
"""Default tolerance by dtype, relative to the largest output; 5e-2 for other dtypes."""
ROUNDING = 20
"""The tolerance is at least this many times the change of the outputs if every weight changes by a rounding error."""
VAGUE = 0.05
"""Tolerance above which a test case that does not fail is inconclusive."""


@final
class Check:
    """A model to be checked, with its inputs, its true outputs from one pass, and the tolerance."""

    def __init__(self, adapter: Stateful, shape: plans.Shape, seed: int, tol: float | None) -> None:
        self.adapter, self.shape, self.seed, self.given_tol = adapter, shape, seed, tol
        self.x = adapter.inputs(shape.rows, shape.steps, torch.Generator().manual_seed(seed))
        self.whole = _whole(adapter, self.x)
        self._require_repeatable()
        self.tol, self.channel_tol = self._tolerances()

    def _tolerances(self) -> tuple[float, Tensor]:
        """Return the tolerance for all outputs, and a tolerance for each output channel.

        The tolerance for all outputs is relative to the largest output. The tolerance for a channel is relative to the
        largest output of this channel. Both tolerances follow from the coarsest dtype of the model and from the
        sensitivity of the model to rounding.
        """
        dtypes = [dtype.to_real() for dtype in (self.whole.dtype, *self._state_dtypes())]
        coarse = max((dtype for dtype in dtypes if dtype.is_floating_point), key=_eps, default=torch.float32)
        least, shaken = TOLERANCE.get(coarse, 5e-2), self._shaken(_eps(coarse))
        of_channel = ROUNDING * largest_of_channels(shaken, self.whole)
        if self.given_tol is not None:
            return self.given_tol, of_channel.clamp(min=self.given_tol)
        return max(least, ROUNDING * largest(shaken, self.whole)), of_channel.clamp(min=least)

    def _state_dtypes(self) -> list[torch.dtype]:
        try:
            state = self.adapter.run(self.x)[1]
        except Exception:  # every case will report this error
            return []
        if state is None:
            raise ArgumentError("model", "a model that returns a state", f"{name_of(self.adapter.model)}, with None")
        return [leaf.dtype for _, leaf in _states.leaves(state) if isinstance(leaf, Tensor)]

    def _shaken(self, eps: float) -> Tensor:
        """Return the outputs of one pass after a random relative change of about ``eps`` of all weights.

        If the model is a function without weights, the inputs are changed instead, unless they are tokens.
        """
        generator = torch.Generator().manual_seed(self.seed)

        def shaken(tensor: Tensor) -> Tensor:
            signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device) * 2 - 1
            return tensor * (1 + eps * signs)

        if not isinstance(self.adapter.model, torch.nn.Module):
            return self.adapter.whole(shaken(self.x) if self.x.is_floating_point() else self.x)
        weights = [weight for weight in self.adapter.model.parameters() if weight.is_floating_point()]
        kept = [weight.detach().clone() for weight in weights]
        try:
            for weight in weights:
                weight.copy_(shaken(weight))
            return self.adapter.whole(self.x)
        finally:
            for weight, before in zip(weights, kept, strict=True):
                weight.copy_(before)

    def _require_repeatable(self) -> None:
        if largest(self.adapter.whole(self.x), self.whole) > TOLERANCE.get(self.whole.dtype, 5e-2):
            got = f"{name_of(self.adapter.model)}, whose output changes from call to call"
            raise ArgumentError("model", "the same output for the same input", got)

    def run(self, name: str, ways: Sequence[plans.Plan], note: str = "", truth: Tensor | None = None) -> StateCase:
        """Run plans, compare their outputs with ``truth`` (default: the outputs of one pass), and return one result.

        If no plan fails, the result of the plan with the largest error is returned. If a plan raises an error, the
        result of this plan is returned. Otherwise the result is that of the plan that fails at the earliest time step,
        and of several such plans, of the plan with the fewest calls; the error in this result is the largest error of
        all plans.
        """
        found = []
        for plan in ways:
            found.append(self._plan(name, plan, note, self.whole if truth is None else truth))
            if found[-1].status == FAIL and found[-1].error is None:  # the model raised an error
                break
        failed = [case for case in found if case.status == FAIL]
        if not failed or failed[-1].error is None:
            return max(found, key=lambda case: (case.status == FAIL, case.error is None, case.error or 0.0))
        calls = {id(case): len(plan) for case, plan in zip(found, ways, strict=True)}
        first = min(failed, key=lambda case: (math.inf if case.first is None else case.first, calls[id(case)]))
        return replace(first, error=max(case.error or 0.0 for case in failed))

    def carried(self, ways: Sequence[plans.Plan]) -> Tensor:
        """Return the outputs computed by running plans; if a plan fails, return the outputs of one pass."""
        try:
            return assembled(self.adapter, self.x, ways, self.whole)
        except Exception:  # other cases report this error
            return self.whole

    def _plan(self, name: str, plan: plans.Plan, note: str, truth: Tensor) -> StateCase:
        adapter, x = self.adapter, self.x
        adapter.whole(x[:1, :1])  # some models keep their state in themselves; a pass without a state clears it
        try:
            found = compare(outputs(adapter, x, plan), truth, self.tol)
        except NotSupportedError:
            raise
        except Exception as error:  # whatever a foreign model raises is the result
            layer = first_layer(adapter, x, plan, self.tol)
            return StateCase(name, FAIL, None, self.tol, None, layer, f"raised {said(error)}")
        if found.error <= self.tol:
            small = self._worst_small_channel(found.of_channel)
            if small is not None:
                note = f"in a small channel, relative to its own largest output; {_lengths(plan)}"
                return StateCase(name, FAIL, *small, note=note)
            return self._passed(name, found.error, note)
        layer = first_layer(adapter, x, plan, self.tol)
        return StateCase(name, FAIL, found.error, self.tol, found.first, layer, found.note or _lengths(plan))

    def _worst_small_channel(self, errors: Tensor | None) -> tuple[float, float] | None:
        """Return the error and the tolerance of the worst channel; None if no channel is above its tolerance.

        Channels that consist of rounding errors, with a tolerance above ``VAGUE``, are ignored.
        """
        if errors is None or not errors.numel():
            return None
        excess = torch.where(self.channel_tol <= VAGUE, errors / self.channel_tol, 0).flatten()
        worst = int(excess.argmax())
        if not float(excess[worst]) > 1:
            return None
        return float(errors.flatten()[worst]), float(self.channel_tol.flatten()[worst])

    def _passed(self, name: str, error: float, note: str) -> StateCase:
        if self.tol <= VAGUE:
            return StateCase(name, PASS, error, self.tol, note=note)
        vague = f"rounding alone changes the outputs by {self.tol / ROUNDING:.0e}; use float64, or smaller weights"
        return StateCase(name, UNCLEAR, error, self.tol, note=vague)


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _whole(adapter: Stateful, x: Tensor) -> Tensor:
    try:
        y = adapter.whole(x)
    except ArgumentError:
        raise
    except Exception as error:  # whatever a foreign model raises
        expected = f"a model that runs on {x.shape[0]} sequences of {x.shape[1]} steps (length)"
        raise ArgumentError("model", expected, f"{name_of(adapter.model)}, which raised {said(error)}") from error
    if y.dim() < 2 or y.shape[:2] != x.shape[:2]:
        steps = f"an output with {x.shape[1]} time steps, as its input"
        raise ArgumentError("model", steps, f"{name_of(adapter.model)}, whose output has shape {tuple(y.shape)}")
    if not y.isfinite().all():
        step = int((~y.isfinite()).flatten(2).any(2).any(0).nonzero()[0])
        raise ArgumentError("model", "finite outputs", f"{name_of(adapter.model)}, whose output at step {step} is not")
    return y


def _lengths(plan: plans.Plan) -> str:
    """Return a text with the length of each call of a plan, such as "calls of 1, 15 steps"."""
    lengths = [sum(map(len, feed.rows[0])) for feed in plan]
    shown = list(map(str, lengths))
    return f"calls of {', '.join(shown if len(shown) <= 5 else [*shown[:3], '…', shown[-1]])} steps"
