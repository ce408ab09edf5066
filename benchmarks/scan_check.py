"""Is a scan backend right on this machine? The contract tests' cases, on real hardware, without pytest.

    python benchmarks/scan_check.py --backend triton     # writes benchmarks/results/scan-check-triton.json
    python benchmarks/scan_check.py --smoke --out /tmp/smoke.json

Combinations of dtype, decay shape, length, initial state, resets, direction and memory layout are compared with the
float64 reference, in values and gradients, in random order until the time is up. CI runs the same cases in Triton's
interpreter, a few at a time.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from pathlib import Path

import _measure
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from scan_cases import LENGTHS, TOLERANCE, check_against_reference

from stablessm.scan.backends import current_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cpu", choices=["cpu", "numba", "triton"])
    parser.add_argument("--seconds", type=float, default=240, help="stop after this long")
    parser.add_argument("--smoke", action="store_true", help="short lengths and little time")
    parser.add_argument("--out", type=Path, help="record to write")
    args = parser.parse_args()
    args.backend = current_name(args.backend)
    seconds, lengths = (5.0, [0, 1, 2, 63]) if args.smoke else (args.seconds, LENGTHS)
    options = itertools.product(lengths, (1, 2, 3), (3, 70), (False, True), (None, 1, 2), (False, True), TOLERANCE)
    cases = list(options)
    random.Random(0).shuffle(cases)
    worst, count, start = dict.fromkeys(TOLERANCE, 0.0), dict.fromkeys(TOLERANCE, 0), time.perf_counter()
    for seed, (length, decay_rank, channels, initial, reset, reverse, dtype) in enumerate(cases):
        if time.perf_counter() - start > seconds:
            break
        error = check_against_reference(
            args.backend, dtype, length, decay_rank=decay_rank, batch=1 + seed % 3, channels=channels,
            initial=initial, reset=reset, reverse=reverse, contiguous=seed % 2 == 0, seed=seed,
        )  # fmt: skip
        worst[dtype], count[dtype] = max(worst[dtype], error), count[dtype] + 1
    rows = []
    for dtype, allowed in TOLERANCE.items():
        name = str(dtype).removeprefix("torch.")
        rows.append({"dtype": name, "cases": count[dtype], "largest_relative_error": worst[dtype], "allowed": allowed})
        print(f"{name:12}{count[dtype]:5} cases, largest relative error {worst[dtype]:.1e} (allowed {allowed:.0e})")
    device = "cuda" if args.backend == "triton" and torch.cuda.is_available() else "cpu"
    out = args.out or _measure.RESULTS / f"scan-check-{args.backend}.json"
    _measure.write_record(out, device, rows, {"cases": sum(count.values()), "of": len(cases)})
    print(f"\nwritten: {out}")


if __name__ == "__main__":
    main()
