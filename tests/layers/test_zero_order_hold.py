"""The zero-order hold in closed form, in operations and in kernels, against the plain formula and its gradients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import stablessm as ssm
from stablessm.layers import zero_order_hold as hold
from stablessm.layers.zero_order_hold import plainly, zero_order_hold

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_kernels = pytest.mark.skipif(
    DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="neither a GPU nor Triton's interpreter"
)
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [
    ((5, 4), (5, 1)), ((2, 3, 7), (2, 3, 1)), ((4,), (1,)), ((4,), ()), ((3, 4), (2, 5, 3, 1)), ((1, 4), (3, 4)),
    ((4, 1), (3,)), ((), (2, 3)), ((0, 4), (0, 1)), ((3, 0), (3, 1)), ((), (1,)),
]  # fmt: skip


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run on a CPU too: in the interpreter, on small tiles, so that a small case has several."""
    pytest.importorskip("triton")
    monkeypatch.setattr(hold, "resolve", lambda *_: "triton")
    if DEVICE.type == "cpu":
        from stablessm.layers import triton_hold

        for name, size in (("BLOCK", 4), ("TILE", 8)):
            monkeypatch.setattr(triton_hold, name, size)
        monkeypatch.setattr(triton_hold, "_launches", triton_hold._launches.__wrapped__)


def sample(of: tuple[int, ...], steps: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """λ from nothing to far left, some of it 0, and dt."""
    sizes = 10 ** (9 * torch.rand(of, dtype=torch.float64) - 8)
    turned = torch.polar(sizes, 3.14159 * (0.5 + torch.rand(of, dtype=torch.float64)))
    lam = turned.to(dtype) if dtype.is_complex else -sizes.to(dtype)
    lam = torch.where(torch.rand(of) < 0.1, torch.zeros_like(lam), lam)
    return lam.to(DEVICE), torch.rand(steps, dtype=lam.real.dtype, device=DEVICE)


def wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def everything(run, lam: Tensor, dt: Tensor, grads: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Values and gradients."""
    lam, dt = lam.detach().requires_grad_(), dt.detach().requires_grad_()
    outputs = run(lam, dt)
    return *outputs, *torch.autograd.grad(outputs, (lam, dt), grads)


def compare(lam: Tensor, dt: Tensor, tolerance: float = 64) -> None:
    """Ours against the plain formula in float64, both from the same numbers; errors in units of rounding."""
    shape = torch.broadcast_shapes(lam.shape, dt.shape)
    grads = tuple(torch.randn(shape, dtype=lam.dtype, device=DEVICE) for _ in range(2))
    ours = everything(zero_order_hold, lam, dt, grads)
    truth = everything(plainly, wide(lam), wide(dt), tuple(wide(grad) for grad in grads))
    bounds = [*(part.abs() for part in truth[:2]), *_largest_terms(wide(lam), wide(dt), grads)]
    for name, found, true, bound in zip(("a", "g", "d_λ", "d_dt"), ours, truth, bounds, strict=True):
        like = dt if name == "d_dt" else lam
        assert found.dtype == like.dtype, name
        assert found.shape == (shape if name in "ag" else like.shape), name
        eps = torch.finfo(lam.dtype).eps
        # |z| ε is what rounding z does; ε^¾ what is left of φ' where the formulas meet
        rounding = tolerance * eps * (1 + (lam.abs().max() * dt.max() if lam.numel() else 0))
        slack = rounding if name in "ag" else rounding + 10 * eps**0.75
        assert bool(((wide(found) - true).abs() <= slack * bound + torch.finfo(lam.dtype).tiny).all()), name


def _largest_terms(lam: Tensor, dt: Tensor, grads: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """What the sums of the gradients are made of, without cancellation."""
    a, d_a, d_g = (lam * dt).exp().abs(), grads[0].abs().to(dt.dtype), grads[1].abs().to(dt.dtype)
    d_lam = dt * a * d_a + dt * dt * d_g
    return d_lam.sum_to_size(lam.shape), (lam.abs() * a * d_a + d_g).sum_to_size(dt.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), shapes=st.sampled_from(SHAPES))
def test_values_and_gradients_are_those_of_the_plain_formula(dtype, seed, shapes):
    torch.manual_seed(seed)
    compare(*sample(*shapes, dtype))


@on_kernels
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", [SHAPES[0], SHAPES[1], SHAPES[2], ((3, 9), (3, 1)), SHAPES[4], *SHAPES[8:]])
def test_the_kernels_give_the_plain_numbers_and_gradients(dtype, shapes):
    torch.manual_seed(0)
    lam, dt = sample(*shapes, dtype)
    assert hold._has_kernel(lam, dt) == (shapes not in (SHAPES[4], *SHAPES[8:]))
    compare(lam, dt)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_slopes_near_zero(dtype):
    """∂a = dt a, ∂g = dt² φ'(z) in λ with φ'(z) = 1/2 + z/3 + z²/8 + …; on both sides of where the formula changes."""
    z = torch.logspace(-300, -3, 500, dtype=torch.float64).to(dtype) * (1 if dtype == torch.float64 else 1j)
    z = torch.cat([z.new_zeros(1), z, -z]).to(DEVICE).requires_grad_()
    decay, gain = zero_order_hold(z, torch.ones((), dtype=torch.float64, device=DEVICE))
    (slope,) = torch.autograd.grad(gain, z, torch.ones_like(gain))
    z = z.detach()
    close = {"rtol": 1e-11, "atol": 0}
    torch.testing.assert_close(slope.conj(), 0.5 + z / 3 + z**2 / 8 + z**3 / 30, **close)
    torch.testing.assert_close(gain, 1 + z / 2 + z**2 / 6 + z**3 / 24, rtol=1e-14, atol=0)
    torch.testing.assert_close(decay, z.exp(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("with_kernels", [False, pytest.param(True, marks=on_kernels)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradients_and_their_gradients(dtype, with_kernels, request):
    if with_kernels:
        request.getfixturevalue("kernels")
    lam = torch.tensor([[-1.0, -1e-3, 0.0], [-4.0, -1e-5, -0.3]], dtype=dtype, device=DEVICE)
    lam = lam + 1j * lam.flip(0) if dtype.is_complex else lam
    dt = torch.tensor([[0.5], [1.5]], dtype=torch.float64, device=DEVICE)
    inputs = (lam.requires_grad_(), dt.requires_grad_())
    assert torch.autograd.gradcheck(zero_order_hold, inputs, fast_mode=with_kernels)
    assert torch.autograd.gradgradcheck(zero_order_hold, inputs, fast_mode=True)
    assert torch.autograd.gradcheck(lambda lam: zero_order_hold(lam, dt.detach()), inputs[:1], fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda dt: zero_order_hold(lam.detach(), dt), inputs[1:], fast_mode=True)


@pytest.mark.parametrize("with_kernels", [False, pytest.param(True, marks=on_kernels)])
def test_tensors_that_are_not_contiguous_or_wait_for_a_sign(with_kernels, request):
    if with_kernels:
        request.getfixturevalue("kernels")
    lam, dt = sample((4, 3), (4, 1), torch.complex128)
    steps = torch.complex(dt, -dt.flip(0)).conj().imag  # waits for its minus
    assert steps.is_neg()
    for own, copy in ((lam.conj(), lam.conj().resolve_conj()), (lam.T[:, :1].T, lam[:1].clone())):
        h = steps[: len(own)]
        grads = torch.randn_like(copy).conj(), torch.randn(copy.shape[::-1], dtype=copy.dtype, device=DEVICE).T
        ours, truth = everything(zero_order_hold, own, h, grads), everything(plainly, copy, h, grads)
        for found, true in zip(ours, truth, strict=True):
            torch.testing.assert_close(found, true, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("with_kernels", [False, pytest.param(True, marks=on_kernels)])
def test_other_ways_to_differentiate(with_kernels, request):
    if with_kernels:
        request.getfixturevalue("kernels")
    lam, dt = sample((4, 3), (4, 1), torch.complex128)
    size = lambda lam, dt, run=zero_order_hold: sum(part.abs().square().sum() for part in run(lam, dt))  # noqa: E731
    plain = lambda lam, dt: size(lam, dt, plainly)  # noqa: E731
    both = (lam, dt)
    for ours, truth in (
        (torch.func.grad(size, (0, 1))(*both), torch.func.grad(plain, (0, 1))(*both)),
        (torch.func.jvp(size, both, both), torch.func.jvp(plain, both, both)),
        (torch.vmap(size)(*both), torch.vmap(plain)(*both)),
        (torch.vmap(torch.func.grad(size), (0, None))(lam, dt), torch.vmap(torch.func.grad(plain), (0, None))(lam, dt)),
    ):
        torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-12)
    jacobian = torch.autograd.functional.jacobian
    rows = lambda lam, dt, run=zero_order_hold: run(torch.view_as_complex(lam), dt)[1].real  # noqa: E731
    pair = (torch.view_as_real(lam), dt)
    ours = jacobian(rows, pair, vectorize=True)  # many gradients at once
    torch.testing.assert_close(ours, jacobian(lambda *of: rows(*of, run=plainly), pair), rtol=1e-10, atol=1e-12)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(dt, torch.ones_like(dt))
        decay, _ = zero_order_hold(lam, dual)
        tangent = torch.autograd.forward_ad.unpack_dual(decay).tangent
    torch.testing.assert_close(tangent, lam * (lam * dt).exp())


@on_kernels
@pytest.mark.usefixtures("kernels")
def test_a_tensor_that_looks_at_operations_sees_them():
    seen = []

    class Steps(Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return super().__torch_function__(function, types, args, kwargs)

    lam, dt = sample((4, 3), (4, 1), torch.float32)
    decay, _ = zero_order_hold(lam, dt.as_subclass(Steps))
    assert isinstance(decay, Steps)
    assert "exp" in seen


@pytest.mark.parametrize("with_kernels", [False, pytest.param(True, marks=on_kernels)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_compiled_without_a_graph_break(dtype, with_kernels, request):
    if with_kernels:
        request.getfixturevalue("kernels")
    torch._dynamo.reset()
    lam, dt = sample((4, 3), (4, 1), dtype)
    grads = torch.randn_like(lam), torch.randn_like(lam)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(str(graph.graph))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(lambda lam, dt: zero_order_hold(lam, dt), fullgraph=True, backend=backend)
    ours, truth = everything(compiled, lam, dt, grads), everything(plainly, lam, dt, grads)
    for found, true in zip(ours, truth, strict=True):
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5)
    assert ["expm1" not in graph for graph in graphs] == [with_kernels or DEVICE.type == "cuda"]  # of the plain one


@on_kernels
@pytest.mark.usefixtures("kernels")
def test_the_operator_is_one():
    lam, dt = sample((3, 5), (3, 1), torch.complex128)
    torch.library.opcheck(hold.hold_op, (lam.requires_grad_(), dt.requires_grad_()))


@on_kernels
@pytest.mark.usefixtures("kernels")
def test_an_exported_program_has_plain_operations():
    class Module(torch.nn.Module):
        def forward(self, lam: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
            return zero_order_hold(lam, dt)

    graph = torch.export.export(Module(), sample((4, 3), (4, 1), torch.float32)).graph
    assert all("stablessm" not in str(node.target) for node in graph.nodes)


@pytest.mark.parametrize(
    ("dtype", "step", "result"),
    [
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.complex64, torch.float64, torch.complex128),
        (torch.float32, torch.complex64, torch.complex64),
        (torch.complex64, torch.int64, torch.complex64),
    ],
)
def test_other_dtypes_are_left_to_the_plain_formula(dtype, step, result):
    lam, dt = -torch.ones(2, 3, device=DEVICE).to(dtype), torch.ones(2, 1, device=DEVICE).to(step)
    for found, true in zip(zero_order_hold(lam, dt), plainly(lam, dt), strict=True):
        assert found.dtype == result
        assert torch.equal(found, true)


@on_kernels
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("build", [lambda: ssm.S4D(3, 5), lambda: ssm.RealSSM(3, 6, 2, dt=0.1)])
@pytest.mark.parametrize("varying", [False, True])
def test_a_layer_with_kernels_is_the_layer_without(build, varying, monkeypatch):
    torch.manual_seed(0)
    with DEVICE:
        layer, x = build().double(), torch.randn(2, 9, 3, dtype=torch.float64)
    dt = torch.rand(2, 9, dtype=torch.float64, device=DEVICE) if varying else None
    results = []
    for backend in ("triton", "reference"):
        monkeypatch.setattr(hold, "resolve", lambda *_, backend=backend: backend)
        layer.zero_grad()
        y, state = layer(x, dt=dt)
        (y.sum() + state.abs().sum()).backward()
        results.append([y, state, *(p.grad.clone() for p in layer.parameters())])
    for ours, truth in zip(*results, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)


COMPILE = """
import json, torch, triton_without_gpu as tool
from types import SimpleNamespace
target = tool.GPUTarget("cuda", int(sys.argv[1]), 32)
absent = {"get_current_target": lambda: target, "get_current_device": lambda: 0, "get_current_stream": lambda _: 0}
tool.driver.set_active(SimpleNamespace(**absent))
tool.Launch.__call__ = tool.compile_only
from stablessm.layers import triton_hold
with torch.device("meta"):
    for lam in (torch.empty(512, 64, dtype=torch.complex64), torch.empty(512, 64)):
        triton_hold.forward(lam, lam.real[:, :1])
        triton_hold.backward(lam, lam.real[:, :1], lam, lam)
print(json.dumps(list(tool.compiled.values())))
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["80", "90"])
def test_the_kernels_compile_for_a_gpu_and_keep_to_their_registers(capability):
    pytest.importorskip("triton")
    tests = Path(__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", f"import sys; sys.argv = ['', '{capability}']\n{COMPILE}"]
    done = subprocess.run(
        command,
        env={**environment, "PYTHONPATH": os.pathsep.join((str(tests), *sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    made = json.loads(done.stdout or "[]")
    assert sorted(kernel["kernel"] for kernel in made) == 2 * ["backward_kernel"] + 2 * ["forward_kernel"], done.stderr
    assert all(kernel["spilled_bytes"] == 0 for kernel in made), made


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no GPU")
def test_in_a_cuda_graph():
    lam, dt = (part.requires_grad_() for part in sample((64, 32), (64, 1), torch.complex64))
    grads = torch.randn_like(lam), torch.randn_like(lam)
    truth = everything(zero_order_hold, lam, dt, grads)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        everything(zero_order_hold, lam, dt, grads)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        found = everything(zero_order_hold, lam, dt, grads)
    graph.replay()
    for ours, true in zip(found, truth, strict=True):
        assert torch.equal(ours, true)


@on_kernels
@pytest.mark.usefixtures("kernels")
def test_a_mode_that_forgets_at_once():
    lam, dt = torch.tensor([[float("-inf"), -1e200, -1.0]], dtype=torch.float64, device=DEVICE), torch.ones(1, 1)
    decay, gain = zero_order_hold(lam, dt.to(lam))
    assert decay[0, :2].tolist() == [0.0, 0.0]
    torch.testing.assert_close(gain, plainly(lam, dt.to(lam))[1], atol=1e-100, rtol=1e-12)
