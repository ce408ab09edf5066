"""When does an S4D layer run faster as a convolution than as a scan? The rule of ``mode="auto"`` comes from here.

./dev bench s4d_mode             # writes benchmarks/results/s4d-mode-cpu.json
python benchmarks/s4d_mode.py --device cuda
python benchmarks/s4d_mode.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import itertools

import _measure
import torch

import stablessm as ssm

LENGTHS = [1, 4, 16, 32, 64, 256, 1024, 4096]
STATES = [4, 32, 64, 256]
BATCH, CHANNELS = 8, 64


def one_case(steps: int, states: int, device: str, seconds: float) -> dict[str, float]:
    torch.manual_seed(0)
    x = torch.randn(BATCH, steps, CHANNELS, device=device)
    layers = {mode: ssm.S4D(CHANNELS, states, mode=mode).to(device) for mode in ("scan", "conv")}
    layers["conv"].load_state_dict(layers["scan"].state_dict())
    expected, result = (layers[mode](x)[0] for mode in ("scan", "conv"))
    difference = ((expected - result).abs().max() / expected.abs().max()).item()
    assert difference < 1e-4, f"the modes differ by {difference}"

    def both(layer: ssm.S4D) -> torch.Tensor:
        layer.zero_grad()
        y, _ = layer(x)
        y.sum().backward()
        return y

    calls = {mode: lambda layer=layer: both(layer) for mode, layer in layers.items()}
    taken = _measure.times(calls, seconds=seconds, wait=lambda _: _measure.synchronize())
    return {
        "steps": steps, "states": states, "scan_ms": taken["scan"], "conv_ms": taken["conv"], "difference": difference,
    }  # fmt: skip


def main() -> None:
    args = _measure.parser(__doc__, "s4d-mode", smoke="two lengths, to see that it runs").parse_args()
    _measure.same_allocator_for_all()
    rows = []
    print(f"S4D, batch {BATCH}, {CHANNELS} channels, forward and backward")
    for steps, states in itertools.product([2, 70] if args.smoke else LENGTHS, [4] if args.smoke else STATES):
        rows.append(row := one_case(steps, states, args.device, 0.1 if args.smoke else 1.0))
        ratio = row["scan_ms"] / row["conv_ms"]
        print(
            f"  {steps:6} steps, {states:4} states: scan {row['scan_ms']:9.2f} ms, conv {row['conv_ms']:8.2f} ms, "
            f"scan/conv {ratio:6.2f}"
        )
    slower = [row["steps"] for row in rows if row["conv_ms"] < row["scan_ms"]]
    summary = {"convolution_faster_up_to_steps": max(slower, default=0)}
    out = _measure.record_path(args)
    _measure.write_record(out, args.device, rows, summary)
    print(f"\nwritten: {out}")


if __name__ == "__main__":
    main()
