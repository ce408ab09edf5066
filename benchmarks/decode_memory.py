"""How much memory does it take to read back 16,384 steps from 4,096 states, and how long?

V has 16,384 × 4,096 complex numbers, 1 GiB, and its singular value decomposition several times that; ``method="gram"``
forms neither. The peak is that of a process of its own, less what it had before the decoder was made.

python benchmarks/decode_memory.py                        # writes benchmarks/results/decode-memory-cpu.json
python benchmarks/decode_memory.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import _measure
import torch

import stablessm as ssm
from stablessm import reconstruction as rec

SIZES = ((4096, 1024), (16_384, 4_096))
"""L and N."""
SMOKE = ((256, 64),)
RING = 0.999
"""r_min of the eigenvalues; r_max is 1."""


def peak() -> int:
    """Of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measured(length: int, size: int) -> dict[str, object]:
    """Read an input back from its last state: one that leaves the same state, since 2N equations are fewer than L."""
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(length, dtype=torch.float64, generator=generator)
    lam = rec.uniform_ring(size, r_min=RING)
    state = ssm.scan.accumulate(u, lam)
    before, start = peak(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are fewer equations
        back = rec.decode(state, lam, length=length, method="gram")
    seconds, after = time.perf_counter() - start, peak()
    residual = float((ssm.scan.accumulate(back, lam) - state).norm() / state.norm())
    assert residual < 1e-6, f"another state: {residual}"
    return {
        "length": length, "states": size, "seconds": seconds, "peak_gib": after / 2**30,
        "grown_gib": (after - before) / 2**30, "matrix_gib": length * size * 16 / 2**30, "residual": residual,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a small size, to see that it runs")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "decode-memory-cpu.json")
    args = parser.parse_args()
    rows = []
    for length, size in SMOKE if args.smoke else SIZES:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            rows.append(row := pool.submit(measured, length, size).result())
        print(f"L = {length:6,}, N = {size:5,}: {row['seconds']:.1f} s, peak {row['peak_gib']:.2f} GiB")
    summary = {f"L = {row['length']}, N = {row['states']}: peak GiB": row["peak_gib"] for row in rows}
    _measure.write_record(args.out, "cpu", rows, summary)
    print(f"\nwritten: {args.out}")


if __name__ == "__main__":
    main()
