"""README.md and docs/claims/ state what the committed records say."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import claims_page as claims
import pytest
from invented_stages import record_folder
from report_runs import write_run

from stablessm.experiments import catalog
from stablessm.experiments.frame.stages import Stages
from stablessm.experiments.judge import judge

ROOT = Path(__file__).parents[2]


def test_the_readme_is_not_stale():
    runs = claims.committed(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert claims.updated(readme, runs) == readme, "run: ./dev pages"
    for path, text in claims.pages(ROOT, runs).items():
        assert path.read_text(encoding="utf-8") == text, "run: ./dev pages"


def test_every_claim_is_on_the_page_of_its_paper():
    runs = claims.committed(ROOT)
    written = [claims.paper_page(paper, runs).count('<div class="claim" ') for paper in claims.PAGES]
    assert sum(written) == sum(len(run.claims) for run in runs)
    assert 0 not in written


def test_every_experiment_has_a_record():
    assert {run.id for run in claims.committed(ROOT)} == set(catalog.IDS)


@pytest.mark.slow
@pytest.mark.parametrize("id", sorted(catalog.IDS))
def test_claims_are_what_the_code_makes_of_the_committed_stages(id, tmp_path):
    source = record_folder(id)
    folder = shutil.copytree(source, tmp_path / id / source.name)
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


def test_texts_cannot_break_the_markup(tmp_path):
    write_run(tmp_path / "results" / "a", id="a", size="paper", source="IAT, one | two\nthree <b> _x_")
    (run,) = claims.committed(tmp_path)
    assert "IAT, one \\| two three &lt;b> \\_x\\_" in claims.paper_page("IAT", [run])
    text = "before\n<!-- claims: ./dev pages -->\nformer sentence\n<!-- end of claims -->\nafter\n"
    new = claims.updated(text, [run])
    assert new.startswith("before\n")
    assert new.endswith("\nafter\n")
    assert "former sentence" not in new
    assert claims.updated(new, [run]) == new
