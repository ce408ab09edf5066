from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ssm_cases import draw_layer

from stablessm.scan import ssm_scan

backend = pytest.importorskip("stablessm.scan.cpu.ssm")


@given(tiles=st.integers(0, 64), batch=st.integers(0, 300), steps=st.integers(0, 10**5), cores=st.integers(1, 256))
def test_there_are_no_more_groups_than_pay(tiles: int, batch: int, steps: int, cores: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "CORES", cores)
        groups = backend._groups(tiles, batch, steps)
    assert groups == 1 or (groups <= batch and groups * tiles <= backend.UNITS)
    assert groups == 1 or batch * steps >= groups * backend.GROUP_STEPS
    if tiles and tiles % cores == 0:
        assert groups == 1  # every core has its share without


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("cores", [1, 2, 3, 16])
def test_gradients_are_the_same_in_any_number_of_groups(
    cores: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same bits on any number of threads."""
    monkeypatch.setattr(backend, "CORES", cores)
    tensors, _ = draw_layer(dtype, 7, 700, 20, 3, skip=True, initial=True, seed=1)
    assert backend._groups(2, 7, 700) == {1: 1, 2: 1, 3: 3, 16: 4}[cores]

    def gradients(name: str, wide: bool, threads: int) -> list[torch.Tensor]:
        inputs = [tensor.to(torch.promote_types(tensor.dtype, torch.float64)) if wide else tensor for tensor in tensors]
        inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(threads)
            y, final = ssm_scan(*inputs, backend=name)
            return list(torch.autograd.grad(y.square().sum() + final.abs().sum(), inputs))
        finally:
            torch.set_num_threads(before)

    ours = gradients("cpu", wide=False, threads=1)
    assert all(torch.equal(u, v) for u, v in zip(ours, gradients("cpu", wide=False, threads=3), strict=True))
    for value, truth in zip(ours, gradients("reference", wide=True, threads=1), strict=True):
        assert (value - truth).abs().max() <= 1e-5 * truth.abs().max()
