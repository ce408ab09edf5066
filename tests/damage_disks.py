"""Disks that fail while a command writes: full, read-only, limited, or with the folder moved away."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from damage import Member, RefusedError, command, quiet
from damage_kinds import KINDS, WALKS, data, series, train


def made(out: Path, kind: str) -> Path:
    """Return a whole folder of a kind beside ``out``, made while the disk is well."""
    folder = out.parent / f"whole-{kind}"
    if not folder.exists():
        folder.mkdir()
        KINDS[kind].make(folder, 0)
    return folder


def predict(out: Path) -> None:
    command("predict", made(out, "forecast"), series(made(out, "forecast")), "--out", out / "run" / "forecast.csv")


def measure(out: Path) -> None:
    command("measure", made(out, "layer"), "--horizon", 8, "--samples", 2, "--ascent", 0, "--out", out / "run")


def export(out: Path, suffix: str) -> None:
    (out / "run").mkdir(exist_ok=True)
    command("export", made(out, "layer"), out / "run" / f"step{suffix}")


def prepare(out: Path) -> None:
    """Make what the commands read."""
    data(out)
    for kind in ("forecast", "layer"):
        made(out, kind)


COMMANDS: dict[str, Callable[[Path], object]] = {
    "predict": predict,
    "measure": measure,
    "train": lambda out: train(out, out / "run"),
    "run": lambda out: command("run", WALKS, "--out", out / "run", "--set", "walks=2", "--set", "steps=3"),
    "fit": lambda out: command("fit", "exp(-t)", "--horizon", 20, "--order", 1, "--out", out / "run"),
    "export to torch.export": lambda out: export(out, ".pt2"),
    "export to ONNX": lambda out: export(out, ".onnx"),
}


@contextmanager
def full_disk(out: Path, rng: random.Random) -> Iterator[None]:
    """No more room after some files have reached the disk."""
    left, sync = [rng.randrange(20)], os.fsync

    def fsync(handle: int) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        sync(handle)

    with mock.patch.object(os, "fsync", fsync):
        yield


@contextmanager
def small_files(out: Path, rng: random.Random) -> Iterator[None]:
    """Every write beyond some bytes of a file fails, whichever library does it."""
    import resource  # not on Windows

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (rng.choice((0, 300, 700, 3000, 9000)), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def read_only(out: Path, rng: random.Random) -> Iterator[None]:
    """Nothing can be written into the folder and below, not by the superuser either, sometimes from the middle on."""
    make, left = os.open, [rng.choice((0, 0, 5, 15))]

    def refuse(path: object, flags: int, *args: object, **options: object) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path).startswith(str(out)):
            if not left[0]:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            left[0] -= 1
        return make(path, flags, *args, **options)  # type: ignore[arg-type]

    with mock.patch.object(os, "open", refuse):
        yield


@contextmanager
def moved(out: Path, rng: random.Random) -> Iterator[None]:
    """The folder is moved away in the middle, and back when the command has ended."""
    left, sync, run, away = [rng.randrange(3, 20)], os.fsync, out / "run", out / "elsewhere"

    def fsync(handle: int) -> None:
        sync(handle)
        left[0] -= 1
        if not left[0] and run.exists():
            run.rename(away)

    with mock.patch.object(os, "fsync", fsync):
        yield
    if away.exists():
        shutil.rmtree(run, ignore_errors=True)
        away.rename(run)


FAULTS = {"full disk": full_disk, "write fails": small_files, "read-only": read_only, "moved": moved}


def member(root: Path, name: str, fault: str, number: int, seed: int) -> Member:
    """Run a command while the disk fails, then once more; say what came out."""
    rng = random.Random(f"{name}/{fault}/{number}/{seed}")
    out = root / "disk"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    outcome, said = "same", ""
    with quiet():
        prepare(out)
    try:
        with quiet(), FAULTS[fault](out, rng):
            COMMANDS[name](out)
    except RefusedError as error:
        said = str(error)
        outcome = "refused" if str(out) in said.replace("\n", "") else "unnamed"
    except Exception as error:
        outcome, said = "traceback", f"{type(error).__name__}: {error}"
    try:
        with quiet():
            COMMANDS[name](out)
    except Exception as error:
        outcome, said = "silent", f"{said}; then {error}"
    return Member(f"disk of {name}", name, "", fault, outcome, said)
