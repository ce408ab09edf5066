"""Does a language model hold beyond the windows it was trained on? Perplexity with the state carried on, and by windows.

Character models of every mixer, two texts, three seeds, trained as ``stablessm train lm`` does by default. The bar,
set before the run: carried, or in windows of 20 times the length, at most 1.02 times the perplexity of windows.

python benchmarks/carried.py --device cuda        # writes benchmarks/results/carried.json
python benchmarks/carried.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import _measure
import torch

import stablessm as ssm
from stablessm import training

MOST = 1.02


def compare(text: str, mixer: str, seed: int, length: int, steps: int, device: str) -> dict[str, Any]:
    """Train one model and read the test split in three ways."""
    task = ssm.tasks.get("lm", text=text, level="char", length=length)
    torch.manual_seed(seed)
    model = ssm.models.for_task(task.inputs, task.outputs, "lm-tiny", mixer=mixer)
    with tempfile.TemporaryDirectory() as folder:
        config = training.TrainingConfig(steps=steps, batch_size=32, seed=seed, device=device)
        training.train(model, task, config, folder, progress=False)
    longer = ssm.tasks.get("lm", text=text, level="char", length=20 * length)
    found = {
        "windows": training.perplexity(model, task, carry=False).per_token,
        "20 times longer": training.perplexity(model, longer, carry=False).per_token,
        "carried": training.perplexity(model, task, carry=True).per_token,
    }
    return {"text": text, "mixer": mixer, "seed": seed, "length": length, "steps": steps, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--first-seed", type=int, default=70)
    parser.add_argument("--smoke", action="store_true", help="one model, three steps, to see that it runs")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "carried.json")
    args = parser.parse_args()
    mixers, texts, seeds = ("hyena-real", "hyena-s4d", "hyena-lru"), ("tinyshakespeare", "wikitext2"), range(3)
    if args.smoke:
        mixers, texts, seeds = mixers[:1], texts[:1], range(1)
    rows: list[dict[str, Any]] = []
    for text in texts:
        for mixer in mixers:
            for seed in seeds:
                rows.append(compare(text, mixer, args.first_seed + seed, 128, 3 if args.smoke else 1500, args.device))
                print(rows[-1], flush=True)
                ratios = [max(row["carried"], row["20 times longer"]) / row["windows"] for row in rows]
                summary = {"largest ratio": max(ratios), "allowed": MOST, "holds": max(ratios) <= MOST}
                _measure.write_record(args.out, args.device, rows, summary, complete=len(rows) == 18)
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
