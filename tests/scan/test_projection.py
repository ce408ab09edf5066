"""Matrix products by oneDNN: the values and gradients of PyTorch's linear function."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import relative_error, scattered
from torch import Tensor
from torch.nn import functional as F

from stablessm.scan import projection
from stablessm.scan.projection import project

KINDS = {
    "dense": lambda t: t, "scattered": scattered, "transposed": lambda t: t.mT.contiguous().mT,
    "expanded": lambda t: t[..., :1].expand(t.shape), "one row": lambda t: t[..., :1, :].expand(t.shape),
}  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    batch=st.sampled_from([0, 1, 3]), steps=st.sampled_from([1, 7, 50]), inputs=st.sampled_from([1, 5, 32]),
    outputs=st.sampled_from([1, 6, 40]), bias=st.booleans(), block=st.sampled_from([64, 1 << 19]),
    kinds=st.lists(st.sampled_from(list(KINDS)), min_size=3, max_size=3), seed=st.integers(0, 999),
)  # fmt: skip
def test_values_and_gradients(
    batch: int, steps: int, inputs: int, outputs: int, bias: bool, block: int, kinds: list[str], seed: int
) -> None:
    torch.manual_seed(seed)
    shapes = [(batch, steps, inputs), (outputs, inputs), (batch, steps, outputs)]
    x, weight, grad = (KINDS[kind](torch.randn(shape)) for kind, shape in zip(kinds, shapes, strict=True))
    given = [x, weight, *([torch.randn(outputs)] if bias else [])]

    def run(function: object, dtype: torch.dtype) -> list[Tensor]:
        own = [tensor.to(dtype).requires_grad_() for tensor in given]
        y = function(*own)
        return [y.detach(), *torch.autograd.grad(y, own, grad.to(dtype))]

    with mock.patch.multiple(projection, LEAST_PRODUCTS=1, BLOCK_NUMBERS=block):
        found = run(project, torch.float32)
    for ours, truth in zip(found, run(F.linear, torch.float64), strict=True):
        assert ours.shape == truth.shape
        assert relative_error(ours, truth, 1e-6) <= 1e-5


def test_second_derivatives_and_transforms() -> None:
    x, weight = torch.randn(4, 5, 3), torch.randn(6, 3)
    with mock.patch.object(projection, "LEAST_PRODUCTS", 1):
        many = torch.vmap(lambda one: project(one, weight))(x)
        torch.testing.assert_close(many, F.linear(x, weight))
        slope = torch.func.jvp(lambda v: project(v, weight), (x,), (torch.ones_like(x),))[1]
        torch.testing.assert_close(slope, weight.sum(1).expand(slope.shape))

        def curvature(function: object) -> tuple[Tensor, ...]:
            own = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
            first = torch.autograd.grad(function(*own).pow(3).sum(), own, create_graph=True)
            return torch.autograd.grad(sum(part.square().sum() for part in first), own)

        for ours, truth in zip(curvature(project), curvature(F.linear), strict=True):
            assert relative_error(ours, truth, 1e-6) <= 1e-4


@pytest.mark.skipif(projection.onednn_linear is None, reason="no oneDNN")
def test_large_products_run_on_onednn_and_others_do_not() -> None:
    x, weight = torch.randn(64, 128), torch.randn(256, 128)
    with mock.patch.object(projection, "onednn_linear", side_effect=projection.onednn_linear) as called:
        project(x, weight)
        assert called.call_count == 1
        project(x[:1, :1], weight[:, :1])
        assert project(torch.randn(4096), torch.randn(512, 4096)).shape == (512,)  # one sample, without rows
        project(x.double(), weight.double())
        with torch.autocast("cpu", torch.bfloat16):
            assert project(x, weight).dtype == torch.bfloat16
        assert called.call_count == 1
