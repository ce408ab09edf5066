"""Adapters of JAX functions and reservoirpy nodes: stand-ins with their interface, and the real ones if installed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import stablessm as ssm
from stablessm.instruments.adapters import as_stateful

RNG = np.random.default_rng(0)
W, U = RNG.standard_normal((4, 4)) / 3, RNG.standard_normal((4, 2))
X = RNG.standard_normal((60, 2))


class Array:
    """An array of single precision that is neither of PyTorch nor of NumPy, as arrays of JAX are."""

    def __init__(self, value):
        self.value = np.asarray(value, dtype=np.float32)
        self.dtype, self.shape = self.value.dtype, self.value.shape

    def __array__(self, dtype=None, copy=None):
        return self.value.astype(dtype) if dtype else self.value

    def __array_namespace__(self):
        return SimpleNamespace(asarray=Array)


def stand_in():
    """One step, which takes NumPy arrays as inputs and its own arrays as state."""

    def step(x, state):
        assert isinstance(x, np.ndarray)
        assert isinstance(state, Array)
        state = Array(np.tanh(W @ state.value + U @ x))
        return state, state

    return step, Array(np.zeros(4))


def jax_step():
    jnp = pytest.importorskip("jax.numpy")

    def step(x, state):
        state = jnp.tanh(W @ state.at[0].multiply(1.0) + U @ x)  # .at: arrays of JAX alone
        return state, state

    return step, jnp.zeros(4)


@pytest.mark.parametrize("made", [stand_in, jax_step])
def test_lyapunov_exponents_of_a_function_of_foreign_arrays(made):
    step, state = made()
    found = ssm.lyapunov_spectrum(step, X, state=state)
    weights, inputs = torch.tensor(W), torch.tensor(U)
    expected = ssm.lyapunov_spectrum(
        lambda x, h: (h, torch.tanh(weights @ h + inputs @ x)), X, state=torch.zeros(4)
    ).exponents
    np.testing.assert_allclose(found.exponents[:3], expected[:3], atol=0.02)  # finite differences in single precision
    assert "finite differences" in found.method


def sequences_of_stand_ins():
    def model(x, state):
        assert isinstance(x, np.ndarray)
        h, outputs = np.zeros((len(x), 4), np.float32) if state is None else state.value, []
        for t in range(x.shape[1]):
            h = np.tanh(h @ W.T + x[:, t] @ U.T).astype(np.float32)
            outputs.append(h)
        return Array(np.stack(outputs, 1)), Array(h)

    return model


def sequences_of_jax():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def model(x, state):
        def step(h, x_t):
            h = jnp.tanh(h @ W.T + x_t @ U.T)
            return h, h

        last, y = jax.lax.scan(step, jnp.zeros((len(x), 4)) if state is None else state, jnp.swapaxes(x, 0, 1))
        return jnp.swapaxes(y, 0, 1), last

    return model


@pytest.mark.parametrize("made", [sequences_of_stand_ins, sequences_of_jax])
def test_sequences_of_foreign_arrays(made):
    model = made()
    assert as_stateful(model, d_input=2).dtype == torch.float32
    report = ssm.check_state(model, d_input=2)
    assert report.passed, str(report)
    assert ssm.effective_state_size(model, X[:30], 1e-3).size == 4
    forgets = lambda x, state: (model(x, state)[0], model(x[:, -1:], None)[1])  # noqa: E731
    assert not ssm.check_state(forgets, d_input=2, cases=["chunks"]).passed


def vector_steps():
    """The same network as functions of one step of one sequence, with states of several kinds."""
    weights, inputs = torch.tensor(W), torch.tensor(U)

    def tensors(x, h):
        h = torch.tanh(weights @ (torch.zeros(4, dtype=x.dtype) if h is None else h) + inputs @ x)
        return h, h

    def arrays(x, state):
        h = np.tanh(W @ (np.zeros(4) if state is None else state["h"]) + U @ x)
        return h, {"h": h, "step": 0}

    def numbers(x, state):  # a state of two numbers
        fast, slow = (0.0, 0.0) if state is None else state
        fast, slow = 0.5 * fast + float(x[0]), 0.9 * slow + float(x[1])
        return np.array([fast - slow]), (fast, slow)

    return {"tensors": (tensors, 4), "arrays": (arrays, 4), "numbers": (numbers, 2)}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("module", [torch, np])
def test_a_reservoir_with_one_input_is_not_taken_for_a_function_of_sequences(module, size):
    """The product of a vector of weights and the input exists for any shape of the input."""
    J, w = 0.5 * np.eye(size) + 0.1, np.ones(size) + np.arange(size)
    J, w = (torch.tensor(J), torch.tensor(w)) if module is torch else (J, w)

    def step(x, h):
        h = module.tanh(J @ (0 * w if h is None else h) + w * x)
        return h, h

    y, _ = as_stateful(step, d_input=1).run(torch.ones(2, 6, 1, dtype=torch.float64))
    h = 0 * w
    for t in range(6):
        h, _ = step(1.0, h)
        np.testing.assert_allclose(y[1, t], h)


@pytest.mark.parametrize("name", ["tensors", "arrays", "numbers"])
@pytest.mark.parametrize("width", [2, 5])
def test_functions_of_a_single_step_of_a_single_sequence(name, width):
    step, size = vector_steps()[name]
    model = step if width == 2 else lambda x, state: step(x[:2], state)  # 2 and 5 sequences are tried
    x = RNG.standard_normal((60, width))
    assert ssm.effective_state_size(model, x, 1e-6).size == size
    assert ssm.check_state(model, d_input=width, cases=["chunks", "batch"]).passed
    assert ssm.receptive_field(model, x).reach() < 60
    assert ssm.memory_function(model, 80, d_input=width, samples=8, ascent=1).decay().kind == "exponential"


class Node:
    """A node with the interface of reservoirpy 0.4, which keeps its state in itself."""

    initialized = False

    def __init__(self):
        self.W, self.U = W, U

    def initialize(self, x):
        self.initialized, self.state = True, {"out": np.zeros(4)}

    def __call__(self, x):
        return self.run(x[None])[0]

    def reset(self):
        self.state = {"out": np.zeros(4)}

    def run(self, x):
        outputs = []
        for now in x:
            self.state = {"out": np.tanh(self.W @ self.state["out"] + self.U @ now)}
            outputs.append(self.state["out"])
        return np.array(outputs)


Node.__module__ = "reservoirpy.stand_in"


def real_node():
    nodes = pytest.importorskip("reservoirpy.nodes")
    return nodes.Reservoir(4, lr=1.0, W=W, Win=U, bias=np.zeros(4), input_dim=2)


@pytest.mark.parametrize("made", [Node, real_node])
def test_a_reservoir(made):
    node = made()
    report = ssm.check_state(node, d_input=2)
    assert report.passed, str(report)
    assert report["chunks"].status == report["cache mutation"].status == "pass"
    if not hasattr(node, "d_input"):
        node.d_input = 2
    found = ssm.lyapunov_spectrum(node, X)
    weights, inputs = torch.tensor(W), torch.tensor(U)
    expected = ssm.lyapunov_spectrum(
        lambda x, h: (h, torch.tanh(weights @ h + inputs @ x)), X, state=torch.zeros(4)
    ).exponents
    np.testing.assert_allclose(found.exponents, expected, atol=0.1)


@pytest.mark.parametrize("method", ["initialize", "run", "reset"])
def test_a_reservoir_that_raises_is_told_so(monkeypatch, method):
    def unfitted(self, *given):
        raise TypeError("unsupported operand: Wout is None")

    monkeypatch.setattr(Node, method, unfitted)
    with pytest.raises(ssm.ArgumentError, match=r"model: .*fitted.* got Node, which raised TypeError: .*Wout is None"):
        ssm.check_state(Node(), d_input=2)


@pytest.mark.parametrize("made", [Node, real_node])
def test_memory_of_a_reservoir_and_of_functions_with_a_state(made):
    weights, inputs = torch.tensor(W), torch.tensor(U)

    def step(x, h):
        h = torch.tanh(x @ inputs.mT + (0 if h is None else h @ weights.mT))
        return h, h

    def sequence(x, h):
        outputs = []
        for x_t in x.unbind(1):
            y, h = step(x_t, h)
            outputs.append(y)
        return torch.stack(outputs, 1), h

    found = [
        ssm.memory_function(model, 30, d_input=2, directions=torch.eye(2)).value
        for model in (made(), step, sequence, as_stateful(step, d_input=2), lambda x: sequence(x, None)[0])
    ]
    assert found[0].max() > 0
    for value in found[1:]:
        np.testing.assert_allclose(value, found[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("arrays", [False, True])
def test_a_function_of_steps_that_also_runs_on_a_sequence_is_run_by_steps(arrays):
    weights, inputs = (W, U) if arrays else (torch.tensor(W), torch.tensor(U))
    tanh = np.tanh if arrays else torch.tanh

    def step(x, h=None):
        h = tanh(x @ inputs.T) if h is None else tanh(x @ inputs.T + h @ weights.T)
        return h, h

    assert ssm.check_state(step, d_input=2).passed
    assert ssm.memory_function(step, 10, d_input=2, directions=torch.eye(2)).value[3] > 0
