"""Sweeps to which something happens in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sweep_experiment import REFERENCE

from stablessm.sweeps import runs

DRIVER = "from stablessm.cli import app; app()"
TESTS = Path(__file__).parent


def driver(out: Path, *options: str, settings: dict[str, object], id: str = REFERENCE) -> subprocess.Popen[str]:
    """A sweep in a process of its own."""
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-c", DRIVER, "run", id, "--out", str(out), *options, *given]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def running(out: Path, minutes: float = 3.0) -> dict[str, int]:
    """Wait until some jobs are being computed; their processes, by name."""
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        for run in runs(out):
            found = {name: note.worker for name, note in run.jobs.items() if note.state == "running"}
            if found:
                return {name: int(worker.rpartition(" ")[2]) for name, worker in found.items()}
        time.sleep(0.02)
    raise TimeoutError("no job began")


def computed(tally: Path) -> Counter[str]:
    """How often each step was computed."""
    return Counter(tally.read_text(encoding="utf-8").splitlines()) if tally.exists() else Counter()


def repeated(tally: Path) -> set[str]:
    """Jobs of which a step was computed again, since its last checkpoint."""
    return {f"walk-{line.split()[0]}" for line, times in computed(tally).items() if times > 1}


def wait_for(steps: int, tally: Path, minutes: float = 3.0) -> None:
    """Until so many steps are computed."""
    end = time.monotonic() + 60 * minutes
    while sum(computed(tally).values()) < steps:
        assert time.monotonic() < end, "nothing is computed"
        time.sleep(0.02)


@contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """Do this while the block runs; what it raises fails the test."""
    errors: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=act, daemon=True)  # if the block raises, nobody waits for it
    thread.start()
    yield
    thread.join()
    if errors:
        raise errors[0]


def kill(process: int) -> None:
    """At once."""
    os.kill(process, signal.SIGKILL)
