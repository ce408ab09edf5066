"""Products of matrices, channel by channel, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("neither a GPU nor Triton's interpreter", allow_module_level=True)
matmul = pytest.importorskip("stablessm.scan.triton.matmul")

SIZE = st.integers(1, 70)


@settings(max_examples=6)
@given(
    rows=st.integers(1, 200), terms=SIZE, columns=SIZE, add=st.booleans(), turned=st.booleans(),
    stays=st.sampled_from([0, 128]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_a_product_has_the_accuracy_of_float32(rows, terms, columns, add, turned, stays, seed):
    torch.manual_seed(seed)
    a, out = (torch.randn(2, rows, size + 3, device=DEVICE)[..., :size] for size in (terms, columns))
    b = torch.randn(2, columns, terms, device=DEVICE).mT if turned else torch.randn(2, terms, columns, device=DEVICE)
    truth = a.double() @ b.double() + (out.double() if add else 0)
    bound = a.double().abs() @ b.double().abs() + out.double().abs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "STAYS", stays)
        matmul._launch.cache_clear()
        matmul.multiply(a, b, out, add=add)
    matmul._launch.cache_clear()
    assert bool(((out - truth).abs() <= 32 * torch.finfo(torch.float32).eps * bound).all())


@settings(max_examples=6)
@given(
    rows=st.integers(1, 200), left=SIZE, right=SIZE, part=st.sampled_from([32, 64, 1024]), seed=st.integers(0, 2**31)
)
def test_a_sum_over_rows_has_the_accuracy_of_float32(rows, left, right, part, seed):
    torch.manual_seed(seed)
    a, b = (torch.randn(3, rows, size + 3, device=DEVICE)[..., :size] for size in (left, right))
    truth, bound = a.double().mT @ b.double(), a.double().abs().mT @ b.double().abs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "PART", (part, part))
        patch.setattr(matmul, "FEW", 0)
        matmul._sum_launch.cache_clear()
        found, again = (matmul.sum_of_products(a, b) for _ in range(2))
    matmul._sum_launch.cache_clear()
    assert bool(((found - truth).abs() <= 32 * torch.finfo(torch.float32).eps * bound).all())
    assert torch.equal(found, again)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_so(value):
    a, b = torch.ones(1, 3, 70, device=DEVICE), torch.ones(1, 70, 5, device=DEVICE)
    a[0, 1, 2] = value
    out = torch.empty(1, 3, 5, device=DEVICE)
    matmul.multiply(a, b, out)
    torch.testing.assert_close(out, a @ b, equal_nan=True)


def test_either_way_to_allow_tf32_is_understood(monkeypatch):
    """After the newer one PyTorch refuses to say ``torch.get_float32_matmul_precision()``."""
    launched = []
    monkeypatch.setattr(matmul, "_launch", lambda *_: lambda *of: launched.append(of))
    monkeypatch.setattr(matmul, "_sum_launch", lambda *_: (2, lambda *of: launched.append(of)))
    setting, of = torch.backends.cuda.matmul, torch.ones(1, 2, 2, device=DEVICE)
    before = setting.fp32_precision
    try:
        for precision, products in (("ieee", 2), ("tf32", 2)):
            setting.fp32_precision = precision
            matmul.multiply(of, of, torch.empty_like(of))
            matmul.sum_of_products(of, of)
            assert len(launched) == products
    finally:
        setting.fp32_precision = before
