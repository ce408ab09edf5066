"""The parts of a Volterra series, each against a formula of its own: sampled kernels, starts, refinement."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.signal import lfilter

from stablessm.constructions.series import _identify, _kernels
from stablessm.constructions.series._fit import Modes
from stablessm.constructions.series._identify import Records
from stablessm.constructions.series._kernels import SampledKernel
from stablessm.constructions.series._measure import measure
from stablessm.constructions.series._tensor import symmetric_part
from stablessm.constructions.series.volterra import volterra

ORDERS = [2, 3]


def kernel(*times: np.ndarray) -> np.ndarray:
    """Not symmetric, and of low rank."""
    return np.exp(-times[0] / 3 - sum(times[1:]) / 7) * np.cos(times[-1]) + 0.3 * 0.8 ** sum(times)


def on_grid(order: int, steps: int, dt: float) -> np.ndarray:
    return symmetric_part(kernel(*np.meshgrid(*[dt * np.arange(steps)] * order, indexing="ij")))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_function_is_taken_whole_up_to_three_million_values(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _kernels._ALL == 3_000_000  # as the documentation says
    for most, large in ((9**order, False), (9**order - 1, order > 1)):
        monkeypatch.setattr(_kernels, "_ALL", most)
        assert (SampledKernel(order, 8, 0.5, kernel).whole is None) == large
        assert SampledKernel(order, 8, 0.5, on_grid(order, 9, 0.5)).whole is not None


@pytest.mark.parametrize("order", ORDERS)
def test_a_large_grid_is_sampled_as_if_it_were_whole(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many nodes as steps nothing is left out: values, span and coefficients are those of the whole grid."""
    truth, steps = on_grid(order, 21, 0.5), np.random.default_rng(0).integers(0, 21, (order, 50))
    whole = SampledKernel(order, 20, 0.5, kernel)
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((21, 3)))[0]
    functions, norm = whole.span(1e-3)
    core = whole.core(basis)
    monkeypatch.setattr(_kernels, "_ALL", 1)
    large = SampledKernel(order, 20, 0.5, kernel)
    assert large.whole is None
    assert whole.at(*steps) == pytest.approx(truth[tuple(steps)], rel=1e-12)
    assert large.at(*steps) == pytest.approx(truth[tuple(steps)], rel=1e-12)
    found, estimate = large.span(1e-3)
    assert norm == pytest.approx(np.linalg.norm(truth))
    assert estimate == pytest.approx(norm)
    assert found @ found.T == pytest.approx(functions @ functions.T, rel=1e-6, abs=1e-12)
    fibres = truth.reshape(21, -1)
    inside = np.linalg.qr(found)[0]
    left = [np.linalg.norm(fibres - part @ (part.T @ fibres)) for part in (inside, inside[:, :-1])]
    assert left[0] <= 1e-3 * norm < left[1]
    spread = np.einsum(fibres, [0, 1], fibres, [2, 1])
    assert found @ found.T == pytest.approx(inside @ inside.T @ spread @ inside @ inside.T / norm**2, abs=1e-6)
    expected = truth
    for _ in range(order):
        expected = np.tensordot(expected, basis, (0, 0))
    assert core == pytest.approx(expected)


@pytest.mark.parametrize("order", ORDERS)
def test_coefficients_from_some_nodes_are_those_of_all(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kernels, "_ALL", 13**order)
    rng = np.random.default_rng(2)
    basis = np.linalg.qr(rng.standard_normal((61, 3)))[0]
    core, asked = symmetric_part(rng.standard_normal((3,) * order)), set()

    def inside(*times: np.ndarray) -> np.ndarray:
        rows = [np.rint(one).astype(int) for one in times]
        asked.update(rows[0].tolist())
        letters = "abc"[:order]
        equation = ",".join(f"z{letter}" for letter in letters) + f",{letters}->z"
        return np.einsum(equation, *(basis[row] for row in rows), core)

    assert SampledKernel(order, 60, 1.0, inside).core(basis) == pytest.approx(core)
    assert 4 <= len(asked) <= 13


def test_nodes_are_weighted_as_the_steps_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the basis does not hold the kernel, the coefficients are nearly those of the projection."""
    monkeypatch.setattr(_kernels, "_ALL", 100**2)
    large = SampledKernel(2, 400, 0.1, kernel)
    basis = np.linalg.qr(np.exp(-np.outer(np.arange(401), [0.01, 0.1])))[0]
    expected = basis.T @ on_grid(2, 401, 0.1) @ basis
    assert np.linalg.norm(large.core(basis) - expected) < 0.05 * np.linalg.norm(expected)


@pytest.mark.parametrize("order", ORDERS)
def test_points_of_a_large_grid_stand_for_all(order: int) -> None:
    (uniform, share), (diagonal, each) = SampledKernel(order, 50, 1.0, kernel).scattered()
    assert uniform.shape == (100_000, order)
    assert share * len(uniform) == pytest.approx(51**order)
    assert (uniform.min(), uniform.max()) == (0, 50)
    assert diagonal.tolist() == [[k] * order for k in range(51)]
    assert each == 1


def test_leading_singular_vectors_and_what_they_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    left, right = (np.linalg.qr(rng.standard_normal((60, 50)))[0] for _ in range(2))
    fibres = left * 0.6 ** np.arange(50) @ right.T
    for most, missing in ((60, False), (20, True)):
        monkeypatch.setattr(_kernels, "_LEADING", most)
        vectors, values, lost = _kernels._leading(fibres)
        assert len(values) == most
        assert values[:10] == pytest.approx(0.6 ** np.arange(10), rel=1e-3)
        assert vectors.T @ vectors == pytest.approx(np.eye(most), abs=1e-10)
        assert (values**2).sum() + lost**2 == pytest.approx((fibres**2).sum(), rel=1e-12)
        assert (lost > 0) == missing
        assert np.linalg.norm(fibres - vectors @ (vectors.T @ fibres)) == pytest.approx(lost, abs=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_the_errors_of_a_sample_are_those_of_the_grid(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = volterra({order: kernel}, 20, tol=1e-2, dt=0.5)
    errors, largest = model.kernel_errors[order], model.sup_errors[order]
    truth = on_grid(order, 21, 0.5)
    off = model.kernel(*[np.arange(21)] * order).detach().numpy() - truth
    assert errors == pytest.approx(np.linalg.norm(off) / np.linalg.norm(truth))
    assert largest == pytest.approx(np.abs(off).max() / np.abs(truth).max())
    monkeypatch.setattr(_kernels, "_ALL", 1)
    measure(model, [SampledKernel(order, 20, 0.5, kernel)])
    assert model.sup_errors[order] == pytest.approx(largest)
    assert errors * (1 - 1e-9) <= model.kernel_errors[order] <= 1.1 * errors  # or more, if uniform points find more


def records(steps: int, memory: int, order: int) -> Records:
    return Records(np.ones((1, steps)), np.ones((1, steps)), memory, order, steps)


@pytest.mark.parametrize("memory", [12, 90])
def test_starts_are_decays_and_waves_of_every_time_scale(memory: int) -> None:
    for size in (1, 2, 3, 5):
        ((real, *waves),) = _identify._starts(records(500, memory, 2), size)
        scales = -1 / real.real
        assert len(real) == size
        assert not real.imag.any()
        assert np.diff(np.log([1, *scales, memory / 3])) == pytest.approx(np.log(memory / 3) / (size + 1))
        assert len(waves) == {1: 0, 2: 3, 3: 3, 5: 1}[size]
        for wave in waves:
            pairs, single = wave[: size // 2], wave[size // 2 :]
            assert single.tolist() == [-1] * (size % 2)
            ratios = np.diff(np.log([1, *-1 / pairs.real, memory / 3]))
            assert ratios == pytest.approx(np.log(memory / 3) / (size // 2 + 1))
        periods = 2 * np.pi / np.concatenate([wave.imag[: size // 2] for wave in waves]) if waves else []
        assert np.sort(periods) == pytest.approx(np.geomspace(4, memory, len(periods)))


def test_only_as_many_states_as_there_are_data_for() -> None:
    for size, order in itertools.product((1, 2, 4), (1, 2, 3)):
        least = 3 * math.comb(size + order, order)
        for steps in (least - 1, least):
            assert len(list(_identify._starts(records(steps + 9, 9, order), size))) == (steps == least)
    sizes = [len(starts[0]) for starts in _identify._starts(records(10_000, 9, 2), None)]
    assert sizes == [1, 2, 3, 4, 6, 8]  # as the documentation says


@pytest.mark.parametrize(("noise", "tried"), [(0.0, [1]), (0.5, [1, 2, 2, 2, 2, 3, 3, 3, 3])])
def test_more_states_are_tried_until_two_sizes_gain_nothing(
    noise: float, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, off = np.random.default_rng(10).standard_normal((2, 400))
    y, sizes, refined = lfilter([1.0], [1.0, -0.8], x) + noise * off, [], _identify._refined

    def counted(some: Records, rates: np.ndarray) -> Modes:
        sizes.append(int(np.where(rates.imag > 0, 2, 1).sum()))
        return refined(some, rates)

    monkeypatch.setattr(_identify, "_refined", counted)
    modes, _ = _identify._chosen(Records(x[None], y[None], 20, 1, 400), None)
    assert sizes == tried
    assert np.exp(modes.rates) == pytest.approx([0.8], abs=0.1 * noise + 1e-6)


@pytest.mark.parametrize(("count", "steps", "used"), [(4, 153, (3, 153)), (2, 900, (1, 420))])
def test_rates_are_refined_on_the_first_of_many_steps(
    count: int, steps: int, used: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 400 steps at most, beside 20 of memory, of whole records or of one; what lies beyond is no number here."""
    monkeypatch.setattr(_identify, "_REFINED", 400)
    x, y = np.random.default_rng(4).standard_normal((count, steps)), np.full((count, steps), np.nan)
    y[: used[0], : used[1]] = lfilter([1.0], [1.0, -1.2, 0.6], x)[: used[0], : used[1]]
    found = _identify._refined(Records(x, y, 20, 1, steps), np.array([-0.2 + 0.5j]))
    assert np.exp(found.rates) == pytest.approx([0.6 + 1j * math.sqrt(0.24)], rel=1e-4)
    if used[0] == 1:
        y[0, 0] = y[0, 419] = np.nan
        with pytest.raises(ValueError, match="finite"):  # the last of them counts
            _identify._refined(Records(x, y, 20, 1, steps), np.array([-0.2 + 0.5j]))


def test_responses_are_convolutions_with_the_basis() -> None:
    rates = np.array([-0.3 + 0j, -0.1 + 0.8j, -0.2 + 1j * np.pi])
    modes = Modes.of(rates, 200, 1.0)
    x = np.random.default_rng(5).standard_normal((2, 40))
    found = _identify.responses(x, modes)
    assert found.shape == (2, 40, 4)
    expected = [[np.convolve(row, column)[:40] for column in modes.basis.T] for row in x]
    assert found == pytest.approx(np.moveaxis(expected, 1, 2), abs=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_ridge_regression_penalizes_all_but_the_constant(ridge: float) -> None:
    rng = np.random.default_rng(6)
    regressors = np.concatenate([np.ones((50, 1)), rng.standard_normal((50, 3)) * [1e-3, 1, 1e3]], 1)
    y = rng.standard_normal(50) + 5
    size = np.linalg.norm(regressors, axis=0)
    extra = np.sqrt(ridge) * np.eye(4)[1:]
    unit = np.concatenate([regressors / size, extra])
    expected = np.linalg.lstsq(unit, np.concatenate([y, np.zeros(3)]), rcond=None)[0] / size
    found = _identify._solved(*_identify._grams(regressors, y), ridge)
    assert found * size == pytest.approx(expected * size, rel=1e-8)


def test_validation_leaves_out_one_fold_of_four() -> None:
    rng = np.random.default_rng(7)
    regressors = np.concatenate([np.ones((40, 1)), rng.standard_normal((40, 12))], 1)
    y = regressors[:, 1] + 2 * rng.standard_normal(40)
    errors = []
    for ridge in 10.0 ** np.arange(-12, 1):
        off = []
        for fold in np.split(np.arange(40), 4):
            kept = np.setdiff1d(np.arange(40), fold)
            weights = _identify._solved(*_identify._grams(regressors[kept], y[kept]), ridge)
            off.append(y[fold] - regressors[fold] @ weights)
        errors.append(np.mean(np.square(off)))
    error, ridge = _identify._validated(regressors, y)
    assert error == pytest.approx(min(errors))
    assert ridge == pytest.approx(10.0 ** (np.argmin(errors) - 12))
    assert ridge > 1e-6  # so many regressors need some
