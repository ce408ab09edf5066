"""Arguments of a call reach every block of a stack: time steps, resets and lengths, for every kind of mixer."""

from __future__ import annotations

import pytest
import torch
from random_parameters import randomized

import stablessm as ssm
from stablessm.models import SequenceStack, StackConfig
from stablessm.models.mixers import mixer_names

B, T = 2, 6


def make(mixer: str) -> SequenceStack:
    torch.manual_seed(0)
    return (
        randomized(SequenceStack(StackConfig(d_input=3, d_model=4, n_layers=2, mixer=mixer, d_state=3))).double().eval()
    )


@pytest.mark.parametrize("again", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("mixer", mixer_names())
def test_time_steps_reach_every_block(mixer: str, again: bool) -> None:
    stack, x = make(mixer), torch.randn(B, T, 3, dtype=torch.float64)
    if again:
        stack.train()
        stack.gradient_checkpointing = True
    dt = 0.1 + torch.rand(B, T, dtype=torch.float64)
    y, state = stack(x, dt=dt)
    own, outputs = None, []
    for t in range(T):
        y_t, own = stack.step(x[:, t], own, dt=dt[:, t])
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1), y)
    torch.testing.assert_close(own, state)
    for block in range(2):  # one block alone would do for the numbers of the last
        plain = stack(x)[1][block]
        leaf, other = (part[1] if isinstance(part, tuple) else part for part in (plain, state[block]))
        assert not torch.allclose(leaf, other)


@pytest.mark.parametrize("mixer", mixer_names())
def test_a_reset_starts_every_block_anew_and_padding_is_not_read(mixer: str) -> None:
    stack, x = make(mixer), torch.randn(B, T, 3, dtype=torch.float64)
    y, state = stack(x, reset=torch.arange(T) == 4)
    torch.testing.assert_close(y[:, :4], stack(x[:, :4])[0])
    rest = stack(x[:, 4:])
    torch.testing.assert_close((y[:, 4:], state), rest)
    y, state = stack(x, lengths=torch.tensor([T, 3]))
    torch.testing.assert_close(y[1, :3], stack(x[1:, :3])[0][0])
    short = stack(x[1:, :3])[1]
    flat = [leaf for tree in (state, short) for leaf in [list(_leaves(tree))]]
    torch.testing.assert_close([leaf[1:] for leaf in flat[0]], flat[1])


def _leaves(state):
    if isinstance(state, tuple):
        for part in state:
            yield from _leaves(part)
    else:
        yield state


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("pool", ["mean", "last"])
def test_lengths_have_any_integer_dtype(pool: str, dtype: str) -> None:
    sizes = {"d_model": 4, "n_layers": 1, "d_state": 2}
    classifier = ssm.SequenceClassifier(2, d_input=3, pool=pool, **sizes).eval()
    for model in (classifier, ssm.Bidirectional(ssm.LRU(3, 4, 2)), ssm.LRU(3, 4, 2)):
        x = torch.randn(2, 200, 3)
        found = [model(x, lengths=lengths) for lengths in ([100, 3], torch.tensor([100, 3]).to(getattr(torch, dtype)))]
        y, z = (each if isinstance(each, torch.Tensor) else each[0] for each in found)
        assert torch.equal(y, z)
