from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import training_task
from safetensors.torch import load_file
from training_task import Net, Sums, stop_after

from stablessm import ArgumentError, _locks
from stablessm.training import Interrupted, TrainingConfig, train
from stablessm.training.checkpoint import Checkpoint, Checkpoints
from stablessm.training.steps import Cadence

STEPS = 30


@pytest.fixture(scope="module")
def nursery():
    command = [sys.executable, training_task.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def train_in_a_process(nursery, folder, options, *, kill_after=None):
    """How the process ended: 0, or minus the signal; killed so long after it has got further than the one before."""
    before = checkpoints(folder)[-1:]
    print(json.dumps([str(folder), options]), file=nursery.stdin, flush=True)
    child = int(nursery.stdout.readline())
    if kill_after is not None:
        deadline = time.monotonic() + 60
        while checkpoints(folder)[-1:] == before:
            assert time.monotonic() < deadline, "it makes no progress"
            time.sleep(0.001)
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return int(nursery.stdout.readline())


def last(folder):
    """Weights and moments of the last checkpoint, and the metrics but for speed."""
    tensors = load_file(checkpoints(folder)[-1])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return tensors, [{key: value for key, value in row.items() if key != "sequences_per_second"} for row in rows]


@pytest.mark.parametrize(
    ("options", "kills"),
    [
        ({"steps": STEPS}, 3),
        pytest.param({"steps": 16, "accumulate": 2, "autocast": True}, 2, marks=pytest.mark.slow),
        pytest.param({"steps": 16, "carries": True}, 2, marks=pytest.mark.slow),
    ],
    ids=["plain", "accumulate and autocast", "a state that is carried on"],
)
def test_killed_at_random_moments_it_ends_in_the_same_bits(nursery, tmp_path, options, kills):
    assert train_in_a_process(nursery, tmp_path / "whole", options) == 0
    chance = random.Random(options["steps"])
    for _ in range(kills):
        moment = chance.uniform(0, 0.05)
        assert train_in_a_process(nursery, tmp_path / "killed", options, kill_after=moment) == -signal.SIGKILL
    assert train_in_a_process(nursery, tmp_path / "killed", options) == 0
    (whole, said), (killed, said_again) = last(tmp_path / "whole"), last(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    for name in whole:
        assert torch.equal(whole[name], killed[name]), name
    assert said == said_again
    assert [row["step"] for row in said if "split" not in row][-1] == options["steps"]
    selected = [load_file(tmp_path / which / "model" / "model.safetensors") for which in ("whole", "killed")]
    assert all(torch.equal(selected[0][name], selected[1][name]) for name in selected[0])
    assert not list((tmp_path / "killed").rglob(".*"))


def run(folder, *, steps=20, resume=True, model=None, task=None, **changes):
    torch.manual_seed(0)
    options = {"batch_size": 8, "checkpoint_every": 5, "device": "cpu", "select": "last", **changes}
    model = model or Net()
    return model, train(
        model, task or Sums(), TrainingConfig(steps=steps, **options), folder, resume=resume, progress=False
    )


@pytest.fixture
def stopped(tmp_path):
    """A run that broke off after two checkpoints."""

    class Breaking(Sums):
        def batch(self, split, *args, **options):
            if options["epoch"] == 1 and options["index"] == 4:
                raise OSError("the disk is gone")
            return super().batch(split, *args, **options)

    folder = tmp_path / "stopped"
    with pytest.raises(OSError, match="the disk is gone"):
        run(folder, task=Breaking())
    assert [path.stem for path in checkpoints(folder)] == ["step-000000005", "step-000000010"]
    return folder


def checkpoints(folder):
    return Checkpoints(folder / "checkpoints", {}).paths()


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "a bit flipped":
        content[-5] ^= 1
        path.write_bytes(content)
    else:
        content[200] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "empty", "a bit flipped", "a bit of the header flipped"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used_when_asked(stopped, tmp_path, how):
    path = checkpoints(stopped)[-1]
    damage(path, how)
    with pytest.raises(ArgumentError, match=r"resume: .*'last-good'.*step-000000010.safetensors"):
        run(stopped)
    assert path.exists()
    model, _ = run(stopped, resume="last-good")
    whole, _ = run(tmp_path / "whole")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), whole.parameters(), strict=True))
    assert [path.stem for path in checkpoints(stopped)] == ["step-000000015", "step-000000020"]


def test_all_damaged(stopped):
    for path in checkpoints(stopped):
        damage(path, "truncated")
    with pytest.raises(ArgumentError, match=r"step-000000010.*step-000000005"):
        run(stopped, resume="last-good")
    _, result = run(stopped, resume=False)
    assert result.steps == 20


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"lr": 0.5}, r"config.lr = 0.004\) or extend=True, got config.lr = 0.5"),
        ({"task": Sums(steps=13)}, r"task.steps = 12\), got task.steps = 13"),
        ({"model": Net(map="exp")}, r"model.modules.layer = .*map=best.*map=exp"),
        ({"model": torch.nn.Linear(1, 1)}, r"model.class = \"Net\".*got model.class = \"Linear\""),
        ({"seed": 1, "clip": None}, r"config.clip = 1.0, config.seed = 0\), got config.clip = null, config.seed = 1"),
    ],
)
def test_other_settings_are_refused(stopped, changes, told):
    with pytest.raises(ArgumentError, match=told):
        run(stopped, **changes)


def test_scores_that_are_no_numbers(tmp_path):
    class Broken(Sums):
        def score(self, output, batch):
            total, count = super().score(output, batch)
            return total * torch.nan, count

    options = {"task": Broken(), "evaluate_every": 2, "checkpoint_every": 3, "select": "best"}
    with pytest.raises(Interrupted), stop_after(7):
        run(tmp_path, **options)
    _, result = run(tmp_path, **options)
    assert result.best is None
    assert math.isnan(result.last["mse"])
    assert result.steps == 20


@pytest.mark.parametrize("select", ["best", "last"])
def test_interrupted_anywhere_it_ends_as_a_whole_run(tmp_path, select):
    """The best, the last and the selected weights and scores; the best are neither the first nor the last."""
    options = {"select": select, "lr": 0.3, "evaluate_every": 3, "log_every": 4, "steps": 24}
    model, whole = run(tmp_path / "whole", **options)
    assert 3 < whole.best["step"] < whole.last["step"] == 24
    for step in (whole.best["step"] - 1, whole.best["step"], whole.best["step"] + 1, 23):
        folder = tmp_path / str(step)
        with pytest.raises(Interrupted), stop_after(step):
            run(folder, **options)
        again, result = run(folder, **options)
        assert (result.best, result.last, result.scores) == (whole.best, whole.last, whole.scores)
        assert result.scores["valid"] == (whole.best if select == "best" else whole.last)
        assert result.losses.tolist() == whole.losses.tolist()
        kept, expected = (load_file(path / "model" / "model.safetensors") for path in (folder, tmp_path / "whole"))
        for name, tensor in model.state_dict().items():
            assert torch.equal(again.state_dict()[name], tensor)
            assert torch.equal(kept[name], tensor)
            assert torch.equal(expected[name], tensor)


def test_a_checkpoint_goes_with_the_best_weights(tmp_path):
    """Otherwise the weights kept could be better than the best score that a resumed run knows of."""

    class Breaking(Sums):
        def batch(self, split, *args, **options):
            if split == "train" and options["index"] == 6:
                raise OSError("the disk is gone")
            return super().batch(split, *args, **options)

    with pytest.raises(OSError, match="the disk is gone"):
        run(tmp_path, task=Breaking(), select="best", evaluate_every=2, checkpoint_every=None, lr=1e-3)
    assert [path.stem for path in checkpoints(tmp_path)] == ["step-000000004", "step-000000006"]


@pytest.mark.parametrize("moment", range(1, 4))
def test_interrupted_between_the_best_weights_and_their_checkpoint_it_ends_as_a_whole_run(
    tmp_path, monkeypatch, moment
):
    options = {"select": "best", "lr": 0.3, "evaluate_every": 3, "checkpoint_every": 4, "steps": 24}
    _, whole = run(tmp_path / "whole", **options)
    write, due = Checkpoints.save, []

    def full(self, checkpoint, **kind):
        if checkpoint.step % 3 == 0:  # weights with the best score have just been written
            due.append(checkpoint.step)
            if len(due) == moment:
                raise OSError("the disk is full")
        return write(self, checkpoint, **kind)

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(OSError, match="the disk is full"):
        run(tmp_path / "broken", **options)
    _, result = run(tmp_path / "broken", **options)
    assert (result.best, result.last, result.scores) == (whole.best, whole.last, whole.scores)
    kept, expected = (load_file(tmp_path / which / "model" / "model.safetensors") for which in ("broken", "whole"))
    assert all(torch.equal(kept[name], expected[name]) for name in expected)


def test_when_a_checkpoint_is_due():
    assert [step for step in range(1, 10) if Cadence(steps=3).due(step)] == [3, 6, 9]
    cadence = Cadence(seconds=60.0)
    assert not cadence.due(1)
    cadence.last -= 100
    assert cadence.due(1)
    cadence.cost = 4.0  # twenty times that are 80 seconds
    assert cadence.due(1)
    cadence.cost = 10.0
    assert not cadence.due(1)


def test_where_and_how_often_may_change(stopped):
    _, result = run(stopped, checkpoint_every=3, device="auto")
    assert result.steps == 20


def test_a_finished_run_is_not_trained_again(tmp_path):
    first, result = run(tmp_path)
    again, same = run(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert same.scores == result.scores
    assert (
        len((tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == len(same.losses) + 3
    )  # an epoch is 8 steps


def test_a_torn_line_and_torn_files_go(stopped):
    with (stopped / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 3, "lo')
    (stopped / "checkpoints" / ".step-000000011-abc.safetensors").write_bytes(b"half")
    run(stopped)
    assert [json.loads(line) for line in (stopped / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert not list(stopped.rglob(".*"))


def test_tensors_of_every_kind_come_back(tmp_path):
    shared = torch.randn(3)
    tensors = {
        "bf16": torch.randn(2, 3).bfloat16(), "empty": torch.zeros(0), "number": torch.tensor(3.5), "a": shared,
        "tied": shared, "strided": torch.randn(4, 4).t(), "mask": torch.tensor([True, False]), "long": torch.arange(3),
    }  # fmt: skip
    Checkpoints(tmp_path, {}).save(Checkpoint(3, tensors, {"best": None, "x": 0.1}))
    found = Checkpoints(tmp_path, {}).load()
    assert (found.step, found.facts) == (3, {"best": None, "x": 0.1})
    assert found.tensors.keys() == tensors.keys()
    assert all(torch.equal(found.tensors[name], tensors[name]) for name in tensors)


def test_once_all_shards_are_written_only_rank_0_looks_into_their_folder(tmp_path, monkeypatch):
    """Rank 0 renames the folder as soon as it has all digests."""

    def gather(digest):
        monkeypatch.setattr("pathlib.Path.glob", None)
        return digest

    (tmp_path / ".step-000000003").mkdir()
    second = SimpleNamespace(rank=1, first=lambda work: None, gather=gather)
    Checkpoints(tmp_path, {}, second).save(Checkpoint(3, {"a": torch.ones(2)}, {}), sharded=True)


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path):
    """A job that was queued twice: both would write the same checkpoints and metrics."""
    with _locks.alone(tmp_path / "run"), pytest.raises(ArgumentError, match="expected a folder in which no other"):
        train(Net(), Sums(), TrainingConfig(steps=1, device="cpu"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    train(Net(), Sums(), TrainingConfig(steps=1, device="cpu"), tmp_path / "run", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
