"""Is a scan backend right on this machine? The contract tests' cases, on real hardware, without pytest.

    python benchmarks/scan_check.py --backend triton     # writes benchmarks/results/scan-check-triton.json
    python benchmarks/scan_check.py --smoke --out /tmp/smoke.json

Every combination of dtype, decay shape, length, initial state, resets and direction is compared with the float64
reference, in values and gradients, with contiguous and scattered memory. CI runs the same cases in Triton's
interpreter, a few at a time.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import _measure
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from scan_cases import LENGTHS, TOLERANCE, check_against_reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="numba", choices=["numba", "triton"])
    parser.add_argument("--smoke", action="store_true", help="short lengths only")
    parser.add_argument("--out", type=Path, help="record to write")
    args = parser.parse_args()
    lengths = [0, 1, 2, 63] if args.smoke else LENGTHS
    rows, seed = [], 0
    for dtype in TOLERANCE:
        worst, cases = 0.0, 0
        options = itertools.product(lengths, (1, 2, 3), (1, 3, 70), (False, True), (None, 1, 2), (False, True))
        for length, decay_rank, channels, initial, reset, reverse in options:
            seed += 1
            worst = max(
                worst,
                check_against_reference(
                    args.backend, dtype, length, decay_rank=decay_rank, batch=1 + seed % 3, channels=channels,
                    initial=initial, reset=reset, reverse=reverse, contiguous=seed % 2 == 0, seed=seed,
                ),
            )  # fmt: skip
            cases += 1
        name = str(dtype).removeprefix("torch.")
        rows.append({"dtype": name, "cases": cases, "largest_relative_error": worst, "allowed": TOLERANCE[dtype]})
        print(
            f"{name:12} {cases:5} cases, largest relative error {worst:.1e} (allowed {TOLERANCE[dtype]:.0e})",
            flush=True,
        )
    device = "cuda" if args.backend == "triton" and torch.cuda.is_available() else "cpu"
    out = args.out or _measure.RESULTS / f"scan-check-{args.backend}.json"
    command = f"python benchmarks/scan_check.py --backend {args.backend}"
    _measure.write_record(out, command, device, rows, {"cases": sum(row["cases"] for row in rows)})


if __name__ == "__main__":
    main()
