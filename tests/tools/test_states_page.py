"""The tables of docs/state-table.md show the committed records, and the records say what the page claims."""

from __future__ import annotations

import json
from typing import Any

import pytest
import states_page as states

MENDED = ("bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2")


def record(name: str) -> dict[str, Any]:
    return json.loads((states.RECORDS / name).read_text(encoding="utf-8"))


def failing(found: dict[str, Any]) -> dict[str, set[str]]:
    rows = [row for row in found["rows"] if row["kind"] == "family"]
    return {row["name"]: {case["name"] for case in row["cases"] if not case["passed"]} for row in rows}


def test_the_page_is_not_stale():
    before = states.PAGE.read_text(encoding="utf-8")
    assert states.updated(before, states.records()) == before, "run: ./dev pages"


def test_no_alarm_on_models_whose_state_is_right_and_less_than_ten_minutes():
    found = record("states.json")["summary"]
    assert found["controls"] >= 60
    assert found["alarms on controls"] == 0
    assert found["families"] >= 27
    assert found["seconds"] < 600


def test_mamba_in_chunks_is_found_and_the_repaired_families_are_right():
    found = failing(record("states.json"))
    assert all("chunks" in found[name] for name in ("mamba", "falcon_mamba"))
    assert not any("chunks" in found[name] for name in MENDED)


@pytest.mark.parametrize("path", sorted(states.RECORDS.glob("states-*.json")), ids=lambda path: path.stem)
def test_before_the_repair_they_were_wrong(path):
    found = failing(record(path.name))
    assert all("chunks" in found[name] for name in MENDED)
