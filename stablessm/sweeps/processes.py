"""Jobs in processes of this machine: each slot has a process, which lives as long as it does not die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import final

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError
from stablessm.sweeps import worker
from stablessm.sweeps.engine import Resources
from stablessm.sweeps.job import Job
from stablessm.sweeps.worker import Outcome

RETRIES = 2
_PATIENCE = 5.0
"""Seconds in which a process with nothing to do must end."""


@final
@dataclass(frozen=True)
class Processes:
    """So many jobs at once. A job whose process dies goes on in another one, up to ``retries`` times."""

    jobs: int = 1
    resources: Resources = field(default_factory=Resources)
    retries: int = RETRIES

    def __post_init__(self) -> None:
        whole_number("--jobs", self.jobs)
        whole_number("--retries", self.retries, least=0)
        if self.resources.memory is not None:
            raise ArgumentError(
                "--memory", "--on ray or --on slurm, which place jobs by it", "processes of one machine"
            )

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Until all are done."""
        waiting, lost = deque(jobs), Counter[Job]()
        slots = [_Slot(values, self.resources.cpus) for values in self._environments(min(self.jobs, len(jobs)))]
        try:
            while waiting or any(slot.job for slot in slots):
                for slot in slots:
                    if waiting and slot.job is None:
                        slot.give(waiting.popleft())
                busy = {slot.connection: slot for slot in slots if slot.job is not None}
                for connection in wait(list(busy)):
                    slot = busy[connection]  # type: ignore[index]
                    job, outcome = slot.take()
                    if outcome is None and lost[job] < self.retries:
                        lost[job] += 1
                        waiting.appendleft(job)
                    else:
                        yield job, outcome or Outcome(f"its process died {lost[job] + 1} times")
        finally:
            for slot in slots:
                slot.connection.close()  # so that they end side by side
            for slot in slots:
                slot.close()

    def _environments(self, slots: int) -> list[dict[str, str]]:
        """Of each slot: its cores and its GPUs."""
        common, each = worker.threads(self.resources.cpus), self.resources.gpus
        if each == 0:
            return [common] * slots
        there = _gpus()
        if each * slots > len(there):
            raise ArgumentError("--gpus", f"at most the {len(there)} there are, for {slots} jobs at once", each)
        parts = [there[i * each : (i + 1) * each] for i in range(slots)]
        return [{**common, "CUDA_VISIBLE_DEVICES": ",".join(part)} for part in parts]


class _Slot:
    """A process that computes one job at a time, and the job that it has."""

    def __init__(self, values: dict[str, str], cpus: int) -> None:
        self.values, self.cpus = values, cpus
        self.job: Job | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, self.cpus), daemon=True)
        with worker.environment(self.values):
            self.process.start()
        theirs.close()  # so that the end of the process is the end of the line

    def give(self, job: Job) -> None:
        self.job = job
        try:
            self.connection.send(job)
        except OSError:
            return  # it died while it waited: take() finds the end of the line

    def take(self) -> tuple[Job, Outcome | None]:
        """The job, and what became of it; None if the process died, and there is a new one."""
        job, self.job = self.job, None
        assert job is not None
        try:
            return job, self.connection.recv()
        except (EOFError, OSError):
            self.close()
            self._start()
            return job, None

    def close(self) -> None:
        self.connection.close()
        if self.job is None:
            self.process.join(_PATIENCE)  # it sees the end of the line
        self.process.kill()  # whatever it computes can be gone on with
        self.process.join()


def _serve(connection: Connection, cpus: int) -> None:
    """In the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; who started us ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(worker.compute(job, cpus))


def _end_with_parent() -> None:
    """A driver that was killed cannot end us, and another may soon begin."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _gpus() -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
