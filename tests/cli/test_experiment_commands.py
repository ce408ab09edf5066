from __future__ import annotations

from typer.testing import CliRunner

from stablessm.cli import app
from stablessm.cli.run import _all
from stablessm.experiments import listing


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


def test_run_list_and_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "make one" in invoke("report", code=2)
    assert not (tmp_path / "report.html").exists()
    first = invoke("run", "ia-fig1")
    assert "exponential memory has a stable approximation" in first
    assert "too small to judge" in first
    assert "stablessm run ia-fig1 --size paper" in first
    assert "from an earlier run" in invoke("run", "ia-fig1")
    assert "runs: 1" in invoke("report", "--out", "page.html")
    assert "Linear memories under perturbation" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_unknown_ids_and_sizes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "ID: expected an id that stablessm list shows" in invoke("run", "ia-fig99", code=2)
    assert "--size: expected one of smoke, reduced, paper, large" in invoke("run", "ia-fig1", "--size", "huge", code=2)
    assert not (tmp_path / "runs").exists()
    assert "Examples:" in invoke("run", "--help")


def test_all_experiments_of_a_size():
    found = {size: _all(size) for size in ("smoke", "paper", "reduced", "large", "huge")}
    assert found["smoke"] == found["huge"] == list(listing.IDS)  # a size that no experiment has is refused later
    assert "ext-nonlinear" in found["reduced"]
    assert not {"ext-nonlinear", "ext-approximation"} & set(found["paper"])
    assert {"st-table3", "ext-nonlinear"} <= set(found["large"]) < set(listing.IDS)


def test_what_is_refused_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "samples: expected a whole number" in invoke("run", "ia-fig1", "--set", "samples=0", code=2)
    assert "--set maps: expected direct" in invoke("run", "ia-fig1", "--set", "maps=exp", code=2)
    assert not list((tmp_path / "runs" / "ia-fig1").iterdir())
    (tmp_path / "file").touch()
    assert "a file is in the way" in invoke("run", "ia-fig1", "--out", "file", code=2)


def test_a_run_folder_that_was_damaged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("run", "ia-fig1")
    folder = tmp_path / "runs" / "ia-fig1" / "smoke"
    (folder / "record.json").unlink()
    stage = next(folder.glob("*.npz"))
    for left in (stage.read_bytes()[:100], b"\0" * 500):
        stage.write_bytes(left)
        assert f"{stage.name}: expected the file that was written" in invoke("run", "ia-fig1", code=2)
    (folder / "config.json").write_text("{", encoding="utf-8")
    assert "config.json: expected the settings of a run, or --fresh" in invoke("run", "ia-fig1", code=2)


def test_a_package_that_cannot_be_imported_does_not_hide_the_list(tmp_path, monkeypatch):
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text("[stablessm.experiments]\ngone = no_such_module:X\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    lines = invoke("list").splitlines()
    assert any("ia-fig1" in line for line in lines)
    assert any("gone" in line and "cannot be imported" in line for line in lines)
