"""How often is a verdict on a decay wrong, and how often does its interval cover the truth?

Random curves of all kinds and sums of interfering waves (tests/random_decays.py, which defines right, covered and
seen), and random RNN, GRU and LSTM stacks (tests/random_stacks.py). Seeds that nothing was tuned on.

python benchmarks/decay.py        # writes benchmarks/results/decay-cpu.json
python benchmarks/decay.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

import _measure
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import random_decays
import random_stacks

CHUNK = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few curves and models, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "decay-cpu.json")
    args = parser.parse_args()
    chunks, size, models = (1, 40, 2) if args.smoke else (10, CHUNK, 300)
    rows: list[dict[str, object]] = []
    for seed in range(9001, 9001 + chunks):
        rng = np.random.default_rng(seed)
        curves = [random_decays.draw(rng) for _ in range(size)]
        start = time.process_time()
        found = random_decays.rates(curves)
        rows.append({"seed": seed, **asdict(found), "ms_per_curve": (time.process_time() - start) / size * 1e3})
        print(rows[-1])
    parts = list(rows)
    rng = np.random.default_rng(9201)
    waves = asdict(random_decays.rates(random_decays.draw_interfering(rng) for _ in range(size)))
    rows.append({"seed": 9201, **waves})
    print(rows[-1])
    rng = np.random.default_rng(9101)
    stacks = asdict(random_stacks.coverage(random_stacks.draw(rng) for _ in range(models)))
    rows.append({"seed": 9101, **stacks})
    print(rows[-1])
    summary = {
        "wrong": float(np.mean([row["wrong"] for row in parts])),
        "missed": float(np.average([row["missed"] for row in parts], weights=[row["seen"] for row in parts])),
        "covered": float(np.mean([row["covered"] for row in parts])),
        "covered in stacks": stacks["covered"],
        "covered in interfering waves": waves["covered"],
        "wrong in interfering waves": waves["wrong"],
    }
    _measure.write_record(args.out, "cpu", rows, summary)
    print(f"\nwritten: {args.out}")


if __name__ == "__main__":
    main()
