"""Small stand-ins for the data files, and a small version of every task in the table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stablessm import tasks
from stablessm.tasks import forecasting
from stablessm.tasks.base import Task

FEW: dict[str, int] = {"train_examples": 24, "valid_examples": 10, "test_examples": 14}


def fill(folder: Path) -> None:
    """Every data file, small."""
    rng = np.random.default_rng(0)
    for name, sides in (("mnist", (28, 28)), ("cifar10_gray", (32, 32)), ("cifar10", (32, 32, 3))):
        images(folder / f"{name}.npz", rng, sides)
    for split in ("train", "test"):
        reviews(folder / f"imdb_{split}.jsonl.gz", rng)
    with gzip.open(folder / forecasting.FILE, "wt", encoding="utf-8") as file:
        file.write(hours(rng))
    (folder / "text.txt").write_text(text(rng, 60), encoding="utf-8")
    (folder / "series.csv").write_text(series(rng, 120), encoding="utf-8")
    (folder / "sequences.csv").write_text(sequences(rng, 40), encoding="utf-8")


def images(path: Path, rng: np.random.Generator, sides: tuple[int, ...]) -> None:
    x = rng.integers(0, 256, (54, *sides), dtype=np.uint8)
    y = rng.integers(0, 10, 54, dtype=np.uint8)
    np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])


def reviews(path: Path, rng: np.random.Generator) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for i in range(30):
            text = " ".join(rng.choice(["good", "bad", "film", "çà", "plot"], rng.integers(1, 9)))
            file.write(json.dumps({"text": text, "label": int(i % 3 == 0)}) + "\n")


def hours(rng: np.random.Generator) -> str:
    values = rng.standard_normal((sum(forecasting.ROWS.values()), forecasting.CHANNELS)).cumsum(0).round(2)
    rows = (f"hour {i}," + ",".join(map(str, row)) for i, row in enumerate(values.tolist()))
    return "\n".join(["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT", *rows])


def text(rng: np.random.Generator, lines: int) -> str:
    """Lines of words, documents of ten lines, ``--`` between them."""
    words = ["the", "cat", "sat", "çà", "on", "a", "mat.", "日本"]
    rows = (" ".join(rng.choice(words, rng.integers(2, 7))) for _ in range(lines))
    return "".join(f"{row}\n{'--' if i % 10 == 9 else ''}" for i, row in enumerate(rows))


def series(rng: np.random.Generator, count: int) -> str:
    return "\n".join(["time,load,wind", *(f"t{i},{i % 24},{rng.standard_normal():.3f}" for i in range(count))])


def sequences(rng: np.random.Generator, count: int) -> str:
    rows = [
        f"{name},{rng.standard_normal():.3f},{rng.integers(9)},{'ab'[name % 2]}"
        for name in range(count)
        for _ in range(rng.integers(2, 7))
    ]
    return "\n".join(["sequence,x,z,label", *rows])


def _arrays() -> dict[str, Any]:
    make = torch.Generator().manual_seed(0)
    return {"inputs": torch.randn(40, 9, 2, generator=make), "targets": torch.randint(3, (40,), generator=make)}


def options(folder: Path) -> dict[str, dict[str, Any]]:
    """A case for every task; another way to use one follows a colon."""
    plain, per_step = _arrays(), torch.Generator().manual_seed(1)
    padded = torch.randint(1, 10, (40,), generator=per_step)
    return {
        "functional": {"length": 30, **FEW},
        "functional:nonlinear": {"length": 30, "target": "nonlinear", "precision": "float64", **FEW},
        "recall": FEW,
        "recall:answer": {"train_on": "answer", "length": 12, "vocabulary": 7, **FEW},
        "recall:fresh": {"fresh": True, **FEW},
        "multi-query-recall": {"length": 40, "vocabulary": 21, "pairs": 5, "queries": 6, **FEW},
        "selective-copying": {"length": 30, "copied": 5, **FEW},
        "mnist": {"valid": 0.2},
        "permuted-mnist": {},
        "cifar10-gray": {},
        "cifar10": {},
        "imdb": {"length": 7, "vocabulary": 8},
        "imdb:bytes": {"length": 20, "tokens": "bytes"},
        "lm": {"text": str(folder / "text.txt"), "level": "char", "length": 16, "test": 0.2},
        "lm:documents": {
            "text": str(folder / "text.txt"),
            "level": "byte",
            "length": 20,
            "separator": "--",
            "valid": 0.2,
            "test": 0.4,
        },
        "lm:carried": {
            "text": str(folder / "text.txt"),
            "level": "char",
            "length": 16,
            "separator": "--",
            "carry": True,
        },
        "lm:words": {"text": str(folder / "text.txt"), "level": "word", "length": 6, "vocabulary": 7},
        "etth1": {"window": 20, "horizon": 4},
        "etth1:temperature": {"window": 20, "horizon": 3, "columns": "OT", "metric": "mae"},
        "arrays": plain,
        "arrays:padded": {**plain, "lengths": padded},
        "arrays:per-step": {**plain, "targets": torch.randn(40, 9, 2, generator=per_step), "lengths": padded},
        "arrays:tokens": {
            "inputs": torch.randint(5, (40, 9), generator=per_step),
            "targets": torch.randint(4, (40, 9), generator=per_step),
        },
        "series": {"file": str(folder / "series.csv"), "target": "load", "window": 10, "horizon": 2},
        "sequences": {"file": str(folder / "sequences.csv")},
        "sequences:values": {"file": str(folder / "sequences.csv"), "label": "y", "kind": "values"},
    }


def get(case: str, folder: Path) -> Task:
    given = options(folder)[case]
    if case == "sequences:values":
        text = (
            (folder / "sequences.csv")
            .read_text(encoding="utf-8")
            .replace("label", "y")
            .replace(",a", ",1.5")
            .replace(",b", ",-2")
        )
        given = {**given, "file": str(folder / "values.csv")}
        (folder / "values.csv").write_text(text, encoding="utf-8")
    return tasks.get(case.split(":")[0], **given)


CASES = tuple(options(Path()))
