"""Options and rules that no closed form depends on: bars, scales, limits and causes."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import tqdm
from torch import nn

import stablessm as ssm
from stablessm.instruments import _function_norms, _linear, gradients
from stablessm.instruments._first_cause import unstable_weight
from stablessm.instruments.systems import as_system


class Bar(tqdm.tqdm):
    """A bar that is always shown, on nothing."""

    shown: list[Bar]
    asked: list[bool | None]

    def __init__(self, *args, disable=None, **options):
        self.asked.append(disable)
        super().__init__(*args, **options, disable=False, file=io.StringIO())
        self.shown.append(self)


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr(Bar, "shown", [], raising=False)
    monkeypatch.setattr(Bar, "asked", [], raising=False)
    monkeypatch.setattr(tqdm, "tqdm", Bar)
    return Bar


@pytest.mark.parametrize(("search", "total"), [("random", 2 * 3), ("ascent", 2 * 3 * 5)])
def test_the_bar_of_a_perturbation_ends_full(bars, search, total):
    layer = ssm.RealSSM(1, 2, 1, map="direct", time="discrete", eigenvalues=torch.tensor([0.3, 0.6])).double()
    options = {"search": search, "samples": 3, "steps": 4, "horizon": 5}
    for progress in (True, False):
        ssm.perturbation_error(layer, layer, [0.0, 0.1, 0.2], progress=progress, **options)
    assert bars.asked == [None, True]
    assert [(bar.n, bar.total) for bar in bars.shown] == [(total, total)] * 2


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_linearity_does_not_depend_on_the_unit_of_the_output(scale):
    assert _linear.superposes(as_system(lambda x: scale * (x + x.cumsum(1) / 3), d_input=2), 1.0)
    assert not _linear.superposes(as_system(lambda x: scale * (x + 1e-6 * x.tanh()), d_input=2), 1.0)


def test_many_inputs_to_many_outputs_are_bounded_from_below_only():
    """13 inputs have too many corners to try: the corner nearest to the best direction, not proved."""
    kernel = torch.randn(3, 2, 13, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    value, corner, proved = _linear.largest_gain(kernel, "plus_one", 1.0)
    assert not proved
    assert (corner.abs() == 1).all()
    np.testing.assert_allclose(value, torch.einsum("toi,ti->to", kernel, corner).norm(dim=1))
    assert (value > 0.6 * kernel.abs().sum(2).norm(dim=1)).all()
    assert _linear.largest_gain(kernel[:, :, :12], "plus_one", 1.0)[2]
    value, corner, proved = _linear.largest_gain(kernel[:, :1], "plus_one", 1.0)
    assert proved
    assert torch.equal(corner, kernel[:, 0].sign())
    np.testing.assert_allclose(value, kernel[:, 0].abs().sum(1))


@pytest.mark.parametrize("norm", ["mse", "sobolev"])
def test_distances_of_outputs_are_the_formula(norm):
    """StableSSM eq. 6 and 14, with an error at rest that moves too."""
    rng = np.random.default_rng(5)
    model, x = nn.GRU(2, 3, batch_first=True).double(), torch.from_numpy(rng.standard_normal((4, 6, 2)))
    target = lambda x: 0.3 + x.cumsum(1).sum(2, keepdim=True).tanh() * torch.ones(3).double()  # noqa: E731
    distance = _function_norms.output_distance(model, target, norm, x, 0.5, x)
    inputs = torch.cat([torch.zeros(1, 6, 2).double(), x])
    error = (model(inputs)[0] - target(inputs)).detach().numpy()
    size = 1 + np.abs(inputs.numpy()).max((1, 2))[:, None]
    value = np.linalg.norm(error, axis=2)[:, 1:] / size
    slope = np.linalg.norm(np.diff(error, axis=1), axis=2) / 0.5 / size
    sobolev = (value[1:].max(0) + value[0] + slope[1:].max(0) + slope[0]).max()
    expected = sobolev if norm == "sobolev" else (error[1:] ** 2).mean()
    assert float(distance({}).detach()) == pytest.approx(expected, rel=1e-12)


def test_the_worst_of_several_recurrent_weights_is_blamed():
    model = nn.RNN(2, 3, num_layers=3)
    with torch.no_grad():
        for layer, radius in enumerate((1.5, 3.0, 2.0)):
            getattr(model, f"weight_hh_l{layer}").copy_(radius * torch.eye(3).roll(1, 0))
    name, radius = unstable_weight(model)
    assert (name, radius) == ("weight_hh_l1", pytest.approx(3.0))
    with torch.no_grad():
        for weight in model.parameters():
            weight.div_(3)
    assert unstable_weight(model) is None


def test_a_quotient_that_overflows_is_no_division_by_zero():
    class Divided(nn.Module):
        def forward(self, x):
            return x / 1e-30

    with pytest.raises(ssm.DivergenceError) as caught, ssm.trace_divergence(Divided()) as trace:
        Divided.__call__(trace._model, torch.full((2, 3), 1e30))
    assert caught.value.report.cause == "overflow"


def test_only_large_parameters_that_are_not_recurrent_keep_no_ratios(monkeypatch):
    monkeypatch.setattr(gradients, "SAMPLE", 4)
    kept = {}
    for size in (4, 5, 9):
        layer = nn.Linear(size, 1, bias=False)
        nn.init.constant_(layer.weight, 0.5)
        layer(torch.arange(1.0, size + 1)).sum().backward()
        entry = gradients.gradient_over_weight(layer)["weight"]
        kept[size] = (entry.ratio is not None, entry.maximum, entry.quantiles[2])
    assert kept == {4: (True, 8.0, 8.0), 5: (False, 10.0, 10.0), 9: (False, 18.0, 14.0)}


def test_a_certificate_allows_for_the_rounding_of_its_equation():
    """Of a matrix whose slowest mode is 1e13 times slower than its fastest, 2 % of the rate cannot be proved."""
    proof = ssm.lyapunov_certificate(torch.diag(torch.tensor([-1.0, -1e-13], dtype=torch.float64)))
    rounding = 4 * 2 * torch.finfo(torch.float64).eps * proof.norm * 2
    assert 0.01 < rounding < 0.03
    assert 2 * proof.norm * proof.rate == pytest.approx(1 - proof.residual - rounding, rel=1e-9)
