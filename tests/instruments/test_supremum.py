"""The search for the supremum against brute force, on random recurrences."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import search_pins
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments._precision import in_double
from stablessm.instruments.systems import as_system


def random_recurrence(seed: int, d_input: int) -> nn.RNNBase:
    """RNN, GRU or LSTM of random size with random gains, with or without biases; an RNN is near its stability limit."""
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    kind = (nn.RNN, nn.GRU, nn.LSTM)[draw.integers(3)]
    width, depth, bias = int(draw.integers(1, 7)), int(draw.integers(1, 3)), bool(draw.integers(2))
    model = kind(d_input, width, depth, bias=bias, batch_first=True).double()
    gains = {"weight_ih": 10 ** draw.uniform(-1, 1), "weight_hh": 10 ** draw.uniform(-0.5, 0.5), "bias": 0.5}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(next(gain for part, gain in gains.items() if name.startswith(part)))
            if name.startswith("weight_hh") and kind is nn.RNN:
                weight.mul_(draw.uniform(0.3, 1.1) / float(torch.linalg.eigvals(weight).abs().max()))
    return model


def brute_force(model: nn.RNNBase, horizon: int, sizes: int, directions: int) -> np.ndarray:
    size = torch.logspace(-6, 0, sizes, dtype=torch.float64)
    angle = torch.arange(directions, dtype=torch.float64) * 2 * math.pi / directions
    around = torch.stack([angle.cos(), angle.sin()], 1)[:, : model.input_size]
    x = (size[:, None, None] * around).flatten(0, 1)
    return speeds(model, x, horizon).amax(0).numpy()


def speeds(model: nn.RNNBase, x: Tensor, horizon: int) -> Tensor:
    with torch.no_grad():
        y = model(x[:, None].expand(-1, horizon, -1))[0] - model(torch.zeros(1, horizon, x.shape[1]).double())[0]
    return y.diff(dim=1, prepend=torch.zeros_like(y[:, :1])).norm(dim=-1)


def share_found(seed: int, d_input: int, horizon: int) -> float:
    model = random_recurrence(seed, d_input)
    expected = brute_force(model, horizon, *((400, 2) if d_input == 1 else (80, 48)))
    curve = ssm.memory_function(model, horizon, seed=seed)
    heard = expected > 100 * curve.floor  # rounding changes less than 1 % of these
    return float((curve.value[heard] / expected[heard]).min()) if heard.any() else 1.0


@pytest.mark.parametrize("name", search_pins.SEARCHES)
def test_the_search_tries_the_same_inputs(name: str) -> None:
    expected, found = json.loads(search_pins.PATH.read_text(encoding="utf-8"))[name], search_pins.searched(name)
    assert all(search_pins.same(found["calls"], expected["calls"])), (found["calls"], expected["calls"])
    numbers = [number for number, wanted in zip(found["found"], expected["found"], strict=True) if wanted is not None]
    assert numbers == pytest.approx([wanted for wanted in expected["found"] if wanted is not None], rel=1e-4, abs=0)
    assert found["note"] == expected["note"]


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_the_search_goes_on_to_the_end_of_the_slowest_response(count: int) -> None:
    """A constant input of nearly -b/w cancels a bias, so that the state is slow only in a narrow range of inputs.

    The first inputs decay long before; the curve then ended where the search did, and was called finite.
    """
    rng = np.random.default_rng(21)
    for _ in range(count):
        rate = math.exp(rng.uniform(math.log(0.003), math.log(0.1)))
        into, bias = rng.uniform(0.5, 1), rng.uniform(-0.45, 0.45)
        model = nn.RNN(1, 1, batch_first=True).double()
        with torch.no_grad():
            for weight, number in zip(model.parameters(), (into, math.exp(-rate), bias, 0.0), strict=True):
                weight.fill_(number)
        horizon = int(rng.uniform(5, 14) / rate)
        curve = ssm.memory_function(model, horizon)
        near = -bias / into + torch.cat([torch.zeros(1), torch.logspace(-7, -1, 60), -torch.logspace(-7, -1, 60)])
        expected = speeds(model, near[:, None].double(), horizon).amax(0).numpy()
        assert (curve.value >= 0.8 * expected - 2 * curve.floor).all()
        fit = curve.decay()
        assert fit.kind in ("exponential", "undecided"), fit
        assert fit.kind == "undecided" or fit.interval[0] <= rate <= fit.interval[1]


@settings(max_examples=3)
@given(seed=st.integers(0, 2**31), d_input=st.sampled_from([1, 2]))
def test_the_search_finds_what_brute_force_finds(seed: int, d_input: int) -> None:
    assert share_found(seed, d_input, 100) >= 0.95


@pytest.mark.slow
def test_the_search_finds_what_brute_force_finds_in_two_hundred_models() -> None:
    shares = np.array([share_found(seed, 1 + seed % 2, 300) for seed in range(1000, 1200)])
    assert (shares >= 0.98).mean() >= 0.98
    assert shares.min() >= 0.95


@settings(max_examples=4)
@given(seed=st.integers(0, 2**31), d_input=st.sampled_from([1, 2]), growth=st.sampled_from([0.5, 1.0, 1.3]))
def test_every_value_is_reached_by_its_input(seed: int, d_input: int, growth: float) -> None:
    """An input near an unstable rest grows until it saturates; the linearization at rest grows without end."""
    model = random_recurrence(seed, d_input)
    with torch.no_grad():
        for layer in range(model.num_layers):
            getattr(model, f"weight_hh_l{layer}").mul_(growth)
    curve = ssm.memory_function(model, 100, samples=16, ascent=2)
    reached = speeds(model, torch.from_numpy(curve.maximizer), 100).diagonal().numpy()
    np.testing.assert_allclose(curve.value, reached, rtol=0.03, atol=10 * curve.floor)


@settings(max_examples=3)
@given(seed=st.integers(0, 2**31))
def test_one_input_is_never_worse_than_with_a_second_that_does_nothing(seed: int) -> None:
    one = random_recurrence(seed, 1)
    two = type(one)(2, one.hidden_size, one.num_layers, bias=one.bias, batch_first=True).double()
    weights = one.state_dict()
    weights["weight_ih_l0"] = torch.nn.functional.pad(weights["weight_ih_l0"], (0, 1))
    two.load_state_dict(weights)
    alone, beside = ssm.memory_function(one, 60), ssm.memory_function(two, 60)
    heard = beside.value > 100 * beside.floor
    assert (alone.value[heard] >= 0.98 * beside.value[heard]).all()


class Unit(nn.Module):
    """A recurrence h = update(h, x) with one state, read by a function."""

    def __init__(self, update: Callable[[Tensor, Tensor], Tensor], read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.update, self.read, self.d_input = update, read, 1

    def forward(self, x: Tensor) -> Tensor:
        h, outputs = torch.zeros_like(x[:, 0]), []
        for now in x.unbind(1):
            h = self.update(h, now)
            outputs.append(self.read(h))
        return torch.stack(outputs, 1)


@settings(max_examples=3)
@given(gain=st.floats(1.1, 2), weight=st.floats(0.5, 2), bias=st.floats(0.02, 0.25))
def test_an_input_near_the_threshold_of_a_bistable_unit_is_remembered_for_as_long_as_numbers_tell(
    gain: float, weight: float, bias: float
) -> None:
    """The state stays at the saddle for a time that grows as the input nears a threshold, and then moves at full speed.

    The memory function therefore does not decay.
    """
    bias = min(bias, 0.5 * (math.sqrt(1 - 1 / gain) * gain - math.atanh(math.sqrt(1 - 1 / gain))))  # bistable at rest
    model = Unit(lambda h, x: torch.tanh(gain * h + weight * x - bias), lambda h: h)
    horizon = min(150, int(20 / math.log(gain)))  # rounding errors leave the saddle later
    curve = ssm.memory_function(model, horizon)
    assert curve.value[-1] > 0.02 * curve.value.max(), (curve.value[-1], curve.value.max())


@settings(max_examples=3)
@given(leak=st.floats(0.99, 0.999), threshold=st.floats(5, 30), steepness=st.floats(1, 15))
def test_a_front_that_reaches_a_threshold_at_a_time_set_by_the_input(
    leak: float, threshold: float, steepness: float
) -> None:
    """Another narrow range of inputs has the largest response at each time."""
    model = Unit(lambda h, x: leak * h + x, lambda h: torch.sigmoid((h - threshold) * steepness))
    curve = ssm.memory_function(model, 150)
    total = (1 - leak ** np.arange(1, 152)) / (1 - leak)  # h = total x
    largest = np.zeros(150)
    for offset in np.linspace(-2, 2, 81) / steepness:  # the front crosses the threshold within this step
        for at in (0, 1):
            x = np.minimum(1, (threshold + offset) / total)[at : at + 150, None]
            h = np.concatenate([np.zeros_like(x), x * total[None, :150]], 1)
            y = 1 / (1 + np.exp(-np.clip((h - threshold) * steepness, -500, 500)))
            largest = np.maximum(largest, np.abs(np.diff(y, axis=1)).max(0))
    assert (curve.value >= 0.95 * largest).all()


@settings(max_examples=4)
@given(angle=st.floats(0, 2 * math.pi), threshold=st.floats(0.5, 0.9))
def test_a_model_that_is_silent_below_a_threshold_is_not_taken_for_a_linear_model(
    angle: float, threshold: float
) -> None:
    toward = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    curve = ssm.memory_function(
        lambda x: ((x @ toward)[..., None] * 0.05).cumsum(1).sub(threshold).relu(), 20, d_input=2
    )
    assert not curve.exact
    assert curve.value.max() == pytest.approx(0.05, rel=0.01)


def test_an_unstable_rest_makes_no_output_larger_than_the_model_does() -> None:
    model = nn.RNN(1, 1, bias=False, batch_first=True).double()
    with torch.no_grad():
        model.weight_hh_l0.fill_(1.3)
        model.weight_ih_l0.fill_(0.5)
    curve = ssm.memory_function(model, 400)
    assert curve.value.max() < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [0.985, 0.95, 0.8])
def test_a_small_input_remembers_longest_in_a_saturating_recurrence(weight: float, dtype: torch.dtype) -> None:
    """An input of size one saturates tanh and is forgotten at once; the slowest rate is that of small inputs."""
    model = nn.RNN(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight_hh_l0.fill_(weight)
        model.weight_ih_l0.fill_(0.5)
    curve = ssm.memory_function(model, 1500)
    slope = -np.diff(np.log(curve.value[curve.value > 100 * curve.floor]))[-1]
    assert slope == pytest.approx(-math.log(weight), rel=0.03)
    assert curve.decay().rate == pytest.approx(-math.log(weight), rel=0.06)
    assert abs(curve.maximizer[len(curve.value[curve.value > 100 * curve.floor]) - 1, 0]) < 0.1


def test_the_linearization_at_rest_takes_part() -> None:
    """With one sample and no ascent nothing else is as good at late times."""
    model = nn.RNN(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight_hh_l0.fill_(0.9)
        model.weight_ih_l0.fill_(8.0)
    curve = ssm.memory_function(model, 60, samples=1, ascent=0)
    np.testing.assert_allclose(curve.value[30:], 1e-6 * 8 * 0.9 ** np.arange(30, 60), rtol=1e-6)
    assert "linearization at rest" in curve.note


@pytest.mark.parametrize("norm", ["ball", "plus_one"])
def test_the_linearization_is_normalized_as_the_inputs_are(norm: str) -> None:
    model = nn.RNN(2, 3, bias=False, batch_first=True).double()
    curve = ssm.memory_function(model, 40, samples=2, ascent=0, norm=norm, bound=3.0)
    small = np.linalg.norm(curve.maximizer, axis=1) < 1e-4
    for t in np.flatnonzero(small & (curve.value > 1e3 * curve.floor)):
        x = torch.from_numpy(curve.maximizer[t])
        size = 3.0 if norm == "ball" else 1 + float(x.abs().max())
        assert curve.value[t] == pytest.approx(float(speeds(model, x[None], 40)[0, t]) / size, rel=1e-3)


def test_a_model_in_single_precision_is_searched_in_double_precision() -> None:
    single = nn.GRU(2, 4)
    double = nn.GRU(2, 4).double()
    double.load_state_dict(single.state_dict())
    one, other = (ssm.memory_function(model, 80, samples=8, ascent=2) for model in (single, double))
    np.testing.assert_array_equal(one.value, other.value)
    assert single.weight_hh_l0.dtype == torch.float32


class Half(nn.Module):
    """Computes in single precision whatever its weights are."""

    d_input = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).float().cumsum(1).tanh().to(x.dtype)


def test_a_model_that_leaves_double_precision_on_the_way_stays_as_it_is() -> None:
    model = Half()
    assert in_double(as_system(model), as_system).model is model
    assert ssm.memory_function(model, 30).floor > 1e-8
