"""Each scalar map against its formula, at ordinary weights, at the edges and far out."""

import copy
import math
import pickle

import pytest
import torch

from stablessm._errors import ArgumentError
from stablessm.reparam import get, names

ALL = [(name, time) for time in ("continuous", "discrete") for name in names(time)]
W = torch.tensor([-3.0, -0.7, -0.2, 0.4, 0.9, 2.5], dtype=torch.float64)
E = math.e

FORMULAS = {
    ("direct", "continuous"): (lambda w: w, lambda w: 1 / w**2),
    ("clip", "continuous"): (lambda w: min(w, 0.0), lambda w: 1 / w**2 if w < 0 else 0),
    ("relu", "continuous"): (lambda w: -max(w, 0.0), lambda w: 1 / w**2 if w > 0 else 0),
    ("exp", "continuous"): (lambda w: -(E**w), lambda w: E**-w),
    ("softplus", "continuous"): (
        lambda w: -math.log(1 + E**w),
        lambda w: E**w / ((1 + E**w) * math.log(1 + E**w) ** 2),
    ),
    ("best", "continuous"): (lambda w: -1 / (w**2 + 0.5), lambda w: 2 * abs(w)),
    ("direct", "discrete"): (lambda w: w, lambda w: 1 / (1 - w) ** 2),
    ("clip", "discrete"): (lambda w: max(-1.0, min(w, 1.0)), lambda w: 1 / (1 - w) ** 2 if abs(w) < 1 else 0),
    ("relu", "discrete"): (
        lambda w: E ** -max(w, 0.0),
        lambda w: E**-w / (1 - E**-w) ** 2 if w > 0 else 0,
    ),
    ("exp", "discrete"): (
        lambda w: E ** -(E**w),
        lambda w: E ** (w - E**w) / (1 - E ** -(E**w)) ** 2,
    ),
    ("softplus", "discrete"): (lambda w: 1 / (1 + E**w), lambda w: E**-w),
    ("tanh", "discrete"): (math.tanh, lambda w: E ** (2 * w)),
    ("best", "discrete"): (lambda w: 1 - 1 / (w**2 + 1), lambda w: 2 * abs(w)),
}


@pytest.mark.parametrize(("name", "time"), ALL)
def test_table_1_of_stablessm(name, time):
    f = get(name, time)
    value, scale = FORMULAS[name, time]
    torch.testing.assert_close(f(W), torch.tensor([value(w) for w in W.tolist()], dtype=W.dtype))
    published = torch.tensor([scale(w) for w in W.tolist()], dtype=W.dtype)
    torch.testing.assert_close(f.gradient_scale_published(W), published)


@pytest.mark.parametrize("f", [get("direct", "discrete"), get("tanh", "discrete"), get("best", "discrete", b=0.6)])
def test_discrete_gradient_scale_sums_powers_of_the_modulus_of_lambda(f):
    w = torch.tensor([-0.6, -0.1, 0.1, 0.6], dtype=torch.float64)
    k = torch.arange(1, 4000, dtype=torch.float64)[:, None]
    series = f.derivative(w).abs() * (k * f(w).abs() ** (k - 1)).sum(0)
    torch.testing.assert_close(f.gradient_scale(w), series)
    negative = f(w) < 0
    assert (f.gradient_scale(w) > f.gradient_scale_published(w))[negative].all()
    assert torch.equal(f.gradient_scale(w)[~negative], f.gradient_scale_published(w)[~negative])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "time"), ALL)
def test_extreme_weights_give_no_nan_and_keep_the_dtype(name, time, dtype):
    f = get(name, time)
    w = torch.tensor([-1e30, -1e4, -300.0, -100.0, -30.0, 0.0, 30.0, 100.0, 1e4, 1e30], dtype=dtype)
    for method in (f, f.derivative, f.distance, f.gradient_scale, f.gradient_scale_published):
        out = method(w)
        assert out.dtype == dtype
        assert not out.isnan().any(), method
    leaf = w.clone().requires_grad_()
    f(leaf).sum().backward()
    assert not leaf.grad.isnan().any()


def test_softplus_keeps_float64_digits_past_torchs_threshold():
    w = torch.tensor([25.0], dtype=torch.float64)
    assert (-get("softplus")(w) - w).item() == pytest.approx(math.exp(-25), rel=1e-3)


@pytest.mark.parametrize(("name", "time"), [("softplus", "continuous"), ("exp", "discrete")])
def test_gradient_scale_far_left_is_the_inverse_of_e_to_the_w(name, time):
    w = torch.tensor([-19.9, -20.1, -400.0, -700.0], dtype=torch.float64)
    torch.testing.assert_close(get(name, time).gradient_scale(w), (-w).exp(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_edge_of_the_range_is_reached(dtype):
    for b in (0.3, 0.5, 0.7, 7.0):
        edge = torch.tensor([-1 / b], dtype=dtype)
        assert get("best", b=b).inverse(edge).item() == pytest.approx(0, abs=1e-3)
        if b >= 0.5:
            edge = torch.tensor([1 - 1 / b], dtype=dtype)
            assert get("best", "discrete", b=b).inverse(edge).item() == pytest.approx(0, abs=1e-3)
    edge = torch.tensor([-0.9, 0.9], dtype=dtype)
    assert torch.equal(get("clip", "discrete", margin=0.1).inverse(edge), edge)
    assert get("best").inverse(torch.tensor([-2.0], dtype=dtype)).item() == 0


@pytest.mark.parametrize(
    ("f", "value", "message"),
    [
        (get("best"), -5.0, "eigenvalues: expected values in [-2, 0) (b <= 0.2 reaches it), got -5"),
        (get("best", "discrete"), -0.25, "[0, 1) (b <= 0.8 reaches it), got -0.25"),
        (get("clip", margin=0.1), -0.05, "(-inf, -0.1] (margin <= 0.05 reaches it), got -0.05"),
        (get("clip", "discrete", margin=0.1), 0.95, "[-0.9, 0.9] (margin <= 0.05 reaches it), got 0.95"),
        (get("exp"), 0.0, "(-inf, 0) (stable means λ < 0), got 0"),
        (get("exp", "discrete"), -0.5, "(0, 1) (map 'tanh' reaches every value in (-1, 1)), got -0.5"),
        (get("tanh", "discrete"), 1.0, "(-1, 1) (stable means |λ| < 1), got 1"),
        (get("softplus"), math.nan, "got nan"),
    ],
)
def test_inverse_names_the_range_the_value_and_a_remedy(f, value, message):
    inside = f(torch.tensor(0.7, dtype=torch.float64))
    with pytest.raises(ArgumentError) as error:
        f.inverse(torch.stack([inside, torch.tensor(value, dtype=torch.float64)]))
    assert message in str(error.value)


def test_inverse_refuses_complex_eigenvalues():
    with pytest.raises(ArgumentError, match="eigenvalues: expected a real floating-point tensor"):
        get("exp").inverse(torch.tensor([-1 + 1j]))


@pytest.mark.parametrize(
    ("name", "time", "options", "argument"),
    [
        ("best", "continuous", {"a": 0.0}, "a"),
        ("best", "continuous", {"a": math.inf}, "a"),
        ("best", "continuous", {"b": 0.0}, "b"),
        ("best", "discrete", {"b": 0.49}, "b"),
        ("best", "discrete", {"b": math.nan}, "b"),
        ("clip", "continuous", {"margin": -0.1}, "margin"),
        ("clip", "discrete", {"margin": 1.0}, "margin"),
    ],
)
def test_options_are_validated(name, time, options, argument):
    with pytest.raises(ArgumentError) as error:
        get(name, time, **options)
    assert error.value.argument == argument


def test_discrete_best_says_what_a_small_b_costs():
    assert get("best", "discrete").note == ""
    assert get("best", "discrete").modulus_tolerance == 0
    assert get("best", "discrete", b=0.75).modulus_tolerance == 1e-6
    assert get("best", "discrete", b=0.75).is_stable
    assert "down to -0.333333" in get("best", "discrete", b=0.75).note
    papers = get("best", "discrete", b=0.5)
    assert not papers.is_stable
    assert "boundary" in papers.note
    w = torch.tensor([0.0, 1e-3, 1e-2], dtype=torch.float64)
    torch.testing.assert_close(papers.gradient_scale(w)[1:], 1 / (2 * w[1:] ** 3))
    assert papers.gradient_scale(w)[0] == 0


@pytest.mark.parametrize(("name", "time"), ALL)
def test_maps_copy_pickle_and_compare(name, time):
    f = get(name, time)
    assert pickle.loads(pickle.dumps(f)) == f == copy.deepcopy(f)
    assert hash(f) == hash(copy.copy(f))
    low, high = f.range
    assert low < high
    assert pickle.loads(pickle.dumps(f.range)).closed == f.range.closed
    assert repr(f).startswith(f"{name}(")
    assert f"time='{time}'" in repr(f)


def test_maps_with_other_options_differ():
    assert get("best") != get("best", b=1.0)
    assert get("exp") != get("exp", "discrete")
