"""Every backend of the fused layer against the float64 reference: values and gradients, for inputs of every kind."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import DIFFERENTIATED, device_of, relative_error
from ssm_cases import BACKENDS, LENGTHS, TOLERANCE, check_against_reference, draw_layer
from torch import Tensor

from stablessm import scan, ssm_scan
from stablessm.scan import ssm_blocked
from stablessm.scan.cpu import ssm as cpu_ssm

if scan.why_not("triton") is None:
    from stablessm.scan.triton import matmul
    from stablessm.scan.triton import ssm as triton_ssm

FAST = [name for name in BACKENDS if name != "reference"]


@st.composite
def cases(draw_from: st.DrawFn, channels: tuple[int, ...], states: tuple[int, ...]) -> dict[str, object]:
    """Everything about a call but its backend, dtype and length."""
    return {
        "batch": draw_from(st.integers(1, 3)),
        "channels": draw_from(st.sampled_from(channels)),
        "states": draw_from(st.sampled_from(states)),
        "skip": draw_from(st.booleans()),
        "initial": draw_from(st.booleans()),
        "reset": draw_from(st.sampled_from([None, 1, 2])),
        "lengths": draw_from(st.booleans()),
        "contiguous": draw_from(st.booleans()),
        "seed": draw_from(st.integers(0, 2**31)),
    }


@pytest.mark.parametrize("backend", [name for name in FAST if name != "triton"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@settings(max_examples=3)
@given(case=cases(channels=(1, 3, 16, 35), states=(1, 2, 5, 9)))
def test_matches_reference(backend: str, dtype: torch.dtype, length: int, case: dict[str, Any]) -> None:
    check_against_reference(backend, dtype, length, **case)


def interpreted(batch: int, channels: int, states: int, given: str, seed: int = 0) -> dict[str, Any]:
    """A small case: Triton's interpreter is slow. ``given`` names what the call has."""
    words = given.split()
    reset = 2 if "resets" in words else 1 if "reset" in words else None
    flags = {flag: flag in words for flag in ("skip", "initial", "lengths", "contiguous")}
    return {"batch": batch, "channels": channels, "states": states, "reset": reset, "seed": seed, **flags}


@pytest.mark.parametrize(
    ("dtype", "length", "case"),
    [
        (torch.float64, 0, interpreted(2, 3, 1, "initial")),
        (torch.complex64, 0, interpreted(1, 1, 5, "skip lengths contiguous")),
        (torch.float64, 1, interpreted(1, 3, 5, "skip resets")),
        (torch.complex64, 1, interpreted(2, 3, 1, "initial contiguous")),
        (torch.float32, 65, interpreted(2, 1, 5, "skip initial reset lengths")),
        (torch.complex128, 65, interpreted(2, 3, 1, "skip initial resets contiguous")),
    ],
    ids=str,
)
def test_triton_matches_reference(dtype: torch.dtype, length: int, case: dict[str, Any]) -> None:
    check_against_reference("triton", dtype, length, **case)


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 1, 65, 140])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@settings(max_examples=5)
@given(case=cases(channels=(1, 3), states=(1, 5, 40)))
def test_triton_matches_reference_in_many_cases(dtype: torch.dtype, length: int, case: dict[str, Any]) -> None:
    check_against_reference("triton", dtype, length, **case)


@pytest.mark.parametrize(
    ("dtype", "length", "large", "case"),
    [
        (torch.float32, 64, 2**23, interpreted(2, 1, 1, "skip contiguous")),
        (torch.float32, 70, 0, interpreted(1, 3, 5, "initial")),
        (torch.float32, 140, 0, interpreted(1, 3, 40, "skip initial")),
        (torch.complex64, 64, 0, interpreted(1, 2, 1, "skip initial")),
        (torch.complex64, 130, 2**23, interpreted(2, 1, 5, "initial contiguous")),
        (torch.complex64, 130, 2**23, interpreted(1, 1, 40, "")),
        pytest.param(torch.complex64, 140, 0, interpreted(2, 3, 40, "skip initial"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_triton_chunks_match_reference(dtype: torch.dtype, length: int, large: int, case: dict[str, Any]) -> None:
    """What is neither cut nor padded goes in chunks, with a rest; a small input is kept, a large one done in parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_ssm, "LARGE", large)
        check_against_reference("triton", dtype, length, **case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_triton_sums_over_many_chunks(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """More chunks than are walked at once, more than one tile of them, and more than one part of their sum."""
    monkeypatch.setattr(matmul, "PART", (32, 32))
    monkeypatch.setattr(matmul, "FEW", 0)
    matmul._sum_launch.cache_clear()
    batch, chunks = 8, triton_ssm.WALK_ROWS + 1
    assert batch * chunks > matmul.ROWS
    check_against_reference("triton", dtype, 64 * chunks - 5, **interpreted(batch, 1, 3, "skip initial contiguous"))
    matmul._sum_launch.cache_clear()


@pytest.mark.parametrize("length", [0, 1, 64, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
@settings(max_examples=3)
@given(case=cases(channels=(1, 3), states=(1, 5)))
def test_blocks_of_a_scan_match_reference(dtype: torch.dtype, length: int, case: dict[str, Any]) -> None:
    """The form for backends whose kernels do not do everything, under the operator in the place of one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("forward", "backward"):
            patch.setattr(cpu_ssm, name, partial(getattr(ssm_blocked, name), backend="cpu"))
        check_against_reference("cpu", dtype, length, **case)


@pytest.mark.parametrize("backend", DIFFERENTIATED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradcheck(backend: str, dtype: torch.dtype) -> None:
    tensors, _ = draw_layer(dtype, 2, 5, 2, 2, skip=True, initial=True, seed=1)
    device = device_of(backend)
    inputs = tuple(tensor.to(device).requires_grad_() for tensor in tensors)
    reset = torch.tensor([[False, False, True, False, False], [True, False, False, False, True]], device=device)
    lengths = torch.tensor([5, 3], device=device)

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return ssm_scan(*tensors, reset=reset, lengths=lengths, backend=backend)

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_leaks_out_of_padding_or_over_a_reset(backend: str) -> None:
    tensors, _ = draw_layer(torch.complex64, 2, 70, 3, 2, skip=True, initial=True, seed=2)
    tensors = [tensor.to(device_of(backend)) for tensor in tensors]
    lengths, reset = torch.tensor([40, 0]), torch.arange(70) == 20
    lengths, reset = lengths.to(tensors[0].device), reset.to(tensors[0].device)
    x = tensors[0].clone()
    x[0, 40:], x[1], x[0, 10] = torch.nan, torch.nan, torch.nan
    inputs = [tensor.requires_grad_() for tensor in (x, *tensors[1:])]
    y, final = ssm_scan(*inputs, reset=reset, lengths=lengths, backend=backend)
    assert not y[0, 40:].any()
    assert not y[1].any()
    assert torch.isfinite(y[:, 20:]).all()
    assert torch.isfinite(y[:, :10]).all()
    assert torch.equal(final[1], inputs[-1][1])
    upstream = torch.ones_like(y)
    upstream[0, 40:] = torch.nan
    (d_x,) = torch.autograd.grad((y[:, 20:], final), inputs[:1], (upstream[:, 20:], torch.ones_like(final)))
    assert torch.isfinite(d_x).all()
    assert not d_x[0, 40:].any()
    clean = [torch.nan_to_num(x.detach()), *tensors[1:]]
    expected, _ = ssm_scan(*clean, reset=reset, lengths=lengths, backend="reference")
    torch.testing.assert_close(y[:, 20:], expected[:, 20:])


def test_any_strides() -> None:
    options: dict[str, Any] = {"skip": True, "initial": True, "reset": None, "lengths": False, "contiguous": False}
    check_against_reference("cpu", torch.complex64, 65, batch=2, channels=3, states=2, seed=5, **options)


@pytest.mark.parametrize("backend", FAST)
def test_same_input_same_bits(backend: str) -> None:
    slow = backend == "triton" and device_of(backend) == "cpu"  # interpreted
    size = (1, 70, 2, 2) if slow else (5, 300, 40, 6)
    tensors, _ = draw_layer(torch.complex64, *size, skip=True, initial=True, seed=3)
    inputs = [tensor.to(device_of(backend)).requires_grad_() for tensor in tensors]

    def bits(threads: int) -> list[bytes]:
        torch.set_num_threads(threads)
        y, final = ssm_scan(*inputs, backend=backend)
        gradients = torch.autograd.grad(y.square().sum() + final.abs().sum(), inputs)
        return [tensor.detach().cpu().numpy().tobytes() for tensor in (y, final, *gradients)]

    assert bits(1) == bits(1) == bits(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("drive", ["noise", "ones"])
def test_float32_is_accurate_over_a_long_time(dtype: torch.dtype, drive: str) -> None:
    """|decay| up to 1 - 1e-6, over 1e5 steps: values and gradients to 1e-5 of the largest (they reach 1e-6)."""
    tensors, _ = draw_layer(dtype, 1, 100_000, 2, 3, skip=True, initial=True, seed=4)
    modulus = 1 - torch.logspace(-6, -1, 6, dtype=torch.float64).reshape(2, 3)
    angle = torch.logspace(-6, 0, 6, dtype=torch.float64).reshape(2, 3)
    tensors[1] = (torch.polar(modulus, angle) if dtype.is_complex else modulus).to(dtype)
    if drive == "ones":
        tensors[0] = torch.ones_like(tensors[0])
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}

    def run(tensors: list[Tensor]) -> list[Tensor]:
        inputs = [tensor.requires_grad_() for tensor in tensors]
        y, final = ssm_scan(*inputs, backend="cpu")
        upstream = (
            torch.ones_like(y) if drive == "ones" else y.detach() / y.abs().max().item(),
            torch.ones_like(final),
        )
        return [y.detach(), final.detach(), *torch.autograd.grad((y, final), inputs, upstream)]

    ours = run([tensor.clone() for tensor in tensors])
    truth = run([tensor.to(wide[tensor.dtype]) for tensor in tensors])
    assert max(relative_error(*pair) for pair in zip(ours, truth, strict=True)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_float32_is_accurate_over_a_million_steps(dtype: torch.dtype) -> None:
    modulus = 1 - torch.tensor([[1e-6, 1e-5, 1e-3]], dtype=torch.float64)
    angle = torch.tensor([[1e-6, 1e-4, 1.0]], dtype=torch.float64)
    decay = (torch.polar(modulus, angle) if dtype.is_complex else modulus).to(dtype)
    x, one = torch.randn(1, 1_000_000, 1), torch.ones(1, 3, dtype=dtype)
    y, final = ssm_scan(x, decay, one, one, backend="cpu")
    wide = torch.complex128 if dtype.is_complex else torch.float64
    true_y, true_final = ssm_scan(x.double(), decay.to(wide), one.to(wide), one.to(wide), backend="cpu")
    assert relative_error(y, true_y) < 1e-5
    assert relative_error(final, true_final) < 1e-5


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize(
    ("argument", "message", "change"),
    [
        ("x", "3 dimensions", {"x": torch.zeros(5, 3)}),
        ("x", "a real dtype", {"x": torch.zeros(2, 5, 3, dtype=torch.complex64)}),
        ("x", "floating point", {"x": torch.zeros(2, 5, 3, dtype=torch.int64)}),
        ("decay", r"\(3, N\) or \(N,\).*got shape \(4, 2\)", {"decay": torch.zeros(4, 2)}),
        ("B", r"\(3, 2\), got shape \(3, 1\)", {"B": torch.zeros(3, 1)}),
        ("C", r"\(3, 2\), got shape \(2,\)", {"C": torch.zeros(2)}),
        ("D", r"\(3,\), got shape \(2,\)", {"D": torch.zeros(2)}),
        ("D", "a real dtype", {"D": torch.zeros(3, dtype=torch.complex64)}),
        ("initial", r"\(2, 3, 2\), got shape \(2, 6\)", {"initial": torch.zeros(2, 6)}),
        ("reset", "torch.bool", {"reset": torch.zeros(5)}),
        ("lengths", "integer", {"lengths": torch.zeros(2)}),
        ("lengths", "from 0 to 5.*got 6", {"lengths": torch.tensor([1, 6])}),
        ("B", r"\(2, 3\), got shape \(3, 2\)", {"decay": torch.zeros(2)}),
        ("backend", "one of", {"backend": "fast"}),
    ],
)
def test_bad_input_is_named(backend: str, argument: str, message: str, change: dict[str, object]) -> None:
    small = torch.zeros(3, 2)
    arguments: dict[str, object] = {"x": torch.zeros(2, 5, 3), "decay": small, "B": small, "C": small}
    with pytest.raises(ValueError, match=rf"^{argument}: expected .*{message}"):
        ssm_scan(**(arguments | {"backend": backend} | change))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("reset", [None, torch.arange(70) == 20], ids=["chunks", "cut"])
def test_autocast_shortens_nothing(backend: str, reset: Tensor | None) -> None:
    device = device_of(backend)
    tensors, _ = draw_layer(torch.float32, 1, 70, 2, 2, skip=True, initial=False, seed=7)
    inputs = [tensor.to(device).requires_grad_() for tensor in tensors if tensor is not None]

    def run(autocast: bool) -> tuple[Tensor, ...]:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            y, final = ssm_scan(*inputs, reset=None if reset is None else reset.to(device), backend=backend)
            return y, final, *torch.autograd.grad(y.square().sum() + final.sum(), inputs)

    for short, long in zip(run(True), run(False), strict=True):
        assert torch.equal(short, long)
