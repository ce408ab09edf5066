"""File locks. They let only one process at a time compute in a run folder, and only one worker at a time compute
a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from stablessm._errors import ArgumentError

JOB = "lock"
"""Name of the lock file of a job, in the folder of its notes."""
_LOOK = 0.5
"""Number of seconds to wait for a lock. A check whether a lock is taken holds the lock for a shorter time."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a run folder for this process inside a ``with`` block; raise an ArgumentError if it is locked."""
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
    """Return True if a process is computing in the run folder now."""
    return _held(folder.with_name(f".{folder.name}.lock"))


def job_lock(notes: Path) -> FileLock:
    """Return the lock of the job whose state is in the folder ``notes``.

    The worker that computes the job holds the lock. Other workers wait until that worker releases the lock or dies.
    """
    notes.mkdir(parents=True, exist_ok=True)
    return FileLock(notes / JOB, poll_interval=0.2)


def running(notes: Path) -> bool:
    """Return True if a worker, on this or another machine, is computing the job whose state is in ``notes``."""
    return _held(notes / JOB)


def _held(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
