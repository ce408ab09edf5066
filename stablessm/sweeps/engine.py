"""The interface of an engine, which runs the jobs of a sweep, and the base class of the engines in this package."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeAlias, final

from stablessm._checked import Count, Rule, Size, checked
from stablessm._errors import ArgumentError, quoted
from stablessm.sweeps.job import Job
from stablessm.sweeps.worker import Outcome

Workers: TypeAlias = tuple[Callable[[Job], Any], Callable[[], Iterable[tuple[Any, Outcome | str]]]]
"""Two functions. The first starts a job and returns a handle. The second waits until jobs have ended and returns their
handles, each with the outcome, or with a message that its worker died, in which ``{}`` stands for the
number of times."""
Bytes: TypeAlias = Annotated[int, Rule(lambda n: 1 <= n < 2**63, "a whole number, at least 1")]
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@final
@checked
@dataclass(frozen=True)
class Resources:
    """The resources that each job gets: CPU cores, GPUs and memory.

    >>> Resources(cpus=2, memory=memory("4GB")).memory
    4000000000
    """

    cpus: Size = 1
    gpus: Count = 0
    memory: Bytes | None = None
    """Expected memory per job in bytes. Ray and Slurm place jobs by it."""


class Engine(Protocol):
    """An engine runs the jobs of a sweep and yields the outcome of each job as soon as the job ends. The engine
    replaces workers that are lost.
    """

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Run every job once, in any order, and yield each job together with its outcome."""
        ...


@dataclass(frozen=True)
class Retrying(ABC):
    """Base class of the engines of this package. Jobs wait until the resources that they need are free, and a job whose
    worker died is run again.
    """

    jobs: Size | None = None
    """Maximum number of parallel jobs; None for as many as the resources allow."""
    resources: Resources = field(default_factory=Resources)
    retries: Count = 2
    """How often a job is repeated after its worker died."""

    @final
    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Run all jobs, in any order, and yield each job together with its outcome. A job whose worker died is run
        again, at most ``retries`` times.
        """
        waiting, died, placed = deque(jobs), Counter[Job](), dict[Any, Job]()
        with self._workers(placed, len(jobs)) as (begin, ended):
            while waiting or placed:
                while waiting and (self.jobs is None or len(placed) < self.jobs):
                    job = waiting.popleft()
                    placed[begin(job)] = job
                for handle, outcome in list(ended()):
                    job = placed.pop(handle)
                    if isinstance(outcome, Outcome):
                        yield job, outcome
                        continue
                    died[job] += 1
                    if died[job] > self.retries:
                        yield job, Outcome(outcome.replace("{}", str(died[job]), 1))
                    else:
                        waiting.appendleft(job)

    @abstractmethod
    def _workers(self, placed: Mapping[Any, Job], count: int) -> AbstractContextManager[Workers]:
        """Return a context manager that provides two functions. The first starts a job and returns a handle. The second
        waits until jobs end and returns their handles, each with the outcome of the job or a message that its worker
        died. ``placed`` maps the handle of each running job to the job; ``count`` is the number of all jobs.
        """


def memory(text: str) -> int:
    """Return a size in bytes, from text such as ``4GB``.

    >>> memory("512MB"), memory("1.5 GB")
    (512000000, 1500000000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ArgumentError("--memory", "a number with KB, MB, GB or TB", quoted(text))
    return round(float(match[1]) * _UNITS[(match[2] or "").upper()])
