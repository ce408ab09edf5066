"""Models that look ahead, at any distance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.instruments.systems import as_system, seeing_ahead

HORIZON = 60


def shifted(x: Tensor, steps: int) -> Tensor:
    return torch.cat([x[:, steps:], torch.zeros_like(x[:, :steps])], 1)


def recurrence(seed: int) -> nn.RNN:
    torch.manual_seed(seed)
    return nn.RNN(1, 3, batch_first=True).double()


@settings(max_examples=15)
@given(steps=st.integers(1, 2 * HORIZON), seed=st.integers(0, 999))
def test_a_shift_by_any_number_of_steps_leaves_no_edge(steps: int, seed: int) -> None:
    assert ssm.memory_function(lambda x: shifted(x, steps), HORIZON, d_input=1).value.max() == 0
    rnn = recurrence(seed)
    curve = ssm.memory_function(lambda x: shifted(rnn(x)[0], steps), HORIZON, d_input=1, samples=4, ascent=0)
    with torch.no_grad():
        x = torch.from_numpy(curve.maximizer)[:, None].repeat(1, 1 + HORIZON + steps, 1)
        x[:, 0] = 0  # the step of warm-up
        y = rnn(x)[0] - rnn(torch.zeros_like(x))[0]
    at = torch.arange(HORIZON) + 1 + steps
    exact = (y[torch.arange(HORIZON), at] - y[torch.arange(HORIZON), at - 1]).norm(dim=-1).numpy()
    np.testing.assert_allclose(curve.value, exact, atol=1e-9)


@settings(max_examples=15)
@given(half=st.integers(1, HORIZON), before=st.floats(0, 1), seed=st.integers(0, 999))
def test_convolutions_with_any_padding(half: int, before: float, seed: int) -> None:
    width, generator = 2 * half + 1, torch.Generator().manual_seed(seed)
    kernel = torch.randn(1, 1, width, generator=generator, dtype=torch.float64)
    left = round(before * 2 * half)

    def convolution(x: Tensor) -> Tensor:
        return nn.functional.conv1d(nn.functional.pad(x.mT, (left, 2 * half - left)), kernel).mT

    curve = ssm.memory_function(convolution, HORIZON, d_input=1, linear=False)
    expected = np.zeros(HORIZON + 1)
    past = kernel[0, 0].flip(0).abs().numpy()[2 * half - left :][: HORIZON + 1]  # lags 0, 1, … of what has come
    expected[: len(past)] = past
    np.testing.assert_allclose(curve.value, expected[:HORIZON], atol=1e-12)


@pytest.mark.parametrize(
    ("model", "ahead"),
    [
        (lambda x: x.flip(1), True),
        (lambda x: x - x.mean(1, keepdim=True), True),
        (lambda x: x.flip(1).cummax(1).values.flip(1), True),
        (lambda x: x.roll(-50, 1), True),
        (lambda x: x.roll(1, 1), True),  # the first output is the last input
        (lambda x: x.cumsum(1), False),
        (lambda x: x.cummax(1).values, False),
        (lambda x: recurrence(0)(x)[0], False),
        (nn.LSTM(1, 2, batch_first=True, bidirectional=True), True),
        (nn.LSTM(1, 2, batch_first=True), False),
    ],
)
def test_looking_ahead_is_found(model, ahead: bool) -> None:
    system = seeing_ahead(as_system(model, d_input=1), HORIZON)
    assert (system.ahead > 0) == ahead


def peeking(form: str, steps: int, d: int, draw: torch.Generator) -> Callable[[Tensor], Tensor]:
    """A function whose outputs depend on the input ``steps`` steps later, some of them only after certain inputs."""
    one, two = torch.randn(2, d, 2, generator=draw, dtype=torch.float64)
    later = lambda x: shifted(x, steps) @ two  # noqa: E731
    return {
        "faint": lambda x: torch.relu(x @ one + 1e-6 * later(x) - 0.5),
        "gate": lambda x: x @ one * torch.sigmoid(later(x)),
        "after a threshold": lambda x: torch.relu(x @ one - 1) * later(x),
        "of a threshold": lambda x: x @ one + torch.relu(later(x) - 1),
        "larger": lambda x: torch.maximum(x @ one, later(x)),
    }[form]


@settings(max_examples=40)
@given(
    form=st.sampled_from(["faint", "gate", "after a threshold", "of a threshold", "larger"]),
    steps=st.integers(1, 5) | st.integers(1, 256),
    horizon=st.integers(5, 60),
    d=st.integers(1, 3),
    seed=st.integers(0, 9999),
)
def test_looking_ahead_is_found_at_any_distance(form: str, steps: int, horizon: int, d: int, seed: int) -> None:
    model = peeking(form, steps, d, torch.Generator().manual_seed(seed))
    assert seeing_ahead(as_system(model, d_input=d), horizon).ahead >= steps
    past = peeking(form, 0, d, torch.Generator().manual_seed(seed))
    assert seeing_ahead(as_system(past, d_input=d), horizon).ahead == 0


class Ahead(nn.Module):
    """Claims to carry a state, and looks ahead all the same."""

    d_input = 1

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(batch, 1)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return shifted(x, 30), self.initial_state(len(x))


def test_a_state_does_not_hide_looking_ahead() -> None:
    assert ssm.memory_function(Ahead(), HORIZON).value.max() == 0
    assert not seeing_ahead(as_system(Ahead()), HORIZON).streams


def test_fading_sees_no_edge_either() -> None:
    curve = ssm.fading_function(lambda x: shifted(x, 20).tanh(), 40, d_input=1)
    assert curve.value.max() == 0


def reading_all(kind: str, d: int, draw: torch.Generator) -> Callable[[Tensor], Tensor]:
    """A model whose outputs depend on the whole input, and so on where the input ends."""
    one, two, three = torch.randn(3, d, d, generator=draw, dtype=torch.float64) / d**0.5
    if kind == "transformer":
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=draw)))
        return nn.TransformerEncoderLayer(d, 1, 8, batch_first=True, dropout=0.0).double().eval()
    return {
        "mean": lambda x: torch.tanh(x @ one - x.mean(1, keepdim=True) @ two),
        "linear mean": lambda x: x @ one - x.mean(1, keepdim=True) @ two,
        "softmax": lambda x: (x @ one).softmax(1),
        "attention": lambda x: ((x @ one) @ (x @ two).mT).softmax(-1) @ (x @ three),
        "residual attention": lambda x: nn.functional.layer_norm(x + ((x @ one) @ x.mT).softmax(-1) @ x, (d,)),
        "scale": lambda x: x @ one / (1 + x.square().mean((1, 2), keepdim=True)),
        "spectrum": lambda x: torch.fft.rfft(x @ one, dim=1, norm="ortho").abs().mean(1, keepdim=True) + x,
        "from the end": lambda x: (x.flip(1).cumsum(1).flip(1) @ one).tanh(),
    }[kind]


KINDS = ["transformer", "mean", "linear mean", "softmax", "attention", "residual attention", "scale", "spectrum"]


@settings(max_examples=30)
@given(
    kind=st.sampled_from([*KINDS, "from the end"]),
    d=st.integers(1, 4),
    horizon=st.integers(1, 60),
    seed=st.integers(0, 999),
)
def test_a_model_that_reads_the_whole_input_is_not_noisy(kind: str, d: int, horizon: int, seed: int) -> None:
    model = reading_all(kind, d, torch.Generator().manual_seed(seed))
    curve = ssm.memory_function(model, horizon, d_input=d, samples=8, ascent=1)
    if kind in ("mean", "linear mean"):  # which change as one step of the input changes
        assert np.flatnonzero(curve.value > 1e-9).tolist() == [0]


@settings(max_examples=30)
@given(kind=st.sampled_from(KINDS), horizon=st.integers(20, 60), seed=st.integers(0, 999))
def test_noise_of_a_model_that_reads_the_whole_input_is_named(kind: str, horizon: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    model, size = reading_all(kind, 2, torch.Generator().manual_seed(seed)), 10 ** draw.uniform(-5, 0)
    rare = lambda y: y + size * torch.from_numpy(draw.random(y.shape) < 0.02)  # noqa: E731
    with pytest.raises(ArgumentError, match="got noise: two calls differ by"):
        ssm.memory_function(lambda x: rare(model(x)), horizon, d_input=2, samples=8, ascent=1)
