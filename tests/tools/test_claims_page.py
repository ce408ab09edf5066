"""The README's table of claims is what the committed records say."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import claims_page as claims
import pytest
from report_runs import write_run

from stablessm.experiments import catalogue
from stablessm.experiments.frame.stages import Stages
from stablessm.experiments.judge import judge

ROOT = Path(__file__).parents[2]


def test_the_readme_is_not_stale():
    runs = claims.committed(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert claims.BEGIN in readme
    assert claims.updated(readme, runs) == readme, "run: ./dev pages"
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == claims.every_claim(runs)


def test_every_experiment_has_a_record():
    assert {run.id for run in claims.committed(ROOT)} == set(catalogue.IDS)


@pytest.mark.slow
@pytest.mark.parametrize("id", sorted(catalogue.IDS))
def test_claims_are_what_the_code_makes_of_the_committed_stages(id, tmp_path):
    folder = shutil.copytree(ROOT / "results" / id / "paper", tmp_path / id / "paper")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert list(judge(folder)) == []
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    checked = [json.loads(files.pop("record.json"))["claims"] for files in (before, after)]
    assert checked[0] == checked[1]
    assert before == after


def test_records_are_whole_and_small():
    for run in claims.committed(ROOT):
        assert run.status == "complete"
        assert not run.faults
        assert run.claims
        assert run.figures
    tracked = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in tracked.splitlines()]
    assert len(paths) <= 300
    assert sum(path.stat().st_size for path in paths) <= 12_000_000


def test_records_say_where_each_stage_was_computed():
    for run in claims.committed(ROOT):
        record = json.loads((run.folder / "record.json").read_text(encoding="utf-8"))
        assert set(Stages(run.folder).stages()) <= set(record["stages"])
        for stage in record["stages"].values():
            place = record["computed"][stage["environment"]]
            assert place["commit"]
            assert {"machine", "gpu"} <= place["hardware"].keys()


def test_cells_cannot_break_a_table(tmp_path):
    write_run(tmp_path / "results" / "a", id="a", size="paper", source="one | two\nthree <b>")
    (run,) = claims.committed(tmp_path)
    assert "one \\| two three &lt;b>" in claims.short_table([run])
    text = f"before\n{claims.BEGIN}\nformer rows\n{claims.END}\nafter\n"
    new = claims.updated(text, [run])
    assert new.startswith("before\n")
    assert new.endswith("\nafter\n")
    assert "former rows" not in new
    assert claims.updated(new, [run]) == new
