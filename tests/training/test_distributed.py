from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import distributed_cases
import numpy as np
import pytest
from distributed_cases import Wide, network
from training_task import SCORED, loss_and_gradient

import stablessm
from stablessm import ArgumentError
from stablessm.training import TrainingConfig, evaluate, train
from stablessm.training.ranks import Ranks

STOP = 23  # in the middle of an epoch of 6 steps


class Launcher:
    """Starts ranks, and gives what a function returned on each of them."""

    def __init__(self, process):
        self._process = process

    def answers(self, ranks, name, **options):
        print(json.dumps([name, ranks, options]), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def __call__(self, ranks, name, **options):
        answers = self.answers(ranks, name, **options)
        assert all("returned" in answer for answer in answers), [answer.get("trace", answer) for answer in answers]
        return [answer["returned"] for answer in answers]

    def several(self, ranks, *jobs):
        """A list for each job, with what each rank returned."""
        return list(zip(*self(ranks, "several", jobs=jobs), strict=True))


@pytest.fixture(scope="module")
def launch():
    places = (distributed_cases.__file__, Path(stablessm.__file__).parent)
    environment = {"PYTHONPATH": os.pathsep.join(str(Path(place).parent) for place in places), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, distributed_cases.__file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Launcher(process)
        process.stdin.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def alone(launch, runs):
    """A run of 28 steps by one process."""
    return launch(1, "trained", folder=str(runs / "alone"))[0]


@pytest.fixture(scope="module")
def by_two(launch, runs, alone):
    """By two: a whole run of DDP, and one of FSDP2 that was stopped."""
    return launch.several(
        2,
        ("trained", {"folder": str(runs / "ddp-2")}),
        ("part_way", {"folder": str(runs / "stopped-2"), "stop": STOP, "parallel": "fsdp", "checkpoint_every": 20}),
    )


def check_same(results, alone, steps=28):
    """On every rank losses, scores and weights are those of the one process."""
    for result in results:
        assert len(result["losses"]) == steps
        np.testing.assert_allclose(result["losses"], alone["losses"], rtol=0, atol=1e-10)
        np.testing.assert_allclose(result["weights"], alone["weights"], rtol=0, atol=1e-10)
        assert result["scores"]["valid"] == pytest.approx(alone["scores"]["valid"], abs=1e-10)
        assert result["scores"]["test"] == pytest.approx(alone["scores"]["test"], abs=1e-10)


def copy(runs, name, to):
    shutil.copytree(runs / name, runs / to)
    return str(runs / to)


def test_two_ranks_are_one_process(by_two, alone, runs):
    whole, stopped = by_two
    check_same(whole, alone)
    assert stopped == (STOP, STOP)  # the signal came to one of them
    assert (
        runs / "stopped-2" / "checkpoints" / "step-000000023" / "shard-00002-model-00001-of-00001.safetensors"
    ).exists()
    assert json.loads((runs / "ddp-2" / "record.json").read_text(encoding="utf-8"))["ranks"] == 2


def test_a_checkpoint_of_two_ranks_goes_on_with_one(launch, by_two, alone, runs):
    check_same(launch(1, "trained", folder=copy(runs, "stopped-2", "2-to-1")), alone)


@pytest.mark.slow
def test_four_ranks_from_the_start_and_from_two(launch, by_two, alone, runs):
    results = launch.several(
        4,
        ("trained", {"folder": str(runs / "ddp-4")}),
        ("trained", {"folder": copy(runs, "stopped-2", "2-to-4"), "parallel": "fsdp"}),
        ("evaluated", {"sizes": [1, 7, 24]}),
    )
    for result in results[:2]:
        check_same(result, alone)
    expected = [evaluate(network(), Wide(), "valid", size) for size in (1, 7, 24)]
    for scores in results[2]:
        for got, wanted in zip(scores, expected, strict=True):
            assert got == pytest.approx(wanted, rel=1e-14)
            assert got["examples"] == 24


def test_states_that_are_carried_on(launch, runs):
    lines = ["to be or not to be", "that is the question", "whether it is nobler in the mind to suffer", "ay"]
    text = str(runs / "text.txt")
    Path(text).write_text("|".join(lines[i * i % 7 % 4] for i in range(40)), encoding="utf-8")
    folder = str(runs / "carried")
    (alone,), stopped = launch.several(
        1,
        ("carried", {"folder": str(runs / "carried-alone"), "text": text}),
        ("carried", {"folder": folder, "text": text, "stop": 9}),
    )
    assert stopped == (9,)
    assert launch(2, "carried", folder=folder, text=text, stop=8, parallel="fsdp") == [17, 17]
    assert launch(3, "carried", folder=folder, text=text, stop=7) == [24, 24, 24]  # 3, 3 and 4 rows
    check_same([distributed_cases.carried(folder, text)], alone, steps=27)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_shards_from_the_start(launch, alone, tmp_path, ranks):
    check_same(launch(ranks, "trained", folder=str(tmp_path), parallel="fsdp", select="best"), alone)


def test_a_checkpoint_of_one_goes_on_with_two_and_other_things_that_two_do(launch, by_two, alone, runs):
    assert launch(1, "part_way", folder=str(runs / "stopped-1"), stop=STOP) == [STOP]
    results = launch.several(
        2,
        ("trained", {"folder": copy(runs, "stopped-1", "1-to-2"), "parallel": "fsdp"}),
        ("trained", {"folder": copy(runs, "stopped-2", "2-to-2")}),
        ("trained", {"folder": str(runs / "odd"), "steps": 3, "accumulate": 2, "autocast": True, "parallel": "fsdp",
                     "model": {"norm": "batch", "dropout": 0.1}}),
        ("refused", {"folder": str(runs / "small"), "batch_size": 1}),
        ("diverges", {"folder": str(runs / "diverged"), "parallel": "fsdp"}),
        ("refused", {"folder": str(runs / "halved"), "own_loss": True}),
    )  # fmt: skip
    check_same(results[0], alone)
    check_same(results[1], alone)
    assert results[2][0]["weights"] == results[2][1]["weights"]
    assert set(results[3]) == {"batch_size: expected at least one sequence for each of 2 ranks, got 1"}
    assert all(told.startswith("task: expected a task that also defines count and total_loss") for told in results[5])
    (expected,) = launch(1, "diverges", folder=str(runs / "diverged-alone"))
    assert results[4] == (expected, expected)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_step_of_several_ranks_is_one_large_batch(launch, ranks):
    """Random lengths and weights, random splits over batches and ranks: the loss and gradient of one process."""
    chance, cases = random.Random(ranks), []
    for seed in range(8):
        kinds = {"kind": chance.choice(["values", "classes"]), "scored": chance.choice(SCORED)}
        cases.append(
            {"seed": seed, "batch_size": chance.randint(ranks, 6), "accumulate": chance.randint(1, 4), **kinds}
        )
    found = launch(ranks, "gradients", cases=cases)
    for i, case in enumerate(cases):
        whole = {**case, "batch_size": case["batch_size"] * case["accumulate"], "accumulate": 1}
        expected = loss_and_gradient(**whole, ranks=Ranks())
        for own in found:
            np.testing.assert_allclose(own[i], expected, rtol=1e-11, atol=1e-13, err_msg=str(case))


def test_averages_and_early_stopping_of_two_ranks(launch, runs):
    (alone,) = launch(1, "averaged", folder=str(runs / "averaged"))
    several = launch.several(
        2,
        ("averaged", {"folder": str(runs / "averaged-ddp")}),
        ("averaged", {"folder": str(runs / "averaged-fsdp"), "parallel": "fsdp"}),
        ("averaged", {"folder": str(runs / "averaged-fsdp"), "parallel": "fsdp"}),  # resumed: nothing is left to do
    )
    assert 4 < len(alone["losses"]) < 28
    for results in several:
        check_same(results, alone, steps=len(alone["losses"]))


@pytest.mark.slow
def test_every_layer_in_shards(launch):
    for name, error in launch(2, "every_layer")[0].items():
        assert error < 1e-12, name


def test_a_rank_that_fails_ends_all(launch, runs):
    answers = launch.answers(2, "fails", folder=str(runs / "failed"), rank=1)
    assert [answer["code"] for answer in answers] == [1, 1]
    assert answers[1]["error"] == "OSError: the disk is gone"


def test_a_damaged_shard_is_named(by_two, alone, runs):
    folder = Path(copy(runs, "stopped-2", "damaged"))
    shard = folder / "checkpoints" / "step-000000023" / "shard-00002-model-00001-of-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ArgumentError, match=r"resume: .*'last-good'.*step-000000023.*shard-00002"):
        distributed_cases.trained(str(folder))
    (folder / "checkpoints" / ".step-000000030").mkdir()  # as a kill leaves it
    (folder / "checkpoints" / ".step-000000030" / "shard").write_bytes(b"half")
    check_same([distributed_cases.trained(str(folder), resume="last-good")], alone)
    assert not list(folder.rglob(".*"))


def test_the_command_by_two_ranks(launch, tmp_path):
    arguments = ["train", "recall", "--model", "tiny", "--set", "mixer=real"]
    arguments += ["--steps", "4", "--batch-size", "8", "--evaluate-every", "4"]
    small = ["-o", "train_examples=64", "-o", "valid_examples=8", "-o", "test_examples=8", "--device", "cpu"]
    both = [*arguments, *small, "--parallel", "fsdp", "--out", str(tmp_path / "run")]
    assert launch(2, "command", arguments=both) == [0, 0]
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf-8"))
    assert (record["ranks"], record["config"]["parallel"]) == (2, "fsdp")
    assert (
        len((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    )  # one process wrote it


def test_a_loop_with_accelerate(launch):
    (alone,) = launch(1, "accelerated")
    for result in launch(2, "accelerated"):
        assert (alone["processes"], result["processes"]) == (1, 2)
        np.testing.assert_allclose(result["losses"], alone["losses"], rtol=0, atol=1e-9)
        np.testing.assert_allclose(result["weights"], alone["weights"], rtol=0, atol=1e-9)
    assert alone["losses"][-1] < 0.9 * alone["losses"][0]


@pytest.mark.slow
def test_the_trainer_of_hugging_face_on_two_ranks(launch, tmp_path):
    (alone,) = launch(1, "trainer", folder=str(tmp_path), batch_size=8)
    for result in launch(2, "trainer", folder=str(tmp_path), batch_size=4):
        assert (alone["processes"], result["processes"]) == (1, 2)
        np.testing.assert_allclose(result["weights"], alone["weights"], rtol=0, atol=1e-9)
    assert alone["losses"][-1] < alone["losses"][0]


def test_parts_of_a_batch_are_its_rows():
    task = Wide()
    for ranks in (1, 3, 4):
        parts = [task.batch("train", 10, seed=2, epoch=1, index=3, part=(i, ranks)) for i in range(ranks)]
        together = np.concatenate([part.inputs for part in parts])
        np.testing.assert_array_equal(together, task.batch("train", 10, seed=2, epoch=1, index=3).inputs)
        assert {len(part) for part in parts} <= {10 // ranks, 10 // ranks + 1}
    for part in ((0, 11), (3, 3), (-1, 2)):
        with pytest.raises(ArgumentError, match=r"part: expected \(i, n\)"):
            task.batch("train", 10, part=part)
    with pytest.raises(ArgumentError, match="parallel: expected 'ddp' or 'fsdp', got 'pipeline'"):
        TrainingConfig(parallel="pipeline")


def test_a_single_process_takes_no_notice(tmp_path):
    for parallel in ("ddp", "fsdp"):
        model, config = network(), TrainingConfig(steps=2, batch_size=8, device="cpu", parallel=parallel)
        train(model, Wide(), config, tmp_path / parallel, progress=False)
        assert type(model).__name__ == "SequenceRegressor"
    files = [(tmp_path / parallel / "model" / "model.safetensors").read_bytes() for parallel in ("ddp", "fsdp")]
    assert files[0] == files[1]
    assert Ranks().part == (0, 1)


@pytest.mark.slow
def test_torchrun(tmp_path):
    small = ["-o", "train_examples=64", "-o", "valid_examples=8", "-o", "test_examples=9", "--batch-size", "8"]
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]  # at a port that is free
    start = [*torchrun, "--nproc-per-node", "2", "-m", "stablessm", "train"]
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 240}
    whole = ["recall", "--model", "tiny", "--steps", "6", *small, "--out", "run"]
    done = subprocess.run([*start, *whole, "--parallel", "fsdp"], **options, check=True)
    assert done.stdout.count("6 steps in") == 1
    endless = ["recall", "--model", "tiny", "--steps", "1000000", *small, "--out", "endless"]
    with subprocess.Popen([*start, *endless], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        waited = time.monotonic() + 200
        said = tmp_path / "endless" / "metrics.jsonl"
        while not (said.exists() and said.stat().st_size) and time.monotonic() < waited:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert "the same command resumes the run" in process.communicate(timeout=60)[0]
    assert process.returncode != 0
    assert list((tmp_path / "endless" / "checkpoints").iterdir())
    bad = subprocess.run([*start, "recall", "--model", "none"], **options, check=False)
    assert bad.returncode != 0
    assert "--model: expected one of tiny" in bad.stderr
