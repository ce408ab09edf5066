"""Two layers without memory: the proven error holds, the layers compute the network, bad input is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm import ArgumentError, check_streaming
from stablessm._errors import NumericalError
from stablessm.constructions.pointwise._ridge import fit
from stablessm.constructions.pointwise._sup_bound import sup_bound
from stablessm.constructions.pointwise.elementwise import elementwise


def smooth(seed, terms=12):
    """A random trigonometric polynomial and its Lipschitz constant."""
    draw = np.random.default_rng(seed)
    k = np.arange(1, terms + 1)
    a, phase = draw.normal(size=terms) / k, draw.uniform(0, 6, terms)
    return lambda x: np.cos(np.multiply.outer(x, k) + phase) @ a, float(np.abs(a * k).sum())


REQUIRED = {
    "abs": (np.abs, 1.0),
    "sine": (lambda x: np.sin(8 * x), 8.0),
    "step": (lambda x: np.tanh(50 * x), 50.0),
    "smooth": smooth(1),
}


@pytest.mark.parametrize("name", REQUIRED)
def test_certified_bound_holds_on_a_million_fresh_points(name):
    f, lipschitz = REQUIRED[name]
    found = elementwise(f, (-1, 1), 1e-3, lipschitz=lipschitz)
    assert found.certified
    assert found.error <= found.bound <= 1e-3
    assert found.width <= 32
    x = np.random.default_rng(7).uniform(-1, 1, 1_000_000)
    worst = max(np.abs(f(part) - found(part[:, None])[:, 0]).max() for part in np.array_split(x, 20))
    assert worst <= found.bound
    assert worst >= 0.5 * found.error  # the error that was reported is one that occurs


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000), low=st.floats(-1000, 1000), length=st.floats(0.2, 4), tol=st.sampled_from([0.1, 0.01])
)
def test_any_interval(seed, low, length, tol):
    f, lipschitz = smooth(seed, terms=5)
    found = elementwise(f, (low, low + length), tol, lipschitz=lipschitz)
    x = np.random.default_rng(seed).uniform(low, low + length, 20_000)
    assert np.abs(f(x) - found(x[:, None])[:, 0]).max() <= found.bound <= tol


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), width=st.integers(1, 12), d=st.integers(1, 2), scale=st.floats(0.1, 20))
def test_the_bound_is_one_for_any_network(seed, width, d, scale):
    """Also where f and the network have nothing to do with each other."""
    draw = np.random.default_rng(seed)
    low, high = -np.ones(d), np.ones(d)
    direction = draw.normal(size=(d, 2))

    def f(x):
        return np.sin(x @ direction)

    x = draw.uniform(-1, 1, size=(30, d))
    g = fit(scale * draw.normal(size=(width, d)), draw.normal(size=width), x, draw.normal(size=(30, 2)))
    fresh = draw.uniform(-1, 1, size=(20_000, d))
    errors = np.abs(f(fresh) - g(fresh)).max()
    lower, upper, _ = sup_bound(f, g, low, high, float(np.linalg.norm(direction, axis=0).max()), 1.2 * errors + 0.1)
    assert errors <= upper
    assert lower <= upper


@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_feature_of_a_wide_domain_is_found_by_the_proof(seed):
    draw = np.random.default_rng(seed)
    size, place = 10 ** draw.uniform(2, 4), draw.uniform(-0.9, 0.9)

    def bump(x):
        return np.exp(-((x - place * size) ** 2))

    found = elementwise(bump, (-size, size), tol=0.02, lipschitz=0.86)
    x = np.concatenate([np.linspace(-size, size, 20_001), place * size + np.linspace(-3, 3, 2001)])
    assert np.abs(found(x)[:, 0] - bump(x)).max() <= found.bound <= 0.02


def test_vector_valued():
    found = elementwise(lambda x: np.stack([np.sin(3 * x), x**2, np.abs(x)], -1), (-1, 1), 1e-2, lipschitz=3)
    x = np.linspace(-1, 1, 10_001)
    wanted = np.stack([np.sin(3 * x), x**2, np.abs(x)], -1)
    assert found.model.d_output == 3
    assert np.abs(found(x[:, None]) - wanted).max() <= found.bound <= 1e-2


def test_on_a_box():
    found = elementwise(lambda x: x[:, 0] * x[:, 1], [(-1, 1), (0, 2)], 5e-2, lipschitz=5**0.5)
    x = np.random.default_rng(3).uniform((-1, 0), (1, 2), size=(100_000, 2))
    assert found.certified
    assert np.abs(found(x)[:, 0] - x.prod(1)).max() <= found.bound <= 5e-2


def test_a_long_box_is_proven():
    """The sides count each for itself; with the diagonal for all of them there was no proof."""
    found = elementwise(lambda x: np.sin(x[:, 0]) + x[:, 1] / 40, [(-1, 1), (0, 40)], 8e-2, lipschitz=1.001)
    x = np.random.default_rng(3).uniform((-1, 0), (1, 40), size=(100_000, 2))
    assert found.width <= 16
    assert np.abs(found(x)[:, 0] - np.sin(x[:, 0]) - x[:, 1] / 40).max() <= found.bound <= 8e-2


def test_numbers_of_any_kind():
    """float32 sequences, points with negative strides or a graph, NumPy's numbers."""
    found = elementwise(np.sin, np.array([-1, 1]), np.float32(1e-2), lipschitz=np.int64(1), max_width=np.int32(64))
    x = np.linspace(-1, 1, 7)[:, None]
    y = found(x)
    np.testing.assert_array_equal(found(x[::-1].copy()[::-1]), y)
    np.testing.assert_array_equal(found(torch.from_numpy(x).requires_grad_()), y)
    short = torch.from_numpy(x).float()[None]
    whole, state = found.model(short)
    step, _ = found.model.step(short[:, 0], state)
    assert (whole.dtype, step.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(whole[0].double(), torch.from_numpy(y), atol=1e-6, rtol=0)
    with pytest.raises(ArgumentError, match="x: expected real numbers, got complex128"):
        found(x + 0j)
    with pytest.raises(ArgumentError, match=r"x: expected real floating point numbers, got torch\.complex64"):
        found.model(short.cfloat())


def test_it_is_two_layers_without_memory():
    found = elementwise(np.sin, (-1, 1), 1e-3, lipschitz=1)
    first, second = found.model
    assert [layer.eigenvalues().abs().max().item() for layer in (first, second)] == [0, 0]
    assert (first.activation, second.activation) == ("tanh", "linear")
    assert found.width == first.state_shape[0]
    x = torch.rand(3, 20, 1, dtype=torch.float64) * 2 - 1
    y, state = found.model(x)
    h = torch.tanh(x @ first.B.T + first.bias)
    torch.testing.assert_close(y, h @ first.C.T + second.bias, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.model(x.flip(1))[0].flip(1), y, rtol=0, atol=1e-13)  # no step knows another
    assert check_streaming(found.model, d_input=1).ok
    y_t, _ = found.model.step(x[:, 0], state)
    torch.testing.assert_close(y_t, y[:, 0], rtol=0, atol=1e-13)


def test_without_a_constant_nothing_is_certified():
    found = elementwise(np.sin, (-2, 2), 1e-3)
    assert not found.certified
    assert found.lipschitz == pytest.approx(1.5, rel=1e-3)
    assert found.bound == np.inf
    assert str(found).endswith("no bound with an estimated Lipschitz constant (pass lipschitz= for a certified bound)")


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["spike", "jump", "smooth"]),
    low=st.floats(-100, 100),
    length=st.floats(0.1, 100),
    known=st.booleans(),
)
def test_no_bound_is_printed_that_does_not_hold(seed, kind, low, length, known):
    """Spikes narrower than the grid on which slopes are measured, jumps, and functions whose constant is known."""
    draw = np.random.default_rng(seed)
    place, narrow, size = (
        low + length * draw.uniform(0.1, 0.9),
        length * 10 ** draw.uniform(-6, -1),
        draw.uniform(0.5, 2),
    )
    f, lipschitz = {
        "spike": (lambda x: size * np.clip(1 - np.abs(x - place) / narrow, 0, None), size / narrow),
        "jump": (lambda x: np.where(x < place, 0.0, size), None),
        "smooth": (lambda x: size * np.sin((x - place) / length), size / length),
    }[kind]
    try:
        found = elementwise(f, (low, low + length), 0.1, lipschitz=lipschitz if known else None)
    except NumericalError:
        return
    x = np.concatenate([draw.uniform(low, low + length, 20_000), place + narrow * draw.uniform(-1, 1, 2000)])
    x = x.clip(low, low + length)
    assert np.abs(f(x) - found(x[:, None])[:, 0]).max() <= found.bound
    assert found.certified == np.isfinite(found.bound) == (known and lipschitz is not None)
    assert ("at most" in str(found)) == found.certified


@pytest.mark.parametrize("value", [0.0, -2.5])
def test_constants(value):
    found = elementwise(lambda x: np.full(x.shape, value), (0, 1), 1e-6)
    assert found(np.array([[0.3]])) == pytest.approx(value, abs=1e-6)


def test_global_random_state_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    elementwise(np.sin, (-1, 1), 1e-2)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.sin, (1, 1), 1e-3), {}, "domain: expected finite low < high"),
        ((np.sin, (0, np.inf), 1e-3), {}, "domain: expected finite low < high"),
        ((np.sin, (0, 1, 2), 1e-3), {}, r"domain: expected \(low, high\)"),
        ((np.sin, [], 1e-3), {}, r"domain: expected \(low, high\)"),
        ((np.sin, [(0, 1)] * 5, 1e-3), {}, "domain: .*up to 4 axes"),
        ((np.sin, (0, 1j), 1e-3), {}, "domain: expected real numbers, got complex128"),
        ((np.sin, [(0, 1), (0,)], 1e-3), {}, "domain: expected an array of numbers, got list"),
        ((np.sin, (0, 1), 0.0), {}, "tol: expected a finite number above 0, got 0.0"),
        ((np.sin, (0, 1), float("nan")), {}, "tol: expected a finite number above 0, got nan"),
        ((np.sin, (0, 1), 1e-3), {"lipschitz": -1.0}, "lipschitz: expected a finite number above 0, got -1.0"),
        ((lambda x: np.exp(1j * x), (0, 1), 1e-3), {}, "f: expected real numbers, got complex128"),
        ((np.sin, (0, 1), 1e-3), {"lipschitz": 0.5}, "lipschitz: expected at least 1, a slope that f has, got 0.5"),
        ((np.sin, (0, 1), 1e-3), {"max_width": 2}, "max_width: expected a whole number, at least 8, got 2"),
        ((lambda x: 1.0, (0, 1), 1e-3), {}, "f: expected one row for each of"),
        ((lambda x: 1 / x, (0, 1), 1e-3), {}, r"f: expected finite values on the domain, got inf at \[0.0\]"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_arguments(arguments, options, message):
    with pytest.raises(ArgumentError, match=message):
        elementwise(*arguments, **options)


def test_what_cannot_be_done_says_why():
    with pytest.raises(NumericalError, match="too many cells"):
        elementwise(np.sin, (0, 1), 1e-9, lipschitz=1)
    with pytest.raises(
        NumericalError, match=r"tol = 0.1 is not met: the smallest error seen is .* f must be continuous"
    ):
        elementwise(np.sign, (-1, 1), 0.1, lipschitz=1e5, max_width=64)


def test_a_jump_is_not_met():
    with pytest.raises(NumericalError, match=r"is not met: .*f must be continuous"):
        elementwise(lambda x: (x > 0) * 1.0, (-1, 1), tol=1e-2)


@pytest.mark.parametrize("f", [torch.sin, lambda x: x.clamp(min=0), lambda x, y: x + y])
def test_a_function_that_does_not_take_arrays_is_named(f):
    with pytest.raises(ArgumentError, match="f: expected a function of NumPy arrays, got one that raises"):
        elementwise(f, (-1.0, 1.0), 0.1)


@pytest.mark.parametrize("tol", [1e-3, 1e-9])
def test_an_estimated_constant_proves_nothing_in_messages_either(tol: float) -> None:
    with pytest.raises(NumericalError) as caught:
        elementwise(lambda x: np.sin(40 * x), (-1, 1), tol, max_width=8)
    assert "prove" not in str(caught.value)
    with pytest.raises(NumericalError, match="prove"):
        elementwise(lambda x: np.sin(40 * x), (-1, 1), tol, max_width=8, lipschitz=40)
