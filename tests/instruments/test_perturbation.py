"""The perturbation error: bounds on both sides, closed forms, and a model that stays as it was."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.instruments import _impulse_response, _model_stack
from stablessm.instruments._weight_balls import WeightBall
from stablessm.instruments.perturbation import PerturbationCurve, perturbation_error
from stablessm.layers.initialize import timescales
from stablessm.targets import LinearFunctional

POLYNOMIAL = LinearFunctional("polynomial", exponent=1.1)
RADII = [0.0, 1e-3, 1e-2, 1e-1]


def fitted(width: int, map: str, target: LinearFunctional = POLYNOMIAL, longest: float = 100.0) -> ssm.RealSSM:
    """Eigenvalues spread over time scales up to the longest, and the readout that least squares finds."""
    layer = ssm.RealSSM(1, width, 1, map=map, bias=False, eigenvalues=-1 / timescales(width, 0.6, longest)).double()
    times = torch.arange(301, dtype=torch.float64)
    with torch.no_grad():
        layer.B.fill_(1)
        modes = torch.exp(layer.eigenvalues() * times[:, None])
        solution = torch.linalg.lstsq(modes, target.kernel(times)[:, 0], rcond=1e-8, driver="gelsd").solution
        layer.C.copy_(solution.T)
    return layer


def measure(
    model: nn.Module, target: object = POLYNOMIAL, radii: object = RADII, **options: object
) -> PerturbationCurve:
    return perturbation_error(model, target, radii, **{"horizon": 100, "samples": 5, **options})


class Branching(nn.Module):
    """A step depends on the data, which vmap cannot follow."""

    d_input = 1

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y if y.sum() > 0 else 2 * y


class Lstm(nn.Module):
    """A recurrence of PyTorch's own, with a readout."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.readout = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.lstm(x)[0])


# --- the search -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_norm", ["tensor_max", "entry_max"])
@pytest.mark.parametrize("norm", ["kernel_l1", "sobolev", "mse"])
@pytest.mark.parametrize("map", ["direct", "best"])
def test_ascent_is_never_below_random(map: str, norm: str, weight_norm: str) -> None:
    layer = fitted(8, map)
    random, ascent = (
        measure(layer, norm=norm, weight_norm=weight_norm, search=search, steps=5) for search in ("random", "ascent")
    )
    assert (ascent.lower >= random.lower).all()
    assert ascent.lower[-1] > random.lower[-1]


@pytest.mark.parametrize("weight_norm", ["tensor_max", "entry_max"])
def test_ascent_beats_random_at_the_same_cost(weight_norm: str) -> None:
    layer, radii = fitted(64, "direct"), [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
    options = {"weight_norm": weight_norm, "parameters": "recurrent", "radii": radii}
    ascent = measure(layer, search="ascent", steps=10, **options)
    random = measure(layer, samples=5 * 11, **options)
    assert random.evaluations == ascent.evaluations
    assert (ascent.lower >= 1.5 * random.lower).all()


def test_the_curve_never_falls_and_starts_at_the_error_of_the_model() -> None:
    layer = fitted(8, "direct")
    curve = measure(layer, radii=[0.3, 0.0, 0.1, 1e-4])
    assert curve.radius.tolist() == [0.0, 1e-4, 0.1, 0.3]
    assert (np.diff(curve.lower) >= 0).all()
    times = torch.arange(101, dtype=torch.float64)
    error = (layer.kernel(times) - POLYNOMIAL.kernel(times)).abs()[:, 0, 0]
    assert curve.lower[0] == pytest.approx(torch.trapezoid(error).item())
    assert measure(layer, radii=[0.0]).evaluations == 1
    with pytest.raises(ArgumentError, match="radii: expected a list of one or more numbers"):
        measure(layer, radii=0.1)


@pytest.mark.parametrize("search", ["random", "ascent"])
def test_the_seed_decides(search: str) -> None:
    layer = fitted(8, "direct")
    first, again, other = (measure(layer, search=search, steps=2, seed=seed).lower for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first[1:] != other[1:]).any()


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(), nn.Linear(4, 1)).double()
    model[0].eval()
    before = copy.deepcopy(model.state_dict())
    measure(model, norm="mse", search="ascent", steps=2, inputs=torch.randn(2, 10, 1))
    assert [module.training for module in model] == [False, True, True]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_random_perturbations_are_those_of_a_loop() -> None:
    layer = ssm.RealSSM(1, 4, 1, map="tanh", time="discrete").double()
    for weight_norm, order in (("tensor_max", 2), ("entry_max", math.inf)):
        ball = WeightBall.of(weight_norm)
        weights = dict(layer.named_parameters())
        noise = ball.sample(weights, 5, seed=3)
        worst = 0.0
        for draw in range(5):
            other = copy.deepcopy(layer)
            with torch.no_grad():
                for name, parameter in other.named_parameters():
                    assert torch.linalg.vector_norm(noise[name][draw], order).item() == pytest.approx(1)
                    parameter.add_(0.1 * noise[name][draw])
            change = other.kernel(torch.arange(100.0)) - POLYNOMIAL.kernel(torch.arange(100.0))
            worst = max(worst, change.abs().sum().item())
        curve = measure(layer, radii=[0.1], weight_norm=weight_norm, seed=3)
        assert curve.lower[0] == pytest.approx(worst, rel=1e-12)


# --- models -----------------------------------------------------------------------------------------------------


def test_a_model_that_vmap_cannot_run_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.isfinite(measure(Branching(), norm="mse", search="ascent", steps=3).lower).all()
    layer = fitted(4, "best")
    stacked = measure(layer, norm="mse", search="ascent", steps=3)
    monkeypatch.setattr(_model_stack.Stack, "vectorized", False)
    np.testing.assert_allclose(measure(layer, norm="mse", search="ascent", steps=3).lower, stacked.lower, rtol=1e-9)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure(fitted(4, "best"), search="ascent", steps=3)
    monkeypatch.setitem(_model_stack.CHUNK_BYTES, "cpu", 1)
    np.testing.assert_allclose(measure(fitted(4, "best"), search="ascent", steps=3).lower, whole.lower, rtol=1e-12)


MODELS = {
    "rnn": lambda: ssm.ContinuousRNN(1, 4, 1, dt=1.0),
    "nonlinear": lambda: ssm.RealSSM(1, 4, 1, activation="tanh"),
    "lru": lambda: ssm.LRU(1, 4, 1),
    "s4d": lambda: ssm.S4D(1, 4),
    "lstm": Lstm,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norm", ["mse", "sobolev"])
def test_any_model_has_a_curve(name: str, norm: str) -> None:
    curve = measure(MODELS[name](), norm=norm, horizon=20, samples=3, search="ascent", steps=2)
    assert np.isfinite(curve.lower).all()
    assert (np.diff(curve.lower) >= 0).all()
    assert curve.upper is None
    assert curve.theorem is None


def test_s4d_has_a_kernel_but_no_upper_bound() -> None:
    model = MODELS["s4d"]().double()
    curve = measure(model, model, norm="kernel_l1", horizon=20)
    assert curve.lower[0] == 0
    assert curve.lower[-1] > 0
    assert curve.upper is None


def test_outputs_of_a_linear_model_come_from_its_impulse_response(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ssm.RealSSM(2, 4, 3, skip=True).double()
    nn.init.normal_(layer.bias)
    inputs, target = torch.randn(6, 30, 2), ssm.RealSSM(2, 4, 3).double()
    for norm in ("mse", "sobolev"):
        fast = measure(layer, target, norm=norm, inputs=inputs).lower
        with monkeypatch.context() as patch:
            patch.setattr(_impulse_response, "SHIFTED_BYTES", 0)
            np.testing.assert_allclose(measure(layer, target, norm=norm, inputs=inputs).lower, fast, rtol=1e-9)
        with monkeypatch.context() as patch:
            patch.setattr(ssm.RealSSM, "kernel", None)
            np.testing.assert_allclose(measure(layer, target, norm=norm, inputs=inputs).lower, fast, rtol=1e-9)


def test_sobolev_of_a_linear_model_approaches_the_kernel_norm() -> None:
    """For H linear, sup_x |H_t(x)| / (‖x‖ + 1) is below ∫|ρ|, and near it for a large Heaviside input if ρ > 0."""
    layer = ssm.RealSSM(1, 1, 1, map="direct", dt=0.01, bias=False, eigenvalues=torch.tensor([-1.0])).double()
    nn.init.ones_(layer.B)
    nn.init.ones_(layer.C)
    zero = LinearFunctional(torch.zeros_like, dt=0.01)
    value = measure(layer, zero, radii=[0.0], norm="sobolev", horizon=1000).lower[0]
    # The value ∫_0^t ρ and the derivative of a jump from -x to x, 2 ρ(0), bound the sum.
    assert 100 / 101 < value < 3
    assert measure(layer, zero, radii=[0.0], norm="kernel_l1", horizon=1000).lower[0] == pytest.approx(1, abs=1e-3)


def test_an_explosion_is_infinite() -> None:
    layer = ssm.RealSSM(1, 1, 1, map="direct", bias=False, eigenvalues=torch.tensor([-0.1]))
    curve = measure(layer, radii=[1e-3, 100.0], search="ascent", steps=2, parameters="recurrent")
    assert np.isfinite(curve.lower[0])
    assert curve.lower[1] == curve.upper[1] == math.inf


# --- theory -----------------------------------------------------------------------------------------------------

MAPS = {
    "continuous": ["direct", "clip", "relu", "exp", "softplus", "best"],
    "discrete": ["direct", "clip", "relu", "exp", "softplus", "tanh", "best"],
}


@settings(max_examples=24)
@given(
    st.sampled_from([(time, map) for time, maps in MAPS.items() for map in maps]),
    st.sampled_from(["tensor_max", "entry_max"]),
    st.sets(st.sampled_from(["w", "B", "C"]), min_size=1),
    st.integers(1, 6),
    st.integers(1, 2),
    st.integers(0, 10_000),
)
def test_lower_never_exceeds_upper(
    kind: tuple, weight_norm: str, parameters: set, width: int, channels: int, seed: int
) -> None:
    time, map = kind
    torch.manual_seed(seed)
    layer = ssm.RealSSM(channels, width, 3 - channels, map=map, time=time).double()
    with torch.no_grad():
        layer.w.mul_(torch.rand(width) * 1.2 - 0.2)  # signs, unstable modes and the neighborhood of 0 included
        start = copy.deepcopy(layer)
        start.C.add_(0.1 * torch.randn(3 - channels, width))
    curve = measure(
        layer, start, radii=[0.0, 1e-4, 1e-2, 0.3, 2.0], horizon=40, weight_norm=weight_norm,
        parameters=sorted(parameters), search="ascent", steps=6, seed=seed,
    )  # fmt: skip
    assert (curve.lower <= curve.upper).all()
    assert (np.diff(curve.upper) >= 0).all()
    assert (curve.theorem is None) == bool(parameters & {"B", "C"})


def one_mode(map: str, time: str, eigenvalue: float, dt: float | None = None) -> ssm.RealSSM:
    start = torch.tensor([eigenvalue], dtype=torch.float64)
    layer = ssm.RealSSM(1, 1, 1, map=map, time=time, dt=dt, bias=False, eigenvalues=start).double()
    with torch.no_grad():
        layer.w.copy_(layer.map.inverse(start))
        layer.B.fill_(1.5)
        layer.C.fill_(-2.0)
    return layer


@pytest.mark.parametrize("map", ["direct", "exp", "softplus", "best"])
def test_closed_form_of_one_continuous_mode(map: str) -> None:
    layer = one_mode(map, "continuous", -1.0, dt=2e-3)
    beta = 0.2
    ends = layer.map(layer.w.detach() + torch.tensor([-beta, beta], dtype=torch.float64))
    expected = 3.0 * (1 / ends.abs() - 1).abs().max().item()
    curve = measure(
        layer, layer, radii=[beta], parameters="recurrent", search="ascent", steps=4, samples=2, horizon=15_000
    )
    assert curve.lower[0] == pytest.approx(expected, rel=1e-5)
    assert curve.upper[0] == pytest.approx(expected, rel=1e-5)
    assert curve.upper[0] >= curve.lower[0]
    assert curve.theorem[0] >= curve.lower[0] * (1 - 1e-5)
    if map == "exp":
        assert curve.theorem[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("map", ["direct", "exp", "softplus", "tanh", "best"])
def test_closed_form_of_one_discrete_mode(map: str) -> None:
    layer = one_mode(map, "discrete", 0.5)
    beta = 0.1
    ends = layer.map(layer.w.detach() + torch.tensor([-beta, beta], dtype=torch.float64))
    expected = 3.0 * (1 / (1 - ends) - 2).abs().max().item()
    curve = measure(layer, layer, radii=[beta], parameters="recurrent", search="ascent", steps=4, samples=2)
    assert curve.lower[0] == pytest.approx(expected, rel=1e-9)
    assert curve.upper[0] == pytest.approx(expected, rel=1e-9)


def test_the_theorem_holds_on_a_fine_grid_and_is_infinite_for_an_unstable_map() -> None:
    target = LinearFunctional("polynomial", exponent=1.1, dt=0.05)
    layer = ssm.RealSSM(1, 8, 1, map="softplus", dt=0.05).double()
    curve = measure(layer, target, parameters="recurrent", search="ascent", steps=3, horizon=4000)
    assert (curve.lower <= curve.upper).all()
    assert (curve.upper <= curve.theorem * 1.01).all()
    direct = measure(layer.with_map("direct"), target, parameters="recurrent")
    assert direct.theorem[0] == direct.lower[0]
    assert (direct.theorem[1:] == math.inf).all()


def test_a_map_of_someone_else_has_no_bound() -> None:
    class Cosh(ssm.reparam.Reparameterization):
        name, time = "cosh", "continuous"

        def __call__(self, w: Tensor) -> Tensor:
            return -w.cosh()

        def inverse(self, eigenvalues: Tensor) -> Tensor:
            return (-eigenvalues).acosh()

    layer = ssm.RealSSM(1, 2, 1, map=Cosh(), eigenvalues=torch.tensor([-2.0, -3.0]))
    assert measure(layer).upper is None


def test_discrete_and_continuous_time_agree_on_the_target() -> None:
    """A discrete kernel weighs a step, so dt ρ(k dt) is what it should be."""
    target = LinearFunctional("exponential", rate=0.5, dt=0.1)
    layer = one_mode("direct", "discrete", math.exp(-0.05))
    with torch.no_grad():
        layer.B.fill_(0.1)
        layer.C.fill_(1.0)
    assert measure(layer, target, radii=[0.0]).lower[0] < 1e-9
    inputs = torch.randn(3, 50, 1, dtype=torch.float64)
    assert measure(layer, target, radii=[0.0], norm="mse", inputs=inputs).lower[0] < 1e-20


# --- arguments and results --------------------------------------------------------------------------------------


def test_parameters_by_name_pattern_and_role() -> None:
    layer = fitted(4, "best")
    assert measure(layer).parameters == ("w", "B", "C")
    assert measure(layer, parameters="recurrent").parameters == ("w",)
    assert measure(layer, parameters=["[BC]"]).parameters == ("B", "C")
    layer.B.requires_grad_(False)
    assert measure(layer).parameters == ("w", "C")
    with pytest.raises(ArgumentError, match=r"parameters: expected names or patterns of w, C, got 'A'"):
        measure(layer, parameters=["w", "A"])
    with pytest.raises(ArgumentError, match="recurrent_parameters"):
        measure(nn.Linear(1, 1), parameters="recurrent", norm="mse")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"radii": []}, "radii"),
        ({"radii": [-0.1, 0.1]}, "radii"),
        ({"radii": [0.1, math.nan]}, "radii"),
        ({"radii": [math.inf]}, "radii"),
        ({"radii": [[0.1]]}, "radii"),
        ({"norm": "l2"}, "norm"),
        ({"weight_norm": "l2"}, "weight_norm"),
        ({"search": "grid"}, "search"),
        ({"samples": 0}, "samples"),
        ({"horizon": 0}, "horizon"),
        ({"dt": -1.0}, "dt"),
        ({"norm": "mse", "dt": 0.5}, "dt"),
        ({"target": torch.cumsum}, "target"),
        ({"target": ssm.RealSSM(2, 3, 1)}, "target"),
        ({"target": ssm.RealSSM(2, 3, 1), "norm": "mse"}, "target"),
        ({"target": lambda x: x[:, 1:], "norm": "mse"}, "target"),
        ({"inputs": torch.zeros(1, 5, 1)}, "inputs"),
        ({"inputs": torch.zeros(1, 5, 2), "norm": "mse"}, "inputs"),
        ({"inputs": torch.zeros(5, 1), "norm": "sobolev"}, "inputs"),
        ({"model": nn.Linear(1, 1), "target": torch.relu, "norm": "mse"}, "inputs"),
        ({"model": nn.Linear(1, 1)}, "model"),
        ({"model": torch.relu}, "model"),
        ({"model": ssm.RealSSM(1, 2, 1, activation="tanh")}, "activation"),
    ],
)
def test_wrong_arguments_are_named(options: dict, named: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{named}:"):
        measure(**{"model": fitted(2, "best"), **options})


def test_save_load_and_plot(tmp_path) -> None:
    for curve in (measure(fitted(4, "best"), parameters="recurrent"), measure(fitted(4, "best"), norm="mse")):
        curve.save(tmp_path / "curve.npz")
        again = PerturbationCurve.load(tmp_path / "curve.npz")
        for name, value in vars(curve).items():
            np.testing.assert_array_equal(getattr(again, name), value)
        axes = curve.plot()
        assert curve.plot(axes) is axes
        assert len(curve.plotly().data) == (3 if curve.theorem is not None else 1)


def test_the_steepest_change_of_a_tiny_gradient_has_norm_one() -> None:
    from stablessm.instruments._weight_balls import WeightBall

    tiny = {"w": torch.tensor([[3e-200, 4e-200], [0.0, 0.0], [1.0, torch.inf]], dtype=torch.float64)}
    steepest = WeightBall.of("tensor_max").steepest(tiny)["w"]
    torch.testing.assert_close(steepest, torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64))


@settings(max_examples=16)
@given(
    st.sampled_from(MAPS["discrete"]),
    st.sampled_from(["tensor_max", "entry_max"]),
    st.sets(st.sampled_from(["w", "phase", "B", "C"]), min_size=1),
    st.booleans(),
    st.integers(1, 5),
    st.integers(0, 10_000),
)
def test_lower_never_exceeds_upper_for_turning_modes(
    map: str, weight_norm: str, parameters: set, normalize: bool, width: int, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = ssm.LRU(2, width, 1, map=map, r_min=0.3, normalize=normalize, skip=False).double()
    with torch.no_grad():
        layer.w.mul_(torch.rand(width) * 1.4 - 0.2)
    curve = measure(
        layer, copy.deepcopy(layer), radii=[0.0, 1e-4, 1e-2, 0.3, 2.0], horizon=30, weight_norm=weight_norm,
        parameters=sorted(parameters), search="ascent", steps=6, seed=seed,
    )  # fmt: skip
    assert (curve.lower <= curve.upper).all()
    assert (np.diff(curve.upper) >= 0).all()
    assert curve.theorem is None


def test_the_bound_of_a_turning_mode_is_no_larger_than_it_must_be() -> None:
    layer = ssm.LRU(1, 1, 1, map="direct", normalize=False, skip=False, eigenvalues=torch.tensor([0.9 + 0.0j])).double()
    curve = measure(layer, layer, radii=[0.05], parameters=["w"], horizon=500, search="ascent", steps=20)
    mode = float(layer.B.norm() * layer.C.norm())
    assert curve.upper[0] == pytest.approx(mode * (1 / 0.05 - 1 / 0.1), rel=1e-6)
    assert curve.lower[0] <= curve.upper[0]


@pytest.mark.parametrize("parameters", ["recurrent", ["M", "U", "C"]])
def test_a_diagonal_continuous_rnn_is_a_real_ssm_by_other_names(parameters: str | list) -> None:
    rnn = ssm.ContinuousRNN(1, 4, 1, activation="linear", recurrence="diagonal", map="exp", bias=False).double()
    twin = ssm.RealSSM(1, 4, 1, map="exp", bias=False).double()
    with torch.no_grad():
        twin.w.copy_(rnn.M), twin.B.copy_(rnn.U), twin.C.copy_(rnn.C)
    target = LinearFunctional("polynomial")
    names = {"M": "w", "U": "B", "C": "C"}
    same = parameters if parameters == "recurrent" else [names[name] for name in parameters]
    one, other = measure(rnn, target, parameters=parameters), measure(twin, target, parameters=same)
    np.testing.assert_allclose(one.upper, other.upper)
    assert (one.theorem is None) == (other.theorem is None) == (parameters != "recurrent")


def test_half_precision_has_no_upper_bound() -> None:
    layer = ssm.RealSSM(1, 4, 1, map="exp", bias=False).bfloat16()
    curve = measure(layer, LinearFunctional("polynomial"))
    assert np.isfinite(curve.lower).all()
    assert curve.upper is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 50.5}, r"^horizon: expected a whole number, at least 2, got 50\.5"),
        ({"samples": 4.5}, r"^samples: expected a whole number, at least 1, got 4\.5"),
        (
            {"inputs": np.zeros((1, 20, 1)), "norm": "mse"},
            "^inputs: expected a tensor .*, got ndarray",
        ),
    ],
)
def test_numbers_that_are_none_of_steps(options: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        perturbation_error(fitted(4, "exp"), POLYNOMIAL, RADII, **options)
