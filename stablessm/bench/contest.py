"""Runs one case of a benchmark: contenders are checked and, if their results are correct, timed in turns.

A contender that fails gets a row with its error, and the run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from stablessm.bench import table
from stablessm.bench.measure import Call, Clock, Timing, event_clock, host_clock, queued_clock, rotating, timings
from stablessm.bench.options import Options
from stablessm.bench.suite import Row
from stablessm.training.replayed import Replayed

Select: TypeAlias = Callable[[Sequence[Any]], Sequence[np.ndarray]]
"""Function that returns the numbers of a result that are compared."""

OURS = "stablessm"
GRAPH = "stablessm, CUDA graph"
PHASES = ("forward", "forward+backward")


@final
@dataclass(frozen=True)
class Contender:
    """An implementation in a benchmark. ``calls`` maps each phase (forward, or forward and backward) to a list of
    functions, one for each set of inputs.

    In the phase forward a function returns the result; in the phase forward and backward it returns the result and the
    gradients of the inputs.
    """

    calls: Mapping[str, Sequence[Call]]
    clock: Clock
    answer: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda parts: parts
    """Converts the value that a peer returns into the expected form; not timed."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Reason why a phase has no calls, by phase."""


Makers: TypeAlias = Mapping[str, Callable[[], Contender]]


def torch_contender(run: Callable[..., Tensor], sets: Sequence[Sequence[Tensor]], **more: Any) -> Contender:
    """Build a contender from a PyTorch function. The forward pass is timed without autograd; forward and backward
    together are timed with autograd.

    Each entry of ``sets`` is a list of tensors: the inputs of the function, followed by the gradient of its result.
    ``more`` are further fields of :class:`Contender`.
    """
    leaves = [(*(tensor.detach().requires_grad_() for tensor in inputs), g) for *inputs, g in sets]
    calls = {phase: [partial(call, *inputs) for inputs in leaves] for phase, call in _phases(run).items()}
    return Contender(calls, event_clock if sets[0][-1].is_cuda else host_clock, **more)


def graph_contender(run: Callable[..., Tensor], sets: Sequence[Sequence[Tensor]]) -> Contender:
    """Build a contender from a PyTorch function that runs as CUDA graphs: one graph for the forward pass, one for
    forward and backward together.

    Each timed call first copies its inputs into the tensors of the graph.
    """

    def fresh(call: Callable[..., Any]) -> Callable[..., Any]:  # leaves, so that differentiation ends at them
        return lambda *inputs: call(*(tensor.detach().requires_grad_() for tensor in inputs[:-1]), inputs[-1])

    graphs = {phase: Replayed(fresh(call), sets[0], ()) for phase, call in _phases(run).items()}
    calls = {phase: [partial(graph, *inputs) for inputs in sets] for phase, graph in graphs.items()}
    return Contender(calls, event_clock)


def _phases(run: Callable[..., Tensor]) -> dict[str, Callable[..., tuple[Tensor, ...]]]:
    @torch.no_grad()
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        return (run(*inputs[:-1]),)

    def both(*inputs: Tensor) -> tuple[Tensor, ...]:
        result = run(*inputs[:-1])
        return result.detach(), *torch.autograd.grad(result, inputs[:-1], inputs[-1])

    return dict(zip(PHASES, (forward, both), strict=True))


def is_peer(name: str) -> bool:
    """Return True if a contender belongs to another package."""
    return name not in (OURS, GRAPH)


@final
@dataclass(frozen=True)
class Gate:
    """Compares a contender's result with the true values before the contender is timed. ``select`` picks from a result
    the numbers that are compared, ``expected`` are their true values, and ``tolerance`` is the largest relative error
    of a correct result.
    """

    expected: Sequence[np.ndarray]
    select: Select
    tolerance: float

    def check(self, contender: Contender, phase: str) -> tuple[float | None, str | None]:
        """Compare the results (and gradients, in the phase forward and backward) of one call with the true values.
        Return the largest relative error and, if the contender is excluded, the reason.
        """
        try:
            parts = self.select(contender.answer(contender.calls[phase][0]()))
        except Exception as error:
            return None, failure(error)
        pairs = list(zip(parts, self.expected, strict=False))  # a forward call has no gradients
        if any(u.shape != v.shape for u, v in pairs):
            return None, "wrong"
        worst = float(np.max([np.abs(u - v).max() / np.abs(v).max() for u, v in pairs]))  # NaN if any error is NaN
        return worst, None if worst <= self.tolerance else "wrong"


def contest(makers: Makers, gate: Gate, floors: Mapping[str, float], options: Options) -> list[Row]:
    """Check and time all contenders. Return one row for each contender and phase, with the time, the relative error,
    and the ratio of the time to the floor of the phase.

    ``makers`` maps the name of each contender to a function that builds it. ``floors`` maps each phase to its floor:
    the number of milliseconds that the machine needs at least to move the data.
    """
    made, failed = make(makers)
    rows = []
    for phase, floor in floors.items():
        running = {name: contender for name, contender in made.items() if phase in contender.calls}
        checked = {name: gate.check(contender, phase) for name, contender in running.items()}
        right = {name: contender for name, contender in running.items() if checked[name][1] is None}
        taken, queued = measure(right, phase, options)
        best, best_queued = (
            min((timing.median for name, timing in found.items() if is_peer(name)), default=None)
            for found in (taken, taken | queued)  # contenders without queued times are compared by their calls
        )
        for name in makers:
            absent = failed[name] if name in failed else made[name].left_out.get(phase)
            if name not in running and absent is None:
                continue
            error, note = checked.get(name, (None, absent))
            row: Row = {"phase": phase, "contender": name} | timed(taken.get(name), floor, best)
            row |= {"floor_ms": floor, "relative_error": error, "note": note}
            if name in running:
                row["clock"] = running[name].clock.__name__.removesuffix("_clock")
            if name in right and right[name].clock is event_clock:
                row["peak_bytes"] = peak_memory(right[name].calls[phase][0])
            if name in queued:
                row |= {f"queued_{key}": value for key, value in timed(queued[name], floor, best_queued).items()}
            rows.append(row)
    return rows


def make(makers: Makers) -> tuple[dict[str, Contender], dict[str, str]]:
    """Build the contenders. Return two dicts by name: the contenders, and the errors of the contenders that could not
    be built.
    """
    made, failed = {}, {}
    for name, maker in makers.items():
        try:
            made[name] = maker()
        except Exception as error:
            failed[name] = failure(error)
    return made, failed


def measure(
    contenders: Mapping[str, Contender], phase: str, options: Options
) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Time the contenders in turns, and return two dicts by name: the times of all contenders and, for PyTorch
    functions on a GPU, the times without the overhead of kernel launches. ``phase`` is a key of
    :attr:`Contender.calls`.
    """
    calls = {name: rotating(contender.calls[phase]) for name, contender in contenders.items()}
    clocks = {name: contender.clock for name, contender in contenders.items()}
    on_gpu = [name for name, clock in clocks.items() if clock is event_clock]
    taken = timings(
        calls | {f"{name}, queued": calls[name] for name in on_gpu},
        seconds=0.05 if options.smoke else options.seconds,
        clocks=clocks | {f"{name}, queued": queued_clock for name in on_gpu},
    )
    return {name: taken[name] for name in calls}, {name: taken[f"{name}, queued"] for name in on_gpu}


def timed(timing: Timing | None, floor: float, best: float | None) -> Row:
    """Return the columns of a result row that describe a measured time.

    The columns are the time itself with its quartiles, the ratio of the time to the shortest time that the machine
    allows (``floor``), and the ratio of the best peer's time (``best``) to this time.
    """
    if timing is None:
        return dict.fromkeys(("ms", "quartiles_ms", "turns", "times_floor", "best_peer_over_this"))
    return {
        "ms": timing.median, "quartiles_ms": list(timing.quartiles), "turns": timing.turns,
        "times_floor": timing.median / floor, "best_peer_over_this": best and best / timing.median,
    }  # fmt: skip


def peak_memory(call: Call) -> int:
    """Return the peak GPU memory of a call in bytes, including its results but not the memory that was in use before
    the call.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def show(title: str, rows: Sequence[Row]) -> str:
    """Format the results of one case as a table.

    Names in braces in ``title``, such as ``{dtype}``, are replaced by the entries of the first row.
    """
    lines = []
    for name in dict.fromkeys(row["contender"] for row in rows):
        phases = {row["phase"]: row for row in rows if row["contender"] == name}
        error = max((row["relative_error"] or 0.0 for row in phases.values()), default=0.0)
        lines.append([name, *_cells(phases, ""), f"{error:.1e}" if error else ""])
        if any(row.get("queued_ms") for row in phases.values()):
            lines.append(["  queued", *_cells(phases, "queued_"), ""])
        notes = dict.fromkeys(row["note"] for row in phases.values() if row["note"] not in (None, "wrong"))
        lines += [[f"  {note}", *[""] * 7] for note in notes]
    head = ["", "forward ms", "× floor", "vs peer", "both ms", "× floor", "vs peer", "error"]
    return f"{title.format(**rows[0])}\n{table.columns(head, lines)}"


def _cells(phases: Mapping[str, Row], prefix: str) -> list[str]:
    cells: list[str] = []
    for phase in PHASES:
        row = phases.get(phase)
        if row is None or row.get(f"{prefix}ms") is None:
            cells += ["" if row is None else (row["note"] or "").partition(":")[0], "", ""]
        else:
            cells.append(table.milliseconds(row[f"{prefix}ms"], row[f"{prefix}quartiles_ms"]))
            cells += [table.times(row[f"{prefix}{key}"]) for key in ("times_floor", "best_peer_over_this")]
    return cells


def failure(error: Exception) -> str:
    """Return the error of a contender as one line of text."""
    return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
