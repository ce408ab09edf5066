from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from stablessm import ArgumentError, record
from stablessm.experiments.frame import run as run_module
from stablessm.experiments.frame.base import Claim, Experiment, execute
from stablessm.experiments.frame.run import Run
from stablessm.training.checkpoint import Checkpoint

SLOW_SUM = """
import sys, time
from pathlib import Path
import numpy as np
from stablessm.experiments.frame import run as module
module.CHECKPOINT_SECONDS = 0.01
run = module.Run(Path(sys.argv[1]), {"seed": 1}, progress=False)
print("ready", flush=True)

def train(name):
    state = {"x": np.zeros(3), "history": np.zeros(0)}
    for step in run.loop(name, 400, lambda: state, state.update):
        noise = np.random.default_rng([1, step]).standard_normal(3)
        state["x"] = 0.9 * state["x"] + noise
        state["history"] = np.append(state["history"], state["x"][0])
        run.log(name, step=step, x=state["x"][0])
        time.sleep(0.001)
    return state

for name in ("first", "second"):
    run.stage(name, lambda: train(name))
"""


@pytest.mark.slow
def test_killed_at_random_moments_a_run_comes_to_the_same_bits(tmp_path):
    (tmp_path / "script.py").write_text(SLOW_SUM, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "script.py")]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    chance, kills = random.Random(0), 0
    for _ in range(60):
        process = subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.PIPE)
        process.stdout.readline()
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.0, 0.3) if kills < 10 else 60)
        if process.returncode is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 5
    for name in ("first", "second"):
        whole, killed = (Run(tmp_path / which, {"seed": 1})[name] for which in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        for key in whole:
            np.testing.assert_array_equal(whole[key], killed[key])
    whole, killed = ((tmp_path / which / "metrics.jsonl").read_text(encoding="utf-8") for which in ("whole", "killed"))
    assert whole == killed
    assert len(whole.splitlines()) == 2 * (400 + 1)
    left = {path.name for path in (tmp_path / "killed").iterdir()}
    assert left == {"config.json", "metrics.jsonl", "stages.json", "first.npz", "second.npz"}


@dataclass(frozen=True)
class Config:
    size: int = 3


def experiment(calls: list[str]) -> Experiment[Config]:
    def compute(config: Config, run: Run) -> None:
        run.stage("numbers", lambda: calls.append("run") or {"x": np.arange(config.size)})

    def claims(config: Config, run: Run) -> list[Claim]:
        total = int(run["numbers"]["x"].sum())
        return [Claim("the sum", "3", str(total), "reproduced" if total == 3 else "not reproduced", "Added up.")]

    configs = {"smoke": Config(), "paper": Config(10)}
    about = {"title": "a sum", "source": "nowhere", "question": "how much?", "claim": "three"}
    return Experiment(
        id="sum", configs=configs, minutes={"smoke": 0, "paper": 1}, run=compute,
        figures=lambda *_: [], claims=claims, **about,
    )  # fmt: skip


def test_a_second_run_is_a_cache_hit_unless_fresh(tmp_path):
    calls: list[str] = []
    folder, cached = execute(experiment(calls), "smoke", tmp_path)
    assert (cached, len(calls)) == (False, 1)
    assert execute(experiment(calls), "smoke", tmp_path) == (folder, True)
    assert execute(experiment(calls), "smoke", tmp_path, fresh=True) == (folder, False)
    assert len(calls) == 2
    content = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    assert content["claims"][0]["ours"] == "3"
    assert content.keys() >= {"id", "config", "versions", "hardware", "commit", "wall_time_s", "command", "arrays"}
    assert [place["stages"] for place in content["computed"]] == [1]


def test_a_run_begun_elsewhere_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("STABLESSM_COMMIT", "there")
    begun = Run(tmp_path, {}, progress=False)
    begun.stage("first", lambda: {"x": np.ones(1)})
    begun.stage("second", lambda: {"x": np.ones(2)})
    monkeypatch.setenv("STABLESSM_COMMIT", "here")
    ended = Run(tmp_path, {}, progress=False)
    ended.stage("second", lambda: pytest.fail("it was there"))
    ended.stage("third", lambda: {"x": np.ones(3)})
    facts = ended.facts()
    assert [place["commit"] for place in facts["environments"]] == ["there", "here"]
    assert [stage["environment"] for stage in facts["stages"].values()] == [0, 0, 1]
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()] == [
        {"stage": "first", "x": 1.0}, {"stage": "second"}, {"stage": "third"},
    ]  # fmt: skip


def test_what_a_kill_tore_is_no_stage_and_goes(tmp_path):
    Run(tmp_path, {}, progress=False).stage("first", lambda: {"x": np.ones(1)})
    torn = tmp_path / ".second-abc.npz"
    torn.write_bytes(b"half")
    done = Run(tmp_path, {}, progress=False).checkpoints("first")
    done.save(Checkpoint(3, {}, {"seconds": 1.0}))
    run = Run(tmp_path, {}, progress=False)
    assert run.stages() == ["first"]
    run.stage("first", lambda: pytest.fail("it was there"))
    assert not torn.exists()
    assert not done.folder.exists()


def test_time_before_a_kill_counts(tmp_path):
    run = Run(tmp_path, {}, progress=False)
    run.checkpoints("sum").save(Checkpoint(2, {"total": torch.zeros(1)}, {"seconds": 3600.0}))
    total = {"total": np.zeros(1)}
    run.stage("sum", lambda: [None for _ in run.loop("sum", 3, lambda: total, total.update)] and total)
    assert run.facts()["stages"]["sum"]["seconds"] >= 3600


def test_stages_of_an_unknown_config_are_refused(tmp_path):
    Run(tmp_path, {"size": 3}, progress=False).stage("first", lambda: {"x": np.ones(1)})
    (tmp_path / "config.json").unlink()
    with pytest.raises(ArgumentError, match=r"folder: expected a run folder, which has a config\.json"):
        Run(tmp_path, {"size": 4}, progress=False)


def test_a_stage_within_a_stage_is_timed_once(tmp_path):
    run = Run(tmp_path, {}, progress=False)

    def inner():
        time.sleep(0.2)
        return {"x": np.ones(1)}

    run.stage("outer", lambda: run.stage("inner", inner))
    facts = json.loads((tmp_path / "stages.json").read_text(encoding="utf-8"))["stages"]
    assert facts["inner"]["seconds"] >= 0.2 > facts["outer"]["seconds"]


def test_a_folder_of_an_earlier_version_may_lack_settings(tmp_path):
    Run(tmp_path, {"size": 2, "inner": {"rate": 0.1}}, progress=False).stage("x", lambda: {"x": np.ones(2)})
    newer = {"size": 2, "inner": {"rate": 0.1, "clip": 1.0}, "limit": 0.5}
    assert Run(tmp_path, newer, progress=False)["x"]["x"].tolist() == [1, 1]
    assert record.read_json(tmp_path / "config.json") == newer
    for changed in ({**newer, "size": 3}, {**newer, "inner": {"rate": 0.2, "clip": 1.0}}, {"size": 2}):
        with pytest.raises(ArgumentError, match="config"):
            Run(tmp_path, changed, progress=False)


def test_another_config_is_not_mixed_in(tmp_path):
    execute(experiment([]), "smoke", tmp_path)
    with pytest.raises(ArgumentError, match="--fresh"):
        Run(tmp_path / "sum" / "smoke", {"size": 4})
    with pytest.raises(ArgumentError, match="size"):
        execute(experiment([]), "huge", tmp_path)
    (tmp_path / "sum" / "paper").mkdir()
    with pytest.raises(ArgumentError, match="a run folder"):  # nobody's files are deleted
        execute(experiment([]), "paper", tmp_path, fresh=True)


def test_a_stage_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "CHECKPOINT_SECONDS", 0.0)
    run = Run(tmp_path, {}, progress=False)

    def fail() -> dict[str, np.ndarray]:
        for step in run.loop("broken", 5, lambda: {"x": np.ones(1)}, lambda _: None):
            if step == 3:
                raise RuntimeError("no")
        return {}

    with pytest.raises(RuntimeError):
        run.stage("broken", fail)
    assert run.stages() == []
    assert 0 < run.checkpoints("broken").last_step() <= 3
