"""A probe finds in a state what is in it: a delay line, an identity and a generator of noise have textbook answers."""

from __future__ import annotations

from collections import OrderedDict, UserList
from typing import Any

import hf_models
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments.readback import readback


class DelayLine:
    """A shift register: its state is the last ``size`` inputs."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        held = x.new_zeros(len(x), self.size, x.shape[2]) if state is None else state
        for t in range(x.shape[1]):
            held = torch.cat([x[:, t : t + 1], held[:, :-1]], 1)
        return held[:, -1:], held


class Noise:
    """A state that has nothing to do with the input."""

    def __call__(self, x: Tensor, state: Any = None) -> tuple[Tensor, Tensor]:
        return x, torch.randn(len(x), 12)


def white(batch: int = 20, steps: int = 150, channels: int = 1) -> Tensor:
    return torch.randn(batch, steps, channels, generator=torch.Generator().manual_seed(1))


@given(size=st.integers(1, 12), channels=st.integers(1, 2), batch=st.sampled_from([1, 3, 10]))
@settings(max_examples=8)
def test_a_delay_line_holds_all_up_to_its_length_and_nothing_beyond(size: int, channels: int, batch: int) -> None:
    found = readback(DelayLine(size), white(batch, 3000 // batch, channels), lags=16)
    assert found.state_size == size * channels
    np.testing.assert_allclose(found.explained[:size], 1, atol=1e-6)
    np.testing.assert_allclose(found.explained[size:], 0, atol=0.03)
    assert found.capacity == pytest.approx(size * channels, abs=0.05)
    assert found.capacity <= found.state_size * (1 + 1e-9)
    assert found.reach() == size - 1


def test_an_identity_knows_the_present_alone() -> None:
    found = readback(lambda x: x, white(), states=lambda x: x, lags=10)
    np.testing.assert_allclose(found.explained, [1] + [0] * 9, atol=0.02)
    assert (found.state_size, found.reach()) == (1, 0.0)


def test_noise_knows_nothing() -> None:
    found = readback(Noise(), white(), lags=20)
    assert found.explained.max() < 0.03
    assert found.capacity < 0.1
    assert np.isnan(found.reach())
    assert "of no input" in str(found)


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GRU(1, 6),
        lambda: nn.LSTM(1, 4, num_layers=2, batch_first=True),
        lambda: nn.RNN(1, 5),
        lambda: ssm.LRU(1, 4, 1),
        lambda: ssm.S4D(1, 4),
        lambda: ssm.RealSSM(1, 8, 1, dt=0.1),
        lambda: ssm.ContinuousRNN(1, 8, 1, dt=0.1),
        lambda: DelayLine(5),
    ],
)
def test_capacity_never_exceeds_the_state(make: Any, smooth: bool) -> None:
    """Also for inputs that repeat themselves, where many lags can be explained by few numbers."""
    x = white(10, 80)
    x = x.cumsum(1) / 10 if smooth else x
    found = readback(make(), x, lags=30)
    assert 0 < found.capacity <= found.state_size * (1 + 1e-9)
    assert ((found.explained >= 0) & (found.explained <= 1)).all()
    assert found.explained[0] > 0.2
    if smooth:
        assert found.explained.sum() > found.capacity


@given(st.integers(0, 1000))
@settings(max_examples=15)
def test_the_bound_on_the_capacity_holds_for_little_data_too(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 40, 1, generator=generator)
    mixing = torch.randn(3, 4, generator=generator)
    found = readback(lambda x: x, x, states=lambda x: torch.cat([x, x.roll(1, 1), x**2], 2) @ mixing, lags=15)
    assert found.capacity <= 4 + 1e-9


def test_a_linear_recurrence_has_the_capacity_of_theory() -> None:
    """Jaeger 2001: lag k is explained to v_kᵀ G⁻¹ v_k, v_k = λ^k, G = Σ v_k v_kᵀ; in total the number of states."""
    lam = 0.9 * ssm.reconstruction.optimized(5, 10)
    layer = ssm.LRU(1, 5, 1, eigenvalues=lam).double()
    found = readback(layer, white(30, 220), lags=60)
    powers = lam[:, None] ** torch.arange(500)
    v = torch.cat([powers.real, powers.imag])
    theory = (v * torch.linalg.solve(v @ v.mT, v)).sum(0)
    assert float(theory.sum()) == pytest.approx(10)
    np.testing.assert_allclose(found.explained, theory[:60].numpy(), atol=0.08)
    assert found.capacity == pytest.approx(10, abs=0.3)
    assert found.capacity <= found.state_size == 10


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_short_data_have_one_lag_by_default(steps: int) -> None:
    found = readback(DelayLine(2), white(40, steps))
    assert found.explained.shape == (1,)
    assert found.explained[0] > 0.99


@pytest.mark.parametrize(
    "wrap", [lambda h: OrderedDict(h=h), lambda h: {"h": [h]}, lambda h: UserList([h]), lambda h: (h,)]
)
def test_states_in_containers(wrap: Any) -> None:
    line = DelayLine(3)

    def model(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state is not None:
            state = state["h"] if hasattr(state, "keys") else state[0]
            state = state[0] if isinstance(state, list) else state
        y, held = line(x, state)
        return y, wrap(held)

    found = readback(model, white(), lags=5)
    assert (found.state_size, found.reach()) == (3, 2)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_a_small_feature_beside_a_large_one_counts(scale: float) -> None:
    """And a constant one does not, however large."""

    def states(x: Tensor) -> Tensor:
        x = x.double()
        return torch.cat([scale * x, torch.randn_like(x), torch.full_like(x, 3e15), torch.zeros_like(x)], 2)

    found = readback(lambda x: x, white(), states=states, lags=3)
    np.testing.assert_allclose(found.explained, [1, 0, 0], atol=0.02)


def test_states_are_asked_for_in_evaluation_mode_without_gradients() -> None:
    model = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.9))

    def states(x: Tensor) -> Tensor:
        assert not model.training
        assert not torch.is_grad_enabled()
        return model(x)

    assert readback(model, white(), states=states, lags=2).explained[0] > 0.99
    assert model.training


def test_time_is_in_units_of_dt() -> None:
    layer = ssm.RealSSM(1, 4, 1, dt=0.1)
    found = readback(layer, white(10, 60), lags=5)
    np.testing.assert_allclose(found.time, 0.1 * np.arange(5))
    assert layer.training


def test_mamba() -> None:
    model = hf_models.model("mamba", torch.float32)
    found = readback(model, white(20, 24, 32), lags=2)
    assert found.state_size == 2 * 64 * (4 + 8)  # two layers of 64 channels: 4 inputs of the convolution, 8 states
    assert found.explained.min() > 0.3
    assert found.capacity <= found.state_size


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: readback(nn.GRU(1, 2), torch.zeros(3, 4)), "data"),
        (lambda: readback(nn.GRU(1, 2), torch.full((9, 40, 1), torch.nan)), "data"),
        (lambda: readback(nn.GRU(1, 2), white(5, 20), lags=21), "lags"),
        (lambda: readback(nn.GRU(1, 2), white(5, 20), lags=0), "lags"),
        (lambda: readback(nn.GRU(1, 2), white(5, 20), lags=15), "data"),
        (lambda: readback(nn.GRU(2, 2), white()), "d_input"),
        (lambda: readback(nn.GRU(1, 2, bidirectional=True), white()), "model"),
        (lambda: readback(nn.Linear(1, 2), white()), "model"),
        (lambda: readback(lambda x, state: (x, None), white()), "model"),
        (lambda: readback(lambda x, state: (x, torch.zeros(3)), white()), "model"),
        (lambda: readback(lambda x, state: x, white()), "model"),
        (lambda: readback(None, white()), "model"),
        (lambda: readback(lambda x: x, white(), states=lambda x: x[:, 1:]), "states"),
        (lambda: readback(hf_models.model("llama", torch.float32), white(5, 20, 32)), "model"),
        (lambda: readback(DelayLine(2), white()).reach(2.0), "level"),
    ],
)
def test_errors_name_the_argument(call: Any, argument: str) -> None:
    with pytest.raises(ssm.ArgumentError, match=f"^{argument}: expected"):
        call()


def test_an_unstable_model_is_said_to_be() -> None:
    with pytest.raises(ssm.NumericalError, match="not finite"):
        readback(lambda x: x, white(), states=lambda x: x / 0)
