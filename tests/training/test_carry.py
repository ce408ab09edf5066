"""Training that hands the state on: against one pass over the whole text, stopped and gone on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from stablessm import ArgumentError, models, tasks
from stablessm.tasks.base import Batch
from stablessm.tasks.text import LanguageModeling
from stablessm.training import TrainingConfig, evaluate, nested, perplexity, train
from stablessm.training.carry import Carry
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Gradient
from stablessm.training.ranks import Ranks
from stablessm.training.trainee import trainee

CPU = torch.device("cpu")


def build(folder: Path, *, documents: bool = True, **options: Any) -> LanguageModeling:
    lines = ["to be or not to be", "that is the question", "whether it is nobler in the mind to suffer", "ay"]
    (folder / "mine.txt").write_text("|".join(lines[i * i % 7 % 4] for i in range(40)), encoding="utf-8")
    given: dict[str, Any] = {"level": "byte", "length": 6, "carry": True, **options}
    task = tasks.get("lm", text=str(folder / "mine.txt"), separator="|" if documents else None, **given)
    assert isinstance(task, LanguageModeling)
    return task


def network(mixer: str = "hyena-real", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    made = models.LanguageModel(257, d_model=8, n_layers=2, d_state=4, mixer=mixer, **options).double()
    with torch.no_grad():
        made.body.encoder.weight.mul_(50)  # logits that are not all alike
    return made


@pytest.mark.parametrize("documents", [True, False])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_with_weights_that_stay_windows_are_one_pass(tmp_path: Path, documents: bool, accumulate: int) -> None:
    task, model = build(tmp_path, documents=documents), network()
    steps = task.steps("train", 4) // accumulate
    config = TrainingConfig(
        steps=2 * steps, batch_size=4, accumulate=accumulate, lr=1e-30, weight_decay=0.0, device="cpu", log_every=1,
        evaluate_every=steps // 2,
    )  # fmt: skip
    result = train(model, task, config, tmp_path / "run", progress=False)
    expected: list[float] = []
    for epoch in range(2):
        batches = [task.batch("train", 4, epoch=epoch, index=i) for i in range(steps * accumulate)]
        x, y, reset = (torch.cat([getattr(b, name) for b in batches], 1) for name in ("inputs", "targets", "reset"))
        with torch.no_grad():
            logits = model(x, reset=reset)
        each = nn.functional.cross_entropy(logits.transpose(1, 2), y, reduction="none")
        expected += each.unflatten(1, (steps, -1)).mean((0, 2)).tolist()
    np.testing.assert_allclose(result.losses[:, 1], expected, rtol=1e-9)
    assert evaluate(model, task, "test", 3)["nats"] == pytest.approx(result.scores["test"]["nats"], rel=1e-9)


def test_scores_are_those_of_perplexity(tmp_path: Path) -> None:
    task, model = build(tmp_path), network()
    found = perplexity(model, task, "test")
    for size in (1, 2, 50):
        scores = evaluate(model, task, "test", size)
        assert scores["perplexity"] == pytest.approx(found.per_token, rel=1e-9)
        assert scores["examples"] == task.sizes["test"]
    apart = evaluate(model, build(tmp_path, carry=False), "test", 3)
    assert abs(apart["nats"] - scores["nats"]) > 1e-4


class Counting(nn.Module):
    """Its state is how many tokens each row has seen since the last reset, and how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(257))
        self.given: list[tuple[Any, bool]] = []

    def sequence(self, x: Tensor, state: Any = None, *, reset: Tensor | None = None) -> tuple[Tensor, Any]:
        self.given.append((state, self.training))
        seen, calls = (x.new_zeros(len(x)), x.new_zeros(len(x))) if state is None else (state["seen"], state["calls"])
        after = {"seen": seen + x.shape[1], "calls": calls + 1}
        return self.bias.expand(*x.shape, 257), after

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("sequence is what a task that carries calls")


def test_evaluation_and_accumulation_do_not_disturb_the_state(tmp_path: Path) -> None:
    task, model = build(tmp_path), Counting()
    epoch = task.steps("train", 4) // 2
    config = TrainingConfig(steps=epoch + 3, batch_size=4, accumulate=2, device="cpu", evaluate_every=2)
    train(model, task, config, tmp_path / "run", progress=False)
    calls = [0 if state is None else int(state["calls"][0]) for state, training in model.given if training]
    assert calls == [*range(2 * epoch), *range(6)], "a new epoch begins without a state"
    assert any(state is None for state, training in model.given if not training)


def test_gradients_end_where_a_window_begins(tmp_path: Path) -> None:
    carry, weight = Carry(2), torch.ones((), requires_grad=True)

    def sums(x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        y = x.cumsum(1) * weight + (0 if state is None else state[:, None])
        return y, y[:, -1]

    batch = Batch(torch.ones(2, 3, 1), torch.zeros(2))
    for step, slope in ((0, 6.0), (1, 6.0)):
        carry.begin(anew=step == 0)
        (gradient,) = torch.autograd.grad(carry.run(sums, batch)[0].sum(), weight)
        carry.settle(torch.zeros(()))
        assert gradient == slope
        assert not carry.state.requires_grad


@pytest.mark.parametrize(
    ("mixer", "changes"),
    [
        ("hyena-real", {"accumulate": 2, "autocast": True}),
        ("hyena-lru", {}),
        ("s4d", {"evaluate_every": 4, "select": "best"}),
        ("mingru", {}),
        ("selective", {"autocast": True}),
        *(pytest.param(mixer, {}, marks=pytest.mark.slow) for mixer in ("minlstm", "rglru", "hgrn")),
    ],
)
def test_stopped_and_gone_on_it_ends_in_the_same_bits(tmp_path: Path, mixer: str, changes: dict[str, Any]) -> None:
    config = TrainingConfig(steps=20, batch_size=4, lr=0.01, device="cpu", log_every=3, checkpoint_every=3, **changes)

    def made() -> nn.Module:
        model = network(mixer, dropout=0.2)
        return model.float() if config.autocast else model

    def run(folder: str, stops: tuple[int, ...] = ()) -> nn.Module:
        task = build(tmp_path)
        for stop in stops:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LanguageModeling, "batch", breaking(stop))
                with pytest.raises(OSError, match="gone"):
                    train(made(), task, config, tmp_path / folder, progress=False)
        model = made()
        train(model, task, config, tmp_path / folder, progress=False)
        return model

    def breaking(stop: int) -> Any:
        counted, unchanged = [0], LanguageModeling.batch

        def batch(self: Any, split: Any, *args: Any, **options: Any) -> Batch:
            counted[0] += split == "train"
            if counted[0] > stop:
                raise OSError("the disk is gone")
            return unchanged(self, split, *args, **options)

        return batch

    whole, again = run("whole"), run("stopped", (5, 2, 11))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    last = [load_file(max((tmp_path / name / "checkpoints").iterdir())) for name in ("whole", "stopped")]
    assert last[0].keys() == last[1].keys()
    assert any(name.startswith("carry:state.") for name in last[0])
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


def test_a_bad_step_is_done_again_from_the_state_it_had(tmp_path: Path) -> None:
    task, model = build(tmp_path), network(dropout=0.1)
    config, watch = TrainingConfig(steps=9, batch_size=4, accumulate=2, device="cpu"), Watch(CPU)
    epoch = task.steps("train", 4) // 2
    trained = trainee(model, config, CPU, Ranks(), carries=True)
    gradient = Gradient(trained, task, config, epoch, watch, Ranks())
    for bad_at in (0, 3, epoch - 1, epoch):
        gradient.carry = Carry(4)
        for step in range(bad_at + 3):
            model.zero_grad()
            gradient.compute(step)
            gradient.carry.settle(torch.tensor(float(step >= bad_at)))
            if step == bad_at:
                expected = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        gradient.replay(bad_at, gradient.carry.everyone())
        for parameter, wanted in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, wanted, rtol=1e-12, atol=1e-14)


def test_a_divergence_is_reported(tmp_path: Path) -> None:
    config = TrainingConfig(steps=40, batch_size=4, lr=1e6, warmup=0.0, clip=None, explode=2.0, device="cpu")
    result = train(network(map="direct"), build(tmp_path), config, tmp_path / "run", progress=False)
    assert result.diverged is not None
    assert result.diverged.step > 0


STATES = st.recursive(
    st.sampled_from(["real", "complex", "none"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


def filled(shape: Any) -> Any:
    if isinstance(shape, str):
        made = {"real": torch.randn(3, 2), "complex": torch.randn(3, dtype=torch.complex128), "none": None}
        return made[shape]
    if isinstance(shape, dict):
        return {key: filled(part) for key, part in shape.items()}
    return type(shape)(filled(part) for part in shape)


@settings(max_examples=60)
@given(STATES)
def test_a_state_of_any_form_comes_back_from_names(shape: Any) -> None:
    state = filled(shape)
    tensors, form = dict(nested.named(state)), json.loads(json.dumps(nested.form(state)))
    assert not any(tensor.is_complex() for tensor in tensors.values())
    again = nested.rebuilt(form, tensors)
    assert nested.form(again) == nested.form(state)
    nested.mapped(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0) or a, state, again)


class Named(NamedTuple):
    """A tuple that would come back as another."""

    first: Tensor


@pytest.mark.parametrize("state", [Named(torch.ones(1)), {0: torch.ones(1)}, {"a": [Named(torch.ones(1))]}])
def test_a_state_that_a_file_would_not_give_back_is_refused(state: Any) -> None:
    with pytest.raises(ArgumentError, match=r"model: expected a model whose state consists of tensors.* (Named|dict)"):
        nested.mapped(Tensor.detach, state)


def test_what_cannot_carry_is_refused(tmp_path: Path) -> None:
    task = build(tmp_path)
    config = TrainingConfig(steps=2, batch_size=4, device="cpu")

    class Plain(nn.Embedding):
        """From tokens to logits, without a state."""

    plain = Plain(257, 257)
    told = r"model: expected a method sequence\(x, state, reset=…\) -> \(outputs, state\).* got Plain"
    with pytest.raises(ArgumentError, match=told):
        train(plain, task, config, tmp_path / "plain", progress=False)
    with pytest.raises(ArgumentError, match=told):
        evaluate(plain, task)
    assert not (tmp_path / "plain").exists()

    class Odd(Counting):
        def sequence(self, x: Tensor, state: Any = None, *, reset: Tensor | None = None) -> tuple[Tensor, Any]:
            return super().sequence(x, None)[0], {3}

    with pytest.raises(ArgumentError, match=r"model: expected a model whose state consists of tensors.* got set"):
        train(Odd(), task, config, tmp_path / "odd", progress=False)
    trained = trainee(network(), config, CPU, Ranks(), carries=True)
    graph = TrainingConfig(graph=True, batch_size=4)
    with pytest.raises(ArgumentError, match="graph: expected a task that does not carry the state, got lm"):
        Gradient(trained, task, graph, 5, Watch(CPU), Ranks())
    train(network(), task, config, tmp_path / "run", progress=False)
    with pytest.raises(ArgumentError, match=r"resume: .*task.options.carry = true\), got task.options.carry = false"):
        train(network(), build(tmp_path, carry=False), config, tmp_path / "run", progress=False)
