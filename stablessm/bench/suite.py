"""Runs a suite case by case, prints a table for each case, and updates the record after each case."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from stablessm.bench import machine, table
from stablessm.bench.options import Options
from stablessm.bench.records import rows_so_far, write_record

Row: TypeAlias = dict[str, Any]
Axes: TypeAlias = Mapping[str, Sequence[Any]]


def announce(options: Options) -> dict[str, float]:
    """Print a description of the machine, and return its measured limits."""
    limits = machine.limits(options.device, smoke=options.smoke)
    table.say(f"{machine.describe(options.device)['device']}, {torch.get_num_threads()} threads")
    table.say(table.facts(limits))
    return limits


def run_cases(
    suite: str,
    options: Options,
    axes: Axes,
    measure: Callable[..., list[Row]],
    show: Callable[[list[Row]], str],
    summarize: Callable[[Sequence[Row]], Mapping[str, Any]],
    **more: Any,
) -> None:
    """Measure every case, print its table and update the record. Cases in the record of an interrupted run are not
    measured again.

    Args:
        axes: Values of arguments of ``measure`` by name; the cases are all combinations.
        show: ``show(rows)`` formats the rows of a case as a table.
        summarize: ``summarize(rows)`` returns the summary of all rows so far.
        more: Further entries of the record.
    """
    cases, path = list(itertools.product(*axes.values())), options.path(suite)
    rows = rows_so_far(path)
    for number, case in enumerate(table.progress(cases), 1):
        given = dict(zip(axes, case, strict=True))
        facts = {name: "x".join(map(str, it)) if isinstance(it, tuple) else it for name, it in given.items()}
        if any(facts.items() <= row.items() for row in rows):
            continue
        found = [facts | row for row in measure(**given)]
        table.say("\n" + show(found))
        rows += found
        write_record(path, options.device, rows, dict(summarize(rows)), complete=number == len(cases), **more)
    table.say("\n" + table.facts(summarize(rows)))
