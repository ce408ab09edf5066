"""Loss by position, far beyond the training length, of language models trained with and without a carried state.

    python benchmarks/length_extension.py       # benchmarks/results/length-extension-DEVICE.json

All models read the same number of windows of 256 bytes of wikifa. ``fresh`` starts every window from zeros, ``carried``
from the state that the previous window left (``carry`` of the task), ``noisy`` adds noise to that state
(``state_noise`` of the configuration). These three start from the same weights, with time scales from 2 to 2000 steps.
``short`` and ``short-carried`` are ``fresh`` and ``carried`` with initial time scales from 2 to 40 steps.

The record has the loss by position, up to 65,536 positions, with the state carried and started again every 256 bytes,
on text that was not used in training. The rows start at places spread evenly over this text, which continues at its
beginning after its end.

The thresholds:

- ``rises`` is true if the mean loss of a bin of positions after 256 is above the loss at the training length by more
  than three standard errors of the difference. The loss at the training length is the mean over positions 182 to 256
  of 2048 windows that start from zeros. The curves of the arms that carry the state must not rise.
- The loss at the training length of an arm that carries the state may exceed the loss of the arm without a carried
  state and with the same time scales by at most 0.05 nats (``cost``).

The default model is small: width 64, two layers, 64 real states. Time scales from 2 to 2000 steps are the default of
``LanguageConfig``, so that slow states are far from stationary after 256 steps. Slow states sum their inputs, and a
nonzero mean of the inputs dominates a sum over 2000 steps. Shorter initial time scales remove this start; training can
increase them. A model trains for 1000 steps of 16 windows, one to four minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import _measure
import numpy as np
import torch

import stablessm as ssm
from stablessm.instruments import length_curve
from stablessm.training import TrainingConfig, train

ARMS: dict[str, dict[str, Any]] = {
    "fresh": {"carry": False},
    "carried": {"carry": True},
    "noisy": {"carry": True, "noise": 0.1},
    "short": {"carry": False, "timescale": 40},
    "short-carried": {"carry": True, "timescale": 40},
}
REFERENCE = {"carried": "fresh", "noisy": "fresh", "short-carried": "short"}
"""The arm without a carried state that starts from the same weights, for each arm that carries the state."""
COST = 0.05
"""Largest cost of a carried state, in nats per byte at the training length."""
WINDOWS = 2048
"""Number of windows that measure the loss at the training length."""


def measured(arm: str, args: argparse.Namespace, device: str) -> dict[str, Any]:
    """Train one model and return its losses by position."""
    options = dict(ARMS[arm])
    noise, slowest = options.pop("noise", None), options.pop("timescale", args.timescale)
    task = ssm.tasks.get("lm", text=args.text, level="byte", length=args.length, **options)
    torch.manual_seed(args.seed)
    sizes = {"d_model": args.width, "n_layers": args.layers, "d_state": args.states, "mixer": args.mixer}
    sizes["mixer_options"] = {"timescales": [2, slowest]}
    model = ssm.LanguageModel(task.inputs.size, **sizes)
    config = TrainingConfig(
        steps=args.steps, batch_size=args.batch, lr=args.lr, seed=args.seed, device=device, select="last",
        evaluate_every=args.steps, autocast=device == "cuda", state_noise=noise,
    )  # fmt: skip
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train(model, task, config, Path(folder) / "run", progress=False)
    seconds = time.perf_counter() - began
    tokens = torch.from_numpy(task.streams["test"].tokens.astype("int64"))
    starts = torch.arange(args.rows) * len(tokens) // args.rows
    rows = tokens[(starts[:, None] + torch.arange(args.positions + 1)) % len(tokens)]
    curve = length_curve(model.to(device), rows, window=args.length, progress=False)
    windows = torch.arange(WINDOWS) * (len(tokens) - args.length - 1) // WINDOWS
    trained = length_curve(model, tokens[windows[:, None] + torch.arange(args.length + 1)], progress=False)
    excess = curve.loss - trained.loss[-1]
    late = curve.position > args.length
    chance = 1.5 * np.hypot(curve.error, trained.error[-1])
    row = {
        "arm": arm, "timescale": slowest, "train_seconds": seconds, "seconds": time.perf_counter() - began,
        "rows": args.rows, "position": curve.position.tolist(), "loss": curve.loss.tolist(),
        "error": curve.error.tolist(), "restarted": curve.restarted.tolist(),
        "loss_at_training_length": float(trained.loss[-1]),
        "error_at_training_length": float(trained.error[-1]), "largest_excess": float(excess[late].max()),
        "rises": bool((excess > chance)[late].any()), "bits_per_byte_at_the_end": float(curve.loss[-1]) / math.log(2),
    }  # fmt: skip
    verdict = "rises" if row["rises"] else "does not rise"
    print(
        f"{arm}: {curve}; {trained.loss[-1]:.4g} ± {trained.error[-1]:.2g} at {args.length}; {verdict} after it "
        f"({row['largest_excess']:.4f}; {row['train_seconds']:.0f} + {row['seconds'] - row['train_seconds']:.0f} s)",
        flush=True,
    )
    return row


def main() -> None:
    """Measure every arm and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="wikifa")
    parser.add_argument("--mixer", default="real")
    defaults = {"length": 256, "positions": 65_536, "rows": 24, "steps": 1000, "batch": 16, "width": 64, "layers": 2}
    for name, value in {**defaults, "states": 64, "timescale": 2000, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--arm", action="append", choices=ARMS, help="an arm (default: all)")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = args.out or _measure.RESULTS / f"length-extension-{device}.json"
    settings = {name: str(value) for name, value in vars(args).items() if name not in ("out", "text", "arm")}
    rows: list[dict[str, Any]] = []
    for arm in args.arm or ARMS:
        rows.append(measured(arm, args, device))
        at_length = {row["arm"]: row["loss_at_training_length"] for row in rows}
        if REFERENCE.get(arm) in at_length:
            rows[-1]["cost"] = at_length[arm] - at_length[REFERENCE[arm]]
        _measure.write_record(out, device, rows, {"settings": {**settings, "text": Path(args.text).name}})
    for row in rows:
        if row["arm"] in REFERENCE:
            rise, cost = "rises" if row["rises"] else "does not rise", row.get("cost", math.nan)
            print(f"{row['arm']}: {rise} after {args.length} bytes; costs {cost:.3f} nats (threshold: {COST})")


if __name__ == "__main__":
    main()
