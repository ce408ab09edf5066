"""Checks the state of every recurrent and hybrid family of transformers, and of models whose state is right.

./dev bench states                      # writes benchmarks/results/states.json (2 minutes on one core)
python benchmarks/states.py --smoke --out /tmp/smoke.json
python benchmarks/states.py --controls 0 --family mamba2 --family zamba2 --out benchmarks/results/states-5.11.0.json
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import _measure
import numpy as np
import torch
import transformers
from torch import nn

import stablessm as ssm
from stablessm.instruments import families

ATTENTION = (
    "llama", "gpt2", "mistral", "qwen2", "qwen3", "gpt_neox", "opt", "bloom", "falcon", "gemma", "gemma2",
    "gemma3_text", "phi", "phi3", "mixtral", "olmo2", "starcoder2", "cohere", "stablelm", "gpt_bigcode", "gpt_oss",
    "qwen3_moe", "granite",
)  # fmt: skip
"""Families of attention whose state is right."""
RECURRENCES = (nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell)


def checked(kind: str, name: str, model: object, **options: object) -> dict[str, object]:
    """Return the report of a model as a row, with the seconds of CPU time that it took."""
    start = time.process_time()
    report = ssm.check_state(model, progress=False, **options).as_dict()
    return {"kind": kind, "name": name, **report, "seconds": round(time.process_time() - start, 2)}


def control(seed: int) -> dict[str, object]:
    """Return the row of a random model whose state is right: a layer, a recurrence of torch, or attention."""
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    width, d_input = int(draw.integers(2, 24)), int(draw.integers(1, 6))
    dtype = [torch.float32, torch.float64, torch.bfloat16][int(draw.integers(3))]
    size = {"seed": seed, "length": int(draw.integers(12, 40)), "batch": int(draw.integers(2, 5))}
    what = seed % 3
    if what == 0:
        name = ATTENTION[int(draw.integers(len(ATTENTION)))]
        model = families.random_model(name, seed=seed, dtype=dtype)
    elif what == 1:
        cls = RECURRENCES[int(draw.integers(len(RECURRENCES)))]
        depth = {} if cls.__name__.endswith("Cell") else {"num_layers": int(draw.integers(1, 4))}
        name, model = cls.__name__, cls(d_input, width, **depth).to(dtype)
    else:
        makers = {
            "RealSSM": lambda: ssm.RealSSM(d_input, width, 2, map="best"),
            "LRU": lambda: ssm.LRU(d_input, width, 2),
            "S4D": lambda: ssm.S4D(d_input, width),
            "ContinuousRNN": lambda: ssm.ContinuousRNN(d_input, width, 2, activation="tanh"),
            "SequenceClassifier": lambda: ssm.SequenceClassifier(
                3, d_input=d_input, d_model=8, n_layers=2, d_state=width
            ),
        }
        name = sorted(makers)[int(draw.integers(len(makers)))]
        model = makers[name]().to(dtype)
    with torch.no_grad():
        for weight in model.parameters() if what == 1 else ():
            weight.mul_(10 ** draw.uniform(-1, 1))
    return checked("control", f"{name} ({str(dtype).removeprefix('torch.')})", model, **size)


def main() -> None:
    """Check and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="two families and three controls, to see that it runs")
    parser.add_argument("--family", action="append", help="a family (default: all)")
    parser.add_argument("--controls", type=int, default=60, help="number of random models whose state is right")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "states.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    names = ["mamba", "mamba2"] if args.smoke else args.family or families.names()
    start, rows = time.process_time(), []
    for name in names:
        rows.append(row := checked("family", name, families.random_model(name)))
        failed = [case["name"] for case in row["cases"] if not case["passed"]]
        print(f"{name}: {', '.join(failed) or 'right'} ({row['seconds']} s)", flush=True)
    controls = [control(seed) for seed in range(3 if args.smoke else args.controls)]
    alarms = [row for row in controls if not row["passed"]]
    for row in alarms:
        print(f"alarm: {row['name']}", [case for case in row["cases"] if not case["passed"]], flush=True)
    seconds = round(time.process_time() - start)
    print(f"{len(alarms)} alarms on {len(controls)} models whose state is right; {seconds} s")
    summary = {
        "transformers": transformers.__version__,
        "families": len(rows),
        "families with a case that fails": sum(not row["passed"] for row in rows),
        "controls": len(controls),
        "alarms on controls": len(alarms),
        "seconds": seconds,
        "clock": "CPU time of the process",
    }
    drawn = [{key: row[key] for key in ("kind", "name", "passed", "seconds")} for row in controls]
    _measure.write_record(args.out, "cpu", [*rows, *drawn], summary)
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
