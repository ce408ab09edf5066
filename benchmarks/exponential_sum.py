"""Sums of exponentials: error and time at equal order, compared with other libraries and gradient training.

./dev bench exponential_sum             # writes benchmarks/results/exponential-sum.json
python benchmarks/exponential_sum.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from importlib import import_module, metadata, util
from itertools import chain
from pathlib import Path

import _exponential_sum_data as data
import _exponential_sum_peers as peers
import _measure
import numpy as np
import torch
from _exponential_sum_peers import Case

import stablessm  # noqa: F401  (its own import is not timed)
from stablessm.constructions import exponential_sum

FLOOR = 1e-12
"""Errors below this are rounding, and count as equal."""
PACKAGES = {"scipy_aaa": "scipy", "baryrat_aaa": "baryrat", "control_era": "control", "pymor_era": "pymor",
            "qutip": "qutip"}  # fmt: skip
TOLERANCES = (1e-2, 1e-4, 1e-6, 1e-8)


def power(t: np.ndarray, p: float) -> np.ndarray:
    return (1 + t) ** -p


def cosines(t: np.ndarray) -> np.ndarray:
    return np.exp(-t / 50) * np.cos(t) + 0.5 * np.exp(-t / 200) * np.cos(0.3 * t + 1)


def airy(t: np.ndarray) -> np.ndarray:
    from scipy.special import airy as functions

    return functions(t - 6)[0]


def cases(smoke: bool) -> list[tuple[Case, float]]:
    """Each with the tolerance that sets the order."""
    grid = np.arange(1001.0)
    if smoke:
        return [(Case("(1+t)^-1.1, T=100", partial(power, p=1.1), grid[:101]), 1e-4)]
    laws = [(Case(f"(1+t)^-{p:g}, T=1000", partial(power, p=p), grid), tol) for p in (0.5, 1.1, 1.5, 2.0)
            for tol in TOLERANCES]  # fmt: skip
    long = [(Case(f"(1+t)^-{p:g}, T=1e6", partial(power, p=p), np.arange(1e6 + 1)), 1e-6) for p in (0.5, 1.1, 1.5, 2.0)]
    singular = Case("t^-0.4 on [1e-4, 1e4], relative", lambda t: t**-0.4, np.geomspace(1e-4, 1e4, 2000), relative=True,
                    laplace=partial(peers.singular_laplace, hurst=0.1))  # fmt: skip
    others = [
        (singular, 1e-6),
        (Case("two damped cosines, T=1000", cosines, grid), 1e-6),
        (Case("Ai(t-6), dt=0.1, T=300", airy, 0.1 * np.arange(301)), 1e-6),
        (Case("exp(-sqrt t), T=1000", lambda t: np.exp(-np.sqrt(t)), grid), 1e-6),
        (Case("shift by 100, T=400", lambda t: (t == 100).astype(float), np.arange(401.0)), 1e-6),
    ]
    return laws + long + others


def ours(case: Case, **goal: float) -> dict[str, float | None]:
    if case.uniform:
        found = exponential_sum(case.kernel, len(case.times) - 1, dt=case.dt, **goal)
    else:
        found = exponential_sum(case.kernel, times=case.times, time="continuous", relative=case.relative, **goal)
    error = found.relative_error if case.relative else found.error
    limit = found.lower_bound if case.uniform else None
    return {"error": error, "order": found.order, "hankel_limit": limit}


def timed(call, repeats: int) -> tuple[dict[str, float], float]:
    """What it returns, and the median of its times in milliseconds of one core: other work does not count."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        result = call()
        taken.append((time.process_time() - start) * 1e3)
        if taken[-1] > 3000:
            break
    return result, statistics.median(taken)


def one_case(case: Case, tol: float, smoke: bool) -> dict[str, object]:
    found, search_ms = timed(lambda: ours(case, tol=tol), 1)
    order = int(found["order"])
    row: dict[str, object] = {"case": case.name, "tol": tol, "order": order, "search_ms": search_ms}
    here, taken = timed(lambda: ours(case, order=order), 3)
    row |= {"error": here["error"], "ms": taken, "hankel_limit": here["hankel_limit"]}
    others: dict[str, dict[str, float]] = {}
    for name, peer in peers.PEERS.items():
        if not peers.runs(name, case) or (name in PACKAGES and util.find_spec(PACKAGES[name]) is None):
            continue
        if name in PACKAGES:
            import_module(PACKAGES[name])  # not timed
        call = partial(peer, case, order, steps=20) if smoke and name == "training" else partial(peer, case, order)
        try:
            answer, taken = timed(call, 1 if name == "training" else 3)
        except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
            others[name] = {"failed": f"{type(error).__name__}: {error}"[:100]}
            continue
        if np.isfinite(answer["error"]):
            others[name] = {**answer, "ms": taken}
        else:  # a lag: its realization is exact, and has no eigenvectors
            others[name] = {"failed": "no distinct stable poles", "dense_error": answer.get("dense_error"), "ms": taken}
    errors = {name: answer["error"] for name, answer in others.items() if "error" in answer}
    best = min(errors, key=lambda name: errors[name])
    row |= {"peers": others, "best_peer": best, "ratio": max(here["error"], FLOOR) / max(errors[best], FLOOR)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one short kernel, to see that it runs")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "exponential-sum.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    found = chain((one_case(case, tol, args.smoke) for case, tol in cases(args.smoke)), data.rows(args.smoke))
    for row in found:
        rows.append(row)
        print(f"{row['case']}: order {row['order']}, error {row['error']:.2e} in {row['ms']:.0f} ms")
        for name, answer in row["peers"].items():
            shown = f"{answer['error']:.2e} in {answer['ms']:.0f} ms" if "error" in answer else answer["failed"]
            print(f"    {name:12} {shown}")
        print(f"    ours / best peer ({row['best_peer']}): {row['ratio']:.3g}", flush=True)
    summary = {
        "largest_ratio_to_best_peer": max(row["ratio"] for row in rows),
        "floor": FLOOR,
        "training": f"Adam, lr {peers.RATE}, {peers.STEPS} steps, float64, all samples (at most 3000)",
        "peer_versions": {
            package: metadata.version(package) for package in PACKAGES.values() if util.find_spec(package)
        },
    }
    _measure.write_record(args.out, "cpu", rows, summary)
    print(f"\nwritten: {args.out}")


if __name__ == "__main__":
    main()
