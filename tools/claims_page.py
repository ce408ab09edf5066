"""Generate the sentence of counts in README.md and the pages docs/claims/ from the committed records.

./dev pages        # bring README.md and docs/claims/ up to date with results/
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from marked import replaced

from stablessm.report.claim import VERDICTS, Claim
from stablessm.report.folder import Record
from stablessm.report.runs import collect

PAGES = {
    "IAT": "iat.md", "SSM-UA": "ssm-ua.md", "LRU-UA": "lru-ua.md", "StableSSM": "stablessm.md",
    "beyond the papers": "beyond.md",
}  # fmt: skip
"""The page of each paper."""
COLUMNS = {
    "reproduced or holds": "✓", "partly": "◐", "inconclusive": "?", "not reproduced or does not hold": "✗",
}  # fmt: skip
"""What each sign of a verdict means."""
_INDEX = """# Claims

Each experiment checks statements of a paper against the numbers of a run. This page counts the
[verdicts](../glossary.md#verdict) of the records in `results/`, all at the published [size](../glossary.md#size). A
page per paper lists every claim with the paper's value, our value and the reason.

{sentence}

| paper | {columns} |
|---|{rule}|
{rows}

## By experiment

✓ reproduced or holds · ◐ partly · ? inconclusive · ✗ not reproduced or does not hold

| experiment | question | verdicts |
|---|---|---|
{experiments}
"""


_OF_PAPER = """What the paper [{paper}](../papers.md#{anchor}) states, what our runs at the published size gave, and a
[verdict](../glossary.md#verdict) that a program computed. [All papers](index.md)"""
_ABOUT = {
    "beyond the papers": "Statements that go beyond the papers, checked by runs of our own experiments. A program "
    "computes each [verdict](../glossary.md#verdict). [All papers](index.md)"
}


def paper_of(run: Record) -> str:
    """Return the key of the paper that a run is about."""
    return re.split("[,;]", run.source)[0]


def sentence(runs: list[Record]) -> str:
    """Return one sentence with the number of claims by verdict."""
    claims = [claim for run in runs for claim in run.claims]
    found = Counter(VERDICTS[claim.verdict] for claim in claims)
    return (
        f"The records of {len(runs)} experiments check {len(claims)} claims at the published sizes: {found['✓']} are "
        f"reproduced (or, for our own statements, hold), {found['◐']} are partly reproduced, {found['?']} are "
        f"inconclusive and {found['✗']} are not reproduced."
    )


def index(runs: list[Record]) -> str:
    """Return the page that counts the verdicts of every paper and experiment."""
    rows = []
    for paper, page in PAGES.items():
        own = [run for run in runs if paper_of(run) == paper]
        found = Counter(VERDICTS[claim.verdict] for run in own for claim in run.claims)
        rows.append(f"| [{paper}]({page}) | {' | '.join(str(found[sign]) for sign in COLUMNS.values())} |")
    experiments = [
        f"| [{run.id}]({PAGES[paper_of(run)]}#{run.id}) | {_cell(run.question)} | {_counts(run)} |"
        for run in _ordered(runs)
    ]
    return _INDEX.format(
        sentence=sentence(runs),
        columns=" | ".join(COLUMNS),
        rule="|".join("---:" for _ in COLUMNS),
        rows="\n".join(rows),
        experiments="\n".join(experiments),
    )


def paper_page(paper: str, runs: list[Record]) -> str:
    """Return the page with every claim of one paper."""
    parts = [
        f"# Claims: {paper}\n",
        f"{_ABOUT.get(paper, _OF_PAPER.format(paper=paper, anchor=paper.lower()))}\n",
        '<div class="claim-filter" role="group" aria-label="Show claims by verdict"></div>\n',
    ]
    for run in runs:
        if paper_of(run) == paper:
            parts.append(f"## {run.id}\n\n**{_cell(run.title)}** ({_cell(run.source)}). {_cell(run.question)}\n")
            parts.append(f"To run it again: `{run.command}`\n")
            parts += [_claim(claim) for claim in run.claims]
    return "\n".join(parts).rstrip() + "\n"


def pages(root: Path, runs: list[Record]) -> dict[Path, str]:
    """Return every generated page by its path."""
    folder = root / "docs" / "claims"
    return {folder / "index.md": index(runs)} | {
        folder / page: paper_page(paper, runs) for paper, page in PAGES.items()
    }


def updated(readme: str, runs: list[Record]) -> str:
    """Return the README with a new sentence between its two marks."""
    return replaced(readme, "claims", f"\n{sentence(runs)}\n")


def main(root: Path = Path()) -> None:
    """Write the README and the pages."""
    runs = committed(root)
    readme = root / "README.md"
    readme.write_text(updated(readme.read_text(encoding="utf-8"), runs), encoding="utf-8")
    for path, text in pages(root, runs).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def committed(root: Path) -> list[Record]:
    """Return the runs in ``results/`` at the published size, in the order of the papers."""
    return [run for run in collect([root / "results"]).runs if run.size == "paper"]


def _ordered(runs: list[Record]) -> list[Record]:
    return [run for paper in PAGES for run in runs if paper_of(run) == paper]


def _claim(claim: Claim) -> str:
    lines = [
        f'<div class="claim" data-verdict="{claim.verdict}" markdown>\n',
        f"**{VERDICTS[claim.verdict]} {claim.verdict}: {_cell(claim.statement)}**\n",
    ]
    named = {"Paper": claim.paper, "Ours": claim.ours, "Why": claim.why}
    lines += [f"- {name}: {_cell(text)}" for name, text in named.items() if text]
    return "\n".join([*lines, "\n</div>\n"])


def _counts(run: Record) -> str:
    found = Counter(VERDICTS[claim.verdict] for claim in run.claims)
    return " ".join(f"{sign} {found[sign]}" for sign in COLUMNS.values() if found[sign])


def _cell(text: str) -> str:
    """Return text on one line that neither a table nor a paragraph takes for markup."""
    return re.sub(r"([|*_`])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")


if __name__ == "__main__":
    main()
