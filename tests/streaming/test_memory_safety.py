"""A streamer writes where it was told to, or says why not: every backend refuses the same memory."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_parameters import randomized
from streaming_models import MODELS, make, width

import stablessm as ssm
from stablessm import ArgumentError, Streamer

BACKENDS = ("compiled", "numpy")
FEW = [name for name in MODELS if name in ("lru", "s4d", "filters", "two layers")]
SHAPE = (2, 5, 3)
"""Of an output: batch, time, d_output."""


class Labeled(torch.Tensor):
    """A subclass of tensors."""


@functools.cache
def shared(backend: str, dtype: torch.dtype) -> Streamer:
    torch.manual_seed(0)
    return Streamer(randomized(ssm.LRU(3, 4, 3)).to(dtype), 2, backend=backend)


def streamer(backend: str, dtype: torch.dtype = torch.float32) -> Streamer:
    """One for all tests, compiled once, from the zero state."""
    stream = shared(backend, dtype)
    stream.reset()
    return stream


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def mapped(folder: Path, mode: str) -> np.ndarray:
    path = folder / "numbers"
    np.zeros(SHAPE, np.float32).tofile(path)
    return np.memmap(path, np.float32, mode, shape=SHAPE)


def foreign(buffer: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that it does not support read-only memory
        return torch.from_numpy(buffer)


def resized(tensor: torch.Tensor, size: int) -> torch.Tensor:
    tensor.untyped_storage().resize_(size)
    return tensor


BYTES = bytes(4 * 2 * 5 * 3)
BAD_OUT: dict[str, Callable[[Path], Any]] = {
    "read-only array": lambda _: read_only(np.zeros(SHAPE, np.float32)),
    "array over bytes": lambda _: np.frombuffer(BYTES, np.float32).reshape(SHAPE),
    "read-only memmap": lambda folder: mapped(folder, "r"),
    "tensor over a read-only memmap": lambda folder: foreign(mapped(folder, "r")),
    "bytes": lambda _: BYTES,
    "bytearray": lambda _: bytearray(BYTES),
    "list": lambda _: np.zeros(SHAPE).tolist(),
    "text": lambda _: "out",
    "masked array": lambda _: np.ma.zeros(SHAPE, np.float32),
    "array of objects": lambda _: np.zeros(SHAPE, object),
    "half the precision": lambda _: torch.zeros(SHAPE, dtype=torch.float16),
    "double precision": lambda _: np.zeros(SHAPE),
    "whole numbers": lambda _: torch.zeros(SHAPE, dtype=torch.int32),
    "complex": lambda _: torch.zeros(SHAPE, dtype=torch.complex64),
    "bfloat16": lambda _: torch.zeros(SHAPE, dtype=torch.bfloat16),
    "other byte order": lambda _: np.zeros(SHAPE, ">f4"),
    "expanded": lambda _: torch.zeros(2, 5, 1).expand(SHAPE),
    "broadcast": lambda _: np.broadcast_to(np.zeros((2, 1, 3), np.float32), SHAPE),
    "every second": lambda _: np.zeros((2, 10, 3), np.float32)[:, ::2],
    "transposed": lambda _: torch.zeros(3, 5, 2).permute(2, 1, 0),
    "reversed": lambda _: np.zeros(SHAPE, np.float32)[:, ::-1],
    "one step short": lambda _: torch.zeros(2, 4, 3),
    "one step more": lambda _: np.zeros((2, 6, 3), np.float32),
    "flat": lambda _: np.zeros(30, np.float32),
    "needs a gradient": lambda _: torch.zeros(SHAPE, requires_grad=True),
    "no memory at all": lambda _: torch.zeros(SHAPE, device="meta"),
    "sparse": lambda _: torch.zeros(SHAPE).to_sparse(),
    "negated": lambda _: torch._neg_view(torch.zeros(SHAPE)),
    "freed": lambda _: resized(torch.zeros(SHAPE), 0),
    "too little memory": lambda _: resized(torch.zeros(SHAPE), 4),
    "nested": lambda _: torch.nested.nested_tensor(list(torch.zeros(SHAPE))),
}
BAD_X: dict[str, Callable[[], Any]] = {
    "complex": lambda: np.zeros(SHAPE, np.complex64),
    "objects": lambda: np.zeros(SHAPE, object),
    "text": lambda: np.zeros(SHAPE, "U3"),
    "masked": lambda: np.ma.zeros(SHAPE, np.float32),
    "list": lambda: np.zeros(SHAPE).tolist(),
    "bytes": lambda: BYTES,
    "None": lambda: None,
    "bfloat16": lambda: torch.zeros(SHAPE, dtype=torch.bfloat16),
    "complex tensor": lambda: torch.zeros(SHAPE, dtype=torch.complex64),
    "needs a gradient": lambda: torch.zeros(SHAPE, requires_grad=True),
    "meta": lambda: torch.zeros(SHAPE, device="meta"),
    "sparse": lambda: torch.zeros(SHAPE).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor(list(torch.zeros(SHAPE))),
    "too few channels": lambda: torch.zeros(2, 5, 2),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", BAD_OUT)
def test_out_is_refused(kind, backend, tmp_path):
    stream, out = streamer(backend), BAD_OUT[kind](tmp_path)
    with pytest.raises(ArgumentError, match=r"^out: expected"):
        stream.run(torch.randn(2, 5, 3), out)
    assert not any(BYTES)
    assert torch.equal(stream.state, torch.zeros(2, 4, dtype=torch.complex64))  # nothing ran


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", BAD_X)
def test_inputs_are_refused(kind, backend):
    stream, x = streamer(backend), BAD_X[kind]()
    with pytest.raises(ArgumentError, match=r"^x: expected"):
        stream.run(x)
    one = x if kind in ("sparse", "nested") or not hasattr(x, "shape") else x[:, 0]
    with pytest.raises(ArgumentError, match=r"^x_t: expected"):
        stream(one)
    assert torch.equal(stream.state, torch.zeros(2, 4, dtype=torch.complex64))


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, max_examples=30)
@given(shift=st.integers(0, 29), reverse=st.booleans(), tensor=st.booleans())
def test_overlapping_memory_is_refused(backend, shift, reverse, tensor):
    memory: Any = torch.zeros(60) if tensor else np.zeros(60, np.float32)
    first, second = memory[:30].reshape(SHAPE), memory[shift : shift + 30].reshape(SHAPE)
    x, out = (second, first) if reverse else (first, second)
    with pytest.raises(ArgumentError, match="out: expected memory apart"):
        streamer(backend).run(x, out)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, max_examples=30)
@given(
    stride=st.integers(1, 3),
    back=st.booleans(),
    double=st.booleans(),
    tensor=st.booleans(),
    kind=st.sampled_from("fi"),
    place=st.sampled_from(["none", "array", "tensor", "memmap", "subclass", "foreign"]),
)
def test_good_memory_gets_the_same_numbers(backend, stride, back, double, tensor, kind, place):
    dtype = torch.float64 if double else torch.float32
    values = np.random.default_rng(0).standard_normal((2, 5 * stride, 3)) * 9
    x: Any = values.astype(np.int64 if kind == "i" else np.float64)[:, :: -stride if back else stride]
    truth = streamer("numpy", dtype).run(np.ascontiguousarray(x, np.float64 if double else np.float32))
    out: Any = None
    number = np.float64 if double else np.float32
    if place == "array":
        out = np.full((4, 5, 3), 7, number)[1:3]
    elif place == "memmap":
        out = np.memmap("numbers.tmp", number, "w+", shape=SHAPE)
        Path("numbers.tmp").unlink()
    elif place in ("tensor", "subclass"):
        out = torch.full((4, 5, 3), 7, dtype=dtype)[1:3]
        out = out.as_subclass(Labeled) if place == "subclass" else out
    elif place == "foreign":
        out = torch.from_numpy(np.zeros(SHAPE, number))
    given_x = torch.from_numpy(np.ascontiguousarray(x)) if tensor else x
    y = streamer(backend, dtype).run(given_x, out)
    assert out is None or y is out
    assert isinstance(y, torch.Tensor) == (tensor if out is None else isinstance(out, torch.Tensor))
    np.testing.assert_allclose(np.asarray(y), truth, rtol=1e-4 if not double else 1e-11, atol=1e-4)
    if place in ("array", "tensor"):
        around = y.base if place == "array" else torch.as_strided(y, (4, 5, 3), (15, 3, 1), 0)
        assert (np.asarray(around)[[0, 3]] == 7).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_states_are_refused_and_nothing_is_written(backend):
    stream = streamer(backend)
    stream.run(torch.randn(2, 5, 3))
    before = stream.state
    bad = (
        before.real,
        before.real.numpy(),
        before[:1],
        before.to("meta"),
        "state",
        None,
        before.numpy().astype(object),
    )
    for wrong in bad:
        with pytest.raises(ArgumentError, match="state"):
            stream.state = wrong
        assert torch.equal(stream.state, before)
    both = Streamer(torch.nn.Sequential(ssm.LRU(3, 4, 3), ssm.LRU(3, 4, 3)), backend=backend)
    first, second = both.state
    with pytest.raises(ArgumentError, match="state"):
        both.state = (first + 1, second.real)
    assert torch.equal(both.state[0], first)


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "numpy") for name in MODELS), *((name, "compiled") for name in FEW)]
)
def test_copies_go_on_alone_to_the_same_bits(name, backend):
    model = make(name, torch.float32)
    x = torch.randn(2, 9, width(model))
    stream = Streamer(model, 2, backend=backend)
    stream.run(x[:, :4])
    twins = [copy.copy(stream), copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))]
    late = stream.run(x[:, 4:])
    for twin in twins if backend == "numpy" else twins[:1]:
        assert (twin.backend, repr(twin)) == (stream.backend, repr(stream))
        assert torch.equal(twin.run(x[:, 4:]), late)
        assert not np.may_share_memory(twin(x[:, 0]).numpy(), stream(x[:, 0]).numpy())


def test_a_step_outlives_its_streamer():
    stream = Streamer(ssm.LRU(3, 4, 3), 2, backend="compiled")
    step, y = stream._step, stream(torch.randn(2, 3))
    runner = stream._runner
    x = runner.x
    del stream, runner
    gc.collect()
    junk = Streamer(ssm.LRU(3, 4, 3), 2)  # takes the memory that was freed
    x[...] = 1
    for _ in range(100):
        step()
    assert bool(torch.isfinite(y).all())
    assert junk
