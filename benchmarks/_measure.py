"""How every script here measures: what ``stablessm bench`` uses, and where records go."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from stablessm.bench.machine import copy_bandwidth, keep_memory
from stablessm.bench.measure import timings
from stablessm.bench.records import write_record

__all__ = [
    "RESULTS",
    "copy_bandwidth",
    "parser",
    "record_path",
    "same_allocator_for_all",
    "synchronize",
    "times",
    "write_record",
]

RESULTS = Path(__file__).parent / "results"


def parser(doc: str | None, name: str, smoke: str = "tiny, to see that it runs") -> argparse.ArgumentParser:
    """Return a parser with the options of a script that runs on a CPU or a GPU: --device, --smoke and --out."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    made.add_argument("--smoke", action="store_true", help=smoke)
    made.add_argument("--out", type=Path, help=f"record to write (default: benchmarks/results/{name}-DEVICE.json)")
    made.set_defaults(name=name)
    return made


def record_path(args: argparse.Namespace) -> Path:
    """Return the path of the record: --out, or the default that the help of --out names."""
    return args.out or RESULTS / f"{args.name}-{args.device}.json"


same_allocator_for_all = keep_memory


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def times(contenders: dict[str, Callable[[], object]], *, seconds: float, wait: Callable[[object], None]) -> dict:
    """Milliseconds a call, median over turns; ``wait`` returns when a result is there."""

    def clock(call: Callable[[], object], repeat: int) -> float:
        start = time.perf_counter()
        for _ in range(repeat):
            result = call()
        wait(result)
        return (time.perf_counter() - start) * 1e3

    taken = timings(contenders, seconds=seconds, clocks=dict.fromkeys(contenders, clock))
    return {name: timing.median for name, timing in taken.items()}
