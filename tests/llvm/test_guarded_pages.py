"""No CPU kernel touches anything outside its arrays: each array lies against a page that must not be touched.

Every array that a kernel is given is moved there, with its strides, right before the kernel runs; what the kernel wrote
is moved back, and the results are compared with the reference.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fresh_process
import guarded_pages
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are protected by Linux calls")

MOVED = """
import itertools, random, sys
import guarded_pages, torch
from guarded_pages import guarded, written_apart
from scan_cases import check_against_reference
from ssm_cases import check_against_reference as check_layer
import stablessm as ssm
from stablessm.scan.cpu import linear, ssm as layer

torch.set_num_threads(1)
kernels = set()


def moved(arrays):
    copies = {}
    for name, array in arrays.items():  # two names may stand for one array
        same = [copies[other] for other in copies if arrays[other] is array]
        copies[name] = same[0] if same else guarded(array)
    return copies


def back(arrays, copies):
    for name, array in arrays.items():
        if written_apart(array):
            array.copy_(copies[name])


def watch(module):
    get, names = module.compiled, {"linear_kernels": "linear", "ssm_kernels": "ssm", "ssm_tables": "tables"}

    def compiled(build, spec):
        kernels.add((names[build.__module__.rpartition(".")[2]], *spec))
        return get(build, spec)

    module.compiled = compiled


run, call = linear._run, layer._call


def guarded_run(arrays, states, reset, reverse):
    copies = moved(arrays)
    run(copies, states, None if reset is None else guarded(reset.to(torch.uint8)), reverse)
    back(arrays, copies)


def guarded_call(kernel, arrays, layout, **counts):
    used = {name: array for name, array in arrays.items() if name in kernel.names}
    copies = moved(used)
    call(kernel, copies, layout, **counts)
    back(used, copies)


linear._run, layer._call = guarded_run, guarded_call
for module in (linear, layer):
    watch(module)
"""

SCAN = (
    MOVED
    + """
seed = int(sys.argv[1])
rng = random.Random(seed)
torch.manual_seed(seed)
dtypes = [torch.float32, torch.complex64, *([torch.float64, torch.complex128] if seed else [])]


def odd_views():
    "Expanded, unaligned and empty arguments."
    for shape in ((2, 5, 7), (0, 5, 7), (2, 0, 7), (2, 5, 0), (1, 1, 1), (3, 1, 33)):
        B, T, C = shape
        drive = torch.randn(B, T, C + 1)[..., 1:]
        one = torch.randn(1, 1, C + 3).expand(B, T, C + 3)[..., 3:]
        decays = (one, torch.rand(1, C).expand(T, C), torch.rand(1).expand(C))
        for a, x in (*((decay, drive) for decay in decays), (drive / 4, one)):
            leaves = [u.detach().requires_grad_() for u in (a, x)]
            found = []
            for backend in ("cpu", "reference"):
                states = ssm.linear_scan(*leaves, torch.randn(1, 1).expand(B, C) * 0, backend=backend)
                found.append([states, *torch.autograd.grad(states.sum(), leaves)])
            torch.testing.assert_close(*found)
        A = torch.rand(1, 3).expand(C, 3)
        lengths = torch.randint(0, T + 1, (B,))
        found = [ssm.ssm_scan(drive, A, A, A, lengths=lengths, backend=b) for b in ("cpu", "reference")]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


for guarded_pages.at_the_end, side in enumerate(guarded_pages.SIDES):
    for dtype, rank, reset in itertools.product(dtypes, (1, 3), (None, 2)):
        linear.STREAM_BYTES, linear.PREFETCH_BYTES = rng.choice([(0, 0), (1 << 40, 0), (1 << 40, 1 << 40)])
        channels = rng.choice([1, 2, 3, 16, 21, 31, 32, 37, 64, 69])
        check_against_reference(
            "cpu", dtype, rng.choice([1, 2, 9, 17]), decay_rank=rank, batch=rng.choice([1, 2]), channels=channels,
            initial=rng.random() < 0.5, reset=reset, reverse=rng.random() < 0.5, contiguous=rng.random() < 0.5,
            seed=rng.randrange(1 << 30),
        )
    for dtype, reset, lengths in itertools.product(dtypes, (None, 2), (False, True)):
        layer.STREAM_BYTES = rng.choice([0, 1 << 40])
        check_layer(
            "cpu", dtype, rng.choice([1, 15, 16, 63, 64, 65, 130]), batch=rng.choice([1, 2]),
            channels=rng.choice([1, 7, 8, 16, 19, 32]), states=rng.choice([1, 2, 3, 4, 5, 9]), skip=rng.random() < 0.5,
            initial=rng.random() < 0.5, reset=reset, lengths=lengths, contiguous=rng.random() < 0.5,
            seed=rng.randrange(1 << 30),
        )
    odd_views()
    print(side, flush=True)
both = (False, True)
kinds = itertools.product(("linear", "ssm", "tables"), both, both if seed else (False,), both)
assert {kernel[:4] for kernel in kernels} == set(kinds)  # backward, double, complex
"""
)

STREAM = """
import sys
import guarded_pages, numpy as np, torch
from guarded_pages import guarded
from streaming_models import MODELS, make
from stablessm.streaming import compiled_runner, freeze, memory, operation_code


def zeros(shape, dtype=None):
    size = torch.float64 if np.dtype(dtype or float).itemsize == 8 else torch.float32
    return guarded_pages.zeros(*shape, dtype=size).numpy()


class Numpy:
    zeros = staticmethod(zeros)

    def __getattr__(self, name):
        return getattr(np, name)


compiled_runner.np = Numpy()
memory.Memory._zeros = lambda self, shape, dtype=None: zeros(shape, dtype or self.dtype)
names = MODELS if sys.argv[1] != "0" else ["lru", "s4d", "filters"]
for guarded_pages.at_the_end, side in enumerate(guarded_pages.SIDES):
    operation_code.PARALLEL_BYTES *= not guarded_pages.at_the_end
    for batch, name in enumerate(names, 1):
        model = make(name).eval()
        program = freeze.freeze(model)
        runner = compiled_runner.CompiledRunner(program, batch % 3 + 1)
        shape = (batch % 3 + 1, 5, program.sizes[0])
        x = guarded(torch.randn(shape, dtype=program.torch_dtype))
        y = guarded(torch.zeros(*shape[:2], program.sizes[program.output], dtype=program.torch_dtype))
        runner.run(x.numpy(), y.numpy())
        runner.x[...] = x[:, 0].numpy()
        runner.step()
        assert torch.isfinite(y).all()
        assert y.abs().max() > 0
    print(side, flush=True)
"""


PRODUCT = """
import itertools, random, sys
from unittest import mock
sys.path.append(sys.path[0] + "/scan")
import guarded_pages, torch
from guarded_pages import guarded
from stablessm.scan.cpu import mixer_step, product
from test_mixer_step import OPTIONS, drawn

rng = random.Random(int(sys.argv[1]))
product.results.empty = lambda shape, dtype: guarded_pages.empty(shape, dtype=dtype)
dtypes = (torch.float32, torch.float64, torch.bfloat16)
for guarded_pages.at_the_end, side in enumerate(guarded_pages.SIDES):
    for dtype, rows, outputs, bias in itertools.product(dtypes, (1, 2, 3), (1, 4, 7), (False, True)):
        inputs, shift = rng.choice([1, 7, 8, 15, 16, 17, 37, 64]), rng.choice([0, 1, 3])
        x, weight, b = torch.randn(rows, inputs), torch.randn(outputs, inputs + shift), torch.randn(outputs)
        x, weight, b = (guarded(tensor.to(dtype)) for tensor in (x, weight, b))
        weight = weight[:, shift:]
        error = product.linear(x, weight, b if bias else None) - (x @ weight.mT + b * bias)
        assert error.abs().max() < (0.5 if dtype == torch.bfloat16 else 1e-4)
    for dtype, heads, draw in itertools.product(dtypes, (False, True), range(6)):
        x, mixer, *states = drawn(rng.randrange(10**6), heads, dtype)
        own = lambda t: t if t is None else tuple(map(guarded, t)) if isinstance(t, tuple) else guarded(t)
        mixer, states = mixer_step.Mixer(*map(own, mixer)), [guarded(t) for t in states]
        with mock.patch.object(mixer_step.torch, "empty", guarded_pages.empty):
            step = mixer_step.Step(x, mixer, *states, OPTIONS[draw % 2])
        assert step(x, *states).isfinite().all()
    print(side, flush=True)
"""


@pytest.mark.parametrize("program", [SCAN, STREAM, PRODUCT], ids=["scan", "streaming", "product"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_nothing_outside_is_touched(program: str, seed: int) -> None:
    """Seed 0 has the commonest kernels; any other seed has all of them."""
    guarded_pages.run(program, seed)


@pytest.mark.parametrize(("at_the_end", "offset"), [(0, -1), (1, 12)])
def test_an_access_outside_kills_the_process(at_the_end: int, offset: int) -> None:
    program = f"""
import ctypes, guarded_pages, torch
guarded_pages.at_the_end = {at_the_end}
array = guarded_pages.guarded(torch.ones(3))
print(ctypes.string_at(array.data_ptr(), 12) == bytes(array.numpy()), flush=True)
ctypes.string_at(array.data_ptr() + {offset}, 1)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(guarded_pages.__file__).parent)}
    ran = fresh_process.run(program, environment)
    assert ran.stdout.split() == ["True"]
    assert ran.returncode < 0
