"""Jobs in processes of this machine, which die now and then."""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np
import pytest
from sweep_accidents import driver, kill, meanwhile, repeated, running, wait_for
from sweep_experiment import EXPERIMENT, REFERENCE, differences

from stablessm import ArgumentError
from stablessm.experiments.frame.base import execute
from stablessm.sweeps import Processes, Resources, runs, sweep
from stablessm.sweeps.engine import memory

SLOW = {"steps": "12", "pause": "0.05"}


@pytest.mark.slow  # the next test has a process that dies, test_engines.py what becomes of its job
def test_a_worker_that_is_killed_costs_nothing(tmp_path, monkeypatch):
    tally = tmp_path / "tally"
    changes = {**SLOW, "tally": str(tally)}
    killed: list[str] = []

    def accident() -> None:
        wait_for(4, tally)
        name, process = next(iter(running(tmp_path / "sweep").items()))
        kill(process)
        killed.append(name)

    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with meanwhile(accident):
        (result,) = sweep([REFERENCE], "smoke", tmp_path / "sweep", Processes(2), changes=changes, progress=False)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    facts = json.loads((result.folder / "sweep.json").read_text(encoding="utf-8"))["jobs"]
    assert {name for name, fact in facts.items() if fact["attempts"] > 1} == set(killed)
    assert repeated(tally) <= set(killed)
    alone, _ = execute(EXPERIMENT, "smoke", tmp_path / "alone", changes=changes, progress=False)
    assert differences(alone, result.folder) == []


def test_a_job_that_kills_its_worker_is_given_up(tmp_path):
    engine = Processes(1, Resources(cpus=3), retries=1)
    (result,) = sweep(["sweep_deadly:EXPERIMENT"], "smoke", tmp_path, engine, progress=False)
    assert result.failures == {"deadly/smoke/second": "its process died 2 times"}
    (status,) = runs(tmp_path)
    assert status.jobs["first"].state == "done"
    assert status.jobs["second"].attempts == 2
    assert np.load(status.folder / "threads.npz")["openmp"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_whose_driver_is_killed_goes_on(tmp_path, how):
    tally = tmp_path / "tally"
    settings = {**SLOW, "pause": "0.2", "tally": tally}  # long enough to be hit on a busy machine
    first = driver(tmp_path / "sweep", "--jobs", "2", settings=settings)
    wait_for(30, tally)
    workers = running(tmp_path / "sweep")
    first.send_signal(how)
    output = first.communicate()[0]
    assert first.returncode == (-9 if how == signal.SIGKILL else 130), output
    for process in workers.values():
        while os.path.exists(f"/proc/{process}/exe"):
            time.sleep(0.01)
    second = driver(tmp_path / "sweep", "--jobs", "2", settings=settings)
    output = second.communicate()[0]
    assert second.returncode == 0, output
    assert repeated(tally) <= set(workers)
    (run,) = runs(tmp_path / "sweep")
    alone, _ = execute(EXPERIMENT, "smoke", tmp_path / "alone", changes=dict(settings), progress=False)
    assert differences(alone, run.folder) == []


def test_wrong_resources():
    with pytest.raises(ArgumentError, match="--memory: expected --on ray or --on slurm"):
        Processes(2, Resources(memory=memory("4GB")))
    with pytest.raises(ArgumentError, match="--gpus: expected at most the"):
        list(Processes(2, Resources(gpus=1000)).run([None, None]))
    with pytest.raises(ArgumentError, match="cpus"):
        Resources(cpus=0)
    with pytest.raises(ArgumentError, match="jobs"):
        Processes(0)
    with pytest.raises(ArgumentError, match="--memory: expected a number with KB"):
        memory("lots")
