"""Generate the tables of docs/state-table.md from the records of ``benchmarks/states.py``.

./dev pages        # bring docs/state-table.md up to date with benchmarks/results/states.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marked import replaced

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "state-table.md"
SIGNS = {"pass": "✓", "not supported": "–", "inconclusive": "?"}


def cell(case: dict[str, Any]) -> str:
    """Return the sign of a case, or the error in percent of a case that fails.

    >>> cell({"status": "pass", "error": 0.0}), cell({"status": "fail", "error": 0.31})
    ('✓', '**31**')
    """
    if case["status"] != "fail":
        return SIGNS[case["status"]]
    if case["error"] is None or case["error"] == "inf":
        return "**error**" if case["error"] is None else "**shape**"
    percent = 100 * case["error"]
    return f"**{percent:.0f}**" if percent >= 10 else f"**{percent:.2g}**"


def table(rows: list[dict[str, Any]], columns: list[str]) -> list[str]:
    """Return families by cases; cases that every family passes are left out and named by the caller."""
    lines = [f"| family | {' | '.join(columns)} |", f"|---|{':-:|' * len(columns)}"]
    for row in rows:
        cases = {case["name"]: case for case in row["cases"]}
        lines.append(f"| `{row['name']}` | {' | '.join(cell(cases[name]) for name in columns)} |")
    return lines


def families_part(record: dict[str, Any]) -> str:
    """Return the table of all families, and the conditions it was made under."""
    rows = [row for row in record["rows"] if row["kind"] == "family"]
    names = [case["name"] for case in rows[0]["cases"]]
    summary = record["summary"]
    about = [
        f"The table was made with transformers {summary['transformers']}: small random models in float32 on a CPU",
        f"without compiled kernels. As a control, {summary['controls']} random models with a correct state (layers of",
        f"this library, `torch.nn`, attention) were checked: {summary['alarms on controls']} fail.",
        f"Record: `benchmarks/results/states.json` ({record['date']},",
        f"`{record['command']}`, {summary['seconds']} s on one core).",
    ]
    return "\n".join(["", *table(rows, names), "", *about, ""])


def older_part(records: list[dict[str, Any]]) -> str:
    """Return the case `chunks` of some families by version of transformers."""
    found = {
        record["summary"]["transformers"]: {
            row["name"]: cell(next(case for case in row["cases"] if case["name"] == "chunks"))
            for row in record["rows"]
            if row["kind"] == "family"
        }
        for record in records
    }
    names = sorted(set.intersection(*(set(cells) for cells in found.values())))
    lines = [f"| transformers | {' | '.join(f'`{name}`' for name in names)} |", f"|---|{':-:|' * len(names)}"]
    lines += [f"| {version} | {' | '.join(cells[name] for name in names)} |" for version, cells in found.items()]
    return "\n".join(["", *lines, ""])


def updated(page: str, records: list[dict[str, Any]]) -> str:
    """Return the page with new tables; the last record is the one of the pinned version."""
    return replaced(replaced(page, "states", families_part(records[-1])), "chunks", older_part(records))


def records() -> list[dict[str, Any]]:
    """Return the records from the oldest version to the pinned one."""
    older = sorted(RECORDS.glob("states-*.json"), key=lambda path: [int(part) for part in path.stem[7:].split(".")])
    return [json.loads(path.read_text(encoding="utf-8")) for path in (*older, RECORDS / "states.json")]


def main() -> None:
    """Write the page."""
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), records()), encoding="utf-8")


if __name__ == "__main__":
    main()
