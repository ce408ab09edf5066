"""The ids and summaries of the experiments, for ``stablessm list``. Importing this module does not import PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, final

FIGURES: dict[str, tuple[str, ...]] = {
    "ia": ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "families", "epochs", "lemmas"),
    "su": ("conv", "fig2", "fig3", "fig4", "fig5", "fig6", "depth", "decay", "table1"),
    "lr": ("fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "lemma8"),
    "st": (
        "fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "table1", "table2", "table3", "table4", "table5", "table6",
        "appendix", "rates",
    ),
    "ext": ("precision", "architectures", "activations", "nonlinear", "approximation", "gated", "ett", "language"),
}  # fmt: skip
"""The figures and tables of each paper (and ``ext``, beyond the papers), by the first part of their ids."""
IDS: tuple[str, ...] = tuple(f"{paper}-{name}" for paper, names in FIGURES.items() for name in names)
PAPERS: Mapping[str, str] = {
    "ia": "IAT: Inverse Approximation Theory for Nonlinear Recurrent Neural Networks",
    "su": "SSM-UA: State-space Models with Layer-wise Nonlinearity are Universal",
    "lr": "LRU-UA: On the Universality of Linear Recurrences",
    "st": "StableSSM: Alleviating the Curse of Memory in State-space Models",
    "ext": "Beyond the papers",
    "": "Of installed packages",
}
"""Headings of the groups, by the first part of their ids."""
GROUP = "stablessm.experiments"
"""The entry point group in which an installed package names its experiments."""
SUMMARIES = Path(__file__).with_name("summaries.json")
"""Summaries of the experiments in this package; ``./dev pages`` writes the file."""


@final
@dataclass(frozen=True)
class Summary:
    """The summary of an experiment that ``stablessm list`` shows: title, question, minutes and verdicts."""

    title: str
    question: str
    minutes: Mapping[str, float]
    """Duration of each size on two cores."""
    verdicts: Mapping[str, int]
    """Number of claims with each verdict in the committed record."""


def judged_size(minutes: Mapping[str, float]) -> str:
    """Return the size of the run whose verdicts ``stablessm list`` shows: ``paper`` if the experiment has this size,
    otherwise ``reduced``. The keys of ``minutes`` are the sizes of the experiment.

    >>> judged_size({"smoke": 0.1, "paper": 60.0}), judged_size({"smoke": 0.1, "reduced": 9.0, "large": 10.0})
    ('paper', 'reduced')
    """
    return "reduced" if "reduced" in minutes and "paper" not in minutes else "paper"


def ids() -> list[str]:
    """Return the ids of this package's experiments, followed by the ids that installed packages register."""
    return [*IDS, *sorted(entry.name for entry in entry_points(group=GROUP) if entry.name not in IDS)]


@cache
def summaries() -> dict[str, Summary]:
    """Return a dict from the id of each experiment of this package to its summary."""
    import json

    found: dict[str, dict[str, Any]] = json.loads(SUMMARIES.read_text(encoding="utf-8"))
    return {id: Summary(**facts) for id, facts in found.items()}
