"""Loss by position and by context, of models whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stablessm as ssm
from stablessm import ArgumentError, effective_remembrance, length_curve


class Counter(nn.Module):
    """Predicts the next number of a row that counts up to 9; after ``limit`` steps it predicts nothing."""

    d_input = 1

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def initial_state(self, batch):
        return torch.zeros(batch)

    def forward(self, tokens, state=None):
        state = self.initial_state(len(tokens)) if state is None else state
        steps = state[:, None] + torch.arange(1, tokens.shape[1] + 1)
        sure = 20.0 * (steps <= self.limit)
        return sure[..., None] * F.one_hot((tokens + 1) % 10, 10), steps[:, -1]


def test_the_loss_rises_after_the_length_that_a_model_can_count():
    tokens = torch.arange(3000).view(2, 1500) % 10
    curve = length_curve(Counter(256), tokens, window=200)
    assert curve.carried
    np.testing.assert_allclose(curve.loss[curve.position <= 256], 0, atol=1e-6)
    np.testing.assert_allclose(curve.loss[-1], math.log(10), rtol=1e-6)
    np.testing.assert_allclose(curve.restarted, 0, atol=1e-6)
    np.testing.assert_allclose(curve.perplexity[-1], 10, rtol=1e-6)
    assert curve.rise(after=128) == pytest.approx(math.log(10), rel=1e-6)
    assert length_curve(Counter(10**6), tokens).rise(after=128) < 1e-6
    with pytest.raises(ArgumentError, match="after: expected at most"):
        curve.rise(after=1499)
    assert curve.plot().get_xlabel() == "position"


def test_bins_are_means_of_all_positions():
    """The mean over all positions, weighted by the bins, is the loss of the whole pass."""
    model = ssm.LanguageModel(12, d_model=4, n_layers=1, d_state=2).eval()
    tokens = torch.randint(0, 12, (3, 100), generator=torch.Generator().manual_seed(0))
    curve = length_curve(model, tokens)
    with torch.no_grad():
        whole = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert np.average(curve.loss, weights=np.diff([0, *curve.position])) == pytest.approx(float(whole), rel=1e-5)
    stateless = length_curve(lambda tokens: model(tokens), tokens)
    assert not stateless.carried
    np.testing.assert_allclose(stateless.loss, curve.loss, rtol=1e-5)


def test_real_inputs_and_a_loss_of_ones_own():
    x = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0))
    gru = nn.GRU(3, 2, batch_first=True)
    y = gru(x)[0].detach()
    assert length_curve(gru, x, y).loss.max() < 1e-10
    far = length_curve(gru, x, y, loss=lambda output, target: (output - target - 1).abs().sum(-1))
    np.testing.assert_allclose(far.loss, 2, rtol=1e-5)
    with pytest.raises(ArgumentError, match="targets: expected a target"):
        length_curve(gru, x)


def test_remembrance_of_a_model_that_sees_three_tokens():
    """Logits that depend on the last three tokens: contexts of three and more make no difference."""
    table = 2 * torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))

    def model(tokens):
        padded = F.pad(tokens, (2, 0))
        seen = torch.arange(tokens.shape[1])
        terms = [table[lag][padded[:, 2 - lag : padded.shape[1] - lag]] * (seen >= lag)[:, None] for lag in range(3)]
        return sum(terms)

    tokens = torch.randint(0, 8, (2, 80), generator=torch.Generator().manual_seed(1))
    found = effective_remembrance(model, tokens, contexts=[1, 2, 3, 4, 8])
    assert found.distance[0] > found.distance[1] > 0.05
    np.testing.assert_allclose(found.distance[2:], 0, atol=1e-6)
    assert found.reach() == 3
    assert found.loss[-1] == pytest.approx(found.full_loss)
    assert found.plot().get_xlabel() == "number of latest inputs"
    with pytest.raises(ArgumentError, match="contexts: expected numbers from 1"):
        effective_remembrance(model, tokens, contexts=[100])


def test_noise_on_the_carried_state(tmp_path):
    from stablessm.training import TrainingConfig, train

    path = tmp_path / "mine.txt"
    path.write_text("to be or not to be. " * 60, encoding="utf-8")
    results = {}
    for noise in (None, 1e-30, 0.5, 0.5):
        task = ssm.tasks.get("lm", text=str(path), level="char", length=16, carry=True)
        torch.manual_seed(0)
        model = ssm.LanguageModel(task.inputs.size, d_model=4, n_layers=1, d_state=2)
        config = TrainingConfig(steps=4, batch_size=4, state_noise=noise, device="cpu")
        train(model, task, config, tmp_path / f"run{len(results)}{noise}", progress=False)
        weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        assert noise not in results or torch.equal(results[noise], weights)  # the same seed draws the same noise
        results[noise] = weights
    torch.testing.assert_close(results[None], results[1e-30])
    assert not torch.allclose(results[None], results[0.5])
    task = ssm.tasks.get("lm", text=str(path), level="char", length=16)
    with pytest.raises(ArgumentError, match="state_noise: expected None"):
        train(model, task, TrainingConfig(steps=1, state_noise=0.1, device="cpu"), tmp_path / "other", progress=False)


def test_models_and_inputs_that_have_no_such_curve_are_named() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 11, (2, 60))
    model = ssm.LanguageModel(11, d_model=8, n_layers=1, d_state=4)
    for measure in (length_curve, effective_remembrance):
        ahead = lambda x: torch.nn.functional.one_hot(x.roll(-1, 1), 11).float()  # noqa: E731
        with pytest.raises(ArgumentError, match="model: expected a causal model"):
            measure(ahead, tokens)
        with pytest.raises(ArgumentError, match=r"model: expected an output at every step, .* got \(2, 11\)"):
            measure(lambda x: torch.zeros(len(x), 11), tokens)
        with pytest.raises(ArgumentError, match=r"model: expected logits .* of at least 11 classes"):
            measure(lambda x: torch.zeros(*x.shape, 8), torch.arange(60)[None] % 11)
        with pytest.raises(ArgumentError, match=r"inputs: .*batch > 0"):
            measure(model, tokens[:0])
        measure(model, tokens.to(torch.uint8).numpy())
    masked = torch.where(torch.arange(60) < 50, tokens, -100)
    with pytest.raises(ArgumentError, match=r"targets: expected classes from 0 .* got -100"):
        length_curve(model, tokens, masked)
    with pytest.raises(ArgumentError, match="inputs: expected tokens"):
        effective_remembrance(ssm.RealSSM(3, 4, 5), torch.randn(2, 50, 3))
    with pytest.raises(ArgumentError, match="contexts: expected at least one"):
        effective_remembrance(model, tokens, contexts=[])
    sorted_, shuffled = (effective_remembrance(model, tokens, contexts=each) for each in ([1, 4, 16], [16, 1, 4, 4]))
    assert shuffled.context.tolist() == [1, 4, 16]
    assert (sorted_.distance == shuffled.distance).all()


def test_a_model_whose_positions_end_says_so() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=1, n_positions=32)
    model, tokens = transformers.GPT2LMHeadModel(config), torch.randint(0, 11, (2, 60))
    for measure in (length_curve, effective_remembrance):
        with pytest.raises(ArgumentError, match="inputs: expected at most 32 steps, the positions of the model"):
            measure(model, tokens)
        measure(model, tokens[:, :33])


def test_a_state_that_does_not_continue_exactly_is_not_carried() -> None:
    """A Mamba of transformers loses the inputs of its convolution between calls; the curve is that of one call."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, state_size=4)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        tokens = torch.randint(0, 11, (2, 1301))
        logits = model(tokens[:, :-1], use_cache=False).logits
    losses = F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").numpy()
    curve = length_curve(model, tokens)
    assert not curve.carried
    np.testing.assert_allclose(curve.loss[-1], losses[:, curve.position[-2] :].mean(), rtol=1e-5)
    assert length_curve(ssm.LanguageModel(11, d_model=8, n_layers=1, d_state=4), tokens).carried


@pytest.mark.parametrize("steps", [4, 5, 40, 41])
def test_contexts_up_to_half_of_the_inputs(steps):
    tokens = torch.arange(steps) % 7
    model = lambda tokens: F.one_hot(tokens.cummax(1).values, 7).double()  # noqa: E731
    found = effective_remembrance(model, tokens, contexts=[1, steps // 2])
    assert found.context.tolist() == [1, steps // 2]
    with pytest.raises(ArgumentError, match=f"contexts: expected numbers from 1 to {steps // 2} "):
        effective_remembrance(model, tokens, contexts=[steps // 2 + 1])


@pytest.mark.parametrize("window", [0, -3, 2.5])
def test_a_window_of_no_steps_is_refused(window):
    with pytest.raises(ArgumentError, match="window: expected a whole number, at least 1"):
        length_curve(Counter(9), torch.arange(40) % 10, window=window)
