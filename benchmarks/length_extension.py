"""Loss by position, far beyond the training length, of language models trained with and without a carried state.

    python benchmarks/length_extension.py       # benchmarks/results/length-extension-DEVICE.json

All models read the same number of windows of 256 bytes of wikifa. ``fresh`` starts every window from zeros, ``carried``
from the state that the previous window left (``carry`` of the task), ``noisy`` adds noise to that state
(``state_noise`` of the configuration). These three have the defaults of ``LanguageConfig``: time scales from 2 to 2000
steps, and states that are moving averages of their inputs (``average`` of ``RealSSM``). ``short`` and
``short-carried`` are ``fresh`` and ``carried`` with initial time scales from 2 to 40 steps; ``sums`` and
``sums-carried`` are ``fresh`` and ``carried`` with ``average=False``, the default before: each state adds up its
inputs, scaled at the start such that white noise gives states of variance one. ``hyena-ARM`` has the mixer
``hyena-real``, whose default is ``average=False``; the others have the mixer ``real``.

The record has the loss by position, up to 65,536 positions, with the state carried and started again every 256 bytes,
on text that was not used in training. The rows start at places spread evenly over this text, which continues at its
beginning after its end.

The thresholds:

- ``rises`` is true if the mean loss of a bin of positions after 256 is above the loss at the training length by more
  than three standard errors of the difference. The loss at the training length is the mean over positions 182 to 256
  of 2048 windows that start from zeros. ``fresh``, ``carried``, ``noisy``, ``short`` and ``short-carried`` must not
  rise.
- The loss at the training length of an arm that carries the state may exceed the loss of the arm without a carried
  state and with the same start by at most 0.05 nats (``cost``).
- The loss of ``fresh`` at the training length, a mean over the seeds, must not exceed that of ``sums`` by more than
  0.01 nats: averages must not cost quality.

The ``sums`` and ``hyena`` arms have no thresholds.

The default model is small: width 64, two layers, 64 real states, 1000 steps of 16 windows. Every arm runs with seed 0;
``fresh`` and ``sums`` also with seeds 1 and 2. A run takes one to four minutes on one core.
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
    "sums": {"carry": False, "average": False},
    "sums-carried": {"carry": True, "average": False},
    "short": {"carry": False, "timescale": 40},
    "short-carried": {"carry": True, "timescale": 40},
    "noisy": {"carry": True, "noise": 0.1},
    "hyena-carried": {"carry": True, "average": False},
    "hyena-average-carried": {"carry": True},
    "hyena-fresh": {"carry": False, "average": False},
    "hyena-average": {"carry": False},
}
REFERENCE = {
    "carried": "fresh", "noisy": "fresh", "short-carried": "short", "sums-carried": "sums",
    "hyena-carried": "hyena-fresh", "hyena-average-carried": "hyena-average",
}  # fmt: skip
"""The arm without a carried state that starts from the same weights, for each arm that carries the state."""
MORE = [(seed, arm) for seed in (1, 2) for arm in ("fresh", "sums")]
"""Seeds and arms that run besides every arm with seed 0."""
NOT_WORSE = 0.01
"""Largest excess of the default start over ``sums``, in nats per byte at the training length."""
COST = 0.05
"""Largest cost of a carried state, in nats per byte at the training length."""


def measured(arm: str, seed: int, args: argparse.Namespace, device: str) -> dict[str, Any]:
    """Train one model and return its losses by position."""
    options = dict(ARMS[arm])
    noise, slowest = options.pop("noise", None), options.pop("timescale", args.timescale)
    average, mixer = options.pop("average", True), "hyena-real" if arm.startswith("hyena-") else "real"
    task = ssm.tasks.get("lm", text=args.text, level="byte", length=args.length, **options)
    torch.manual_seed(seed)
    sizes = {"d_model": args.width, "n_layers": args.layers, "d_state": args.states, "mixer": mixer}
    sizes["mixer_options"] = {"timescales": [2, slowest], "average": average}
    model = ssm.LanguageModel(task.inputs.size, **sizes)
    config = TrainingConfig(
        steps=args.steps, batch_size=args.batch, lr=args.lr, seed=seed, device=device, select="last",
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
    windows = torch.arange(args.windows) * (len(tokens) - args.length - 1) // args.windows
    trained = length_curve(model, tokens[windows[:, None] + torch.arange(args.length + 1)], progress=False)
    excess = curve.loss - trained.loss[-1]
    late = curve.position > args.length
    chance = 1.5 * np.hypot(curve.error, trained.error[-1])
    row = {
        "arm": arm, "seed": seed, "mixer": mixer, "timescale": slowest, "average": average,
        "train_seconds": seconds, "seconds": time.perf_counter() - began,
        "rows": args.rows, "position": curve.position.tolist(), "loss": curve.loss.tolist(),
        "error": curve.error.tolist(), "restarted": curve.restarted.tolist(),
        "loss_at_training_length": float(trained.loss[-1]),
        "error_at_training_length": float(trained.error[-1]), "largest_excess": float(excess[late].max()),
        "rises": bool((excess > chance)[late].any()), "bits_per_byte_at_the_end": float(curve.loss[-1]) / math.log(2),
    }  # fmt: skip
    verdict = "rises" if row["rises"] else "does not rise"
    print(
        f"{arm}, seed {seed}: {curve}; {trained.loss[-1]:.4g} ± {trained.error[-1]:.2g} at {args.length}; "
        f"{verdict} after it ({row['largest_excess']:.4f}); {row['train_seconds']:.0f} s of {row['seconds']:.0f} s",
        flush=True,
    )
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the rows with the thresholds."""
    loss = {
        arm: float(np.mean([row["loss_at_training_length"] for row in rows if row["arm"] == arm]))
        for arm in {row["arm"] for row in rows}
    }
    judged = [row for row in rows if row["average"] and row["mixer"] == "real"]
    found: dict[str, Any] = {"rises": [f"{row['arm']} {row['seed']}" for row in judged if row["rises"]]}
    found["cost"] = {
        arm: {"nats": loss[arm] - loss[other], "holds": loss[arm] - loss[other] <= COST}
        for arm, other in REFERENCE.items()
        if arm in ("carried", "noisy", "short-carried") and {arm, other} <= loss.keys()
    }
    if {"fresh", "sums"} <= loss.keys():
        excess = loss["fresh"] - loss["sums"]
        found["excess over sums"] = {"nats": excess, "holds": excess <= NOT_WORSE}
    return found


def main() -> None:
    """Measure every arm and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="wikifa")
    defaults = {"length": 256, "positions": 65_536, "rows": 24, "steps": 1000, "batch": 16, "width": 64, "layers": 2}
    for name, value in {**defaults, "states": 64, "timescale": 2000, "windows": 2048}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--arm", action="append", choices=ARMS, help="an arm, with seed 0 (default: all)")
    parser.add_argument("--smoke", action="store_true", help="one arm, two steps, to see that it runs")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.smoke:
        args.arm, args.steps, args.positions, args.rows, args.windows = ["fresh"], 2, 512, 2, 32
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = args.out or _measure.RESULTS / f"length-extension-{device}.json"
    settings = {name: str(value) for name, value in vars(args).items() if name not in ("out", "text", "arm", "smoke")}
    settings["text"] = Path(args.text).name
    first = [(0, arm) for arm in args.arm or ARMS]
    plan = first if args.arm else [*first[:4], *MORE, *first[4:]]
    rows: list[dict[str, Any]] = []
    for seed, arm in plan:
        rows.append(measured(arm, seed, args, device))
        complete = len(rows) == len(plan)
        _measure.write_record(out, device, rows, {"settings": settings, **summary(rows)}, complete=complete)
    print(summary(rows))


if __name__ == "__main__":
    main()
