"""A job of a sweep: a part of an experiment that can be computed on any machine, independently of the other parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

from stablessm._errors import ArgumentError, quoted
from stablessm.experiments import catalog
from stablessm.experiments.frame.base import Plan, Size

Changes: TypeAlias = tuple[tuple[str, str], ...]
_NAME = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9._=+-]*")


@final
@dataclass(frozen=True)
class Job:
    """A job of a sweep. Its fields are only strings, so that any worker can build the experiment and its settings from
    these strings.

    >>> Job("st-fig1", "smoke", "runs", (), "direct-20").id
    'st-fig1/smoke/direct-20'
    """

    experiment: str
    """An id that ``stablessm list`` shows, or ``module:NAME``."""
    size: Size
    out: str
    changes: Changes
    name: str
    sweep: str = ""
    """A name that is written into the sweep's folder. A worker that finds this name in the folder has access to it."""

    @property
    def id(self) -> str:
        """Return the name ``EXPERIMENT/SIZE/JOB``, which is the same on every machine."""
        return f"{self.plan().id}/{self.name}"

    def plan(self, out: str | Path | None = None) -> Plan:
        """Return the plan (settings and run folder) of the job's experiment; the output folder is ``out`` (default: the
        folder of the sweep).
        """
        return Plan.of(catalog.get(self.experiment), self.size, Path(out or self.out), dict(self.changes))


def expand(experiment: str, size: Size, out: Path, changes: Changes, sweep: str = "") -> list[Job]:
    """Split an experiment into jobs and return the jobs, in the order in which the experiment defines them. ``changes``
    are pairs of the name of a setting and its new value; ``sweep`` is the name of the sweep.

    >>> [job.name for job in expand("st-fig1", "smoke", Path("runs"), (("maps", "exp,best"),))]
    ['exp-20', 'best-20']
    >>> [job.name for job in expand("ia-fig1", "smoke", Path("runs"), ())]
    ['all']
    """
    names = list(Plan.of(catalog.get(experiment), size, out, dict(changes)).jobs())
    for name in names:
        if not _NAME.fullmatch(name):
            raise ArgumentError("jobs", "names of letters, digits and . _ = + -", quoted(name))
    return [Job(experiment, size, str(out.resolve()), changes, name, sweep) for name in names]
