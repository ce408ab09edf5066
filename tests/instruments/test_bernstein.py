"""The bound of theorem 3.1 (StableSSM) against the memory of layers whose derivative is known."""

import math

import matplotlib
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.instruments.bernstein import bernstein_bound, bernstein_check

matplotlib.use("Agg")
TIMES = torch.linspace(0, 20, 201, dtype=torch.float64)


def random_layer(d_input, activation, d_output=1):
    eigenvalues = -(10 ** torch.empty(6).uniform_(-1, 1))
    layer = ssm.RealSSM(d_input, 6, d_output, activation=activation, map="exp", eigenvalues=eigenvalues).double()
    with torch.no_grad():
        layer.bias.normal_()
    return layer.requires_grad_(False)


def slope(layer, x, times):
    """d/dt y under the constant inputs x, from h = (e^(λt) - 1)/λ v and dh/dt = e^(λt) v with v = Bx + b."""
    v, decay = x @ layer.B.T + layer.bias, layer.eigenvalues() * times[:, None, None]
    h = torch.expm1(decay) / layer.eigenvalues() * v
    steepness = 1 - h.tanh() ** 2 if layer.activation == "tanh" else 1.0
    return (steepness * decay.exp() * v) @ layer.C.T


def measured(layer, times, draws=200):
    """sup over random Heaviside inputs of |d/dt y|₂ / (|x|_∞ + 1), at each time."""
    x = torch.randn(draws, layer.d_input, dtype=torch.float64) * 10 ** torch.empty(draws, 1).double().uniform_(-2, 3)
    return (slope(layer, x, times).norm(dim=-1) / (x.abs().amax(-1) + 1)).amax(-1)


@pytest.mark.parametrize("d_output", [1, 2])
@pytest.mark.parametrize("d_input", [1, 3])
@pytest.mark.parametrize("activation", ["linear", "tanh"])
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_memory_of_a_layer_stays_below_both_bounds(activation, d_input, d_output, seed):
    torch.manual_seed(seed)
    layer = random_layer(d_input, activation, d_output)
    memory = measured(layer, TIMES)
    coarse, sharp = (bernstein_check(layer, TIMES, sharp=sharp).against(TIMES, memory) for sharp in (False, True))
    assert coarse.holds
    assert sharp.holds
    assert sharp.worst[0] >= coarse.worst[0]  # eq. 53 is never above eq. 54
    assert coarse.rate == pytest.approx(float(-layer.eigenvalues().max()))


@pytest.mark.parametrize("activation", ["linear", "tanh"])
def test_the_derivative_is_the_layer_s_own(activation):
    layer = random_layer(3, activation)
    step = 1e-4
    x = torch.randn(2, 3, dtype=torch.float64)
    y, _ = layer(x[:, None].expand(-1, 200, -1), dt=step)
    midway = (torch.arange(1, 200, dtype=torch.float64) + 0.5) * step
    torch.testing.assert_close(y.diff(dim=1).transpose(0, 1) / step, slope(layer, x, midway), rtol=1e-5, atol=1e-6)


def test_a_rate_the_layer_does_not_have_is_found_out():
    layer = random_layer(1, "linear")
    slow = float(-layer.eigenvalues().max())
    times = torch.linspace(0, 40 / slow, 100)
    check = bernstein_check(layer, times, rate=2 * slow).against(times, measured(layer, times.double()))
    assert not check.holds
    assert check.worst[0] > 1
    assert check.worst[1] == times[-1]
    noise = check.against(times, torch.full_like(times, 1e-15), floor=1e-12)
    assert noise.holds
    assert noise.worst[0] == 0


def test_one_state_by_hand():
    layer = ssm.RealSSM(2, 1, 1, eigenvalues=torch.tensor([-0.5]))
    with torch.no_grad():
        layer.B.copy_(torch.tensor([[3.0, 4.0]]))
        layer.bias.fill_(2.0)
        layer.C.fill_(-1.0)
    coarse, sharp = (bernstein_check(layer, [0.0, 2.0], lipschitz=0.25, sharp=sharp) for sharp in (False, True))
    assert (coarse.rate, coarse.theta_max, coarse.d_input) == (0.5, 5.0, 2)
    assert coarse.constant == pytest.approx(3 * 0.25 * 25)
    assert sharp.constant == pytest.approx(0.25 * (2 * 5 + 2))
    assert coarse.bound.tolist() == pytest.approx([18.75, 18.75 / math.e])
    same = bernstein_bound([0.0, 2.0], rate=0.5, theta_max=5.0, d_input=2, lipschitz=0.25)
    assert torch.equal(same.bound, coarse.bound)


def test_the_largest_norm_can_be_that_of_the_eigenvalues_whatever_the_map():
    for map in ("direct", "exp", "softplus"):
        layer = ssm.RealSSM(1, 2, 1, map=map, bias=False, eigenvalues=torch.tensor([-1.0, -100.0]))
        with torch.no_grad():
            layer.B.fill_(1.0)
        assert bernstein_check(layer, TIMES).theta_max == pytest.approx(100, rel=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        ssm.LRU(1, 2, 1),
        ssm.S4D(1, 2),
        ssm.RealSSM(1, 2, 1, time="discrete"),
        ssm.ContinuousRNN(1, 2, 1, recurrence="diagonal"),  # its activation is inside the recurrence
        ssm.RealSSM(1, 2, 1, map="direct", eigenvalues=torch.tensor([-1.0, 0.5])),
        torch.nn.Linear(1, 1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models_the_theorem_does_not_cover_are_refused(model):
    with pytest.raises(ArgumentError, match="model"):
        bernstein_check(model, TIMES)


def test_wrong_numbers_are_named():
    numbers = {"rate": 1.0, "theta_max": 1.0}
    for wrong, argument in [({"rate": 0.0}, "rate"), ({"theta_max": math.inf}, "theta_max, lipschitz")]:
        with pytest.raises(ArgumentError) as error:
            bernstein_bound(TIMES, **{**numbers, **wrong})
        assert error.value.argument == argument
    check = bernstein_bound(TIMES, **numbers)
    for act in (lambda: check.ratio, lambda: check.against(TIMES, TIMES[1:]), lambda: bernstein_bound([], **numbers)):
        with pytest.raises(ArgumentError):
            act()


def test_the_plot_shows_both_curves():
    check = bernstein_bound(TIMES, rate=1.0, theta_max=2.0)
    assert len(check.plot().lines) == 1
    ax = check.against(TIMES, 0.5 * check.bound).plot()
    assert len(ax.lines) == 2
    assert ax.get_yscale() == "log"
    assert check.plot(ax) is ax


@pytest.mark.parametrize("activation", ["linear", "tanh"])
def test_the_bound_of_moving_averages_is_that_of_the_same_layer_without(activation):
    """dh/dt = Λ(h - Bx - b) is dh/dt = Λh + |Λ|(Bx + b)."""
    layer = random_layer(3, activation)
    eigenvalues = layer.eigenvalues()
    average = ssm.RealSSM(3, 6, 1, activation=activation, map="exp", eigenvalues=eigenvalues, average=True).double()
    with torch.no_grad():
        for name in ("B", "bias"):
            own = getattr(layer, name)
            getattr(average, name).copy_(own / (-eigenvalues[:, None] if own.dim() == 2 else -eigenvalues))
        average.C.copy_(layer.C)
    x = torch.randn(2, 30, 3, dtype=torch.float64)
    torch.testing.assert_close(average(x)[0], layer(x)[0])
    for sharp in (False, True):
        torch.testing.assert_close(
            bernstein_check(average, TIMES, sharp=sharp).bound, bernstein_check(layer, TIMES, sharp=sharp).bound
        )
