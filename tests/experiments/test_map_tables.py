"""Stacks of classifiers: the numbers of the models one by one, trained as torch would, and tables of them."""

from __future__ import annotations

import copy
import dataclasses
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import clip_grad_norm_

from stablessm import ArgumentError, param_groups, tasks
from stablessm.experiments.frame.run import Run
from stablessm.experiments.stable_ssm import image_tables
from stablessm.experiments.stable_ssm.image_tables import waves
from stablessm.experiments.stable_ssm.map_tables import RELEASED, SCHEMES, Grid, Scores, Study, start
from stablessm.experiments.stable_ssm.stacked_classifier import StackedClassifier
from stablessm.experiments.stable_ssm.stacked_training import StackTraining, evaluate, train
from stablessm.experiments.stable_ssm.table4 import experiment as table4
from stablessm.layers import S4D
from stablessm.models import SequenceClassifier
from stablessm.training.optimizer import StackedOptimizer
from stablessm.training.schedules import rate

MAPS = (("exp", {}), ("best", {"b": 1.0}), ("best", {"b": 1.0}), ("direct", {}), ("best", {"b": 0.5}))


def models(count=5, **settings):
    torch.manual_seed(0)
    size = {"d_model": 4, "d_state": 3, "n_layers": 1, **settings}
    return [SequenceClassifier(5, map=map, map_options=options, **size).double() for map, options in MAPS[:count]]


def own_gradients(model, x):
    out = model(x)
    model.zero_grad()
    out.square().sum().backward()
    return out, torch.cat([p.grad.flatten() for p in model.parameters()])


@settings(max_examples=25)
@given(
    st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0, 2]), st.sampled_from(["mean", "last"]),
    st.sampled_from(["s4d", "hyena-s4d"]), st.sampled_from(["zoh", "bilinear"]), st.sampled_from(["gelu", "none"]),
    st.integers(1, 2), st.integers(1, 9),
)  # fmt: skip
def test_a_stack_is_its_models(tokens, prenorm, per_step, mlp, pool, mixer, discretization, activation, layers, steps):
    inputs = {"vocab_size": 7} if tokens else {"d_input": 2}
    each = models(
        **inputs, prenorm=prenorm, per_step=per_step, mlp=mlp, pool=pool, mixer=mixer, activation=activation,
        n_layers=layers, gate=layers == 1, mixer_options={"discretization": discretization},
    )  # fmt: skip
    x = torch.randint(0, 7, (3, steps)) if tokens else torch.randn(3, steps, 2, dtype=torch.float64)
    stack = StackedClassifier(each)
    weights = stack.weights.clone().requires_grad_()
    logits = stack(weights, x)
    (gradient,) = torch.autograd.grad(logits.square().sum(), weights)
    for i, model in enumerate(each):
        out, expected = own_gradients(model, x)
        torch.testing.assert_close(logits[i], out, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(gradient[i], expected, rtol=1e-8, atol=1e-10 * float(expected.abs().max()))
        torch.testing.assert_close(stack.model(i, weights)(x), out, rtol=0, atol=0)
    if per_step:
        at = torch.tensor([steps - 1, 0])
        torch.testing.assert_close(stack(weights, x, at=at), logits[:, :, at], rtol=1e-12, atol=1e-12)


def test_the_presets_of_the_tables_can_be_stacked():
    images, recall = waves(20, 12), tasks.get("recall", length=6)
    for task, preset in ((images, "paper-images"), (recall, "paper-recall"), (images, "images")):
        model = start(task, preset, "softplus", 0).eval()
        x = task.batch("test", 2).inputs
        stack = StackedClassifier([model])
        torch.testing.assert_close(stack(stack.weights, x)[0], model(x), rtol=1e-4, atol=1e-5)


def test_dropout_leaves_out_whole_channels_of_all_models_alike():
    stack = StackedClassifier(models(d_input=1, dropout=0.5, prenorm=False))
    x = torch.randn(4, 6, 1, dtype=torch.float64)
    first, again, other = (stack(stack.weights, x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    twins = stack.weights[1:3].clone()
    twins[1] = twins[0]
    both = StackedClassifier(models(3, d_input=1, dropout=0.5, prenorm=False)[1:])(
        twins, x, torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(both[0], both[1])


def test_what_cannot_be_stacked_is_refused():
    with pytest.raises(ArgumentError, match="models: expected one or more"):
        StackedClassifier([])
    with pytest.raises(ArgumentError, match="differ in map, map_options alone"):
        StackedClassifier([*models(1, d_input=1), *models(1, d_input=1, d_model=8)])
    with pytest.raises(ArgumentError, match="the mixer s4d"):
        StackedClassifier(models(1, d_input=1, norm="batch"))


def one_by_one(model, lr, task, options, seed):
    """The same training with torch's optimizer."""
    optimizer = torch.optim.AdamW(param_groups(model, lr, weight_decay=options.weight_decay))
    epoch = task.steps("train", options.batch)
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * rate(step, options.steps, options.warmup)
        batch = task.batch("train", options.batch, seed=seed, epoch=step // epoch, index=step % epoch)
        optimizer.zero_grad()
        task.loss(model(batch.inputs), batch).backward()
        clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
    return model


@pytest.mark.parametrize("task", [tasks.get("recall", length=6, train_examples=40, test_examples=30), waves(60, 10)])
def test_training_is_that_of_torch_for_each_model(task, tmp_path):
    kind = {"vocab_size": 10, "per_step": True} if task.name == "recall" else {"d_input": 1}
    torch.manual_seed(0)
    each = [
        SequenceClassifier(10, d_model=4, d_state=2, n_layers=1, map=map, map_options=options, **kind)
        for map, options in MAPS[:3]
    ]
    options = StackTraining(batch=8, steps=12, weight_decay=0.1, clip=0.5, device="cpu")
    rates = [0.01, 0.03, 0.001]
    found = train(Run(tmp_path, {}, progress=False), "training", each, rates, task, options, 3)
    assert found["diverged"].tolist() == [-1, -1, -1]
    scored = evaluate(each, found["weights"], task, "test", options)
    stack = StackedClassifier(each)
    for i, (model, lr) in enumerate(zip(each, rates, strict=True)):
        expected = one_by_one(copy.deepcopy(model), lr, task, options, 3).eval()
        row = np.concatenate([p.detach().flatten().numpy() for p in expected.parameters()])
        np.testing.assert_allclose(found["weights"][i], row, rtol=2e-3, atol=2e-4)
        batch = task.batch("test", 30)
        output = stack.model(i, torch.from_numpy(found["weights"]))(batch.inputs).detach()
        hits, count = task.score(output, batch)
        assert scored["accuracy"][i] == pytest.approx(float(hits / count))
        assert scored["loss"][i] == pytest.approx(float(task.loss(output, batch)), rel=1e-4)


def test_one_that_diverges_stops_and_the_others_do_not_notice(tmp_path):
    task = waves(60, 12)
    options = StackTraining(batch=12, steps=8, device="cpu")
    each = [start(task, "tiny", scheme, 0) for scheme in ("exp", "direct", "best-1")]
    spoilt = copy.deepcopy(each)
    spoilt[1].body.blocks[0].mixer.w.data.fill_(1e5)
    alone = train(Run(tmp_path / "a", {}, progress=False), "training", each[::2], [0.01] * 2, task, options, 0)
    found = train(Run(tmp_path / "b", {}, progress=False), "training", spoilt, [0.01] * 3, task, options, 0)
    assert found["diverged"].tolist() == [-1, 0, -1]
    before = StackedClassifier(spoilt).weights[1].numpy()
    np.testing.assert_array_equal(found["weights"][1], before)
    np.testing.assert_allclose(found["weights"][::2], alone["weights"], rtol=1e-4, atol=1e-6)
    assert np.isnan(found["losses"][:, 1]).all()
    assert np.isfinite(found["losses"][:, ::2]).all()
    assert evaluate(spoilt, found["weights"], task, "test", options)["accuracy"][1] == 0


class KilledError(Exception):
    """In place of a signal."""


def test_a_killed_training_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("stablessm.experiments.frame.run.CHECKPOINT_SECONDS", 0.0)
    task, options = waves(80, 10), StackTraining(batch=16, epochs=3, device="cpu")
    each = [start(task, "small", scheme, 0, d_model=4, d_state=2) for scheme in ("exp", "direct")]
    arguments = (each, [0.01, 0.02], task, options, 0)
    whole = train(Run(tmp_path / "a", {}, progress=False), "training", *arguments)
    step, original = 0, StackedOptimizer.step

    def killing(*args):
        nonlocal step
        step += 1
        if step == 7:
            raise KilledError
        original(*args)

    monkeypatch.setattr(StackedOptimizer, "step", killing)
    with pytest.raises(KilledError):
        train(Run(tmp_path / "b", {}, progress=False), "training", *arguments)
    again = train(Run(tmp_path / "b", {}, progress=False), "training", *arguments)
    assert step < 7 + options.total(task)
    for name, array in whole.items():
        np.testing.assert_array_equal(array, again[name])


def test_all_schemes_start_as_one_function_but_for_the_released_one():
    task = waves(20, 12)
    x = task.batch("test", 3).inputs
    outputs = {scheme: start(task, "paper-images", scheme, 1).eval()(x) for scheme in SCHEMES}
    for scheme, output in outputs.items():
        assert torch.allclose(output, outputs["exp"], atol=1e-4) is (scheme != RELEASED), scheme
    released = start(task, "paper-images", RELEASED, 1)
    real = next(m for m in released.modules() if isinstance(m, S4D)).eigenvalues().real
    torch.testing.assert_close(real, torch.full_like(real, 0.5))


def test_a_study_is_the_same_however_it_is_cut(tmp_path):
    task, options = waves(60, 10), StackTraining(batch=12, steps=4, device="cpu")
    found = []
    for at_once in (6, 4):
        grid = Grid(("exp", "direct", "best-0.5"), (0.01, 0.02), seeds=2, at_once=at_once)
        study = Study("x", grid, lambda: task, lambda scheme, _, seed: start(task, "tiny", scheme, seed), options)
        run = Run(tmp_path / str(at_once), {}, progress=False)
        study.train(run)
        found.append(study.scores(run))
        assert found[-1].arrays["test"].shape == (3, 2, 2)
        assert study.trained(run, "best-0.5", 0.02, 1).config.map_options == {"a": 1.0, "b": 0.5}
        batch = task.batch("test", 60)
        hits, count = task.score(study.trained(run, "direct", 0.02, 1)(batch.inputs), batch)
        assert found[-1].arrays["test"][1, 1, 1] == pytest.approx(float(hits / count))
    for name in ("test", "valid", "losses"):
        np.testing.assert_allclose(found[0].arrays[name], found[1].arrays[name], rtol=1e-3)


def test_rates_are_chosen_by_held_out_examples_not_by_the_test():
    grid = Grid(("exp", "best-0.5", "best-1"), (0.01, 0.1), seeds=2)
    valid = np.array([[[0.5, 0.5], [0.6, 0.7]], [[0.9, 0.9], [0.1, 0.2]], [[0.8, 0.9], [0.3, 0.3]]])
    scores = Scores(grid, {"valid": valid, "test": 1 - valid, "diverged": np.full((3, 2, 2), -1)})
    assert scores.chosen == {"exp": 1, "best-0.5": 0, "best-1": 0}
    assert scores.best() == "best-0.5"
    assert scores.told("exp") == "exp 35.00 (7.07) at 0.1"


def invented(accuracies, *, spread=0.0005, lost=()):
    """Scores of three seeds at two rates, around these accuracies."""
    grid = Grid(tuple(accuracies), (0.01, 0.1))
    noise = spread * np.array([-1.0, 0.0, 1.0])
    test = np.array([[[value] * 3, [value - 0.01] * 3] for value in accuracies.values()]) + noise
    diverged = np.array([np.full((2, 3), 5 if scheme in lost else -1) for scheme in accuracies])
    return Scores(grid, {"valid": test, "test": test, "diverged": diverged})


def test_claims_follow_the_numbers():
    published = {"best": 99.3, "exp": 99.21, "softplus": 99.19, "direct": 10.0}
    as_published = {"direct": 0.1, "exp": 0.99, "softplus": 0.98, "best-0.5": 0.995, RELEASED: 0.1}
    scores = invented(as_published, lost=("direct", RELEASED))
    assert image_tables.reaches(scores, "mnist", 99.3).verdict == "reproduced"
    assert image_tables.order(scores, "one layer", published, 2.0).verdict == "reproduced"
    assert image_tables.diverges(scores, "one layer", "direct", 10.0, 0.2).verdict == "reproduced"
    assert image_tables.survives(scores, "one layer", 2.0).verdict == "reproduced"
    otherwise = invented({"direct": 0.97, "exp": 0.98, "softplus": 0.99, "best-0.5": 0.97}, lost=("best-0.5",))
    assert image_tables.reaches(otherwise, "mnist", 99.3).verdict == "not reproduced"
    assert image_tables.order(otherwise, "one layer", published, 2.0).verdict == "not reproduced"
    assert image_tables.diverges(otherwise, "one layer", "direct", 10.0, 0.2).verdict == "not reproduced"
    assert image_tables.survives(otherwise, "one layer", 2.0).verdict == "not reproduced"
    blurred = image_tables.order(invented(as_published, spread=0.2), "one layer", published, 2.0)
    assert blurred.verdict == "inconclusive"
    assert "0 of them by more than 2 standard errors" in blurred.why


@pytest.mark.parametrize("schemes", [("best-1",), ("direct",), ("exp", "softplus"), ("clip", "best-0.5")])
def test_some_of_the_schemes_are_a_table_too(schemes, tmp_path):
    grid, training = Grid(schemes, (0.01,), seeds=1), StackTraining(batch=40, steps=2, device="cpu")
    config = dataclasses.replace(image_tables.SMOKE, grid=grid, deep=grid, training=training)
    run = Run(tmp_path, {}, progress=False)
    published = {"best": 99.3, "exp": 99.21, "softplus": 99.19, "direct": 10.0}
    image_tables.run(config, run)
    claims = list(image_tables.claims(config, run, published))
    assert bool(claims) is (schemes != ("exp", "softplus"))
    short, middle, long = (
        dataclasses.replace(part, grid=grid, training=training)
        for part in (table4.SMALL.short, table4.SMALL.middle, table4.SMALL.long)
    )
    small = dataclasses.replace(table4.SMALL, short=short, middle=middle, long=long)
    table4.run(small, run)
    assert bool(table4.EXPERIMENT.claims(small, run)) is (schemes != ("direct",))


def test_recall_claims_need_direct_to_be_behind():
    recall = table4.SMALL.short
    found = {"direct": 0.2, "clip": 0.9, "relu": 0.9, "exp": 1.0, "softplus": 1.0, "best-0.5": 1.0, "best-1": 1.0}
    assert table4.solved(invented(found), "short", recall).verdict == "reproduced"
    assert table4.unsolved(invented(found), "short", recall).verdict == "reproduced"
    all_fail = dict.fromkeys(found, 0.2)
    assert table4.solved(invented(all_fail), "short", recall).verdict == "not reproduced"
    assert table4.unsolved(invented(all_fail), "short", recall).verdict == "not reproduced"
    assert table4.unsolved(invented({**found, "clip": 1.0}), "short", recall).verdict == "partly"


def test_long_recall_goes_on_from_the_middle_length(tmp_path):
    config, run = table4.SMALL, Run(tmp_path, {}, progress=False)
    middle, long = (table4.studies(config, run)[name] for name in ("middle", "long"))
    middle.train(run)
    scores, rates = middle.scores(run), config.middle.grid.rates
    for scheme in ("softplus", RELEASED):
        weights = StackedClassifier([long.start(scheme, 1e-3, 0)]).weights
        first = StackedClassifier([middle.start(scheme, rates[scores.chosen[scheme]], 0)])
        assert not torch.equal(weights, first.weights)
        again = evaluate([long.start(scheme, 1e-3, 0)], weights.numpy(), middle.task(), "test", config.middle.training)
        assert again["loss"][0] == pytest.approx(float(scores.of(scheme, name="test_loss")[0]), rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif("STABLESSM_DATA" not in os.environ, reason="needs MNIST")
def test_digits_are_learned(tmp_path):
    task = tasks.get("mnist")
    options = StackTraining(batch=32, steps=300, device="cpu")
    each = [start(task, "paper-images", scheme, 0, d_state=8) for scheme in ("exp", "best-0.5")]
    found = train(Run(tmp_path, {}, progress=False), "training", each, [0.02, 0.02], task, options, 0)
    assert (evaluate(each, found["weights"], task, "valid", options)["accuracy"] > 0.7).all()
