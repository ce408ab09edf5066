"""The superposition theorem as five layers: the inner function, its images, the outer functions, the layers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm import LRU, ArgumentError, RealSSM
from stablessm._errors import NumericalError
from stablessm.constructions.pointwise._function import Pointwise
from stablessm.constructions.pointwise._superposition import Sprecher, Steps, Superposition, iterate
from stablessm.constructions.pointwise.kolmogorov_arnold import kolmogorov_arnold

TARGETS = {
    "product": lambda x: x[:, 0] * x[:, 1],
    "sine": lambda x: np.sin(np.pi * x[:, 0]) * x[:, 1] ** 2,
    "difference": lambda x: np.abs(x[:, 0] - x[:, 1]),
}
INNER = st.tuples(st.integers(2, 3), st.integers(0, 4), st.integers(1, 3)).map(
    lambda t: Sprecher(t[0], 2 * t[0] + 2 + t[1], t[2], 2 * t[0] + 1 + t[1])
)


def koppen(n, base, digits):
    """ψ(0.i_1 … i_k) straight from the recursion, with exact digits."""
    k, beta = len(digits), (n ** len(digits) - 1) // (n - 1)
    if k == 1:
        return digits[0] / base
    if digits[-1] < base - 1:
        return koppen(n, base, digits[:-1]) + digits[-1] / base**beta
    following = [*digits[:-1]]
    following[-1] += 1
    for place in range(k - 2, 0, -1):
        if following[place] == base:
            following[place], following[place - 1] = 0, following[place - 1] + 1
    return (koppen(n, base, [*digits[:-1], base - 2]) + koppen(n, base, following)) / 2


@settings(max_examples=40)
@given(inner=INNER, number=st.floats(0, 0.999999))
def test_inner_function_is_koppens(inner, number):
    index = int(number * inner.base**inner.digits)
    digits = [index // inner.base**place % inner.base for place in reversed(range(inner.digits))]
    assert inner.psi[index] == pytest.approx(koppen(inner.dimension, inner.base, digits), abs=1e-14)


@settings(max_examples=25)
@given(inner=INNER)
def test_inner_function_is_monotone_and_its_jumps_halve(inner):
    rises = np.diff(inner.psi)
    assert rises.min() > 0
    assert rises.max() <= 0.5 ** (inner.digits - 1) / inner.base * (1 + 1e-9)
    assert (inner.psi[0], inner.psi[-1]) == (0, 1)
    x = np.linspace(0, 1, 20_001)
    for family in (0, inner.families - 1):
        y = inner.inner(x, family)
        assert np.diff(y).min() >= 0
        assert 0 <= y[0] <= y[-1] <= 1


@settings(max_examples=15)
@given(inner=INNER.filter(lambda s: s.dimension * s.digits <= 4), family=st.integers(0, 4))
def test_images_of_cubes_are_disjoint(inner, family):
    low, high, middle = inner.cells(family, inner.digits)
    assert np.all(low[1:] > high[:-1])
    assert len(low) >= (inner.base * inner.scale) ** (inner.dimension * inner.digits)
    inside = ((middle > 0) & (middle < 1)).all(1)  # the middle of a cell that is cut off may lie in a gap
    np.testing.assert_allclose(inner.sums(middle[inside], family), low[inside], rtol=0, atol=1e-12)


@settings(max_examples=25)
@given(inner=INNER, x=st.floats(0, 1))
def test_at_most_one_family_is_in_a_gap(inner, x):
    y = (inner.scale * x + np.arange(inner.families) * inner.shift) * inner.base**inner.digits
    assert np.sum(y - np.floor(y) > inner.flat + 1e-6) <= 1


@given(data=st.data())
def test_ramps_are_the_function(data):
    count = data.draw(st.integers(2, 20))
    draw = np.random.default_rng(data.draw(st.integers(0, 1000)))
    steps = Steps(np.cumsum(draw.uniform(0.01, 1, count)), draw.normal(size=count))
    x = draw.uniform(-1, steps.knots[-1] + 1, 200)
    slopes, offsets, weights, constant = steps.ramps()
    ramps = constant + np.clip(np.multiply.outer(x, slopes) + offsets, -1, 1) @ weights
    np.testing.assert_allclose(steps(x), ramps, atol=1e-12)
    np.testing.assert_allclose(steps(steps.knots), steps.values, atol=1e-12)


@pytest.mark.parametrize(
    "name", [name if i == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(TARGETS)]
)
def test_error_falls_with_every_level_below_five_percent(name):
    found = [kolmogorov_arnold(TARGETS[name], 2, level=level) for level in (1, 2, 3, 4)]
    for attribute in ("error", "rms_error"):
        values = [getattr(each, attribute) for each in found]
        assert all(after < 0.75 * before for before, after in pairwise(values)), values
    assert found[-1].error < 0.05
    assert max(each.realization for each in found) < 1e-9
    assert [each.families for each in found] == [5, 11, 23, 47]


@pytest.mark.parametrize(
    "name", [name if name == "sine" else pytest.param(name, marks=pytest.mark.slow) for name in TARGETS]
)
def test_mean_square_error_falls_with_every_digit(name):
    """The largest error does not: it occurs in narrower places."""
    found = [kolmogorov_arnold(TARGETS[name], 2, digits=digits) for digits in (1, 2, 3)]
    values = [each.rms_error for each in found]
    assert all(after < 0.75 * before for before, after in pairwise(values)), values
    assert found[-1].rms_error < 0.03
    assert found[-1].realization < 1e-9


def test_the_iteration_reduces_the_residual():
    f = Pointwise(TARGETS["sine"], np.zeros(2), np.ones(2), interval=False)
    x = np.random.default_rng(1).random((20_000, 2))
    inner = Sprecher(2, 6, 3, 5)
    errors = [np.mean((f(x)[:, 0] - iterate(f, inner, r)(x)) ** 2) ** 0.5 for r in (1, 2, 3)]
    assert errors[0] > 1.2 * errors[1] > 1.2**2 * errors[2]


@pytest.mark.parametrize(("length", "digits"), [(2, 1), (2, 2), (3, 1), pytest.param(4, 1, marks=pytest.mark.slow)])
def test_five_layers_compute_the_superposition(length, digits):
    def f(x):
        return np.cos(x @ np.arange(1.0, length + 1))

    found = kolmogorov_arnold(f, length, digits=digits)
    x = np.random.default_rng(2).random((10, length))
    inner = Sprecher(length, found.base, digits, found.families)
    superposition = iterate(Pointwise(f, np.zeros(length), np.ones(length), interval=False), inner, max(2, digits))
    np.testing.assert_allclose(found(x), superposition(x), atol=1e-9)
    layers = list(found.model)
    assert [type(layer) for layer in layers] == [RealSSM, RealSSM, LRU, RealSSM, RealSSM]
    assert [layer.state_shape[0] for layer in layers] == list(found.widths)
    assert found.width == max(found.widths)
    assert found.parameters == sum(p.numel() for p in found.model.parameters())
    y = torch.from_numpy(x)[..., None]
    state = None
    for step in range(length):
        out, state = found.model.step(y[:, step], state)
    np.testing.assert_allclose(out[:, 0].detach().numpy(), found(x), atol=1e-9)


def test_third_layer_has_the_weights_as_its_kernel():
    found = kolmogorov_arnold(lambda x: x.sum(1), 3)
    layer = list(found.model)[2]
    kernel = layer.kernel(torch.arange(3.0)).detach().numpy()
    expected = Sprecher(3, 8, 1, 7).weights[::-1]
    np.testing.assert_allclose(kernel, expected[:, None, None] * np.eye(7), atol=1e-14)
    assert layer.eigenvalues().abs().max() < 1


def test_inner_layers_do_not_depend_on_f():
    one, other = (kolmogorov_arnold(TARGETS[name], 2) for name in ("product", "sine"))
    for before, after in zip(list(one.model)[:3], list(other.model)[:3], strict=True):
        for a, b in zip(before.parameters(), after.parameters(), strict=True):
            assert torch.equal(a, b)


def test_superposition_of_zero_is_zero():
    f = Pointwise(lambda x: np.zeros(len(x)), np.zeros(2), np.ones(2), interval=False)
    found: Superposition = iterate(f, Sprecher(2, 6, 1, 5), 2)
    assert not found(np.random.default_rng(0).random((100, 2))).any()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((TARGETS["product"], 1), {}, "length: expected a whole number, at least 2, got 1"),
        ((TARGETS["product"], 2), {"level": 0}, "level: expected a whole number, at least 1"),
        ((TARGETS["product"], 2), {"digits": 0}, "digits: expected a whole number, at least 1"),
        (
            (TARGETS["product"], 2),
            {"digits": 2, "iterations": 1},
            "iterations: expected a whole number, at least 2",
        ),
        ((TARGETS["product"], 3), {"digits": 2}, "max_width: expected about 1835008, or a lower level"),
        ((lambda x: x[:, 0] * 1j, 2), {}, "f: expected real numbers, got complex128"),
        ((lambda x: x, 2), {}, "f: expected one output, got 2"),
        ((lambda x: np.full(len(x), np.nan), 2), {}, "f: expected finite values on the domain, got nan"),
        ((lambda x: 1.0, 2), {}, "f: expected one row for each of"),
    ],
)
def test_bad_arguments(arguments, options, message):
    with pytest.raises(ArgumentError, match=message):
        kolmogorov_arnold(*arguments, **options)


def test_inputs_of_another_length_are_refused():
    with pytest.raises(ArgumentError, match=r"x: expected shape \(batch, 2\), got shape \(5, 3\)"):
        kolmogorov_arnold(TARGETS["product"], 2)(np.zeros((5, 3)))


def test_too_many_digits_for_double_precision():
    with pytest.raises(NumericalError, match="too near for double precision"):
        Sprecher(2, 6, 4, 5).cells(0, 4)
