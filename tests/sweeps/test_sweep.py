"""The bookkeeping of a sweep, with an engine that computes in this process."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import tqdm
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_experiment import EXPERIMENT, REFERENCE, Config, differences

from stablessm import ArgumentError, record
from stablessm import _locks as locks
from stablessm.experiments import catalog
from stablessm.experiments.frame.base import Plan, execute
from stablessm.experiments.frame.run import Run
from stablessm.sweeps import Job, runs, sweep, worker
from stablessm.sweeps.job import expand
from stablessm.sweeps.sweep import _receive
from stablessm.sweeps.worker import Outcome


@dataclass
class Here:
    """Computes backwards, and stops after a while."""

    most: int = 100
    computed: list[str] = field(default_factory=list)

    def run(self, jobs):
        assert jobs
        for job in list(reversed(jobs))[: self.most]:
            self.computed.append(job.name)
            yield job, worker.compute(job, 1)
        if self.most < len(jobs):
            raise KeyboardInterrupt


def swept(out: Path, engine=None, **options):
    return list(sweep([REFERENCE], "smoke", out, engine or Here(), progress=False, **options))


@pytest.fixture(scope="module")
def serial(tmp_path_factory) -> Path:
    return execute(EXPERIMENT, "smoke", tmp_path_factory.mktemp("serial"), progress=False)[0]


def test_a_sweep_leaves_what_a_run_leaves(serial, tmp_path):
    (result,) = swept(tmp_path)
    assert not result.cached
    assert differences(serial, result.folder) == []
    facts = json.loads((result.folder / "sweep.json").read_text(encoding="utf-8"))["jobs"]
    assert {name: fact["attempts"] for name, fact in facts.items()} == {f"walk-{i}": 1 for i in range(4)}
    assert [path.name for path in result.folder.parent.iterdir()] == ["smoke"]  # no lock is left
    (again,) = swept(tmp_path, Here(most=0))
    assert again.cached
    (fresh,) = swept(tmp_path, engine := Here(), fresh=True)
    assert len(engine.computed) == 4
    assert differences(serial, fresh.folder) == []


def test_what_a_bar_is_told(tmp_path, monkeypatch):
    told, bar = [], tqdm.tqdm
    monkeypatch.setattr(tqdm, "tqdm", lambda *args, **options: told.append(options) or bar(*args, **options))
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, Here(most=1))
    list(sweep([REFERENCE], "smoke", tmp_path, Here()))
    bars = [one for one in told if one["desc"] == "sweep"]
    assert [(one["total"], one["initial"], one["disable"]) for one in bars] == [(4, 0, True), (4, 1, None)]


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("then", ["sweep", "run"])
def test_an_interrupted_sweep_goes_on(serial, tmp_path, most, then):
    first = Here(most)
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, first)
    (status,) = runs(tmp_path)
    assert (status.state, status.count["done"], status.count["left"]) == ("interrupted", most, 4 - most)
    if then == "sweep":
        ((folder, second),) = [(result.folder, engine) for engine in [Here()] for result in swept(tmp_path, engine)]
        assert sorted(first.computed + second.computed) == [f"walk-{i}" for i in range(4)]
        assert differences(serial, folder) == []
    else:  # the notes of jobs come first then, so the lines of metrics are in another order
        folder, _ = execute(EXPERIMENT, "smoke", tmp_path, progress=False)
        lines = [sorted((one / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) for one in (serial, folder)]
        assert lines[0] == lines[1]
        assert set(differences(serial, folder)) <= {"metrics.jsonl", "stages.json"}
    assert [status.state for status in runs(tmp_path)] == ["complete"]


def test_a_run_goes_on_as_a_sweep(serial, tmp_path):
    plan = Plan.of(EXPERIMENT, "smoke", tmp_path)
    with plan.begun(progress=False) as run:
        names = list(plan.jobs())
        plan.jobs()[names[0]](run)
        partly = run.loop(names[1], 5, lambda: {"x": run[names[0]]["x"]}, lambda _: None)
        next(partly), next(partly)  # a checkpoint, of other numbers, from which a job must go on
    (result,) = swept(tmp_path)
    assert set(differences(serial, result.folder)) >= {f"{names[1]}.npz", "metrics.jsonl"}
    assert f"{names[0]}.npz" not in differences(serial, result.folder)
    assert json.loads((result.folder / "sweep.json").read_text(encoding="utf-8"))["jobs"][names[0]]["seconds"] < 1


def test_a_job_that_fails_does_not_stop_the_others(tmp_path):
    tally = tmp_path / "tally"
    changes = {"fails": "1", "tally": str(tally)}
    tally.touch()
    (result,) = swept(tmp_path, changes=changes)
    ((id, error),) = result.failures.items()
    assert id.startswith("walks/smoke-")
    assert id.endswith("/walk-1")
    assert error == "RuntimeError: lost my way"
    (status,) = runs(tmp_path)
    assert (status.state, status.count["done"], status.count["failed"]) == ("failed", 3, 1)
    assert "lost my way" in status.jobs["walk-1"].traceback
    tally.unlink()  # now it can be computed
    (result,) = swept(tmp_path, engine := Here(), changes=changes)
    assert engine.computed == ["walk-1"]
    assert not result.failures
    assert json.loads((result.folder / "sweep.json").read_text(encoding="utf-8"))["jobs"]["walk-1"]["attempts"] == 2
    assert len(tally.read_text(encoding="utf-8").splitlines()) == Config().steps


def test_a_worker_that_does_not_see_the_folder_sends_its_files(serial, tmp_path):
    class Far:
        def run(self, jobs):
            for job in jobs:
                elsewhere = Job(job.experiment, job.size, str(tmp_path / "far"), job.changes, job.name, job.sweep)
                outcome = worker.compute(elsewhere, 1)
                assert outcome.files
                yield job, outcome
            assert not (tmp_path / "far").exists()

    (result,) = swept(tmp_path / "near", Far())
    assert differences(serial, result.folder) == []


def test_two_never_compute_the_same(tmp_path):
    jobs = expand(REFERENCE, "smoke", tmp_path, ())
    plan = jobs[0].plan()
    with plan.begun(progress=False), pytest.raises(ArgumentError, match="folder: expected a folder in"):
        swept(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, Here(0))
    notes = Run(plan.folder, json.loads((plan.folder / "config.json").read_text(encoding="utf-8"))).notes("walk-2")
    with locks.job_lock(notes):
        assert runs(tmp_path)[0].state in ("running", "interrupted")
        with pytest.raises(ArgumentError, match="folder: expected no running job of a sweep in it, got walk-2"):
            execute(EXPERIMENT, "smoke", tmp_path, progress=False)
    execute(EXPERIMENT, "smoke", tmp_path, progress=False)


def test_lost_jobs_are_reported(tmp_path):
    class Losing:
        def run(self, jobs):
            for job in jobs:
                yield job, Outcome("its process died 3 times")

    (result,) = swept(tmp_path, Losing())
    assert len(result.failures) == 4
    assert not (result.folder / "record.json").exists()


def test_a_run_that_cannot_be_put_together_does_not_stop_the_others(tmp_path, monkeypatch):
    def claims(config, run):
        raise RuntimeError("no claim")

    broken = replace(EXPERIMENT, id="broken", claims=claims)
    monkeypatch.setattr(catalog, "get", lambda id: broken if id == "broken" else EXPERIMENT)
    first, second = sweep(["walks", "broken"], "smoke", tmp_path, Here(), progress=False)  # backwards
    assert first.failures == {"broken/smoke": "RuntimeError: no claim"}
    assert not second.failures
    monkeypatch.setattr(
        catalog, "get", lambda id: EXPERIMENT if id == "walks" else replace(broken, claims=lambda *_: [])
    )
    (again,) = sweep(["broken"], "smoke", tmp_path, Here(most=0), progress=False)
    assert not again.failures


def test_a_job_is_noted_as_done_after_its_files(tmp_path, monkeypatch):
    written: list[str] = []
    atomic = record.atomic
    monkeypatch.setattr(record, "atomic", lambda path: (written.append(path.name), atomic(path))[1])
    _receive(tmp_path, {"jobs/walk-0/state.json": b"{}", "walk-0.npz": b"x", "jobs/walk-0/metrics.jsonl": b""})
    assert sorted(written[:2]) == ["metrics.jsonl", "walk-0.npz"]
    assert written[2:] == ["state.json"]


def test_names_of_jobs_must_be_names_of_folders(monkeypatch, tmp_path):
    monkeypatch.setattr(catalog, "get", lambda id: EXPERIMENT)
    monkeypatch.setattr(Plan, "jobs", lambda self: {"../x": None})
    with pytest.raises(ArgumentError, match="jobs: expected names of letters"):
        expand("walks", "smoke", tmp_path, ())


@st.composite
def notes(draw):
    """What was said of a stage: some steps, perhaps its end."""
    steps = sorted(draw(st.sets(st.integers(0, 5))))
    return [{"step": step} for step in steps] + [{}] * draw(st.booleans())


@settings(max_examples=40)
@given(main=st.lists(notes(), max_size=3), jobs=st.lists(notes(), max_size=3))
def test_to_gather_again_changes_nothing(tmp_path_factory, main, jobs):
    folder = tmp_path_factory.mktemp("run")
    run = Run(folder, {}, progress=False)
    names = [str(i) for i in range(len(jobs))]
    for job, said in [(None, main), *((name, {int(name): lines}) for name, lines in zip(names, jobs, strict=True))]:
        one = Run(folder, {}, progress=False, job=job)
        for stage, lines in said.items() if job else enumerate(said):
            for line in lines:
                one.log(f"stage-{stage}", **line)
            one._note(f"stage-{stage}", 1.0, {"job": job}, "")

    def written():
        paths = [folder / name for name in ("metrics.jsonl", "stages.json")]
        return [path.read_text(encoding="utf-8") if path.exists() else "" for path in paths]

    run.gather(names)
    once = written()
    run.gather(names)
    assert written() == once
    found = [json.loads(line) for line in once[0].splitlines()]
    for i in range(max(len(main), len(jobs))):
        before, later = main[i] if i < len(main) else [], jobs[i] if i < len(jobs) else []
        first = later[0].get("step", 99) if later else 100
        expected = [line for line in before if line.get("step", 99) < first] + later
        assert [line for line in found if line["stage"] == f"stage-{i}"] == [
            {"stage": f"stage-{i}", **line} for line in expected
        ]
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("id", [id for id in catalog.IDS if catalog.get(id).jobs is not None])
def test_jobs_of_an_experiment_share_no_stage(id, tmp_path):
    plan = Plan.of(catalog.get(id), "smoke", tmp_path)
    seen: dict[str, str] = {}
    for name, compute in plan.jobs().items():
        before = set(seen)
        run = Run(plan.folder, {}, progress=False, job=name)
        compute(run)
        new = set(json.loads((run.notes(name) / "stages.json").read_text(encoding="utf-8"))["stages"])
        assert new, f"{name} computes nothing"
        assert not new & before
        seen |= dict.fromkeys(new, name)
