"""Locks: one process at a time computes in a run folder, and one worker at a time computes a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from stablessm._errors import ArgumentError

JOB = "lock"
"""Name of the lock file of a job, in the folder of its notes."""
_LOOK = 0.5
"""Seconds; a check whether a lock is taken holds it for less."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the run folder for this process, or raise an ArgumentError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ArgumentError("folder", "a folder that can be created", f"{folder}: a file is in the way") from error
    lock = FileLock(folder.with_name(f".{folder.name}.lock"), timeout=_LOOK, poll_interval=_LOOK / 10)
    try:
        lock.acquire()
    except Timeout as error:
        raise ArgumentError("folder", "a folder in which no other process computes", str(folder)) from error
    try:
        yield
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink()  # while this process holds the lock
        lock.release()


def taken(folder: Path) -> bool:
    """Return whether a process computes in the run folder now."""
    return _held(folder.with_name(f".{folder.name}.lock"))


def job_lock(notes: Path) -> FileLock:
    """Return the lock of a job, held by the worker that computes it; other workers wait until it ends or dies."""
    notes.mkdir(parents=True, exist_ok=True)
    return FileLock(notes / JOB, poll_interval=0.2)


def running(notes: Path) -> bool:
    """Return whether a worker, on this or another machine, computes the job now."""
    return _held(notes / JOB)


def _held(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
