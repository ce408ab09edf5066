"""Run folders made up for the report's tests.

``python tests/report_runs.py`` writes ``report_page.html``, the markup of one page; look at it in a browser first.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from stablessm import record
from stablessm.report.figure import Figure, Panel, Series
from stablessm.report.page import render
from stablessm.report.runs import collect

PAGE = Path(__file__).parent / "report_page.html"

CLAIMS = (
    {
        "statement": "For an exponential memory the curves do not move left as m grows",
        "paper": "crossings stay",
        "ours": "moved by 0.02 decades",
        "verdict": "reproduced",
        "why": "All widths cross the threshold between β = 0.48 and β = 0.51.",
    },
    {
        "statement": "For a polynomial memory they do",
        "paper": "to the left, each time",
        "ours": "6 of 7 steps",
        "verdict": "partly",
        "why": "Between m = 64 and m = 128 the finite horizon stops it.",
    },
    {
        "statement": "At β = 0 the error falls with m",
        "paper": "1e-8",
        "ours": "3.1e-5",
        "verdict": "not reproduced",
        "why": "The optimizer stops earlier.",
    },
)


def figure(name: str = "curves", panels: int = 2) -> Figure:
    """Curves over many decades, with a zero, an infinity, groups and every style."""
    beta = np.concatenate([[0.0], 5e-4 * 2.0 ** np.arange(21)])
    drawn = []
    for number in range(panels):
        series = []
        for order, m in enumerate((4, 16, 64)):
            lower = 1e-3 / m + (beta * m ** (0.5 * number)) ** 1.5
            upper = 3.0 * lower
            if number:
                upper[-3:] = np.inf
            series.append(Series(f"m = {m}", beta, lower, ("solid", "both", "solid")[order], f"m = {m}"))
            series.append(Series(f"m = {m}, upper", beta, upper, "dashed", f"m = {m}"))
        series.append(Series("threshold", [5e-4, 500.0], [0.1, 0.1], "dotted"))
        series.append(Series("crossings", [0.05, 0.2, 0.4], [0.1, 0.1, 0.1], "points"))
        title = ("exponential memory", "polynomial memory", "both")[number % 3]
        drawn.append(Panel(title, "perturbation β", "E_m(β)", series, "log", "log", (1e-5, 1e4)))
    return Figure(name, "Perturbation errors as the width grows: where a curve crosses the dotted line.", drawn)


def write_run(folder: Path, name: str = "ia-fig1", panels: int = 2, **changes: Any) -> Path:
    """A run folder as an experiment writes it; ``changes`` go into the record, None removes an entry."""
    folder.mkdir(parents=True, exist_ok=True)
    figure("curves", panels).save(folder)
    record.save_arrays(folder / "curves.npz", "test", {}, {"beta": np.arange(5.0)})
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n', encoding="utf-8")
    content = {
        "id": name,
        "title": "Linear functionals with two memories",
        "question": "Does a longer memory make the approximation less stable?",
        "source": "IAT, figure 1",
        "claim": "Only an exponentially decaying memory is approximated stably.",
        "deviations": "The paper gives no widths.\n\nThe horizon is ours.",
        "size": "smoke",
        "status": "complete",
        "config": {"widths": [4, 16, 64], "seed": 0, "target": {"kernel": "polynomial", "exponent": 1.1}},
        "claims": list(CLAIMS),
        "figures": ["curves"],
        "arrays": ["curves.npz"],
        "command": f"stablessm run {name} --size smoke",
        "versions": {"python": "3.11.2", "torch": "2.13.0"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "hardware": {"machine": "x86_64", "system": "Linux", "cores": 2, "gpu": None},
        "wall_time_s": 12.5,
        "date": "2026-01-31",
        **changes,
    }
    record.write_json(folder / "record.json", {key: value for key, value in content.items() if value is not None})
    return folder


def markup(folder: Path) -> str:
    """Return the page of runs of every kind, without what differs between machines: file sizes, versions, folders."""
    write_run(folder / "a", size="paper", arrays=[], computed=[{"machine": "other", "gpu": {"name": "fast"}}])
    write_run(folder / "b", arrays=[], figures=[], claims=[{"statement": "s", "verdict": "perhaps"}])
    write_run(folder / "c", "ext-1", source="beyond", size="", status="running", arrays=["gone.npz"], figures=[])
    write_run(folder / "d", "ia fig/2", claims=[{"statement": "s", "verdict": v} for v in ("", "holds", "holds")])
    text = render(collect([folder]), folder).replace(str(folder), "FOLDER")
    text = re.sub(r"stablessm \d[^ ]* This", "stablessm VERSION This", text)
    text = re.sub(r"(<small>)[\d.]+ k?B", r"\1SIZE", text)
    text = re.sub(r"(<(script|style)[^>]*>)(.{30}).*?(</\2>)", r"\1\3\4", text, flags=re.DOTALL)
    return text.replace("><", ">\n<")


if __name__ == "__main__":
    PAGE.write_text(markup(Path(tempfile.mkdtemp())), encoding="utf-8")
