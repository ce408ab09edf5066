import pytest
import torch

import stablessm as ssm
from stablessm._errors import ArgumentError
from stablessm.reparam import Reparameterization, get, names, register, registry


class Cosh(Reparameterization):
    name, time = "cosh", "continuous"

    def __call__(self, w):
        return -w.cosh()

    def inverse(self, eigenvalues):
        return (-eigenvalues).acosh()


@pytest.fixture(autouse=True)
def _own_table(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


def test_names():
    assert set(names("discrete")) - set(names("continuous")) == {"tanh"}
    assert names() == names("continuous")


def test_a_built_map_passes_through():
    f = get("best", b=2.0)
    assert get(f) is f
    with pytest.raises(ArgumentError, match="map: expected a discrete-time map"):
        get(f, time="discrete")
    with pytest.raises(ArgumentError, match="b: expected no options"):
        get(f, b=3.0)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("tanh",), {}, r"map: expected one of direct, clip, .*best.* \(continuous\), or time='discrete', got 'tanh'"),
        ((3,), {}, "map: expected one of"),
        (("exp", "hybrid"), {}, "time: expected 'continuous' or 'discrete', got 'hybrid'"),
        (
            ("best",),
            {"c": 1.0},
            r"c: expected one of the options a, b for map 'best' \(continuous\), got 1.0",
        ),
        (("exp",), {"a": 1.0}, "a: expected no options"),
    ],
)
def test_errors_name_what_is_known(arguments, options, message):
    with pytest.raises(ArgumentError, match=message):
        get(*arguments, **options)


def test_register_a_map_of_ones_own():
    register("cosh", Cosh, time="continuous")
    assert "cosh" in names("continuous")
    assert "cosh" not in names("discrete")
    assert isinstance(get("cosh"), Cosh)
    with pytest.raises(ArgumentError, match="overwrite=True"):
        register("cosh", Cosh, time="continuous")
    register("cosh", lambda scale=1.0: Cosh(), time="continuous", overwrite=True)
    assert repr(get("cosh", scale=2.0)) == "cosh(time='continuous')"


def test_defaults_follow_from_the_two_methods():
    f, w = Cosh(), torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(f.derivative(w), -w.sinh())
    torch.testing.assert_close(f.gradient_scale(w), w.sinh().abs() / w.cosh() ** 2)
    assert torch.equal(f.gradient_scale_published(w), f.gradient_scale(w))
    assert f.is_stable
    # cosh(w)/cosh(w + β) tends to e^β as w goes to -∞.
    assert f.stability_modulus(1.0) == pytest.approx(torch.e - 1, rel=1e-6)
    assert f.range == (-torch.inf, torch.inf)


def test_defaults_find_unstable_maps():
    class Crossing(Cosh):
        def __call__(self, w):
            return w - 1

    class Gaussian(Cosh):  # always < 0, but f(w)/f(w + β) is unbounded
        def __call__(self, w):
            return -torch.exp(-w * w)

    for f in (Crossing(), Gaussian()):
        assert not f.is_stable
        assert f.stability_modulus(1e-9) == torch.inf


@pytest.mark.parametrize("layer", [ssm.RealSSM(1, 3, 1), ssm.S4D(1, 3)])
def test_eigenvalues_that_a_map_cannot_reach_are_refused(layer):
    """Its inverse gives NaN for them; another would give the nearest."""
    with pytest.raises(ArgumentError, match=r"eigenvalues: expected what .*cosh.* can reach, got -0"):
        layer.with_map(Cosh())
    assert ssm.RealSSM(1, 2, 1, map=Cosh(), eigenvalues=torch.tensor([-1.5, -2.0])).eigenvalues()[0] == -1.5


@pytest.mark.parametrize("factory", [3, type(get("exp"))])
def test_what_makes_no_map_of_that_time_is_not_registered(factory: object) -> None:
    with pytest.raises(ArgumentError, match="discrete-time map"):
        register("odd", factory, time="discrete")
    assert "odd" not in names("discrete")


def test_a_factory_that_returns_a_map_of_the_other_time_is_named() -> None:
    register("odd", lambda: get("exp"), time="discrete")
    with pytest.raises(ArgumentError, match="registered as 'odd'"):
        get("odd", "discrete")


@pytest.mark.parametrize(("time", "other"), [("continuous", "discrete"), ("discrete", "continuous")])
def test_a_map_of_the_other_time_is_named_in_the_error(time, other):
    only = set(names(other)) - set(names(time))
    for name in only:
        with pytest.raises(ArgumentError, match=f"or time='{other}'"):
            get(name, time)
    with pytest.raises(ArgumentError, match=rf"\({time}\), got 'bets'"):
        get("bets", time)
