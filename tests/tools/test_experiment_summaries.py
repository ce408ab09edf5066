"""What ``stablessm list`` shows is what the code and the committed records say."""

from __future__ import annotations

from pathlib import Path

import experiment_summaries

from stablessm.experiments import listing

ROOT = Path(__file__).parents[2]


def test_the_summaries_are_not_stale() -> None:
    written = listing.SUMMARIES.read_text(encoding="utf-8")
    assert written == experiment_summaries.summaries(ROOT), "run: ./dev pages"
    assert all(sum(summary.verdicts.values()) for summary in listing.summaries().values())
