"""A table of the modules of a model, with their parameters, maps and the memory of their recurrences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from stablessm._checked import checked
from stablessm.instruments.modes import mapped_weight, recurrent_modules, report_modes


@checked
def summary(model: nn.Module) -> str:
    """Return a table of the modules of a model: shapes and numbers of parameters, and map and memory of recurrences.

    The memory of a mode is the time in which it decays by a factor of e, computed from its eigenvalue: in samples, or
    in your unit of time for layers with a ``dt``. A star marks recurrent parameters (:func:`stablessm.param_groups`).

    >>> import stablessm as ssm
    >>> print(summary(nn.Sequential(ssm.LRU(1, 2, 1, r_min=0.9, r_max=0.9), nn.Linear(1, 3))))
    module  class   parameters                               count  map                                  memory
    0       LRU     w* 2, phase* 2, B 2×2×1, C 1×2×2, D 1×1     13  best(a=1.0, b=1.0, time='discrete')  9.49 to 9.49
    1       Linear  weight 3×1, bias 3                           6
    19 parameters, 4 of them recurrent (*)
    """
    recurrent = dict(recurrent_modules(model))
    starred = {id(getattr(module, own)) for module in recurrent.values() for own in module.recurrent_parameters}
    rows = [("module", "class", "parameters", "count", "map", "memory")]
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if own:
            shapes = (f"{short}{'*' if id(p) in starred else ''} {_shape(p)}" for short, p in own.items())
            dynamics = _dynamics(module) if name in recurrent else ("", "")
            rows.append((name, type(module).__name__, ", ".join(shapes), f"{_count(own.values()):,}", *dynamics))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    mine = _count(p for p in model.parameters() if id(p) in starred)
    total = f"{_count(model.parameters()):,} parameters, {mine:,} of them recurrent (*)"
    return "\n".join([*(_line(row, widths) for row in rows), total])


def _dynamics(module: Any) -> tuple[str, str]:
    """Return the map of a recurrence, and its shortest and longest memory, as text for the table."""
    name = repr(module.map) if mapped_weight(module) else ""
    if not hasattr(module, "eigenvalues"):
        return name, ""
    times = report_modes(module).time_scale
    return name, f"{times.min():.3g} to {times.max():.3g}"


def _count(parameters: Iterable[Tensor]) -> int:
    return sum(p.numel() for p in parameters)


def _shape(parameter: Tensor) -> str:
    return "×".join(map(str, parameter.shape)) or "1"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, kind, shapes, count, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join([name, kind, shapes, count.strip().rjust(widths[3]), *rest]).rstrip()
