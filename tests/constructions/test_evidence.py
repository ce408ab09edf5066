"""The series of least-squares fits from which the evidence chooses: ways out of fits that went astray."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stablessm.constructions.sums._evidence import Model, Path
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Problem


def wave_path(seed: int) -> tuple[np.ndarray, Path]:
    """Rates of a strongly damped wave and a slow one, and a path of fits of their samples with noise."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 1, 150))
    rates = np.array([rng.uniform(8, 25) * complex(-1, rng.uniform(0.4, 1)), complex(-rng.uniform(1, 5), 60)])
    values = (np.exp(t[:, None] * rates) @ np.exp(6j * rng.random(2))).real + 1e-3 * rng.standard_normal(150)
    domain = Domain(1.0, discrete=False, real=False, positive=False, slowest=0.0)
    return rates, Path(Problem(t, values[:, None], np.ones(150), np.ones(150), domain), 30)


@pytest.mark.parametrize("seed", range(5))
def test_rates_that_met_on_the_real_axis_part(seed: int) -> None:
    rates, path = wave_path(seed)
    middle = rates[0].real * (1 + np.array([1e-4, -1e-4]))
    path._offer([np.append(middle + 0j, rates[1])])  # the optimizer of real rates ends where they meet
    stuck = path.models[4].size
    path._shrink(4)
    assert path.models[4].size < stuck
    assert np.sort_complex(path.models[4].rates) == pytest.approx(np.sort_complex(rates), rel=0.3)
    real = Path(replace(path.problem, values=np.exp(-np.outer(path.problem.times, [5.0, 9.0])).sum(1)[:, None]), 30)
    real._offer([np.array([-7 + 0.01j])])
    real._shrink(2)
    assert np.sort(real.models[2].rates) == pytest.approx([-9, -5], rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_chosen_fit_has_the_most_evidence_of_all_that_were_tried(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Growth went astray: only the fit of 8 states has both waves, with two waves of noise."""
    rates, path = wave_path(seed)
    noise = np.array([-0.1 + 200j, -0.1 + 300j])
    right = path._descend(np.append(rates, noise), (1e-9, 1e-3))
    largest, smallest = path.models[0].size, 1.5 * right.size

    def grow(order: int) -> None:
        size = largest * (smallest / largest) ** (min(order, 7) / 7)
        path._grown, path.models[order] = order, Model(-np.geomspace(1, 50, order) + 0j, size)
        path.models[8] = right if order >= 8 else path.models[order]

    monkeypatch.setattr(path, "grow", grow)
    best = path.choose(12)
    assert best == min(range(path._grown + 1), key=path.criterion) == 4
    assert np.sort_complex(path.models[4].rates) == pytest.approx(np.sort_complex(rates), rel=0.3)
