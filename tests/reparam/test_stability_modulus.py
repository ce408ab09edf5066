"""Closed-form moduli against the bounded search and against brute force from the definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm._errors import ArgumentError
from stablessm.reparam import Reparameterization, get, names
from stablessm.reparam.modulus import relative_change, search

BETAS = (1e-3, 0.1, 0.5, 1.0, 3.0)
STABLE = [
    *(f for time in ("continuous", "discrete") for name in names(time) if (f := get(name, time)).is_stable),
    get("clip", margin=0.05),
    get("clip", margin=0.8),
    get("best", a=4.0, b=3.0),
    get("best", a=0.3, b=0.1),
    *(get("clip", "discrete", margin=m) for m in (0.05, 0.3, 0.6, 0.7, 0.9)),
    get("best", "discrete", a=4.0, b=3.0),
    *(get("best", "discrete", a=a, b=b) for a in (0.3, 4.0) for b in (0.501, 0.55, 0.9)),
]


def brute(f, w, w_tilde):
    """The definition without its closed inner sum: a long power series, or the exact integral."""
    lam, lam_tilde = f(w), f(w_tilde)
    if f.time == "continuous":  # one sign throughout, so the integral of |.| is |the difference of integrals|
        return lam.abs() * (1 / lam - 1 / lam_tilde).abs()
    k = torch.arange(4000, dtype=torch.float64)[:, None]
    return (1 - lam.abs()) * (lam_tilde**k - lam**k).abs().sum(0)


@pytest.mark.parametrize("f", STABLE, ids=repr)
def test_closed_form_equals_the_search(f):
    # ±16: softplus and the discrete maps approach their supremum like e^(-|w|).
    for beta in BETAS:
        found = search(f, beta, (-16.0 - beta, 16.0 + beta))
        assert f.stability_modulus(beta) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("f", STABLE, ids=repr)
def test_modulus_is_the_supremum_on_a_brute_force_grid(f):
    w = torch.cat([torch.linspace(-16, 16, 6401), torch.linspace(-1.5, 1.5, 3001)]).double()
    for beta in (0.1, 1.0):
        shifts = beta * torch.linspace(-1, 1, 41, dtype=torch.float64)[:, None]
        top = relative_change(f, w, w + shifts).max().item()
        modulus = f.stability_modulus(beta)
        assert top <= modulus * (1 + 1e-6)
        assert top >= modulus * 0.97


@pytest.mark.parametrize("f", STABLE, ids=repr)
def test_inner_sum_equals_the_definition(f):
    w = torch.linspace(-2, 2, 41, dtype=torch.float64).repeat(41)
    w_tilde = w.reshape(41, 41).T.flatten()
    kept = (f.distance(w) > 0.02) & (f.distance(w_tilde) > 0.02)  # where 4000 powers are enough
    w, w_tilde = w[kept], w_tilde[kept]
    torch.testing.assert_close(relative_change(f, w, w_tilde), brute(f, w, w_tilde), rtol=1e-9, atol=1e-12)


def test_inner_sum_splits_into_even_and_odd_powers_when_the_sign_changes():
    w, w_tilde = torch.tensor([-0.3, 0.6, 0.2]).double(), torch.tensor([0.8, -0.1, -0.2]).double()
    even, odd = (lambda r: 1 / (1 - r**2)), (lambda r: r.abs() / (1 - r**2))
    split = (even(w_tilde) - even(w)).abs() + odd(w_tilde) + odd(w)
    torch.testing.assert_close(relative_change(get("direct", "discrete"), w, w_tilde), (1 - w.abs()) * split)


@pytest.mark.parametrize("b", [0.500001, 0.5001, 0.6, 0.9, 0.999])
def test_search_keeps_its_tolerance_for_best_with_negative_eigenvalues(b):
    f = get("best", "discrete", b=b)
    assert f.modulus_tolerance == 1e-6
    narrow = 20 * math.sqrt(b - 0.5)
    for beta in (0.01, 0.3, 2.0):
        fine = torch.linspace(0, 1, 100001, dtype=torch.float64)
        kink = torch.tensor([math.sqrt(1 - b)], dtype=torch.float64)  # λ = 0
        lines = torch.cat([4 * fine, narrow * fine, beta + narrow * fine, kink])
        # The worst perturbation goes all the way, or stops where λ is nearest to -1.
        reached = [lines + beta, lines - beta, (lines - beta).clamp(min=0)]
        brute = max(relative_change(f, lines, w_tilde).max().item() for w_tilde in reached)
        assert f.stability_modulus(beta) == pytest.approx(brute, rel=1e-6)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_unstable_maps_have_an_infinite_modulus(time):
    for name in ("direct", "clip", "relu"):
        f = get(name, time)
        assert not f.is_stable
        assert f.stability_modulus(0.0) == 0
        assert f.stability_modulus(1e-6) == math.inf
        assert search(f, 0.1, f.search_interval) == math.inf


def test_tensors_in_tensors_out():
    beta = torch.tensor([[0.0, 0.5], [1.0, 1e4]])
    torch.testing.assert_close(get("exp").stability_modulus(beta), beta.expm1())


@pytest.mark.parametrize("beta", [-0.1, math.nan, math.inf])
def test_a_radius_is_finite_and_not_negative(beta):
    for time in ("continuous", "discrete"):
        for name in names(time):
            with pytest.raises(ArgumentError, match="beta"):
                get(name, time).stability_modulus(beta)


def test_published_modulus_of_best_depends_on_w_and_ours_does_not():
    f = get("best")
    w = torch.tensor([0.0, 10.0, 1000.0], dtype=torch.float64)
    published = f.stability_modulus_published(0.5, w)
    torch.testing.assert_close(published, (0.25 + w) / 0.5)
    assert published[0] < f.stability_modulus(0.5) < published[1]


TOUCHES = {
    "-(w-c)²": lambda w: -(w**2),
    "-|w-c|": lambda w: -w.abs(),
    "-(w-c)⁴": lambda w: -(w**4),
    "cos(w-c)-1": lambda w: w.cos() - 1,
}


@given(shape=st.sampled_from(sorted(TOUCHES)), c=st.floats(-14, 14), w=st.floats(0.01, 0.5))
def test_a_map_that_touches_the_boundary_is_not_stable(shape: str, c: float, w: float) -> None:
    class Touching(Reparameterization):
        name, time = "touching", "continuous"

        def __call__(self, w):
            return TOUCHES[shape](w - c)

        def inverse(self, eigenvalues):
            raise NotImplementedError

    if abs(c) < 9.9:  # within search_interval
        assert not Touching().is_stable
    weights = torch.tensor([c - w, c + w], dtype=torch.float64)
    torch.testing.assert_close(Touching().boundary_distance(weights), torch.full_like(weights, w), rtol=0, atol=1e-6)


@settings(max_examples=20)
@given(c=st.floats(-9, 9), gap=st.floats(1e-6, 1.0), power=st.sampled_from([1, 2, 4]))
def test_a_map_that_stays_clear_of_the_boundary_is_stable(c: float, gap: float, power: int) -> None:
    class Clear(Reparameterization):
        name, time = "clear", "continuous"

        def __call__(self, w):
            return -((w - c).abs() ** power) - gap

        def inverse(self, eigenvalues):
            raise NotImplementedError

    weights = torch.tensor([c - 1, c, c + 1], dtype=torch.float64)
    assert bool((Clear().boundary_distance(weights) > 9e5).all())
    assert Clear().is_stable


@settings(max_examples=10)
@given(power=st.floats(1.4, 2.5), side=st.sampled_from([-1, 1]), scale=st.floats(1.0, 2.0))
def test_a_map_whose_modulus_grows_without_bound_is_not_stable(power: float, side: int, scale: float) -> None:
    class Growing(Reparameterization):
        name, time = "growing", "continuous"

        def __call__(self, w):
            return -(-((scale * side * w).relu() ** power)).exp()

        def inverse(self, eigenvalues):
            raise NotImplementedError

    assert not Growing().is_stable


@settings(max_examples=20, deadline=None)
@given(st.floats(-3, 5), st.floats(-2, 2), st.floats(0.12, 1), st.sampled_from([-1, 1]))
def test_a_narrow_stretch_in_which_a_map_jumps_to_instability_is_found(
    power: float, away: float, share: float, side: int
) -> None:
    distance = 10**away
    near, weight = side * (10**power + distance), side * 10**power

    class Jumping(Reparameterization):
        name, time = "jumping", "continuous"

        def __call__(self, w):
            beyond = side * (w - near)
            return torch.where((beyond >= 0) & (beyond < share * distance), 1.0, -1.0).to(w.dtype)

        def inverse(self, eigenvalues):
            return eigenvalues

    found = Jumping().boundary_distance(torch.tensor([weight], dtype=torch.float64))
    assert float(found) == pytest.approx(distance, rel=1e-6)
