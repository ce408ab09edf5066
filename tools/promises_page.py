"""Generate the table of damaged files in docs/promises.md from the record of ``benchmarks/damage.py``.

./dev pages        # bring docs/promises.md up to date with benchmarks/results/damage.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marked import replaced

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "results" / "damage.json"
PAGE = ROOT / "docs" / "promises.md"
GOOD = ("same", "refused", "reported", "edited")
BAD = ("silent", "unnamed", "traceback", "hang", "leak")


def table(record: dict[str, Any]) -> str:
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
    about = f"Record: `benchmarks/results/damage.json` ({record['date']}, commit {record['commit'][:8]}, "
    return "\n".join([*lines, "", f"{about}seed {record['seed']})."])


def updated(page: str) -> str:
    """Return the page with a new table between its two marks."""
    return replaced(page, "damage", f"\n{table(json.loads(RECORD.read_text(encoding='utf-8')))}\n")


def main() -> None:
    """Write the page."""
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
