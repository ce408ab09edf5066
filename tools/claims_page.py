"""The claims of committed runs as Markdown: a short table for the README, every claim for the documentation.

./dev pages        # bring README.md and docs/claims.md up to date with results/
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from stablessm.report.claim import VERDICTS
from stablessm.report.folder import Record
from stablessm.report.runs import collect

BEGIN, END = "<!-- claims: ./dev pages -->", "<!-- end of claims -->"
_HEAD = "| | ✓ reproduced or holds, ◐ partly, ? inconclusive, ✗ not reproduced or does not hold |"
_TITLE = "# Claims\n\nWhat the papers say, what we found, and why, from the records in `results/`.\n"


def short_table(runs: list[Record]) -> str:
    """One row a paper, with the verdicts of each of its experiments."""
    papers: dict[str, list[str]] = {}
    for run in runs:
        papers.setdefault(re.split("[,;]", run.source)[0], []).append(f"`{run.id}` {_counts(run)}")
    rows = [f"| {_cell(paper)} | {' · '.join(found)} |" for paper, found in papers.items()]
    return "\n".join([_HEAD, "|---|---|", *rows])


def every_claim(runs: list[Record]) -> str:
    """One table an experiment, with reasons."""
    parts = [_TITLE]
    for run in runs:
        parts.append(f"## {run.id}: {run.title}\n\n{run.source}. {run.question} Run again: `{run.command}`.\n")
        parts.append("| claim | paper | ours | verdict | why |\n|---|---|---|---|---|")
        for claim in run.claims:
            cells = (claim.statement, claim.paper, claim.ours, f"{VERDICTS[claim.verdict]} {claim.verdict}", claim.why)
            parts.append("| " + " | ".join(map(_cell, cells)) + " |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def updated(readme: str, runs: list[Record]) -> str:
    """The README with the table between its two marks made anew."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{short_table(runs)}\n{END}{after}"


def main(root: Path = Path()) -> None:
    """Write both."""
    runs = committed(root)
    readme = root / "README.md"
    readme.write_text(updated(readme.read_text(encoding="utf-8"), runs), encoding="utf-8")
    (root / "docs" / "claims.md").write_text(every_claim(runs), encoding="utf-8")


def committed(root: Path) -> list[Record]:
    """The runs in ``results/`` at the published size, in the order of the papers."""
    return [run for run in collect([root / "results"]).runs if run.size == "paper"]


def _counts(run: Record) -> str:
    found = Counter(VERDICTS[claim.verdict] for claim in run.claims)
    return " ".join(f"{sign}{found[sign]}" for sign in dict.fromkeys(VERDICTS.values()) if found[sign])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
