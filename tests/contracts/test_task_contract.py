"""What every task of the table must do; a new task joins by a row in ``task_data.options``."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import task_data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stablessm import ArgumentError, tasks
from stablessm.record import plain
from stablessm.tasks import SPLITS, Batch, Task, forecasting
from stablessm.tasks.synthetic import SyntheticTask

FOLDER: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def _data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("data")
    task_data.fill(folder)
    FOLDER[:] = [folder]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STABLESSM_DATA", str(folder))
        patch.setattr(forecasting, "read", functools.cache(forecasting.read))  # 14,400 lines
        yield


@pytest.fixture(scope="module", params=task_data.CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def task(case: str) -> Task:
    return task_data.get(case, FOLDER[0])


def same(a: Batch, b: Batch) -> bool:
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(Batch)]
    return all((x is None and y is None) or torch.equal(x, y) for x, y in pairs)


def rows(batch: Batch) -> list[str]:
    """Each example as text, without its padding."""
    found = []
    for i, x in enumerate(batch.inputs):
        end = None if batch.lengths is None else int(batch.lengths[i])
        y = batch.targets[i]
        found.append(str((x[:end].tolist(), y.tolist() if y.dim() == 0 else y[:end].tolist())))
    return found


def epoch(task: Task, size: int, **place: int) -> list[str]:
    batches = (task.batch("train", size, index=i, **place) for i in range(task.steps("train", size)))
    return [row for batch in batches for row in rows(batch)]


def whole(task: Task, split: str = "test") -> Batch:
    return task.batch(split, max(task.sizes[split], 1))


def random_output(task: Task, batch: Batch) -> Tensor:
    steps = batch.inputs.shape[1:2] if task.outputs.per_step else ()
    return torch.randn(len(batch), *steps, task.outputs.size, generator=torch.Generator().manual_seed(0))


def oracle(task: Task, batch: Batch, sure: float) -> Tensor:
    if task.outputs.kind == "values":
        return batch.targets + (1 - sure) * random_output(task, batch)
    return 20 * sure * torch.nn.functional.one_hot(batch.targets, task.outputs.size).float()


def constants(task: Task, batch: Batch, value: Tensor) -> float:
    total, count = task.score(value.expand_as(random_output(task, batch)), batch)
    return (total / count).item()


def test_every_task_has_a_case() -> None:
    assert {case.split(":")[0] for case in task_data.CASES} == set(tasks.NAMES)


def test_batches_are_what_the_task_declares(task: Task) -> None:
    for split in SPLITS:
        if not task.sizes[split]:
            continue
        batch = task.batch(split, min(5, task.sizes[split]))
        size, steps = batch.inputs.shape[:2]
        assert steps <= task.inputs.length
        if task.inputs.kind == "tokens":
            assert batch.inputs.dtype == torch.int64
            assert batch.inputs.dim() == 2
            assert 0 <= batch.inputs.min() <= batch.inputs.max() < task.inputs.size
        else:
            assert batch.inputs.is_floating_point()
            assert batch.inputs.shape[2] == task.inputs.size
            assert batch.inputs.isfinite().all()
        places = (size, steps) if task.outputs.per_step else (size,)
        if task.outputs.kind == "classes":
            assert batch.targets.dtype == torch.int64
            assert batch.targets.shape == places
            assert 0 <= batch.targets.min() <= batch.targets.max() < task.outputs.size
        else:
            assert batch.targets.shape == (*places, task.outputs.size)
            assert batch.targets.is_floating_point()
        if batch.lengths is not None:
            assert batch.lengths.dtype == torch.int64
            assert 1 <= batch.lengths.min() <= batch.lengths.max() == steps
        if batch.reset is not None:
            assert batch.reset.dtype == torch.bool
            assert batch.reset.shape == (size, steps)
        if batch.weights is not None:
            assert task.outputs.per_step
            assert batch.weights.shape == places
            assert batch.weights.sum() > 0
    assert len(task.outputs.names) in (0, task.outputs.size)


def test_the_longest_sequence_is_as_long_as_declared(task: Task) -> None:
    assert max(whole(task, split).inputs.shape[1] for split in SPLITS if task.sizes[split]) == task.inputs.length


def test_a_batch_depends_on_its_place_alone(case: str, task: Task) -> None:
    again = task_data.get(case, FOLDER[0])
    for split in SPLITS:
        for index in reversed(range(min(task.steps(split, 4), 3))):  # in another order
            place = {"seed": 3, "epoch": 2, "index": index}
            torch.manual_seed(index)
            assert same(task.batch(split, 4, **place), again.batch(split, 4, **place))
            if split != "train":
                assert same(task.batch(split, 4, **place), again.batch(split, 4, index=index))


def test_training_goes_on_from_any_batch(case: str, task: Task) -> None:
    last = task.steps("train", 4) - 1
    for index in range(min(last, 5)):
        task.batch("train", 4, seed=1, epoch=1, index=index)
    resumed = task_data.get(case, FOLDER[0])
    assert same(
        task.batch("train", 4, seed=1, epoch=1, index=last), resumed.batch("train", 4, seed=1, epoch=1, index=last)
    )


def test_an_epoch_has_every_example_once(case: str, task: Task) -> None:
    if task.sizes["train"] > 1000:
        pytest.skip("the order is tested below")
    if task.carries:
        pytest.skip("its rows are tested in tests/tasks/test_carried_text.py")
    first = epoch(task, 1, seed=0, epoch=0)
    others = [epoch(task, 1, seed=1, epoch=0), epoch(task, 1, seed=0, epoch=1)]
    assert len(first) == task.sizes["train"]
    for other in others:
        assert other != first
        assert (sorted(other) == sorted(first)) == (case != "recall:fresh")
    kept = epoch(task, 7, seed=0, epoch=0)
    assert kept == first[: task.sizes["train"] // 7 * 7], "a short last batch is dropped"


def test_parts_of_a_batch_are_its_rows_and_their_losses_add_up(task: Task) -> None:
    size = min(7, task.sizes["train"])
    batch = task.batch("train", size, seed=2, epoch=1)
    output, first = random_output(task, batch).double(), 0
    total = torch.zeros(2, dtype=torch.float64)
    found = []
    for i in range(3):
        part = task.batch("train", size, seed=2, epoch=1, part=(i, 3))
        mine = output[first : first + len(part)]
        total += torch.stack(task.total_loss(mine[:, : part.inputs.shape[1]] if task.outputs.per_step else mine, part))
        found, first = found + rows(part), first + len(part)
    assert found == rows(batch)
    torch.testing.assert_close(total, torch.stack(task.total_loss(output, batch)))


def test_valid_and_test_keep_the_short_last_batch(task: Task) -> None:
    for split in ("valid", "test"):
        if 0 < task.sizes[split] < 1000:
            batches = [task.batch(split, 3, index=i) for i in range(task.steps(split, 3))]
            assert [row for batch in batches for row in rows(batch)] == rows(whole(task, split))


def test_splits_share_no_example(task: Task) -> None:
    if task.inputs.kind == "values" and task.sizes["test"] < 1000:
        found = [set(rows(whole(task, split))) for split in SPLITS if task.sizes[split]]
        assert len(set.union(*found)) == sum(map(len, found))


@pytest.mark.parametrize("split", ["test", "valid"])
def test_scores_add_up_over_any_batches(task: Task, split: str) -> None:
    if not 0 < task.sizes[split] < 1000:
        pytest.skip("many examples, the same code")
    batch = whole(task, split)
    output = random_output(task, batch)
    expected = task.score(output, batch)

    @settings(max_examples=8)
    @given(size=st.integers(1, task.sizes[split]))
    def check(size: int) -> None:
        parts = []
        for index in range(task.steps(split, size)):
            part = task.batch(split, size, index=index)
            mine = output[index * size : index * size + len(part)]
            parts.append(task.score(mine[:, : part.inputs.shape[1]] if task.outputs.per_step else mine, part))
        for total, one in zip(expected, zip(*parts, strict=True), strict=True):
            torch.testing.assert_close(torch.stack(one).sum(), total, rtol=1e-12, atol=0)

    check()


def test_an_oracle_gets_the_best_loss_and_score(task: Task) -> None:
    batch = task.batch("train", 8)
    losses = [task.loss(oracle(task, batch, sure), batch).item() for sure in (0.0, 0.5, 1.0)]
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] == pytest.approx(0, abs=1e-6)
    total, count = task.score(oracle(task, batch, 1.0), batch)
    near = 1e-6 if task.metric == "nats" else 1e-9  # logits of 20 are not quite sure
    assert (total / count).item() == pytest.approx(1.0 if task.higher_is_better else 0.0, abs=near)


def test_the_loss_has_a_gradient_where_it_counts_and_nowhere_else(task: Task) -> None:
    batch = task.batch("train", 8)
    output = random_output(task, batch).requires_grad_()
    task.loss(output, batch).backward()
    assert output.grad is not None
    reached = output.grad.abs().sum(-1) > 0
    if not task.outputs.per_step:
        assert reached.all()
    elif batch.weights is not None:
        assert torch.equal(reached, batch.weights > 0)
    elif batch.lengths is not None:
        assert torch.equal(reached, torch.arange(output.shape[1]) < batch.lengths[:, None])
    else:
        assert reached.all()


def test_chance_is_what_the_best_constant_gets(case: str, task: Task) -> None:
    batch = whole(task)
    if task.outputs.kind == "values":
        steps = torch.ones(batch.targets.shape[:-1], dtype=torch.bool)
        if task.outputs.per_step and batch.lengths is not None:
            steps = torch.arange(batch.inputs.shape[1]) < batch.lengths[:, None]
        counted = batch.targets[steps].double()
        best = counted.mean(0) if task.metric == "mse" else counted.median(0).values
        assert constants(task, batch, best) == pytest.approx(task.chance, rel=1e-5)
        for shift in (0.1, -0.1):
            assert constants(task, batch, best + shift) > task.chance
        return
    if task.metric == "nats":
        counted = batch.targets if batch.weights is None else batch.targets[batch.weights > 0]
        frequencies = torch.bincount(counted.flatten(), minlength=task.outputs.size) / counted.numel()
        assert constants(task, batch, frequencies.log().clamp(min=-50)) == pytest.approx(task.chance, rel=1e-5)
        for other in torch.eye(task.outputs.size):
            assert constants(task, batch, (frequencies + 0.01 * other).log().clamp(min=-50)) > task.chance
        return
    best = max(constants(task, batch, row) for row in torch.eye(task.outputs.size))
    if isinstance(task, SyntheticTask):  # what is expected of many examples
        many = task_data.tasks.get(task.name, **{**task_data.options(FOLDER[0])[case], "test_examples": 4000})
        batch = whole(many)
        found = torch.tensor([constants(many, batch, row) for row in torch.eye(task.outputs.size)])
        possible = found[found > 0]
        assert len(possible) == round(1 / task.chance)
        assert (possible - task.chance).abs().max() < 5 * (task.chance / 4000) ** 0.5
    else:
        assert best == pytest.approx(task.chance, rel=1e-12)


def test_a_description_is_plain_and_identifies_the_data(case: str, task: Task) -> None:
    text = json.dumps(task.describe(), allow_nan=False)
    assert text == json.dumps(plain(task.describe()))
    assert text == json.dumps(task_data.get(case, FOLDER[0]).describe())
    assert task.describe()["task"] == task.name == case.split(":")[0]


def test_descriptions_tell_tasks_apart() -> None:
    found = [json.dumps(task_data.get(case, FOLDER[0]).describe()) for case in task_data.CASES]
    assert len(set(found)) == len(found)


def test_all_that_a_batch_needs_moves_to_the_device(task: Task) -> None:
    moved = task.to("cpu")
    assert same(moved.batch("train", 4), task.batch("train", 4))
    if task.batch("train", 4).lengths is not None:
        return  # how far to pad needs numbers
    batch = task.to("meta").batch("train", 4)
    for f in fields(Batch):
        value = getattr(batch, f.name)
        assert value is None or value.device.type == "meta"
    assert task.device.type == "cpu"


def test_wrong_arguments_are_named(task: Task) -> None:
    with pytest.raises(ArgumentError, match="split: expected one of 'train', 'valid', 'test', got 'dev'"):
        task.batch("dev", 4)
    with pytest.raises(ArgumentError, match="batch_size: expected at most the"):
        task.batch("train", task.sizes["train"] + 1)
    with pytest.raises(ArgumentError, match="batch_size: expected a whole number"):
        task.steps("test", 0)
    with pytest.raises(ArgumentError, match="index: expected from 0 to"):
        task.batch("train", 4, index=task.steps("train", 4))
    with pytest.raises(ArgumentError, match="seed: expected"):
        task.batch("train", 4, seed=-1)
    batch = task.batch("train", 4)
    with pytest.raises(ArgumentError, match=f"output: expected shape .* of task {task.name}"):
        task.loss(random_output(task, batch)[..., :-1], batch)


@given(size=st.integers(1, 300), seed=st.integers(0, 2**31 - 1), number=st.integers(0, 1000))
def test_a_training_order_is_a_permutation(size: int, seed: int, number: int) -> None:
    order = tasks.base._order(size, seed, number)
    assert order.sort().values.tolist() == list(range(size))
