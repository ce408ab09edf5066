"""How a compiled kernel is found again, without a GPU: the tensors only say that they are on one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stablessm.scan.triton import launch as launch_module
from stablessm.scan.triton.launch import Launch


def test_a_kernel_is_compiled_for_what_it_is_launched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[Any, ...]] = []
    arguments: list[tuple[Any, ...]] = []

    def compiled(self: Launch, key: tuple[Any, ...], tensors: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        dtypes = tuple(tensor.dtype for tensor in tensors)
        self._compiled[key] = (lambda *given: (launched.append(dtypes), arguments.append(given)), "code", "facts")
        return self._compiled[key]

    def on_gpu(dtype: torch.dtype, address: int = 64) -> SimpleNamespace:
        return SimpleNamespace(device=SimpleNamespace(type="cuda", index=0), dtype=dtype, data_ptr=lambda: address)

    monkeypatch.setattr(Launch, "_compile", compiled)
    monkeypatch.setattr(launch_module, "current_device", lambda: 0)
    monkeypatch.setattr(launch_module, "raw_stream", lambda index: f"stream {index}")
    launch = Launch(None, 1, (), {}, warps=1)
    short, wide = on_gpu(torch.bfloat16), on_gpu(torch.float32)
    for state in (short, wide, on_gpu(torch.float32, 65), wide):
        launch(short, state)  # type: ignore[arg-type]
    assert launched == [(short.dtype, short.dtype), *[(short.dtype, wide.dtype)] * 3]
    assert len(launch._compiled) == 3
    launch = Launch(None, 7, (5, 6), {"A": 1, "B": True}, offsets=(0, 12), warps=1)
    launch(short, wide)  # type: ignore[arg-type]
    launch(short, on_gpu(torch.float32, 68))  # type: ignore[arg-type]  # with the offset it is aligned
    constants = (None, None, None)
    assert arguments[-2] == (7, 1, 1, "stream 0", "code", "facts", *constants, 64, 64 + 12, 5, 6, 1, True)
    assert arguments[-1][9:11] == (64, 80)
    assert [key[3:] for key in launch._compiled] == [(True, False), ()]
