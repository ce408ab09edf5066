"""Generate the tables of docs/promises.md from the records of ``benchmarks/promises.py`` and ``benchmarks/damage.py``.

./dev pages        # bring docs/promises.md up to date with benchmarks/results/promises.json and damage.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marked import replaced

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "promises.md"
GOOD = ("same", "refused", "reported", "edited")
BAD = ("silent", "unnamed", "traceback", "hang", "leak")


def promises_table(record: dict[str, Any]) -> list[str]:
    """Return a table with one row per promise, and the sum."""
    lines = ["| promise | cases | failures | command |", "|---|---:|---:|---|"]
    lines += [f"| {r['promise']} | {r['cases']:,} | {r['failures']} | `{r['command']}` |" for r in record["rows"]]
    return [*lines, f"| **all** | {record['summary']['cases']:,} | {record['summary']['failures']} | |"]


def damage_table(record: dict[str, Any]) -> list[str]:
    """Return a table with one row per kind of file, and the sum."""
    kinds: dict[str, dict[str, int]] = {}
    for row in record["rows"]:
        counts = kinds.setdefault(row["kind"], dict.fromkeys((*GOOD, *BAD), 0))
        for outcome in counts:
            counts[outcome] += row[outcome]
    everything = {outcome: sum(counts[outcome] for counts in kinds.values()) for outcome in (*GOOD, *BAD)}
    lines = [f"| kind | cases | {' | '.join(GOOD)} | bad |", f"|---|{'---:|' * (len(GOOD) + 2)}"]
    for kind, counts in (*kinds.items(), ("**all**", everything)):
        cells = (sum(counts.values()), *(counts[outcome] for outcome in GOOD), sum(counts[outcome] for outcome in BAD))
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} |")
    return lines


TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {"promises": promises_table, "damage": damage_table}
"""Each table by the name of its record; it is written between two marks of this name."""


def updated(page: str, name: str, record: dict[str, Any]) -> str:
    """Return the page with a new table between the two marks of this name."""
    seed = f", seed {record['seed']}" if "seed" in record else ""
    about = f"Record: `benchmarks/results/{name}.json` ({record['date']}, commit {record['commit'][:8]}{seed})."
    return replaced(page, name, "\n".join(["", *TABLES[name](record), "", about, ""]))


def main() -> None:
    """Write the page."""
    page = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        if (path := RECORDS / f"{name}.json").exists():
            page = updated(page, name, json.loads(path.read_text(encoding="utf-8")))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
