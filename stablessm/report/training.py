"""Shows a training run in the report, with curves from its ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablessm import _lines, record
from stablessm.report.figure import Figure, Panel, Series


def described(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Convert the record of a training run into the form of an experiment's record, which the report can show.
    The name of the folder becomes the id.

    >>> record = {"task": {"task": "mnist"}, "model": {"class": "LRU"}, "diverged": {"step": 7}}
    >>> [described(record, Path("runs/first"))[name] for name in ("id", "title", "status")]
    ['first', 'LRU on mnist', 'diverged at step 7']
    """
    diverged = content.get("diverged")
    shown = {
        "id": folder.resolve().name,
        "title": f"{content['model']['class']} on {content['task']['task']}",
        "status": "complete" if diverged is None else f"diverged at step {diverged['step']}",
        "question": "" if diverged is None else diverged.get("text"),
        "config": {
            "training": content.get("config"),
            "task": content["task"],
            "model": content["model"].get("options"),
        },
    }
    return {**content, **shown}


def curves(content: Mapping[str, Any], metrics: Path) -> Figure | None:
    """Return a figure of loss and validation scores against the step; None if no metric was written."""
    if metrics.read_bytes()[-1:] not in (b"", b"\n"):
        raise ValueError("its last line is cut off")
    rows = _lines.read(metrics, step=int)
    if not rows:
        return None
    results = content["results"]
    metric, chance = results["metric"], float(results["chance"])
    training = [row for row in rows if "split" not in row]
    validation = [row for row in rows if "split" in row]
    losses = [_series("train", training, "loss"), _series("valid", validation, "loss")]
    panels = [Panel("loss", "step", "loss", losses, y_scale="log")]
    if validation:
        steps = [row["step"] for row in validation]
        guess = Series("chance", steps, [chance] * len(steps), style="dashed")
        panels.append(Panel(metric, "step", metric, [_series("valid", validation, metric), guess]))
    scores = [f"{split} {metric} {float(found[metric]):.4g}" for split, found in results["scores"].items()]
    return Figure("training", f"{', '.join([*scores, f'chance {chance:.4g}'])}.".capitalize(), panels)


def _series(name: str, rows: list[dict[str, Any]], key: str) -> Series:
    return Series(name, [row["step"] for row in rows], [record.number(row.get(key)) for row in rows], style="both")
