"""Which form of the GPU scan is chosen, as for an H200."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from stablessm.scan.triton import forms

FLOAT, CPU = torch.float32, torch.device("cpu")


def form(*shape: int, dtype: torch.dtype = FLOAT, per_step: bool = True, backward: bool = False) -> forms.Form:
    batch, steps, channels = shape
    return forms.choose(forms.Task((batch, steps, channels), dtype, per_step, backward, CPU))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, FLOAT, torch.float64, torch.complex64, torch.complex128], ids=str)
def test_time_is_split_where_channels_do_not_fill_the_gpu(dtype: torch.dtype, backward: bool) -> None:
    for per_step in (False, True):
        assert form(1, 16384, 64, dtype=dtype, per_step=per_step, backward=backward).window
        assert form(2, 8192, 256, dtype=dtype, per_step=per_step, backward=backward).window
        assert not form(64, 2048, 4096, dtype=dtype, per_step=per_step, backward=backward).window
        assert not form(1, 100, 64, dtype=dtype, per_step=per_step, backward=backward).window


def test_fewer_strips_have_larger_groups() -> None:
    windows = [form(batch, 65536, 64).window for batch in (64, 16, 4, 1)]
    assert windows == sorted(windows)
    assert windows[0] < windows[-1]


def test_a_chain_has_no_more_tiles_than_tickets() -> None:
    assert form(1, 1 << 29, 64).window
    assert not form(1, 1 << 30, 64).window


def test_time_is_not_split_on_amd_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(forms, "processors", lambda device: 304)
    task = forms.Task((1, 16384, 64), FLOAT, True, False, gpu)
    monkeypatch.setattr(torch.version, "hip", None)
    assert forms.choose(task).window
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not forms.choose(task).window
