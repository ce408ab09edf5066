"""The table of tasks: options listed, read from text and checked; tasks of a user."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stablessm import ArgumentError, tasks
from stablessm.tasks import Batch, Inputs, Options, Outputs, Task, option, scoring
from stablessm.tasks.scoring import best_constant


@pytest.mark.parametrize("name", tasks.NAMES)
def test_every_option_has_a_kind_a_default_and_help(name):
    for listed in tasks.listing(name):
        assert listed.help
        assert listed.kind
        assert listed.name.isidentifier()
        if listed.default is not MISSING and isinstance(listed.default, int | float | str):
            text = str(listed.default)
            assert tasks.read_options(name, {listed.name: text}) == {listed.name: listed.default}


def test_options_are_read_from_text():
    assert tasks.read_options("mnist", {"permutation_seed": "none"}) == {"permutation_seed": None}
    assert tasks.read_options("mnist", {"permutation_seed": "3"}) == {"permutation_seed": 3}
    assert tasks.read_options("arrays", {"inputs": "x.npy"}) == {"inputs": "x.npy"}
    given = {"target": "sine", "settings": "exponent=1.5, rate=2", "fresh": "no", "dt": "0.1", "precision": "float64"}
    assert tasks.read_options("functional", given) == {
        "target": "sine",
        "settings": {"exponent": 1.5, "rate": 2.0},
        "fresh": False,
        "dt": 0.1,
        "precision": "float64",
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"length": "long"}, "length: expected a whole number, got 'long'"),
        ({"fresh": "maybe"}, "fresh: expected true or false, got 'maybe'"),
        ({"train_on": "some"}, "train_on: expected one of all, answer, got 'some'"),
        ({"size": "3"}, "size: expected one of the options train_examples"),
    ],
)
def test_texts_that_say_nothing(texts, message):
    with pytest.raises(ArgumentError, match=message):
        tasks.read_options("recall", texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 20.0}, "length: expected a whole number, got 20.0"),
        ({"length": True}, "length: expected a whole number, got True"),
        ({"fresh": 2}, "fresh: expected true or false, got 2"),
    ],
)
def test_options_of_the_wrong_type(options, message):
    with pytest.raises(ArgumentError, match=message):
        tasks.get("recall", **options)


def test_unknown_tasks_and_missing_options():
    with pytest.raises(ArgumentError, match=r"task: expected one of functional, recall, .* got 'recal'"):
        tasks.get("recal")
    with pytest.raises(ArgumentError, match=r"file: expected text for task 'series': CSV file .*, got none"):
        tasks.get("series")


@dataclass(frozen=True)
class SumOptions(Options):
    length: int = option(4, "steps")


class Sum(Task):
    metric = "mse"

    def __init__(self, options: SumOptions, name: str) -> None:
        self.name, self.length = name, options.length
        self.sizes = {"train": 8, "valid": 4, "test": 4}
        self.inputs, self.outputs = Inputs("values", 1, options.length), Outputs("values", 1, per_step=False)

    @property
    def chance(self) -> float:
        return best_constant("mse", self.batch("test", 4).targets)

    def describe(self):
        return {"task": self.name, "length": self.length}

    def _examples(self, split, indices, seed, epoch):
        inputs = (indices[:, None, None] + torch.arange(self.length)[:, None]).float()
        return Batch(inputs, inputs.sum(1))


def test_a_task_of_a_user_joins_the_table(monkeypatch):
    monkeypatch.setattr(tasks.registry, "TASKS", dict(tasks.TASKS))
    tasks.register("sum", Sum, SumOptions, "add up")
    task = tasks.get("sum", length=3)
    batch = task.batch("test", 4)
    assert batch.targets.flatten().tolist() == [3.0, 6.0, 9.0, 12.0]
    assert task.loss(batch.inputs.sum(1), batch) == 0
    assert task.chance == pytest.approx(11.25)
    assert not task.higher_is_better
    with pytest.raises(ArgumentError, match="name: expected a new name, got 'sum'"):
        tasks.register("sum", Sum, SumOptions)


@given(classes=st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_the_best_constant_class_by_brute_force(classes):
    targets = torch.tensor(classes)
    assert best_constant("accuracy", targets) == max(classes.count(c) for c in range(6)) / len(classes)


@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=20), metric=st.sampled_from(["mse", "mae"]))
def test_no_constant_beats_the_best_constant(values, metric):
    targets = torch.tensor(values, dtype=torch.float64)[:, None]
    best = best_constant(metric, targets)
    for constant in [*values, *torch.linspace(-5, 5, 50).tolist()]:
        total, count = scoring.score(metric, torch.full_like(targets, constant), targets, None)
        assert (total / count).item() >= best - 1e-9


def test_no_targets_have_no_chance():
    with pytest.raises(ArgumentError, match="targets: expected at least one"):
        best_constant("accuracy", torch.empty(0, dtype=torch.int64))


def test_the_loss_of_short_precision_is_taken_in_float32():
    output = torch.randn(3, 5, dtype=torch.bfloat16, requires_grad=True)
    total, _ = scoring.total_loss("classes", output, torch.tensor([0, 1, 2]), None)
    assert total.dtype == torch.float32


@pytest.mark.parametrize("shape", [(7,), (4, 3)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("metric", ["accuracy", "nats", "mse", "mae"])
def test_losses_and_metrics_are_weighted_sums(shape, weighted, metric):
    draw = torch.Generator().manual_seed(len(shape) + weighted)
    output = torch.randn(*shape, 5, generator=draw)
    weights = torch.rand(shape, generator=draw) if weighted else torch.ones(shape)
    if metric in ("accuracy", "nats"):
        kind, targets = "classes", torch.randint(5, shape, generator=draw)
        chosen = output.double().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        each = {"accuracy": (output.max(-1).indices == targets).double(), "nats": -chosen}[metric]
        loss = -chosen
    else:
        kind, targets = "values", torch.randn(*shape, 5, generator=draw)
        error = (output - targets).double()
        each, loss = (error**2 if metric == "mse" else error.abs()).mean(-1), (error**2).mean(-1)
    given = weights if weighted else None
    for found, expected, dtype in (
        (scoring.score(metric, output, targets, given), each, torch.float64),
        (scoring.total_loss(kind, output, targets, given), loss, torch.float32),
    ):
        assert {part.dtype for part in found} == {dtype}
        torch.testing.assert_close(found[0].double(), (expected * weights).sum().double(), rtol=1e-5, atol=0.0)
        torch.testing.assert_close(found[1].double(), weights.sum().double(), rtol=1e-6, atol=0.0)
