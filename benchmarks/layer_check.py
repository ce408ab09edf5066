"""Do the layers give the same numbers on a GPU as on the CPU? Values, states and gradients in float64.

    python benchmarks/layer_check.py                 # on a machine with a CUDA device
    python benchmarks/layer_check.py --smoke --out /tmp/smoke.json

Without a GPU (--smoke) the device under test is the CPU with the scan's reference loop in place of its kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import _measure
import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm.scan import linear_scan

LAYERS: dict[str, Callable[..., nn.Module]] = {
    "RealSSM": lambda **o: ssm.RealSSM(3, 8, 3, dt=0.3, **o),
    "RealSSM discrete": lambda **o: ssm.RealSSM(3, 8, 3, time="discrete", skip=True, **o),
    "LRU": lambda **o: ssm.LRU(3, 8, 3, **o),
    "S4D": lambda **o: ssm.S4D(3, 8, **o),
    "ContinuousRNN dense": lambda **_: ssm.ContinuousRNN(3, 8, 3, dt=0.1, map="skew_minus_psd"),
    "ContinuousRNN diagonal": lambda **_: ssm.ContinuousRNN(
        3, 8, 3, dt=0.1, recurrence="diagonal", map="best", solver="exponential"
    ),
    "Bidirectional": lambda **o: ssm.Bidirectional(ssm.LRU(3, 8, 3, **o)),
    "MinGRU": lambda **_: ssm.MinGRU(3, 8),
    "MinLSTM": lambda **_: ssm.MinLSTM(3, 8),
    "RGLRU": lambda **_: ssm.RGLRU(3),
    "HGRN": lambda **_: ssm.HGRN(3),
    "SelectiveSSM": lambda **_: ssm.SelectiveSSM(3),
}
TOLERANCE = 1e-9


def results(layer: nn.Module, x: Tensor, options: dict[str, object], device: str) -> list[Tensor]:
    moved = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in options.items()}
    y, state = layer.to(device)(x.to(device), **moved)
    states = state if isinstance(state, tuple) else (state,)
    loss = y.square().sum() + sum(s.abs().square().sum() for s in states)
    return [t.detach().cpu() for t in (y, *states, *torch.autograd.grad(loss, list(layer.parameters())))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="CPU only")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "layer-check-cuda.json")
    args = parser.parse_args()
    device = "cpu" if args.smoke else "cuda"
    torch.manual_seed(0)
    x, lengths = torch.randn(2, 60, 3, dtype=torch.float64), torch.tensor([7, 60])
    uniform = [{}, {"lengths": lengths}, {"dt": 0.7}]
    varying = [{"reset": torch.rand(2, 60) < 0.1}, {"dt": torch.rand(2, 60, dtype=torch.float64)}]
    rows = []
    for name, make in LAYERS.items():
        worst = 0.0
        for mode in ("scan", "conv"):
            layer = make(mode=mode).double()
            for options in uniform + (varying if mode == "scan" else []):
                expected = results(copy.deepcopy(layer), x, options, "cpu")
                slow = mock.patch(
                    "stablessm.layers.diagonal.linear_scan", lambda *a, **k: linear_scan(*a, **k, backend="reference")
                )
                with slow if args.smoke else contextlib.nullcontext():
                    found = results(copy.deepcopy(layer), x, options, device)
                pairs = zip(found, expected, strict=True)
                worst = max(worst, *(float((u - v).abs().max() / v.abs().max().clamp(min=1e-30)) for u, v in pairs))
        rows.append({"layer": name, "largest_relative_error": worst})
        print(f"{name:24} largest relative error {worst:.1e}")
        assert worst <= TOLERANCE, f"{name}: {worst:.1e}"
    _measure.write_record(args.out, device, rows, {"allowed": TOLERANCE})
    print(f"\nwritten: {args.out}")


if __name__ == "__main__":
    main()
