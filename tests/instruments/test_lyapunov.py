"""Lyapunov exponents of systems whose exponents are known: by a formula, from the literature, or by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError, NumericalError, lyapunov_spectrum


def runge_kutta(slope, dt):
    """One step of a differential equation, as a function (x, state) -> (y, state)."""

    def step(x, s):
        a = slope(s)
        b = slope(s + dt / 2 * a)
        c = slope(s + dt / 2 * b)
        d = slope(s + dt * c)
        return s[0], s + dt / 6 * (a + 2 * b + 2 * c + d)

    return step


def lorenz(s):
    x, y, z = s
    parts = [10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z]
    return torch.stack(parts) if isinstance(s, Tensor) else np.array(parts)


def roessler(s):
    return np.array([-s[1] - s[2], s[0] + 0.2 * s[1], 0.2 + s[2] * (s[0] - 5.7)])


def henon(x, s):
    return s[0], torch.stack([1 - 1.4 * s[0] ** 2 + s[1], 0.3 * s[0]])


def ikeda(x, s):
    angle = 0.4 - 6 / (1 + s[0] ** 2 + s[1] ** 2)
    turned = s[0] * np.cos(angle) - s[1] * np.sin(angle), s[0] * np.sin(angle) + s[1] * np.cos(angle)
    return None, np.array([1 + 0.9 * turned[0], 0.9 * turned[1]])


def random_matrix(seed: int, size: int) -> Tensor:
    """A matrix with eigenvalues of modulus up to 1.5 and, half of the time, far from normal."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64) / size**0.5
    if seed % 2:
        return torch.triu(matrix) + 10 * torch.triu(matrix, 1)
    return matrix


@pytest.mark.parametrize(
    ("system", "state", "options", "expected", "close"),
    [
        (henon, torch.tensor([0.1, 0.1]), {"steps": 1500}, [0.419, math.log(0.3) - 0.419], 0.015),
        (lambda x, s: (s, 4 * s * (1 - s)), torch.tensor(0.3), {"steps": 2000}, [math.log(2)], 0.005),
        (lambda x, s: (s, 3.2 * s * (1 - s)), torch.tensor(0.3), {"steps": 1000}, [-0.9163], 0.002),
        (ikeda, np.array([0.1, 0.1]), {"steps": 3000}, [0.507, 2 * math.log(0.9) - 0.507], 0.015),
        (runge_kutta(lorenz, 0.01), np.ones(3), {"steps": 8000, "dt": 0.01}, [0.906, 0.0, -14.572], 0.03),
        pytest.param(
            runge_kutta(roessler, 0.05), np.ones(3), {"steps": 6000, "dt": 0.05}, [0.0714, 0.0, -5.39], 0.05,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["henon", "logistic 4", "logistic 3.2", "ikeda", "lorenz", "roessler"],
)  # fmt: skip
def test_values_of_the_literature(system, state, options, expected, close):
    found = lyapunov_spectrum(system, state=state, **options)
    np.testing.assert_allclose(found.exponents, expected, atol=close)
    assert found.verdict == ("expanding" if expected[0] > 0 else "contracting")
    assert np.all(abs(found.exponents - expected) < np.maximum(4 * found.error, close))


@pytest.mark.slow
def test_henon_to_three_digits():
    assert lyapunov_spectrum(henon, state=torch.zeros(2), steps=20_000).largest == pytest.approx(0.419, abs=0.003)


@pytest.mark.slow
def test_lorenz_as_a_function_of_tensors():
    found = lyapunov_spectrum(runge_kutta(lorenz, 0.01), state=torch.ones(3), steps=100_000, dt=0.01)
    assert found.largest == pytest.approx(0.906, abs=0.005)
    assert found.exponents.sum() == pytest.approx(-41 / 3, abs=1e-2)  # minus the divergence of the flow
    assert found.dimension == pytest.approx(2.062, abs=0.002)


@given(seed=st.integers(0, 10**6), size=st.integers(1, 6), numpy=st.booleans())
def test_a_linear_map_has_the_logarithms_of_its_eigenvalues(seed, size, numpy):
    matrix = random_matrix(seed, size)
    state = torch.zeros(size, dtype=torch.float64)
    expected = torch.linalg.eigvals(matrix).abs().log().sort(descending=True).values.numpy()
    first, weights = (state.numpy(), matrix.numpy()) if numpy else (state, matrix)
    found = lyapunov_spectrum(lambda x, s: (s, weights @ s), state=first, steps=20)
    np.testing.assert_allclose(found.exponents, expected, atol=1e-5 if numpy else 1e-9)
    assert ("finite differences" in found.method) == numpy


@given(seed=st.integers(0, 10**6), size=st.integers(2, 5))
def test_along_inputs_the_exponents_are_those_of_the_product_of_jacobian_matrices(seed, size):
    """Brute force: the growth of the axes of J_T ⋯ J_1, from QR of every matrix, with NumPy."""
    generator = torch.Generator().manual_seed(seed)
    W, U = (torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(2))
    x = torch.randn(60, size, generator=generator, dtype=torch.float64)
    state, q, logs = np.zeros(size), np.eye(size), []
    for t in range(60):
        state = np.tanh(W.numpy() @ state + U.numpy() @ x[t].numpy())
        q, r = np.linalg.qr((1 - state**2)[:, None] * W.numpy() @ q)
        logs.append(np.log(abs(np.diag(r))))
    found = lyapunov_spectrum(lambda u, s: (s, torch.tanh(W @ s + U @ u)), x, state=torch.zeros(size))
    # the growth of the first direction forgets where it started
    assert abs(found.exponents.sum() - np.mean(logs[6:], 0).sum()) < 1e-6
    assert abs(found.largest - np.mean(logs[6:], 0)[0]) < 0.35


@given(seed=st.integers(0, 10**6))
def test_gates_without_a_common_loop_are_averaged_exactly(seed):
    """Two layers, the second one fed by the first one, with gates of their own: averages of log a, and an exact 0."""
    generator = torch.Generator().manual_seed(seed)
    gates = torch.rand(30, 6, generator=generator, dtype=torch.float64)
    gates[:, 5] = 0.0

    def step(a, state):
        low, high = state["layers"]
        low = a[:3] * low + 1
        high = a[3:] * high + torch.tanh(5 * low)
        return high, {"layers": (low, high), "count": state["count"] + 1}

    first = {"layers": (torch.ones(3), torch.zeros(3)), "count": 0}
    found = lyapunov_spectrum(step, gates, state=first, dt=2.0)
    expected = np.sort(gates[3:].log().mean(0).numpy())[::-1] / 2
    np.testing.assert_allclose(found.exponents, expected, rtol=1e-12)
    assert (found.exponents[-1], found.verdict) == (-math.inf, "contracting")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_lru_has_the_logarithms_of_its_moduli(dtype):
    layer = ssm.LRU(2, 16, 3, r_min=0.3, r_max=0.999).to(dtype)
    found = lyapunov_spectrum(layer, torch.randn(40, 2))
    moduli = layer.eigenvalues().detach().to(torch.complex128).abs().log().sort(descending=True).values
    np.testing.assert_allclose(found.exponents, moduli.repeat_interleave(2), atol=1e-10)


def test_a_random_network_crosses_zero_where_its_spectral_radius_is_one():
    J = torch.randn(200, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 200**0.5
    critical = 1 / float(torch.linalg.eigvals(J).abs().max())
    assert critical == pytest.approx(1, abs=0.05)  # the circular law
    rates = []
    for factor in (0.97, 1.5):
        rnn = nn.RNN(1, 200, bias=False).double()
        rnn.weight_hh_l0.data = factor * critical * J
        rates.append(lyapunov_spectrum(rnn, state=torch.randn(1, 1, 200).double(), k=1, steps=1500).largest)
    assert rates[0] == pytest.approx(math.log(0.97), abs=2e-3)
    assert rates[1] > 0.02


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (nn.RNN(3, 5, num_layers=2), 10), (nn.GRU(3, 5, batch_first=True), 5), (nn.LSTM(3, 5), 10),
        (nn.GRUCell(3, 5), 5), (nn.LSTMCell(3, 5), 10), (ssm.MinGRU(3, 4), 4), (ssm.S4D(3, 2), 12),
        (ssm.ContinuousRNN(3, 4, 2), 4), (ssm.SequenceRegressor(2, d_input=3, d_model=4, n_layers=1, d_state=2), 16),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_modules_along_inputs(model, size):
    x = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0))
    found = lyapunov_spectrum(model, x)
    assert (found.state_size, len(found.exponents), found.trajectories) == (size, size, 2)
    assert np.all(np.diff(found.exponents) <= 0)
    assert "derivatives" in found.method
    one = lyapunov_spectrum(model, x[0]).exponents
    other = lyapunov_spectrum(model, x[1]).exponents
    assert found.exponents.sum() == pytest.approx((one + other).sum() / 2, rel=1e-3)


@pytest.mark.slow
def test_tokens_and_hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2, state_size=4)
    model = transformers.MambaForCausalLM(config)
    tokens = torch.randint(0, 20, (40,), generator=torch.Generator().manual_seed(0))
    found = lyapunov_spectrum(model, tokens)
    assert found.state_size == 2 * 16 * (4 + 4)
    assert found.largest < 0
    assert np.isneginf(found.exponents).sum() == 2 * 16 * 4  # windows of the convolutions
    language = ssm.LanguageModel(20, d_model=4, n_layers=1, d_state=2)
    assert lyapunov_spectrum(language, tokens).largest < 0


@pytest.mark.parametrize(
    ("step", "start"),
    [
        (lambda x, s: (None, 3 * s * (1 - s)), 0.31),  # a period doubling
        (lambda x, s: (None, (1 + 6**0.5) * s * (1 - s)), 0.31),
        (lambda x, s: (None, s - s**2), 0.4),
        (lambda x, s: (None, s - s**3.4), 0.4),
        (lambda x, s: (None, s + 2.1 - 0.9 * torch.sin(s)), 0.3),  # quasi-periodic
    ],
)
def test_the_error_covers_slow_convergence_to_zero(step, start):
    """The exponents are 0; the growth per step approaches 0 like 1/t, with hardly any variance."""
    found = lyapunov_spectrum(step, state=torch.tensor(start), steps=1000)
    assert abs(found.largest) <= found.error[0] < 0.01
    assert found.verdict == "marginal"


def standard_map(kick):
    def step(x, s):
        momentum = s[1] + kick * torch.sin(s[0])
        return s, torch.stack([(s[0] + momentum) % (2 * math.pi), momentum])

    return step


def pendulum(x, s):
    h, slope = 0.05, lambda s: torch.stack([s[1], -torch.sin(s[0])])
    a = slope(s)
    b = slope(s + h / 2 * a)
    c = slope(s + h / 2 * b)
    s = s + h / 6 * (a + 2 * b + 2 * c + slope(s + h * c))
    return s, s


@pytest.mark.parametrize(
    ("step", "start"), [(standard_map(0.5), [3.0, 0.1]), (standard_map(0.9), [3.0, 0.3]), (pendulum, [2.0, 0.0])]
)
def test_regular_motion_whose_changes_grow_with_time_is_marginal(step, start):
    """Trajectories of different frequencies separate in proportion to time, so that exponents fall as log(t)/t."""
    found = lyapunov_spectrum(step, state=torch.tensor(start, dtype=torch.float64))
    assert found.verdict == "marginal"
    assert (abs(found.exponents) <= found.error).all()


def test_strong_contraction_does_not_underflow():
    rates = torch.tensor([-50.0, -1.0, -300.0], dtype=torch.float64)
    found = lyapunov_spectrum(lambda x, s: (s, rates.exp() * s), state=torch.ones(3), steps=50)
    np.testing.assert_allclose(found.exponents, [-1, -50, -300], rtol=1e-12)
    shear = torch.tensor([[0.5, 100.0], [0.0, 0.4]], dtype=torch.float64)
    found = lyapunov_spectrum(lambda x, s: (s, shear @ s), state=torch.ones(2), steps=50, dt=0.1)
    assert found.growth == pytest.approx(torch.linalg.matrix_norm(shear, 2).item())
    assert found.growth_time == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (lambda x, s: (s, torch.stack([0.5 * s[0], 0.9 * s[1].detach()])), torch.ones(2)),
        (lambda x, s: (s, (s[0] * 0.9, math.tanh(s[1]) * 0.5)), (0.0, 0.0)),
        (lambda x, s: (s, [0.5 * s[0], 0.9 * s[1]]), [1.0, 1.0]),
        (lambda x, s: (s.mul_(torch.tensor([0.9, 0.5])), s), torch.ones(2)),
        (lambda x, s: (s, torch.tensor([0.9, 0.5]) * (s if s.sum() > 0 else s.clone())), torch.ones(2)),
        (lambda x, s: (s, {"a": s["a"] @ torch.diag(torch.tensor([0.9, 0.5]))}), {"a": torch.ones(1, 2)}),
    ],
    ids=["detached", "numbers", "list", "in place", "branch", "float32 weights"],
)  # fmt: skip
def test_functions_of_many_kinds(step, state):
    found = lyapunov_spectrum(step, state=state, steps=40)
    np.testing.assert_allclose(found.exponents, np.log([0.9, 0.5]), atol=1e-5)


def test_the_echo_state_property_is_tested_from_different_states():
    x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)).double()
    one = lyapunov_spectrum(lambda u, s: (s, torch.tanh(0.5 * s + u)), x, state=torch.zeros(1))
    assert (one.verdict, one.merged < 1e-9) == ("contracting", True)
    two = lyapunov_spectrum(lambda u, s: (s, torch.tanh(3 * s + 0.01 * u)), x, state=torch.ones(1))
    assert two.verdict == "contracting"
    assert two.merged > 0.1  # each of two attractors contracts
    assert "keep" in two.evidence


def test_errors():
    identity = lambda x, s: (s, s)  # noqa: E731
    with pytest.raises(ArgumentError, match="k: expected at most 2"):
        lyapunov_spectrum(identity, state=torch.ones(2), k=3)
    with pytest.raises(ArgumentError, match="state: expected the first state"):
        lyapunov_spectrum(identity)
    with pytest.raises(ArgumentError, match="steps: expected at most 9"):
        lyapunov_spectrum(identity, torch.ones(9, 2), state=torch.ones(2), steps=10)
    with pytest.raises(ArgumentError, match="model: expected a model with a state"):
        lyapunov_spectrum(nn.Linear(2, 2), torch.ones(9, 2))
    with pytest.raises(ArgumentError, match="causal"):
        lyapunov_spectrum(nn.GRU(2, 2, bidirectional=True), torch.ones(9, 2))
    with pytest.raises(ArgumentError, match="one size"):
        lyapunov_spectrum(lambda x, s: (s, torch.cat([s, s])), state=torch.ones(2))
    with pytest.raises(ArgumentError, match="inputs: expected a tensor or array of numbers, got 'abc'"):
        lyapunov_spectrum(identity, "abc", state=torch.ones(2))
    with pytest.raises(ArgumentError, match="state: expected a first state of finite numbers"):
        lyapunov_spectrum(identity, state=torch.tensor([1.0, math.nan]))
    for inputs in (None, torch.ones(9, 2)):
        with pytest.raises(ArgumentError, match="steps: expected a whole number, at least 1, got 0"):
            lyapunov_spectrum(identity, inputs, state=torch.ones(2), steps=0)


@pytest.mark.parametrize("steps", [600, 1023, 1024, 2000])
def test_a_linear_map_that_overflows_is_exact(steps):
    matrix = torch.tensor([[2.0, 5.0], [0.0, 3.0]], dtype=torch.float64)
    found = lyapunov_spectrum(lambda x, s: (None, matrix @ s), state=torch.ones(2), steps=steps)
    np.testing.assert_allclose(found.exponents, np.log([3, 2]), rtol=1e-12)
    x = torch.ones(steps, 2)
    found = lyapunov_spectrum(lambda u, s: (None, matrix @ s + u), x, state=torch.ones(2))
    np.testing.assert_allclose(found.exponents, np.log([3, 2]), rtol=1e-12)
    assert 0 < found.steps <= 650


def test_a_state_that_is_not_finite_is_refused_at_its_step():
    square = lambda x, s: (None, s**2)  # noqa: E731
    with pytest.raises(NumericalError, match=r"not finite after step 11\. Remedy: give at most 4 steps"):
        lyapunov_spectrum(square, state=torch.full((1,), 1.5))
    assert lyapunov_spectrum(square, state=torch.full((1,), 1.5), steps=4).verdict == "expanding"
    with pytest.raises(NumericalError, match=r"not finite after step 3\. Remedy: give at most 2 steps"):
        lyapunov_spectrum(lambda u, s: (None, s**2 / u), torch.tensor([1.0, 1, 0, 1]), state=torch.ones(1))
    with pytest.raises(NumericalError, match=r"not finite after step 1\. Remedy: start"):
        lyapunov_spectrum(lambda x, s: (None, s * math.nan), state=torch.ones(1))


@pytest.mark.parametrize("start", [0.2, 0.31])
def test_parallel_trajectories_stay_on_the_attractor(start):
    found = lyapunov_spectrum(lambda x, s: (None, 4 * s * (1 - s)), state=torch.tensor(start), steps=400)
    assert found.largest == pytest.approx(math.log(2), abs=0.005)


def test_results_say_what_was_found():
    found = lyapunov_spectrum(henon, state=torch.zeros(2), steps=200, k=1)
    assert "expanding: the largest exponent" in str(found)
    assert found.interval.shape == (1, 2)
    assert math.isnan(found.dimension)
    assert found.entropy == found.largest
    assert found.plot().get_title() == "expanding"


@pytest.mark.parametrize("scale", [0.0, 1e-200])
def test_trajectories_that_become_equal_merge_completely(scale):
    found = ssm.lyapunov_spectrum(lambda x, s: (s, scale * s + x), torch.randn(40, 2), state=torch.ones(2))
    assert found.merged == 0
    assert "merge (to 0 of their distance)" in str(found)


@pytest.mark.parametrize("steps", [50, 300])
def test_the_number_of_trajectories_is_printed_with_the_steps(steps):
    found = ssm.lyapunov_spectrum(lambda x, s: (s, 4 * s * (1 - s)), state=torch.tensor([0.3]).double(), steps=steps)
    assert f"{found.steps} steps (trajectories: {found.trajectories}), " in str(found)
