"""Hyena's short filter: the kernels (on a GPU, or in Triton's interpreter) against the plain sum, and its gradients."""

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

from stablessm.models import Hyena, hyena_filter
from stablessm.models.hyena_filter import filtered, plainly
from stablessm.models.mixers import mixer_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_kernels = pytest.mark.skipif(
    DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="neither a GPU nor Triton's interpreter"
)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run on a CPU too: in the interpreter, on small tiles, so that a small case has several."""
    pytest.importorskip("triton")
    monkeypatch.setattr(hyena_filter, "resolve", lambda *_: "triton")
    if DEVICE.type == "cpu":
        from stablessm.models import triton_hyena

        for name, size in (("ROWS", 4), ("BLOCK", 8), ("TILES", 2)):
            monkeypatch.setattr(triton_hyena, name, size)
        monkeypatch.setattr(triton_hyena, "_launches", triton_hyena._launches.__wrapped__)


def sample(batch: int, steps: int, channels: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """z, tail and weight."""
    shapes = (batch, steps, 3 * channels), (batch, 2, 3 * channels), (3, 3 * channels)
    return tuple(torch.randn(shape, dtype=dtype, device=DEVICE) for shape in shapes)  # type: ignore[return-value]


def by_hand(z: Tensor, tail: Tensor, weight: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Step by step."""
    rows, out = [tail[:, 0], tail[:, 1]], []
    for t in range(z.shape[1]):
        starts = reset[:, t, None]
        rows = [torch.where(starts, torch.zeros_like(row), row) for row in rows[-2:]] + [z[:, t]]
        out.append(weight[0] * rows[2] + weight[1] * rows[1] + weight[2] * rows[0])
    q, k, v = torch.stack(out, 1).chunk(3, -1)
    return q, k * v


@settings(max_examples=20)
@given(data=st.data(), steps=st.integers(1, 7), batch=st.integers(1, 3))
def test_the_plain_sum_is_the_filter(data, steps, batch):
    z, tail, weight = sample(batch, steps, 2)
    reset = torch.tensor(data.draw(st.lists(st.booleans(), min_size=batch * steps, max_size=batch * steps)))
    reset = reset.view(batch, steps).to(DEVICE)
    for ours, truth in zip(plainly(z, tail, weight, reset), by_hand(z, tail, weight, reset), strict=True):
        torch.testing.assert_close(ours, truth)
    zeros = torch.zeros_like(tail)
    for ours, truth in zip(plainly(z, None, weight, None), plainly(z, zeros, weight, None), strict=True):
        assert torch.equal(ours, truth)


@on_kernels
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("batch", "steps", "channels", "has_tail", "resets"),
    [(1, 1, 1, False, False), (2, 2, 3, True, True), (2, 19, 11, True, True), (1, 9, 8, False, True)],
)
def test_the_kernels_give_the_plain_numbers_and_gradients(batch, steps, channels, has_tail, resets):
    z, tail, weight = sample(batch, steps, channels)
    reset = torch.rand(batch, steps, device=DEVICE) < 0.2 if resets else None
    tail = tail if has_tail else None
    found = []
    for run in (filtered, plainly):
        own, taps = z.clone().requires_grad_(), weight.clone().requires_grad_()
        before = tail.clone().requires_grad_() if has_tail else None
        q, u = run(own, before, taps, reset)
        (q.sin().sum() + u.cos().sum()).backward()
        found.append((q, u, own.grad, taps.grad, *([before.grad] if has_tail else [])))
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-10)


@on_kernels
@pytest.mark.usefixtures("kernels")
def test_short_floats_are_summed_in_long_ones():
    """Errors are those of the last rounding; the interpreter's goes towards zero, and so twice as far."""
    z, tail, weight = sample(2, 20, 6)
    truth = plainly(z.bfloat16().double(), tail, weight.float().double(), None)
    ours = filtered(z.bfloat16(), tail.float(), weight.float())
    for short, wide in zip(ours, truth, strict=True):
        assert short.dtype == torch.bfloat16
        torch.testing.assert_close(short.double(), wide, rtol=2**-8 if DEVICE.type == "cuda" else 2**-7, atol=1e-6)


@on_kernels
@pytest.mark.usefixtures("kernels")
def test_gradients_of_gradients_and_of_the_tail():
    z, tail, weight = (part.requires_grad_() for part in sample(1, 3, 1))
    first = lambda *args: filtered(args[0], None, args[1])  # noqa: E731
    assert torch.autograd.gradcheck(first, (z, weight), fast_mode=True)
    assert torch.autograd.gradgradcheck(first, (z, weight), fast_mode=True)
    assert torch.autograd.gradcheck(filtered, (z, tail, weight), fast_mode=True)
    assert torch.autograd.gradgradcheck(filtered, (z, tail, weight), fast_mode=True)


@on_kernels
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_many_gradients_at_once_and_forward_mode(strategy):
    parts = sample(2, 5, 2)
    jacobian = torch.autograd.functional.jacobian
    ours = jacobian(lambda *of: filtered(*of)[1], parts, vectorize=True, strategy=strategy)
    truth = jacobian(lambda *of: plainly(*of, None)[1], parts)
    torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-10)


@on_kernels
@pytest.mark.usefixtures("kernels")
def test_a_layer_with_kernels_is_the_layer_without(monkeypatch):
    torch.manual_seed(0)
    layer = Hyena(6, mixer_of("real", 6, 4)).double().to(DEVICE)
    x, lengths = torch.randn(3, 20, 6, dtype=torch.float64, device=DEVICE), torch.tensor([20, 7, 0], device=DEVICE)
    reset = torch.rand(3, 20, device=DEVICE) < 0.1
    _, state = layer(x)
    results = []
    for backend in ("triton", "reference"):
        monkeypatch.setattr(hyena_filter, "resolve", lambda *_, backend=backend: backend)
        layer.zero_grad()
        y, (tail, inner) = layer(x, (state[0].detach(), state[1].detach()), lengths=lengths, reset=reset)
        (y.sum() + tail.sum() + inner.sum()).backward()
        results.append([y, tail, inner, *(p.grad.clone() for p in layer.parameters())])
    for ours, truth in zip(*results, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)


COMPILE = """
import json, torch, triton_without_gpu as tool
from types import SimpleNamespace
target = tool.GPUTarget("cuda", 90, 32)
absent = {"get_current_target": lambda: target, "get_current_device": lambda: 0, "get_current_stream": lambda _: 0}
tool.driver.set_active(SimpleNamespace(**absent))
tool.Launch.__call__ = tool.compile_only
from stablessm.models import triton_hyena
with torch.device("meta"):
    z, weight = torch.empty(8, 4096, 3 * 768, dtype=torch.bfloat16), torch.empty(3, 3 * 768)
    reset, d = torch.empty(8, 4096, dtype=torch.bool), torch.empty(8, 4096, 768, dtype=torch.bfloat16)
    triton_hyena.forward(z, None, reset, weight)
    triton_hyena.backward(z, None, reset, weight, d, d)
print(json.dumps(list(tool.compiled.values())))
"""


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu_and_keep_to_their_registers():
    pytest.importorskip("triton")
    tests = Path(__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", f"import sys; sys.argv = ['', '90']\n{COMPILE}"]
    done = subprocess.run(
        command,
        env={**environment, "PYTHONPATH": os.pathsep.join((str(tests), *sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    made = {kernel["kernel"]: kernel for kernel in json.loads(done.stdout or "[]")}
    assert made.keys() == {"forward_kernel", "backward_kernel"}, done.stderr
    assert all(kernel["spilled_bytes"] == 0 for kernel in made.values()), made


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_inputs_on_a_gpu(dtype):
    z, tail, weight = sample(3, 1000, 200)
    reset = torch.rand(3, 1000, device=DEVICE) < 0.01
    found = []
    for run, kind in ((filtered, dtype), (plainly, torch.float64)):
        own, taps = z.to(dtype).to(kind).requires_grad_(), weight.float().to(taps_of(kind)).requires_grad_()
        q, u = run(own, tail.to(dtype).to(kind), taps, reset)
        (q.double().sum() + u.double().sum()).backward()
        found.append([part.double() for part in (q, u, own.grad, taps.grad)])
    for ours, truth in zip(*found, strict=True):
        tolerance = (1e-2 if dtype == torch.bfloat16 else 1e-4) * float(truth.abs().max())
        torch.testing.assert_close(ours, truth, rtol=0, atol=tolerance)


def taps_of(kind: torch.dtype) -> torch.dtype:
    """The filter stays in float32 under autocast."""
    return torch.promote_types(kind, torch.float32)
