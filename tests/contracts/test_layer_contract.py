"""What every layer promises, for each row of one table: a new layer joins ``LAYERS`` and inherits all of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_parameters import randomized
from scipy.linalg import expm
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import stablessm as ssm
from stablessm.layers.diagonal import DiagonalLayer
from stablessm.layers.gated import GatedLayer
from stablessm.layers.mapped import MappedLayer

D, N = 3, 8

LAYERS: dict[str, Callable[..., ssm.SequenceLayer]] = {
    "real-zoh": lambda **o: ssm.RealSSM(D, N, D, dt=0.3, **o),
    "real-bilinear": lambda **o: ssm.RealSSM(D, N, D, dt=0.3, discretization="bilinear", map="softplus", **o),
    "real-exponential": lambda **o: ssm.RealSSM(D, N, D, dt=0.3, discretization="exponential", map="exp", **o),
    "real-discrete": lambda **o: ssm.RealSSM(D, N, D, time="discrete", skip=True, **o),
    "real-average": lambda **o: ssm.RealSSM(D, N, D, dt=0.3, average=True, **o),
    "real-average-discrete": lambda **o: ssm.RealSSM(D, N, D, time="discrete", average=True, **o),
    "real-tanh": lambda **o: ssm.RealSSM(D, N, D, dt=0.3, activation="tanh", map="direct", **o),
    "lru": lambda **o: ssm.LRU(D, N, D, **o),
    "lru-tanh": lambda **o: ssm.LRU(D, N, D, map="tanh", r_min=0.9, r_max=0.999, normalize=False, **o),
    "s4d-lin": lambda **o: ssm.S4D(D, N, **o),
    "s4d-inv": lambda **o: ssm.S4D(D, N, init="inv", map="best", **o),
    "s4d-legs": lambda **o: ssm.S4D(D, N, init="legs", discretization="bilinear", **o),
    "s4d-exponential": lambda **o: ssm.S4D(D, N, discretization="exponential", map="softplus", **o),
    "rnn-dense": lambda **o: ssm.ContinuousRNN(D, N, D, dt=0.1, map="skew_minus_psd", **o),
    "rnn-diagonal": lambda **o: ssm.ContinuousRNN(
        D, N, D, dt=0.1, recurrence="diagonal", map="best", activation="hardtanh", solver="exponential", **o
    ),
    "rnn-linear": lambda **o: ssm.ContinuousRNN(
        D, N, D, dt=0.1, map="neg_exp", activation="linear", solver="exponential", **o
    ),
    "rnn-exponential": lambda **o: ssm.ContinuousRNN(D, N, D, dt=0.1, solver="exponential", **o),
    "min-gru": lambda **o: ssm.MinGRU(D, N, D, **o),
    "min-gru-softplus": lambda **o: ssm.MinGRU(D, D, map="softplus", timescales=(2.0, 50.0), **o),
    "min-lstm": lambda **o: ssm.MinLSTM(D, N, D, map="exp", **o),
    "rg-lru": lambda **o: ssm.RGLRU(D, **o),
    "rg-lru-blocks": lambda **o: ssm.RGLRU(D, map="best", blocks=D, **o),
    "hgrn": lambda **o: ssm.HGRN(D, **o),
    "selective": lambda **o: ssm.SelectiveSSM(D, N, **o),
    "selective-best": lambda **o: ssm.SelectiveSSM(D, N, map="best", dt_rank=2, dt_min=0.01, **o),
}
NAMES = list(LAYERS)
ONE_OF_EACH = ("real-zoh", "lru", "s4d-lin", "rnn-diagonal", "min-gru")
DIAGONAL = [name for name in NAMES if isinstance(LAYERS[name](), DiagonalLayer)]
MAPPED = [name for name in NAMES if isinstance(LAYERS[name](), MappedLayer)]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def make(name: str, dtype: torch.dtype = torch.float64, seed: int = 0, **options: object) -> ssm.SequenceLayer:
    torch.manual_seed(seed)
    layer = randomized(LAYERS[name](**options)).to(dtype)
    if name == "lru-tanh":
        layer.w.data[::2] *= -1  # a negative modulus is a phase of π more
    return layer


def close(ours: Tensor, truth: Tensor, dtype: torch.dtype = torch.float64) -> None:
    assert ours.shape == truth.shape
    if truth.numel():
        error = (ours - truth).abs().max() / truth.abs().max().clamp(min=1e-30)
        assert error <= TOLERANCE[dtype], f"relative error {error:.2e}"


def stream(layer: ssm.SequenceLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    state, outputs = None, []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1), state


def stack(layers: list[ssm.SequenceLayer], x: Tensor, run: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
    """Pre-norm residual blocks, as models stack them; eps = 1, since a norm over 3 channels amplifies without bound."""
    for layer in layers:
        x = x + run(layer, torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1.0))[0]
    return x


def own_dt(layer: ssm.SequenceLayer) -> float:
    """The dt that a call without one stands for: S4D and discrete layers count in steps."""
    continuous = isinstance(layer, ssm.ContinuousRNN) or (isinstance(layer, ssm.RealSSM) and layer.time == "continuous")
    return layer.dt if continuous else 1.0


def factors(lam: np.ndarray, dt: float, discretization: str) -> tuple[np.ndarray, np.ndarray]:
    """Decay and gain of dh/dt = λ h + u over a step, as the textbook has them."""
    if discretization == "bilinear":
        return (1 + lam * dt / 2) / (1 - lam * dt / 2), dt / (1 - lam * dt / 2)
    return np.exp(lam * dt), dt * np.ones_like(lam) if discretization == "exponential" else np.expm1(lam * dt) / lam


SIGMA = {
    "linear": (lambda z: z, np.ones_like),
    "tanh": (np.tanh, lambda z: 1 / np.cosh(z) ** 2),
    "hardtanh": (lambda z: np.clip(z, -1, 1), lambda z: (np.abs(z) < 1).astype(z.dtype)),
}


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def gated(
    layer: GatedLayer, p: dict[str, np.ndarray], lam: np.ndarray, x: np.ndarray, h: np.ndarray, dt: float
) -> tuple[np.ndarray, np.ndarray]:
    """One step of a gated layer, with the gates as they were published, raised to the power dt."""
    if isinstance(layer, ssm.RGLRU):
        R, enter = (expand(p[name]) for name in ("gate", "in_gate"))
        a = np.exp(8 * lam * sigmoid(R @ x + p["gate_bias"])) ** dt
        h = a * h + np.sqrt(1 - a**2) * sigmoid(enter @ x + p["in_gate_bias"]) * x
        return h, h
    if isinstance(layer, ssm.SelectiveSSM):
        low, B, C = np.split(p["projection"] @ x, [layer.dt_rank, layer.dt_rank + N])
        delta = np.log1p(np.exp(p["gate"] @ low + p["gate_bias"])) * dt
        h = np.exp(delta[:, None] * lam) * h + (delta * x)[:, None] * B
        return h @ C + p["D"] * x, h
    if isinstance(layer, ssm.HGRN):
        a = (np.exp(lam) + (1 - np.exp(lam)) * sigmoid(p["gate"] @ x + p["gate_bias"])) ** dt
        u, o = p["B"] @ x + p["bias"], p["out_gate"] @ x
        h = a * h + (1 - a) * u * sigmoid(u)
        return p["C"] @ (h * o * sigmoid(o)), h
    z = p["gate"] @ x + p["gate_bias"]
    if isinstance(layer, ssm.MinLSTM):
        forget, enter = np.split(sigmoid(z), 2)
        kept = forget / (forget + enter)
    else:
        kept = sigmoid(-z)
    a = kept ** (-2 * lam * dt)
    h = a * h + (1 - a) * (p["B"] @ x + p["bias"])
    return (p["C"] @ h if "C" in p else h), h


def expand(blocks: np.ndarray) -> np.ndarray:
    return torch.block_diag(*torch.from_numpy(blocks)).numpy()


def definition(layer: ssm.SequenceLayer, x: np.ndarray, h: np.ndarray, dt: float) -> tuple[np.ndarray, np.ndarray]:
    """One step of one sequence in NumPy, from the equations in the layers' docstrings: output and state."""
    p = {name: parameter.detach().numpy() for name, parameter in layer.named_parameters()}
    if isinstance(layer, ssm.S4D):
        lam = layer.map(layer.w.detach()).numpy() + 1j * p["frequency"]
        a, g = factors(lam, np.exp(p["log_dt"])[:, None] * dt, layer.discretization)
        h = a * h + g * x[:, None]
        return 2 * ((p["C"][..., 0] + 1j * p["C"][..., 1]) * h).sum(1).real + p["D"] * x, h
    if isinstance(layer, ssm.LRU):
        modulus = layer.map(layer.w.detach()).numpy()
        lam, gain = modulus * np.exp(1j * p["phase"]), np.sqrt(1 - modulus**2) if layer.normalize else 1.0
        h = np.abs(lam) ** dt * np.exp(1j * dt * (p["phase"] + np.pi * (modulus < 0))) * h
        h = h + gain * ((p["B"][:, 0] + 1j * p["B"][:, 1]) @ x)
        return ((p["C"][..., 0] + 1j * p["C"][..., 1]) @ h).real + p["D"] @ x, h
    if isinstance(layer, GatedLayer):
        return gated(layer, p, layer.map(layer.w.detach()).numpy(), x, h, dt)
    value, slope = SIGMA[layer.activation]
    if isinstance(layer, ssm.RealSSM):
        lam = layer.map(layer.w.detach()).numpy()
        a, g = factors(lam, dt, layer.discretization) if layer.time == "continuous" else (lam**dt, 1.0)
        if layer.average:
            g = g * (-lam if layer.time == "continuous" else 1 - lam)
        h = a * h + g * (p["B"] @ x + p["bias"])
        return p["C"] @ value(h) + (p["D"] @ x if "D" in p else 0), h
    W = layer.map(layer.M.detach()).numpy()
    W = np.diag(W) if layer.recurrence == "diagonal" else W
    z = W @ h + p["U"] @ x + p["bias"]
    if layer.solver == "euler":
        h = h + dt * value(z)
    else:
        J, v = slope(z)[:, None] * W, value(z)[:, None]
        block = np.block([[J, v], [np.zeros((1, len(h) + 1))]])  # exp of it has dt φ(dt J) v in its corner
        h = h + expm(block * dt)[:-1, -1]
    return p["C"] @ h, h


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_numbers_are_those_of_the_definition(name: str) -> None:
    layer = make(name)
    x, dt = torch.randn(2, 6, D, dtype=torch.float64), torch.rand(2, 6, dtype=torch.float64) + 0.5
    state = torch.randn_like(layer.initial_state(2))
    for given_dt in (None, dt):
        y, final = layer(x, state, dt=given_dt)
        for i in range(2):
            h, outputs = state[i].numpy(), []
            for t in range(6):
                output, h = definition(
                    layer, x[i, t].numpy(), h, own_dt(layer) if given_dt is None else dt[i, t].item()
                )
                outputs.append(torch.from_numpy(output))
            close(y[i], torch.stack(outputs))
            close(final[i], torch.from_numpy(h))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_own_dt_is_the_default_and_none_at_all_changes_nothing(name: str) -> None:
    layer, x = make(name), torch.randn(2, 5, D, dtype=torch.float64)
    state = torch.randn_like(layer.initial_state(2))
    own, (y, final) = own_dt(layer), layer(x, state)
    for dt in (own, torch.full((5,), own, dtype=torch.float64), torch.full((2, 5), own, dtype=torch.float64)):
        z, other = layer(x, state, dt=dt)
        close(z, y)
        close(other, final)
    close(layer.step(x[:, 0], state, dt=own)[1], layer.step(x[:, 0], state)[1])
    still = layer(x, state, dt=0.0)[1]
    if getattr(layer, "time", "continuous") == "discrete":  # inputs are added, and nothing decays between them
        added = sum(layer.step(x_t)[1] for x_t in x.unbind(1))
        close(still, state + added)
    else:
        close(still, state)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("varying", [False, True])
def test_gradients_are_those_of_differences_and_can_be_differentiated(name: str, varying: bool) -> None:
    layer, x = make(name), torch.randn(2, 4, D, dtype=torch.float64)
    state = torch.randn_like(layer.initial_state(2))
    dt = torch.rand(2, 4, dtype=torch.float64) + 0.2 if varying else None
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(x: Tensor, state: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        step = tensors[len(weights)] if varying else None
        parameters = dict(zip(names, tensors, strict=False))
        y, final = torch.func.functional_call(layer, parameters, (x, state), {"dt": step})
        return y, torch.view_as_real(final) if final.is_complex() else final

    inputs = [tensor.detach().clone().requires_grad_() for tensor in (x, state, *weights, *([dt] if varying else []))]
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    loss = sum(part.sin().sum() for part in run(*inputs))
    plain = torch.autograd.grad(loss, inputs, retain_graph=True)
    again = torch.autograd.grad(loss, inputs, create_graph=True)
    for ours, truth in zip(again, plain, strict=True):
        close(ours, truth)


def test_negative_eigenvalues_in_discrete_time() -> None:
    lam = torch.tensor([-0.9, -0.5, 0.3, 0.8], dtype=torch.float64)
    layer = randomized(ssm.RealSSM(D, 4, D, time="discrete", map="tanh", skip=True, eigenvalues=lam)).double()
    x, state = torch.randn(2, 7, D, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    y, _ = layer(x, state)
    for i in range(2):
        h = state[i].numpy()
        for t in range(7):
            output, h = definition(layer, x[i, t].numpy(), h, 1)
            close(y[i, t].detach(), torch.from_numpy(output))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", DIAGONAL)
def test_scan_equals_convolution_at_length_20000(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 20_000, D, dtype=dtype)
    state = torch.randn_like(make(name, dtype).initial_state(2))
    y, final = make(name, dtype, mode="scan")(x, state)
    z, other = make(name, dtype, mode="conv")(x, state)
    close(z, y, dtype)
    close(other, final, dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_step_equals_forward(name: str, dtype: torch.dtype) -> None:
    layer, x = make(name, dtype), torch.randn(2, 300, D, dtype=dtype)
    y, final = layer(x)
    z, other = stream(layer, x)
    close(z, y, dtype)
    close(other, final, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    "name",
    [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
@torch.no_grad()
def test_step_equals_forward_over_a_long_time(name: str, dtype: torch.dtype) -> None:
    layer, x = make(name, dtype), torch.randn(1, 2000, D, dtype=dtype)
    close(stream(layer, x)[0], layer(x)[0], dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", DIAGONAL)
@torch.no_grad()
def test_stack_of_eight(name: str, dtype: torch.dtype) -> None:
    x, results = torch.randn(2, 2000, D, dtype=dtype), {}
    for mode in ("scan", "conv"):
        layers = [make(name, dtype, seed, mode=mode) for seed in range(8)]
        results[mode] = stack(layers, x, lambda layer, y: layer(y))
    close(results["conv"], results["scan"], dtype)
    close(stack(layers, x[:, :50], stream), results["scan"][:, :50], dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["scan", "conv"])
@settings(max_examples=5)
@given(steps=st.integers(0, 40), data=st.data())
def test_splitting_anywhere_changes_nothing(name: str, mode: str, steps: int, data: st.DataObject) -> None:
    layer = make(name, **({"mode": mode} if name in DIAGONAL else {}))
    cut, x = data.draw(st.integers(0, steps)), torch.randn(2, steps, D, dtype=torch.float64)
    y, final = layer(x)
    first, state = layer(x[:, :cut])
    second, other = layer(x[:, cut:], state)
    close(torch.cat([first, second], 1), y)
    close(other, final)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["scan", "conv"])
@settings(max_examples=4)
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=3))
def test_padding_changes_no_real_position(name: str, mode: str, lengths: list[int]) -> None:
    layer = make(name, **({"mode": mode} if name in DIAGONAL else {}))
    x = torch.randn(len(lengths), 12, D, dtype=torch.float64)
    state = torch.randn_like(layer.initial_state(len(lengths)))
    y, final = layer(x, state, lengths=torch.tensor(lengths))
    for i, length in enumerate(lengths):
        alone, last = layer(x[i : i + 1, :length], state[i : i + 1])
        close(y[i : i + 1, :length], alone)
        close(final[i : i + 1], last)
        assert not y[i, length:].any()


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_the_padding_reaches_nothing(name: str) -> None:
    layer, x = make(name), torch.randn(2, 30, D, dtype=torch.float64)
    x[0, 7:] = torch.nan
    y, final = layer(x, lengths=torch.tensor([7, 30]))
    assert torch.isfinite(y).all()
    assert torch.isfinite(final.abs()).all()
    gradients = torch.autograd.grad(y.square().sum() + final.abs().square().sum(), list(layer.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("name", NAMES)
def test_reset_starts_a_new_episode(name: str) -> None:
    layer, x = make(name), torch.randn(2, 10, D, dtype=torch.float64)
    state = torch.randn_like(layer.initial_state(2))
    reset = torch.zeros(2, 10, dtype=torch.bool)
    reset[0, 4] = reset[1, 7] = True
    y, final = layer(x, state, reset=reset)
    for i, at in enumerate((4, 7)):
        before, _ = layer(x[i : i + 1, :at], state[i : i + 1])
        after, last = layer(x[i : i + 1, at:])
        close(y[i : i + 1], torch.cat([before, after], 1))
        close(final[i : i + 1], last)


@pytest.mark.parametrize("name", NAMES)
def test_dt_per_step_equals_dt_by_number_and_streaming(name: str) -> None:
    layer, x = make(name), torch.randn(2, 10, D, dtype=torch.float64)
    y, final = layer(x, dt=0.7)
    for shape in ((10,), (2, 10)):
        z, other = layer(x, dt=torch.full(shape, 0.7, dtype=torch.float64))
        close(z, y)
        close(other, final)
    dt = torch.rand(2, 10, dtype=torch.float64)
    state, outputs = None, []
    for t in range(10):
        y_t, state = layer.step(x[:, t], state, dt=dt[:, t])
        outputs.append(y_t)
    close(torch.stack(outputs, 1), layer(x, dt=dt)[0])


@pytest.mark.parametrize("name", ["real-zoh", "real-tanh", "s4d-lin", "rnn-linear", "min-gru", "min-lstm", "hgrn"])
def test_irregular_samples_of_a_held_input_agree(name: str) -> None:
    """A zero-order hold is exact: an input held for one long step or for several short ones gives one state."""
    layer, x = make(name), torch.randn(2, 4, D, dtype=torch.float64)
    _, coarse = layer(x, dt=torch.tensor([0.3, 0.2, 0.5, 0.4], dtype=torch.float64))
    fine_dt = torch.tensor([0.1, 0.2, 0.2, 0.25, 0.25, 0.1, 0.3], dtype=torch.float64)
    _, fine = layer(x[:, [0, 0, 1, 2, 2, 3, 3]], dt=fine_dt)
    close(fine, coarse)


@pytest.mark.parametrize("name", NAMES)
def test_same_input_same_bits(name: str) -> None:
    layer, x = make(name, torch.float32), torch.randn(3, 200, D)
    first, again = layer(x), layer(x)
    assert all(torch.equal(u, v) for u, v in zip(first, again, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter_the_input_and_the_state(name: str) -> None:
    layer = make(name, torch.float64)
    x = torch.randn(2, 12, D, dtype=torch.float64, requires_grad=True)
    state = torch.randn_like(layer.initial_state(2)).requires_grad_()
    y, final = layer(x, state)
    (y.square().sum() + final.abs().square().sum()).backward()
    for label, tensor in [("x", x), ("state", state), *layer.named_parameters()]:
        assert tensor.grad is not None, label
        assert torch.isfinite(tensor.grad).all(), label
        assert tensor.grad.abs().max() > 0, label


@pytest.mark.parametrize("name", DIAGONAL)
def test_both_modes_have_the_same_gradients(name: str) -> None:
    gradients = []
    for mode in ("scan", "conv"):
        layer = make(name, mode=mode)
        torch.manual_seed(1)
        x = torch.randn(2, 50, D, dtype=torch.float64)
        y, final = layer(x, torch.randn_like(layer.initial_state(2)))
        gradients.append(torch.autograd.grad(y.sin().sum() + final.abs().sum(), list(layer.parameters())))
    for ours, truth in zip(*gradients, strict=True):
        close(ours, truth)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_kernel_is_the_response_to_an_impulse(name: str) -> None:
    layer, steps, channels = make(name), 400, torch.eye(D, dtype=torch.float64)
    if getattr(layer, "activation", "linear") != "linear":
        return  # it has no kernel
    discrete = getattr(layer, "time", "continuous") == "discrete"
    width = None if discrete else 1e-3
    x = torch.zeros(D, steps, D, dtype=torch.float64)
    x[:, 0] = channels if discrete else channels / width
    response = (layer(x, dt=width)[0] - layer(torch.zeros_like(x), dt=width)[0]).permute(1, 2, 0)
    times = torch.arange(steps, dtype=torch.float64)
    kernel = layer.kernel(times if discrete else width * (times + 0.5))
    kernel = kernel if kernel.dim() == 3 else kernel.diag_embed()
    error = (response - kernel)[1:].abs().max() / kernel.abs().max()  # D counts at the first step only
    assert error <= (1e-9 if discrete else 5e-3)


@pytest.mark.parametrize("name", NAMES)
def test_what_eigenvalues_depend_on_is_recurrent(name: str) -> None:
    layer = make(name)
    parameters = dict(layer.named_parameters())
    found = torch.autograd.grad(layer.eigenvalues().abs().sum(), list(parameters.values()), allow_unused=True)
    reached = {key for key, gradient in zip(parameters, found, strict=True) if gradient is not None}
    assert reached
    assert reached <= set(layer.recurrent_parameters)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_layer_is_loaded_again(name: str, tmp_path: Path) -> None:
    layer, x = make(name), torch.randn(2, 20, D, dtype=torch.float64)
    ssm.save(layer, tmp_path)
    assert torch.equal(ssm.load(tmp_path)(x)[0], layer(x)[0])


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_real_and_survive_saving(name: str) -> None:
    layer = make(name)
    assert not any(parameter.is_complex() for parameter in layer.parameters())
    assert {id(getattr(layer, n)) for n in layer.recurrent_parameters} <= {id(p) for p in layer.parameters()}
    other = LAYERS[name]().double()
    other.load_state_dict(layer.state_dict())
    x = torch.randn(1, 20, D, dtype=torch.float64)
    assert torch.equal(other(x)[0], layer(x)[0])
    assert torch.equal(copy.deepcopy(layer)(x)[0], layer(x)[0])
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x)[0], layer(x)[0])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_weights_may_lie_anywhere_in_a_larger_array(name: str, dtype: torch.dtype) -> None:
    """Loaded without a copy (``assign``), at odd places or with other strides; a complex view has neither."""
    layer, x, times = make(name, dtype), torch.randn(2, 20, D, dtype=dtype), torch.arange(5, dtype=dtype)

    def results() -> list[Tensor]:
        layer.zero_grad()
        y, _ = layer(x)
        y.square().sum().backward()
        kernel = [layer.kernel(times)] if getattr(layer, "activation", "linear") == "linear" else []
        return [y, layer.step(x[:, 0])[0], *kernel, *(parameter.grad.clone() for parameter in layer.parameters())]

    expected = results()
    odd, turned = (dict(layer.state_dict()) for _ in range(2))
    for key, value in odd.items():
        odd[key] = torch.cat([value.new_zeros(1), value.flatten()])[1:].view(value.shape)
        turned[key] = value.movedim(-1, 0).contiguous().movedim(0, -1) if value.dim() else value
    for weights in (odd, turned):
        layer.load_state_dict(weights, assign=True)
        assert next(layer.parameters()).storage_offset() == (weights is odd)
        for ours, truth in zip(results(), expected, strict=True):
            close(ours, truth, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_starts_from_given_eigenvalues(name: str) -> None:
    layer = make(name)
    given_ones = layer.eigenvalues().detach()
    twin = LAYERS[name](eigenvalues=given_ones).double()
    order = [sorted(lam.flatten().tolist(), key=lambda z: (z.real, z.imag)) for lam in (given_ones, twin.eigenvalues())]
    # the parameters are float32 at construction
    torch.testing.assert_close(torch.tensor(order[1]), torch.tensor(order[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("map", ["direct", "exp", "softplus", "best"])
def test_exchanging_the_map_keeps_the_function(name: str, map: str) -> None:
    layer, x = make(name), torch.randn(1, 50, D, dtype=torch.float64)
    options = {"b": 0.05} if map == "best" and layer.time == "continuous" else {}
    if map in ("exp", "softplus") and layer.time == "discrete":
        pytest.skip("these reach (0, 1) only") if (layer.map(layer.w) <= 0).any() else None
    if map == "best" and layer.time == "discrete":
        options = {"b": 0.5 if (layer.map(layer.w) < 0).any() else 1.0}
    close(layer.with_map(map, **options)(x)[0], layer(x)[0])


@pytest.mark.parametrize("name", NAMES)
def test_reset_parameters_draws_anew(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    torch.manual_seed(123)
    layer.reset_parameters()
    assert any(not torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    torch.manual_seed(0)
    layer.reset_parameters()
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key])


def either(name: str, dtype: torch.dtype, seed: int, both: bool) -> torch.nn.Module:
    """A layer, alone or in both directions."""
    layer = make(name, dtype, seed)
    return ssm.Bidirectional(layer, make(name, dtype, seed + 1)) if both else layer


def rows(state: Tensor | tuple[Tensor, ...] | None, i: int | slice) -> object:
    """Of a state or a pair of states, those of some sequences; of one without the batch dimension."""
    return tuple(part[i] for part in state) if isinstance(state, tuple) else state if state is None else state[i]


def same(ours: object, truth: object, dtype: torch.dtype) -> None:
    for u, v in zip(*(value if isinstance(value, tuple) else (value,) for value in (ours, truth)), strict=True):
        assert u.dtype == v.dtype
        close(u, v, dtype)


@pytest.mark.parametrize("name", ONE_OF_EACH)
@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    how=st.sampled_from(["any order", "batch second", "sorted", "by hand"]),
    dtype=st.sampled_from(list(TOLERANCE)),
    both=st.booleans(),
    given_state=st.booleans(),
    seed=st.integers(0, 99),
)
def test_packed_and_single_sequences_are_taken_as_a_gru_takes_them(
    name: str, lengths: list[int], how: str, dtype: torch.dtype, both: bool, given_state: bool, seed: int
) -> None:
    layer = either(name, dtype, seed, both)
    lengths = sorted(lengths, reverse=True) if how in ("sorted", "by hand") else lengths
    steps, batch = max(lengths), len(lengths)
    x, dt = torch.randn(batch, steps, D, dtype=dtype), torch.rand(batch, steps, dtype=dtype)
    reset = torch.rand(batch, steps) < 0.2
    arranged = x.transpose(0, 1) if how == "batch second" else x
    packed = pack_padded_sequence(
        arranged, torch.tensor(lengths), batch_first=how != "batch second", enforce_sorted=how in ("sorted", "by hand")
    )
    if how == "by hand":
        packed = PackedSequence(packed.data, packed.batch_sizes)
    state = None
    if given_state:
        parts = (layer.ahead, layer.back) if both else (layer,)
        states = tuple(torch.randn_like(part.initial_state(batch)) for part in parts)
        state = states if both else states[0]
    y, final = layer(packed, state, reset=reset, dt=dt)
    assert isinstance(y, PackedSequence)
    assert torch.equal(y.batch_sizes, packed.batch_sizes)
    values, counted = pad_packed_sequence(y, batch_first=True)
    assert counted.tolist() == lengths
    for i, length in enumerate(lengths):
        alone, last = layer(x[i, :length], rows(state, i), reset=reset[i, :length], dt=dt[i, :length])
        whole, end = layer(
            x[i : i + 1, :length], rows(state, slice(i, i + 1)), reset=reset[i, :length], dt=dt[i, :length]
        )
        assert torch.equal(alone, whole[0])
        same(last, rows(end, 0), dtype)
        same(values[i, :length], alone, dtype)
        same(rows(final, i), last, dtype)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_packed_sequences_have_the_order_and_the_gradients_of_a_gru(name: str) -> None:
    layer, sequences = make(name), [torch.randn(length, D, dtype=torch.float64) for length in (2, 5, 3, 5)]
    leaves = [sequence.clone().requires_grad_() for sequence in sequences]
    packed = pack_sequence(leaves, enforce_sorted=False)
    y, final = layer(packed)
    theirs, h_n = torch.nn.GRU(D, D).double()(packed)
    assert torch.equal(y.sorted_indices, theirs.sorted_indices)
    assert torch.equal(y.unsorted_indices, theirs.unsorted_indices)
    assert y.data.shape == theirs.data.shape
    assert len(final) == h_n.shape[1]
    (y.data.square().sum() + final.abs().square().sum()).backward()
    for leaf in leaves:
        own = leaf.detach().clone().requires_grad_()
        z, last = layer(own)
        (z.square().sum() + last.abs().square().sum()).backward()
        close(leaf.grad, own.grad)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_single_sequence_is_streamed_without_a_batch(name: str) -> None:
    layer, x = make(name), torch.randn(7, D, dtype=torch.float64)
    y, final = layer(x)
    assert y.shape == (7, D)
    assert final.shape == layer.state_shape
    state = None
    for x_t, y_t in zip(x, y, strict=True):
        ours, state = layer.step(x_t, state, dt=own_dt(layer))
        close(ours, y_t)
    close(state, final)
    for ours, truth in zip(layer.step(x[0], state, dt=0.37), layer.step(x[:1], state[None], dt=0.37), strict=True):
        close(ours, truth[0])
    with pytest.raises(ssm.ArgumentError, match=r"^x_t: expected 2 dimensions \(batch, d_input\) or 1 \(d_input\)"):
        layer.step(x[None])
    with pytest.raises(ssm.ArgumentError, match=r"^x_t: expected dtype torch.float64"):
        layer.step(x[0].float())


@pytest.mark.parametrize("name", ["lru", "real-zoh"])
def test_a_single_sequence_under_autocast_compiles_without_graph_breaks(name: str) -> None:
    layer, x = make(name, torch.float32), torch.randn(2, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = torch.compile(layer, fullgraph=True, backend="eager")(x)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, layer(x)[0])


@pytest.mark.parametrize("name", NAMES)
def test_autocast_keeps_the_recurrence_in_float32(name: str) -> None:
    layer, x = make(name, torch.float32), torch.randn(2, 64, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = layer(x)
        assert y.dtype == layer(x.bfloat16())[0].dtype == layer.step(x[:, 0])[0].dtype == torch.bfloat16
        assert make(name)(x.double())[0].dtype == torch.float64
        with pytest.raises(ssm.ArgumentError, match=r"^x: expected dtype torch.float32"):
            layer(x.double())
    assert state.dtype in (torch.float32, torch.complex64)
    assert (y.float() - layer(x)[0]).abs().max() < 0.1 * layer(x)[0].abs().max()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_autocast_changes_no_state_that_runs_freely(name: str) -> None:
    """Parameters that bfloat16 represents and no input: the drive is exact, and the recurrence must be."""
    layer, x = make(name, torch.float32), torch.zeros(2, 20, D)
    for parameter in layer.parameters():
        parameter.copy_(parameter.bfloat16())
    state = torch.randn_like(layer.initial_state(2))
    expected, stepped = layer(x, state)[1], layer.step(x[:, 0], state)[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(layer(x, state)[1], expected, torch.float32)
        close(layer.step(x[:, 0], state)[1], stepped, torch.float32)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [3, 40])
def test_odd_arguments_are_taken(name: str, steps: int) -> None:
    """An empty batch, a state of another precision, lengths of a short dtype."""
    layer = make(name, torch.float32)
    y, state = layer(torch.randn(0, steps, D))
    assert y.shape == (0, steps, D)
    assert state.shape == (0, *layer.state_shape)
    wide = torch.randn_like(layer.initial_state(2)).to(torch.complex128 if layer.complex_state else torch.float64)
    x = torch.randn(2, steps, D)
    assert layer(x, wide)[1].dtype == layer.step(x[:, 0], wide)[1].dtype == layer.initial_state(1).dtype
    short = torch.tensor([1, steps], dtype=torch.uint8)
    close(layer(x, lengths=short)[1], layer(x, lengths=short.long())[1], torch.float32)


@pytest.mark.parametrize("name", NAMES)
def test_kernel_and_deferred_initialization(name: str) -> None:
    times = torch.arange(4, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        layer = make(name, dtype)
        if getattr(layer, "activation", "linear") == "linear":
            assert layer.kernel(times).dtype == torch.float32
    if name in MAPPED:
        with torch.device("meta"):
            assert LAYERS[name]().w.is_meta


@pytest.mark.parametrize("name", NAMES)
def test_a_bfloat16_layer_keeps_its_state_in_float32(name: str) -> None:
    layer = make(name, torch.bfloat16)
    y, state = layer(torch.randn(2, 16, D, dtype=torch.bfloat16))
    y_t, state = layer.step(torch.randn(2, D, dtype=torch.bfloat16), state)
    assert y.dtype == y_t.dtype == torch.bfloat16
    assert state.dtype in (torch.float32, torch.complex64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("argument", "message", "x", "options"),
    [
        ("x", r"3 dimensions \(batch, time, d_input\) or 2 \(time, d_input\), got shape \(3,\)", torch.zeros(D), {}),
        ("x", r"3 channels \(d_input\), got 4", torch.zeros(5, 4), {}),
        (
            "x",
            r"dtype torch.float32, as the .*x.to\(torch.float32\), .*got torch.float64",
            torch.zeros(2, 5, D).double(),
            {},
        ),
        ("x", r"dtype torch.float32, .*or the module with .to\(torch.bfloat16\)", torch.zeros(2, 5, D).bfloat16(), {}),
        ("x", r"packed sequences of shape \(time, d_input\), got data", pack_sequence([torch.zeros(5)]), {}),
        ("x", "a tensor, got list", [[1.0] * D], {}),
        ("lengths", "None, since a PackedSequence", pack_sequence([torch.zeros(5, D)]), {"lengths": torch.tensor([5])}),
        ("lengths", "None with one sequence", torch.zeros(5, D), {"lengths": torch.tensor([5])}),
        ("state", r"shape \((3, )?[38],?\), got shape \(1, (3, )?[38]", torch.zeros(5, D), {"state": "a batch of one"}),
        ("x", r"3 channels \(d_input\), got 4", torch.zeros(2, 5, 4), {}),
        ("x", "real floating point", torch.zeros(2, 5, D, dtype=torch.complex64), {}),
        ("state", r"shape \(2, .*got shape \(7, 7\)", torch.zeros(2, 5, D), {"state": torch.zeros(7, 7)}),
        ("lengths", "from 0 to 5.*got -1", torch.zeros(2, 5, D), {"lengths": torch.tensor([-1, 2])}),
        ("lengths", "from 0 to 5.*got 6", torch.zeros(2, 5, D), {"lengths": torch.tensor([1, 6])}),
        ("lengths", "integer dtype", torch.zeros(2, 5, D), {"lengths": torch.tensor([1.0, 2.0])}),
        ("reset", r"got shape \(4,\)", torch.zeros(2, 5, D), {"reset": torch.zeros(4, dtype=torch.bool)}),
        ("reset", "torch.bool", torch.zeros(2, 5, D), {"reset": torch.zeros(5)}),
        ("dt", r"shape \(\) or shape \(5,\) or shape \(2, 5\)", torch.zeros(2, 5, D), {"dt": torch.ones(3)}),
        ("dt", "none negative, got -1", torch.zeros(2, 5, D), {"dt": -1.0}),
        ("dt", "finite time steps.*got inf", torch.zeros(2, 5, D), {"dt": torch.tensor([1, 1, 1, 1, torch.inf])}),
        ("dt", "a real dtype", torch.zeros(2, 5, D), {"dt": torch.ones(5) + 1j}),
    ],
)
def test_bad_input_is_named(name: str, argument: str, message: str, x: object, options: dict[str, object]) -> None:
    layer = make(name, torch.float32)
    if "state" in options and isinstance(options["state"], str):
        options = {"state": layer.initial_state(1)}
    with pytest.raises(ValueError, match=rf"^{argument}: expected .*{message}"):
        layer(x, **options)


@pytest.mark.parametrize("name", MAPPED)
def test_a_layer_of_two_dtypes_names_that_of_its_input(name: str) -> None:
    """As transformers loads a model in bfloat16: what sets the dynamics stays in float32."""
    layer, x = make(name, torch.bfloat16), torch.randn(2, 5, D)
    for key in layer.recurrent_parameters:
        getattr(layer, key).data = getattr(layer, key).data.float()
    assert layer(x.bfloat16())[0].dtype == torch.bfloat16
    with pytest.raises(ssm.ArgumentError, match=r"^x: expected dtype torch.bfloat16, .*got torch.float64$"):
        layer(x.double())


@pytest.mark.parametrize("name", MAPPED)
def test_a_transition_requires_a_batch(name: str) -> None:
    with pytest.raises(ssm.ArgumentError, match=r"^x: expected 3 dimensions \(batch, time, d_input\), got"):
        make(name).transition(torch.zeros(5, D, dtype=torch.float64))


@pytest.mark.parametrize("name", DIAGONAL)
def test_a_convolution_refuses_what_varies_in_time(name: str) -> None:
    layer, x = make(name, torch.float32, mode="conv"), torch.zeros(2, 5, D)
    with pytest.raises(ValueError, match=r"^mode: expected 'scan' or 'auto' with a reset"):
        layer(x, reset=torch.zeros(5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^mode: expected 'scan' or 'auto' with a dt"):
        layer(x, dt=torch.ones(5))
