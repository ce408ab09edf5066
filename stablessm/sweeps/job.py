"""One job of a sweep: a part of an experiment that can be computed apart, on any machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from stablessm._errors import ArgumentError
from stablessm.experiments import catalogue
from stablessm.experiments.frame.base import Plan, Size

Changes: TypeAlias = tuple[tuple[str, str], ...]
_NAME = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9._=+-]*")


@final
@dataclass(frozen=True)
class Job:
    """What a worker is told: plain text, from which it makes the rest itself.

    >>> Job("st-fig1", "smoke", "runs", (), "direct-20").id
    'st-fig1/smoke/direct-20'
    """

    experiment: str
    """An id of the catalogue, or ``module:NAME``."""
    size: Size
    out: str
    changes: Changes
    name: str
    sweep: str = ""
    """What is written in the sweep's folder, by which a worker knows whether it sees the same files."""

    @property
    def id(self) -> str:
        """The same whenever and wherever it is computed."""
        return f"{self.plan().id}/{self.name}"

    def plan(self, out: str | Path | None = None) -> Plan:
        """The experiment, in its folder, or in one below ``out``."""
        return Plan.of(catalogue.get(self.experiment), self.size, Path(out or self.out), dict(self.changes))


def expand(experiment: str, size: Size, out: Path, changes: Changes, sweep: str = "") -> list[Job]:
    """The jobs of an experiment, in their order.

    >>> [job.name for job in expand("st-fig1", "smoke", Path("runs"), (("maps", "exp,best"),))]
    ['exp-20', 'best-20']
    >>> [job.name for job in expand("ia-fig1", "smoke", Path("runs"), ())]
    ['all']
    """
    names = list(Plan.of(catalogue.get(experiment), size, out, dict(changes)).jobs())
    for name in names:
        if not _NAME.fullmatch(name):
            raise ArgumentError("jobs", "names of letters, digits and . _ = + -", repr(name))
    return [Job(experiment, size, str(out.resolve()), changes, name, sweep) for name in names]
