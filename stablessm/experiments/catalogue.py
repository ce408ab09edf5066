"""The experiments by id, imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
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


def get(id: str) -> Experiment[Any]:
    """The experiment of that id, or one of your own: ``my_package.module:NAME``.

    >>> get("ia-fig1").source
    'paper 000, figure 1'
    >>> get("stablessm.experiments.demo.experiment:EXPERIMENT").id
    'demo'
    """
    if ":" in id:
        return _own(id)
    if id not in IDS:
        raise ArgumentError("ID", f"one of {', '.join(IDS)}, or module:NAME", repr(id))
    return import_module(f"stablessm.experiments.{id.replace('-', '_')}.experiment").EXPERIMENT


def _own(reference: str) -> Experiment[Any]:
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ArgumentError("ID", "module:NAME, both of which exist", f"{reference!r} ({error})") from error
    if not isinstance(found, Experiment):
        raise ArgumentError("ID", "module:NAME of an Experiment", f"{reference!r}, a {type(found).__name__}")
    return found
