from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from stablessm import ArgumentError, ContinuousRNN, RealSSM, tasks
from stablessm.experiments.frame import run as run_module
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.training import Training, mean_square, noise, rnn_mean_square, train
from stablessm.experiments.frame.user_training import trained
from stablessm.models import for_task
from stablessm.training import TrainingConfig

OPTIONS = Training(samples=12, batch=4, epochs=4, lr=0.02, clip=0.05, device="cpu")


def models(kind):
    torch.manual_seed(0)
    build = {
        "rnn": lambda m: ContinuousRNN(1, m, 1, dt=0.1),
        "linear": lambda m: RealSSM(1, m, 1, map="best", bias=False),
        "tanh": lambda m: RealSSM(1, m, 1, map="tanh", time="discrete", activation="tanh"),
    }[kind]
    return [build(m).double() for m in (2, 5, 3)]


def batch(k):
    x = noise(1, k, 4, 10, 1)
    return x, x.cumsum(1) / 10


def train_alone(model, batches=batch):
    """What PyTorch's own Adam and clipping make of it."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), OPTIONS.lr)
    losses = []
    for step in range(OPTIONS.epochs * OPTIONS.batches):
        loss = mean_square(model, *batches(step % OPTIONS.batches))
        optimizer.zero_grad()
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIONS.clip) > 0
        optimizer.param_groups[0]["lr"] = OPTIONS.lr * TrainingConfig(warmup=0.0).rates(OPTIONS.steps)(step)
        optimizer.step()
        losses.append(loss.item())
    return model, np.reshape(losses, (OPTIONS.epochs, OPTIONS.batches)).mean(1)


@pytest.mark.parametrize("kind", ["rnn", "linear", "tanh"])
def test_together_as_one_by_one(kind, tmp_path):
    trained = train(Run(tmp_path, {}, progress=False), "training", models(kind), mean_square, batch, OPTIONS)
    for i, (model, before) in enumerate(zip(trained.models, models(kind), strict=True)):
        alone, losses = train_alone(before)
        np.testing.assert_allclose(trained.losses[:, i], losses, rtol=1e-9)
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("activation", ["tanh", "hardtanh"])
def test_rnn_mean_square_is_mean_square(activation):
    torch.manual_seed(0)
    model = ContinuousRNN(1, 5, 1, activation=activation, dt=0.1).double()
    torch.testing.assert_close(rnn_mean_square(model, *batch(0)), mean_square(model, *batch(0)))


def test_each_model_its_own_batch(tmp_path):
    def own(k):
        x = noise(1, k, 3, 4, 10, 1)
        return x, x.cumsum(2)

    run = Run(tmp_path, {}, progress=False)
    trained = train(run, "training", models("rnn"), mean_square, own, OPTIONS, each_its_own=True)
    for i, before in enumerate(models("rnn")):
        _, losses = train_alone(before, lambda k, i=i: (own(k)[0][i], own(k)[1][i]))
        np.testing.assert_allclose(trained.losses[:, i], losses, rtol=1e-9)


def test_killed_and_resumed_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "CHECKPOINT_SECONDS", 0.0)

    def observe(weights, gradients):
        return (gradients["M"] / weights["M"]).abs().flatten(1).nan_to_num().amax(1)

    def attempt(folder, lives):
        calls = 0

        def dying(k):
            nonlocal calls
            calls += 1
            if calls > lives:
                raise KeyboardInterrupt
            return batch(k)

        run = Run(tmp_path / folder, {}, progress=False)
        return train(run, "training", models("rnn"), mean_square, dying, OPTIONS, observe=observe)

    attempt("whole", 100)
    for lives in (1, 2, 4):
        with pytest.raises(KeyboardInterrupt):
            attempt("killed", lives)
    attempt("killed", 100)
    whole, killed = (Run(tmp_path / which, {})["training"] for which in ("whole", "killed"))
    assert whole.keys() == killed.keys() == {"losses", "seen", *(f"weights.{p}" for p in ("M", "U", "bias", "C"))}
    for key in whole:
        np.testing.assert_array_equal(whole[key], killed[key])
    assert whole["seen"].shape == (OPTIONS.epochs, 3)


def test_a_gradient_that_is_not_finite_costs_one_model_one_step(tmp_path):
    def loss(model, scale):
        return model.C.square().sum() * scale

    def scales(k):
        return (torch.tensor([1.0, torch.inf if k == 1 else 1.0, 1.0]),)

    run = Run(tmp_path, {}, progress=False)
    trained = train(run, "training", models("rnn"), loss, scales, OPTIONS, each_its_own=True)
    assert all(p.isfinite().all() for model in trained.models for p in model.parameters())
    assert np.isinf(trained.losses[0]).tolist() == [False, True, False]


def test_no_models(tmp_path):
    with pytest.raises(ArgumentError, match="models"):
        train(Run(tmp_path, {}, progress=False), "training", [], mean_square, batch, OPTIONS)


def test_the_loop_of_users_needs_no_graph_without_a_gpu(tmp_path):
    task = tasks.get("arrays", inputs=torch.randn(20, 5, 1), targets=torch.arange(20) % 2)
    model = for_task(task.inputs, task.outputs, "tiny")
    settings = TrainingConfig(steps=2, batch_size=4, graph=True, device="cpu")
    assert trained(model, task, settings, Run(tmp_path, {}, progress=False), "inner").steps == 2
    assert (tmp_path / "inner" / "record.json").exists()
