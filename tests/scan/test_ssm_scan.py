"""The fused layer as a PyTorch operator, its dense form, short dtypes and sequences cut in pieces."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ssm_cases import draw_layer
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap

from stablessm import ArgumentError, linear_scan, ssm_scan
from stablessm.scan.cpu import ssm as cpu_ssm
from stablessm.scan.protocol import DiagonalSSM
from stablessm.scan.ssm_op import ssm_op

REAL, COMPLEX = torch.float64, torch.complex128
ALL = tuple(range(6))
RESET, LENGTHS = torch.arange(40) % 17 == 11, torch.tensor([40, 23])
COMPILERS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
"""PyTorch traces for both; the second also compiles what is around the operator, which takes half a minute."""


def inputs(dtype: torch.dtype = COMPLEX) -> list[Tensor]:
    return draw_layer(dtype, 2, 40, 3, 2, skip=True, initial=True, seed=0)[0]


def energy(*tensors: Tensor, backend: str = "auto") -> Tensor:
    y, final = ssm_scan(*tensors, reset=RESET, lengths=LENGTHS, backend=backend)
    return y.sin().sum() + final.abs().square().sum()


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
    tensors = [tensor.requires_grad_() for tensor in inputs(dtype)]
    torch.library.opcheck(ssm_op, (*tensors, None, None, "cpu"))
    torch.library.opcheck(ssm_op, (*tensors[:4], None, None, RESET.expand(2, -1), LENGTHS, "cpu"))


@pytest.mark.parametrize("dtype", [REAL, COMPLEX], ids=str)
@pytest.mark.parametrize("dims", [(0,) * 6, (0, None, None, None, None, None), (None, 0, None, None, None, None)])
def test_vmap_of_grad_equals_a_loop(dtype: torch.dtype, dims: tuple[int | None, ...]) -> None:
    tensors = [
        tensor if dim is None else torch.stack([tensor, tensor / 2], dim)
        for tensor, dim in zip(inputs(dtype), dims, strict=True)
    ]
    mapped = vmap(grad(energy, argnums=ALL), in_dims=dims)(*tensors)
    for i in range(2):
        one = [t if dim is None else t.select(dim, i) for t, dim in zip(tensors, dims, strict=True)]
        truth = grad(partial(energy, backend="reference"), argnums=ALL)(*one)
        for ours, true in zip(mapped, truth, strict=True):
            torch.testing.assert_close(ours[i], true)


@pytest.mark.parametrize("dtype", [REAL, COMPLEX], ids=str)
def test_forward_mode_and_second_derivatives_match_the_reference(dtype: torch.dtype) -> None:
    tensors = inputs(dtype)
    tangents = tuple(torch.randn_like(tensor) for tensor in tensors)
    results = {}
    for backend in ("reference", "cpu"):
        run = partial(ssm_scan, reset=RESET, lengths=LENGTHS, backend=backend)
        _, slopes = jvp(run, tuple(tensors), tangents)
        product = jvp(grad(partial(energy, backend=backend), argnums=ALL), tuple(tensors), tangents)[1]
        second = hessian(lambda D, b=backend: energy(*tensors[:4], D, tensors[5], backend=b))(tensors[4])
        results[backend] = [*slopes, *product, second]
    for ours, truth in zip(results["cpu"], results["reference"], strict=True):
        torch.testing.assert_close(ours, truth)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("used", [0, 1], ids=["output", "state"])
def test_gradients_where_one_result_is_not_used(used: int, compiled: bool) -> None:
    def loss(*tensors: Tensor, backend: str = "cpu") -> Tensor:
        return ssm_scan(*tensors, reset=RESET, lengths=LENGTHS, backend=backend)[used].abs().square().sum()

    tensors = [tensor.requires_grad_() for tensor in inputs()]
    ours = torch.autograd.grad(
        (torch.compile(loss, backend="aot_eager") if compiled else loss)(*tensors), tensors, materialize_grads=True
    )
    truth = torch.autograd.grad(loss(*tensors, backend="reference"), tensors, materialize_grads=True)
    for gradient, true_gradient in zip(ours, truth, strict=True):
        torch.testing.assert_close(gradient, true_gradient)


def test_no_gradient_is_made_for_the_checkpoints() -> None:
    tensors = [
        tensor.requires_grad_() for tensor in draw_layer(COMPLEX, 1, 4000, 3, 64, skip=True, initial=True, seed=0)[0]
    ]
    y, _ = ssm_scan(*tensors, backend="cpu")
    checkpoints = cpu_ssm.checkpoint_shape(DiagonalSSM(*tensors[:4], None, None, None, None))[0]
    with torch.profiler.profile(record_shapes=True) as profiler:
        y.sum().backward()
    filled = [list(event.input_shapes[0]) for event in profiler.events() if event.name == "aten::fill_"]
    assert filled
    assert list(checkpoints) not in filled


@pytest.mark.parametrize("part", [0, 1], ids=["output", "final"])
def test_batched_gradients(part: int) -> None:
    x, decay, *rest = inputs()
    jacobian = torch.autograd.functional.jacobian
    ours = jacobian(lambda a: ssm_scan(x, a, *rest, backend="cpu")[part].real, decay, vectorize=True)
    truth = jacobian(lambda a: ssm_scan(x, a, *rest, backend="reference")[part].real, decay)
    torch.testing.assert_close(ours, truth)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_short_dtypes_are_computed_in_float32(dtype: torch.dtype, backend: str) -> None:
    tensors, _ = draw_layer(torch.complex64, 2, 100, 3, 4, skip=True, initial=False, seed=0)
    x = tensors[0].to(dtype)
    y, final = ssm_scan(x, *tensors[1:], backend=backend)
    expected, true_final = ssm_scan(x.float(), *tensors[1:], backend="reference")
    assert y.dtype == dtype
    assert final.dtype == torch.complex64
    torch.testing.assert_close(y, expected.to(dtype))
    torch.testing.assert_close(final, true_final)


def test_dtypes_are_brought_together() -> None:
    x, decay, B, C, D, initial = draw_layer(torch.float32, 1, 10, 2, 3, skip=True, initial=True, seed=0)[0]
    y, final = ssm_scan(x, decay.to(torch.complex64), B, C.half(), D.double(), initial.double())
    assert (y.dtype, final.dtype) == (torch.float32, torch.complex128)


def test_pieces_give_the_numbers_of_the_whole() -> None:
    x, *rest = inputs()
    whole, final = ssm_scan(x, *rest)
    state, pieces = rest.pop(), []
    for piece in x.split([7, 0, 1, 32], 1):
        y, state = ssm_scan(piece, *rest, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    torch.testing.assert_close(state, final)


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 1, 3), (2, 5, 0)])
def test_nothing_in_gives_nothing_out(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    decay, B, C = (torch.rand(shape[2], 2, requires_grad=True) for _ in range(3))
    y, final = ssm_scan(x, decay, B, C)
    assert y.shape == shape
    assert final.shape == (shape[0], shape[2], 2)
    gradients = torch.autograd.grad(y.sum() + final.sum(), (x, decay, B, C))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_many_channels_take_no_more_of_the_stack() -> None:
    x, (decay, B, C) = torch.randn(1, 2, 200_000), torch.rand(3, 200_000, 1).unbind()
    y, _ = ssm_scan(x, decay, B, C, backend="cpu")
    torch.testing.assert_close(y[:, 1], ((decay * x[0, 0, :, None] + x[0, 1, :, None]) * B * C).mT)


@pytest.mark.parametrize("steps", [1, 2, 14])
def test_powers_that_no_step_needs_may_overflow(steps: int) -> None:
    """400^15 is infinite in float32: it must not meet the zeros past the end of a short sequence."""
    tensors = [torch.ones(1, steps, 1), torch.tensor([[400.0]]), torch.ones(1, 1), torch.ones(1, 1)]
    results = {}
    for backend in ("reference", "cpu"):
        inputs = [tensor.clone().requires_grad_() for tensor in tensors]
        outputs = ssm_scan(*inputs, backend=backend)
        results[backend] = [*outputs, *torch.autograd.grad(outputs[0].sum(), inputs)]
    for ours, truth in zip(results["cpu"], results["reference"], strict=True):
        torch.testing.assert_close(ours, truth)


def test_results_that_bypass_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, _ = draw_layer(torch.complex64, 2, 100, 32, 3, skip=True, initial=True, seed=0)
    expected = ssm_scan(*tensors)[0]
    monkeypatch.setattr(cpu_ssm, "STREAM_BYTES", 0)
    assert torch.equal(ssm_scan(*tensors)[0], expected)


@pytest.mark.parametrize("dtype", [REAL, COMPLEX], ids=str)
def test_the_dense_form_is_products_around_a_scan(dtype: torch.dtype) -> None:
    x = torch.randn(2, 30, 3, dtype=REAL)
    decay, B, C = torch.rand(5, dtype=REAL).to(dtype), torch.randn(5, 3, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    D, initial = torch.randn(4, 3, dtype=REAL), torch.randn(2, 5, dtype=dtype)
    reset, lengths = torch.arange(30) == 12, torch.tensor([30, 20])
    tensors = [tensor.requires_grad_() for tensor in (x, decay, B, C, D, initial)]
    y, final = ssm_scan(*tensors, reset=reset, lengths=lengths)
    states = linear_scan(decay, x.to(dtype) @ B.mT, initial, reset=reset)
    expected = (states @ C.mT).real + x @ D.mT if dtype.is_complex else states @ C.mT + x @ D.mT
    torch.testing.assert_close(y[0], expected[0])
    torch.testing.assert_close(y[1, :20], expected[1, :20])
    assert not y[1, 20:].any()
    torch.testing.assert_close(final, torch.stack([states[0, 29], states[1, 19]]))
    gradients = torch.autograd.grad(y.sum() + final.abs().sum(), tensors)
    truth = torch.autograd.grad(
        expected[0].sum() + expected[1, :20].sum() + states[0, 29].abs().sum() + states[1, 19].abs().sum(), tensors
    )
    for ours, true in zip(gradients, truth, strict=True):
        torch.testing.assert_close(ours, true)


@pytest.mark.parametrize("lengths", [None, torch.tensor([300, 0])], ids=["whole", "padded"])
@pytest.mark.parametrize("form", ["dense", "by states"])
def test_the_final_state_keeps_no_copy_of_all_states(form: str, lengths: Tensor | None) -> None:
    x, initial = torch.randn(2, 300, 3), torch.randn(2, 3, 8)
    decay, B, C = torch.rand(3, 3, 8, requires_grad=True).unbind()
    if form == "dense":
        decay, B, C, initial = decay[0], B.mT, C, initial[:, 0]
    held: dict[int, int] = {}

    def hold(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        _, final = ssm_scan(x, decay, B, C, initial=initial, lengths=lengths, backend="reference")
    assert final.untyped_storage().nbytes() == final.nbytes
    assert sum(size >= x.shape[1] * final.nbytes for size in held.values()) == 1  # the states themselves
    if lengths is not None:
        assert torch.equal(final[1], initial[1])


@pytest.mark.parametrize("wrong", [-1, 9, 10**9])
def test_compiled_lengths_leave_no_array(wrong: int) -> None:
    """While it compiles nobody knows them, and the kernels trust them."""
    decay, x, lengths = torch.full((3, 4), 0.5), torch.randn(2, 5, 3), torch.tensor([2, wrong])
    run = torch.compile(lambda x, lengths: ssm_scan(x, decay, decay, decay, lengths=lengths)[0], backend="aot_eager")
    with pytest.raises(ArgumentError, match=r"^lengths: expected values from 0 to 5"):
        run(x, lengths)
    assert run(x, torch.tensor([2, 5])).shape == x.shape


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_what_is_yet_to_be_negated_or_conjugated(backend: str) -> None:
    """Views that PyTorch makes, also of gradients: the numbers in memory are not the numbers."""
    x, decay, B, C, D, initial = inputs(torch.complex64)
    grad = torch.complex(torch.zeros_like(x), torch.randn(x.shape))

    def run(name: str) -> list[Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in (x, decay, B, C, D, initial)]
        negated = torch.complex(torch.zeros_like(leaves[0]), leaves[0]).conj().imag
        assert negated.is_neg()
        y, final = ssm_scan(negated, *leaves[1:5], leaves[5].conj(), backend=name)
        loss = (torch.complex(torch.zeros_like(y), y).conj() * grad).real.sum() + final.abs().square().sum()
        return [y, final, *torch.autograd.grad(loss, leaves)]

    for found, expected in zip(run(backend), run("reference"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
