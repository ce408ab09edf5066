"""The README's table of claims is what the committed records say."""

from __future__ import annotations

from pathlib import Path

from report_runs import write_run

from stablessm.report import claims

ROOT = Path(__file__).parents[2]


def test_the_readme_is_not_stale():
    runs = claims.committed(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert claims.BEGIN in readme
    assert claims.updated(readme, runs) == readme, "run: python -m stablessm.report.claims"
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == claims.every_claim(runs)


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
