"""Time scales, gains and distances of every mode in the user's unit; and whether an initialization survived."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments.modes import recurrent_modules, report_modes

RATES = torch.tensor([-1.6, -0.5, -0.01])
LAYERS = {
    "real": lambda: ssm.RealSSM(1, 16, 1, map="direct", dt=0.1),
    "discrete": lambda: ssm.RealSSM(1, 16, 1, map="exp", time="discrete"),
    "lru": lambda: ssm.LRU(1, 16, 1),
    "lru-wide": lambda: ssm.LRU(1, 4, 1, map="exp", r_min=0.0),
    "s4d": lambda: ssm.S4D(4, 8),
    "s4d-legs": lambda: ssm.S4D(4, 8, init="legs", map="softplus"),
    "rnn": lambda: ssm.ContinuousRNN(1, 8, 1, recurrence="diagonal", map="best", dt=0.1),
    "dense": lambda: ssm.ContinuousRNN(1, 8, 1, map="skew_minus_psd", dt=0.1),
    "given": lambda: ssm.ContinuousRNN(1, 4, 1, eigenvalues=torch.tensor([-1 + 2j, -1 - 2j, -1 + 1j, -1 - 1j])),
}


@pytest.mark.parametrize("map", ["direct", "exp", "softplus", "best"])
def test_continuous_time(map: str) -> None:
    layer = ssm.RealSSM(1, 3, 1, map=map, dt=0.1, eigenvalues=RATES)
    report, w = report_modes(layer), layer.w.detach().double()
    np.testing.assert_allclose(report.time_scale, [0.625, 2.0, 100.0], rtol=1e-4)
    np.testing.assert_allclose(report.distance, [1.6, 0.5, 0.01], rtol=1e-4)
    np.testing.assert_allclose(report.growth, [-0.16, -0.05, -0.001], rtol=1e-4)
    np.testing.assert_allclose(report.eigenvalue, RATES, rtol=1e-4)
    np.testing.assert_allclose(report.gradient_scale, layer.map.gradient_scale(w))
    np.testing.assert_allclose(report.gradient_over_weight, layer.map.gradient_scale(w) / w.abs())
    # with a dt of the user's: samples times dt
    np.testing.assert_allclose(report_modes(layer, dt=3.0).time_scale, [18.75, 60.0, 3000.0], rtol=1e-4)


def test_discrete_time_is_accurate_next_to_the_boundary() -> None:
    lam = 1 - torch.tensor([0.5, 1e-3, 1e-7], dtype=torch.float64)
    layer = ssm.RealSSM(1, 3, 1, map="softplus", time="discrete", eigenvalues=lam)
    np.testing.assert_allclose(report_modes(layer, dt=0.2).time_scale, -0.2 / np.log(lam.numpy()), rtol=1e-4)
    lru = ssm.LRU(1, 2, 1, eigenvalues=torch.tensor([0.9j, -0.99]))
    np.testing.assert_allclose(report_modes(lru).time_scale, -1 / np.log([0.9, 0.99]), rtol=1e-4)


def test_s4d_counts_samples_of_each_channel() -> None:
    layer = ssm.S4D(3, 4)
    report = report_modes(layer, dt=2.0)
    step = layer.log_dt.detach().double().exp()
    truth = (2.0 / (0.5 * step))[:, None].expand(3, 4)
    np.testing.assert_allclose(report.time_scale, truth.flatten(), rtol=1e-5)
    assert report.index[5] == (1, 1)
    # the kernel of a mode has decayed by e after that many samples
    times = torch.tensor([0.0, report.time_scale[0] / 2.0])
    kernel = ssm.S4D(1, 1, eigenvalues=torch.tensor([-0.5 + 0j]))
    with torch.no_grad():
        kernel.log_dt.copy_(layer.log_dt[:1])
    first, later = kernel.kernel(times)[:, 0]
    assert float((later / first).detach()) == pytest.approx(np.exp(-1), rel=1e-4)


def test_a_dense_recurrence_has_no_gain() -> None:
    report = report_modes(LAYERS["given"]())
    np.testing.assert_allclose(report.time_scale, 1.0, rtol=1e-4)
    assert np.isnan(report.gradient_scale).all()


def test_euler_grows_where_the_equation_decays() -> None:
    layer = ssm.ContinuousRNN(1, 2, 1, recurrence="diagonal", eigenvalues=torch.tensor([-0.5, -2.5]))
    stable, unstable = report_modes(layer).rows
    assert (stable.unstable, unstable.unstable) == (False, True)
    assert unstable.growth == pytest.approx(np.log(1.5))
    assert unstable.time_scale == pytest.approx(0.4)


def test_a_model_of_several_and_what_is_printed() -> None:
    slow = torch.tensor([-1.0, 0.25, -1e-3])
    model = nn.Sequential(nn.Linear(1, 1), ssm.RealSSM(1, 3, 1, map="direct", eigenvalues=slow), ssm.LRU(1, 16, 1))
    report = report_modes(model)
    assert len(report) == len(report.rows) == 19
    assert [name for name, _ in recurrent_modules(model)] == ["1", "2"]
    assert set(report.module) == {"1", "2"}
    assert report.time_scale[1] == np.inf
    text = str(report)
    assert "19 modes in 2 modules" in text
    assert "1 unstable" in text
    assert "0.25" in text.splitlines()[4]
    assert "unstable" in text.splitlines()[4]
    assert "mode 2 of '1': λ = -0.001, time scale 1000" in str(report[2])
    assert "mode 1 of '1': λ = 0.25, grows by e^0.25 per sample" in str(report[1])


def test_compiled_and_shared_modules_count_once() -> None:
    layer = ssm.LRU(1, 4, 1)
    assert len(report_modes(torch.compile(layer, backend="eager"))) == 4
    assert len(report_modes(nn.ModuleList([layer, layer]))) == 4


def test_yours_needs_no_map() -> None:
    class Yours(nn.Module):
        recurrent_parameters = ("a",)
        time = "discrete"

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.tensor([0.5, -0.9]))

        def eigenvalues(self) -> Tensor:
            return self.a

    report = report_modes(Yours())
    np.testing.assert_allclose(report.time_scale, -1 / np.log([0.5, 0.9]), rtol=1e-5)
    assert report.intact(torch.tensor([-0.9, 0.5]))
    with pytest.raises(ValueError, match=r"^expected: expected the eigenvalues.*no reset_parameters"):
        report.intact()


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_fresh_layer_is_intact(name: str, dtype: torch.dtype) -> None:
    for seed in range(2):
        torch.manual_seed(1000 + seed)
        model = nn.Sequential(LAYERS[name]()).to(dtype)
        before = torch.get_rng_state()
        weights = [p.clone() for p in model.parameters()]
        check = report_modes(model).intact()
        assert check, str(check)
        assert torch.equal(torch.get_rng_state(), before)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("init", ["normal", "zeros", "xavier"])
def test_an_overwritten_layer_is_not(name: str, init: str) -> None:
    model = nn.Sequential(nn.Linear(1, 1), LAYERS[name]())

    def init_weights(module: nn.Module) -> None:
        for p in module.parameters(recurse=False):
            if init == "normal":
                nn.init.normal_(p, std=0.02)
            elif init == "zeros":
                nn.init.zeros_(p)
            else:
                nn.init.uniform_(p, -0.1, 0.1)

    model.apply(init_weights)
    check = report_modes(model).intact()
    assert not check
    assert str(check).startswith("initialization not intact:\n  1: ")
    assert "model.apply" in str(check)


def test_an_overwritten_step_is_found_though_eigenvalues_are_well() -> None:
    layer = ssm.S4D(8, 4)
    nn.init.zeros_(layer.log_dt)
    assert "1/time scale" in str(report_modes(layer).intact())


def test_expected_eigenvalues_by_name() -> None:
    model = nn.ModuleDict({"a": ssm.RealSSM(1, 3, 1, eigenvalues=RATES), "b": ssm.LRU(1, 2, 1)})
    report = report_modes(model)
    assert report.intact({"a": RATES.flip(0)})
    assert not report.intact({"a": RATES * 1.1})
    for expected, message in (
        (RATES, "a mapping with keys a, b, got a tensor"),
        ({"c": RATES}, "among a, b, got c"),
        ({"a": RATES[:2]}, r"shape \(3,\) for 'a', got shape \(2,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            report.intact(expected)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"^model: expected a module with .*got Linear"):
        report_modes(nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"^dt: expected a finite number above 0, got -1"):
        report_modes(ssm.LRU(1, 1, 1), dt=-1.0)
