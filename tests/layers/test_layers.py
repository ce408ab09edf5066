"""What is particular to one layer: kernels, initializations, discretizations, options."""

from __future__ import annotations

import cmath
import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

import stablessm as ssm
from stablessm.layers import discretize, initialize
from stablessm.layers.continuous_rnn import real_matrix
from stablessm.layers.zero_order_hold import phi

F64 = torch.float64


def impulse(steps: int, channels: int) -> torch.Tensor:
    """One batch row a channel, each with a unit impulse in it."""
    x = torch.zeros(channels, steps, channels, dtype=F64)
    x[torch.arange(channels), 0, torch.arange(channels)] = 1
    return x


def test_exponential_discretization_samples_the_kernel() -> None:
    layer = ssm.RealSSM(2, 6, 3, dt=0.1, discretization="exponential", bias=False).double()
    y, _ = layer(impulse(20, 2))  # (in, time, out)
    kernel = layer.kernel(0.1 * torch.arange(20, dtype=F64))
    torch.testing.assert_close(y.permute(1, 2, 0), 0.1 * kernel)


@pytest.mark.parametrize("name", ["zoh", "bilinear"])
def test_other_discretizations_converge_to_the_kernel(name: str) -> None:
    errors = []
    for dt in (0.02, 0.01):
        torch.manual_seed(0)
        eigenvalues = -torch.tensor([0.2, 0.7, 1.5], dtype=F64)
        layer = ssm.RealSSM(1, 3, 1, dt=dt, discretization=name, bias=False, eigenvalues=eigenvalues).double()
        with torch.no_grad():
            layer.B.fill_(1.0)
            layer.C.fill_(1.0)
            steps = round(1 / dt)
            y, _ = layer(impulse(steps, 1))
            kernel = layer.kernel(dt * torch.arange(steps, dtype=F64))
        errors.append((y[0, :, 0] / dt - kernel[:, 0, 0]).abs().max().item())
    assert errors[1] < 0.6 * errors[0] < 0.05


def test_discrete_kernels_are_the_impulse_response() -> None:
    steps = torch.arange(15, dtype=F64)
    for layer in (ssm.RealSSM(2, 6, 3, time="discrete", bias=False), ssm.LRU(2, 6, 3, skip=False)):
        y, _ = layer.double()(impulse(15, 2))
        torch.testing.assert_close(y.permute(1, 2, 0), layer.kernel(steps))
    with pytest.raises(ssm.ArgumentError, match=r"^times: expected whole numbers"):
        layer.kernel(torch.tensor([0.5]))


def test_s4d_kernel_is_what_exponential_discretization_samples() -> None:
    layer = ssm.S4D(3, 8, discretization="exponential").double()
    with torch.no_grad():
        layer.D.zero_()
    y, _ = layer(impulse(15, 3))
    torch.testing.assert_close(y.diagonal(dim1=0, dim2=2), layer.kernel(torch.arange(15, dtype=F64)))


@pytest.mark.parametrize("recurrence", ["dense", "diagonal"])
@torch.no_grad()
def test_linear_rnn_kernel(recurrence: str) -> None:
    """The answer to a Heaviside input is the integral of the kernel (IAT eq. 5): by Simpson's rule over a step."""
    torch.manual_seed(0)
    options = {"activation": "linear", "solver": "exponential", "bias": False}
    rates = -torch.tensor([0.2, 0.5, 1.0, 2.0], dtype=F64)
    rnn = ssm.ContinuousRNN(2, 4, 3, recurrence=recurrence, dt=0.01, eigenvalues=rates, **options).double()
    y, _ = rnn(torch.eye(2, dtype=F64)[:, None].expand(2, 200, 2))  # (in, time, out)
    kernel = rnn.kernel(0.005 * torch.arange(401, dtype=F64)).permute(2, 0, 1)
    steps = torch.cat([y[:, :1], y.diff(dim=1)], 1)
    by_rule = (kernel[:, :-1:2] + 4 * kernel[:, 1::2] + kernel[:, 2::2]) * 0.01 / 6
    torch.testing.assert_close(steps, by_rule, rtol=1e-8, atol=1e-10)


def test_a_nonlinear_layer_has_no_kernel() -> None:
    for layer in (ssm.RealSSM(1, 2, 1, activation="tanh"), ssm.ContinuousRNN(1, 2, 1)):
        with pytest.raises(ssm.ArgumentError, match=r"^activation: expected 'linear'.*got 'tanh'"):
            layer.kernel(torch.arange(3))


@torch.no_grad()
def test_euler_converges_to_the_exponential_step() -> None:
    x = torch.randn(1, 20, 2, dtype=F64)
    eigenvalues = -torch.linspace(0.1, 2, 5, dtype=F64)
    gaps = []
    for repeats in (25, 50):
        final = []
        for solver in ("euler", "exponential"):
            torch.manual_seed(1)
            rnn = ssm.ContinuousRNN(2, 5, 1, solver=solver, dt=0.05 / repeats, eigenvalues=eigenvalues).double()
            final.append(rnn(x.repeat_interleave(repeats, 1))[0][0, -1])
        gaps.append((final[0] - final[1]).abs().max().item() / final[1].abs().max().item())
    assert gaps[1] < 0.01
    assert 1.8 < gaps[0] / gaps[1] < 2.2  # of first order


@given(re=st.floats(-3, -1e-3), im=st.floats(-3, 3), dt=st.floats(1e-6, 1))
def test_every_discretization_is_its_formula_and_maps_stable_to_stable(re: float, im: float, dt: float) -> None:
    lam = torch.tensor([complex(re, im)], dtype=torch.complex128)
    z = complex(re, im) * dt
    expected = {
        "zoh": (cmath.exp(z), (cmath.exp(z) - 1) / complex(re, im) if abs(z) > 1e-3 else dt * (1 + z / 2 + z * z / 6)),
        "bilinear": ((1 + z / 2) / (1 - z / 2), dt / (1 - z / 2)),
        "exponential": (cmath.exp(z), dt),
    }
    assert discretize.METHODS.keys() == expected.keys()
    for name, method in discretize.METHODS.items():
        decay, gain = method(lam, torch.tensor(dt, dtype=F64))
        assert decay.abs().item() < 1
        true_decay, true_gain = expected[name]
        assert decay.item() == pytest.approx(true_decay, rel=1e-12, abs=0)
        assert gain.item() == pytest.approx(true_gain, rel=1e-9, abs=0)  # e^z - 1 cancels in the formula


def test_ring_is_uniform_in_area_within_its_bounds() -> None:
    lam = initialize.ring(20_000, 0.5, 0.9, math.pi / 4)
    assert 0.5 <= lam.abs().min() <= lam.abs().max() <= 0.9
    assert 0 <= lam.angle().min() <= lam.angle().max() <= math.pi / 4
    inner = (lam.abs() ** 2 < (0.25 + 0.81) / 2).double().mean()  # half of the area
    assert abs(inner - 0.5) < 0.02
    with pytest.raises(ssm.ArgumentError, match=r"^r_min, r_max: expected 0 <= r_min <= r_max <= 1, got 0.9, 0.5"):
        ssm.LRU(1, 4, 1, r_min=0.9, r_max=0.5)


def test_lru_normalization_gives_states_of_variance_one() -> None:
    torch.manual_seed(0)
    layer = ssm.LRU(4, 256, 1, r_min=0.9, r_max=0.99)
    _, state = layer(torch.randn(64, 600, 4))
    assert 0.9 < state.abs().square().mean() < 1.1


@pytest.mark.parametrize("map", ["tanh", "softplus", "exp", "best", "relu"])
@pytest.mark.parametrize("weight", [-6000.0, -18.0, -9.5, 9.5, 18.0, 6000.0])
def test_lru_gradients_are_finite_at_the_edge_of_the_disc(map: str, weight: float) -> None:
    layer = ssm.LRU(1, 2, 1, map=map)
    with torch.no_grad():
        layer.w[1] = weight
    layer(torch.randn(1, 10, 1))[0].sum().backward()
    assert torch.isfinite(layer.w.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_phi_has_an_accurate_gradient_near_zero(dtype: torch.dtype) -> None:
    z = -torch.logspace(-8, 0, 200).to(dtype).requires_grad_()
    (slope,) = torch.autograd.grad(phi(z).sum().real, z)
    exact = z.detach().to(torch.complex128 if dtype.is_complex else F64)
    series = 0.5 + exact / 3 + exact**2 / 8 + exact**3 / 30
    truth = torch.where(exact.abs() < 1e-2, series, (exact.exp() * (exact - 1) + 1) / exact**2)
    torch.testing.assert_close(slope.to(truth.dtype), truth, rtol=3e-5, atol=0)


def test_defaults() -> None:
    """A changed default is a changed layer: every one is written down here once more."""
    diagonal = {"eigenvalues": None, "mode": "auto"}
    found = {cls: inspect.signature(cls).parameters for cls in (ssm.RealSSM, ssm.LRU, ssm.S4D, ssm.ContinuousRNN)}
    defaults = [{n: p.default for n, p in own.items() if p.default is not p.empty} for own in found.values()]
    assert defaults == [
        {
            "map": "best", "time": "continuous", "dt": None, "discretization": None, "activation": "linear",
            "bias": True, "skip": False, "average": False, **diagonal,
        },
        {
            "map": "best", "r_min": 0.5, "r_max": 0.99, "max_phase": 2 * math.pi, "normalize": True, "skip": True,
            **diagonal,
        },
        {
            "d_state": 32, "map": "exp", "init": "lin", "dt_min": 1e-3, "dt_max": 0.1, "discretization": "zoh",
            **diagonal,
        },
        {
            "activation": "tanh", "recurrence": "dense", "map": "direct", "dt": 1.0, "solver": "euler", "bias": True,
            "eigenvalues": None,
        },
    ]  # fmt: skip
    layer = ssm.RealSSM(1, 2, 1)
    assert (layer.dt, layer.discretization) == (1.0, "zoh")


def test_weights_start_with_their_deviations() -> None:
    torch.manual_seed(0)
    sizes = {"d_input": 40, "d_state": 90, "d_output": 60}
    rnn, lru, real, s4d = ssm.ContinuousRNN(**sizes), ssm.LRU(**sizes), ssm.RealSSM(**sizes, skip=True), ssm.S4D(90, 40)
    for weight, deviation in (
        (rnn.U, 40**-0.5), (rnn.C, 90**-0.5), (lru.B, 80**-0.5), (lru.C, 90**-0.5), (lru.D, 40**-0.5),
        (real.C, 90**-0.5), (s4d.C, 0.5**0.5), (ssm.S4D(4000, 1).D, 1.0),
    ):  # fmt: skip
        assert weight.std().item() == pytest.approx(deviation, rel=0.06, abs=0)
        assert abs(weight.mean().item()) < 0.06 * deviation
    assert not any(zero.any() for zero in (rnn.bias, real.bias, real.D))
    steps = ssm.S4D(4000, 1, dt_min=0.01, dt_max=1.0).log_dt.exp()
    assert (steps < 0.1).double().mean().item() == pytest.approx(0.5, abs=0.03)  # log-uniform
    assert 0.01 <= steps.min() <= steps.max() <= 1.0


def test_a_kernel_at_no_times_is_empty() -> None:
    none = torch.zeros(0)
    layers = (ssm.RealSSM(2, 4, 3), ssm.RealSSM(2, 4, 3, time="discrete"), ssm.LRU(2, 4, 3))
    assert [tuple(layer.kernel(none).shape) for layer in layers] == 3 * [(0, 3, 2)]


def test_eigenvalues_start_within_the_range_of_the_map() -> None:
    """Time scales from one step, or a tenth above the shortest that the map has, to 1000 times that."""
    for b, fastest in ((1.0, math.exp(-1)), (2.0, 0.5 ** (1 / 1.1))):
        layer = ssm.RealSSM(1, 4, 1, time="discrete", map=ssm.reparam.get("best", time="discrete", b=b))
        expected = fastest ** torch.tensor([1.0, 0.1, 0.01, 0.001])
        torch.testing.assert_close(layer.eigenvalues().detach(), expected, rtol=1e-5, atol=0)


def test_convolution_takes_a_decay_that_underflows() -> None:
    results = []
    for mode in ("scan", "conv"):
        torch.manual_seed(0)
        layer = ssm.S4D(1, 2, mode=mode)
        _, final = layer(torch.ones(2, 20, 1), layer.initial_state(2) + 1, lengths=torch.tensor([0, 20]), dt=1e7)
        final.abs().sum().backward()
        assert torch.isfinite(layer.w.grad).all()
        results.append(final)
    torch.testing.assert_close(*results)


def test_legs_eigenvalues_are_those_of_the_normal_part_of_hippo() -> None:
    size = 16
    n = torch.arange(size, dtype=F64)
    p = (n + 0.5).sqrt()  # LegS + p pᵀ is normal (S4, appendix C)
    legs = -torch.tril(torch.outer((2 * n + 1).sqrt(), (2 * n + 1).sqrt()), -1) - torch.diag(n + 1)
    spectrum = torch.linalg.eigvals(legs + torch.outer(p, p))
    expected = spectrum.imag[spectrum.imag > 0].sort().values
    torch.testing.assert_close(initialize.s4d_legs(size // 2).imag.sort().values, expected)
    torch.testing.assert_close(spectrum.real, torch.full((size,), -0.5, dtype=F64))


def test_real_matrix_has_the_eigenvalues() -> None:
    wanted = torch.tensor([-1 + 2j, -0.5, -1 - 2j, -3], dtype=torch.complex128)
    found = torch.linalg.eigvals(real_matrix(wanted))
    key = lambda z: (round(z.real, 9), round(z.imag, 9))  # noqa: E731
    assert sorted(found.tolist(), key=key) == pytest.approx(sorted(wanted.tolist(), key=key))
    with pytest.raises(ssm.ArgumentError, match=r"^eigenvalues: expected complex ones in conjugate pairs"):
        real_matrix(torch.tensor([-1 + 2j, -0.5 - 2j]))


def test_complex_eigenvalues_of_a_dense_rnn() -> None:
    wanted = torch.tensor([-1 + 2j, -1 - 2j, -0.5 + 0j])
    rnn = ssm.ContinuousRNN(1, 3, 1, map="skew_minus_psd", eigenvalues=wanted)
    order = rnn.eigenvalues().imag.argsort()
    torch.testing.assert_close(rnn.eigenvalues()[order], wanted[[1, 2, 0]], rtol=1e-4, atol=1e-4)


def test_matrix_maps_keep_a_dense_rnn_stable_whatever_the_weights() -> None:
    for name in ("neg_exp", "neg_softplus", "skew_minus_psd"):
        rnn = ssm.ContinuousRNN(1, 6, 1, map=name).double()
        for _ in range(20):
            torch.nn.init.normal_(rnn.M)
            assert rnn.eigenvalues().real.max() < 0, name


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ssm.RealSSM(1, 0, 1), r"^d_state: expected a whole number, at least 1, got 0"),
        (lambda: ssm.LRU(3, 8.0, 2), r"^d_state: expected a whole number, at least 1, got 8\.0"),
        (lambda: ssm.RealSSM(1, 2, 1)([[[1.0]]]), "^x: expected a tensor, got list"),
        (lambda: ssm.RealSSM(1, 2, 1)(torch.ones(1, 3, 1), lengths=[2.5]), "^lengths: expected a whole number"),
        (
            lambda: ssm.RealSSM(1, 2, 1)(torch.ones(1, 3, 1), lengths=3),
            "^lengths: expected a tensor or a list of whole",
        ),
        (lambda: ssm.RealSSM(1, 2, 1)(torch.ones(1, 3, 1), 0.0), "^state: expected a tensor, got float"),
        (lambda: ssm.scan.linear_scan(0.5, torch.ones(1, 3, 1)), "^decay: expected a tensor, got float"),
        (lambda: ssm.RealSSM(1, 2, 1, dt=0.0), r"^dt: expected a finite number above 0, got 0.0"),
        (lambda: ssm.RealSSM(1, 2, 1, time="discrete", dt=0.1), r"^dt: expected None in discrete time, got 0.1"),
        (lambda: ssm.RealSSM(1, 2, 1, mode="fft"), r"^mode: expected one of 'scan', 'conv', 'auto', got 'fft'"),
        (lambda: ssm.RealSSM(1, 2, 1, map="nope"), r"^map: expected"),
        (lambda: ssm.RealSSM(1, 2, 1, discretization="rk4"), r"^discretization: expected one of 'zoh'.*got 'rk4'"),
        (lambda: ssm.RealSSM(1, 2, 1, activation="swish"), r"^activation: expected one of 'linear'.*got 'swish'"),
        (lambda: ssm.RealSSM(1, 2, 1, eigenvalues=torch.zeros(3)), r"^eigenvalues: expected shape \(2,\)"),
        (lambda: ssm.RealSSM(1, 2, 1, eigenvalues=torch.tensor([-1j, 1j])), r"^eigenvalues: expected real numbers"),
        (lambda: ssm.RealSSM(1, 1, 1, eigenvalues=torch.tensor([-9.0])), r"^eigenvalues: expected values in \[-2, 0\)"),
        (lambda: ssm.S4D(1, 2, init="hippo"), r"^init: expected one of 'lin', 'inv', 'legs', got 'hippo'"),
        (lambda: ssm.S4D(1, 2, dt_min=0.2, dt_max=0.1), r"^dt_min, dt_max: expected 0 < dt_min <= dt_max"),
        (
            lambda: ssm.ContinuousRNN(1, 2, 1, solver="rk4"),
            r"^solver: expected .euler. or .exponential., got .rk4.",
        ),
        (lambda: ssm.ContinuousRNN(1, 2, 1, map=ssm.reparam.get("exp")), r"^map: expected a matrix map"),
        (lambda: ssm.param_groups(ssm.LRU(1, 2, 1), -1.0), r"^lr: expected a finite number not below 0"),
    ],
)
def test_bad_options_are_named(build: object, message: str) -> None:
    with pytest.raises(ssm.ArgumentError, match=message):
        build()


def test_negative_eigenvalues_refuse_dt_in_discrete_time() -> None:
    layer = ssm.RealSSM(1, 1, 1, time="discrete", map="tanh", eigenvalues=torch.tensor([-0.5]))
    with pytest.raises(ssm.ArgumentError, match=r"^dt: expected none, since a negative eigenvalue"):
        layer(torch.zeros(1, 3, 1), dt=0.5)


def test_param_groups_reach_into_any_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), ssm.Bidirectional(ssm.S4D(2, 4)), torch.nn.GRU(2, 2))
    groups = ssm.param_groups(model, 0.1, recurrent_lr=0.01, weight_decay=0.5)
    by_name = {group["name"]: group for group in groups}
    assert len(by_name["recurrent"]["params"]) == 2 * 3
    assert by_name["recurrent"]["lr"] == 0.01
    assert by_name["recurrent"]["weight_decay"] == 0.0
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert [group["name"] for group in ssm.param_groups(torch.nn.Linear(2, 2), 0.1)] == ["other"]


@pytest.mark.parametrize("build", [lambda: ssm.RealSSM(2, 4, 1), lambda: ssm.LRU(2, 4, 1), lambda: ssm.S4D(2, 4)])
def test_layers_compile_without_graph_breaks(build: object) -> None:
    layer, x = build(), torch.randn(2, 20, 2)
    y, _ = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(y, layer(x)[0], rtol=1e-4, atol=1e-5)


@given(
    options=st.sampled_from([{}, {"solver": "exponential"}, {"recurrence": "diagonal", "solver": "exponential"}]),
    activation=st.sampled_from(["linear", "tanh", "sigmoid", "relu"]),
    varying=st.booleans(),
)
@settings(deadline=None, max_examples=8)
def test_a_compiled_rnn_runs_its_loop_outside_of_the_graph(options, activation, varying) -> None:
    """The number of steps must not be the number of operations that are compiled."""
    torch.manual_seed(0)
    torch.compiler.reset()
    layer = ssm.ContinuousRNN(3, 4, 2, dt=0.1, activation=activation, **options).double()
    x, dt = torch.randn(2, 100, 3, dtype=F64), torch.rand(2, 100) if varying else None
    counter = CompileCounter()
    y, state = torch.compile(layer, backend=counter)(x, dt=dt)
    assert counter.op_count < 100
    truth, final = layer(x, dt=dt)
    torch.testing.assert_close((y, state), (truth, final))
    ours, theirs = (torch.autograd.grad(out.square().sum(), layer.M)[0] for out in (y, truth))
    torch.testing.assert_close(ours, theirs)
