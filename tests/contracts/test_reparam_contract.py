"""Every registered map passes the contract, and wrong maps fail it for the right reason."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stablessm.reparam import ContractError, Reparameterization, check, get, names

OPTIONS = {
    "clip": [{"margin": 0.05}, {"margin": 0.8}],
    "best": [{"a": 0.2, "b": 0.9}, {"a": 3.0, "b": 2.0}, {"b": 0.5}],
}
CASES = [
    get(name, time, **options)
    for time in ("continuous", "discrete")
    for name in names(time)
    for options in [{}, *OPTIONS.get(name, [])]
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("f", CASES, ids=repr)
def test_built_in_maps(f, dtype):
    check(f, dtype=dtype)


@settings(max_examples=15, deadline=None)
@given(a=st.floats(0.01, 100), b=st.floats(0.01, 100), margin=st.floats(1e-3, 0.99))
def test_built_in_maps_with_any_options(a, b, margin):
    check(get("best", a=a, b=b))
    check(get("best", "discrete", a=a, b=b + 1))
    check(get("clip", margin=margin))
    check(get("clip", "discrete", margin=margin))


@pytest.mark.parametrize("f", CASES, ids=repr)
@settings(max_examples=30, deadline=None)
@given(w=st.floats(-8, 8))
def test_every_map_starts_from_the_same_eigenvalues(f, w):
    lam = f(torch.tensor(w, dtype=torch.float64))
    if f.range.holds(lam):
        torch.testing.assert_close(f(f.inverse(lam)), lam, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("f", CASES, ids=repr)
def test_the_stated_stability_is_what_a_search_finds(f):
    assert f.is_stable == Reparameterization.is_stable.fget(f)


@pytest.mark.parametrize("f", CASES, ids=repr)
def test_the_whole_range_is_reached(f):
    low, high = (max(-1e3, min(1e3, end)) for end in f.range)
    lam = low + (high - low) * torch.linspace(1e-6, 1 - 1e-6, 101, dtype=torch.float64)
    torch.testing.assert_close(f(f.inverse(lam)), lam, rtol=1e-9, atol=1e-9)


@dataclass(frozen=True, repr=False)
class Good(Reparameterization):
    """A map as a user would write it, with nothing but the two methods."""

    scale: float = 1.0
    name, time = "good", "continuous"

    def __call__(self, w):
        return -self.scale * (1 + w * w).sqrt()

    def inverse(self, eigenvalues):
        return ((eigenvalues / self.scale) ** 2 - 1).clamp(min=0).sqrt()


class GoodDiscrete(Reparameterization):
    name, time = "good", "discrete"

    def __call__(self, w):
        return torch.tanh(w)

    def inverse(self, eigenvalues):
        return torch.atanh(eigenvalues)


class Band(Good):
    """Stable for |w| < √2 only; the ends of the band are nowhere on a grid."""

    def __call__(self, w):
        return w * w - 2

    def inverse(self, eigenvalues):
        return (eigenvalues + 2).sqrt()


class Waves(GoodDiscrete):
    """Stable and unstable in turn."""

    def __call__(self, w):
        return 1.2 * torch.sin(w)

    def inverse(self, eigenvalues):
        return torch.asin(eigenvalues / 1.2)


class WrongRange(Good):
    is_stable = True

    def __call__(self, w):
        return w

    def inverse(self, eigenvalues):
        return eigenvalues


class WrongInverse(Good):
    def inverse(self, eigenvalues):
        return super().inverse(eigenvalues) + 1


class WrongDerivative(Good):
    def derivative(self, w):
        return -super().derivative(w)


class WrongGradient(GoodDiscrete):
    def __call__(self, w):  # e^w overflows, and its gradient becomes 0 times infinity
        return torch.exp(-torch.exp(w))

    def inverse(self, eigenvalues):
        return torch.log(-torch.log(eigenvalues))


class WrongDistance(Good):
    def distance(self, w):
        return 2 * super().distance(w)


class WrongScale(Good):
    def gradient_scale(self, w):
        return 2 * super().gradient_scale(w)


class WrongAtZero(Good):
    def stability_modulus(self, beta):
        return super().stability_modulus(beta) + 1


class WrongFinite(Good):
    is_stable = False

    def stability_modulus(self, beta):
        return beta


class WrongMonotone(Good):
    def _modulus(self, beta):
        return 10 - beta if beta < 1 else 5.0


class WrongBound(Good):
    def _modulus(self, beta):
        return 0.5 * super()._modulus(beta)


class WrongBoundary(Good):
    is_stable = True

    def __call__(self, w):
        return -w.relu()

    def inverse(self, eigenvalues):
        return -eigenvalues

    def _modulus(self, beta):
        return 100 * beta


@pytest.mark.parametrize("f", [Good(), Good(scale=3.0), GoodDiscrete()], ids=repr)
def test_a_good_map_passes(f):
    assert f.is_stable
    check(f)


@pytest.mark.parametrize("f", [*CASES, Good(), GoodDiscrete(), Band(), Waves()], ids=repr)
@settings(max_examples=30)
@given(thousandths=st.integers(-8000, 8000))
def test_the_boundary_is_as_far_as_the_map_says(f, thousandths):
    w = torch.tensor(thousandths / 1000, dtype=torch.float64)
    d = f.boundary_distance(w)
    around = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    if d == 0:
        assert f.distance(w) <= 0
    elif d == torch.inf:
        assert bool((f.distance((w + 20 * around).clamp(*f.search_interval)) > 0).all())
    else:
        assert bool((f.distance(w + 0.999 * d * around) > 0).all())
        # w ± d too: the boundary may be a single point. Within rounding of |λ| = 1, a map is at the boundary.
        beyond = torch.cat([w + 1.001 * d * around, torch.stack([w - d, w + d])])
        assert bool((f.distance(beyond) <= 4e-16).any()) or float(w.abs() + d) == pytest.approx(1e6), "the search ends"


def edged(time, edge, side):
    """A map that is stable for side · w < edge and states nothing."""

    class Edged(GoodDiscrete if time == "discrete" else Good):
        def __call__(self, w):
            x = side * w
            if time == "discrete":
                return torch.where(x < edge, 0.9 * torch.tanh(w / 5), 1 + 0.01 * (x - edge))
            return torch.where(x < edge, -0.1 - torch.nn.functional.softplus(w), x - edge)

    return Edged()


@pytest.mark.parametrize("time", ["continuous", "discrete"])
@settings(max_examples=30)
@given(power=st.floats(0.5, 5.5), side=st.sampled_from([-1, 1]), at=st.floats(-2, 2))
def test_an_edge_far_beyond_the_search_interval_is_found(time, power, side, at):
    f, w = edged(time, 10**power, side), torch.tensor(at, dtype=torch.float64)
    assert not f.is_stable
    assert float(f.boundary_distance(w)) == pytest.approx(10**power - side * at, rel=1e-6)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
@settings(max_examples=8)
@given(power=st.floats(6.01, 12), side=st.sampled_from([-1, 1]))
def test_a_map_that_states_nothing_is_stable_as_far_as_was_searched(time, power, side):
    f = edged(time, 10**power, side)
    assert f.is_stable
    assert "up to 1e6" in f.note
    assert float(f.boundary_distance(torch.zeros(1))) <= 1e6
    assert get("best", time).note == ""


def test_a_map_that_states_too_much_is_caught_far_away():
    class Claims(Good):
        is_stable = True

        def __call__(self, w):
            return torch.where(w < 5e4, super().__call__(w), 1.0)

    with pytest.raises(ContractError, match="range"):
        check(Claims())


@pytest.mark.parametrize("f", [f for f in CASES if not f.is_stable], ids=repr)
def test_the_search_for_the_boundary_agrees_with_the_closed_form(f):
    w = torch.linspace(-9, 9, 181).view(1, 181)  # inside the search interval, in float32
    searched = Reparameterization._boundary_distance(f, w)
    assert searched.dtype == w.dtype
    torch.testing.assert_close(searched, f.boundary_distance(w), rtol=1e-6, atol=1e-6)


def test_what_is_no_finite_weight_is_not_stable():
    assert Band().boundary_distance(torch.tensor([torch.nan, torch.inf, 1.0])).tolist() == [
        0.0,
        0.0,
        pytest.approx(2**0.5 - 1),
    ]


@pytest.mark.parametrize(
    ("wrong", "violated"),
    [
        (WrongRange, "range"),
        (WrongInverse, "round trip"),
        (WrongDerivative, "derivative"),
        (WrongGradient, "gradient"),
        (WrongDistance, "distance"),
        (WrongScale, "gradient scale"),
        (WrongAtZero, "modulus at zero"),
        (WrongFinite, "modulus finite"),
        (WrongMonotone, "modulus monotone"),
        (WrongBound, "modulus dominates"),
        (WrongBoundary, "modulus dominates"),
    ],
)
def test_a_wrong_map_fails_by_name(wrong, violated):
    with pytest.raises(ContractError) as error:
        check(wrong())
    assert error.value.violated == violated
