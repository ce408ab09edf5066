"""Which layers solve selective copying at its published size (4096 tokens, 16 of them to copy), and how fast?

A model of two blocks of width 64 is trained with each mixer, with AdamW, batches of 64 and a learning rate that falls
to zero over the given time; every step has new examples. The accuracy is the share of copied tokens that are
right in 512 test examples. Published (Gu and Dao 2023, table 1; 400,000 steps): S4 without a gate 18.3 %,
S6 97.0 %, Mamba 99.8 %.

python benchmarks/selective_tasks.py        # on a GPU; writes benchmarks/results/selective-tasks-cuda.json
python benchmarks/selective_tasks.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import _measure
import torch

import stablessm as ssm
from stablessm import tasks

MIXERS = {"selective": 16, "mingru": 64, "s4d": 16}
"""Number of states of each mixer."""


@torch.no_grad()
def accuracy(model: torch.nn.Module, task: tasks.Task, batches: int) -> float:
    """Return the share of right tokens in the test split."""
    right, count = 0.0, 0.0
    for index in range(batches):
        batch = task.batch("test", 64, index=index)
        score, number = task.score(model(batch.inputs), batch)
        right, count = right + float(score), count + float(number)
    return right / count


def trained(mixer: str, length: int, seconds: float, lr: float, device: str, seed: int) -> dict[str, object]:
    """Train a model with that mixer and return its row."""
    torch.manual_seed(seed)
    task = tasks.get("selective-copying", length=length, vocabulary=16, copied=16, test_examples=512).to(device)
    model = ssm.SequenceClassifier(
        16, vocab_size=16, d_model=64, n_layers=2, mixer=mixer, d_state=MIXERS[mixer], per_step=True,
        map="exp", activation="none",
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(ssm.param_groups(model, lr, weight_decay=0.01), betas=(0.9, 0.95))
    rates = [group["lr"] for group in optimizer.param_groups]
    start, step, curve = time.perf_counter(), 0, []
    while (elapsed := time.perf_counter() - start) < seconds:
        factor = min(1.0, (step + 1) / 200) * (1 - elapsed / seconds)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        batch = task.batch("train", 64, epoch=step)
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(model(batch.inputs), batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 500 == 0:
            curve.append((step, float(loss)))
            print(mixer, step, f"{elapsed:.0f} s, loss {float(loss):.4f}", flush=True)
    found = accuracy(model.eval(), task, 8)
    print(f"{mixer}: accuracy {found:.4f} after {step} steps", flush=True)
    row = {"mixer": mixer, "length": length, "seed": seed, "steps": step, "seconds": seconds, "lr": lr}
    return {**row, "accuracy": found, "chance": task.chance, "losses": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a short sequence for a second, to see that it runs")
    parser.add_argument("--seconds", type=float, default=120.0, help="time for each mixer")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--mixers", nargs="+", default=list(MIXERS), choices=list(MIXERS))
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "selective-tasks-cuda.json")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    length, seconds = (32, 1.0) if args.smoke else (4096, args.seconds)
    rows: list[dict[str, object]] = []
    for mixer in args.mixers:
        rows.append(trained(mixer, length, seconds, args.lr, device, seed=0))
        summary = {f"{row['mixer']}: accuracy": row["accuracy"] for row in rows}
        _measure.write_record(args.out, device, rows, summary, complete=mixer == args.mixers[-1])
    print(f"\nwritten: {args.out}")


if __name__ == "__main__":
    main()
