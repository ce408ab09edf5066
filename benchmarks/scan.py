"""The scan against its peers and the machine's copy bandwidth, in one run.

    ./dev bench scan                 # this machine's CPU, writes benchmarks/results/scan-cpu.json
    python benchmarks/scan.py --device cuda
    python benchmarks/scan.py --smoke --out /tmp/smoke.json

Every contender is first compared with the float64 reference; no time is reported for a wrong result. Floors: bytes
that must be moved (each input read once, each output written once) over the rate of a plain copy in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path
from typing import Any

import _measure
import _scan_peers
import numpy as np
import torch
from torch import Tensor

import stablessm as ssm

SIZES = [(8, 1024, 256), (1, 16384, 256), (1, 131072, 64)]
GPU_SIZES = [*SIZES, (8, 2048, 2048)]
SMOKE = [(2, 64, 16)]
FORWARD_BYTES = {"step": 3, "channel": 2}
BOTH_BYTES = {"step": 8, "channel": 5}
CHECKED = 16
"""Channels compared with the reference."""
TOLERANCE = 1e-3
"""Largest relative error of a float32 result that is still called right."""


def as_numpy(result: Any) -> list[np.ndarray]:
    parts = result if isinstance(result, tuple) else (result,)
    return [part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part) for part in parts]


def wait(result: Any) -> None:
    first = result[0] if isinstance(result, tuple) else result
    if hasattr(first, "block_until_ready"):
        first.block_until_ready()
    _measure.synchronise()


def truth(a: Tensor, x: Tensor, g: Tensor) -> list[np.ndarray]:
    """States and gradients of the first channels (the others are like them) by the float64 reference."""
    wide = torch.complex128 if x.is_complex() else torch.float64
    a, x = (tensor[..., :CHECKED].to(wide).requires_grad_() for tensor in (a, x))
    states = ssm.linear_scan(a, x, backend="reference")
    return as_numpy((states, *torch.autograd.grad(states, (a, x), g[..., :CHECKED].to(wide))))


def error(result: Any, expected: list[np.ndarray]) -> float:
    ours = as_numpy(result)
    return max(float(np.abs(u[..., :CHECKED] - v).max() / np.abs(v).max()) for u, v in zip(ours, expected))  # noqa: B905


def one_case(shape: tuple[int, int, int], dtype: torch.dtype, decay: str, args: argparse.Namespace) -> list[dict]:
    torch.manual_seed(0)
    a = (0.5 + 0.499 * torch.rand(shape if decay == "step" else shape[-1:])).to(dtype)
    if dtype.is_complex:
        a = a * torch.exp(2j * math.pi * torch.rand(a.shape))
    x, g = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    expected = truth(a, x, g)
    a, x, g = (tensor.to(args.device) for tensor in (a, x, g))
    ours = ssm.scan.resolve("auto", x.device)
    calls = _scan_peers.contenders(a, x, g, ours=ours, loop=args.device == "cpu")
    scalar = x.element_size() * x.numel()
    rows = []
    for phase, which, count in (("forward", 0, FORWARD_BYTES), ("forward+backward", 1, BOTH_BYTES)):
        errors = {name: error(pair[which](), expected) for name, pair in calls.items()}
        right = {name: pair[which] for name, pair in calls.items() if errors[name] <= TOLERANCE}
        taken = _measure.times(right, seconds=args.seconds, wait=wait)
        floor = count[decay] * scalar / args.bandwidth * 1e3
        best = min((ms for name, ms in taken.items() if name != "stablessm"), default=math.nan)
        for name in calls:
            rows.append(
                {
                    "size": "x".join(map(str, shape)), "dtype": str(dtype).removeprefix("torch."), "decay": decay,
                    "phase": phase, "contender": name, "ms": taken.get(name), "floor_ms": floor,
                    "times_floor": taken[name] / floor if name in taken else None,
                    "relative_error": errors[name],
                    "best_peer_over_ours": best / taken[name] if name == "stablessm" else None,
                }
            )  # fmt: skip
    return rows


def show(rows: list[dict]) -> None:
    head = rows[0]
    print(f"\n{head['size']}  {head['dtype']}  decay per {head['decay']}")
    print(f"  {'':24}{'forward ms':>12}{'× floor':>9}{'both ms':>12}{'× floor':>9}{'error':>10}")
    for name in dict.fromkeys(row["contender"] for row in rows):
        forward, both = (row for row in rows if row["contender"] == name)
        cells = "".join(
            f"{row['ms']:12.3f}{row['times_floor']:9.2f}" if row["ms"] is not None else f"{'wrong':>12}{'':9}"
            for row in (forward, both)
        )
        print(f"  {name:24}{cells}{max(forward['relative_error'], both['relative_error']):10.1e}")
    ours = [row["best_peer_over_ours"] for row in rows if row["contender"] == "stablessm"]
    print(f"  ahead of the best peer: {ours[0]:.1f}× forward, {ours[1]:.1f}× forward+backward")


def summarise(rows: list[dict]) -> dict[str, float]:
    ours = [row for row in rows if row["contender"] == "stablessm"]
    ahead = [row["best_peer_over_ours"] for row in ours]
    larger = [row["times_floor"] for row in ours if row["phase"] == "forward" and not row["size"].startswith("8x1024")]
    return {
        "least_ahead_of_best_peer": min(ahead),
        "geometric_mean_ahead_of_best_peer": math.exp(sum(map(math.log, ahead)) / len(ahead)),
        "worst_forward_times_floor_at_larger_sizes": max(larger, default=math.nan),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--smoke", action="store_true", help="one tiny size, to see that it runs")
    parser.add_argument("--seconds", type=float, default=1.0, help="most time for one contender in one case")
    parser.add_argument("--out", type=Path, help="record to write (default: benchmarks/results/scan-DEVICE.json)")
    args = parser.parse_args()
    _measure.same_allocator_for_all()
    args.bandwidth = _measure.copy_bandwidth(args.device, 16 if args.smoke else 256)
    print(f"plain copy: {args.bandwidth / 1e9:.1f} GB/s, read and written; {torch.get_num_threads()} threads")
    out = args.out or _measure.RESULTS / f"scan-{args.device}.json"
    sizes = SMOKE if args.smoke else GPU_SIZES if args.device == "cuda" else SIZES
    cases = list(itertools.product(sizes, (torch.float32, torch.complex64), ("step", "channel")))
    rows = []
    for number, (shape, dtype, decay) in enumerate(cases, 1):
        case = one_case(shape, dtype, decay, args)
        show(case)
        rows += case
        summary = summarise(rows) | {"copy_gigabytes_per_second": args.bandwidth / 1e9}
        complete = number == len(cases)  # a run that is killed keeps what it has, and says so
        _measure.write_record(out, args.device, rows, summary, complete=complete)
    print("\n" + "\n".join(f"{key.replace('_', ' ')}: {value:.2f}" for key, value in summary.items()))
    print(f"\nwritten: {out}")


if __name__ == "__main__":
    main()
