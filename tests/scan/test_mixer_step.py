"""One step of a Mamba mixer on a CPU: the equations in float64, in place, on any number of threads."""

from __future__ import annotations

import random
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import relative_error, scattered
from torch import Tensor
from torch.nn import functional as F

from stablessm.llvm import threads
from stablessm.scan.cpu import mixer_step
from stablessm.scan.cpu.mixer_step import Mixer, Step, fits

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 1e-2}
OPTIONS = ((1e-5, 0.0, float("inf")), (0.1, 0.01, 0.5))


def drawn(seed: int, heads: bool, dtype: torch.dtype) -> tuple[Tensor, Mixer, Tensor, Tensor]:
    """An input, a mixer of random sizes, its last inputs and its state."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch, d, N, K = (
        rng.choice([1, 2, 3, 9]),
        rng.randint(1, 40),
        rng.choice([1, 3, 8, 15, 16, 17, 33]),
        rng.randint(1, 5),
    )

    def weights(*shape: int) -> Tensor:  # begins anywhere in memory
        shift, last = rng.choice([0, 1, 3]), shape[-1] if len(shape) > 1 else 1
        return (torch.randn(shift + torch.Size(shape).numel()) / last**0.5).to(dtype)[shift:].view(shape)

    def bias(size: int) -> Tensor | None:
        return weights(size) if rng.random() < 0.5 else None

    if heads:
        groups, each = rng.choice([1, 2]), rng.randint(1, 20)
        count = groups * rng.randint(1, 3)
        H = count * each
        mixing = H + 2 * groups * N
        total = H + mixing + count
        rest = (weights(count), weights(count), weights(count), None, None, (weights(H),))
    else:
        mixing, R = rng.randint(1, 70), rng.randint(1, 20)
        H, total = mixing, 2 * mixing
        norms = rng.choice([(), (weights(R + 2), weights(N), weights(N))])
        rest = (weights(H, N), weights(H), weights(H), weights(R + 2 * N, H), weights(H, R), norms)
    mixer = Mixer(weights(total, d), bias(total), weights(mixing, 1, K), bias(mixing), weights(d, H), bias(d), *rest)
    wide = torch.promote_types(dtype, torch.float32)
    x = rng.choice([scattered, lambda t: t[:1].expand(t.shape), lambda t: t])(torch.randn(batch, d).to(dtype))
    return x, mixer, torch.randn(batch, mixing, K, dtype=wide), torch.randn(batch, H, N, dtype=wide)


def equations(
    x: Tensor, mixer: Mixer, tail: Tensor, h: Tensor, options: tuple[float, float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the last inputs and the state after one step, in float64."""
    p = Mixer(*(t if t is None else t.double() for t in mixer[:-1]), tuple(t.double() for t in mixer.norms))
    (H, N), mixing, heads = h.shape[1:], tail.shape[1], p.D.numel()
    projected = F.linear(x.double(), p.in_proj, p.in_bias)
    if p.x_proj is None:
        gate, u, delta = projected.split([H, mixing, heads], 1)
    else:
        u, gate = projected.chunk(2, 1)
    tail = torch.cat([tail[..., 1:].double(), u[..., None]], -1)
    u = F.silu((tail * p.conv[:, 0]).sum(-1) + (0 if p.conv_bias is None else p.conv_bias))

    def norm(v: Tensor, weight: Tensor) -> Tensor:
        return v / (v.square().mean(-1, keepdim=True) + options[0]).sqrt() * weight[: v.shape[-1]]

    if p.x_proj is None:
        u, B, C = u.split([H, (mixing - H) // 2, (mixing - H) // 2], 1)
        B, C = (part.unflatten(1, (-1, N)).repeat_interleave(2 * H * N // (mixing - H), 1) for part in (B, C))
        delta, D, A = ((part.repeat_interleave(H // heads, -1)) for part in (delta + p.dt_bias, p.D, p.rate))
        A = A[:, None]
    else:
        parts = F.linear(u, p.x_proj).split([p.dt_proj.shape[1], N, N], 1)
        parts = [norm(part, weight) for part, weight in zip(parts, p.norms, strict=True)] if p.norms else parts
        delta, B, C, D, A = F.linear(parts[0], p.dt_proj, p.dt_bias), parts[1][:, None], parts[2][:, None], p.D, p.rate
    delta = torch.log1p(delta.exp()).clamp(*options[1:])
    h = torch.exp(-delta[..., None] * A.exp()) * h.double() + (delta * u)[..., None] * B
    y = ((h * C).sum(-1) + D * u) * F.silu(gate)
    y = norm(y, p.norms[0]) if p.x_proj is None and p.norms else y
    return F.linear(y, p.out_proj, p.out_bias), tail, h


@settings(max_examples=50, deadline=None)
@given(
    heads=st.booleans(), dtype=st.sampled_from(list(TOLERANCE)), options=st.sampled_from(OPTIONS),
    workers=st.integers(1, 3), seed=st.integers(0, 9999),
)  # fmt: skip
@torch.no_grad()
def test_values(heads: bool, dtype: torch.dtype, options: tuple[float, float, float], workers: int, seed: int) -> None:
    x, mixer, tail, state = drawn(seed, heads, dtype)
    assert fits(x, mixer, tail, state)
    other = tail.clone(), state.clone()
    step = Step(x, mixer, tail, state, options)
    with (
        mock.patch.object(mixer_step.product, "SERIAL_BYTES", 0),
        mock.patch("torch.get_num_threads", return_value=workers),
    ):
        parallel = Step(x, mixer, tail, state, options)
    for _ in range(2):
        truth = equations(x, mixer, tail, state, options)
        y = step(x, tail, state)
        assert (y.dtype, y.shape) == (dtype, x.shape)
        for ours, exact, tolerance in zip((y, tail, state), truth, (dtype, tail.dtype, tail.dtype), strict=True):
            assert relative_error(ours, exact, 1e-3) <= TOLERANCE[tolerance]
        with mock.patch("torch.get_num_threads", return_value=workers):
            assert torch.equal(parallel(x, *other), y)
        assert all(map(torch.equal, other, (tail, state)))


@torch.no_grad()
def test_without_openmp_the_kernels_run_on_other_threads() -> None:
    x, mixer, tail, state = drawn(5, False, torch.float64)
    truth = equations(x, mixer, tail, state, OPTIONS[0])
    with (
        mock.patch.object(mixer_step.product, "SERIAL_BYTES", 0),
        mock.patch.object(threads, "team_to_join", return_value=None),
        mock.patch("torch.get_num_threads", return_value=2),
    ):
        y = Step(x, mixer, tail, state, OPTIONS[0])(x, tail, state)
    for ours, exact in zip((y, tail, state), truth, strict=True):
        assert relative_error(ours, exact, 1e-3) <= 1e-13


@torch.no_grad()
def test_missing_and_extreme_numbers_stay_in_their_sequence() -> None:
    x, mixer, tail, state = drawn(2, False, torch.float32)
    x, tail, state = (t[:1].repeat(3, *[1] * (t.dim() - 1)) for t in (x, tail, state))
    mixer.rate.view(-1)[0], mixer.rate.view(-1)[-1] = 200.0, -200.0  # decays of 0 and 1
    x[1, 0] = torch.nan
    y = Step(x, mixer, tail, state, OPTIONS[0])(x, tail, state)
    assert y.isnan().all(1).tolist() == [False, True, False]
    assert state[::2].isfinite().all()
    assert torch.equal(y[0], y[2])


@pytest.mark.parametrize("heads", [False, True])
def test_other_arguments_do_not_fit(heads: bool) -> None:
    x, mixer, tail, state = drawn(3, heads, torch.float32)
    assert fits(x, mixer, tail, state)
    assert not fits(x.half(), mixer, tail, state)
    assert not fits(x, mixer, tail.double(), state)
    assert not fits(x, mixer, tail, state.mT)
    assert not fits(x, mixer, tail[..., :-1].contiguous(), state)
    assert not fits(x, mixer, tail, torch.cat([state, state]))
    for name, weight in mixer._asdict().items():
        if isinstance(weight, Tensor):
            shorter = weight[:, :-1].contiguous() if name == "out_proj" else weight[:-1]
            for wrong in (weight.double(), shorter, torch.cat([weight, weight])[::2], weight.to_sparse()):
                assert not fits(x, mixer._replace(**{name: wrong}), tail, state), name
    assert not fits(x, mixer._replace(dt_bias=None), tail, state)
