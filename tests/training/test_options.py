"""Every option of a training has its effect: compared with a plain loop of torch, and with what is written."""

from __future__ import annotations

import json
import math
import random
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tqdm
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from training_task import Net, Sums, stop_after

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.training import DivergenceReport, Interrupted, TrainingConfig, TrainingResult, session, steps, train
from stablessm.training.divergence import BadStep, Watch, _pushed_hardest
from stablessm.training.gradient import Gradient, require_parts
from stablessm.training.loggers import TensorBoard
from stablessm.training.ranks import Ranks
from stablessm.training.steps import Cadence
from stablessm.training.trainee import trainee

CPU = torch.device("cpu")


def double(task):
    task._tensors = {split: x.double() for split, x in task._tensors.items()}
    return task


def drawn(seed):
    """Settings that differ from all defaults."""
    chance = random.Random(seed)
    options = {
        "batch_size": chance.choice([4, 8, 16]), "accumulate": chance.choice([1, 2, 3]),
        "lr": chance.uniform(0.01, 0.05), "weight_decay": chance.uniform(0.1, 0.5),
        "warmup": chance.uniform(0.2, 0.6), "seed": chance.randrange(2, 99),
        "log_every": chance.choice([2, 3]), "evaluate_every": chance.choice([3, 4]), "select": "last", "explode": 30.0,
        "recurrent_lr": chance.choice([None, chance.uniform(0.1, 0.3)]), "clip": chance.choice([None, 0.1]),
        "schedule": ("cosine", "linear", "constant", "wsd")[seed], "cooldown": chance.uniform(0.25, 0.4),
        "ema": (None, 0.7)[seed % 2],
    }  # fmt: skip
    return options | ({"steps": chance.randrange(7, 13)} if seed % 2 else {"epochs": chance.choice([2, 3])})


def plainly(model, task, options):
    """The training with torch alone: the losses and gradient norms of every step."""
    config = SimpleNamespace(**{"steps": None, "epochs": 0, **options})
    epoch = task.sizes["train"] // config.batch_size // config.accumulate
    total = config.steps or config.epochs * epoch
    recurrent = [model.layer.get_parameter(name) for name in model.layer.recurrent_parameters]
    others = [p for p in model.parameters() if all(p is not other for other in recurrent)]
    rates = (config.lr, config.recurrent_lr or config.lr)
    groups = [{"params": others, "weight_decay": config.weight_decay}, {"params": recurrent, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, foreach=False)
    rising, losses, norms, factors = int(config.warmup * total), [], [], []
    means = [p.detach().clone() for p in model.parameters()]
    for step in range(total):
        left = (total - step) / (total - rising)
        after = {
            "constant": 1.0, "linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left),
            "wsd": min(1.0, (total - step) / (int(config.cooldown * total) + 1)),
        }  # fmt: skip
        factors.append((step + 1) / (rising + 1) if step < rising else after[config.schedule])
        for group, rate in zip(adam.param_groups, rates, strict=True):
            group["lr"] = rate * factors[-1]
        adam.zero_grad()
        parts = []
        for i in range(config.accumulate):
            at = step % epoch * config.accumulate + i
            batch = task.batch("train", config.batch_size, seed=config.seed, epoch=step // epoch, index=at)
            parts.append((model(batch.inputs) - batch.targets).square().mean() / config.accumulate)
            parts[-1].backward()
        losses.append(sum(parts).item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf).item())
        adam.step()
        kept = min(config.ema or 0.0, (step + 1) / (step + 10))
        means = [kept * mean + (1 - kept) * p.detach() for mean, p in zip(means, model.parameters(), strict=True)]
    for p, mean in zip(model.parameters(), means, strict=True):
        p.data.copy_(mean)
    return losses, norms, factors, epoch


@pytest.mark.parametrize("seed", range(4))
def test_a_training_is_a_plain_loop(tmp_path, seed):
    options, task = drawn(seed), double(Sums(examples=48))
    torch.manual_seed(seed)
    model, plain = Net(dropout=0.0).double(), Net(dropout=0.0).double()
    plain.load_state_dict(model.state_dict())
    losses, norms, factors, epoch = plainly(plain, task, options)
    result = train(model, task, TrainingConfig(**options, device="cpu"), tmp_path, progress=False)
    total, every = len(losses), options["log_every"]
    assert result.steps == total
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-9, atol=1e-11, msg=name)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    said = [row for row in rows if "split" not in row]
    logged = sorted({*range(every, total + 1, every), total})
    validated = sorted({*range(options["evaluate_every"], total + 1, options["evaluate_every"]), total})
    looks = sorted({*logged, *validated})
    assert [row["step"] for row in said] == looks
    assert [row["step"] for row in rows if "split" in row] == validated
    for row, before in zip(said, [0, *looks], strict=False):
        step = row["step"]
        assert row["loss"] == pytest.approx(np.mean(losses[before:step]), rel=1e-9, abs=0)
        assert row["gradient_norm"] == pytest.approx(max(norms[before:step]), rel=1e-9, abs=0)
        assert row["lr"] == pytest.approx(options["lr"] * factors[step - 1], rel=1e-12, abs=0)
        assert row["epoch"] == step / epoch
        assert ("gradient_over_weight" in row) == (step in logged)
    limit = load_file(max((tmp_path / "checkpoints").iterdir()))["watch:limit"]
    first = task.batch("train", options["batch_size"] * options["accumulate"], seed=options["seed"])
    torch.manual_seed(seed)
    start = (Net(dropout=0.0).double()(first.inputs) - first.targets).square().mean()
    silent = first.targets.square().mean()
    assert limit.item() == pytest.approx(30.0 * max(start.item(), silent.item()), rel=1e-9, abs=0)


def test_what_a_training_that_logs_says_of_its_speed(tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr(session, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    options = {"steps": 7, "batch_size": 4, "accumulate": 3, "log_every": 5, "device": "cpu"}
    train(Net(), Sums(valid=0), TrainingConfig(**options), tmp_path, progress=False)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["sequences_per_second"] for row in rows] == [5 * 12 / 2, 2 * 12 / 2]


def test_the_bar_is_for_terminals(tmp_path, capfd):
    settings = TrainingConfig(steps=9, batch_size=8, device="cpu")
    with pytest.raises(Interrupted), stop_after(4):
        train(Net(), Sums(), settings, tmp_path, progress=False)
    assert capfd.readouterr() == ("", "")
    train(Net(), Sums(), settings, tmp_path)
    assert capfd.readouterr() == ("resuming after step 4 of 9\n", "")


def test_compile_is_asked_for(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    for wanted in (False, True):
        model = Net()
        train(
            model, Sums(), TrainingConfig(steps=1, compile=wanted, device="cpu"), tmp_path / str(wanted), progress=False
        )
        assert compiled == ([model] if wanted else [])


def test_dropout_is_seeded_by_seed_step_and_rank():
    settings = TrainingConfig(batch_size=8, seed=7, device="cpu")
    gradient = Gradient(trainee(Net(), settings, CPU, Ranks()), Sums(), settings, 8, Watch(CPU), Ranks())
    with torch.random.fork_rng():
        for step, rank in ((0, 0), (5, 0), (5, 3)):
            gradient.seed(step, rank)
            expected = 2**62 + 7 * 2**31 + step + rank * 0x9E3779B97F4A7C15
            assert torch.initial_seed() == expected % 2**63


def test_what_a_checkpoint_costs_is_measured(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    cadence = Cadence(seconds=10.0)
    clock[0] += 10.0
    assert not cadence.due(1)
    clock[0] += 0.5
    assert cadence.due(1)
    cadence.wrote(began=clock[0] - 2.0)
    assert (cadence.cost, cadence.last) == (2.0, clock[0])
    clock[0] += 39.0
    assert not cadence.due(2)
    clock[0] += 2.0
    assert cadence.due(2)
    assert Cadence().seconds == 60.0


numbers = st.one_of(st.floats(0.01, 100.0), st.sampled_from([math.inf, math.nan]))


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.floats(0.5, 5.0), st.floats(1.5, 20.0))
def test_a_watch_sees_the_first_bad_step(seen, normal, explode):
    watch = Watch(CPU)
    watch.start(torch.tensor(normal, dtype=torch.float64), explode)
    mean, limit, first = normal, explode * normal, None
    for step, (loss, norm) in enumerate(seen):
        watch.see(torch.tensor(loss, dtype=torch.float64), torch.tensor(norm, dtype=torch.float64))
        mean = 0.9 * mean + 0.1 * loss
        if abs(mean / limit - 1) < 1e-9:
            return  # rounding decides
        if first is None and not (mean <= limit and math.isfinite(norm)):
            first = step, BadStep(loss, norm, mean, limit)
        assert bool(watch.bad) == (first is not None)
    found = watch.first_bad()
    if first is None:
        assert found is None
    else:
        assert found[0] == len(seen) - first[0]
        assert vars(found[1]) == pytest.approx(vars(first[1]), nan_ok=True)
    kept = Watch(CPU)
    kept.restore(**watch.tensors())
    np.testing.assert_array_equal(kept.values(), watch.values())
    assert (kept.mean.item(), kept.limit.item()) == pytest.approx((watch.mean.item(), limit), nan_ok=True)


def test_a_forgiving_watch_skips_single_steps():
    watch = Watch(CPU, 2, forgiving=True)
    for norms, bad in (((math.inf, 1.0), [1, 0]), ((1.0, math.nan), [0, 1]), ((1.0, 1.0), [0, 0])):
        watch.see(torch.tensor([math.nan, 1e9]), torch.tensor(norms))
        assert watch.bad.tolist() == bad


def test_what_is_said_of_a_divergence():
    said = {"step": 3, "loss": 5.0, "mean_loss": 40.0, "gradient_norm": 2.0, "limit": 30.0}
    report = DivergenceReport(**said, trace=None, mode=None, pushed=None)
    assert report.rule == "the loss is 5, its mean over ten steps 40, above 30"
    assert DivergenceReport(**{**said, "loss": math.nan}, trace=None, mode=None, pushed=None).rule == "the loss is nan"
    norm = DivergenceReport(**{**said, "gradient_norm": math.inf}, trace=None, mode=None, pushed=None)
    assert norm.rule == "the norm of the gradient is inf"
    assert report.remedy.startswith("lower the learning rate")
    trace = SimpleNamespace(remedy="clean the data", __str__=lambda self: "")
    assert DivergenceReport(**said, trace=trace, mode=None, pushed=None).remedy == "clean the data"
    assert DivergenceReport(**said, trace=trace, mode=None, pushed=2.0).remedy == report.remedy
    assert str(report).splitlines()[0] == f"diverged at step 3: {report.rule}"
    assert str(report).splitlines()[-1] == f"remedy: {report.remedy}"
    assert "largest |gradient|/|w| of a mode, 2:" in str(DivergenceReport(**said, trace=None, mode=None, pushed=2.0))


def test_what_is_said_of_a_result(tmp_path):
    def result(losses, scores):
        return str(TrainingResult(tmp_path, 7, 1.25, np.array(losses).reshape(-1, 2), None, None, scores, None))

    scores = {"test": {"step": 4, "mse": 0.123456, "examples": 20}}
    assert result([], {}) == f"7 steps in 1.2 s, written to {tmp_path}"
    assert "training loss 2.5 on average" in result([[5, 2.5]], {})
    assert "training loss 2.5 at first, 1.5 at last" in result([[5, 2.5], [6, 9.0], [7, 1.5]], {})
    assert result([], scores).endswith("test: mse 0.1235, examples 20")


@pytest.mark.parametrize("replicas", [1, 2])
def test_tensorboard_gets_what_is_written(tmp_path, replicas):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    options = {"steps": 7, "batch_size": 8, "log_every": 2, "evaluate_every": 3, "device": "cpu"}
    train(Net, Sums(), TrainingConfig(**options, replicas=replicas), tmp_path, progress=False)
    for folder in [tmp_path] if replicas == 1 else [tmp_path / "replica-0", tmp_path / "replica-1"]:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        events = accumulator(str(folder / "tensorboard"))
        events.Reload()
        for name, chosen in (("train/loss", "train"), ("valid/mse", "valid")):
            expected = [(row["step"], row[name.split("/")[1]]) for row in rows if row.get("split", "train") == chosen]
            found = [(event.step, event.value) for event in events.Scalars(name)]
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_tensorboard_drops_what_will_be_said_again(tmp_path, monkeypatch):
    board, told = pytest.importorskip("torch.utils.tensorboard"), []
    monkeypatch.setattr(board, "SummaryWriter", lambda folder, purge_step: told.append((folder, purge_step)))
    TensorBoard().begin(tmp_path, {}, 5)
    assert told == [(str(tmp_path / "tensorboard"), 6)]


def test_batches_that_are_too_few():
    settings = TrainingConfig(accumulate=3, epochs=4)
    assert [settings.steps_per_epoch(n) for n in (3, 5, 6)] == [1, 1, 2]
    assert (settings.total_steps(6), TrainingConfig(steps=5).total_steps(6)) == (8, 5)
    with pytest.raises(ArgumentError, match="accumulate: expected at most the 2 batches"):
        settings.steps_per_epoch(2)


def test_what_a_resumed_run_may_change():
    free = {"device": "cpu", "graph": True, "checkpoint_every": 3, "parallel": "fsdp"}
    assert TrainingConfig(**free).binding() == TrainingConfig().binding()
    later = {"replicas": 2, "schedule": "wsd", "cooldown": 0.3, "ema": 0.9, "patience": 3, "init_from": "there"}
    later["state_noise"] = 0.1
    for name, value in later.items():
        assert name not in TrainingConfig().binding()
        assert TrainingConfig(**{name: value}).binding() == TrainingConfig().binding() | {name: value}
    names = {field for field in vars(TrainingConfig()) if field not in (*free, *later)}
    assert TrainingConfig().binding().keys() == names
    assert TrainingConfig.filled(TrainingConfig(ema=0.9).binding()).keys() == names | later.keys()


def test_a_training_leaves_the_modes_of_models(tmp_path):
    for mode in (True, False):
        model = Net().train(mode)
        train(model, Sums(), TrainingConfig(steps=1, device="cpu"), tmp_path / str(mode), progress=False)
        assert model.training == model.layer.training == mode
    failing = Net()
    failing.eval()
    with pytest.raises(ArgumentError):
        train(failing, ssm.tasks.get("recall"), TrainingConfig(steps=1, device="cpu"), tmp_path / "x", progress=False)
    assert not failing.training


@pytest.mark.parametrize("at", [(0,), (3,), (7,)])
def test_the_mode_that_is_pushed_hardest_is_named(at):
    torch.manual_seed(0)
    model = nn.ModuleList([Net(), Net()])
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter) * parameter.detach().abs()
    weight = model[1].layer.w
    weight.grad[at] = 5.0 * weight.detach()[at]
    mode, ratio = _pushed_hardest(model)
    assert (mode.module, mode.index) == ("1.layer", at)
    assert ratio == pytest.approx(5.0)
    model.zero_grad()
    assert _pushed_hardest(model) == _pushed_hardest(nn.Linear(1, 1)) == (None, None)


def test_gradients_are_exchanged_after_the_last_batch_of_a_step():
    settings = TrainingConfig(batch_size=4, accumulate=3, device="cpu")
    trained, entered = trainee(Net(), settings, CPU, Ranks()), []
    trained.accumulating = lambda: entered.append(1) or nullcontext()
    Gradient(trained, Sums(), settings, 8, Watch(CPU), Ranks()).compute(0)
    assert len(entered) == 2


def test_each_rank_has_its_gpu(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert Ranks(3, 4).device(torch.device("cuda")) == torch.device("cuda:1")
    assert chosen == [torch.device("cuda:1")]
    for ranks, device in ((Ranks(), "cuda"), (Ranks(1, 2), "cpu"), (Ranks(1, 2), "cuda:0")):
        assert ranks.device(torch.device(device)) == torch.device(device)
    monkeypatch.delenv("LOCAL_RANK")
    assert Ranks(0, 2).device(torch.device("cuda")) == torch.device("cuda:0")
    with pytest.raises(ArgumentError, match=r"device: expected a GPU for each process here \(2\), got cuda:2"):
        Ranks(2, 3).device(torch.device("cuda"))
    assert len(chosen) == 2


def test_what_a_bar_is_told(tmp_path, monkeypatch):
    told, bar = [], tqdm.tqdm
    monkeypatch.setattr(tqdm, "tqdm", lambda *args, **options: told.append(options) or bar(*args, **options))
    settings = TrainingConfig(steps=9, batch_size=8, device="cpu")
    with pytest.raises(Interrupted), stop_after(4):
        train(Net(), Sums(), settings, tmp_path, progress=False)
    train(Net(), Sums(), settings, tmp_path)
    assert [(one["total"], one["initial"], one["disable"]) for one in told] == [(9, 0, True), (9, 4, None)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_that_is_done_again_has_its_gradient(accumulate):
    settings = TrainingConfig(batch_size=4, accumulate=accumulate, seed=3, device="cpu")
    model = Net(dropout=0.5)
    gradient = Gradient(trainee(model, settings, CPU, Ranks()), Sums(), settings, 5, Watch(CPU), Ranks())
    for step in (0, 7):
        model.zero_grad()
        gradient.compute(step)
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        gradient.replay(step)
        torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)


def test_parts_of_a_step_need_losses_that_add_up():
    class Own(Sums):
        def loss(self, output, batch):
            return super().loss(output, batch)

    class Both(Own):
        def total_loss(self, output, batch):
            return super().total_loss(output, batch)

    class All(Both):
        def count(self, batch):
            return super().count(batch)

    one, two = (TrainingConfig(batch_size=2, accumulate=n) for n in (1, 2))
    for task in (Sums(), All()):
        for config, ranks in ((one, 1), (one, 2), (two, 1), (two, 2)):
            require_parts(task, config, ranks)
        with pytest.raises(ArgumentError, match="batch_size: expected at least one sequence for each of 3 ranks"):
            require_parts(task, one, 3)
    for task, missing in ((Own(), "count and total_loss"), (Both(), "count")):
        require_parts(task, one, 1)
        for config, ranks in ((one, 2), (two, 1)):
            with pytest.raises(ArgumentError, match=f"task: expected a task that also defines {missing}"):
                require_parts(task, config, ranks)
