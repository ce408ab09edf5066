"""How much faster are many perturbed models at once than a loop over perturbed copies?

The setting of StableSSM's figure 1: radii {0} ∪ 1e-3 · 2^(j/2), 30 draws each, 100 steps, the polynomial target. The
mean square is over 32 inputs, our default, and over 128, the batch of IAT.

./dev bench perturbation         # writes benchmarks/results/perturbation-cpu.json
python benchmarks/perturbation.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import _measure
import torch

import stablessm as ssm
from stablessm.instruments._weight_balls import WeightBall, select
from stablessm.instruments.perturbation import perturbation_error
from stablessm.targets import LinearFunctional

WIDTH, STEPS, DRAWS = 64, 100, 30
CASES = [("kernel_l1", None), ("mse", 32), ("mse", 128)]
RADII = [0.0, *(1e-3 * 2 ** (j / 2) for j in range(21))]


@torch.no_grad()
def loop(
    layer: ssm.RealSSM, target: LinearFunctional, x: torch.Tensor | None, radii: list[float], noise: dict
) -> list[float]:
    """What one would write by hand; the noise is drawn already."""
    times = torch.arange(STEPS + 1, dtype=layer.w.dtype)
    kernel, y = target.kernel(times).to(layer.w), None if x is None else target(x)
    errors, worst = [], 0.0
    for radius in radii:
        for draw in range(DRAWS if radius else 1):
            other = copy.deepcopy(layer)
            for name, parameter in other.named_parameters():
                parameter.add_(radius * noise[name][draw])
            if x is None:
                error = torch.trapezoid((other.kernel(times) - kernel).abs()[:, 0, 0], times)
            else:
                error = (other(x)[0] - y).square().mean()
            worst = max(worst, error.item())
        errors.append(worst)
    return errors


def one_case(norm: str, rows: int | None, dtype: torch.dtype, radii: list[float], seconds: float) -> dict[str, object]:
    torch.manual_seed(0)
    layer = ssm.RealSSM(1, WIDTH, 1, map="softplus").to(dtype)
    target = LinearFunctional("polynomial", exponent=1.1)
    x = None if rows is None else torch.randn(rows, STEPS, 1, dtype=dtype)
    noise = WeightBall.of("tensor_max").sample(select(layer, None), DRAWS, seed=0)
    options = {"norm": norm, "samples": DRAWS, "horizon": STEPS, "inputs": x, "progress": False}
    calls = {
        "loop": lambda: loop(layer, target, x, radii, noise),
        "batched": lambda: perturbation_error(layer, target, radii, **options).lower.tolist(),
    }
    by_hand, ours = (torch.tensor(call(), dtype=torch.float64) for call in calls.values())
    difference = ((ours - by_hand).abs() / by_hand).max().item()
    assert difference < (1e-9 if dtype == torch.float64 else 1e-3), f"the two differ by {difference}"
    taken = _measure.times(calls, seconds=seconds, wait=lambda _: None)
    return {
        "norm": norm,
        "inputs": rows,
        "dtype": str(dtype).removeprefix("torch."),
        "models": 1 + DRAWS * (len(radii) - 1),
        "loop_ms": taken["loop"],
        "batched_ms": taken["batched"],
        "ratio": taken["loop"] / taken["batched"],
        "difference": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="three radii, to see that it runs")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "perturbation-cpu.json")
    args = parser.parse_args()
    _measure.same_allocator_for_all()
    rows = []
    print(f"RealSSM, width {WIDTH}, {STEPS} steps, {DRAWS} draws a radius")
    for norm, inputs in CASES:
        for dtype in (torch.float32, torch.float64):
            radii, seconds = (RADII[:3], 0.1) if args.smoke else (RADII, 6.0)
            rows.append(row := one_case(norm, inputs, dtype, radii, seconds))
            times = f"loop {row['loop_ms']:7.1f} ms, batched {row['batched_ms']:6.1f} ms, ratio {row['ratio']:5.1f}"
            print(f"  {norm:9} {inputs or '':3} {row['dtype']}: {times}")
    summary = {
        f"{norm}{'' if inputs is None else f', {inputs} inputs'}: slowest ratio": min(
            row["ratio"] for row in rows if (row["norm"], row["inputs"]) == (norm, inputs)
        )
        for norm, inputs in CASES
    }
    _measure.write_record(args.out, "cpu", rows, summary)
    print(f"\nwritten: {args.out}")


if __name__ == "__main__":
    main()
