"""Gated recurrences: the kernels give the values and gradients of gates followed by a scan in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import relative_error, scattered
from torch import Tensor

import stablessm as ssm
from stablessm.scan.cpu.gated_kernels import FORMS
from stablessm.scan.gated import _by_scan, _fused, gated_scan
from stablessm.scan.protocol import Gated

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15, deadline=None)
@given(
    batch=st.sampled_from([0, 1, 3, 17]), steps=st.sampled_from([0, 1, 9, 40]), channels=st.sampled_from([3, 16, 35]),
    dtype=st.sampled_from(list(TOLERANCE)), initial=st.booleans(), reset=st.booleans(), below_one=st.booleans(),
    contiguous=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
def test_values_and_gradients(
    form: str, batch: int, steps: int, channels: int, dtype: torch.dtype, initial: bool, reset: bool, below_one: bool,
    contiguous: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    drawn = [3 * torch.randn(batch, steps, FORMS[form].gates * channels), -torch.rand(channels) - 0.01]
    drawn += [torch.randn(batch, steps, channels) if FORMS[form].direct else None]
    drawn += [torch.randn(batch, channels) if initial else None]
    cut, grad = torch.rand(batch, steps) < 0.2 if reset else None, torch.randn(batch, steps, channels)

    def run(function: object, kind: torch.dtype) -> list[Tensor]:
        own = [
            None if t is None else (t if contiguous else scattered(t)).to(kind).detach().requires_grad_() for t in drawn
        ]
        states = function(Gated(form, *own, cut, below_one))
        return [states.detach(), *torch.autograd.grad(states, [t for t in own if t is not None], grad.to(kind))]

    for ours, truth in zip(run(gated_scan, dtype), run(_by_scan, torch.float64), strict=True):
        assert ours.dtype == dtype
        assert relative_error(ours, truth, 1e-6) <= TOLERANCE[dtype]


def test_the_kernels_run_where_they_can() -> None:
    layer = Gated("min-gru", torch.randn(2, 5, 32), -torch.rand(16), None, None, None, True)
    assert _fused(layer)
    assert not _fused(layer._replace(gates=layer.gates[..., :6], rate=layer.rate[:3]))


LAYERS = {
    "gru": lambda: ssm.MinGRU(3, 20), "lstm": lambda: ssm.MinLSTM(3, 20, 2), "hgrn": lambda: ssm.HGRN(16),
    "rg-lru": lambda: ssm.RGLRU(16), "blocks": lambda: ssm.RGLRU(16, blocks=2),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_transforms_and_compilation(name: str) -> None:
    layer = LAYERS[name]().double()
    x = torch.randn(2, 6, layer.d_input, dtype=torch.float64)
    y, _ = layer(x)
    compiled, _ = torch.compile(layer, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(compiled, y)
    many, _ = torch.vmap(lambda one: layer(one))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(many[0], y)
    assert torch.autograd.gradgradcheck(lambda x: layer(x)[0], x.requires_grad_(), fast_mode=True)
