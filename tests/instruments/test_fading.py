from __future__ import annotations

import numpy as np
import pytest
import torch

import stablessm as ssm
from stablessm import ArgumentError, NumericalError


def test_peak_hold_has_decaying_memory_that_does_not_fade():
    target = ssm.targets.PeakHold()
    memory = ssm.memory_function(target, 200, d_input=1)
    assert memory.decay().kind == "finite"
    assert memory.value[0] == 1
    assert not memory.value[1:].any()
    fading = ssm.fading_function(target, 200, d_input=1)
    assert fading.decay().kind == "none"
    np.testing.assert_array_equal(fading.value, 1)


def test_thinning_spikes_have_fading_memory_that_does_not_decay():
    """ρ: a triangle of height 1 and half width 2^-n at every n = 1, 2, …: integrable, and it never gets small."""

    def spikes(t):
        nearest = t.round().clamp(min=1)
        return (1 - (t - nearest).abs() * 2.0**nearest).clamp(min=0)

    dt = 2.0**-9
    target = ssm.targets.LinearFunctional(spikes, dt=dt)
    memory = ssm.memory_function(target, int(7.5 / dt), dt=dt)
    peaks = memory.value[int(1 / dt) :: int(1 / dt)]
    assert memory.exact
    np.testing.assert_allclose(peaks, 1, atol=1e-9)
    assert memory.decay().kind in ("none", "undecided")
    fading = ssm.fading_function(target, int(6.5 / dt), dt=dt, past=int(7.5 / dt), samples=2)
    between = fading.value[int(0.5 / dt) :: int(1 / dt)]
    np.testing.assert_allclose(between[1:] / between[:-1], 0.5, atol=0.07)


def test_a_linear_layer_fades_as_the_integral_of_its_kernel():
    layer = ssm.RealSSM(1, 4, 1, map="tanh", time="discrete").double()
    with torch.no_grad():
        layer.B.abs_(), layer.C.abs_(), layer.w.abs_()
    curve = ssm.fading_function(layer, 100, past=400, bound=3.0)
    rho = layer.kernel(torch.arange(500))[:, 0, 0].detach().numpy()
    tails = np.array([rho[k + 1 : k + 401].sum() for k in range(100)])
    np.testing.assert_allclose(curve.value, tails, rtol=1e-9)


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="horizon"):
        ssm.fading_function(lambda x: x, 0, d_input=1)
    with pytest.raises(ArgumentError, match="past"):
        ssm.fading_function(lambda x: x, 10, d_input=1, past=0)
    with pytest.raises(ArgumentError, match="bound"):
        ssm.fading_function(lambda x: x, 10, d_input=1, bound=-1.0)
    with pytest.raises(NumericalError, match="not finite"):
        ssm.fading_function(lambda x: x * torch.nan, 10, d_input=1)


def test_a_negative_number_of_pasts() -> None:
    with pytest.raises(ArgumentError, match=r"^samples: expected a whole number, at least 0, got -1"):
        ssm.fading_function(lambda x: x, 20, d_input=1, samples=-1)
