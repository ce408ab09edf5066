"""Jobs on a Ray cluster of three nodes, which lose workers and are lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from sweep_accidents import TESTS, driver, kill, meanwhile, repeated, running, wait_for
from sweep_experiment import EXPERIMENT, REFERENCE, differences

from stablessm import ArgumentError
from stablessm.experiments import catalog
from stablessm.experiments.frame.base import execute
from stablessm.sweeps import Processes, RayCluster, Resources, Slurm, runs, sweep

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), before or ""])  # workers inherit it
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def three_nodes(cluster):
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=1)
    return cluster


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def lose_worker(cluster, out: Path) -> str:
    name, process = next(iter(running(out).items()))
    kill(process)
    return name


def lose_node(cluster, out: Path) -> str:
    """One that is computing, but not the head, on which the cluster depends."""
    nodes = {node.all_processes["raylet"][0].process.pid: node for node in cluster.worker_nodes}
    while True:
        for name, process in running(out).items():
            if parent(process) in nodes:
                cluster.remove_node(nodes[parent(process)], allow_graceful=False)
                return name


def swept_with_an_accident(cluster, accident, tmp_path, pause: float) -> None:
    tally = tmp_path / "tally"
    changes = {"walks": "6", "steps": "20", "pause": str(pause), "tally": str(tally)}
    hit: list[str] = []

    def happen() -> None:
        wait_for(10, tally)
        hit.append(accident(cluster, tmp_path / "sweep"))

    engine = RayCluster(address=cluster.address)
    with meanwhile(happen):
        (result,) = sweep([REFERENCE], "smoke", tmp_path / "sweep", engine, changes=changes, progress=False)
    assert not result.failures
    facts = json.loads((result.folder / "sweep.json").read_text(encoding="utf-8"))["jobs"]
    assert facts[hit[0]]["attempts"] == 2
    assert sum(fact["attempts"] for fact in facts.values()) == 7
    assert repeated(tally) <= set(hit)
    alone, _ = execute(EXPERIMENT, "smoke", tmp_path / "alone", changes=changes, progress=False)
    assert differences(alone, result.folder) == []


@pytest.mark.slow  # test_engines.py has what the engine does; a cluster takes half a minute to start
def test_a_worker_that_is_killed_costs_nothing(three_nodes, tmp_path):
    swept_with_an_accident(three_nodes, lose_worker, tmp_path, 0.05)


@pytest.mark.slow
def test_a_node_that_is_lost_costs_nothing(three_nodes, tmp_path):
    swept_with_an_accident(three_nodes, lose_node, tmp_path, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("accident", [lose_worker, lose_node])
def test_st_fig1_survives(three_nodes, accident, tmp_path):
    changes = {"training.epochs": "60"}
    hit: list[str] = []

    engine = RayCluster(address=three_nodes.address)
    with meanwhile(lambda: hit.append(accident(three_nodes, tmp_path / "sweep"))):
        (result,) = sweep(["st-fig1"], "smoke", tmp_path / "sweep", engine, changes=changes, progress=False)
    assert not result.failures
    facts = json.loads((result.folder / "sweep.json").read_text(encoding="utf-8"))["jobs"]
    assert {name for name, fact in facts.items() if fact["attempts"] > 1} == set(hit)
    engine = Processes(2)
    (other,) = sweep(["st-fig1"], "smoke", tmp_path / "other", engine, changes=changes, progress=False)
    assert differences(other.folder, result.folder) == []


@pytest.mark.slow
def test_st_fig1_is_the_same_everywhere(three_nodes, tmp_path):
    engines = {
        "processes": Processes(2),
        "ray": RayCluster(address=three_nodes.address),
        "slurm": Slurm(2, executor="local"),
    }
    folders = {}
    for name, engine in engines.items():
        (result,) = sweep(["st-fig1"], "smoke", tmp_path / name, engine, progress=False)
        assert not result.failures
        folders[name] = result.folder
    for name in ("ray", "slurm"):
        assert differences(folders["processes"], folders[name]) == []
    alone, _ = execute(catalog.get("st-fig1"), "smoke", tmp_path / "alone", progress=False)
    assert differences(folders["processes"], alone) == []


@pytest.mark.slow
def test_a_sweep_whose_driver_is_killed_goes_on(three_nodes, tmp_path):
    tally = tmp_path / "tally"
    settings = {"walks": 6, "steps": 20, "pause": 0.1, "tally": tally}
    options = "--on", "ray", "--address", three_nodes.address
    first = driver(tmp_path / "sweep", *options, settings=settings)
    wait_for(30, tally)
    workers = running(tmp_path / "sweep")
    first.kill()
    first.communicate()
    second = driver(tmp_path / "sweep", *options, settings=settings)
    output = second.communicate()[0]
    assert second.returncode == 0, output
    assert repeated(tally) <= set(workers)
    (run,) = runs(tmp_path / "sweep")
    changes = {name: str(value) for name, value in settings.items()}
    alone, _ = execute(EXPERIMENT, "smoke", tmp_path / "alone", changes=changes, progress=False)
    assert differences(alone, run.folder) == []


@pytest.mark.slow
def test_without_an_address(tmp_path):
    started = driver(tmp_path, "--on", "ray", "--jobs", "2", settings={"walks": 3})  # or it joins one that runs here
    output = started.communicate()[0]
    assert started.returncode == 0, output
    assert [run.state for run in runs(tmp_path)] == ["complete"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "host:port"])
def test_an_address_without_a_cluster_is_refused(address):
    with pytest.raises(ArgumentError, match="--address: expected auto, or the address of a Ray cluster"):
        RayCluster(address=address)


def test_what_a_task_asks_for():
    asked = RayCluster(resources=Resources(2, 1, 4_000_000_000), retries=5)._options()
    assert asked == asked | {"num_cpus": 2, "num_gpus": 1, "memory": 4_000_000_000, "max_retries": 5}
    assert asked["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "2"


def test_a_node_must_have_room_for_a_job():
    class OneNode:
        @staticmethod
        def nodes():
            return [
                {"Alive": True, "Resources": {"CPU": 2.0, "memory": 1e9}},
                {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0, "memory": 1e12}},
            ]

    RayCluster(resources=Resources(2, 0, 10**9))._require_room(OneNode)
    for needs in (Resources(3), Resources(1, 1), Resources(1, 0, 2 * 10**9)):
        with pytest.raises(
            ArgumentError, match="--cpus, --gpus, --memory: expected resources that one node of the cluster has"
        ):
            RayCluster(resources=needs)._require_room(OneNode)
    with pytest.warns(UserWarning, match="no node of the cluster has 3 CPUs"):  # one may be added
        RayCluster(resources=Resources(3), address="auto")._require_room(OneNode)
