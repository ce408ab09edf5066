"""Families over widths: crossings, limits and verdicts, for families of known kind and for real ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.instruments.family import PerturbationFamily
from stablessm.instruments.perturbation import PerturbationCurve, perturbation_error
from stablessm.layers.initialise import timescales
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
    """Spread eigenvalues, and the readout of least squares; positive, so that eq. 57 of paper 004 holds."""
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
