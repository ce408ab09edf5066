"""The README's table of claims is what the committed records say."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import claims_page as claims
import pytest
from report_runs import write_run

from stablessm import ArgumentError
from stablessm.experiments import catalogue
from stablessm.experiments.run import Run

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
    folder = shutil.copytree(ROOT / "results" / id / "paper", tmp_path / "paper")
    experiment = catalogue.get(id)
    config = experiment.config("paper")
    try:
        found = experiment.claims(config, Run(folder, asdict(config), progress=False))
    except ArgumentError as error:
        if "STABLESSM_DATA" not in str(error):
            raise
        pytest.skip("needs the real data")
    assert [asdict(claim) for claim in found] == json.loads(
        (folder / "record.json").read_text("utf-8", encoding="utf-8")
    )["claims"]


def test_records_are_whole_and_small():
    for run in claims.committed(ROOT):
        assert run.status == "complete"
        assert not run.faults
        assert run.claims
        for path in run.folder.iterdir():
            assert path.stat().st_size <= 2_000_000, path


def test_cells_cannot_break_a_table(tmp_path):
    write_run(tmp_path / "results" / "a", id="a", size="paper", source="one | two\nthree <b>")
    (run,) = claims.committed(tmp_path)
    assert "one \\| two three &lt;b>" in claims.short_table([run])
    text = f"before\n{claims.BEGIN}\nold\n{claims.END}\nafter\n"
    new = claims.updated(text, [run])
    assert new.startswith("before\n")
    assert new.endswith("\nafter\n")
    assert "old" not in new
    assert claims.updated(new, [run]) == new
