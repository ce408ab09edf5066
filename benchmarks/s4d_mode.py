"""When does an S4D layer run faster as a convolution than as a scan? The rule of ``mode="auto"`` comes from here.

./dev bench s4d_mode             # writes benchmarks/results/s4d-mode-cpu.json
python benchmarks/s4d_mode.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import _measure
import torch

import stablessm as ssm

LENGTHS = [1, 4, 8, 16, 32, 64, 256, 1024]
BATCH, CHANNELS, STATES = 8, 64, 32


def one_length(steps: int, seconds: float) -> dict[str, float]:
    torch.manual_seed(0)
    x = torch.randn(BATCH, steps, CHANNELS)
    layers = {mode: ssm.S4D(CHANNELS, STATES, mode=mode) for mode in ("scan", "conv")}
    layers["conv"].load_state_dict(layers["scan"].state_dict())
    difference = (layers["scan"](x)[0] - layers["conv"](x)[0]).abs().max().item()
    assert difference < 1e-3, f"the modes differ by {difference}"

    def both(layer: ssm.S4D) -> torch.Tensor:
        layer.zero_grad()
        y, _ = layer(x)
        y.sum().backward()
        return y

    calls = {mode: lambda layer=layer: both(layer) for mode, layer in layers.items()}
    taken = _measure.times(calls, seconds=seconds, wait=lambda _: None)
    return {"steps": steps, "scan_ms": taken["scan"], "conv_ms": taken["conv"], "difference": difference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="two lengths, to see that it runs")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "s4d-mode-cpu.json")
    args = parser.parse_args()
    _measure.same_allocator_for_all()
    rows = []
    print(f"S4D, batch {BATCH}, {CHANNELS} channels of {STATES} states, forward and backward")
    for steps in [2, 16] if args.smoke else LENGTHS:
        rows.append(row := one_length(steps, 0.1 if args.smoke else 2.0))
        ratio = row["scan_ms"] / row["conv_ms"]
        print(
            f"  {steps:6} steps: scan {row['scan_ms']:9.2f} ms, conv {row['conv_ms']:8.2f} ms, scan/conv {ratio:6.2f}"
        )
    faster = [row["steps"] for row in rows if row["conv_ms"] < row["scan_ms"]]
    summary = {"convolution_faster_from": min(faster, default=None)}
    _measure.write_record(args.out, "cpu", rows, summary)
    print(f"\nwritten: {args.out}")


if __name__ == "__main__":
    main()
