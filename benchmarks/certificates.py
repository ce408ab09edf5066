"""Whether reported errors hold: random kernels of every family, each fit compared with a dense evaluation of its own.

./dev bench certificates                # writes benchmarks/results/certificates.json
python benchmarks/certificates.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import multiprocessing
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import _measure

from stablessm.constructions import FitError, exponential_sum

sys.path.append(str(Path(__file__).parents[1] / "tests" / "constructions"))
from random_kernels import draw

FLOOR = 1e-13
"""Errors below this are rounding of the comparison itself."""


LEAST = 0.95
"""What the reported error must be of the true one."""


@dataclass(frozen=True)
class Comparison:
    """One kernel: the reported error over the true one, and the seconds that the fit and the comparison took."""

    family: str
    name: str
    ratio: float
    failed: bool
    seconds: float


def compare(seed: int) -> Comparison:
    """Fit the kernel of this seed and compare its reported error with the true one."""
    case = draw(seed, complex_too=True)
    started = time.perf_counter()
    failed = False
    try:
        found = exponential_sum(**case.arguments)
    except FitError as error:
        found, failed = error.best, True
    ratio = (found.error + FLOOR) / (case.true_error(found) + FLOOR)
    return Comparison(case.family, case.name, ratio, failed, time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=2000)
    parser.add_argument("--smoke", action="store_true", help="seven kernels, to see that it runs")
    parser.add_argument("--first-seed", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "certificates.json")
    args = parser.parse_args()
    families: dict[str, dict[str, float]] = collections.defaultdict(
        lambda: {"kernels": 0, "fit_errors": 0, "worst_ratio": float("inf"), "seconds": 0.0}
    )
    broken: list[str] = []
    seeds = range(args.first_seed, args.first_seed + (7 if args.smoke else args.kernels))
    warnings.filterwarnings("error", "exponential_sum was interrupted")
    with multiprocessing.Pool(args.workers) as pool, contextlib.suppress(KeyboardInterrupt, UserWarning):
        for count, each in enumerate(pool.imap_unordered(compare, seeds), 1):
            row = families[each.family]
            row["seconds"] += each.seconds
            row["kernels"] += 1
            row["fit_errors"] += each.failed
            row["worst_ratio"] = min(row["worst_ratio"], each.ratio)
            if each.ratio < LEAST:
                broken.append(f"{each.name}: reported over true {each.ratio:.3g}")
                print(broken[-1], flush=True)
            if count % 100 == 0:  # an interrupted run keeps what it has compared
                print(f"{count} kernels, {len(broken)} broken", flush=True)
                write(args.out, args.first_seed, families, broken)
    write(args.out, args.first_seed, families, broken)
    print(f"written: {args.out}")


def write(out: Path, first_seed: int, families: dict[str, dict[str, float]], broken: list[str]) -> None:
    """Write the record of all kernels compared so far."""
    rows = [{"family": family, **row} for family, row in sorted(families.items())]
    summary = {
        "kernels": sum(int(row["kernels"]) for row in rows),
        "first_seed": first_seed,
        "worst_ratio_reported_over_true": min(row["worst_ratio"] for row in rows),
        "broken": broken,
        "floor": FLOOR,
    }
    _measure.write_record(out, "cpu", rows, summary)


if __name__ == "__main__":
    main()
