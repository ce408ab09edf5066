"""How much faster a sweep is in two processes than in one.

    python benchmarks/sweeps.py
    python benchmarks/sweeps.py --smoke --out /tmp/smoke.json

The sweep is st-fig1 with 16 jobs: four maps at four lengths. A job has one core. The time is that of the whole sweep:
the start of processes, the jobs, and the figures and claims, which one process makes. Arrays must agree in every bit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import _measure
import numpy as np

from stablessm.sweeps import Processes, sweep
from stablessm.sweeps.job import expand

GOAL = 1.7
FULL = {"length": "30", "longer": "40,50,60", "training.epochs": "600"}
SMOKE = {
    "length": "6", "longer": "", "training.epochs": "1", "training.samples": "16", "widths": "1,2", "seeds": "1",
    "radii": "0.0,0.032", "draws": "1", "steps": "1",
}  # fmt: skip


def timed(jobs: int, changes: dict[str, str], out: Path) -> tuple[float, Path]:
    """Seconds of the whole command, but for the start of its interpreter."""
    began = time.perf_counter()
    (result,) = sweep(["st-fig1"], "smoke", out, Processes(jobs), changes=changes, progress=False)
    if result.failures:
        raise SystemExit(f"failed: {result.failures}")
    return time.perf_counter() - began, result.folder


def arrays(folder: Path) -> dict[str, bytes]:
    """Every array of every stage, by name."""
    found = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as stored:
            found |= {f"{path.name}/{key}": stored[key].tobytes() for key in stored.files}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="jobs that take no time, to see that it runs")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    changes, rows, bits = SMOKE if args.smoke else FULL, [], {}
    jobs = expand("st-fig1", "smoke", Path("runs"), tuple(changes.items()))
    with tempfile.TemporaryDirectory() as scratch:
        for name, at_once in {"--jobs 1": 1, "--jobs 2": 2}.items():
            seconds, folder = timed(at_once, changes, Path(scratch) / str(at_once))
            bits[name] = arrays(folder)
            rows.append({"name": name, "seconds": round(seconds, 2)})
            print(rows[-1], flush=True)
    taken = {row["name"]: row["seconds"] for row in rows}
    different = [key for key, value in bits["--jobs 1"].items() if bits["--jobs 2"].get(key) != value]
    ratio = taken["--jobs 1"] / taken["--jobs 2"]
    summary = {
        "jobs": len(jobs),
        "cores": os.cpu_count(),
        "speedup": round(ratio, 3),
        "goal": GOAL,
        "different": different,
    }
    print(summary)
    _measure.write_record(args.out or _measure.RESULTS / "sweeps-cpu.json", "cpu", rows, summary)
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
