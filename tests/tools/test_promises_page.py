"""The table of damaged files is what the committed record says, and the record has nothing bad."""

from __future__ import annotations

import json

import promises_page as promises


def test_the_page_is_not_stale():
    page = promises.PAGE.read_text(encoding="utf-8")
    assert promises.updated(page) == page, "run: ./dev pages"


def test_the_record_has_a_thousand_members_and_nothing_bad():
    record = json.loads(promises.RECORD.read_text(encoding="utf-8"))
    assert record["summary"]["members"] >= 1000
    assert [record["summary"][outcome] for outcome in promises.BAD] == [0] * len(promises.BAD)
    assert record["bad"] == []
    assert (
        sum(row[outcome] for row in record["rows"] for outcome in (*promises.GOOD, *promises.BAD))
        == (record["summary"]["members"])
    )
