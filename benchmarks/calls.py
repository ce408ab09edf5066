"""Time small calls from Python on a GPU, which spend most of their time on the host: a step, and a layer in training.

python benchmarks/calls.py --device cuda

Results are compared with the same layer on the CPU before they are timed. Many calls are
timed in a row, with one wait at the end; the script reports the median time per call over several rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import _measure
import torch

import stablessm as ssm

LAYERS: dict[str, Callable[[], Any]] = {
    "S4D 256 channels, 16 states": lambda: ssm.S4D(256, 16),
    "RealSSM 64, 64 states": lambda: ssm.RealSSM(64, 64, 64),
    "RealSSM 64, 64 states, discrete": lambda: ssm.RealSSM(64, 64, 64, time="discrete"),
    "LRU 64, 64 states": lambda: ssm.LRU(64, 64, 64),
}
TRAINED: dict[str, tuple[Callable[[], Any], tuple[int, int, int]]] = {
    "S4D, 16 states": (lambda: ssm.S4D(256, 16), (32, 1024, 256)),
    "RealSSM, 64 states": (lambda: ssm.RealSSM(256, 64, 256), (32, 1024, 256)),
    "LRU, 64 states": (lambda: ssm.LRU(256, 64, 256), (32, 1024, 256)),
}


def microseconds(call: Callable[[], object], repeat: int, turns: int) -> tuple[float, float, float]:
    for _ in range(10):
        call()
    each = []
    for _ in range(turns):
        _measure.synchronize()
        begun = time.perf_counter()
        for _ in range(repeat):
            call()
        _measure.synchronize()
        each.append(1e6 * (time.perf_counter() - begun) / repeat)
    low, middle, high = statistics.quantiles(each, n=4, method="inclusive")
    return low, middle, high


def error(ours: torch.Tensor, truth: torch.Tensor) -> float:
    ours = ours.cpu().to(truth.dtype)
    return float((ours - truth).norm() / truth.norm())


def row(what: str, layer: str, batch: Any, wrong: float, taken: tuple[float, float, float]) -> dict[str, Any]:
    low, middle, high = taken
    print(
        f"{what:17} {layer:32} {batch!s:16} {middle:8.1f} µs ({low:.1f} to {high:.1f}), error {wrong:.1e}", flush=True
    )
    return {"what": what, "layer": layer, "shape": batch, "us": middle, "quartiles_us": (low, high), "error": wrong}


@torch.no_grad()
def steps(device: str, batch: int, repeat: int, turns: int) -> list[dict[str, Any]]:
    found = []
    for name, make in LAYERS.items():
        torch.manual_seed(0)
        layer, x = make(), torch.randn(2, batch, make().d_input)
        truth, state = layer.step(x[0])
        truth, _ = layer.step(x[1], state)
        layer, x = layer.to(device), x.to(device)
        _, state = layer.step(x[0])
        ours, _ = layer.step(x[1], state)
        taken = microseconds(lambda s=state, v=x[1], one=layer: one.step(v, s), repeat, turns)
        found.append(row("step", name, batch, error(ours, truth), taken))
    return found


def training(device: str, repeat: int, turns: int, scale: int) -> list[dict[str, Any]]:
    """Forward and backward passes; gradients replace each other, as after ``zero_grad``."""
    found = []
    for name, (make, (batch, length, channels)) in TRAINED.items():
        torch.manual_seed(0)
        layer, x = make(), torch.randn(batch // scale, length // scale, channels)
        few = x[:1, :128].clone().requires_grad_()
        layer(few)[0].square().sum().backward()
        truth = few.grad
        layer = layer.to(device)
        few = x[:1, :128].to(device).requires_grad_()
        layer(few)[0].square().sum().backward()
        wrong, x = error(few.grad, truth), x.to(device).requires_grad_()
        grad = torch.randn(layer(x)[0].shape, device=device)
        leaves = [x, *layer.parameters()]

        def both(layer: Any = layer, x: Any = x, grad: Any = grad, leaves: Any = leaves) -> None:
            torch.autograd.grad(layer(x)[0], leaves, grad)

        taken = microseconds(both, repeat, turns)
        found.append(row("forward+backward", name, tuple(x.shape), wrong, taken))
    return found


def main() -> None:
    args = _measure.parser(__doc__, "calls").parse_args()
    repeat, turns, scale = (2, 2, 32) if args.smoke else (200, 15, 1)
    rows = [found for batch in (1, 8, 32) for found in steps(args.device, batch, repeat, turns)]
    rows += training(args.device, max(2, repeat // 4), turns, scale)
    summary = {f"{row['what']} {row['layer']} {row['shape']}": round(row["us"], 1) for row in rows}
    out = _measure.record_path(args)
    _measure.write_record(out, args.device, rows, summary)


if __name__ == "__main__":
    main()
