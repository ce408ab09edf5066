"""Every backend against the float64 reference: values and gradients, whatever the input looks like."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scan_cases import (
    DIFFERENTIATED,
    LENGTHS,
    TOLERANCE,
    chained,
    check_against_reference,
    device_of,
    draw,
    draw_decay,
)
from torch import Tensor

from stablessm import linear_scan, scan
from stablessm.scan.cpu import linear as cpu_linear

NATIVE = [name for name in scan.NAMES if name not in ("reference", "triton")]
"""The backends that are fast enough for every case; Triton runs in its interpreter and has smaller cases below."""
LONGEST = max(LENGTHS)
CPU_CASES = [
    pytest.param(dtype, length, marks=pytest.mark.slow if length == LONGEST and dtype.itemsize != 8 else [])
    for dtype in TOLERANCE
    for length in LENGTHS
]
"""Every length, the longest one with the dtypes of eight bytes."""
INTERPRETED = [torch.float32, torch.complex64, torch.bfloat16]
"""The dtypes with which every line of the Triton kernels runs; the others are among the slow tests."""


@st.composite
def cases(draw_from: st.DrawFn, channels: tuple[int, ...], most_batch: int) -> dict[str, object]:
    """Everything about a call but its backend, dtype and length."""
    return {
        "decay_rank": draw_from(st.sampled_from([1, 2, 3])),
        "batch": draw_from(st.integers(1, most_batch)),
        "channels": draw_from(st.sampled_from(channels)),
        "initial": draw_from(st.booleans()),
        "reset": draw_from(st.sampled_from([None, 1, 2])),
        "reverse": draw_from(st.booleans()),
        "contiguous": draw_from(st.booleans()),
        "seed": draw_from(st.integers(0, 2**31)),
    }


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize(("dtype", "length"), CPU_CASES, ids=str)
@settings(max_examples=4)
@given(case=cases(channels=(1, 3, 16, 33, 70), most_batch=3))
def test_matches_reference(backend: str, dtype: torch.dtype, length: int, case: dict[str, Any]) -> None:
    check_against_reference(backend, dtype, length, **case)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(channels=(16, 32, 64), most_batch=3))
def test_stores_that_bypass_the_cache(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, case: dict[str, Any]
) -> None:
    monkeypatch.setattr(cpu_linear, "STREAM_BYTES", 0)
    check_against_reference("cpu", dtype, 33, **case)


def small_case(dtype: torch.dtype, place: int, channels: int, most_batch: int = 2) -> dict[str, Any]:
    """A case by the dtype and a place among three: each kind of decay and of reset meets each dtype and each place."""
    row = INTERPRETED.index(dtype)
    chance = random.Random(f"{row} {place}")
    initial, reverse, contiguous, two = (chance.random() < 0.5 for _ in range(4))
    return {
        "decay_rank": 1 + (row + place) % 3,
        "reset": (None, 1, 2)[(row + 2 * place) % 3],
        "batch": min(1 + two, most_batch),
        "channels": channels,
        "initial": initial,
        "reverse": reverse,
        "contiguous": contiguous,
        "seed": place,
    }


@pytest.mark.parametrize("length", [0, 1, 2, 63])
@pytest.mark.parametrize("dtype", INTERPRETED, ids=str)
def test_triton_matches_reference(dtype: torch.dtype, length: int) -> None:
    place = LENGTHS.index(length)
    check_against_reference("triton", dtype, length, **small_case(dtype, place, (1, 70, 3, 70)[place]))


@pytest.mark.parametrize(
    ("dtype", "length", "channels"),
    [
        *((dtype, 1000, 3) for dtype in INTERPRETED),
        (torch.bfloat16, LONGEST, 1),
        *(pytest.param(dtype, LONGEST, 1, marks=pytest.mark.slow) for dtype in INTERPRETED[:2]),
    ],
    ids=str,
)
def test_triton_matches_reference_over_many_tiles(dtype: torch.dtype, length: int, channels: int) -> None:
    check_against_reference("triton", dtype, length, **small_case(dtype, length % 7, channels, most_batch=1))


@pytest.mark.parametrize(("place", "channels"), list(enumerate([1, 3, 16])))
@pytest.mark.parametrize("dtype", INTERPRETED, ids=str)
def test_triton_matches_reference_in_a_chain(dtype: torch.dtype, place: int, channels: int) -> None:
    """Groups of four tiles of 16 steps, of which the last is not full, and at most two strips of channels."""
    channels = min(channels, 64 // dtype.itemsize)
    with chained(rows=16):
        check_against_reference("triton", dtype, 139, **small_case(dtype, place, channels))


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@settings(max_examples=5)
@given(case=cases(channels=(1, 3, 16, 70), most_batch=2))
def test_triton_matches_reference_in_many_cases(dtype: torch.dtype, length: int, case: dict[str, Any]) -> None:
    check_against_reference("triton", dtype, length, **case)


@pytest.mark.parametrize("backend", DIFFERENTIATED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("decay_shape", [(2,), (4, 2), (2, 4, 2)])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradcheck(backend: str, dtype: torch.dtype, decay_shape: tuple[int, ...], reverse: bool) -> None:
    generator, device = torch.Generator().manual_seed(1), device_of(backend)
    inputs = (
        draw_decay(decay_shape, dtype, generator),
        draw((2, 4, 2), dtype, generator),
        draw((2, 2), dtype, generator),
    )
    inputs = tuple(tensor.to(device).requires_grad_() for tensor in inputs)
    reset = torch.tensor([[False, False, True, False], [True, False, False, True]], device=device)

    def run(*tensors: Tensor) -> Tensor:
        return linear_scan(*tensors, reset=reset, reverse=reverse, backend=backend)

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("backend", scan.NAMES)
@pytest.mark.parametrize("reverse", [False, True])
def test_nan_before_a_reset_does_not_leak(backend: str, reverse: bool) -> None:
    drive = torch.ones(1, 6, 2, device=device_of(backend))
    drive[:, 4 if reverse else 1] = torch.nan
    reset = torch.arange(6, device=drive.device) == (2 if reverse else 3)
    decay = torch.full((6, 2), 0.5, device=drive.device, requires_grad=True)
    states = linear_scan(decay, drive, reset=reset, reverse=reverse, backend=backend)
    kept = slice(0, 3) if reverse else slice(3, 6)
    assert torch.isfinite(states[:, kept]).all()
    (gradient,) = torch.autograd.grad(states[:, kept].sum(), decay)
    assert torch.isfinite(gradient[kept]).all()


@pytest.mark.parametrize("backend", scan.NAMES)
def test_same_input_same_bits(backend: str) -> None:
    generator, device = torch.Generator().manual_seed(2), device_of(backend)
    interpreted = backend == "triton" and device == "cpu"  # slow
    batch, length, channels = (1, 70, 3) if interpreted else (4, 300, 70)
    decay = draw_decay((channels,), torch.float32, generator).to(device).requires_grad_()
    drive = draw((batch, length, channels), torch.float32, generator).to(device).requires_grad_()

    def bits(threads: int) -> list[bytes]:
        torch.set_num_threads(threads)
        states = linear_scan(decay, drive, backend=backend)
        gradients = torch.autograd.grad(states.square().sum(), (decay, drive))
        return [tensor.detach().cpu().numpy().tobytes() for tensor in (states, *gradients)]

    assert bits(1) == bits(1) == bits(3)


@pytest.mark.parametrize("backend", [*scan.NAMES, "auto"])
@pytest.mark.parametrize(
    ("argument", "message", "change"),
    [
        ("drive", "3 dimensions", {"drive": torch.zeros(5, 3)}),
        ("drive", "floating point or complex", {"drive": torch.zeros(2, 5, 3, dtype=torch.int64)}),
        ("decay", r"\(3,\) or \(5, 3\) or \(2, 5, 3\).*got shape \(4,\)", {"decay": torch.zeros(4)}),
        ("decay", r"got shape \(2, 3\)", {"decay": torch.zeros(2, 3)}),
        ("decay", "a real dtype.*float32, got torch.complex64", {"decay": torch.zeros(3, dtype=torch.complex64)}),
        ("initial", r"\(2, 3\).*got shape \(3,\)", {"initial": torch.zeros(3)}),
        ("reset", "torch.bool", {"reset": torch.zeros(5)}),
        ("reset", r"\(5,\) or \(2, 5\), got shape \(4,\)", {"reset": torch.zeros(4, dtype=torch.bool)}),
        ("drive", r"finite values, got nan at index \(0, 1, 2\)", {"drive": "nan", "check_finite": True}),
        ("decay", r"finite values, got inf at index \(1,\)", {"decay": "inf", "check_finite": True}),
    ],
)
def test_bad_input_is_named(backend: str, argument: str, message: str, change: dict[str, object]) -> None:
    arguments: dict[str, object] = {"decay": torch.zeros(3), "drive": torch.zeros(2, 5, 3)} | change
    if change.get("drive") == "nan":
        arguments["drive"] = torch.zeros(2, 5, 3)
        arguments["drive"][0, 1, 2] = torch.nan
    if change.get("decay") == "inf":
        arguments["decay"] = torch.tensor([0.0, torch.inf, 0.0])
    with pytest.raises(ValueError, match=rf"^{argument}: expected .*{message}"):
        linear_scan(**arguments, backend=backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("backend", scan.NAMES)
def test_the_decay_of_a_step_that_is_reset_is_not_looked_at(backend: str, dtype: torch.dtype) -> None:
    decay, drive = torch.full((1, 4, 2), 0.5, dtype=dtype), torch.ones(1, 4, 2, dtype=dtype)
    decay[0, 2] = torch.nan
    decay.requires_grad_()
    states = linear_scan(decay, drive, reset=torch.tensor([False, False, True, False]), backend=backend)
    assert states[0, :, 0].tolist() == [1, 1.5, 1, 1.5]
    (grad,) = torch.autograd.grad(states.sum(), decay, torch.ones((), dtype=dtype))
    assert grad[0, :, 0].tolist() == [0, 1, 0, 1]
