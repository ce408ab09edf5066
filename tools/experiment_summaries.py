"""Write what ``stablessm list`` shows of each experiment, which it then reads without importing PyTorch.

python tools/experiment_summaries.py       # writes stablessm/experiments/summaries.json; part of ./dev pages
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import get_args

from stablessm.experiments import catalog, listing
from stablessm.experiments.frame.base import Size
from stablessm.report.runs import collect


def summaries(root: Path) -> str:
    """Return the file's text: facts from the experiments' code, verdicts from the records in ``results/``."""
    verdicts = {
        run.id: Counter(claim.verdict for claim in run.claims)
        for run in collect([root / "results"]).runs
        if run.size in get_args(Size)
    }
    found = {}
    for id in listing.IDS:
        experiment = catalog.get(id)
        found[id] = {
            "title": experiment.title,
            "question": experiment.question,
            "minutes": dict(experiment.minutes),
            "verdicts": dict(sorted(verdicts.get(id, {}).items())),
        }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    listing.SUMMARIES.write_text(summaries(Path()), encoding="utf-8")
