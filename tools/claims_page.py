"""Generate the sentence of counts in README.md and the pages docs/claims/ from the committed records.

./dev pages        # bring README.md and docs/claims/ up to date with results/
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
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
_OWN = re.compile(r"beyond the paper|left open|not (in|tried|treated)|no statement|no number of a paper|— \(ours")
"""What the field ``paper`` of a claim says if no paper makes the statement."""
_REDUCED = re.compile(r"Reduced: (.*?)\.(?: |$)")
_NEEDED = re.compile(r"\*\*What it would take\.\*\* (.*?)(?=\n\n|\Z)", re.DOTALL)
_INDEX = """# Claims

Each experiment checks statements of a paper against the numbers of a run. This page counts the
[verdicts](../glossary.md#verdict) of the records in `results/`. A page per paper lists every claim with the
paper's value, our value, the reason, and how the run differs from the paper. [What we learned](../learned.md)
is a summary.

{sentence}

## Statements of the papers

| paper | {columns} |
|---|{rule}|
{rows}

## Statements of ours

Statements that no paper makes: controls, ablations and corrected forms.

| experiments on | {columns} |
|---|{rule}|
{own}

## Undecided

{undecided}

## By experiment

✓ reproduced or holds · ◐ partly · ? inconclusive · ✗ not reproduced or does not hold

*reduced*: smaller than in the paper; the page of the paper says by how much.

| experiment | question | size | verdicts |
|---|---|---|---|
{experiments}
"""


_OF_PAPER = """What the paper [{paper}](../papers.md#{anchor}) states, what our runs gave, and a
[verdict](../glossary.md#verdict) that a program computed. [All papers](index.md)"""
_ABOUT = {
    "beyond the papers": "Statements that go beyond the papers, checked by runs of our own experiments. A program "
    "computes each [verdict](../glossary.md#verdict). [All papers](index.md)"
}


def paper_of(run: Record) -> str:
    """Return the key of the paper that a run is about."""
    return re.split("[,;]", run.source)[0]


def is_own(run: Record, claim: Claim) -> bool:
    """Return True if no paper makes the statement."""
    if paper_of(run) == "beyond the papers" or claim.verdict in ("holds", "does not hold"):
        return True
    return _OWN.search(claim.paper) is not None


def is_reduced(run: Record) -> bool:
    """Return True if the run is smaller than the paper's: by its size, or by the README of the experiment."""
    return run.size == "reduced" or _REDUCED.search(run.deviations) is not None


def sentence(runs: list[Record]) -> str:
    """Return two sentences with the numbers of claims by verdict."""
    claims = [(run, claim) for run in runs for claim in run.claims]
    papers, own = (
        Counter(VERDICTS[claim.verdict] for run, claim in claims if is_own(run, claim) == ours)
        for ours in (False, True)
    )
    return (
        f"The records of {len(runs)} experiments check {papers.total()} statements of the papers: {papers['✓']} "
        f"reproduced, {papers['◐']} partly reproduced, {papers['✗']} not reproduced and {papers['?']} inconclusive. Of "
        f"{own.total()} statements of our own, {own['✓']} hold, {own['◐']} hold partly, {own['✗']} do not hold; "
        f"inconclusive: {own['?']}."
    )


def _rows(runs: list[Record], *, own: bool) -> str:
    """Return the rows of a table of counts, one for each paper with claims of this kind."""
    rows = []
    for paper, page in PAGES.items():
        found = Counter(
            VERDICTS[claim.verdict]
            for run in runs if paper_of(run) == paper
            for claim in run.claims if is_own(run, claim) == own
        )  # fmt: skip
        if found:
            rows.append(f"| [{paper}]({page}) | {' | '.join(str(found[sign]) for sign in COLUMNS.values())} |")
    return "\n".join(rows)


def undecided(runs: list[Record], needed: Mapping[str, str]) -> str:
    """Return the inconclusive claims of each experiment, and what it would take to decide them."""
    parts = []
    for run in _ordered(runs):
        open_claims = [_cell(claim.statement) for claim in run.claims if claim.verdict == "inconclusive"]
        if open_claims:
            link = f"[{run.id}]({PAGES[paper_of(run)]}#{run.id})"
            parts.append(f"- {link}: {'; '.join(open_claims)}. {needed.get(run.id, '')}".rstrip())
    return "\n".join(parts) or "Nothing."


def needs(root: Path) -> dict[str, str]:
    """Return what it would take to decide the claims of an experiment, from its README, by id."""
    found = {}
    for path in sorted((root / "stablessm" / "experiments").rglob("README.md")):
        text = path.read_text(encoding="utf-8")
        if match := _NEEDED.search(text):
            found[text[2:].partition(":")[0]] = "What it would take: " + " ".join(match[1].split())
    return found


def index(runs: list[Record], needed: Mapping[str, str]) -> str:
    """Return the page that counts the verdicts of every paper and experiment."""
    experiments = [
        f"| [{run.id}]({PAGES[paper_of(run)]}#{run.id}) | {_cell(run.question)} | "
        f"{'reduced' if is_reduced(run) else ''} | {_counts(run)} |"
        for run in _ordered(runs)
    ]
    return _INDEX.format(
        sentence=sentence(runs),
        columns=" | ".join(COLUMNS),
        rule="|".join("---:" for _ in COLUMNS),
        rows=_rows(runs, own=False),
        own=_rows(runs, own=True),
        undecided=undecided(runs, needed),
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
            if run.deviations:
                title = "Limits" if paper == "beyond the papers" else "Differences from the paper"
                parts.append(f"{title}: {_cell(run.deviations)}\n")
            parts += [_claim(claim) for claim in run.claims]
    return "\n".join(parts).rstrip() + "\n"


def pages(root: Path, runs: list[Record]) -> dict[Path, str]:
    """Return every generated page by its path."""
    folder = root / "docs" / "claims"
    return {folder / "index.md": index(runs, needs(root))} | {
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
    """Return the runs in ``results/``, one for each experiment, in the order of the papers."""
    return [run for run in collect([root / "results"]).runs if run.size in ("reduced", "paper", "large")]


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
