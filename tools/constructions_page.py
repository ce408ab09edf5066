"""Generate the sentence on reported errors in docs/constructions.md from the record of ``benchmarks/certificates.py``.

./dev pages        # bring docs/constructions.md up to date with benchmarks/results/certificates.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "results" / "certificates.json"
PAGE = ROOT / "docs" / "constructions.md"
BEGIN, END = "<!-- certificates: ./dev pages -->", "<!-- end of certificates -->"


def sentence(record: dict[str, Any]) -> str:
    """Return how many kernels were compared, and the smallest ratio of the reported to the true error."""
    summary = record["summary"]
    requested = summary.get("requested", summary["kernels"])
    partial = f" of {requested:,}" if requested > summary["kernels"] else ""
    rest = "; the others did not finish within the time limit" if partial else ""
    return (
        f"For {summary['kernels']:,}{partial} kernels, the reported error is at least"
        f" {summary['worst_ratio_reported_over_true']:.3f} times the error of the dense\nevaluation (record:"
        f" `benchmarks/results/certificates.json`, {record['date']}, seeds from {summary['first_seed']}{rest})."
    )


def updated(page: str) -> str:
    """Return the page with a new sentence between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{sentence(json.loads(RECORD.read_text(encoding='utf-8')))}\n{END}{after}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
