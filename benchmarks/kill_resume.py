"""Does a run that is killed again and again come to the same bits as one that is left alone?

    python benchmarks/kill_resume.py st-fig3 ia-fig1    # paper size, ten kills each
    python benchmarks/kill_resume.py --smoke --out /tmp/smoke.json

Every array of every stage and every line of metrics.jsonl is compared.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import _measure
import numpy as np
import torch

CHILD = """
import sys
from dataclasses import asdict
from pathlib import Path
from stablessm.experiments import catalog
from stablessm.experiments.frame.run import Run
experiment = catalog.get(sys.argv[1])
config = experiment.config(sys.argv[2])
print("ready", flush=True)
experiment.run(config, Run(Path(sys.argv[3]), asdict(config), progress=False))
"""


def start(id: str, size: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that computes the stages of a run; it has been imported and begins now."""
    process = subprocess.Popen([sys.executable, "-c", CHILD, id, size, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise SystemExit(f"{id} did not start")
    return process


def differences(one: Path, other: Path) -> list[str]:
    """Names of files and arrays that are not the same bits."""
    wrong = [] if _bytes(one / "metrics.jsonl") == _bytes(other / "metrics.jsonl") else ["metrics.jsonl"]
    names = {path.name for folder in (one, other) for path in folder.glob("[!.]*.npz")}
    for name in sorted(names):
        if not ((one / name).exists() and (other / name).exists()):
            wrong.append(name)
            continue
        with np.load(one / name) as a, np.load(other / name) as b:
            keys = sorted(set(a.files) | set(b.files))
            same = [key in a.files and key in b.files and _equal(a[key], b[key]) for key in keys]
            wrong += [f"{name}: {key}" for key, equal in zip(keys, same, strict=True) if not equal]
    return wrong


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def check(id: str, size: str, kills: int, scratch: Path) -> dict[str, Any]:
    """One run left alone, one killed ``kills`` times at random moments."""
    whole, killed = scratch / id / "whole", scratch / id / "killed"
    began, process = time.perf_counter(), start(id, size, whole)
    if process.wait():
        raise SystemExit(f"{id} failed")
    seconds, chance, done = time.perf_counter() - began, random.Random(id), 0
    while True:
        process = start(id, size, killed)
        try:
            code = process.wait(chance.uniform(0, seconds / kills) if done < kills else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1
            continue
        if code:
            raise SystemExit(f"{id} failed after {done} kills")
        break
    stages = len(list(whole.glob("*.npz")))
    return {"id": id, "kills": done, "stages": stages, "different": differences(whole, killed), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", default=["st-fig3"])
    parser.add_argument("--workers", type=int, default=1, help="number of runs at a time (default: 1)")
    parser.add_argument("--smoke", action="store_true", help="the smoke sizes, three kills")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    size, kills = ("smoke", 3) if args.smoke else ("paper", 10)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPool(args.workers) as pool:
        for row in pool.imap(lambda id: check(id, size, kills, Path(scratch)), args.ids):
            rows.append(row)
            print(row, flush=True)
    summary = {"different": sum(len(row["different"]) for row in rows), "size": size}
    _measure.write_record(args.out or _measure.RESULTS / f"kill-resume-{device}.json", device, rows, summary)
    raise SystemExit(bool(summary["different"]))


if __name__ == "__main__":
    main()
