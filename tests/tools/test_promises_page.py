"""The tables of docs/promises.md show the committed records, and the records keep the promises."""

from __future__ import annotations

import json
from typing import Any

import promises_page as promises
import pytest


def record(name: str) -> dict[str, Any]:
    path = promises.RECORDS / f"{name}.json"
    if name == "promises" and not path.exists():
        pytest.skip("python benchmarks/promises.py has not been run to its end")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", promises.TABLES)
def test_the_page_is_not_stale(name):
    page = promises.PAGE.read_text(encoding="utf-8")
    assert promises.updated(page, name, record(name)) == page, "run: ./dev pages"


def test_a_thousand_damaged_files_and_nothing_bad():
    found = record("damage")
    assert found["summary"]["members"] >= 1000
    assert [found["summary"][outcome] for outcome in promises.BAD] == [0] * len(promises.BAD)
    assert found["bad"] == []
    outcomes = (*promises.GOOD, *promises.BAD)
    assert sum(row[outcome] for row in found["rows"] for outcome in outcomes) == found["summary"]["members"]


def test_at_most_one_percent_of_wrong_arguments_end_in_an_internal_exception():
    found = record("fuzz")["summary"]
    assert found["crash"] == found["endless"] == 0
    assert found["internal exception"] <= 0.01 * found["cases"]


def test_every_promise_is_kept():
    found = record("promises")
    assert found["complete"]
    for row in found["rows"]:
        assert row["cases"] > 0, row
        allowed = 0.01 * row["cases"] if "fuzz.py" in row["command"] else 0
        assert row["failures"] <= allowed, row
