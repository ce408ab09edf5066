"""Every public instrument on linear recurrences whose answers are known in closed form.

h[t] = a h[t-1] + B x[t], y[t] = C h[t] with random eigenvalues a, in three forms: a layer of this library, a module of
somebody else's and a plain function; in float32 and float64; on the CPU, and on a GPU if there is one. A new instrument
joins ``CHECKS``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError, instruments, reparam

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


class Foreign(nn.Module):
    """The recurrence as somebody else would write it."""

    recurrent_parameters = ("a",)
    time = "discrete"

    def __init__(self, a: Tensor, B: Tensor, C: Tensor) -> None:
        super().__init__()
        self.a, self.B, self.C = nn.Parameter(a), nn.Parameter(B), nn.Parameter(C)
        self.map, self.d_input = reparam.get("direct", time="discrete"), B.shape[1]

    def initial_state(self, batch: int) -> Tensor:
        return self.a.new_zeros(batch, len(self.a))

    def eigenvalues(self) -> Tensor:
        return self.a

    def kernel(self, times: Tensor) -> Tensor:
        return torch.einsum("on,tn,ni->toi", self.C, self.a ** times[:, None].to(self.a), self.B)

    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        state = self.a * (self.initial_state(len(x)) if state is None else state) + x @ self.B.mT
        return state @ self.C.mT, state

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs = []
        for now in x.unbind(1):
            y, state = self.step(now, state)
            outputs.append(y)
        return torch.stack(outputs, 1), state


@dataclass(frozen=True)
class Case:
    """A recurrence in one of its forms, and what is known of it in float64."""

    a: Tensor
    B: Tensor
    C: Tensor
    form: str
    dtype: torch.dtype
    device: str
    seed: int

    @classmethod
    def drawn(cls, seed: int, form: str, dtype: torch.dtype, device: str, *, states: int = 3, size: int = 2) -> Case:
        """Weights that float32 can hold, all positive but for the eigenvalues: then a constant past is the worst."""
        rng = np.random.default_rng(seed)
        a = np.float32(rng.permutation(np.linspace(0.25, 0.85, states)) + rng.uniform(-0.05, 0.05, states))
        B, C = (np.float32(rng.uniform(0.3, 2.0, shape)) for shape in ((states, size), (size + 1, states)))
        return cls(*(torch.from_numpy(weight).double() for weight in (a, B, C)), form, dtype, device, seed)

    @property
    def module(self) -> Any:
        """The recurrence as a module."""
        if self.form == "layer":
            size = self.B.shape[1], len(self.a), len(self.C)
            module = ssm.RealSSM(*size, map="direct", time="discrete", eigenvalues=self.a, bias=False)
            module.B.data, module.C.data = self.B.clone(), self.C.clone()
        else:
            module = Foreign(self.a.clone(), self.B.clone(), self.C.clone())
        return module.to(self.device, self.dtype)

    @property
    def model(self) -> Any:
        """The recurrence as something that is called with inputs."""
        module = self.module
        return (lambda x: module(x.to(self.device, self.dtype))[0]) if self.form == "function" else module

    def kernel(self, steps: int) -> np.ndarray:
        """C aᵏ B, (steps, d_output, d_input)."""
        return np.stack([(self.C * self.a**k) @ self.B for k in range(steps)])

    def close(self, found: Any, expected: Any, factor: float = 1.0) -> None:
        """Require equality up to the precision of the model."""
        found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
        tolerance = factor * TOLERANCE[self.dtype]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def memory_function(case: Case) -> None:
    rho = case.kernel(30)
    corners = np.array(np.meshgrid([-1.0, 1.0], [-1.0, 1.0])).reshape(2, -1)
    expected = {
        "ball": np.linalg.norm(rho, 2, axis=(1, 2)),
        "unit": np.linalg.norm(rho, axis=1).max(1),
        "plus_one": np.linalg.norm(rho @ corners, axis=1).max(1),
    }
    reached = {"ball": 3.0, "unit": 1.0, "plus_one": 1.0}
    model, dt = case.model, 0.25 if case.form == "function" else 1.0
    for norm, value in expected.items():
        curve = ssm.memory_function(model, 30, d_input=2, dt=dt, norm=norm, bound=3.0, warm_up=2)
        assert (curve.exact, curve.norm, curve.bound, curve.dt) == (True, norm, 3.0, dt)
        case.close(curve.value, value / dt)
        case.close(np.linalg.norm(np.einsum("toi,ti->to", rho, curve.maximizer), axis=1), value * reached[norm])
        case.close(curve.time, np.arange(30) * dt)
    given = ssm.memory_function(model, 30, d_input=2, dt=dt, directions=torch.tensor([[3.0, -4.0]]), amplitudes=[0.5])
    case.close(given.by_input[0], np.linalg.norm(rho @ [0.3, -0.4], axis=1) / dt, 10)


def fading_function(case: Case) -> None:
    curve = ssm.fading_function(case.model, 20, d_input=2, bound=2.5, past=7, samples=3)
    rho = case.kernel(30)
    case.close(curve.value, [np.linalg.norm(rho[k + 1 : k + 8].sum(0).sum(1)) for k in range(20)])


def fit_decay(case: Case) -> None:
    curve = ssm.memory_function(case.model, 120, d_input=2)
    fit, slowest = instruments.fit_decay(curve.time, curve.value, floor=curve.floor), -math.log(float(case.a.max()))
    assert curve.decay() == fit
    assert fit.kind == "exponential"
    assert fit.interval[0] <= slowest <= fit.interval[1]
    assert fit.rate == pytest.approx(slowest, rel=0.03)


def report_modes(case: Case) -> None:
    report = ssm.report_modes(nn.ModuleDict({"inside": case.module}), dt=0.5)
    a = case.a.numpy()
    case.close(report.eigenvalue.real, a)
    case.close(report.time_scale, -0.5 / np.log(a))
    case.close(report.distance, 1 - a)
    case.close(report.growth, np.log(a))
    case.close(report.gradient_scale, (1 - a) ** -2.0)
    case.close(report.gradient_over_weight, (1 - a) ** -2.0 / a)
    assert report.index == tuple((i,) for i in range(len(a)))
    assert set(report.module) == {"inside"}


def stability_radius(case: Case) -> None:
    """The error of a weight under the identity, and of a matrix in any orthonormal basis, is that of its modulus."""
    case.close(ssm.stability_radius(case.module), 1 - case.a.max())
    basis = torch.linalg.qr(torch.randn(len(case.a), len(case.a), dtype=torch.complex128))[0]
    turned = torch.polar(case.a, torch.arange(3.0).double())
    case.close(ssm.stability_radius(basis @ torch.diag(turned) @ basis.mH, time="discrete"), 1 - case.a.max())
    rates = torch.complex(case.a.log(), torch.arange(3.0).double())
    case.close(ssm.stability_radius(basis @ torch.diag(rates) @ basis.mH), -math.log(case.a.max()))


def nearest_boundary(case: Case) -> None:
    found = instruments.nearest_boundary(nn.Sequential(nn.Linear(2, 2), case.module))
    assert (found.module, found.mode) == ("1", (int(case.a.argmax()),))
    case.close(found.distance, 1 - case.a.max())


def lyapunov_certificate(case: Case) -> None:
    basis = torch.linalg.qr(torch.randn(len(case.a), len(case.a), dtype=torch.float64))[0]
    a, W = case.a.numpy(), (basis @ torch.diag(case.a) @ basis.mH).to(case.dtype)
    for time, diagonal in (("discrete", 1 / (1 - a**2)), ("continuous", 0.5 / (1 - a))):
        shifted = W if time == "discrete" else W - torch.eye(len(a), dtype=W.dtype)
        proof = instruments.lyapunov_certificate(shifted, time=time)
        case.close(proof.P, basis @ torch.diag(torch.from_numpy(diagonal)) @ basis.mH, 10)
        case.close(proof.norm, diagonal.max())
        case.close(proof.rate, -math.log(a.max()) if time == "discrete" else 1 - a.max())
        case.close(proof.constant, math.sqrt(diagonal.max() / diagonal.min()))
        case.close(proof.normal_bound, diagonal.max())
        case.close(proof.bound(2.0), proof.constant * math.exp(-2 * proof.rate))
        assert proof.is_normal
        assert proof.normal_bound_holds


def lyapunov_spectrum(case: Case) -> None:
    module, x = case.module, torch.from_numpy(np.random.default_rng(case.seed).standard_normal((20, 2)))
    model = module if case.form != "function" else lambda u, state: module.step(u.to(module.B)[None], state)
    first = {"state": module.initial_state(1)} if case.form == "function" else {}
    found = ssm.lyapunov_spectrum(model, x, dt=0.5, **first)
    case.close(found.exponents, 2 * np.sort(np.log(case.a))[::-1])
    assert (found.verdict, found.dimension, found.state_size) == ("contracting", 0.0, 3)
    assert found.merged == pytest.approx(case.a.max() ** 20, rel=3)


def effective_state_size(case: Case) -> None:
    x = torch.from_numpy(np.random.default_rng(case.seed).standard_normal((30, 2)))
    assert ssm.effective_state_size(case.model, x, 1e-4).size == 3


def receptive_field(case: Case) -> None:
    x = torch.from_numpy(np.random.default_rng(case.seed).standard_normal((40, 2)))
    found = ssm.receptive_field(case.model, x, lags=12)
    case.close(found.gradient, np.linalg.norm(case.kernel(12), axis=(1, 2)), 10)
    assert found.ablation[0] > found.ablation[11] > 0


def information_processing_capacity(case: Case) -> None:
    """Three independent modes keep three numbers of the past, all of them linear functions of it."""
    u = np.random.default_rng(case.seed).uniform(-1, 1, (2500, 1))
    one = Case.drawn(case.seed, case.form, case.dtype, case.device, size=1)
    states = _states(one, torch.from_numpy(u))
    found = ssm.information_processing_capacity(states.numpy() if case.form == "layer" else states, u[:, 0])
    assert (found.total, found.by_degree[1]) == pytest.approx((3, 3), rel=0.02)
    assert (found.rank, found.total <= 3) == (3, True)


def length_curve(case: Case) -> None:
    x = torch.from_numpy(np.random.default_rng(case.seed).standard_normal((2, 30, 2))).to(case.device, case.dtype)
    with torch.no_grad():
        y = case.module(x)[0] + torch.arange(1, 31, device=case.device)[:, None]
    found = ssm.length_curve(case.model, x, y)
    edges = np.array([0, *found.position])
    case.close(found.loss, [np.mean(np.arange(a + 1, b + 1) ** 2.0) for a, b in itertools.pairwise(edges)])
    assert found.carried == (case.form != "function")


def effective_remembrance(case: Case) -> None:
    """Two logits, one of them the state of a recurrence on tokens 0 and 1: the distance of two logistic functions."""
    a, tokens = float(case.a[0]), torch.randint(0, 2, (1, 40), generator=torch.Generator().manual_seed(case.seed))

    def logits(tokens: Tensor) -> Tensor:
        state, rows = torch.zeros(len(tokens), dtype=torch.float64), []
        for now in tokens.unbind(1):
            state = a * state + now
            rows.append(state)
        return torch.stack([torch.stack(rows, 1), torch.zeros(tokens.shape)], -1)

    found = ssm.effective_remembrance(logits, tokens, contexts=[1, 10], samples=50)
    p = torch.sigmoid(logits(tokens)[0, 19:, 0])
    q = torch.sigmoid(tokens[0, 19:].double())
    assert 0 < found.distance[1] < found.distance[0] <= float((p - q).abs().max())


def _trained(case: Case) -> tuple[nn.Module, np.ndarray]:
    """The module with the gradients of the sum of its response to an impulse, and |gradient / a| from the formula."""
    module, impulse = case.module, torch.zeros(1, 12, 2, device=case.device, dtype=case.dtype)
    impulse[0, 0] = 1.0
    module(impulse)[0].sum().backward()
    weight = (case.C.sum(0) * case.B.sum(1)).numpy()
    k, a = np.arange(1, 12)[:, None], case.a.numpy()
    return module, weight * (k * a ** (k - 1)).sum(0) / a


def gradient_over_weight(case: Case) -> None:
    module, expected = _trained(case)
    found = ssm.gradient_over_weight(module)
    (name,) = module.recurrent_parameters
    case.close(found[name].ratio.cpu(), expected)
    case.close(found[name].maximum, expected.max())
    case.close(found[name].quantiles, np.quantile(expected, (0.5, 0.9, 0.99), method="higher"))
    case.close(found[name].predicted.cpu(), (1 - case.a) ** -2.0 / case.a)
    assert {key for key, entry in found.parameters.items() if entry.recurrent} == {name}
    assert set(ssm.gradient_over_weight(module, recurrent_only=True).parameters) == {name}


def gradient_tracker(case: Case) -> None:
    module, expected = _trained(case)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    with ssm.GradientTracker(module, optimizer, every=2, recurrent_only=True) as tracker:
        for _ in range(5):
            optimizer.step()
    optimizer.step()
    assert tracker.history.step.tolist() == [0, 2, 4]
    case.close(tracker.history.maximum[:, 0], np.full(3, expected.max()))


def perturbation_error(case: Case) -> None:
    """One mode, entries perturbed one by one: the sum over time of b c ((a + β)ᵏ - aᵏ) is the supremum."""
    case = Case.drawn(case.seed, case.form, case.dtype, case.device, states=1, size=1)
    radii, k = np.array([0.0, 0.01, 0.1]), np.arange(40)[:, None]
    gain = float(torch.linalg.vector_norm(case.C) * torch.linalg.vector_norm(case.B))
    expected = gain * ((float(case.a) + radii) ** k - float(case.a) ** k).sum(0)
    module = case.module
    options = {"parameters": "recurrent", "weight_norm": "entry_max", "horizon": 40, "progress": False}
    for search in ("random", "ascent"):
        curve = ssm.perturbation_error(module, case.module, radii[::-1].copy(), search=search, steps=3, **options)
        case.close(curve.lower, expected, 10)
        climbed = 3 if search == "ascent" else 0
        assert (curve.steps, curve.evaluations) == (climbed, 1 + 2 * 30 * (climbed + 1))
        if case.form == "layer":
            case.close(curve.upper, expected, 100)
            assert curve.theorem.tolist() == [0.0, math.inf, math.inf]  # no weight is far from instability
    family = instruments.PerturbationFamily.of({2: case.module, 1: module}, case.module, radii, **options)
    assert family.widths == (1, 2)
    case.close(family.errors, [expected, expected], 10)


def readback(case: Case) -> None:
    """One mode h explains a^2k (1 - a²) of the white input k steps ago; every further one adds a number of capacity."""
    data = torch.from_numpy(np.random.default_rng(case.seed).standard_normal((60, 100, 1)))
    one = Case.drawn(case.seed, case.form, case.dtype, case.device, states=1, size=1)
    found = ssm.readback(one.module, data, lags=6)
    a = float(one.a)
    np.testing.assert_allclose(found.explained, a ** (2 * np.arange(6)) * (1 - a**2), atol=0.06)
    assert found.state_size == 1
    three = Case.drawn(case.seed, case.form, case.dtype, case.device, size=1)
    module = three.module
    through = {"states": lambda x: torch.stack([_states(three, row) for row in x])} if case.form == "function" else {}
    found = ssm.readback(module, data, dt=0.5, **through)
    np.testing.assert_array_equal(found.time, 0.5 * np.arange(25))
    assert found.state_size == 3
    assert found.capacity == pytest.approx(3, abs=0.2)


def _states(case: Case, x: Tensor) -> Tensor:
    """The states (time, N) that one input (time, 1) leaves."""
    h, states = torch.zeros_like(case.a), []
    for now in x.double():
        h = case.a * h + case.B @ now
        states.append(h)
    return torch.stack(states)


def check_streaming(case: Case) -> None:
    if case.form == "function":
        with pytest.raises(ArgumentError, match="carries a state"):
            ssm.check_streaming(case.model, d_input=2)
        return
    module = case.module
    assert ssm.check_streaming(module, length=12).ok
    forward = module.forward
    module.forward = lambda x, state=None: forward(x, None if state is None else 1.01 * state)
    report = ssm.check_streaming(module, length=12, chunks=[(5, 7)])
    assert [difference.way for difference in report.differences] == ["chunks of 5, 7", "step"]
    assert report.differences[0].first == 5
    assert not report.ok


def check_state(case: Case) -> None:
    if case.form == "function":
        with pytest.raises(ArgumentError, match="carries a state"):
            ssm.check_state(case.model, d_input=2)
        return
    module = case.module
    assert ssm.check_state(module, length=12).passed
    forward = module.forward
    module.forward = lambda x, state=None, **options: forward(x, None if state is None else 1.01 * state, **options)
    report = ssm.check_state(module, length=12, cases=["chunks", "batch"])
    assert [(found.name, found.passed, found.first) for found in report.cases] == [
        ("chunks", False, 1), ("batch", True, None),
    ]  # fmt: skip


def trace_divergence(case: Case) -> None:
    """An eigenvalue beyond 1: the mode is named, and the first step at which the output passes the limit."""
    growing, limit = float(1.2 + case.a[1] / 10), 100.0
    module, impulse = case.module, torch.zeros(2, 60, 2, device=case.device, dtype=case.dtype)
    weight = getattr(module, module.recurrent_parameters[0])
    with torch.no_grad():
        weight[1] = growing
    impulse[1, 3] = 1.0
    a = torch.where(torch.arange(3) == 1, weight[1].detach().double().cpu(), case.a)
    response = np.array([((case.C * a**k) @ case.B.sum(1)).max() for k in range(57)])
    with ssm.trace_divergence(nn.Sequential(module), when="record", limit=limit) as trace:
        module(impulse)
    report = trace.report
    assert (report.phase, report.module, report.batch) == ("forward", "0", 1)
    assert report.time == 3 + int(np.argmax(response > limit))
    assert (report.mode.index, report.mode.unstable, report.cause) == ((1,), True, "recurrent weight")
    case.close(report.mode.growth, math.log(weight[1].item()))


def bernstein_bound(case: Case) -> None:
    times = torch.linspace(0, 5, 11, dtype=torch.float64)
    check = instruments.bernstein_bound(times, rate=0.7, theta_max=1.5, d_input=3, lipschitz=0.25)
    case.close(check.bound, 4 * 0.25 * 1.5**2 * np.exp(-0.7 * times.numpy()))


def bernstein_check(case: Case) -> None:
    """A linear layer in continuous time: eq. 53 and 54, which its memory stays below."""
    layer = ssm.RealSSM(2, 3, 3, map="direct", dt=0.1, eigenvalues=-case.a, bias=case.form == "layer").to(case.dtype)
    layer.B.data, layer.C.data = case.B.to(case.dtype), case.C.to(case.dtype)
    b = float(layer.bias.detach().norm()) if layer.bias is not None else 0.0
    curve = ssm.memory_function(layer, 50, norm="plus_one")
    B, C = (float(torch.linalg.matrix_norm(weight, 2)) for weight in (case.B, case.C))
    theta = max(B, C, b, float(case.a.max()))
    for sharp, constant in ((True, C * (2 * B + b)), (False, 3 * theta**2)):
        check = instruments.bernstein_check(layer, [0.0, 9.0], sharp=sharp, lipschitz=2.0)
        case.close([check.constant, check.rate, check.theta_max], [2 * constant, case.a.min(), theta])
        beside = check.against(curve.time, curve.value)
        assert beside.holds
        case.close(beside.worst[0], (curve.value / beside.bound.numpy()).max())
        case.close(beside.bound, check.constant * np.exp(-check.rate * curve.time))
        assert not check.against(curve.time, 1.001 * beside.bound).holds


CHECKS: dict[str, Callable[[Case], None]] = {
    "GradientTracker": gradient_tracker,
    "PerturbationFamily": perturbation_error,
    **{
        check.__name__: check
        for check in (
            bernstein_bound, bernstein_check, check_state, check_streaming, effective_remembrance, effective_state_size,
            fading_function, fit_decay, gradient_over_weight, information_processing_capacity, length_curve,
            receptive_field,
            lyapunov_certificate, lyapunov_spectrum, memory_function, nearest_boundary, perturbation_error, readback,
            report_modes, stability_radius, trace_divergence,
        )
    },
}  # fmt: skip
SEEDS = {name: 100 * i for i, name in enumerate(CHECKS)}


def test_every_instrument_has_a_check():
    results = {"BernsteinCheck", "DecayFit", "Divergence", "DivergenceError", "GradientOverWeight", "MemoryCurve"}
    results |= {"LyapunovCertificate", "ModeReport", "NearestBoundary", "PerturbationCurve", "Readback"}
    results |= {"EffectiveStateSize", "InformationCapacity", "LengthCurve", "LyapunovSpectrum", "ReceptiveField"}
    results |= {"NotSupportedError", "Remembrance", "StateCase", "StateReport", "Stateful", "StreamingReport"}
    assert set(CHECKS) == set(instruments.__all__) - results


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("form", ["layer", "module", "function"])
@pytest.mark.parametrize("name", [name for name in CHECKS if name != "PerturbationFamily"])
def test_the_answer_is_the_closed_form(name, form, dtype, device):
    seed = SEEDS[name] + 10 * ["layer", "module", "function"].index(form) + (dtype == torch.float32)
    CHECKS[name](Case.drawn(seed, form, dtype, device))


@pytest.mark.parametrize(
    "measure",
    [
        lambda model: ssm.memory_function(model, 12, linear=False, samples=4, ascent=1),
        lambda model: ssm.memory_function(model, 12),
        lambda model: ssm.fading_function(model, 12, samples=2),
        lambda model: ssm.readback(model, torch.ones(6, 60, 2) + torch.arange(60.0)[:, None].sin(), lags=3),
        lambda model: ssm.check_state(model, length=12),
        lambda model: ssm.check_streaming(model, length=8),
        lambda model: ssm.lyapunov_spectrum(model, torch.ones(9, 2)),
        lambda model: ssm.effective_state_size(model, torch.ones(9, 2)),
        lambda model: ssm.receptive_field(model, torch.arange(18.0).sin().view(9, 2)),
        lambda model: ssm.perturbation_error(model, model, [0.1], horizon=8, samples=2, norm="mse", progress=False),
        ssm.stability_radius,
        ssm.report_modes,
        lambda model: ssm.report_modes(model).intact({}),
    ],
)
def test_measuring_leaves_the_model_and_the_random_state(measure):
    model = nn.Sequential(Case.drawn(3, "module", torch.float32, "cpu").module, nn.Dropout())[0]
    before, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    measure(model)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
