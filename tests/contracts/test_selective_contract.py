"""What every backend of ``selective_scan`` promises: the values and gradients of the float64 reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import device_of, relative_error, scattered
from torch import Tensor

import stablessm as ssm

BACKENDS = ["reference", "cpu", pytest.param("triton", marks=pytest.mark.slow)]
"""Triton's interpreter takes minutes."""
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}
NAMES = ("x", "delta", "A", "B", "C", "D", "z", "initial", "delta_bias")


def draw(batch: int, steps: int, channels: int, states: int, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    inner, wide = (batch, steps, states), (batch, steps, channels)
    rates = -normal(channels, states).mul(0.7).exp()
    tensors = (normal(*wide), normal(*wide) - 1, rates, normal(*inner), normal(*inner), normal(channels), normal(*wide))
    return dict(zip(NAMES, (*tensors, normal(batch, channels, states), normal(channels)), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=12, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 7, 33, 70]), st.integers(1, 35), st.integers(1, 20)),
    dtype=st.sampled_from(list(TOLERANCE)), given_ones=st.sets(st.sampled_from(NAMES[5:])), reset=st.booleans(),
    lengths=st.booleans(), below_one=st.booleans(), contiguous=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
def test_values_and_gradients_are_those_of_the_reference(
    backend: str, shape: tuple[int, int, int, int], dtype: torch.dtype, given_ones: set[str], reset: bool,
    lengths: bool, below_one: bool, contiguous: bool, seed: int,
) -> None:  # fmt: skip
    tensors = draw(*shape, dtype, seed)
    tensors = {name: tensor for name, tensor in tensors.items() if name in (*NAMES[:5], *given_ones)}
    batch, steps, channels, states = shape
    options = {"reset": torch.rand(batch, steps) < 0.1 if reset else None, "below_one": below_one}
    options["lengths"] = torch.randint(0, steps + 1, (batch,)) if lengths else None
    upstream = torch.randn(batch, steps, channels), torch.randn(batch, channels, states)

    def run(name: str, kind: torch.dtype, device: str) -> list[Tensor]:
        own = {key: tensor.to(device, kind) for key, tensor in tensors.items()}
        own = {key: (t if contiguous else scattered(t)).detach().requires_grad_() for key, t in own.items()}
        moved = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in options.items()}
        results = ssm.selective_scan(**own, **moved, delta_softplus=True, backend=name)
        grads = [gradient.to(result) for gradient, result in zip(upstream, results, strict=True)]
        return [*(r.detach() for r in results), *torch.autograd.grad(results, list(own.values()), grads)]

    truth = run("reference", torch.float64, "cpu")
    for ours, exact in zip(run(backend, dtype, device_of(backend)), truth, strict=True):
        assert ours.dtype == dtype
        assert relative_error(ours, exact, 1e-6) <= TOLERANCE[dtype]


@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_padding_and_episodes(backend: str) -> None:
    device = device_of(backend)
    t = {key: value.to(device) for key, value in draw(2, 40, 5, 3, torch.float64, 0).items()}
    steps = ("x", "delta", "B", "C", "z")

    def run(first: int, last: int, rows: slice = slice(None), **changes: Tensor | None) -> tuple[Tensor, Tensor]:
        parts = {key: value[rows, first:last] if key in steps else value for key, value in t.items()}
        return ssm.selective_scan(**{**parts, "initial": t["initial"][rows], **changes}, backend=backend)

    y, final = run(0, 40)
    first, state = run(0, 17)
    second, last = run(17, 40, initial=state)
    torch.testing.assert_close((torch.cat([first, second], 1), last), (y, final), rtol=1e-9, atol=1e-9)
    dirty = {key: t[key].clone() for key in steps}
    for value in dirty.values():
        value[0, 9:] = torch.nan
    ends = torch.tensor([9, 40], device=device)
    padded, state = run(0, 40, lengths=ends, **dirty)
    torch.testing.assert_close(padded[:1, :9], run(0, 9)[0][:1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state[:1], run(0, 9)[1][:1], rtol=1e-9, atol=1e-9)
    assert not padded[0, 9:].any()
    cut = torch.zeros(40, dtype=torch.bool, device=device)
    cut[11] = True
    alone = run(11, 40, initial=None)
    torch.testing.assert_close(run(0, 40, reset=cut)[1], alone[1], rtol=1e-9, atol=1e-9)


def test_derivatives_of_every_kind() -> None:
    t = list(draw(2, 5, 3, 2, torch.float64, 1).values())
    inputs = [tensor.requires_grad_() for tensor in t[:8]]

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return ssm.selective_scan(*tensors, delta_softplus=True)

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)
    tangents = tuple(torch.ones_like(tensor) for tensor in inputs)
    _, pushed = torch.func.jvp(run, tuple(inputs), tangents)
    _, pull = torch.func.vjp(run, *inputs)
    back = pull(tuple(torch.ones_like(part) for part in pushed))
    total = sum((u * v).sum() for u, v in zip(back, tangents, strict=True))
    torch.testing.assert_close(total, sum(part.sum() for part in pushed))
    many = torch.vmap(run)(*(torch.stack([tensor, 2 * tensor]) for tensor in inputs))
    torch.testing.assert_close(many[0][0], run(*inputs)[0])
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*inputs), run(*inputs))


def test_same_input_same_bits_and_short_dtypes() -> None:
    t = list(draw(2, 100, 20, 16, torch.float32, 2).values())[:5]
    t[1] = torch.nn.functional.softplus(t[1])
    first, again = ssm.selective_scan(*t), ssm.selective_scan(*t)
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    y, final = ssm.selective_scan(*(tensor.bfloat16() for tensor in t))
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("delta", (2, 5, 4), r"^delta: expected shape \(2, 5, 3\) to match x and A, got shape \(2, 5, 4\)"),
        ("A", (3,), r"^A: expected 2 dimensions \(channel, state\), got shape \(3,\)"),
        ("B", (2, 5, 3), r"^B: expected shape \(2, 5, 2\) to match x and A"),
        ("initial", (2, 3), r"^initial: expected shape \(2, 3, 2\)"),
    ],
)
def test_wrong_shapes_are_named(name: str, shape: tuple[int, ...], message: str) -> None:
    t = draw(2, 5, 3, 2, torch.float32, 0) | {name: torch.zeros(shape)}
    with pytest.raises(ssm.ArgumentError, match=message):
        ssm.selective_scan(**t)


@pytest.mark.parametrize("wrong", [None, 3, "text", torch.ones(2).to_sparse()])
@pytest.mark.parametrize("name", ["x", "delta", "A", "B", "C"])
def test_what_is_no_tensor_is_named(name: str, wrong: object) -> None:
    t = draw(2, 5, 3, 2, torch.float32, 0) | {name: wrong}
    with pytest.raises(ssm.ArgumentError, match=rf"^{name}: expected a (dense )?tensor"):
        ssm.selective_scan(**t)
