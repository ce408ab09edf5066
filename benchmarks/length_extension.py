"""Loss by position, far beyond the training length, of language models trained with and without a carried state.

    python benchmarks/length_extension.py --text wikifa       # benchmarks/results/length-extension-DEVICE.json

Every model has the same weights at first and reads the same number of windows of 256 bytes. ``fresh`` starts every
window from zeros, ``carried`` from the state that the previous window left (``carry`` of the task), ``noisy`` adds
noise to that state (``state_noise`` of the configuration). The record has the loss by position, up to 65,536 positions,
with the state carried and started again every 256 bytes, on text that was not used in training. The rows start at
places spread evenly over this text, which continues at its beginning after its end: all bins of positions read much the
same text. ``rises`` says whether the loss of some later bin is above the loss of the bin that contains position 256 by
more than three standard errors. Three minutes on one H200; the last line says whether both cures hold.
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
from stablessm.instruments import LengthCurve, length_curve
from stablessm.training import TrainingConfig, train

ARMS: dict[str, dict[str, Any]] = {
    "fresh": {"carry": False},
    "carried": {"carry": True},
    "noisy": {"carry": True, "noise": 0.1},
}


def measured(arm: str, args: argparse.Namespace, device: str) -> dict[str, Any]:
    """Train one model and return its losses by position."""
    options = dict(ARMS[arm])
    noise = options.pop("noise", None)
    task = ssm.tasks.get("lm", text=args.text, level="byte", length=args.length, **options)
    torch.manual_seed(args.seed)
    sizes = {"d_model": args.width, "n_layers": args.layers, "d_state": args.states, "mixer": args.mixer}
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
    row = {
        "arm": arm, "train_seconds": seconds, "seconds": time.perf_counter() - began, "rows": args.rows,
        "position": curve.position.tolist(), "loss": curve.loss.tolist(), "error": curve.error.tolist(),
        "restarted": curve.restarted.tolist(), "rise": curve.rise(after=args.length),
        "rises": rises(curve, args.length), "bits_per_byte_at_the_end": float(curve.loss[-1]) / math.log(2),
    }  # fmt: skip
    verdict = "rises" if row["rises"] else "does not rise"
    print(f"{arm}: {curve}; {verdict} after {args.length} ({row['rise']:.4f}; {row['seconds']:.0f} s)", flush=True)
    return row


def rises(curve: LengthCurve, after: int) -> bool:
    """Return whether a later bin has a loss above that of the bin with position ``after`` by three standard errors."""
    first = int(np.searchsorted(curve.position, after))
    chance = 1.5 * np.hypot(curve.error[first + 1 :], curve.error[first])
    return bool((curve.loss[first + 1 :] - curve.loss[first] > chance).any())


def main() -> None:
    """Measure every arm and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="wikifa")
    parser.add_argument("--mixer", default="lru")
    defaults = {"length": 256, "positions": 65_536, "rows": 256, "steps": 2000, "batch": 64, "width": 256, "layers": 4}
    for name, value in {**defaults, "states": 64, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = args.out or _measure.RESULTS / f"length-extension-{device}.json"
    settings = {name: str(value) for name, value in vars(args).items() if name not in ("out", "text")}
    rows = []
    for arm in ARMS:
        rows.append(measured(arm, args, device))
        _measure.write_record(out, device, rows, {"settings": {**settings, "text": Path(args.text).name}})
    held = not any(row["rises"] for row in rows if row["arm"] != "fresh")
    print(
        f"{'holds' if held else 'does not hold'}: the loss of a trained state does not rise after {args.length} bytes"
    )


if __name__ == "__main__":
    main()
