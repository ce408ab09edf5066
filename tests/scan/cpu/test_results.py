"""Large results lie in mappings that are used again, but never while anything can still read them.

In these tests small results count as large, and mappings are filled with NaN when they become idle.
"""

from __future__ import annotations

import copy
import gc
import io
import itertools
import mmap
import os
import random
import threading

import pytest
import scan_cases
import ssm_cases
import torch
from torch import Tensor

import stablessm as ssm

results = pytest.importorskip("stablessm.scan.cpu.results")
pytestmark = pytest.mark.skipif(not hasattr(mmap, "MAP_ANONYMOUS"), reason="no private mappings on this system")

SHAPE = (1, 4, 256)
SIZE = 4096
"""Bytes of a float32 result of this shape."""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> results.Pool:
    """An empty pool for results of two kilobytes and more, which fills idle mappings with NaN."""

    pool = results.Pool(1 << 20)
    give_back = pool.give_back

    def spoil(mapping: mmap.mmap) -> None:
        mapping[:] = b"\xff" * len(mapping)
        give_back(mapping)

    monkeypatch.setattr(results, "pool", pool)
    monkeypatch.setattr(pool, "give_back", spoil)
    monkeypatch.setattr(results, "LARGE_BYTES", 2048)
    return pool


def scan(seed: int, shape: tuple[int, ...] = SHAPE) -> tuple[Tensor, Tensor]:
    """The states of a random scan by this backend and by the reference."""
    generator = torch.Generator().manual_seed(seed)
    a, x = torch.rand(shape, generator=generator), torch.randn(shape, generator=generator)
    return ssm.linear_scan(a, x, backend="cpu"), ssm.linear_scan(a, x, backend="reference")


def test_memory_is_used_again_when_a_result_is_gone_and_not_before(pool: results.Pool) -> None:
    first, _ = scan(0)
    address = first.data_ptr()
    second, _ = scan(1)
    assert second.data_ptr() != address
    assert pool.idle_bytes == 0
    del first
    assert pool.idle_bytes == SIZE
    third, truth = scan(2)
    assert third.data_ptr() == address
    assert pool.idle_bytes == 0
    torch.testing.assert_close(third, truth)


HOLDERS = {
    "tensor": lambda h: h,
    "view": lambda h: h[:, 1:, ::2],
    "NumPy": lambda h: h.numpy()[..., 3:],
    "storage": lambda h: h.untyped_storage(),
    "DLPack": lambda h: torch.from_dlpack(h),
    "detached": lambda h: h.detach(),
    "tensor of a tensor": lambda h: torch.empty(0).set_(h),
    "memoryview": lambda h: memoryview(h.numpy()),
    "saved by autograd": lambda h: (torch.ones(1, requires_grad=True) * h).grad_fn,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_whatever_reads_a_result_keeps_its_memory(name: str, pool: results.Pool) -> None:
    states, _ = scan(0)
    address = states.data_ptr()
    held = HOLDERS[name](states)
    del states
    assert pool.idle_bytes == 0
    assert scan(1)[0].data_ptr() != address
    del held
    gc.collect()
    assert pool.idle_bytes == 2 * SIZE


def test_live_results_keep_their_values_among_many_others(pool: results.Pool) -> None:
    """Also for gradients and fused layers, of several sizes."""
    rng, live = random.Random(0), []
    for seed in range(150):
        shape = (1, rng.choice([2, 4, 6]), 256)
        a, x = (tensor.requires_grad_() for tensor in (torch.rand(shape), torch.randn(shape)))
        h = ssm.linear_scan(a, x, backend="cpu")
        gradients = torch.autograd.grad(h, (a, x), torch.randn(shape))
        A = torch.rand(256, 2)
        y, state = ssm.ssm_scan(x, A, A, A, backend="cpu")
        for value in (h, *gradients, y, state):
            value = value.detach()[:, rng.randrange(2) :]
            live.append((value, value.clone()))
        rng.shuffle(live)
        del live[rng.randrange(1, 20) :], h, gradients, y, state, value
        assert all(torch.equal(value, before) for value, before in live), seed
    starts = sorted((v.untyped_storage().data_ptr(), v.untyped_storage().nbytes()) for v, _ in live)
    assert all(u + size <= v for (u, size), (v, _) in itertools.pairwise(starts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rank", [1, 3])
def test_scans_in_used_memory_match_the_reference(
    dtype: torch.dtype, rank: int, pool: results.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LARGE_BYTES", 1)
    for seed, (reset, reverse, contiguous) in enumerate([(None, False, True), (2, True, False), (1, False, False)] * 2):
        scan_cases.check_against_reference(
            "cpu", dtype, 33, decay_rank=rank, batch=2, channels=21, initial=seed % 2 == 0, reset=reset,
            reverse=reverse, contiguous=contiguous, seed=seed,
        )  # fmt: skip
    assert pool.idle_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("lengths", [False, True])
def test_layers_in_used_memory_match_the_reference(
    dtype: torch.dtype, lengths: bool, pool: results.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LARGE_BYTES", 1)
    for seed, reset in enumerate([None, 2] * 3):
        ssm_cases.check_against_reference(
            "cpu", dtype, 70, batch=3, channels=19, states=3, skip=seed % 2 == 0, initial=seed % 3 == 0, reset=reset,
            lengths=lengths, contiguous=seed < 3, seed=seed,
        )  # fmt: skip
    assert pool.idle_bytes


def test_idle_memory_is_limited_and_the_oldest_goes_first() -> None:
    pool = results.Pool(3 * SIZE)
    mappings = [pool.take(SIZE) for _ in range(5)]
    for mapping in mappings:
        pool.give_back(mapping)
    assert pool.idle_bytes == 3 * SIZE
    assert pool.take(SIZE) is mappings[4]
    pool.give_back(pool.take(4 * SIZE))
    assert pool.idle_bytes == 0


def test_the_pool_never_holds_more_than_was_in_use_at_once() -> None:
    rng, pool, live, peak = random.Random(1), results.Pool(1 << 30), [], 0
    for _ in range(2000):
        if live and rng.random() < 0.5:
            pool.give_back(live.pop(rng.randrange(len(live))))
        elif len(live) < 12:
            size = SIZE * rng.randint(1, 6)
            live.append(pool.take(size))
            assert len(live[-1]) == size
        peak = max(peak, sum(map(len, live)))
        assert pool.idle_bytes + sum(map(len, live)) <= peak


def test_memory_of_other_sizes_is_used_again() -> None:
    rng, pool = random.Random(2), results.Pool(1 << 30)
    for _ in range(200):
        old, new = (SIZE * rng.randint(1, 9) for _ in range(2))
        mapping = pool.take(old)
        mapping[:] = b"\x07" * old
        pool.give_back(mapping)
        taken = pool.take(new)
        assert taken is mapping
        assert taken[: min(old, new)] == b"\x07" * min(old, new)
        del taken, mapping


def test_a_system_that_cannot_resize_gets_a_new_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(mmap.mmap):
        def resize(self, size: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    pool = results.Pool(1 << 30)
    pool.give_back(Fixed(-1, SIZE))
    assert len(pool.take(2 * SIZE)) == 2 * SIZE
    assert pool.idle_bytes == 0


def test_nothing_waits_for_a_lock_that_another_thread_holds(pool: results.Pool) -> None:
    kept = scan(0)[0]
    with pool._lock:
        states, truth = scan(1)
        torch.testing.assert_close(states, truth)
        del kept, states
    assert pool.idle_bytes == 0
    del truth
    scan(2)
    assert pool.idle_bytes == SIZE


def test_threads(pool: results.Pool) -> None:
    wrong = []

    def work(thread: int) -> None:
        kept: list[tuple[Tensor, Tensor]] = []
        for turn in range(30):
            kept = [*kept[-2:], scan(100 * thread + turn)]
            wrong.extend(thread for states, truth in kept if not torch.allclose(states, truth, atol=1e-5))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 0 < pool.idle_bytes <= 12 * SIZE + 4 * SIZE


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_shares_no_memory(pool: results.Pool) -> None:
    """Neither live results nor idle mappings; a child forked while the lock is held works too."""
    live, truth = scan(0)
    gone = scan(1)
    del gone
    for held in (False, True):
        if held:
            pool._lock.acquire()
        child = os.fork()
        if not child:
            live.fill_(7)
            states, expected = scan(2)
            os._exit(0 if torch.allclose(states, expected, atol=1e-5) else 1)
        if held:
            pool._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        torch.testing.assert_close(live, truth)


def test_a_result_is_an_ordinary_tensor(pool: results.Pool) -> None:
    states, truth = scan(0)
    assert states.untyped_storage().nbytes() == SIZE
    assert states.is_contiguous()
    assert not states._is_view()
    file = io.BytesIO()
    torch.save(states, file)
    assert file.tell() < SIZE + 2000
    file.seek(0)
    for same in (torch.load(file), copy.deepcopy(states), states.clone()):
        assert same.data_ptr() != states.data_ptr()
        torch.testing.assert_close(same, truth)
    states.resize_(2, 3)
    torch.testing.assert_close(states, truth.flatten()[:6].view(2, 3))
    with pytest.raises(RuntimeError, match="not resizable"):
        states.resize_(4000)
    with pytest.raises(RuntimeError, match="not resizable"):
        states.untyped_storage().resize_(0)


def test_shared_memory_is_not_used_again(pool: results.Pool) -> None:
    states, truth = scan(0)
    address = states.data_ptr()
    states.share_memory_()
    assert states.is_shared()
    assert states.data_ptr() != address
    assert pool.idle_bytes == SIZE
    other, _ = scan(1)
    torch.testing.assert_close(states, truth)
    del states
    assert pool.idle_bytes == 0
    del other
    assert pool.idle_bytes == SIZE


def test_results_change_in_place_under_autograd(pool: results.Pool) -> None:
    x, A = torch.randn(SHAPE), torch.rand(SHAPE[-1], 2, requires_grad=True)
    found = []
    for backend in ("cpu", "reference"):
        y, _ = ssm.ssm_scan(x, A, A, A, backend=backend)
        y *= 2
        found.append(torch.autograd.grad(y.square().sum(), A)[0])
    torch.testing.assert_close(*found)


def test_compiled_training_steps(pool: results.Pool) -> None:
    a, x = torch.rand(SHAPE, requires_grad=True), torch.randn(SHAPE)

    def loss(a: Tensor, backend: str) -> Tensor:
        return (ssm.linear_scan(a.sigmoid(), x, backend=backend).tanh() + 1).square().sum()

    compiled = torch.compile(lambda a: loss(a, "cpu"), backend="aot_eager", fullgraph=True)
    (expected,) = torch.autograd.grad(loss(a, "reference"), a)
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(compiled(a), a)[0], expected)
    gc.collect()
    assert pool.idle_bytes


def test_the_memory_of_a_training_loop_does_not_grow(pool: results.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second step on, no new mapping is made."""
    made, new = [], mmap.mmap
    monkeypatch.setattr(results.mmap, "mmap", lambda *args, **kwargs: made.append(args) or new(*args, **kwargs))
    a, x = torch.rand(SHAPE, requires_grad=True), torch.randn(SHAPE, requires_grad=True)
    counts = []
    for _ in range(4):
        h = ssm.linear_scan(a, x, backend="cpu")
        ssm.linear_scan(a, h, backend="cpu").square().mean().backward()
        counts.append(len(made))
    assert counts[0] > 0
    assert counts[1:] == counts[1:2] * 3


def test_expanded_gradients_are_not_copied(pool: results.Pool) -> None:
    a, x = torch.rand(SHAPE, requires_grad=True), torch.randn(SHAPE)
    expanded = torch.ones(()).expand(SHAPE)
    rows = results.rows(expanded, torch.float32)
    assert torch.equal(rows, expanded)
    assert rows.stride()[1:] == (0, 1)
    assert rows.untyped_storage().nbytes() == SHAPE[-1] * 4
    found = [torch.autograd.grad(ssm.linear_scan(a, x, backend=b).sum(), a)[0] for b in ("cpu", "reference")]
    torch.testing.assert_close(*found)


def test_without_memory_for_a_mapping_pytorch_allocates(pool: results.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(results.mmap, "mmap", fail)
    states, truth = scan(0)
    torch.testing.assert_close(states, truth)
    states.resize_(4000)


def test_small_results_do_not_use_the_pool(pool: results.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LARGE_BYTES", SIZE + 1)
    scan(0)
    assert pool.idle_bytes == 0
    monkeypatch.setattr(results, "LARGE_BYTES", SIZE)
    scan(0)
    assert pool.idle_bytes == SIZE


def test_without_a_pool_pytorch_allocates(pool: results.Pool) -> None:
    pool.limit = 0
    states, _ = scan(0)
    states.resize_(4000)
    assert pool.idle_bytes == 0


@pytest.mark.parametrize(("value", "megabytes"), [("0", 0), ("7", 7), ("", 1024), (None, 1024)])
def test_the_environment_variable_sets_the_limit(
    value: str | None, megabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("STABLESSM_POOL", raising=False)
    else:
        monkeypatch.setenv("STABLESSM_POOL", value)
    assert results._limit() == megabytes << 20


@pytest.mark.parametrize("value", ["-1", "1.5", "on"])
def test_another_value_of_the_variable_is_an_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLESSM_POOL", value)
    with pytest.raises(ValueError, match="STABLESSM_POOL: expected a number of megabytes"):
        results._limit()
