"""Matrix products by oneDNN and by the kernel for few rows: the values and gradients of PyTorch's linear function."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
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

    with mock.patch.multiple(projection, LEAST_PRODUCTS=1, LEAST_WEIGHTS=1, BLOCK_NUMBERS=block):
        found = run(project, torch.float32)
    for ours, truth in zip(found, run(F.linear, torch.float64), strict=True):
        assert ours.shape == truth.shape
        assert relative_error(ours, truth, 1e-6) <= 1e-5


def test_second_derivatives_and_transforms() -> None:
    x, weight = torch.randn(4, 5, 3), torch.randn(6, 3)
    with mock.patch.multiple(projection, LEAST_PRODUCTS=1, LEAST_WEIGHTS=1):
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


DTYPES = {torch.float32: 1e-6, torch.float64: 1e-15, torch.bfloat16: 8e-3}
"""Largest error of a product, as a part of the sum of the absolute values of its terms."""


def few_rows(**changes: object) -> object:
    """A context in which products of any size run on the kernel for few rows, or the test fails."""
    never = mock.Mock(side_effect=AssertionError("another way was taken"))
    return mock.patch.multiple(projection, LEAST_WEIGHTS=1, F=mock.Mock(linear=never), _product=never, **changes)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([(), (1,), (2,), (3,), (8,), (2, 4), (1, 1, 5), (9,), (4, 8)]), inputs=st.integers(1, 70),
    outputs=st.integers(1, 19), bias=st.booleans(), dtype=st.sampled_from(list(DTYPES)), threads=st.integers(1, 3),
    scale=st.sampled_from([1.0, 1e-30]), kinds=st.lists(st.sampled_from(["dense", "scattered", "expanded", "shifted"]),
    min_size=3, max_size=3), seed=st.integers(0, 999),
)  # fmt: skip
def test_few_rows(
    shape: tuple[int, ...], inputs: int, outputs: int, bias: bool, dtype: torch.dtype, threads: int, scale: float,
    kinds: list[str], seed: int,
) -> None:  # fmt: skip
    """Errors are rounding errors, and the bits of a row depend neither on the batch nor on the number of threads."""
    torch.manual_seed(seed)
    assume(torch.Size(shape).numel() <= projection.FEW_ROWS[dtype])
    kinds_of = KINDS | {"shifted": lambda t: torch.cat([t[..., :1], t], -1)[..., 1:]}
    x, weight = (scale**0.5 * torch.randn(size).to(dtype) for size in ((*shape, inputs), (outputs, inputs)))
    x, weight = kinds_of[kinds[0]](x), weight if kinds[1] == "scattered" else kinds_of[kinds[1]](weight)
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    b = kinds_of[kinds[2]](torch.randn(outputs).to(dtype)) if bias else None
    with mock.patch("stablessm.scan.cpu.product.SERIAL_BYTES", 0), few_rows():
        with mock.patch("torch.get_num_threads", return_value=threads):
            y = project(x, weight, b)
        alone = [project(row, weight, b) for row in x.reshape(-1, inputs)]
    assert (y.shape, y.dtype, y.requires_grad) == ((*shape, outputs), dtype, False)
    assert torch.equal(y.reshape(-1, outputs), torch.stack(alone))
    wide = [tensor if tensor is None else tensor.double() for tensor in (x, weight, b)]
    size = F.linear(*(tensor if tensor is None else tensor.abs() for tensor in wide))
    assert ((y.double() - F.linear(*wide)).abs() <= DTYPES[dtype] * size + torch.finfo(dtype).tiny).all()


def test_few_rows_with_infinite_and_missing_numbers() -> None:
    """Infinite and missing numbers reach the outputs that depend on them, and no others."""
    x, weight = torch.randn(2, 37), torch.randn(9, 37)
    x[1, 36], weight[4, 0], weight[5, 36] = torch.inf, torch.nan, -torch.inf
    with few_rows():
        y = project(x, weight)
    torch.testing.assert_close(y, F.linear(x, weight), equal_nan=True)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_other_products_take_another_way(dtype: torch.dtype) -> None:
    """Empty, conjugate, sparse and misshapen arguments give the result or the error of the linear function."""
    x, weight = torch.randn(3, 5).to(dtype), torch.randn(4, 5).to(dtype)
    never = mock.Mock()
    never.cpu_kernels.side_effect = AssertionError("the kernel was called")
    negative = torch.view_as_complex(torch.randn(3, 5, 2)).conj().imag
    same = [
        (x[:0], weight), (x, weight[:0]), (x[:, :0], weight[:, :0]), (x, weight.mT.contiguous().mT), (x, weight[0]),
        *([(negative, weight)] if dtype == torch.float32 else []),
    ]  # fmt: skip
    with mock.patch.multiple(projection, LEAST_WEIGHTS=1, LEAST_PRODUCTS=1 << 40, backends=never):
        for pair in same:
            torch.testing.assert_close(project(*pair), F.linear(*pair))
        for wrong in ((x, weight[:, 1:]), (x, weight, weight[0])):
            with pytest.raises(RuntimeError):
                project(*wrong)
        trained = weight.clone().requires_grad_()
        assert project(x, trained).requires_grad
        with torch.autocast("cpu", torch.bfloat16):
            project(x, weight)


def test_few_rows_run_on_the_kernel() -> None:
    """With gradients disabled, or needed by no argument."""
    x, layer = torch.randn(1, 512), torch.nn.Linear(512, 512)
    with few_rows(), torch.no_grad():
        project(x, layer.weight, layer.bias)
    with few_rows():
        project(x, layer.weight.detach())
    compiled = torch.compile(lambda v: project(v, layer.weight), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), F.linear(x, layer.weight))
