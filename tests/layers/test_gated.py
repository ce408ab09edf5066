"""Gated layers: decays stay below one whatever the weights and inputs are, and maps are exchanged freely."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import stablessm as ssm
from stablessm import reparam
from stablessm.layers.gated import GatedLayer

LAYERS = {
    "min-gru": lambda **o: ssm.MinGRU(4, 4, **o),
    "min-lstm": lambda **o: ssm.MinLSTM(4, 4, **o),
    "rg-lru": lambda **o: ssm.RGLRU(4, **o),
    "hgrn": lambda **o: ssm.HGRN(4, **o),
    "selective": lambda **o: ssm.SelectiveSSM(4, 3, **o),
}
STABLE = [name for name in reparam.names() if reparam.get(name).is_stable]
SIZES = st.sampled_from([1e-30, 1e-3, 1.0, 20.0, 1e3, 1e6, 1e15])


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=40)
@given(
    map=st.sampled_from(STABLE),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    weights=SIZES, inputs=SIZES, sign=st.sampled_from([-1.0, 1.0]), seed=st.integers(0, 999),
)  # fmt: skip
def test_decays_are_below_one_for_all_weights_and_inputs(
    name: str, map: str, dtype: torch.dtype, weights: float, inputs: float, sign: float, seed: int
) -> None:
    assume(weights**2 * inputs < 1e30)  # beyond, the projected inputs are infinite
    torch.manual_seed(seed)
    layer = LAYERS[name](map=map)
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * weights)
            if "bias" in key and seed % 2:
                parameter.copy_(sign * parameter.abs())
    layer, x = layer.to(dtype), (inputs * torch.randn(2, 6, 4)).to(dtype).requires_grad_()
    decays = layer.decays(x)
    assert decays.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert bool(((decays >= 0) & (decays < 1)).all())
    zero = layer.initial_state(2)
    ahead, state = layer(x, torch.ones_like(zero))[1], layer(x, zero)[1]
    assert bool((((ahead - state).abs() <= 1 + 1e-6 * ahead.abs()) | ~ahead.isfinite()).all())
    (gradient,) = torch.autograd.grad(decays.sum(), x)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", LAYERS)
def test_an_unstable_map_may_grow(name: str) -> None:
    """The map ``direct`` is not limited: a comparison of maps would otherwise compare the limit."""
    layer = LAYERS[name](map="direct")
    torch.nn.init.constant_(layer.w, 0.5)
    assert bool((layer.decays(torch.zeros(1, 1, 4)) > 1).all())


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=10)
@given(maps=st.lists(st.sampled_from(reparam.names()), min_size=2, max_size=2), seed=st.integers(0, 999))
def test_any_map_in_place_of_any_other_changes_no_output(name: str, maps: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    first, second = maps
    rates = -torch.rand(3 if name == "selective" else 4) * 0.9 - 0.05
    layer = LAYERS[name](map=first, eigenvalues=rates).double()
    assert isinstance(layer, GatedLayer)
    twin, x = layer.with_map(second), torch.randn(2, 50, 4, dtype=torch.float64)
    torch.testing.assert_close(twin(x), layer(x), rtol=1e-6, atol=1e-6)


def test_the_kernel_is_refused() -> None:
    with pytest.raises(ssm.ArgumentError, match="only a linear layer has a kernel, got MinGRU"):
        ssm.MinGRU(2, 3).kernel(torch.arange(3.0))


def test_blocks_divide_the_width() -> None:
    with pytest.raises(ssm.ArgumentError, match=r"^blocks: expected a divisor of d_model, 6, got 4"):
        ssm.RGLRU(6, blocks=4)
    with pytest.raises(ssm.ArgumentError, match=r"^timescales: expected 0 < shortest <= longest"):
        ssm.MinGRU(2, 3, timescales=(5.0, 1.0))


@pytest.mark.parametrize("name", ["min-gru", "min-lstm"])
def test_modes_have_the_time_scales_of_a_zero_input(name: str) -> None:
    report = ssm.report_modes(LAYERS[name](timescales=(2.0, 250.0)))
    torch.testing.assert_close(
        torch.tensor(report.time_scale), torch.tensor([2.0, 10.0, 50.0, 250.0]).double(), rtol=1e-3, atol=0
    )
    assert report.intact()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("reset", [False, True])
def test_the_transition_of_a_sequence_is_affine_in_the_state(name: str, reset: bool) -> None:
    """What joins the parts of a sequence that several devices computed."""
    torch.manual_seed(0)
    layer, x = LAYERS[name]().double(), torch.randn(3, 9, 4, dtype=torch.float64)
    state = torch.randn_like(layer.initial_state(3))
    options = {"lengths": torch.tensor([9, 4, 0]), "dt": torch.rand(3, 9, dtype=torch.float64)}
    cut = torch.zeros(3, 9, dtype=torch.bool)
    cut[0, 5] = True
    options["reset"] = cut if reset else None
    factor, offset = layer.transition(x, **options)
    torch.testing.assert_close(factor * state + offset, layer(x, state, **options)[1])


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("rg-lru", "selective")])
def test_a_step_of_length_zero_changes_nothing(name: str) -> None:
    layer, state = LAYERS[name](), torch.randn(2, 4)
    assert torch.equal(layer(1e4 * torch.randn(2, 3, 4), state, dt=0.0)[1], state)


WIDE = {
    "min-gru": lambda: ssm.MinGRU(4, 20), "min-lstm": lambda: ssm.MinLSTM(4, 20), "rg-lru": lambda: ssm.RGLRU(20),
    "hgrn": lambda: ssm.HGRN(20), "selective": lambda: ssm.SelectiveSSM(20),
}  # fmt: skip
"""Layers whose channels fill a vector, so that the kernels run."""


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("bias", [-20.0, 20.0])
def test_gradients_of_closed_gates_are_accurate(name: str, bias: float) -> None:
    """A gate that is almost 0 or 1 has a small gradient, which 1 - sigmoid(z) or 1 + expm1(z) would round to 0."""
    torch.manual_seed(0)
    layer = WIDE[name]()
    x = torch.randn(2, 3, layer.d_input)

    def gradient(kind: torch.dtype) -> torch.Tensor:
        own = copy.deepcopy(layer).to(kind)
        torch.nn.init.constant_(own.gate_bias, bias)
        state = own(x.to(kind), torch.ones_like(own.initial_state(2)))[1]
        return torch.autograd.grad(state.sum(), own.gate_bias)[0].double()

    truth = gradient(torch.float64)
    torch.testing.assert_close(gradient(torch.float32), truth, rtol=1e-3, atol=1e-6 * truth.abs().max().item())


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("map", ["softplus", "direct"])
def test_the_slowest_decay_over_a_range_of_inputs(name: str, map: str) -> None:
    torch.manual_seed(0)
    layer = (LAYERS[name] if map == "softplus" else WIDE[name])().with_map(map).double()
    if map == "direct":
        torch.nn.init.normal_(layer.w)  # some states grow
    bound, x = 1.5, 2 * torch.rand(1, 2000, layer.d_input, dtype=torch.float64) - 1
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * min(layer.d_input, 8)).double()
    found, slowest = layer.decays(bound * x)[0].amax(0), layer.slowest_decays(bound)
    assert bool((found <= slowest * (1 + 1e-12)).all())
    assert torch.equal(layer.slowest_decays(0.0), layer.decays(0 * x[:, :1])[0, 0])
    if layer.d_input <= 8 and name != "min-lstm":
        torch.testing.assert_close(layer.decays(bound * corners[None])[0].amax(0), slowest)
