"""The numbers in docs/constructions.md are those of the committed records."""

from __future__ import annotations

import json
import math

import constructions_page as constructions


def test_the_page_is_not_stale() -> None:
    page = constructions.PAGE.read_text(encoding="utf-8")
    assert constructions.BEGIN in page
    assert constructions.updated(page) == page, "run: ./dev pages"


def test_every_reported_error_of_the_record_holds() -> None:
    summary = json.loads(constructions.RECORD.read_text(encoding="utf-8"))["summary"]
    assert summary["kernels"] >= 1800
    assert summary["broken"] == []
    assert summary["worst_ratio_reported_over_true"] >= 0.95


def test_the_comparison_with_other_software_is_that_of_the_record() -> None:
    page = constructions.PAGE.read_text(encoding="utf-8")
    record = json.loads((constructions.RECORD.parent / "exponential-sum.json").read_text(encoding="utf-8"))
    largest = record["summary"]["largest_ratio_to_best_peer"]
    assert largest <= 1.001  # at least as good at equal order in every row
    above = math.ceil(largest * 1e5) / 1e5
    sentence = f"In all {len(record['rows'])} rows our error is at most {above:.5f} times the error of"
    assert sentence in " ".join(page.split())


def test_an_unfinished_record_says_so() -> None:
    summary = {"kernels": 1990, "requested": 2000, "first_seed": 7}
    text = constructions.sentence({"summary": {**summary, "worst_ratio_reported_over_true": 0.9}, "date": "2026-11-18"})
    assert "1,990 of 2,000 kernels, the" in text
    assert "others did not finish within the time limit" in text
