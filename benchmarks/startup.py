"""How long do the commands take that only list or describe, compared with starting Python?

Each command runs in a new process, in turn with the others; the first turn warms the file cache and is left out.
The ratio is of processor times. The record says how busy the machine was.

python benchmarks/startup.py                                  # benchmarks/results/startup-cpu.json
python benchmarks/startup.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import _measure

PLAIN = "python -c pass"
COMMANDS = {
    PLAIN: ["-c", "pass"],
    "stablessm --help": ["-m", "stablessm", "--help"],
    "stablessm list": ["-m", "stablessm", "list"],
    "stablessm env": ["-m", "stablessm", "env"],
}


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Wall time, and processor time, which other work on the machine hardly changes."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, used


def measure(turns: int) -> list[dict]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for turn in range(turns + 1):
        for name, arguments in COMMANDS.items():
            found = seconds(arguments)
            if turn:
                taken[name].append(found)
    plain = statistics.median(used for _, used in taken[PLAIN])
    rows = []
    for name, times in taken.items():
        used = statistics.median(used for _, used in times)
        row = {"wall_s": statistics.median(wall for wall, _ in times), "fastest_wall_s": min(times)[0], "cpu_s": used}
        rows.append(
            {"command": name, **{key: round(value, 4) for key, value in row.items()}, "ratio": round(used / plain, 2)}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "startup-cpu.json")
    parser.add_argument("--smoke", action="store_true", help="one turn")
    given = parser.parse_args()
    rows = measure(1 if given.smoke else 15)
    for row in rows:
        times = f"{row['wall_s']:.2f} s (fastest {row['fastest_wall_s']:.2f} s), {row['cpu_s']:.2f} s of processor time"
        print(f"{row['command']:<18} {times}, {row['ratio']:.1f} × {PLAIN}")
    summary = {row["command"]: {"cpu_s": row["cpu_s"], "ratio": row["ratio"]} for row in rows}
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    _measure.write_record(given.out, "cpu", rows, summary, turns=1 if given.smoke else 15, load_per_core=round(load, 2))


if __name__ == "__main__":
    main()
