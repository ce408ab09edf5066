"""The parts of pointwise constructions, each against a formula of its own, and what users read and pass."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm import LRU, ArgumentError
from stablessm.constructions import elementwise, from_convolution, kolmogorov_arnold, volterra
from stablessm.constructions.pointwise._function import Pointwise
from stablessm.constructions.pointwise._ridge import Ridge, fit, in_a_box, on_an_interval
from stablessm.constructions.pointwise._stack import LayerStack
from stablessm.constructions.pointwise._sup_bound import sup_bound
from stablessm.constructions.pointwise.elementwise import Elementwise
from stablessm.constructions.pointwise.kolmogorov_arnold import KolmogorovArnold

seeds = st.integers(0, 2**31)


def ridge(rng: np.random.Generator, d: int) -> Ridge:
    sizes = (6, d), (6,), (2, 6), (2,)
    return Ridge(*(rng.standard_normal(size) for size in sizes), condition=1.0)


@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(1, 3))
def test_a_jet_has_the_slopes_and_bounds_the_bend(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    g, x, half = ridge(rng, d), rng.standard_normal((5, d)), rng.uniform(0.01, 0.3, (1, d))
    value, change, second = g.jet(x, half)
    assert value == pytest.approx(np.tanh(x @ g.A.T + g.b) @ g.C.T + g.c)
    slopes = [(g(x + 1e-6 * e) - g(x - 1e-6 * e)) / 2e-6 for e in np.eye(d)]
    assert change == pytest.approx(sum(np.abs(s) * h for s, h in zip(slopes, half[0], strict=True)), rel=1e-6)
    inside = x[:, None] + half * rng.uniform(-1, 1, (5, 200, d))
    moved = inside - x[:, None]
    h = 1e-4
    curve = [
        (g((inside + h * moved).reshape(-1, d)) - 2 * g(inside.reshape(-1, d)) + g((inside - h * moved).reshape(-1, d)))
        / h**2
    ]
    assert (np.abs(curve[0]).reshape(5, 200, 2).max(1) <= second + 1e-6).all()
    tiny = g.jet(x, 1e-5 * half)[2] / 1e-10  # in a small cell the bound is the sum over units at its center
    slope = np.tanh(x @ g.A.T + g.b)
    exact = (np.abs(2 * slope * (1 - slope**2)) * (half @ np.abs(g.A).T) ** 2) @ np.abs(g.C).T
    assert tiny == pytest.approx(exact, rel=1e-2, abs=1e-4)


@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(1, 3))
def test_units_that_are_constant_in_all_cells_do_not_change_a_jet(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    g, x, half = ridge(rng, d), 0.1 * rng.standard_normal((40, d)), rng.uniform(0.001, 0.03, (1, d))
    g = replace(g, A=g.A * 10 ** rng.uniform(-1, 2, (6, 1)), b=g.b * 10 ** rng.uniform(-1, 2, 6))
    together = g.jet(x, half)
    for i in range(len(x)):  # in a single cell, more units are constant
        for one, all_of_them in zip(g.jet(x[i : i + 1], half), together, strict=True):
            assert one[0] == pytest.approx(all_of_them[i], rel=1e-10, abs=1e-12)
    assert together[0] == pytest.approx(g(x), rel=1e-10, abs=1e-12)


def test_progress_is_told_at_every_call_and_every_fit() -> None:
    told: list[int] = []
    f = Pointwise(np.sin, np.array([0.0]), np.array([1.0]), interval=True, tell=lambda: told.append(1))
    next(on_an_interval(f, 1e-3, 40))
    assert len(told) == 5  # at the nodes and between them, and for three slopes of the units
    sup_bound(f, ridge(np.random.default_rng(0), 1), f.low, f.high, 1.0, 10.0)
    assert len(told) == 6


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_rounding_counts_every_weight(seed: int) -> None:
    rng = np.random.default_rng(seed)
    g, size = ridge(rng, 2), rng.uniform(0.5, 2, 2)
    terms = [
        abs(g.c[k]) + sum(abs(g.C[k, m]) * (6 + abs(g.b[m]) + abs(g.A[m]) @ size) for m in range(6)) for k in range(2)
    ]
    assert g.rounding(size) == pytest.approx(4 * 2.0**-52 * np.array(terms), rel=1e-12, abs=0)


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_the_readout_is_least_squares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, b, x, y = (rng.standard_normal(size) for size in ((5, 2), (5,), (40, 2), (40, 3)))
    g = fit(A, b, x, y)
    features = np.column_stack([np.tanh(x @ A.T + b), np.ones(40)])
    assert np.column_stack([g.C, g.c]) == pytest.approx(np.linalg.lstsq(features, y, rcond=None)[0].T)
    assert g.condition == pytest.approx(np.linalg.cond(features))
    twice = fit(np.concatenate([A, A]), np.concatenate([b, b]), x, y)  # units that are equal are one
    assert twice.condition == pytest.approx(g.condition, rel=2)
    assert np.abs(twice.C).max() <= np.abs(g.C).max()


def test_networks_say_their_largest_error() -> None:
    f = Pointwise(lambda x: np.stack([np.sin(3 * x), x**2], 1), np.array([-1.0]), np.array([2.0]), interval=True)
    errors = [(len(g.b), error, np.abs(f(x) - g(x)).max()) for x in [np.linspace(-1, 2, 5000)[:, None]]
              for g, error in on_an_interval(f, 1e-6, 40)]  # fmt: skip
    assert errors[0][0] == 6  # four cells, and one beyond either end
    assert all(width <= 40 for width, *_ in errors)
    assert all(0.8 * true <= error <= 1.01 * true for _, error, true in errors[:3])
    box = Pointwise(lambda x: np.sin(x.sum(1)), np.array([-1.0, 0.0]), np.array([1.0, 3.0]), interval=False)
    found = list(in_a_box(box, 40))
    assert [len(g.b) for g, _ in found] == [8, 16, 32]
    x = np.random.default_rng(0).uniform(box.low, box.high, (4000, 2))
    for g, error in found:
        assert error > 0.3 * np.abs(box(x) - g(x)).max()
    assert found[-1][1] < found[0][1] / 3


def waves(x: np.ndarray) -> np.ndarray:
    return np.exp(np.sin(3 * x))


def ramp(x: np.ndarray) -> np.ndarray:
    return np.abs(x - 0.3)


def plane(x: np.ndarray) -> np.ndarray:
    return np.cos(x[:, 0] - 2 * x[:, 1])


def test_constructions_have_the_sizes_and_errors_that_they_had() -> None:
    """A different size or error is a change of the construction. If it is meant, make the numbers again."""
    for f, found in (
        (waves, [(6, 0.258488), (9, 0.0308585), (13, 0.0018776), (15, 0.000526604)]),
        (ramp, [(6, 0.130455), (7, 0.103971), (8, 0.0450879), (11, 0.0228927), (12, 0.0185737)]),
    ):
        line = Pointwise(f, np.array([-1.0]), np.array([2.0]), interval=True)
        networks = itertools.islice(on_an_interval(line, 1e-3, 60), len(found))
        assert [(len(g.b), pytest.approx(error, rel=1e-3)) for g, error in networks] == found
    box = Pointwise(plane, np.array([-1.0, 0.0]), np.array([1.0, 3.0]), interval=False)
    networks = [(len(g.b), pytest.approx(error, rel=1e-3)) for g, error in in_a_box(box, 40)]
    assert networks == [(8, 0.635066), (16, 1.08487), (32, 0.0746623)]
    for f, place, tol, width, error, bound, condition in (
        (waves, (-1, 2), 1e-3, 15, 5.266402e-4, 9.999670e-4, 7448616),
        (plane, [(-1, 1), (0, 1)], 0.1, 16, 0.01591749, 0.08625723, 210516),
    ):
        one = elementwise(f, place, tol, lipschitz=9)
        assert (one.width, one.certified, one.lipschitz) == (width, True, 9)
        assert (one.error, one.bound, one.condition) == pytest.approx((error, bound, condition), rel=1e-3)
    sum_of_steps = kolmogorov_arnold(lambda x: x[:, 0] * np.exp(x[:, 1]), 2, digits=2)
    assert sum_of_steps.widths == (150, 5, 10, 4800, 1)
    assert sum_of_steps.error == pytest.approx(0.12045407, rel=1e-6)
    assert sum_of_steps.rms_error == pytest.approx(0.016269106, rel=1e-6)
    assert sum_of_steps.condition == pytest.approx(2515.40007, rel=1e-6)


@settings(max_examples=12, deadline=None)
@given(seeds, st.integers(1, 3))
def test_slopes_are_seen_along_every_diagonal(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    direction = rng.choice([-1.0, 1.0], d)
    f = Pointwise(lambda x: np.stack([0 * x[:, 0], x @ direction], 1), -np.ones(d), np.ones(d), interval=False)
    steepest = np.sqrt(d)
    assert f.lipschitz(None) == pytest.approx(1.5 * steepest, rel=1e-6)
    assert f.lipschitz(steepest) == steepest
    with pytest.raises(ArgumentError, match=r"^lipschitz: expected at least"):
        f.lipschitz(0.999 * steepest)
    flat = Pointwise(lambda x: np.ones(len(x)), np.zeros(d), np.ones(d), interval=False)
    assert 0 < flat.lipschitz(None) < 1e-300


def test_points_are_taken_as_f_takes_them() -> None:
    found = elementwise(np.sin, (-1, 1), 1e-2, lipschitz=1)
    x = np.linspace(-1, 1, 7)
    assert found(x) == pytest.approx(np.sin(x)[:, None], abs=1e-2)
    assert (found(x) == found(x[:, None])).all()
    for wrong in (0.5, np.zeros((3, 2)), np.zeros((1, 3, 1))):
        with pytest.raises(ArgumentError, match=r"^x: expected points \(n,\), got shape"):
            found(wrong)
    box = elementwise(lambda x: x.sum(1), [(0, 1), (0, 1)], 0.5, lipschitz=2)
    with pytest.raises(ArgumentError, match=r"^x: expected points \(n, 2\), got shape \(4,\)"):
        box(np.zeros(4))


def test_texts_have_their_numbers() -> None:
    model = LayerStack(LRU(1, 2, 1))
    told = Elementwise(model, 0.0123, 0.5, True, 2.0, 7, 3.0, 1.0)
    assert str(told) == "7 units, error at least 0.0123, at most 0.5 (certified for the Lipschitz constant 2)"
    unsure = Elementwise(model, 0.0123, np.inf, False, 2.0, 7, 3.0, 1.0)
    assert str(unsure).endswith("no bound with an estimated Lipschitz constant (pass lipschitz= for a certified bound)")
    assert "LayerStack" not in repr(told)
    arnold = KolmogorovArnold(model, 2, 6, 5, 0.125, 0.0625, 0.0, 1.0, (3, 9, 4), 1.0)
    assert str(arnold) == "3 + 9 + 4 states, error 12.5% at least, 6.25% in the mean square"
    assert arnold.width == 9
    assert "LayerStack" not in repr(arnold)


def test_a_stack_takes_a_state_for_each_layer() -> None:
    model = LayerStack(LRU(1, 2, 3), LRU(3, 2, 1))
    x = torch.ones(2, 4, 1)
    for call, given_x in ((model, x), (model.step, x[:, 0])):
        with pytest.raises(ValueError, match="zip"):
            call(given_x, model.initial_state(2)[:1])
    with pytest.raises(ArgumentError, match=r"^layers: expected d_input 3 \(d_output before it\), got 2"):
        LayerStack(LRU(1, 2, 3), LRU(2, 2, 1))
    with pytest.raises(ArgumentError, match=r"^x: expected real floating point numbers"):
        model(x.long())
    assert (model.d_input, model.d_output) == (1, 1)
    wide = LayerStack(LRU(2, 2, 3))
    assert (wide.d_input, wide.d_output) == (2, 3)


def test_the_least_allowed_is_allowed() -> None:
    def product(x: np.ndarray) -> np.ndarray:
        return x[:, 0] * x[:, 1]

    needed = 5 * 6**2
    assert kolmogorov_arnold(product, 2, max_width=needed).families == 5
    with pytest.raises(ArgumentError, match=rf"^max_width: expected about {needed},"):
        kolmogorov_arnold(product, 2, max_width=needed - 1)
    one, two, three = (kolmogorov_arnold(product, 2, iterations=n) for n in (1, 2, 3))
    assert kolmogorov_arnold(product, 2).rms_error == two.rms_error  # two by default
    assert len({one.rms_error, two.rms_error, three.rms_error}) == 3
    assert elementwise(np.tanh, (-1, 1), 0.5, lipschitz=1, max_width=8).width <= 8
    with pytest.raises(ArgumentError, match=r"^max_width: expected a whole number, at least 8"):
        elementwise(np.tanh, (-1, 1), 0.5, lipschitz=1, max_width=7)
    taps = 0.9 ** np.arange(100.0)[None]
    assert [from_convolution(taps, head=head, max_order=1).fits[0].taps for head in (0, 1, 2)] == [0, 1, 2]
    assert from_convolution(taps).fits[0].taps == 1
    x = np.random.default_rng(0).standard_normal(400)
    y = x + 0.5 * np.concatenate([[0.0], x[:-1]])
    assert volterra.identify(x, y, memory=1, order=1, states=1).layer.state_shape[0] == 1


@settings(max_examples=5, deadline=None)
@given(seeds)
def test_kernels_of_a_series_on_arrays_and_tensors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, dt = rng.uniform(0.5, 0.9), rng.uniform(0.5, 0.9), float(rng.choice([0.5, 2.0]))
    model = volterra({0: 0.7, 1: lambda t: a**t, 2: lambda s, t: b ** (s + t)}, 40, dt=dt)
    steps = np.arange(7)
    for times in (steps, torch.from_numpy(steps)):
        assert model.kernel(times).detach().numpy() == pytest.approx(a ** (dt * steps), rel=1e-3)
        square = model.kernel(times, times[:3]).detach().numpy()
        assert square == pytest.approx(b ** (dt * np.add.outer(steps, steps[:3])), rel=1e-2, abs=1e-3)
    points = rng.integers(0, 7, (9, 2))
    assert model.values(points) == pytest.approx(b ** (dt * points.sum(1)), rel=1e-2, abs=1e-3)
    x = torch.from_numpy(rng.standard_normal((1, 30, 1)))
    linear, quadratic = (np.convolve(x[0, :, 0], r ** (dt * np.arange(30)))[:30] * dt for r in (a, b))
    assert model(x)[0][0, :, 0].detach().numpy() == pytest.approx(0.7 + linear + quadratic**2, rel=1e-2, abs=1e-2)
    assert model.order == 2
    assert model.width == model.states + len(model.orders)
    with pytest.raises(ArgumentError, match=r"^times: expected one to three arrays of steps, got 0"):
        model.kernel()


def test_boxes_of_more_axes_than_can_be_proven_are_refused() -> None:
    for domain in ([(0, 1)] * 5, (0, 1, 2), [], (1, 0), (0, np.inf), (1, 1)):
        with pytest.raises(ArgumentError, match=r"^domain: "):
            elementwise(lambda x: x, domain, 0.1)
    assert elementwise(lambda x: 0 * x[:, 0], [(0, 1)] * 4, 0.1, lipschitz=1e-3).width == 8


def test_values_that_are_not_finite_say_where() -> None:
    from stablessm.constructions import exponential_sum

    with pytest.raises(ArgumentError, match=r"^kernel: expected finite values, got nan at index 2, t = 1$"):
        exponential_sum([1.0, 0.5, np.nan, 0.1], order=1, dt=0.5)
    with pytest.raises(ArgumentError, match=r"^kernel: expected finite values, got inf at index 0, t = 0$"):
        exponential_sum([np.inf, 0.5, 0.1], order=1)
    with pytest.raises(ArgumentError, match=r"^kernel: expected finite values; start later with times="):
        exponential_sum("1/t", 5, order=1)
    with pytest.raises(ArgumentError, match=r"^kernel: expected finite values, got inf at index 4, t = 2$"):
        exponential_sum("1/(t-2)**2", 6, order=1, dt=0.5)
    with pytest.raises(
        ArgumentError, match=r"^relative: expected a kernel that stays above 1e-60 .*got 0 at index 1, t = 0\.5$"
    ):
        exponential_sum([1.0, 0.0, 0.5], order=1, dt=0.5, relative=True)
    for kernel, argument in ((1j * np.ones(4), "real"), (1j * np.ones(4), "positive")):
        with pytest.raises(ArgumentError, match=f"^{argument}: expected False"):
            exponential_sum(kernel, order=1, **{argument: True})
    with pytest.raises(ArgumentError, match=r"^order: expected at most the number of samples, 4, got 5"):
        exponential_sum(np.ones(4), order=5)
    assert exponential_sum(np.eye(4)[0], order=4).order <= 4


def test_what_a_series_is_not_made_from() -> None:
    x = np.random.default_rng(0).standard_normal(100)
    for arguments, message in (
        ({"x": 0 * x}, "x: expected an input that is not zero, got zeros"),
        (
            {"memory": 80},
            r"memory: expected a whole number of steps from 1 to 79 \(of 100 steps, 80 are fitted\), got 80",
        ),
        ({"memory": 0}, "memory: expected a whole number, at least 1"),
        ({"order": 4}, "order: expected 1, 2 or 3"),
        ({"held_out": 0.0}, "held_out"),
        ({"held_out": 1.0}, "held_out"),
        ({"y": x[:-1]}, r"y: expected shape \(1, 100\) \(as x\), got shape \(1, 99\)"),
        ({"y": np.full(100, np.nan)}, "y: expected finite numbers"),
        ({"x": np.ones((2, 3, 4))}, r"x: expected \(time,\), \(batch, time\) or \(batch, time, 1\), not empty"),
        ({"states": 90}, "x: expected more steps than regressors"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            volterra.identify(**({"x": x, "y": x**2, "memory": 20} | arguments))
    constant = volterra.identify(x, np.full(100, 2.5), memory=79)
    assert constant(torch.ones(1, 3, 1))[0].flatten().tolist() == pytest.approx([2.5] * 3)
    assert constant.output_error == 0.0
    for kernels, message in (
        ({}, "kernels: expected a kernel for at least one"),
        ({0: 1.0}, "kernels: expected a kernel for at least one"),
        ({4: np.ones(3)}, "kernels: expected a kernel for at least one"),
        ({1: np.ones(3), 2: np.ones((3, 4))}, r"kernels\[2\]: expected shape \(3, 3\), got shape \(3, 4\)"),
        ({1: np.cos}, "horizon: expected a number of steps"),
        ({0: np.inf, 1: np.ones(3)}, r"kernels\[0\]"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            volterra(kernels)
