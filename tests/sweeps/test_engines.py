"""What engines are told and what they make of it, with stand-ins for Ray, submitit and processes."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from sweep_experiment import REFERENCE

from stablessm import ArgumentError, record
from stablessm.experiments.frame.run import JOBS
from stablessm.sweeps import Processes, RayCluster, Resources, Slurm, processes, ray_cluster, slurm, worker
from stablessm.sweeps.engine import Retrying, memory
from stablessm.sweeps.job import expand
from stablessm.sweeps.worker import Outcome


def jobs(out: Path, walks: int = 5):
    found = expand(REFERENCE, "smoke", out, (("walks", str(walks)),))
    assert len(found) == walks
    record.write_json(found[0].plan().folder / JOBS / worker.SWEEP, {"sweep": "", "jobs": []})  # as a sweep begins
    return found


class Mortal(Retrying):
    """An engine whose workers die as often as they are told, by the names of jobs."""

    deaths: dict[str, int]

    @contextmanager
    def _workers(self, placed, count):
        self.begun, self.most = Counter(), 0

        def begin(job):
            self.begun[job.name] += 1
            return object()

        def ended():
            self.most = max(self.most, len(placed))
            handle, job = next(iter(placed.items()))
            dies = self.begun[job.name] <= self.deaths.get(job.name, 0)
            return [(handle, "dead {} times, {}" if dies else Outcome(f"end of {job.name}"))]

        yield begin, ended

    __setattr__ = object.__setattr__


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize("most", [None, 1, 2])
def test_a_job_is_computed_again_as_often_as_allowed(tmp_path, retries, most):
    engine = Mortal(most, retries=retries)
    engine.deaths = {"walk-1": 1, "walk-3": 2, "walk-4": 9}
    found = {job.name: outcome.error for job, outcome in engine.run(jobs(tmp_path))}
    for name in (f"walk-{i}" for i in range(5)):
        dies = engine.deaths.get(name, 0)
        assert engine.begun[name] == min(dies, retries) + 1
        assert found[name] == (f"end of {name}" if dies <= retries else f"dead {retries + 1} times, {{}}")
    assert engine.most == (most or 5)


def test_the_defaults_of_engines_are_these(monkeypatch):
    monkeypatch.setattr(ray_cluster, "require", lambda *_: None)
    monkeypatch.setattr(slurm, "require", lambda *_: None)
    assert (Resources().cpus, Resources().gpus, Resources().memory) == (1, 0, None)
    for engine, most in ((Processes(), 1), (RayCluster(), None), (Slurm(), None)):
        assert (engine.jobs, engine.resources, engine.retries) == (most, Resources(), 2)
        for wrong in ({"jobs": 0}, {"retries": -1}):
            with pytest.raises(ArgumentError, match=f"^{next(iter(wrong))}: expected"):
                type(engine)(**wrong)
    assert (Slurm().executor, Slurm().minutes, Slurm().options) == ("slurm", 1440, {})
    assert RayCluster().address is None
    with pytest.raises(ArgumentError, match=r"^minutes: expected"):
        Slurm(minutes=0)
    assert [memory(text) for text in ("7", "3kb", "2 MB", "1.5GB", "2TB")] == [
        7,
        3000,
        2 * 10**6,
        15 * 10**8,
        2 * 10**12,
    ]


def test_the_environments_of_processes(monkeypatch):
    monkeypatch.setattr(processes, "_gpus", lambda: ["4", "5", "6", "7", "9"])
    threads = {f"{name}_NUM_THREADS": "3" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
    assert Processes(2, Resources(3))._environments(2) == [threads] * 2
    parts = [environment.pop("CUDA_VISIBLE_DEVICES") for environment in Processes(2, Resources(3, 2))._environments(2)]
    assert parts == ["4,5", "6,7"]
    (all_of_them,) = Processes(1, Resources(gpus=5))._environments(1)
    assert all_of_them["CUDA_VISIBLE_DEVICES"] == "4,5,6,7,9"
    with pytest.raises(ArgumentError, match="--gpus: expected at most the 5 there are, for 3 jobs at once, got 2"):
        Processes(3, Resources(gpus=2))._environments(3)
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert processes._gpus() == ["3", "1"]


def test_an_environment_is_given_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with worker.environment(worker.threads(2)):
        assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "2"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


class Ray:
    """Computes a task when it is waited for, and notes what it is told."""

    class RayError(Exception):
        pass

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, *, runs=True, alive=False) -> None:
        self.runs, self.alive, self.inits, self.shut, self.canceled, self.most = runs, alive, [], 0, [], 0
        self.placed = {}

    def is_initialized(self):
        return self.alive

    def init(self, **options):
        self.inits.append(options)
        if "address" in options and not self.runs:
            raise ConnectionError
        self.reported = os.environ.get("RAY_USAGE_STATS_ENABLED")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def shutdown(self):
        self.shut += 1

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 64.0, "GPU": 8.0, "memory": 1e12}}]

    def remote(self, **options):
        self.options = options
        assert options.keys() >= {"num_cpus", "num_gpus", "max_retries", "scheduling_strategy"}
        return lambda function: SimpleNamespace(remote=lambda *given: self.place(function, given))

    def place(self, function, given):
        assert function is worker.compute
        reference = object()
        self.placed[reference] = given
        return reference

    def wait(self, references, num_returns):
        assert num_returns == 1
        self.most = max(self.most, len(references))
        return references[:1], references[1:]

    def get(self, reference):
        job, cpus = self.placed[reference]
        if job.name == "walk-2":
            raise self.RayError(" out of memory ")
        return Outcome(f"{job.name} on {cpus}")

    def cancel(self, reference, force=False):
        self.canceled.append((self.placed[reference][0].name, force))


@pytest.fixture
def ray(monkeypatch):
    def use(**options) -> Ray:
        found = Ray(**options)
        monkeypatch.setattr(ray_cluster, "require", lambda package, purpose: found)
        return found

    return use


QUIET = {"log_to_driver": False, "configure_logging": False}


@pytest.mark.parametrize("most", [None, 2])
def test_tasks_of_ray(ray, tmp_path, most):
    fake, handler = ray(), signal.getsignal(signal.SIGTERM)
    engine = RayCluster(most, Resources(3, 1, 7), retries=4)
    found = {job.name: outcome.error for job, outcome in engine.run(jobs(tmp_path))}
    assert found == {f"walk-{i}": "RayError:  out of memory" if i == 2 else f"walk-{i} on 3" for i in range(5)}
    assert fake.most == (most or 5)
    assert fake.options == {
        "num_cpus": 3, "num_gpus": 1, "max_retries": 4, "memory": 7, "scheduling_strategy": "SPREAD",
        "runtime_env": {"env_vars": worker.threads(3)},
    }  # fmt: skip
    assert fake.inits == [{"address": "auto", **QUIET}]
    assert fake.shut == 1
    assert fake.canceled == []
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_cluster_that_is_started_for_the_sweep(ray, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_CONFIG_PATH", str(tmp_path / "nothing"))
    for most, room in ((2, {"num_cpus": 6}), (None, {})):
        fake = ray(runs=False)
        assert len(list(RayCluster(most, Resources(3)).run(jobs(tmp_path, 2)))) == 2
        assert fake.inits == [{"address": "auto", **QUIET}, {"include_dashboard": False, **QUIET, **room}]
        assert fake.reported == "0"
        assert "memory" not in fake.options
        assert fake.shut == 1
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


def test_a_cluster_that_is_somebody_elses(ray, tmp_path, monkeypatch):
    fake = ray(alive=True)
    assert len(list(RayCluster().run(jobs(tmp_path, 2)))) == 2
    assert (fake.inits, fake.shut) == ([], 0)
    fake = ray(runs=False)
    monkeypatch.setattr(ray_cluster, "_answers", lambda address: True)
    with pytest.raises(ArgumentError, match="--address: expected the address of a Ray cluster, got 'there:1'"):
        list(RayCluster(address="there:1").run(jobs(tmp_path, 2)))
    assert fake.inits == [{"address": "there:1", **QUIET}]


def test_an_interrupted_sweep_takes_its_tasks_back(ray, tmp_path):
    fake = ray()
    going = RayCluster(3).run(jobs(tmp_path))
    assert next(going)[0].name == "walk-0"
    going.close()
    assert sorted(fake.canceled) == [("walk-1", True), ("walk-2", True)]
    assert fake.shut == 1


def test_whether_somebody_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        assert all(map(ray_cluster._answers, (place, f"ray://{place}", "auto")))
    assert not any(map(ray_cluster._answers, (place, "nonsense", "host:port")))


class Submitit:
    """Computes a job when it is submitted, unless that is lost; notes what it is told."""

    def __init__(self, lost: dict[str, int]) -> None:
        self.lost, self.submitted, self.parameters, self.canceled, self.asked = lost, [], [], [], []

    def AutoExecutor(self, folder, cluster):  # noqa: N802
        def submit(function, job, cpus):
            assert os.environ["OMP_NUM_THREADS"] == str(cpus)
            self.submitted.append((job.name, cluster))
            if [name for name, _ in self.submitted].count(job.name) > self.lost.get(job.name, 0):
                function(job, cpus)
            return self.handle(f"id of {job.name}")

        return SimpleNamespace(update_parameters=lambda **given: self.parameters.append(given), submit=submit)

    def SlurmJob(self, folder, job_id):  # noqa: N802
        self.asked.append(job_id)
        return self.handle(job_id)

    def handle(self, job_id):
        def done(force_check=False):
            return not (force_check and job_id == "id of walk-0")  # it is in the queue

        found = SimpleNamespace(job_id=job_id, done=done, stdout=lambda: "begin\nout of {time}\n", stderr=lambda: None)
        found.cancel = lambda: self.canceled.append(job_id)
        return _Hashable(**vars(found))


class _Hashable(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def submitit(monkeypatch):
    def use(lost=None) -> Submitit:
        found, clock = Submitit(lost or {}), [0.0]

        def sleep(seconds):
            clock[0] += seconds

        monkeypatch.setattr(slurm, "require", lambda package, purpose: found)
        monkeypatch.setattr(slurm, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0]))
        found.clock = clock
        return found

    return use


@pytest.mark.parametrize("executor", ["slurm", "local"])
def test_jobs_of_slurm(submitit, tmp_path, executor):
    fake = submitit({"walk-1": 1, "walk-2": 9})
    engine = Slurm(2, Resources(2, 1, 3 * 10**9), executor=executor, minutes=7, options={"account": "me"}, retries=1)
    found = {job.name: outcome.error for job, outcome in engine.run(jobs(tmp_path, 3))}
    assert found == {"walk-0": "", "walk-1": "", "walk-2": "it ended 2 times without a result: out of {time}"}
    assert Counter(name for name, _ in fake.submitted) == {"walk-0": 1, "walk-1": 2, "walk-2": 2}
    assert {cluster for _, cluster in fake.submitted} == {executor}
    for given in fake.parameters:
        assert given.pop("name").startswith("walks-smoke-")
        assert given == {
            "timeout_min": 7, "cpus_per_task": 2, "gpus_per_node": 1, "mem_gb": 3.0, "slurm_account": "me"
        }  # fmt: skip
    waited = fake.clock[0]
    assert waited >= 3 * 30 if executor == "slurm" else waited < 1  # what another machine wrote is seen late
    assert fake.canceled == []


def test_jobs_that_are_in_the_queue_are_waited_for(submitit, tmp_path):
    fake, (first, second) = submitit(), jobs(tmp_path, 2)
    for job in (first, second):
        folder = slurm._folder(job)
        folder.mkdir(parents=True)
        content = json.dumps({"executor": "slurm", "id": f"id of {job.name}"})
        (folder / "queued.json").write_text(content, encoding="utf-8")
    worker.compute(first, 1)  # by the job in the queue
    assert [outcome.error for _, outcome in Slurm().run([first, second])] == ["", ""]
    assert fake.asked == ["id of walk-0", "id of walk-1"]
    assert fake.submitted == [("walk-1", "slurm")]
    assert fake.parameters[0] == {
        "name": second.id.replace("/", "-"), "timeout_min": 1440, "cpus_per_task": 1
    }  # fmt: skip
    again = submitit()
    assert [outcome.error for _, outcome in Slurm(executor="local").run([first])] == [""]
    assert again.asked == []


@pytest.mark.parametrize("executor", ["slurm", "local"])
def test_an_interrupted_sweep_leaves_slurms_jobs_in_the_queue(submitit, tmp_path, executor):
    fake = submitit()
    going = Slurm(2, executor=executor).run(jobs(tmp_path, 3))
    fake.handle = lambda id: _Hashable(job_id=id, done=lambda: 1 / 0, cancel=lambda: fake.canceled.append(id))
    with pytest.raises(ZeroDivisionError):
        next(going)
    assert fake.canceled == (["id of walk-0", "id of walk-1"] if executor == "local" else [])
