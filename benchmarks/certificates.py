"""Compares reported errors with a dense evaluation, for random kernels of every family.

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
"""Errors below this are rounding errors of the comparison."""
LEAST = 0.95
"""Smallest allowed ratio of the reported error to the true error."""


@dataclass(frozen=True)
class Comparison:
    """One kernel: the ratio of the reported to the true error, and the seconds of the fit and the comparison."""

    seed: int
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
    return Comparison(seed, case.family, case.name, ratio, failed, time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=2000)
    parser.add_argument("--smoke", action="store_true", help="seven kernels, to see that it runs")
    parser.add_argument("--first-seed", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--minutes", type=float, help="stop after this time and record the kernels compared by then")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "certificates.json")
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + (7 if args.smoke else args.kernels))
    end = float("inf") if args.minutes is None else time.monotonic() + 60 * args.minutes
    warnings.filterwarnings("error", "exponential_sum was interrupted")
    done: list[Comparison] = []
    with multiprocessing.Pool(args.workers) as pool, contextlib.suppress(KeyboardInterrupt, UserWarning):
        found = pool.imap_unordered(compare, seeds)
        while len(done) < len(seeds) and time.monotonic() < end:
            with contextlib.suppress(multiprocessing.TimeoutError):
                done.append(found.next(timeout=min(10.0, max(0.0, end - time.monotonic()))))
                if done[-1].ratio < LEAST:
                    print(f"{done[-1].name}: reported over true {done[-1].ratio:.3g}", flush=True)
                if len(done) % 100 == 0:  # a killed run keeps this record
                    print(f"{len(done)} kernels", flush=True)
                    write(args.out, seeds, done)
        pool.terminate()
    write(args.out, seeds, done)
    print(f"{len(done)} of {len(seeds)} kernels; written: {args.out}")


def write(out: Path, seeds: range, done: list[Comparison]) -> None:
    """Write the record of all kernels compared so far, with the seeds that were begun and not finished."""
    by_family: dict[str, list[Comparison]] = collections.defaultdict(list)
    for each in done:
        by_family[each.family].append(each)
    rows = [
        {
            "family": family,
            "kernels": len(members),
            "fit_errors": sum(each.failed for each in members),
            "worst_ratio": min(each.ratio for each in members),
            "seconds": sum(each.seconds for each in members),
            "slowest_seconds": max(each.seconds for each in members),
        }
        for family, members in sorted(by_family.items())
    ]
    last = max((each.seed for each in done), default=seeds[0])
    summary = {
        "kernels": len(done),
        "requested": len(seeds),
        "unfinished_seeds": sorted(set(range(seeds[0], last + 1)) - {each.seed for each in done}),
        "first_seed": seeds[0],
        "worst_ratio_reported_over_true": min((each.ratio for each in done), default=None),
        "broken": [f"{each.name}: reported over true {each.ratio:.3g}" for each in done if each.ratio < LEAST],
        "floor": FLOOR,
    }
    _measure.write_record(out, "cpu", rows, summary, complete=len(done) == len(seeds))


if __name__ == "__main__":
    main()
