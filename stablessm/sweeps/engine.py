"""What an engine is: something that computes jobs, somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError
from stablessm.sweeps.job import Job
from stablessm.sweeps.worker import Outcome

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@final
@dataclass(frozen=True)
class Resources:
    """What every job gets.

    >>> Resources(cpus=2, memory=memory("4GB")).memory
    4000000000
    """

    cpus: int = 1
    gpus: int = 0
    memory: int | None = None
    """In bytes: what it is expected to need. An engine places jobs by it."""

    def __post_init__(self) -> None:
        whole_number("cpus", self.cpus)
        whole_number("gpus", self.gpus, least=0)
        if self.memory is not None:
            whole_number("memory", self.memory)


class Engine(Protocol):
    """Computes jobs and says, as they come, what became of each. Workers that are lost are replaced."""

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Every job once, in any order."""
        ...


def memory(text: str) -> int:
    """Bytes.

    >>> memory("512MB"), memory("1.5 GB")
    (512000000, 1500000000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ArgumentError("--memory", "a number with KB, MB, GB or TB", repr(text))
    return round(float(match[1]) * _UNITS[(match[2] or "").upper()])
