from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError, NumericalError
from stablessm.instruments import _supremum, systems

OWN = np.random.default_rng(0)

EXACT = {
    "real": lambda i, o: ssm.RealSSM(i, 8, o, map="best", dt=0.1),
    "real-direct": lambda i, o: ssm.RealSSM(i, 8, o, map="direct", dt=2.0),
    "real-exponential": lambda i, o: ssm.RealSSM(i, 8, o, map="exp", dt=0.5, discretization="exponential"),
    "real-discrete": lambda i, o: ssm.RealSSM(i, 8, o, map="tanh", time="discrete"),
    "lru": lambda i, o: ssm.LRU(i, 8, o, skip=False),
    "rnn-dense": lambda i, o: ssm.ContinuousRNN(i, 6, o, activation="linear", solver="exponential", dt=0.3),
    "rnn-diagonal": lambda i, o: ssm.ContinuousRNN(
        i, 6, o, activation="linear", recurrence="diagonal", map="exp", solver="exponential", dt=0.3
    ),
}


def kernel(layer: nn.Module, curve: ssm.MemoryCurve) -> Tensor:
    return layer.kernel(torch.from_numpy(curve.time)).detach()


@pytest.mark.parametrize(("d_input", "d_output"), [(1, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("name", EXACT)
def test_a_linear_layer_is_measured_exactly(name, d_input, d_output):
    layer = EXACT[name](d_input, d_output).double()
    nn.init.normal_(layer.bias) if getattr(layer, "bias", None) is not None else None
    curve = ssm.memory_function(layer, 300)
    expected = torch.linalg.matrix_norm(kernel(layer, curve), 2).numpy()
    assert curve.exact
    np.testing.assert_allclose(curve.value, expected, rtol=1e-8)
    reached = torch.einsum("toi,ti->to", kernel(layer, curve), torch.from_numpy(curve.maximizer)).norm(dim=1)
    np.testing.assert_allclose(reached, expected, rtol=1e-8)


def test_s4d_is_measured_exactly():
    layer = ssm.S4D(1, 8).double()
    curve = ssm.memory_function(layer, 300)
    np.testing.assert_allclose(curve.value, kernel(layer, curve)[:, 0].abs(), rtol=1e-8)


def two_layer_kernel(first: Tensor, second: Tensor, weights: Tensor, times: Tensor) -> Tensor:
    """Equation 38 of SSM-UA, with its limit t e^{λt} where two rates meet; weights (i, j) = C_i U_ij B_j.

    (e^{bt} - e^{at}) / (b - a) = e^{(a+b)t/2} · t · sinh(z)/z with z = (b - a)t/2, which has no cancellation.
    """
    a, b = first[:, None], second[None, :]
    t = times[:, None, None]
    z = (b - a) * t / 2
    sinhc = torch.where(z.abs() < 1e-4, 1 + z**2 / 6, z.sinh() / torch.where(z == 0, 1.0, z))
    return (weights * ((a + b) * t / 2).exp() * t * sinhc).sum((1, 2))


@settings(max_examples=8)
@given(gap=st.sampled_from([0.0, 1e-12, 1e-6, 1e-2, 0.5]), rate=st.floats(0.05, 2.0), seed=st.integers(0, 99))
def test_two_linear_layers_in_continuous_time(gap, rate, seed):
    generator = torch.Generator().manual_seed(seed)
    C, U, B = (torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.1 for shape in ((1, 2), (2, 2), (2, 1)))
    first = -rate * torch.tensor([1.0, 3.0], dtype=torch.float64)
    second = first - gap  # confluent where the gap is 0
    model = ssm.ContinuousRNN(1, 4, 1, activation="linear", solver="exponential", dt=0.1, bias=False).double()
    with torch.no_grad():
        model.M.copy_(torch.cat([torch.cat([first.diag(), U], 1), torch.cat([0 * U, second.diag()], 1)]))
        model.U.copy_(torch.cat([0 * B, B]))
        model.C.copy_(torch.cat([C, 0 * C], 1))
    curve = ssm.memory_function(model, 60)
    expected = two_layer_kernel(first, second, C.mT * U * B.mT, torch.from_numpy(curve.time))
    assert curve.exact
    np.testing.assert_allclose(curve.value, expected.abs(), rtol=1e-8, atol=1e-12)


@settings(max_examples=8)
@given(gap=st.sampled_from([0.0, 1e-9, 1e-3, 0.3]), modulus=st.floats(0.3, 0.99), seed=st.integers(0, 99))
def test_two_stacked_layers_in_discrete_time(gap, modulus, seed):
    """Σ λ₂^j λ₁^(k-j): the same equation as a sum; (k + 1) λ^k where two rates meet."""
    torch.manual_seed(seed)
    layers = [
        ssm.RealSSM(
            1, 2, 1, map="tanh", time="discrete", bias=False, eigenvalues=torch.tensor([modulus, modulus / 2]) - shift
        ).double()
        for shift in (0.0, gap * modulus / 2)
    ]
    curve = ssm.memory_function(lambda x: layers[1](layers[0](x)[0])[0], 200, d_input=1)
    one, two = (layer.kernel(torch.arange(200))[:, 0, 0].detach().numpy() for layer in layers)
    assert curve.exact
    np.testing.assert_allclose(curve.value, np.abs(np.convolve(one, two)[:200]), rtol=1e-8, atol=1e-12)


@settings(max_examples=3)
@given(seed=st.integers(0, 999))
def test_the_search_comes_within_a_percent(seed):
    torch.manual_seed(seed)
    layer = ssm.RealSSM(3, 16, 1, map="tanh", time="discrete").double()
    curve = ssm.memory_function(layer, 100, linear=False, seed=seed)
    expected = kernel(layer, curve)[:, 0].norm(dim=1).numpy()
    assert not curve.exact
    assert (curve.value <= expected * (1 + 1e-9)).all()
    assert (curve.value >= 0.99 * expected).all()
    assert (np.linalg.norm(curve.maximizer, axis=1) <= 1 + 1e-9).all()


def test_the_search_on_a_grid_bounds_the_supremum_from_below():
    layer = ssm.RealSSM(1, 8, 1, activation="tanh", time="discrete", map="tanh").double()
    with torch.no_grad():
        layer.B.mul_(3)
    curve = ssm.memory_function(layer, 50, bound=2.0)
    amplitudes = torch.linspace(-2, 2, 2001, dtype=torch.float64)
    y = layer(amplitudes[:, None, None].expand(-1, 50, -1))[0] - layer(torch.zeros(1, 50, 1).double())[0]
    dense = y.diff(dim=1, prepend=torch.zeros_like(y[:, :1])).abs()[..., 0].amax(0).detach().numpy() / 2
    assert not curve.exact
    np.testing.assert_allclose(curve.value, dense, rtol=1e-3)


def test_the_three_normalizations_of_a_linear_functional():
    layer = ssm.RealSSM(3, 8, 1, map="tanh", time="discrete").double()
    by_norm = {norm: ssm.memory_function(layer, 40, norm=norm, bound=2.0) for norm in ("ball", "plus_one", "unit")}
    rho = kernel(layer, by_norm["ball"])[:, 0]
    for norm, order in (("ball", 2), ("plus_one", 1), ("unit", math.inf)):
        assert by_norm[norm].exact
        np.testing.assert_allclose(by_norm[norm].value, rho.norm(order, dim=1), rtol=1e-8)
    several = ssm.RealSSM(4, 8, 2, map="tanh", time="discrete").double()
    curve = ssm.memory_function(several, 30, norm="plus_one")
    corners = torch.tensor(np.array(np.meshgrid(*[[-1.0, 1.0]] * 4)).reshape(4, -1))
    np.testing.assert_allclose(curve.value, (kernel(several, curve) @ corners).norm(dim=1).amax(1), rtol=1e-8)


@pytest.mark.parametrize("norm", ["plus_one", "unit"])
def test_searched_normalizations_stay_below_the_exact_ones(norm):
    layer = ssm.RealSSM(2, 8, 1, map="tanh", time="discrete").double()
    exact, searched = (ssm.memory_function(layer, 40, norm=norm, linear=linear) for linear in (None, False))
    assert (searched.value <= exact.value * (1 + 1e-9)).all()
    assert (searched.value >= 0.8 * exact.value).all()


def test_directions_and_amplitudes_are_measured_one_by_one():
    layer = ssm.RealSSM(2, 4, 1, activation="tanh").double()
    directions = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    curve = ssm.memory_function(layer, 30, directions=directions, amplitudes=[0.5, 1.0])
    assert curve.by_input.shape == (6, 30)
    assert len(curve.inputs) == 6
    np.testing.assert_array_equal(curve.value, curve.by_input.max(0))
    x = torch.tensor([0.6, 0.8], dtype=torch.float64)
    y = layer(x.expand(1, 30, 2))[0] - layer(torch.zeros(1, 30, 2).double())[0]
    last = y[0, :, 0].diff(prepend=torch.zeros(1).double()).abs().detach()
    np.testing.assert_allclose(curve.by_input[5], last, rtol=1e-9, atol=1e-15)
    np.testing.assert_array_equal(curve.of(curve.inputs[2]).value, curve.by_input[2])


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_the_modes_of_a_recurrence_do_not_decide_if_the_model_has_other_memory(kind):
    model = kind(1, 4, batch_first=True).double()

    def mean(x):
        y = model(x)[0]
        return y.cumsum(1) / torch.arange(1, 1 + y.shape[1], dtype=y.dtype)[:, None]

    alone, averaged = (
        ssm.memory_function(each, 200, d_input=1, directions=torch.ones(1, 1), linear=False, warm_up=0)
        for each in (lambda x: model(x)[0], mean)
    )
    assert alone.slowest is not None
    assert averaged.slowest is None


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_torch_recurrences(kind, batch_first):
    model = kind(2, 6, num_layers=2, batch_first=batch_first).double()
    curve = ssm.memory_function(model, 100, samples=16, ascent=2)
    assert curve.decay().kind == "exponential"
    assert curve.value[0] > 0
    assert curve.note.endswith("gradient ascent")


def test_a_bidirectional_recurrence_has_the_memory_of_its_forward_half():
    model = nn.LSTM(1, 8, bidirectional=True).double()
    forward = nn.LSTM(1, 8).double()
    forward.load_state_dict({k: v for k, v in model.state_dict().items() if not k.endswith("_reverse")})
    both, one = (ssm.memory_function(each, 120, norm="unit", warm_up=1) for each in (model, forward))
    assert both.decay().kind == "exponential"
    np.testing.assert_allclose(both.value[20:], one.value[20:], rtol=1e-6, atol=1e-12)


def test_a_model_with_one_output_a_sequence_is_run_on_beginnings():
    layer = ssm.RealSSM(1, 4, 1, activation="tanh", time="discrete", map="tanh").double()
    whole = ssm.memory_function(layer, 25)
    for last in (lambda x: layer(x)[0][:, -1], lambda x: layer(x)[0][:, -1, 0]):
        np.testing.assert_allclose(ssm.memory_function(last, 25, d_input=1).value, whole.value, rtol=1e-9)


def test_a_function_of_one_number_a_step():
    curve = ssm.memory_function(lambda x: (0.5 * x).cumsum(1)[..., 0], 20, d_input=1)
    np.testing.assert_allclose(curve.value, 0.5)
    assert curve.decay().kind == "none"


def test_a_function_around_a_single_precision_model():
    layer = ssm.RealSSM(1, 4, 1, map="tanh", time="discrete")
    curve = ssm.memory_function(lambda x: layer(x)[0], 50, d_input=1)
    np.testing.assert_allclose(curve.value, kernel(layer, curve)[:, 0, 0].abs(), rtol=1e-4, atol=1e-6)


def test_chunks_give_what_one_pass_gives(monkeypatch):
    models = [ssm.RealSSM(2, 4, 1, activation="tanh"), ssm.RealSSM(2, 4, 1), nn.GRU(2, 4)]
    whole = [ssm.memory_function(model.double(), 150, samples=4, ascent=1) for model in models]
    monkeypatch.setattr(systems, "CHUNK_ELEMENTS", 16)
    for model, expected in zip(models, whole, strict=True):
        curve = ssm.memory_function(model, 150, samples=4, ascent=1)
        np.testing.assert_allclose(curve.value, expected.value, rtol=1e-4, atol=1e-12)


class Deep(nn.Module):
    """Layers with something nonlinear between them, and a state."""

    d_input = 1

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(ssm.LRU(width, width, width) for _ in range(4))

    def initial_state(self, batch: int) -> list[Tensor]:
        return [layer.initial_state(batch) for layer in self.layers]

    def forward(self, x: Tensor, state: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        h, after = self.up(x), []
        for i, layer in enumerate(self.layers):
            y, last = layer(h, None if state is None else state[i])
            h = h + y.tanh()
            after.append(last)
        return self.down(h), after


@pytest.mark.parametrize("norm", ["unit", "ball"])
def test_blocks_of_a_deep_model_give_what_one_pass_gives(monkeypatch, norm):
    model = Deep().double()
    curve = ssm.memory_function(model, 200, norm=norm, samples=2, ascent=2)
    assert systems.as_system(model).held == 16
    monkeypatch.setattr(systems, "STATE_ELEMENTS", 1)
    short = ssm.memory_function(model, 200, norm=norm, samples=2, ascent=2)
    whole = ssm.memory_function(lambda x: model(x)[0], 200, d_input=1, norm=norm, samples=2, ascent=2)
    for other in (short, whole):
        rounding = 1e-6 if norm == "unit" else 1e-3  # of the inputs that the search follows
        np.testing.assert_allclose(curve.value, other.value, rtol=rounding, atol=1e-12)
        # near the best input the curve is flat, so that rounding decides between neighbors
        np.testing.assert_allclose(curve.maximizer[:100], other.maximizer[:100], rtol=0 if norm == "unit" else 0.01)


PEAK = """
import resource, sys, torch
import stablessm as ssm
from test_memory import Deep

torch.manual_seed(0)
model = Deep(32)
for horizon in (20000, int(sys.argv[1])):
    ssm.memory_function(model, horizon, samples=4, ascent=1, linear=False, progress=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_horizon():
    """An activation of 60,000 steps of 5 sequences in 32 channels has 38 MB; the whole curve 1.4 MB."""
    command = [sys.executable, "-c", PEAK, "60000"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, *sys.path)))}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    short, long = map(int, result.stdout.split())
    assert long - short < 32e6


def test_beyond_the_search_the_leaders_go_on(monkeypatch):
    torch.manual_seed(0)
    for model, searched in ((Deep().double(), 200), (nn.GRU(2, 4).double(), 30)):
        whole = ssm.memory_function(model, 300, samples=4, ascent=1)
        with monkeypatch.context() as patch:
            patch.setattr(_supremum, "SEARCHED", searched)
            curve = ssm.memory_function(model, 300, samples=4, ascent=1)
            shorter = ssm.memory_function(model, searched, samples=4, ascent=1)
        assert f"after {searched} steps" in curve.note
        assert (curve.value[:searched] >= shorter.value * (1 - 1e-12)).all()
        led = np.unique(curve.maximizer[searched:][curve.value[searched:] > 0], axis=0)
        assert len(led) <= _supremum.LEADERS
        alive = whole.value > 10 * whole.floor
        assert (curve.value[alive] > 0.5 * whole.value[alive]).all()


class Resting(nn.Module):
    """A recurrence that comes to rest, and counts how long it ran."""

    d_input = 1
    steps = 0

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(batch, 1)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self.steps += x.shape[1]
        h, y = self.initial_state(len(x)) if state is None else state, []
        for now in x.unbind(1):
            h = 0.5 * h + now.tanh()
            y.append(h)
        return torch.stack(y, 1), h


def test_a_state_at_rest_is_not_run_any_further(monkeypatch):
    monkeypatch.setattr(systems, "LONGEST", 64)
    model = Resting()
    curve = ssm.memory_function(model, 3000, norm="unit", linear=False)
    assert model.steps < 1000  # of 3000, with what is run to find out how to run it
    np.testing.assert_allclose(curve.value[:20], math.tanh(1) * 0.5 ** np.arange(20), rtol=1e-4, atol=1e-6)
    assert (curve.value[60:] == 0).all()


def test_a_state_that_counts_is_not_at_rest():
    assert not systems._unchanged({"h": torch.zeros(2), "step": 3}, {"h": torch.zeros(2), "step": 4})
    same = torch.zeros(2)
    assert not systems._unchanged((same,), (same,))  # written into, perhaps
    assert not systems._unchanged(object(), object())
    assert systems._unchanged((torch.zeros(2), [torch.ones(1)]), (torch.zeros(2), [torch.ones(1)]))


def test_a_limiter_that_shows_late_is_not_taken_for_linear():
    layer = ssm.RealSSM(1, 1, 1, map="tanh", time="discrete", eigenvalues=torch.tensor([0.999]), bias=False).double()
    nn.init.ones_(layer.B), nn.init.ones_(layer.C)

    def limited(x: Tensor) -> Tensor:
        return layer(x)[0].clamp(-100, 100)

    assert not ssm.memory_function(limited, 2000, d_input=1).exact
    assert ssm.memory_function(limited, 50, d_input=1).exact


def test_a_linear_model_whose_answer_depends_on_the_date_is_not_time_invariant():
    curve = ssm.memory_function(lambda x: x * torch.arange(x.shape[1])[:, None], 20, d_input=1)
    assert not curve.exact
    np.testing.assert_allclose(curve.value[1:], 1)


@pytest.mark.parametrize("ascent", [0, 2])
def test_a_model_too_large_to_remember_is_searched_in_pieces(monkeypatch, ascent):
    model = nn.GRU(6, 7).double()
    whole = ssm.memory_function(model, 30, samples=8, ascent=ascent)
    monkeypatch.setattr("stablessm.instruments._supremum.CHUNK_ELEMENTS", 100)
    pieces = ssm.memory_function(model, 30, samples=8, ascent=ascent)
    assert pieces.note == whole.note
    assert (pieces.value > 0.1 * whole.value).all()


def test_linear_near_zero_is_not_linear_everywhere():
    def limited(x: Tensor) -> Tensor:
        return x.clamp(-10, 10)

    assert ssm.memory_function(limited, 10, d_input=1).exact
    curve = ssm.memory_function(limited, 10, d_input=1, norm="plus_one")
    assert not curve.exact
    assert curve.value[0] == pytest.approx(10 / 11, rel=0.02)
    assert curve.value[0] <= 10 / 11 + 1e-12


def test_one_input_that_breaks_a_model_is_enough():
    def breaks(x: Tensor) -> Tensor:
        return torch.where(x[:, :1, :1] < -0.8, torch.nan, x.tanh())

    with pytest.raises(NumericalError, match="not finite 0 steps after the input"):
        ssm.memory_function(breaks, 5, d_input=3)


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_a_model_that_diverges_for_some_inputs_says_so(count: int) -> None:
    """Which inputs diverge, when, and whether to infinity or to NaN."""
    draw = np.random.default_rng(17)
    for _ in range(count):
        d, at, sign = int(draw.integers(1, 4)), int(draw.integers(0, 60)), float(draw.choice([-1, 1]))
        least, share = draw.uniform(0.1, 0.9), draw.uniform(0.1, 0.5)
        bad = float(draw.choice([math.nan, math.inf, 1e200]))

        def breaks(
            x: Tensor, at: int = at, sign: float = sign, least: float = least, share: float = share, bad: float = bad
        ) -> Tensor:
            total = sign * x[..., :1].cumsum(1) / (torch.arange(x.shape[1], dtype=x.dtype)[:, None] + 1)
            late = torch.arange(x.shape[1])[:, None] >= at
            return torch.where(late & (total > least) & (total < least + share), bad, total.tanh()).square()

        with pytest.raises(NumericalError, match=r"not finite \d+ steps after the input of size .*\. Remedy: "):
            ssm.memory_function(breaks, 60, d_input=d)


@pytest.mark.parametrize("dt", [2, np.float32(0.5), np.int64(3)])
def test_any_number_is_a_time_step(dt):
    layer = ssm.RealSSM(1, 2, 1, map="exp", dt=dt, eigenvalues=torch.tensor([-0.1, -0.3])).double()
    curve = ssm.memory_function(layer, 200)
    assert curve.dt == float(dt)
    assert curve.decay().rate == pytest.approx(0.1, rel=0.02)


def test_a_wrapper_has_the_time_step_of_what_is_inside():
    class Wrapper(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)[0]
            return x

    half, tenth = ssm.RealSSM(1, 2, 1, dt=0.5), ssm.RealSSM(1, 2, 1, dt=0.1)
    assert ssm.memory_function(Wrapper(half, half), 10, d_input=1).dt == 0.5
    assert ssm.memory_function(Wrapper(half, tenth), 10, d_input=1).dt == 1.0
    both_ways = ssm.Bidirectional(ssm.RealSSM(1, 2, 1, dt=0.5), ssm.RealSSM(1, 2, 1, dt=0.5))
    assert ssm.memory_function(both_ways, 10).dt == 0.5


def test_a_module_that_takes_time_first_is_refused():
    with pytest.raises(ArgumentError, match="batch_first=True"):
        ssm.memory_function(nn.TransformerEncoderLayer(8, 2, 16), 10, d_input=8)
    kept = ssm.memory_function(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 10, d_input=8, samples=4)
    assert kept.value.max() > 0


class Residual(nn.Module):
    """A module of one's own around a recurrence, with a layer before it."""

    def __init__(self, inner: nn.Module, d: int) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(d, d), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))[0]


def contained(draw: np.random.Generator, d: int, batch_first: bool) -> nn.Module | Callable[[Tensor], Tensor]:
    """A recurrence of PyTorch in a container."""
    kind, options = [nn.RNN, nn.GRU, nn.LSTM][draw.integers(3)], {"batch_first": batch_first}
    inner = kind(d, 3, int(draw.integers(1, 3)), bidirectional=bool(draw.random() < 0.3), **options)
    match draw.integers(5):
        case 0:
            return nn.Sequential(inner)
        case 1:
            return nn.Sequential(nn.Linear(d, d), nn.Sequential(nn.Tanh(), inner))
        case 2:
            return Residual(inner, d)
        case 3:
            return lambda x, state: inner(x, state)
    return lambda x: inner(x)[0]


@pytest.mark.parametrize("batch_first", [False, True])
@given(d=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_a_recurrence_in_a_container_runs_over_time(d: int, seed: int, batch_first: bool) -> None:
    torch.manual_seed(seed)
    model = contained(np.random.default_rng(seed), d, batch_first)
    if batch_first:
        assert systems.as_system(model, d_input=d).d_input == d
    else:
        with pytest.raises(ArgumentError, match="sequences in a batch that do not mix"):
            systems.as_system(model, d_input=d)


MIXED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda x, lag: x - x.mean(0, keepdim=True),
    "largest": lambda x, lag: x / x.abs().max(),
    "softmax": lambda x, lag: x.softmax(0),
    "sorted": lambda x, lag: x.sort(0).values,
    "reversed": lambda x, lag: x.flip(0),
    "turned": lambda x, lag: x.roll(lag, 0),
    "sum so far": lambda x, lag: x.cumsum(0),
    "sum from here": lambda x, lag: x.flip(0).cumsum(0).flip(0),
    "delay": lambda x, lag: x + nn.functional.pad(x, (0, 0, 0, 0, lag, 0))[: len(x)],
    "delay alone": lambda x, lag: nn.functional.pad(x, (0, 0, 0, 0, lag, 0))[: len(x)] + 0 * x,
    "another axis": lambda x, lag: x.reshape(x.shape[1], len(x), -1).cumsum(1).reshape(x.shape),
    "attention": lambda x, lag: (
        torch.einsum("btd,ctd->tbc", x, x).softmax(-1).matmul(x.transpose(0, 1)).transpose(0, 1)
    ),
}


@pytest.mark.parametrize("kind", MIXED)
@pytest.mark.parametrize("lag", [1, 2, 3, 15])
def test_sequences_of_a_batch_that_mix_are_refused(kind: str, lag: int) -> None:
    with pytest.raises(ArgumentError, match="sequences in a batch that do not mix"):
        systems.as_system(lambda x: MIXED[kind](x, lag).tanh(), d_input=2)


def test_a_horizon_of_one_step():
    curve = ssm.memory_function(ssm.RealSSM(1, 2, 1, dt=0.1), np.int64(1))
    assert (len(curve.value), curve.dt) == (1, 0.1)
    assert curve.decay().kind == "undecided"


def test_warm_up_lets_a_nonlinear_model_settle():
    model = nn.GRU(1, 6).double()
    settled = ssm.memory_function(model, 30, warm_up=80, samples=16, ascent=2)
    assert not np.allclose(settled.value, ssm.memory_function(model, 30, samples=16, ascent=2).value, rtol=1e-3)
    longer = ssm.memory_function(model, 30, warm_up=120, samples=16, ascent=2)
    np.testing.assert_allclose(settled.value, longer.value, rtol=1e-6)


def test_measuring_changes_nothing():
    model = nn.LSTM(2, 4, dropout=0.5, num_layers=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seed = torch.random.get_rng_state()
    first = ssm.memory_function(model, 20)
    assert model.training
    assert torch.equal(seed, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    np.testing.assert_array_equal(first.value, ssm.memory_function(model, 20).value)


def test_a_model_without_gradient_is_searched_without_it():
    def numpy_model(x: Tensor) -> Tensor:
        return torch.from_numpy(np.tanh(np.cumsum(x.detach().numpy(), axis=1)))

    curve = ssm.memory_function(numpy_model, 20, d_input=2)
    assert curve.note == "64 inputs, 8 steps of ascent"


def test_the_time_is_the_users():
    layer = ssm.RealSSM(1, 4, 1, dt=0.25).double()
    curve = ssm.memory_function(layer, 10, unit="s")
    assert (curve.dt, curve.unit) == (0.25, "s")
    with pytest.raises(ArgumentError, match=r"dt: expected 0\.25"):
        ssm.memory_function(layer, 10, dt=1.0)
    sampled = ssm.memory_function(lambda x: layer(x)[0], 10, d_input=1, dt=0.25)  # means over a step
    times = torch.arange(0, 2.5, 0.001, dtype=torch.float64) + 0.0005
    means = layer.kernel(times)[:, 0, 0].unflatten(0, (10, 250)).mean(1).detach()
    np.testing.assert_allclose(sampled.value, means.abs(), rtol=1e-5)


def test_curves_are_saved_loaded_and_drawn(tmp_path):
    layer = ssm.RealSSM(2, 4, 1, map="exp").double()
    curve = ssm.memory_function(layer, 80, directions=torch.eye(2), unit="ms")
    curve.save(tmp_path / "curve.npz")
    again = ssm.MemoryCurve.load(tmp_path / "curve.npz")
    for name in ("time", "value", "maximizer", "by_input"):
        np.testing.assert_array_equal(getattr(again, name), getattr(curve, name))
    for name in ("unit", "norm", "bound", "exact", "floor", "note", "inputs", "dt"):
        assert getattr(again, name) == getattr(curve, name)
    axes = curve.plot()
    assert "ms" in axes.get_xlabel()
    assert axes.get_yscale() == "log"
    figure = curve.plotly()
    assert len(figure.data) == len(axes.lines)
    assert figure.layout.yaxis.type == "log"
    assert "ms" in str(curve)


def test_a_model_that_grows_out_of_bounds_says_so():
    layer = ssm.RealSSM(1, 1, 1, map="direct", eigenvalues=torch.tensor([-1.0]))
    with torch.no_grad():
        layer.w.fill_(1.0)
    with pytest.raises(NumericalError, match=r"not finite 8[0-9] steps after"):
        ssm.memory_function(layer, 200)
    assert ssm.memory_function(layer, 40).decay().kind == "none"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon"),
        ({"norm": "sup"}, "norm: expected one of .ball., .plus_one., .unit."),
        ({"bound": -1.0}, "bound"),
        ({"d_input": 3}, r"d_input: expected 2 \(the model's\), got 3"),
        ({"directions": torch.ones(3)}, r"directions: expected shape \(n, 2\)"),
        ({"directions": torch.zeros(1, 2)}, "directions: expected finite vectors other than 0, got one of length 0"),
        ({"directions": torch.full((9, 2), torch.nan)}, "directions: expected finite vectors other than 0, got one of"),
        ({"directions": torch.eye(2), "amplitudes": [2.0]}, "amplitudes"),
        ({"tokens": [1]}, "prefix: expected token ids that precede the input, since the model has no begin token"),
        ({"tokens": [1], "prefix": [0]}, "model: expected a callable that takes"),
        ({"prefix": [1]}, "prefix: expected None without tokens"),
        ({"suffix": [1]}, "suffix: expected None without tokens"),
        ({"amplitudes": [1.0]}, "amplitudes: expected None without directions"),
        ({"horizon": True}, "horizon"),
        ({"output": "logits"}, "output"),
        ({"dt": 0.0}, "dt"),
        ({"samples": 0}, "samples"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ArgumentError, match=message):
        ssm.memory_function(nn.GRU(2, 3), **{"horizon": 10, **options})


@pytest.mark.parametrize(
    ("model", "d_input", "message"),
    [
        (3, 1, "a callable or module, got int"),
        (nn.Linear(4, 2), 3, "Linear, which raised RuntimeError"),
        (nn.Linear(4, 2), None, "d_input: expected the number of input channels"),
        (lambda x: x.long(), 1, "a real floating point tensor"),
        (lambda x: x * 1j, 1, "view_as_real"),
        (lambda x: x.sum(), 1, "output \\(batch, time, d_output\\)"),
        (lambda x: x[:, :3], 1, "output \\(batch, time, d_output\\)"),
    ],
)
def test_a_model_that_cannot_be_measured_gets_a_reason(model, d_input, message):
    with pytest.raises(ArgumentError, match=message):
        ssm.memory_function(model, 10, d_input=d_input)


def test_rows_that_differ_by_rounding_are_apart_and_mixed_ones_are_not():
    """A GPU may add up in another order when the batch is another."""
    systems.as_system(lambda x: x.cumsum(1) * (1 + 1e-10 * len(x)), d_input=2)
    with pytest.raises(ArgumentError, match="sequences in a batch that do not mix"):
        systems.as_system(lambda x: x.cumsum(1) + 0.01 * x.mean(0), d_input=2)


def varying(x: Tensor) -> Tensor:
    """Linear, but not the same at all times; a constant input in both channels is not heard."""
    return ((x[..., 0] - x[..., 1]) * torch.cos(torch.arange(x.shape[1], dtype=x.dtype))).cumsum(1)[..., None]


def limited(x: Tensor) -> Tensor:
    """An integrator of a difference that comes to its end."""
    state, states = torch.zeros(len(x), dtype=x.dtype), []
    for t in range(x.shape[1]):
        state = (state + x[:, t, 0] - x[:, t, 1]).clamp(-100, 100)
        states.append(state)
    return torch.stack(states, 1)[..., None]


@pytest.mark.parametrize(("model", "horizon"), [(varying, 50), (limited, 250)])
def test_what_hears_differences_of_channels_alone_is_not_taken_for_linear(model, horizon: int) -> None:
    assert not ssm.memory_function(model, horizon, d_input=2).exact


class Windowed(nn.Module):
    """Layers of attention without positions; each layer sees the last ``window`` inputs."""

    def __init__(self, window: int, layers: int, width: int, heads: int, pooled: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.window, self.pooled, self.encoder = window, pooled, nn.TransformerEncoder(layer, layers)

    def forward(self, x: Tensor) -> Tensor:
        lag = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        y = self.encoder(x, mask=(lag < 0) | (lag >= self.window))
        return y[:, -1] if self.pooled else y


@settings(max_examples=8)
@given(st.integers(1, 24), st.integers(1, 2), st.sampled_from([2, 4]), st.integers(3, 4), st.booleans(), st.integers(0))
def test_attention_finds_inputs_before_time_0(window, layers, heads, share, pooled, seed) -> None:
    """Given a constant input alone, the output of attention does not change, whatever its memory."""
    torch.manual_seed(seed % 2**31)
    model = Windowed(window, layers, heads * share, heads, pooled)
    horizon = layers * (window - 1) + 9
    curve = ssm.memory_function(model, horizon, d_input=heads * share, samples=4, ascent=0)
    assert np.flatnonzero(curve.value > curve.floor).max() == layers * (window - 1)


@pytest.mark.parametrize("warm_up", [-3, 2.5])
def test_a_warm_up_is_a_number_of_steps(warm_up: float) -> None:
    with pytest.raises(ArgumentError, match=r"^warm_up: expected a whole number, at least 0, got"):
        ssm.memory_function(ssm.LRU(1, 2, 1), 20, warm_up=warm_up)


class Cumulated(nn.Module):
    """A module that overwrites its input, as nn.ReLU(inplace=True) does."""

    def forward(self, x: Tensor) -> Tensor:
        return x.copy_(x.cumsum(1))


@pytest.mark.parametrize(
    "model",
    [
        lambda x: np.tanh(np.cumsum(np.asarray(x), axis=1)),
        lambda x: np.tanh(np.cumsum(x, axis=1).astype(np.float64)),  # takes nothing but arrays
        lambda x: torch.tanh(torch.as_tensor(x).cumsum(1)).tolist(),
        lambda x: np.tanh(np.cumsum(np.asarray(x), axis=1))[..., 0],
        lambda x: np.tanh(np.cumsum(np.asarray(x), axis=1)).astype(">f8"),
        lambda x: np.flip(np.flip(np.tanh(np.cumsum(np.asarray(x), axis=1)), 1).copy(), 1),  # negative strides
        lambda x: np.tanh(np.cumsum(np.asarray(x), axis=1)).astype(np.longdouble),
        lambda x: x.copy_(x.cumsum(1)).tanh_(),  # overwrites its input
        nn.Sequential(Cumulated(), nn.Tanh()),
    ],
)
def test_functions_of_numpy_arrays_and_lists(model) -> None:
    expected = ssm.memory_function(lambda x: x.cumsum(1).tanh(), 20, d_input=1)
    curve = ssm.memory_function(model, 20, d_input=1)
    np.testing.assert_allclose(curve.value, expected.value, rtol=1e-2)


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        (lambda x: nn.functional.dropout(x.cumsum(1), 0.3), "it draws random numbers"),
        (lambda x: x + 1e-3 * torch.randn_like(x), "it draws random numbers"),
        (lambda x: x + 1e-6 * torch.randn_like(x), "it draws random numbers"),  # less than single precision tells
        (lambda x: np.asarray(x) + np.random.normal(size=x.shape), "it draws random numbers"),
        (lambda x: np.asarray(x) * OWN.normal(), "random numbers of its own"),
    ],
)
def test_noise_is_named(model, cause: str) -> None:
    with pytest.raises(ArgumentError, match=rf"model: expected the same output .*got noise: two calls .*{cause}"):
        ssm.memory_function(model, 20, d_input=1)


def noisy(kind: str, draw: np.random.Generator) -> Callable[[Tensor], Tensor]:
    """A small recurrence with noise of its own that a single short call may not show."""
    gru = nn.GRU(2, 4, batch_first=True).double()
    own, size = np.random.default_rng(draw.integers(2**31)), 10 ** draw.uniform(-5, 0)

    def model(x: Tensor) -> Tensor:
        y = gru(x)[0]
        noise = torch.from_numpy(own.standard_normal(y.shape))
        match kind:
            case "tiny":
                return y + 1e-9 * size * noise
            case "late":
                return y + size * noise * (torch.arange(y.shape[1]) > 15)[:, None]
            case "long":
                return y + size * noise * (y.shape[1] > 20)
            case "rare":
                return y + size * (torch.rand(y.shape) < 0.003)
        return y if own.random() < 0.7 else -y

    return model


@settings(max_examples=15)
@given(kind=st.sampled_from(["tiny", "late", "long", "rare", "sign"]), seed=st.integers(0, 2**31))
def test_noise_that_a_short_call_may_hide_is_named(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    with pytest.raises(ArgumentError, match=r"got noise: two calls differ by"):
        ssm.memory_function(noisy(kind, np.random.default_rng(seed)), 40, d_input=2, samples=8, ascent=1)


def test_chaos_is_no_noise() -> None:
    """Rounding differs between batches, and a chaotic network amplifies it."""
    torch.manual_seed(0)
    rnn = nn.RNN(2, 32, batch_first=True).double()
    with torch.no_grad():
        rnn.weight_hh_l0.mul_(8)
    ssm.memory_function(lambda x: rnn(x)[0], 200, d_input=2, samples=8, ascent=1)


def test_a_dilated_convolution_is_silent_between_its_taps() -> None:
    """At most lags nothing is heard, and no direction is best there."""
    convolution = nn.Conv1d(2, 3, 5, dilation=7)
    curve = ssm.memory_function(lambda x: convolution(nn.functional.pad(x.mT, (28, 0))).mT.tanh(), 100, d_input=2)
    assert np.flatnonzero(curve.value > 10 * curve.floor).tolist() == [0, 7, 14, 21, 28]


@pytest.mark.parametrize("lag", [0, 20, 90])
@pytest.mark.parametrize("function", [torch.tanh, lambda x: (3 * x).sin(), lambda x: x.clamp(min=-0.6), torch.abs])
def test_what_is_not_linear_after_a_lag_is_not_exact(function: Callable[[Tensor], Tensor], lag: int) -> None:
    curve = ssm.memory_function(
        lambda x: nn.functional.pad(function(x), (0, 0, lag, 0))[:, : x.shape[1]], 100, d_input=1
    )
    assert not curve.exact
    assert curve.value.argmax() == lag


def test_no_derivative_at_rest() -> None:
    """The slope of a square root is infinite at 0; the response to a finite input is not."""
    curve = ssm.memory_function(lambda x: (x.abs() + 0).sqrt(), 20, d_input=1)
    assert curve.value[0] == pytest.approx(1)


def test_a_model_without_finite_output_at_rest_is_told_so() -> None:
    with pytest.raises(NumericalError, match="not finite 0 steps after"):
        ssm.memory_function(torch.log, 20, d_input=1)


@pytest.mark.parametrize("bound", [1e-8, 1e-10])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_bound_below_single_precision_is_no_proof_of_linearity(bound: float, seed: int) -> None:
    """Where inputs are lost in the rounding of a float32 model, the search runs on its copy in float64."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 4))
    curve = ssm.memory_function(model, 10, d_input=2, bound=bound)
    assert not curve.exact
    assert curve.value[0] == pytest.approx(float(torch.linalg.matrix_norm(model[0].weight.detach(), 2)), rel=1e-3)


@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 40])
def test_the_effective_length_in_steps_is_a_sum(horizon: int) -> None:
    value = 0.5 ** np.arange(horizon)
    length = ssm.MemoryCurve(np.arange(horizon), value, dt=1.0).effective_length()
    assert length == pytest.approx(value.sum() if horizon < 8 else 2.0, rel=1e-6)
    delayed = ssm.MemoryCurve(np.arange(horizon), (np.arange(horizon) == horizon - 1) * 3.0, dt=1.0)
    assert delayed.effective_length() == pytest.approx(1.0)
