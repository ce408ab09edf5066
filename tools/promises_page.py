"""Write the tables of docs/promises.md from the records of ``benchmarks/promises.py`` and ``benchmarks/damage.py``.

./dev pages
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "promises.md"
GOOD = ("same", "refused", "reported", "edited")
BAD = ("silent", "unnamed", "traceback", "hang", "leak")


def promise_table(record: dict[str, Any]) -> list[str]:
    """Return one row per promise, and the sum."""
    rows = [f"| {row['promise']} | `{row['command']}` | {row['cases']} | {row['failures']} |" for row in record["rows"]]
    sums = record["summary"]
    head = ["| promise | command | cases | failures |", "|---|---|---:|---:|"]
    return [*head, *rows, f"| **all** | `{record['command']}` | {sums['cases']} | {sums['failures']} |"]


def damage_table(record: dict[str, Any]) -> list[str]:
    """Return one row per kind of file, and the sum."""
    kinds: dict[str, dict[str, int]] = {}
    for row in record["rows"]:
        counts = kinds.setdefault(row["kind"], dict.fromkeys((*GOOD, *BAD), 0))
        for outcome in counts:
            counts[outcome] += row[outcome]
    everything = {outcome: sum(counts[outcome] for counts in kinds.values()) for outcome in (*GOOD, *BAD)}
    lines = [f"| kind | members | {' | '.join(GOOD)} | bad |", f"|---|{'---:|' * (len(GOOD) + 2)}"]
    for kind, counts in (*kinds.items(), ("**all**", everything)):
        cells = (sum(counts.values()), *(counts[outcome] for outcome in GOOD), sum(counts[outcome] for outcome in BAD))
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} |")
    return lines


TABLES = {"promises": promise_table, "damage": damage_table}
"""By the name of the record, which is also the name of the marks on the page."""


def updated(page: str) -> str:
    """Return the page with the tables between their marks made from the records."""
    for name, table in TABLES.items():
        record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
        about = f"Record: `benchmarks/results/{name}.json` ({record['date']}, commit {record['commit'][:8]})."
        begin, end = f"<!-- {name}: ./dev pages -->", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = "\n".join([f"{before}{begin}", *table(record), "", about, f"{end}{after}"])
    return page


def main() -> None:
    """Write the page."""
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
