"""Repeated steps and sampling: the same tokens with and without a CUDA graph, and as full forward passes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from stablessm import ArgumentError
from stablessm.models import LanguageModel, decoding, sample_tokens
from stablessm.models.decoding import Repeated

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Called:
    """In the place of a CUDA graph: calls the function, and overwrites its first result."""

    def __init__(self, function: Any, arguments: Any, state: Any, generator: Any = None) -> None:
        self.function, self.result = function, function().clone()

    def __call__(self) -> Tensor:
        return self.result.copy_(self.function())


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Capture steps on a CPU too, and list the captures."""
    made: list[int] = []

    class Counted(decoding.CapturedStep):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            made.append(1)
            super().__init__(*args)

    if DEVICE.type == "cpu":
        monkeypatch.setattr(decoding, "Replayed", Called)
        monkeypatch.setattr(decoding, "_on_gpu", lambda *_: True)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(decoding, "CapturedStep", Counted)
    return made


def model(**options: Any) -> LanguageModel:
    """A model whose tokens vary: the embeddings are large."""
    torch.manual_seed(0)
    made = LanguageModel(50, d_model=16, n_layers=2, d_state=8, **options).to(DEVICE).eval()
    torch.nn.init.normal_(made.body.encoder.weight)
    torch.nn.init.normal_(made.body.blocks[1].narrow.weight)
    return made


SETTINGS = [{"temperature": 0}, {"seed": 5}, {"seed": 5, "top_k": 7, "never": [3, 4], "temperature": 0.7}]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_captured_step_draws_the_same_tokens(settings, captures, monkeypatch):
    net, prompt = model(), torch.randint(0, 50, (3, 6), device=DEVICE)
    fast = net.generate(prompt, 14, **settings)
    assert len(captures) == 1
    monkeypatch.setattr(decoding, "PLAIN", 100)
    assert torch.equal(fast, net.generate(prompt, 14, **settings))
    assert len(captures) == 1
    assert len(fast.unique()) > 3
    assert fast.shape == (3, 14)


@pytest.mark.parametrize("mixer", ["hyena-real", "hyena-s4d", "s4d"])
def test_generated_tokens_are_the_most_likely_ones_of_full_forward_passes(mixer, captures):
    net, prompt = model(mixer=mixer), torch.randint(0, 50, (2, 5), device=DEVICE)
    tokens = net.generate(prompt, 12, temperature=0)
    with torch.no_grad():
        logits = net(torch.cat([prompt, tokens], 1))[:, 4:-1]
    assert torch.equal(logits.argmax(-1), tokens)
    assert list(sample_tokens(net, prompt[1], count=12, temperature=0)) == tokens[1].tolist()


def test_texts_sampled_in_turns_do_not_share_a_state(captures):
    net, prompts = model(), torch.randint(0, 50, (2, 5))
    alone = [list(sample_tokens(net, prompt, count=10, seed=2)) for prompt in prompts]
    turns = zip(*(sample_tokens(net, prompt, count=10, seed=2) for prompt in prompts), strict=True)
    assert [list(text) for text in zip(*turns, strict=True)] == alone


def test_a_state_from_elsewhere_is_copied_and_other_shapes_are_captured_again(captures):
    """Beam search replaces the state by chosen rows of it."""

    def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        (total,) = state
        return 10 * (total + x), (total + x,)

    run, state, total = Repeated(step), (torch.zeros(2, device=DEVICE),), torch.zeros(2, device=DEVICE)
    for i in range(12):
        x = torch.tensor([1.0, i], device=DEVICE)
        y, state = run(x, state)
        total = total + x
        assert torch.equal(y, 10 * total)
        assert torch.equal(state[0], total)
        if i in (5, 7):
            state, total = (state[0].flip(0),), total.flip(0)
    assert len(captures) == 1
    state = (torch.zeros(1, device=DEVICE),)
    for _ in range(6):
        y, state = run(torch.ones(1, device=DEVICE), state)
    assert len(captures) == 2
    assert y.item() == 60


def test_a_step_that_cannot_be_captured_is_called(captures, monkeypatch):
    class Failing:
        def __init__(self, *args: Any) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

    net, prompt = model(), torch.randint(0, 50, (1, 4), device=DEVICE)
    expected = net.generate(prompt, 10, temperature=0)
    monkeypatch.setattr(decoding, "Replayed", Failing)
    with pytest.warns(UserWarning, match="without a CUDA graph, because a step cannot be captured: operation not"):
        assert torch.equal(net.generate(prompt, 10, temperature=0), expected)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no GPU")
def test_a_step_that_reads_values_falls_back_on_a_gpu():
    class Reading(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def sequence(self, *args: Any) -> Any:
            return self.net.sequence(*args)

        def step(self, tokens: Tensor, state: Any) -> Any:
            int(tokens[0])
            return self.net.step(tokens, state)

    net, prompt = Reading(), torch.tensor([1, 2])
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        drawn = list(sample_tokens(net, prompt, count=12, seed=1))
    assert drawn == list(sample_tokens(net.net, prompt, count=12, seed=1))


def test_prompts_of_the_wrong_shape_are_refused():
    with pytest.raises(ArgumentError, match=r"prompt: expected \(batch, time\)"):
        model().generate(torch.tensor([1, 2]), 3)
    assert model().generate(torch.tensor([[1, 2]]), 0).shape == (1, 0)
