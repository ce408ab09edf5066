"""Who computes what: a run folder belongs to one process, a job of it to one worker, until that ends or dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from stablessm._errors import ArgumentError

JOB = "lock"
"""The name of the lock of a job, in the folder of its notes."""
_LOOK = 0.5
"""Seconds: who looks whether a lock is taken holds it for less."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """The run folder for this process alone, or an error."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ArgumentError("folder", "one that can be made", f"{folder}, where a file is in the way") from error
    lock = FileLock(folder.with_name(f".{folder.name}.lock"), timeout=_LOOK, poll_interval=_LOOK / 10)
    try:
        lock.acquire()
    except Timeout as error:
        raise ArgumentError("folder", "one that no other process computes now", str(folder)) from error
    try:
        yield
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink()  # while it is ours: one that another has taken meanwhile must stay
        lock.release()


def taken(folder: Path) -> bool:
    """Whether some process computes in the run folder now."""
    return _held(folder.with_name(f".{folder.name}.lock"))


def job_lock(notes: Path) -> FileLock:
    """To be held by whoever computes the job with these notes; another waits until it ends, or dies."""
    notes.mkdir(parents=True, exist_ok=True)
    return FileLock(notes / JOB, poll_interval=0.2)


def running(notes: Path) -> bool:
    """Whether some worker, on this or another machine, computes the job with these notes now."""
    return _held(notes / JOB)


def _held(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
