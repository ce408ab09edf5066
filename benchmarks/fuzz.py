"""What becomes of calls with arguments that nobody should pass? Every public callable, many random cases each.

    python benchmarks/fuzz.py --cases 40 --seed 7     # 40 cases for each callable, drawn from seed 7
    python benchmarks/fuzz.py --cases 8 --workers 16  # 16 processes
    python benchmarks/fuzz.py --smoke --out /tmp/fuzz.json

A case takes good arguments and replaces one or more of them (``tests/fuzz_cases.py``). Cases run in another process,
so that a crash or a call without end is seen and does not stop the rest. The record counts cases by outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import _measure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

PATIENCE = 120
"""Seconds without an answer after which a process is killed: a call that computes is ended earlier by a signal."""
SHARE = 40
"""Number of cases that a process runs before the next process takes over."""


def worker() -> None:
    """Run the cases that are named on the standard input, one line each, and answer with a line each."""
    import fuzz_cases

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a callable prints does not mix with the answers
    for line in sys.stdin:
        name, seed = json.loads(line)
        print(json.dumps(fuzz_cases.run_case(name, seed)), file=answers, flush=True)


def outcomes(cases: list[tuple[str, int]]) -> Iterator[tuple[str, int, str, str]]:
    """Yield the name, the seed, the outcome and the error message of each case."""
    process, folder = None, tempfile.mkdtemp()
    for name, seed in cases:
        if process is None:
            command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--worker"]
            pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
            one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                command, cwd=folder, env=one_thread, text=True, stderr=subprocess.DEVNULL, **pipes
            )
        process.stdin.write(json.dumps([name, seed]) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            answer = process.stdout.readline() if ready.select(PATIENCE) else None
        if answer:
            yield name, seed, *json.loads(answer)
            continue
        process.kill()
        code = process.wait()
        yield name, seed, "endless" if answer is None else "crash", f"exit code {code}"
        process = None
    if process is not None:
        process.stdin.close()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="callables, such as LRU.forward; all by default")
    parser.add_argument("--cases", type=int, default=40, help="for each callable")
    parser.add_argument("--seed", type=int, help="another one for other cases; drawn and printed by default")
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--smoke", action="store_true", help="one case each for a few callables")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "fuzz.json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker()
    import fuzz_cases

    names = args.names or list(fuzz_cases.subjects())[:: 40 if args.smoke else 1]
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    print(f"seed {seed}, {len(names)} callables")
    first, count = seed * 10**4, 1 if args.smoke else args.cases
    found: dict[str, Counter[str]] = {name: Counter() for name in names}
    remarkable = []
    cases = [(name, first + i) for name in names for i in range(count)]
    shares = [cases[i : i + SHARE] for i in range(0, len(cases), SHARE)]
    with ThreadPool(args.workers) as pool:
        for done in pool.imap(lambda share: list(outcomes(share)), shares):
            for name, case, outcome, raised in done:
                found[name][outcome] += 1
                if outcome not in ("fine", "named error"):
                    remarkable.append({"name": name, "case": case, "outcome": outcome, "raised": raised})
                    print(name, case, outcome, raised[-400:], flush=True)
    rows = [{"name": name, **{each: counts[each] for each in fuzz_cases.OUTCOMES}} for name, counts in found.items()]
    total = sum(map(Counter.total, found.values()))
    sums = {outcome: sum(counts[outcome] for counts in found.values()) for outcome in fuzz_cases.OUTCOMES}
    summary = {"seed": seed, "callables": len(names), "cases": total, **sums}
    print(summary)
    _measure.write_record(args.out, "cpu", rows, summary, remarkable=remarkable)
    return None


if __name__ == "__main__":
    main()
