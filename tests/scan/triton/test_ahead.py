"""Kernels of an operation are compiled in parallel, each once, when the first is needed."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("triton")
from stablessm.scan.protocol import DiagonalSSM, Recurrence
from stablessm.scan.triton import ahead, matmul, operators

DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_started", {})
    monkeypatch.setattr(ahead, "_operation", None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())


def recorded(run: object, *args: object) -> list[str]:
    """The names of the kernels that a function launches with meta tensors."""
    launches: list = []
    token = ahead.recorded.set(launches)
    try:
        run(*args)  # type: ignore[operator]
    finally:
        ahead.recorded.reset(token)
    return [signature[0].fn.__name__ for signature, _ in launches]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the interpreter names its kernels otherwise")
def test_an_operation_with_meta_tensors_launches_what_it_launches_on_a_gpu(monkeypatch):
    monkeypatch.setattr(matmul, "_has_wgmma", lambda _: True)  # without a GPU there is nobody to ask
    drive = torch.randn(2, 50, 8)
    decay = torch.rand(2, 50, 8)
    forward = recorded(operators._scan, Recurrence(decay, None, None, False), drive)
    both = recorded(operators._scan, Recurrence(decay.requires_grad_(), None, None, False), drive)
    assert forward
    assert both[: len(forward)] == forward
    assert len(both) > len(forward)
    x, factor = torch.randn(2, 200, 3), torch.randn(3, 4, dtype=torch.complex64)
    layer = DiagonalSSM(x, factor.requires_grad_(), factor, factor, torch.randn(3), None, None, None)
    found = recorded(operators._layer, layer)
    assert {"generate_kernel", "enter_kernel", "leave_kernel", "collect_kernel"} <= set(found)


def test_kernels_are_compiled_once_and_at_the_same_time(monkeypatch):
    """Each waits until all three are being compiled, which a loop would never reach."""
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 4)
    together, made = threading.Barrier(3, timeout=20), []

    def compiling(name: str, alone: bool = False) -> object:
        def compile() -> str:
            if name not in made:
                if not alone:
                    together.wait()
                made.append(name)
            return name

        return compile

    def operation() -> None:
        launches = ahead.recorded.get()
        assert launches is not None
        launches.extend((name, compiling(name)) for name in ("first", "second", "third", "second"))  # type: ignore[arg-type]

    ahead.running(operation)
    assert ahead.compiled("first", compiling("first"), DEVICE) == "first"  # type: ignore[arg-type]
    assert [ahead.compiled(name, compiling(name), DEVICE) for name in ("second", "third")] == ["second", "third"]  # type: ignore[arg-type]
    assert sorted(made) == ["first", "second", "third"]
    assert ahead.compiled("fourth", compiling("fourth", alone=True), DEVICE) == "fourth"  # type: ignore[arg-type]


def test_an_operation_that_needs_memory_is_compiled_kernel_by_kernel():
    def operation() -> None:
        raise NotImplementedError("meta tensors have no values")

    ahead.running(operation)
    assert ahead.compiled("alone", lambda: "made", DEVICE) == "made"


def test_an_error_of_the_compiler_is_raised_where_the_kernel_is_launched():
    def fails() -> None:
        raise RuntimeError("no such instruction")

    def operation() -> None:
        ahead.recorded.get().append(("broken", fails))  # type: ignore[union-attr]

    ahead.running(operation)
    with pytest.raises(RuntimeError, match="no such instruction"):
        ahead.compiled("broken", fails, DEVICE)


def test_a_launch_of_meta_tensors_outside_is_refused():
    from stablessm.layers import triton_channels

    state = torch.empty(1, 2, 3, dtype=torch.complex64, device="meta")
    x = torch.empty(1, 2, device="meta")
    with pytest.raises(RuntimeError, match="cannot be launched with meta tensors"):
        triton_channels.step(x, (state[0], state[0]), torch.empty(2, 3, 2, device="meta"), x[0], state)
