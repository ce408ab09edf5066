"""How often is a verdict on a decay wrong, and how often does its interval cover the truth?

Random curves of all kinds and sums of interfering waves (tests/random_decays.py, which defines right, covered and
seen), curves of physical systems, also with noise of 10 to 30 % (tests/physical_decays.py), curves of named families
(tests/family_decays.py), log-periodic power laws among them, and random RNN, GRU and LSTM stacks, also of families that
remember long (tests/random_stacks.py). Seeds that nothing was tuned on.

python benchmarks/decay.py        # writes benchmarks/results/decay-cpu.json
python benchmarks/decay.py --workers 8
python benchmarks/decay.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import _measure
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import family_decays
import physical_decays
import random_decays
import random_stacks

CHUNK = 1000


def curves(seed: int, size: int) -> dict[str, object]:
    """Return the rates of random curves of all kinds, and the time of a fit."""
    rng = np.random.default_rng(seed)
    drawn = [random_decays.draw(rng) for _ in range(size)]
    start = time.process_time()
    found = random_decays.rates(drawn)
    return {"seed": seed, **asdict(found), "ms_per_curve": (time.process_time() - start) / size * 1e3}


def waves(seed: int, size: int) -> dict[str, object]:
    """Return the rates of interfering waves."""
    rng = np.random.default_rng(seed)
    return {"seed": seed, **asdict(random_decays.rates(random_decays.draw_interfering(rng) for _ in range(size)))}


def physical(seed: int, size: int, noise: tuple[float, float] | None) -> dict[str, object]:
    """Return the rates of curves of physical systems."""
    rng = np.random.default_rng(seed)
    found = random_decays.rates(physical_decays.draw(rng, noise) for _ in range(size))
    return {"seed": seed, **asdict(found)}


def named(seed: int, size: int, family: str | None) -> dict[str, object]:
    """Return the rates of curves of named families, or of one family of power laws."""
    rng, kind = np.random.default_rng(seed), "polynomial" if family else None
    found = random_decays.rates(family_decays.draw(rng, kind, family) for _ in range(size))
    return {"seed": seed, **asdict(found)}


def stacks(seed: int, size: int) -> dict[str, object]:
    """Return the coverage of random recurrent stacks."""
    rng = np.random.default_rng(seed)
    return {"seed": seed, **asdict(random_stacks.coverage(random_stacks.draw(rng) for _ in range(size)))}


def family(name: str, size: int) -> dict[str, object]:
    """Return the coverage of recurrent stacks of one family."""
    rng = np.random.default_rng([9102, random_stacks.FAMILIES.index(name)])
    found = random_stacks.coverage(random_stacks.draw_of(rng, name) for _ in range(size))
    return {"family": name, **asdict(found)}


def row(task: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Run one task and print its row."""
    found = task()
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few curves and models, to see that it runs")
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "decay-cpu.json")
    args = parser.parse_args()
    chunks, size, models = (1, 40, 2) if args.smoke else (10, CHUNK, 300)
    names = random_stacks.FAMILIES
    tasks = [partial(family, name, max(models // 5, 1)) for name in names]
    tasks += [partial(stacks, 9101, models), partial(waves, 9201, size)]
    tasks += [partial(physical, 9301, 2 * size, None), partial(physical, 9401, size, (0.1, 0.3))]
    tasks += [partial(named, 9501, 2 * size, None), partial(named, 9601, size, "log-periodic")]
    tasks += [partial(curves, seed, size) for seed in range(9001, 9001 + chunks)]
    with multiprocessing.Pool(args.workers) as pool:
        found = pool.map(row, tasks, chunksize=1)
    by_name, found = found[: len(names)], found[len(names) :]
    of_stacks, of_waves, of_systems, noisy, of_laws, log_periodic, *parts = found
    summary = {
        "wrong": float(np.mean([part["wrong"] for part in parts])),
        "missed": float(np.average([part["missed"] for part in parts], weights=[part["seen"] for part in parts])),
        "covered": float(np.mean([part["covered"] for part in parts])),
        "covered in stacks": of_stacks["covered"],
        "covered in the worst family of stacks": min(each["covered"] for each in by_name),
        "undecided in the worst family of stacks": max(each["undecided"] for each in by_name),
        "covered in interfering waves": of_waves["covered"],
        "wrong in interfering waves": of_waves["wrong"],
        "wrong in physical systems": of_systems["wrong"],
        "missed in physical systems": of_systems["missed"],
        "covered in physical systems": of_systems["covered"],
        "wrong with noise of 10 to 30 %": noisy["wrong"],
        "missed with noise of 10 to 30 %": noisy["missed"],
        "wrong in named families": of_laws["wrong"],
        "missed in named families": of_laws["missed"],
        "covered in named families": of_laws["covered"],
        "wrong in log-periodic power laws": log_periodic["wrong"],
        "missed in log-periodic power laws": log_periodic["missed"],
    }
    others = [of_waves, of_systems, noisy, of_laws, log_periodic, of_stacks, *by_name]
    _measure.write_record(args.out, "cpu", [*parts, *others], summary)
    print(f"\nwritten: {args.out}")


if __name__ == "__main__":
    main()
