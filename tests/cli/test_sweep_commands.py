from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sweep_experiment import REFERENCE
from typer.testing import CliRunner

from stablessm.cli import app
from stablessm.sweeps import sweep
from stablessm.sweeps.worker import compute


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_run_in_jobs_and_status(tmp_path):
    assert "complete: 0 of 0 experiment runs" in invoke("status")
    tally = tmp_path / "tally"
    tally.touch()
    given = "run", REFERENCE, "--set", "fails=2", "--set", f"tally={tally}", "--jobs", "1"
    failed = invoke(*given, code=1)
    assert "/walk-2: RuntimeError: lost my way" in failed
    assert "the same command computes the failed parts again" in failed
    told = invoke("status")
    assert "failed: RuntimeError: lost my way" in told
    (row,) = [line for line in told.splitlines() if "walks/smoke-" in line and "│" in line]
    assert [cell.strip() for cell in row.split("│")][2:-1] == ["failed", "3", "4", "3", "0", "1", "0"]
    tally.unlink()
    assert "written: runs/walks/smoke-" in invoke(*given[:-2])
    assert "complete: 1 of 1 experiment runs" in invoke("status", "--all")


def test_status_of_a_sweep_that_runs():
    class Slow:
        def run(self, jobs):
            yield jobs[0], compute(jobs[0], 1)
            told.append(invoke("status"))
            for job in jobs[1:]:
                yield job, compute(job, 1)

    told: list[str] = []
    list(sweep([REFERENCE], "smoke", Path("runs"), Slow(), progress=False))
    (row,) = [line for line in told[0].splitlines() if "walks/smoke" in line]
    assert [cell.strip() for cell in row.split("│")][2:-1] == ["running", "1", "4", "1", "0", "0", "3"]


def test_search_and_its_errors():
    given = "search", REFERENCE, "--over", "steps=int:1:6", "--objective", "walk-1/x:max"
    assert "best of 2 trials" in invoke(*given, "--trials", "2", "--out", "found")
    assert "best of 3 trials" in invoke(*given, "--trials", "3", "--out", "found")
    assert "--over: expected NAME=log" in invoke("search", "recall", "--over", "lr", code=2)
    assert "NAME: expected a task" in invoke("search", "nothing", "--over", "lr=int:1:2", code=2)
    wrong = "search", "recall", "--over", "lr=int:1:2", "--set", "task.train=16", "--out", "nothing"
    assert "--set: expected options of the task (train: expected one of" in invoke(*wrong, code=2)
    wrong = "search", "recall", "--over", "task.train=int:1:2", "--out", "nothing"
    assert "--over: expected one of task.train_examples" in invoke(*wrong, code=2)
    assert not Path("nothing").exists()
    assert "--objective: expected STAGE/ARRAY:HOW" in invoke("search", "ia-fig1", "--over", "lr=int:1:2", code=2)
    assert "a task has a metric of its own" in invoke("search", "recall", "--over", "lr=int:1:2", "--maximize", code=2)
    assert "Examples:" in invoke("search", "--help")
    assert "Examples:" in invoke("status", "--help")


@pytest.mark.parametrize(
    ("package", "extra", "command"),
    [
        ("ray", "ray", ("run", REFERENCE, "--on", "ray")),
        ("submitit", "slurm", ("run", REFERENCE, "--on", "slurm")),
        ("optuna", "search", ("search", REFERENCE, "--over", "steps=int:1:6", "--objective", "sum/x")),
    ],
)
def test_without_an_extra_commands_say_what_to_install(monkeypatch, tmp_path, package, extra, command):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    assert f"pip install 'stablessm[{extra}]'" in invoke(*command, code=2)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--on", "moon"), "--on: expected one of processes, ray, slurm"),
        (("--address", "auto"), "--address: expected --on ray, got"),
        (("--slurm", "partition=gpu"), "--slurm: expected --on slurm, got"),
        (("--executor", "local"), "--executor: expected --on slurm, got"),
        (("--jobs", "2", "--minutes", "5"), "--minutes: expected --on slurm, got"),
        (("--memory", "4GB"), "--memory: expected --on ray or --on slurm"),
        (("--jobs", "0"), "--jobs: expected a whole number, at least 1"),
        (("--on", "slurm", "--slurm", "partition"), "--slurm: expected KEY=VALUE"),
        (("--jobs", "2", "--set", "color=blue"), "--set: expected one of the settings"),
    ],
)
def test_wrong_options(tmp_path, options, said):
    assert said in invoke("run", REFERENCE, *options, code=2)
    assert not (tmp_path / "runs").exists()


def test_experiments_of_ones_own(tmp_path):
    assert "expected module:NAME, both of which exist" in invoke("run", "sweep_experiment:NOTHING", code=2)
    assert "expected module:NAME of an Experiment" in invoke("run", "sweep_experiment:REFERENCE", code=2)
    assert "written: runs/walks/smoke" in invoke("run", REFERENCE)


def test_a_module_of_the_current_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(tmp_path))])
    (tmp_path / "sweep_beside.py").write_text("from sweep_experiment import EXPERIMENT\n", encoding="utf-8")
    given = "sweep_beside:EXPERIMENT", "--over", "steps=int:1:6", "--objective", "sum/x:max", "--trials", "1"
    assert "best of 1 trials" in invoke("search", *given)
    assert sys.path[0] == str(tmp_path), "before the packages that are installed, as with python -m"
    sys.path.remove(str(tmp_path))
    assert "written: " in invoke("run", "sweep_beside:EXPERIMENT")
    assert sys.path[0] == str(tmp_path)
