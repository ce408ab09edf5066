"""Every benchmark runs, at a size that takes seconds, and writes the record it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py") if not path.name.startswith("_"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_smoke_size_runs(script: str, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    command = [sys.executable, str(BENCHMARKS / script), "--smoke", "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["rows"]
    assert record["machine"]["versions"]["torch"]
    assert record["command"] == f"python benchmarks/{script} --smoke"
    assert record["complete"]


@pytest.mark.parametrize("record", sorted((BENCHMARKS / "results").glob("*.json")), ids=lambda path: path.name)
def test_committed_records_are_whole(record: Path) -> None:
    content = json.loads(record.read_text(encoding="utf-8"))
    assert {"command", "complete", "date", "machine", "summary", "rows"} <= content.keys()
