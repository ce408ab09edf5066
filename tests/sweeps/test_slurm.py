"""Jobs through submitit: its local executor, and what Slurm would be told."""

from __future__ import annotations

import json

import pytest
from sweep_accidents import TESTS, driver, kill, meanwhile, repeated, running, wait_for
from sweep_experiment import EXPERIMENT, REFERENCE, differences

from stablessm import ArgumentError
from stablessm.experiments.frame.base import execute
from stablessm.sweeps import Resources, Slurm, runs, sweep
from stablessm.sweeps.job import expand

submitit = pytest.importorskip("submitit")


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


@pytest.mark.slow  # test_engines.py has what the engine does
def test_a_job_that_is_killed_is_queued_again(tmp_path):
    tally = tmp_path / "tally"
    changes = {"walks": "2", "steps": "20", "pause": "0.05", "tally": str(tally)}
    killed: list[str] = []

    def accident() -> None:
        wait_for(4, tally)
        name, process = next(iter(running(tmp_path / "sweep").items()))
        kill(process)
        killed.append(name)

    engine = Slurm(2, executor="local")
    with meanwhile(accident):
        (result,) = sweep([REFERENCE], "smoke", tmp_path / "sweep", engine, changes=changes, progress=False)
    assert not result.failures
    facts = json.loads((result.folder / "sweep.json").read_text(encoding="utf-8"))["jobs"]
    assert {name for name, fact in facts.items() if fact["attempts"] > 1} == set(killed) >= repeated(tally)
    alone, _ = execute(EXPERIMENT, "smoke", tmp_path / "alone", changes=changes, progress=False)
    assert differences(alone, result.folder) == []


@pytest.mark.slow
def test_a_sweep_whose_driver_is_killed_goes_on(tmp_path):
    tally = tmp_path / "tally"
    settings = {"steps": 20, "pause": 0.1, "tally": tally}
    options = "--on", "slurm", "--executor", "local", "--jobs", "2"
    first = driver(tmp_path / "sweep", *options, settings=settings)
    wait_for(30, tally)
    first.kill()  # its jobs live on
    first.communicate()
    second = driver(tmp_path / "sweep", *options, settings=settings)
    output = second.communicate()[0]
    assert second.returncode == 0, output
    assert repeated(tally) == set()
    (run,) = runs(tmp_path / "sweep")
    changes = {name: str(value) for name, value in settings.items()}
    alone, _ = execute(EXPERIMENT, "smoke", tmp_path / "alone", changes=changes, progress=False)
    assert differences(alone, run.folder) == []


def test_what_slurm_is_told(tmp_path):
    (job, *_) = expand(REFERENCE, "smoke", tmp_path, ())
    engine = Slurm(resources=Resources(4, 1, 16_000_000_000), minutes=90, options={"partition": "gpu"})
    from submitit.slurm.test_slurm import mocked_slurm

    with mocked_slurm():
        handle = engine._submitted(submitit, job)
        script = handle.paths.submission_file.read_text(encoding="utf-8")
        for line in (
            "cpus-per-task=4",
            "gpus-per-node=1",
            "mem=16GB",
            "time=90",
            "partition=gpu",
            "job-name=walks-smoke-walk-0",
        ):
            assert f"#SBATCH --{line}\n" in script
        found = engine._found(submitit, job)  # another driver, later: it is still in the queue
        assert found.job_id == handle.job_id
        with pytest.raises(ArgumentError, match="--on slurm: expected a Slurm cluster and options that sbatch knows"):
            Slurm(options={"color": "blue"})._submitted(submitit, job)


def test_without_a_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ArgumentError, match="--on slurm: expected a Slurm cluster"):
        list(sweep([REFERENCE], "smoke", tmp_path, Slurm(), progress=False))
    with pytest.raises(ArgumentError, match="executor: expected 'slurm' or 'local'"):
        Slurm(executor="pbs")
