"""Joining stretches of a sequence: the algebra that a scan over ranks rests on, without ranks."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import stablessm as ssm
from stablessm._parts import nth_part
from stablessm.parallel.carry import Affine
from stablessm.parallel.window import last_inputs

seeds = st.integers(0, 2**31)


def random_map(generator: torch.Generator, dtype: torch.dtype, matrix: bool, zeros: bool) -> Affine:
    shape = (2, 3, 4)
    factor = torch.randn(2, 3, 3 if matrix else 4, dtype=dtype, generator=generator)
    if zeros:  # a reset
        factor = factor * (torch.rand(factor.shape, generator=generator) < 0.5)
    return Affine(factor, torch.randn(shape, dtype=dtype, generator=generator), matrix)


maps = st.builds(
    lambda seed, dtype, matrix, zeros: [random_map(torch.Generator().manual_seed(seed + i), dtype, matrix, zeros)
                                        for i in range(3)],
    seeds, st.sampled_from([torch.float64, torch.complex128]), st.booleans(), st.booleans(),
)  # fmt: skip


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-12, atol=1e-11)


@given(maps)
def test_joining_is_associative_and_does_one_after_the_other(three: list[Affine]) -> None:
    a, b, c = three
    left, right = c.after(b).after(a), c.after(b.after(a))
    assert close(left.factor, right.factor)
    assert close(left.offset, right.offset)
    assert close(left(a.offset), c(b(a(a.offset))))


@given(maps)
def test_the_adjoint_joins_the_other_way(three: list[Affine]) -> None:
    a, b, _ = three
    gradient = torch.zeros_like(a.offset)
    joined = b.after(a).adjoint(gradient)
    apart = a.adjoint(gradient).after(b.adjoint(gradient))
    assert close(joined.factor, apart.factor)
    state, weight = a.offset, b.offset
    forward, backward = a.times(state), a.adjoint(gradient)(weight)
    assert close((forward.conj() * weight).sum(), (state.conj() * backward).sum())


@given(st.integers(0, 100), st.integers(1, 12))
def test_parts_follow_each_other_and_differ_by_one_step(steps: int, ranks: int) -> None:
    parts = [nth_part(steps, rank, ranks) for rank in range(ranks)]
    assert [step for own in parts for step in range(own.start, own.stop)] == list(range(steps))
    sizes = [own.stop - own.start for own in parts]
    assert max(sizes) - min(sizes) <= 1


@given(seeds, st.lists(st.integers(0, 4), min_size=1, max_size=5), st.booleans(), st.integers(1, 3))
def test_windows_of_parts_join_to_that_of_the_whole(seed: int, sizes: list[int], resets: bool, taps: int) -> None:
    """Against a filter's state that walks step by step."""
    generator = torch.Generator().manual_seed(seed)
    batch, steps = 2, sum(sizes)
    x = torch.randn(batch, steps, 3, generator=generator, dtype=torch.float64)
    tail = torch.randn(batch, taps, 3, generator=generator, dtype=torch.float64)
    reset = torch.rand(batch, steps, generator=generator) < 0.3 if resets else None
    lengths = torch.randint(0, steps + 1, (batch,), generator=generator)
    truth = tail.clone()
    for b in range(batch):
        for t in range(int(lengths[b])):
            kept = torch.zeros_like(truth[b]) if reset is not None and reset[b, t] else truth[b]
            truth[b] = torch.cat([kept[1:], 2 * x[b, t, None]])
    found, start = tail, 0
    for size in sizes:
        steps_here = slice(start, start + size)
        own = (lengths - start).clamp(0, size)
        cut = None if reset is None else reset[:, steps_here]
        found = last_inputs(lambda u: 2 * u, x[:, steps_here], found, lengths=own, reset=cut)(found)
        start += size
    assert torch.equal(found, truth)


def diagonal_layers() -> dict[str, ssm.SequenceLayer]:
    torch.manual_seed(0)
    layers = {
        "real": ssm.RealSSM(3, 5, 2, dt=0.3),
        "discrete": ssm.RealSSM(3, 5, 2, time="discrete"),
        "lru": ssm.LRU(3, 5, 2),
        "s4d": ssm.S4D(3, 4),
    }
    return {name: layer.double() for name, layer in layers.items()}


LAYERS = diagonal_layers()


@given(seeds, st.sampled_from(sorted(LAYERS)), st.integers(0, 9), st.booleans(), st.booleans(), st.integers(0, 3))
def test_a_layers_transition_is_what_it_does_to_states(
    seed: int, name: str, steps: int, resets: bool, padded: bool, kind: int
) -> None:
    layer, generator = LAYERS[name], torch.Generator().manual_seed(seed)
    x = torch.randn(2, steps, 3, generator=generator, dtype=torch.float64)
    start = layer.initial_state(2)
    state = torch.randn(start.shape, dtype=start.dtype, generator=generator)
    dt = [None, 0.5, torch.rand(steps, generator=generator), torch.rand(2, steps, generator=generator)][kind]
    options = {
        "reset": torch.rand(2, steps, generator=generator) < 0.2 if resets else None,
        "lengths": torch.randint(0, steps + 1, (2,), generator=generator) if padded else None,
        "dt": dt,
    }
    own = Affine(*layer.transition(x, **options))
    assert close(own(state), layer(x, state, **options)[1])
