"""Without PyTorch's private functions: another path to the same numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scan_cases import check_against_reference
from ssm_cases import check_against_reference as check_layer
from torch import Tensor
from torch.autograd.functional import jacobian

import stablessm
from stablessm import linear_scan, selective_scan, ssm_scan
from stablessm.scan import dispatch

DECAY, DRIVE = torch.rand(3, dtype=torch.float64), torch.randn(2, 7, 3, dtype=torch.float64)
PRIVATE = re.compile(r"^(torch|triton)(\.\w+)*\._(?!_)\w+")


@pytest.fixture
def unknown_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_private", None)


@pytest.mark.parametrize("version", ["2.10.2", "2.99.0", "3.0.0a0+git", "1.13.1"])
def test_private_functions_are_used_in_known_releases_alone(version: str) -> None:
    assert dispatch.private_functions(version) is None
    assert dispatch.private_functions(".".join(map(str, dispatch.NEWEST))) is not None


@pytest.mark.parametrize("private", [dispatch._private, None], ids=["known", "unknown"])
def test_a_constant_result_is_marked_as_pytorch_marks_it(private: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_private", private)
    ours, theirs = dispatch.constant_result(lambda: 1), torch.compiler.assume_constant_result(lambda: 1)
    assert vars(ours) == vars(theirs)
    assert vars(ours)


def test_a_private_function_may_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    assert dispatch.private_functions(torch.__version__) is None


@pytest.mark.usefixtures("unknown_release")
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [0, 1, 70])
def test_values_and_gradients_are_the_same(dtype: torch.dtype, length: int) -> None:
    assert not dispatch.quick(DRIVE)
    assert not dispatch.plain(DRIVE)
    case = {"batch": 2, "channels": 5, "initial": True, "contiguous": False, "seed": length}
    check_against_reference("cpu", dtype, length, decay_rank=2, reset=2, reverse=True, **case)
    if dtype is not torch.bfloat16:
        check_layer("cpu", dtype, length, states=3, skip=True, reset=2, lengths=True, **case)


def pulled_back(function: Callable[[Tensor], Tensor], recorded: bool) -> Tensor:
    """Return the result of ``torch.func.vjp``, with or without the recording of gradients."""
    y, pull_back = torch.func.vjp(function, DECAY)
    with torch.set_grad_enabled(recorded):
        return pull_back(torch.ones_like(y))[0]


TRANSFORMS = {
    "vjp": lambda f: pulled_back(f, True),
    "vjp without gradients": lambda f: pulled_back(f, False),
    "grad": lambda f: torch.func.grad(lambda a: f(a).square().sum())(DECAY),
    "double backward": lambda f: torch.autograd.functional.hessian(lambda a: f(a).square().sum(), DECAY),
    "jvp": lambda f: torch.func.jvp(f, (DECAY,), (torch.ones_like(DECAY),))[1],
    "vmap": lambda f: torch.vmap(f)(DECAY.expand(4, 3)),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda a: f(a).square().sum()))(DECAY.expand(4, 3)),
    "the older vmap": lambda f: jacobian(f, DECAY, vectorize=True),
    "the older forward mode": lambda f: jacobian(f, DECAY, vectorize=True, strategy="forward-mode"),
    "compile": lambda f: torch.compile(f, backend="aot_eager")(DECAY),
}


@pytest.mark.parametrize("private", [dispatch._private, None], ids=["known", "unknown"])
@pytest.mark.parametrize("operator", ["linear", "ssm", "selective"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_the_same(
    transform: str, operator: str, private: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_private", private)
    if (operator, transform) == ("ssm", "the older forward mode"):
        pytest.skip("not supported by PyTorch's older vmap, with its private functions or without")

    def function(decay: Tensor, backend: str) -> Tensor:
        if operator == "linear":
            return linear_scan(decay, DRIVE, backend=backend)
        if operator == "selective":
            column = torch.ones_like(DRIVE[:, :, :1])
            return selective_scan(DRIVE, DRIVE**2, -decay[:, None], column, column, backend=backend)[0]
        return ssm_scan(DRIVE, decay[:, None], decay[:, None], torch.ones_like(decay[:, None]), backend=backend)[0]

    ours, truth = (TRANSFORMS[transform](lambda a, name=name: function(a, name)) for name in ("cpu", "reference"))
    torch.testing.assert_close(ours, truth)


def test_the_zero_order_hold_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from stablessm.layers.zero_order_hold import zero_order_hold

    eigenvalues, dt = -torch.rand(4, 3, requires_grad=True), torch.rand(4, 1)
    found = []
    for private in (dispatch._private, None):
        monkeypatch.setattr(dispatch, "_private", private)
        outputs = zero_order_hold(eigenvalues, dt)
        found.append([*outputs, *torch.autograd.grad(outputs[0].sum() + outputs[1].sum(), eigenvalues)])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("private", [dispatch._private, None], ids=["known", "unknown"])
def test_operations_are_seen(private: object) -> None:
    seen = []

    class Watch(dispatch.operation_mode(private)):
        def operation(self, name, function, args, kwargs):
            seen.append(name)
            return super().operation(name, function, args, kwargs)

    with Watch():
        result = torch.ones(2).log() + 1
    assert result.tolist() == [1.0, 1.0]
    assert "log" in seen


def test_a_kernel_is_launched_as_triton_documents_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a release of Triton whose internal launch is not known."""
    launch = pytest.importorskip("stablessm.scan.triton.launch")
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **options: launched.append((grid, args, options))

    class OnGPU(Tensor):
        device = torch.device("cuda", 0)

    monkeypatch.setattr(launch, "current_device", lambda: 0)
    monkeypatch.setattr(launch, "_direct", False)
    tensor = torch.ones(3).as_subclass(OnGPU)
    launch.Launch(Kernel(), 5, (7,), {"N": 2}, warps=1)(tensor)
    ((grid, (first, number), options),) = launched
    assert (grid, number, options) == ((5,), 7, {"N": 2, "num_warps": 1})
    assert first is tensor
    known = [version for version in ("3.5.1", "3.6.0", "3.9.0+git", "4.0.0") if launch._knows(version)]
    assert known == ["3.6.0", "3.9.0+git"]


def test_no_other_module_uses_private_names() -> None:
    root = Path(stablessm.__file__).parent
    found = set()
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {path.relative_to(root).as_posix() for name in names if PRIVATE.match(name)}
    assert found == {"scan/dispatch.py"}
