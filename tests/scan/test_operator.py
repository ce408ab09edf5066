"""The scan as a PyTorch operator: compile, torch.func, autocast, the choice of backend."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap

from stablessm import ArgumentError, linear_scan, scan
from stablessm.scan.linear_op import scan_op

REAL, COMPLEX = torch.float64, torch.complex128
COMPILERS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
"""PyTorch traces for both; the second also compiles what is around the operator, which takes half a minute."""


def inputs(dtype: torch.dtype = REAL) -> tuple[Tensor, Tensor, Tensor]:
    decay, drive, initial = torch.rand(5).to(dtype), torch.randn(2, 9, 5, dtype=dtype), torch.randn(2, 5, dtype=dtype)
    if dtype.is_complex:
        decay = decay * torch.exp(1j * torch.arange(5))
    return decay, drive, initial


def energy(*tensors: Tensor, backend: str = "auto") -> Tensor:
    return linear_scan(*tensors, backend=backend).abs().square().sin().sum()


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("dtype", [REAL, COMPLEX], ids=str)
def test_compiles_without_graph_breaks(dtype: torch.dtype, compiler: str) -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs(dtype)]
    compiled = torch.compile(energy, fullgraph=True, backend=compiler)
    ours = torch.autograd.grad(compiled(*tensors), tensors)
    truth = torch.autograd.grad(energy(*tensors, backend="reference"), tensors)
    for gradient, true_gradient in zip(ours, truth, strict=True):
        torch.testing.assert_close(gradient, true_gradient)


@pytest.mark.parametrize("dtype", [REAL, COMPLEX], ids=str)
def test_passes_pytorchs_own_operator_check(dtype: torch.dtype) -> None:
    decay, drive, initial = inputs(dtype)
    arguments = (decay.reshape(1, 1, 5).requires_grad_(), drive.requires_grad_(), initial, None, False, "cpu")
    torch.library.opcheck(scan_op, arguments)


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (0, 0, 0), (None, None, 1)])
def test_vmap_of_grad_equals_a_loop(dims: tuple[int | None, ...]) -> None:
    tensors = [
        tensor if dim is None else torch.stack([tensor * scale for scale in (1.0, 0.5, 0.2)], dim)
        for tensor, dim in zip(inputs(), dims, strict=True)
    ]
    mapped = vmap(grad(energy, argnums=(0, 1, 2)), in_dims=dims)(*tensors)
    for i in range(3):
        one = [t if dim is None else t.select(dim, i) for t, dim in zip(tensors, dims, strict=True)]
        reference = grad(partial(energy, backend="reference"), argnums=(0, 1, 2))
        for ours, truth in zip(mapped, reference(*one), strict=True):
            torch.testing.assert_close(ours[i], truth)


@pytest.mark.parametrize("shape", [(9, 5), (2, 9, 5)])
def test_vmap_over_a_decay_per_step(shape: tuple[int, ...]) -> None:
    _, drive, _ = inputs()
    decay = torch.rand(3, *shape, dtype=REAL)
    mapped = vmap(linear_scan, in_dims=(0, None))(decay, drive)
    torch.testing.assert_close(mapped, torch.stack([linear_scan(a, drive) for a in decay]))


def test_vmap_over_resets() -> None:
    decay, drive, _ = inputs()
    reset = torch.rand(3, 2, 9) < 0.3
    mapped = vmap(lambda a, r: linear_scan(a, drive, reset=r), in_dims=(None, 0))(decay, reset)
    torch.testing.assert_close(mapped, torch.stack([linear_scan(decay, drive, reset=r) for r in reset]))


def test_forward_mode_and_hessian_match_the_reference() -> None:
    decay, drive, initial = inputs()
    tangents = tuple(torch.randn_like(tensor) for tensor in (decay, drive, initial))
    for backend in ("reference", "cpu"):
        _, tangent = jvp(lambda *t, b=backend: linear_scan(*t, backend=b), (decay, drive, initial), tangents)
        second = hessian(lambda a, b=backend: energy(a, drive, initial, backend=b))(decay)
        if backend == "reference":
            truth, true_second = tangent, second
    torch.testing.assert_close(tangent, truth)
    torch.testing.assert_close(second, true_second)


def test_batched_gradients() -> None:
    decay, drive, _ = inputs()
    jacobian = torch.autograd.functional.jacobian
    ours = jacobian(lambda a: linear_scan(a, drive, backend="cpu"), decay, vectorize=True)
    truth = jacobian(lambda a: linear_scan(a, drive, backend="reference"), decay)
    torch.testing.assert_close(ours, truth)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_autocast_runs_in_float32(backend: str) -> None:
    drive = torch.randn(1, 50, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = linear_scan(torch.full((4,), 0.999), drive, backend=backend)
    assert states.dtype == torch.float32
    torch.testing.assert_close(states, linear_scan(torch.full((4,), 0.999), drive.float(), backend="reference"))


def test_short_dtypes_accumulate_in_float32() -> None:
    ones = torch.ones(1, 1000, 1, dtype=torch.bfloat16)
    assert linear_scan(torch.ones(1), ones)[0, -1].item() == 1000  # summed in bfloat16 it stops at 256


def test_backend_choice_is_visible() -> None:
    assert scan.resolve("auto", torch.device("cpu")) == "cpu"
    assert scan.resolve("reference", torch.device("cpu")) == "reference"
    with pytest.raises(ArgumentError, match=r"backend: expected 'auto' or one of 'reference'.*got 'fast'"):
        linear_scan(*inputs()[:2], backend="fast")


def test_triton_refuses_a_cpu_tensor_outside_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ArgumentError, match=r"backend: expected a backend for cpu tensors, got 'triton'"):
        linear_scan(*inputs()[:2], backend="triton")


def test_the_reference_runs_without_memory() -> None:
    decay, drive, _ = (tensor.to("meta") for tensor in inputs(torch.bfloat16))
    states = linear_scan(decay, drive, backend="reference")
    assert states.is_meta
    assert (states.shape, states.dtype) == (drive.shape, drive.dtype)


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.filterwarnings("error:Casting complex")
def test_a_real_initial_state_of_complex_numbers_has_a_real_gradient(backend: str) -> None:
    decay, drive, _ = inputs(COMPLEX)
    initial = torch.randn(2, 5, dtype=REAL, requires_grad=True)
    (found,) = torch.autograd.grad(linear_scan(decay, drive, initial, backend=backend).abs().sum(), initial)
    (expected,) = torch.autograd.grad(linear_scan(decay, drive, initial, backend="reference").abs().sum(), initial)
    torch.testing.assert_close(found, expected)
