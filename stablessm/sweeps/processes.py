"""An engine that computes jobs in processes of this machine and replaces processes that die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, final

from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError
from stablessm.sweeps import worker
from stablessm.sweeps.engine import Retrying, Workers
from stablessm.sweeps.job import Job
from stablessm.sweeps.worker import Outcome

_PATIENCE = 5.0
"""Seconds in which an idle process must end."""


@final
@checked
@dataclass(frozen=True)
class Processes(Retrying):
    """An engine that runs up to ``jobs`` jobs in parallel, each in a process of its own. If a process dies, its job
    resumes in another process, up to ``retries`` times.
    """

    jobs: Size = 1

    def __post_init__(self) -> None:
        if self.resources.memory is not None:
            expected = "--on ray or --on slurm, which place jobs by it"
            raise ArgumentError("--memory", expected, "processes of one machine")

    @contextmanager
    def _workers(self, placed: Mapping[Any, Job], count: int) -> Iterator[Workers]:
        environments = self._environments(min(self.jobs, count))
        slots = [_Slot(values, self.resources.cpus) for values in environments]

        def begin(job: Job) -> _Slot:
            slot = next(slot for slot in slots if slot not in placed)
            slot.give(job)
            return slot

        def ended() -> list[tuple[_Slot, Outcome | str]]:
            busy = {slot.connection: slot for slot in placed}
            ready = [busy[connection] for connection in wait(list(busy))]
            return [(slot, slot.take() or "its process died {} times") for slot in ready]

        try:
            yield begin, ended
        finally:
            for slot in slots:
                slot.connection.close()  # so that all processes end at the same time
            for slot in slots:
                slot.close(idle=slot not in placed)

    def _environments(self, slots: int) -> list[dict[str, str]]:
        """Return, for each worker process, the environment variables that select its CPU cores and GPUs."""
        common, each = worker.threads(self.resources.cpus), self.resources.gpus
        if each == 0:
            return [common] * slots
        there = _gpus()
        if each * slots > len(there):
            raise ArgumentError("--gpus", f"at most the {len(there)} there are, for {slots} jobs at once", each)
        parts = [there[i * each : (i + 1) * each] for i in range(slots)]
        return [{**common, "CUDA_VISIBLE_DEVICES": ",".join(part)} for part in parts]


class _Slot:
    """One worker process, which computes one job at a time."""

    def __init__(self, values: dict[str, str], cpus: int) -> None:
        self.values, self.cpus = values, cpus
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, self.cpus), daemon=True)
        with worker.environment(self.values):
            self.process.start()
        theirs.close()  # so that the connection closes when the process ends

    def give(self, job: Job) -> None:
        with suppress(OSError):  # the idle process has died: take() notices the closed connection
            self.connection.send(job)

    def take(self) -> Outcome | None:
        """Return the outcome of the job. If the process has died, start a new process and return None."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.close(idle=True)
            self._start()
            return None

    def close(self, *, idle: bool) -> None:
        self.connection.close()
        if idle:
            self.process.join(_PATIENCE)  # an idle process ends when its connection is closed
        self.process.kill()  # an interrupted job can be resumed
        self.process.join()


def _serve(connection: Connection, cpus: int) -> None:
    """Compute the jobs that arrive in this worker process, until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too, but its parent ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(worker.compute(job, cpus))


def _end_with_parent() -> None:
    """End this process when its parent process has ended, so that the process does not compete with a new sweep for the
    machine.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _gpus() -> list[str]:
    """Return the GPUs that this process may use, as names or numbers for CUDA_VISIBLE_DEVICES."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
