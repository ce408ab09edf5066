"""The experiments by id, imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from stablessm._errors import ArgumentError
from stablessm.experiments.base import Experiment

IDS: tuple[str, ...] = (
    "ia-fig1",
    "ia-fig2",
    "ia-fig3",
    "ia-fig4",
    "ia-fig5",
    "ia-fig6",
    "su-conv",
    "su-fig2",
    "su-fig3",
    "su-fig4",
    "su-fig5",
    "su-fig6",
    "su-depth",
    "su-table1",
    "lr-fig2",
    "lr-fig3",
    "lr-fig4",
    "lr-fig5",
    "lr-fig6",
    "lr-fig7",
    "lr-fig8",
    "lr-fig9",
    "st-fig1",
    "st-fig2",
    "st-fig3",
    "st-fig4",
    "st-fig5",
    "st-fig6",
    "st-table1",
    "st-table2",
    "st-table3",
    "st-table4",
    "st-table5",
    "st-table6",
    "ext-precision",
    "ext-architectures",
    "ext-activations",
    "ext-ett",
    "ext-language",
)


GROUP = "stablessm.experiments"
"""The entry point group in which a package of yours names its experiments."""


def ids() -> list[str]:
    """Ours, then those of installed packages."""
    return [*IDS, *sorted(entry.name for entry in entry_points(group=GROUP) if entry.name not in IDS)]


def get(id: str) -> Experiment[Any]:
    """Return the experiment of that id: ours, one of an installed package, or ``my_package.module:NAME``.

    >>> get("ia-fig1").source
    'paper 000, figure 1'
    >>> get("stablessm.experiments.demo.experiment:EXPERIMENT").id
    'demo'
    """
    if ":" in id:
        module, _, name = id.partition(":")
        return _own(id, lambda: getattr(import_module(module), name))
    if id in IDS:
        return import_module(f"stablessm.experiments.{id.replace('-', '_')}.experiment").EXPERIMENT
    for entry in entry_points(group=GROUP, name=id):
        return _own(f"{id} = {entry.value}", entry.load)
    raise ArgumentError("ID", f"one of {', '.join(ids())}, or module:NAME", repr(id))


def _own(reference: str, load: Callable[[], Any]) -> Experiment[Any]:
    try:
        found = load()
    except (ImportError, AttributeError) as error:
        raise ArgumentError("ID", "module:NAME, both of which exist", f"{reference!r} ({error})") from error
    if not isinstance(found, Experiment):
        raise ArgumentError("ID", "module:NAME of an Experiment", f"{reference!r}, a {type(found).__name__}")
    return found
