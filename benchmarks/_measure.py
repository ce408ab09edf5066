"""How every benchmark measures: one allocator setting, contenders in turns, medians, ratios, a record."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from stablessm.record import environment

RESULTS = Path(__file__).parent / "results"
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "1000000000"}


def same_allocator_for_all() -> None:
    """Start again with an allocator that keeps its memory.

    glibc returns every block over 32 MB to the system, and each new one costs page faults that would be charged to
    whoever allocates. With these settings nobody pays them.
    """
    if platform.system() == "Linux" and any(os.environ.get(key) != value for key, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def times(contenders: dict[str, Callable[[], object]], *, seconds: float, wait: Callable[[object], None]) -> dict:
    """Milliseconds a call, median over rounds in which every contender has its turn.

    ``seconds`` bounds what one contender may take; a call so short that the clock or a launch would show is
    repeated within its turn, and ``wait`` is called once at the end.
    """
    repeat, turns = {}, {}
    for name, call in contenders.items():
        wait(call())
        start = time.perf_counter()
        wait(call())
        once = time.perf_counter() - start
        repeat[name] = max(1, min(50, int(2e-3 / once))) if torch.cuda.is_available() else 1
        turns[name] = max(2, min(40, int(seconds / (once * (repeat[name] + 1)))))
    measured: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(max(turns.values())):
        for name, call in contenders.items():
            if turn < turns[name]:
                wait(call())  # not timed: the contender before left its data in the caches and its threads spinning
                start = time.perf_counter()
                for _ in range(repeat[name]):
                    result = call()
                wait(result)
                measured[name].append((time.perf_counter() - start) / repeat[name] * 1e3)
    return {name: statistics.median(values) for name, values in measured.items()}


def copy_bandwidth(device: str, megabytes: int) -> float:
    """Bytes read plus bytes written a second by a plain copy that does not fit a cache."""
    source = torch.randn(megabytes * 2**18, device=device)
    target = torch.empty_like(source)
    took = times({"copy": lambda: target.copy_(source)}, seconds=1.0, wait=lambda _: synchronise())["copy"]
    return 2 * source.numel() * 4 / (took / 1e3)


def machine(device: str) -> dict[str, object]:
    packages = ("stablessm", "torch", "llvmlite", "triton", "jax", "mambapy", "numpy")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.system(),
        "versions": versions,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def command() -> str:
    """What was typed, but for the name of the output."""
    arguments = sys.argv[1:]
    if "--out" in arguments:
        at = arguments.index("--out")
        arguments = arguments[:at] + arguments[at + 2 :]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments])


def write_record(path: Path, device: str, rows: list[dict], summary: dict, *, complete: bool = True) -> None:
    record = {
        "command": command(),
        "complete": complete,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": environment()["commit"],
        "machine": machine(device),
        "summary": summary,
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(path)
