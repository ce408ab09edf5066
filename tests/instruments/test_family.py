"""Families over widths: crossings, limits and verdicts, for families of known kind and for real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.instruments import _model_stack
from stablessm.instruments.family import PerturbationFamily
from stablessm.instruments.perturbation import PerturbationCurve, perturbation_error
from stablessm.layers.initialize import timescales
from stablessm.targets import LinearFunctional

RADII = np.array([0.0, *np.logspace(-4, 0, 17)])
WIDTHS = (4, 8, 16, 32)


def curve(error: np.ndarray, radius: np.ndarray = RADII) -> PerturbationCurve:
    options = {"norm": "kernel_l1", "weight_norm": "tensor_max", "search": "random", "parameters": ("w",)}
    numbers = {"samples": 1, "steps": 0, "horizon": 1, "dt": 1.0, "seed": 0, "evaluations": 1}
    return PerturbationCurve(radius, np.broadcast_to(error, radius.shape), None, None, **options, **numbers)


def family(error: Callable[[int, np.ndarray], np.ndarray]) -> PerturbationFamily:
    return PerturbationFamily({m: curve(error(m, RADII)) for m in WIDTHS})


STABLE = family(lambda m, beta: 1 / m**2 + beta * (2 - 1 / m))
UNSTABLE = family(lambda m, beta: 1 / m**2 + m * beta)
BOUNDARY = family(lambda m, beta: (1 / m**2 + beta) * np.where(beta < 0.1, 1, m**8))
USELESS = family(lambda m, beta: 1 + beta)
ERRATIC = family(lambda m, beta: 1 / m**2 + beta * (40 if m == 32 else 1))


def test_crossings_are_where_the_lines_cross() -> None:
    for crossing in UNSTABLE.crossings():  # 1/m² + mβ = 1/4m² + 2mβ
        assert crossing.wide == 2 * crossing.narrow
        assert crossing.radii == pytest.approx([0.75 / crossing.narrow**3], rel=0.1)
    assert [c.radii for c in family(lambda m, beta: (1 + beta) / m).crossings()] == [()] * 3


def test_every_crossing_is_found_also_beside_0_and_from_the_start() -> None:
    there_and_back = [1.0, 2.0, 0.5, 2.0, np.inf]
    radius = np.array([0.0, 0.1, 1.0, 10.0, 100.0])
    low, high = curve(np.ones(5), radius), curve(np.array(there_and_back), radius)
    (crossing,) = PerturbationFamily({1: low, 2: high}).crossings()
    assert crossing.radii == pytest.approx([0.0, np.sqrt(10.0)])
    (late,) = PerturbationFamily({1: low, 2: high}).crossings(margin=0.5)
    assert late.radii == pytest.approx([0.1 * np.log(1.5) / np.log(2), 10 ** (np.log(3) / np.log(4))])


def test_verdicts_on_families_of_known_kind() -> None:
    assert (STABLE.verdict().stable, STABLE.verdict().radius) == (True, 1.0)
    assert (UNSTABLE.verdict().stable, UNSTABLE.verdict().radius) == (False, 0.0)
    boundary = BOUNDARY.verdict()
    assert boundary.stable
    assert 0.05 < boundary.radius < 0.1
    assert USELESS.verdict().stable is None
    assert ERRATIC.verdict().stable is None
    two = PerturbationFamily({m: STABLE.curves[m] for m in (4, 8)})
    assert two.verdict().stable is None


def test_extrapolation_finds_the_limit_of_a_power_law() -> None:
    limit = family(lambda m, beta: 1 / m**2 + beta * (2 - 1 / m) ** 0).extrapolated
    np.testing.assert_allclose(limit.error, RADII, atol=1e-12)
    assert limit.uncertainty[0] == pytest.approx(1 / 32**2)
    growing = UNSTABLE.extrapolated
    assert growing.error[-1] == UNSTABLE.errors[-1, -1]
    assert growing.uncertainty[-1] == np.inf
    assert np.isinf(PerturbationFamily({4: STABLE.curves[4]}).extrapolated.uncertainty).all()


def test_curves_must_have_the_same_radii() -> None:
    with pytest.raises(ArgumentError, match="curves: expected the same radii"):
        PerturbationFamily({4: curve(np.ones(18)), 8: curve(np.ones(18), 2 * RADII)})
    with pytest.raises(ArgumentError, match="one or more widths"):
        PerturbationFamily({})


def test_plot() -> None:
    axes = STABLE.plot()
    assert len(axes.lines) == len(WIDTHS) + 1
    assert STABLE.plot(axes) is axes


POLYNOMIAL = LinearFunctional("polynomial", exponent=1.1)
EXPONENTIAL = LinearFunctional("exponential", rate=0.1)


def fitted(width: int, map: str, target: LinearFunctional, longest: float) -> ssm.RealSSM:
    """Spread eigenvalues, and the readout of least squares; positive, so that eq. 57 of StableSSM holds."""
    eigenvalues, times = -1 / timescales(width, 0.6, longest), torch.arange(601, dtype=torch.float64)
    layer = ssm.RealSSM(1, width, 1, map=map, bias=False, eigenvalues=eigenvalues).double()
    with torch.no_grad():
        layer.w.copy_(layer.map.inverse(eigenvalues))
        layer.B.fill_(1)
        modes = torch.exp(eigenvalues * times[:, None]).numpy()
        layer.C.copy_(torch.from_numpy(nnls(modes, target.kernel(times).flatten().numpy())[0]))
    return layer


@pytest.mark.parametrize("weight_norm", ["tensor_max", "entry_max"])
@pytest.mark.parametrize(
    ("target", "map", "stable"),
    [
        (EXPONENTIAL, "direct", True),
        (POLYNOMIAL, "direct", False),
        (POLYNOMIAL, "best", True),
        (POLYNOMIAL, "exp", True),
    ],
)
def test_verdicts_on_real_models(target: LinearFunctional, map: str, stable: bool, weight_norm: str) -> None:
    radii = [0.0, *(1e-4 * 2.0 ** np.arange(15))]
    curves = {}
    for m in WIDTHS:
        longest = 30.0 if target is EXPONENTIAL else 2 * m**1.5
        layer = fitted(m, map, target, longest)
        options = {"parameters": "recurrent", "weight_norm": weight_norm, "search": "ascent"}
        curves[m] = perturbation_error(layer, target, radii, samples=4, steps=6, horizon=600, **options)
    verdict = PerturbationFamily(curves).verdict()
    assert verdict.stable is stable, verdict.evidence
    if target is EXPONENTIAL:  # the slowest mode, -1/30, becomes unstable at β = 1/30
        assert 0.02 < verdict.radius < 0.08
    elif stable:
        assert verdict.radius > 0.3
    else:
        first = [crossing.radii[0] for crossing in PerturbationFamily(curves).crossings()]
        assert (np.diff(first) < 0).all()


# --- all widths as one stack ------------------------------------------------------------------------------------

POLYNOMIAL = LinearFunctional("polynomial", exponent=1.1)


def real_ssm(m: int, map: str = "best", **options: Any) -> ssm.RealSSM:
    torch.manual_seed(m)
    return ssm.RealSSM(1, m, 1, map=map, bias=False, **options).double()


def both_ways(
    monkeypatch: pytest.MonkeyPatch, models: dict[int, nn.Module], **options: Any
) -> tuple[PerturbationFamily, PerturbationFamily, int]:
    """One by one, as on a CPU; together, as on a GPU; and the largest stack that was made then, in models."""
    options = {"samples": 4, "steps": 4, "horizon": 60, **options}
    radii = [0.0, 1e-3, 0.1, 1.0]
    alone = PerturbationFamily.of(models, POLYNOMIAL, radii, **options)
    joined, sizes = _model_stack.joined, [1]

    def noted(*arguments: Any) -> _model_stack.Stack | None:
        stack = joined(*arguments)
        sizes.append(1 if stack is None else len(next(iter(stack.weights.values()))))
        return stack

    monkeypatch.setattr(_model_stack, "ONE_BY_ONE", ())
    monkeypatch.setattr("stablessm.instruments.perturbation.joined", noted)
    return alone, PerturbationFamily.of(models, POLYNOMIAL, radii, **options), max(sizes)


@pytest.mark.parametrize(
    ("search", "weight_norm", "norm", "parameters"),
    [
        ("random", "tensor_max", "kernel_l1", "recurrent"), ("ascent", "entry_max", "kernel_l1", None),
        ("random", "entry_max", "mse", None), ("ascent", "tensor_max", "mse", "recurrent"),
        ("random", "entry_max", "sobolev", "recurrent"), ("ascent", "tensor_max", "sobolev", None),
    ],
)  # fmt: skip
def test_all_widths_at_once_are_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, parameters: str | None, norm: str, weight_norm: str, search: str
) -> None:
    models = {m: real_ssm(m) for m in (2, 8, 4)}
    options = {"parameters": parameters, "norm": norm, "weight_norm": weight_norm, "search": search}
    alone, together, size = both_ways(monkeypatch, models, **options)
    assert size == 3
    for m in models:
        np.testing.assert_allclose(together.curves[m].lower, alone.curves[m].lower, rtol=1e-9)
        assert together.curves[m].evaluations == alone.curves[m].evaluations
        for bound in ("upper", "theorem"):
            assert np.array_equal(getattr(together.curves[m], bound), getattr(alone.curves[m], bound))


@pytest.mark.parametrize("map", ["direct", "exp", "softplus"])
def test_a_model_that_explodes_does_not_spoil_the_others_of_its_stack(
    monkeypatch: pytest.MonkeyPatch, map: str
) -> None:
    models = {m: real_ssm(m, map) for m in (2, 4, 8)}
    alone, together, size = both_ways(monkeypatch, models, horizon=2000, search="ascent", parameters="recurrent")
    assert size == 3
    assert np.isinf(alone.errors[:, -1]).all() == (map == "direct")
    np.testing.assert_allclose(together.errors, alone.errors, rtol=1e-9)


def test_a_stack_fits_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_model_stack.CHUNK_BYTES, "cpu", 1)
    models = {m: real_ssm(m) for m in (2, 4)}
    alone, together, _ = both_ways(monkeypatch, models, search="ascent")
    np.testing.assert_allclose(together.errors, alone.errors, rtol=1e-12)


class Averaged(nn.Module):
    """Units that are not used count here."""

    d_input = 1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1, width).double(), nn.Linear(width, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).softmax(-1))


@pytest.mark.parametrize(
    "models",
    [
        {m: Averaged(m) for m in (2, 4)},
        {2: real_ssm(2, "exp"), 4: real_ssm(4, "softplus")},
        {2: real_ssm(2), 4: real_ssm(4).float()},
        {2: real_ssm(2), 4: ssm.LRU(1, 4, 1).double()},
    ],
    ids=["units that count", "another map", "another precision", "another class"],
)
def test_models_that_cannot_be_one_stack_are_searched_one_by_one(
    monkeypatch: pytest.MonkeyPatch, models: dict[int, nn.Module]
) -> None:
    alone, together, size = both_ways(monkeypatch, models, norm="mse", search="ascent")
    assert size == 1
    np.testing.assert_array_equal(together.errors, alone.errors)


class Detached(nn.Module):
    """No gradient comes through."""

    d_input = 1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(1, width, bias=False).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sum(-1, keepdim=True).detach()


def test_models_without_a_gradient_are_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together, size = both_ways(monkeypatch, {m: Detached(m) for m in (2, 4)}, norm="mse")
    assert size == 1
    np.testing.assert_array_equal(together.errors, alone.errors)
