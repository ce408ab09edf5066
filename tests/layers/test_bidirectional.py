from __future__ import annotations

import pytest
import torch
from torch import Tensor

import stablessm as ssm


def make(**options: object) -> ssm.Bidirectional:
    torch.manual_seed(0)
    return ssm.Bidirectional(ssm.RealSSM(2, 5, 3, dt=0.3), **options).double()


def parts(model: ssm.Bidirectional, x: Tensor) -> Tensor:
    """The definition, for one sequence without padding or resets."""
    ahead, _ = model.ahead(x)
    back, _ = model.back(x.flip(1))
    return torch.cat([ahead, back.flip(1)], -1)


def test_reads_both_ways() -> None:
    model, x = make(), torch.randn(2, 9, 2, dtype=torch.float64)
    torch.testing.assert_close(model(x)[0], parts(model, x))
    assert not torch.equal(model.ahead.B, model.back.B)


def test_sum_merges_channels() -> None:
    model, x = make(merge="sum"), torch.randn(2, 9, 2, dtype=torch.float64)
    ahead, back = parts(model, x).split(3, -1)
    torch.testing.assert_close(model(x)[0], ahead + back)


def test_padding_is_turned_within_itself() -> None:
    model, x, lengths = make(), torch.randn(3, 9, 2, dtype=torch.float64), torch.tensor([9, 4, 0])
    y, _ = model(x, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        if length:
            torch.testing.assert_close(y[i : i + 1, :length], parts(model, x[i : i + 1, :length]))
        assert not y[i, length:].any()


def test_episodes_do_not_see_each_other() -> None:
    model, x = make(), torch.randn(1, 9, 2, dtype=torch.float64)
    reset = torch.arange(9) == 5
    expected = torch.cat([parts(model, x[:, :5]), parts(model, x[:, 5:])], 1)
    torch.testing.assert_close(model(x, reset=reset)[0], expected)


def test_a_reset_in_the_padding_changes_nothing() -> None:
    model, x, lengths = make(), torch.randn(1, 9, 2, dtype=torch.float64), torch.tensor([4])
    state = (None, torch.randn(1, 5, dtype=torch.float64))
    y, _ = model(x, state, lengths=lengths, reset=torch.arange(9) == 4)
    torch.testing.assert_close(y, model(x, state, lengths=lengths)[0])


def test_dt_goes_with_its_sample() -> None:
    model, x, dt = make(), torch.randn(1, 6, 2, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    ahead, _ = model.ahead(x, dt=dt)
    back, _ = model.back(x.flip(1), dt=dt.flip(0))
    for given in (dt, dt.numpy()):
        torch.testing.assert_close(model(x, dt=given)[0], torch.cat([ahead, back.flip(1)], -1))


def test_mismatched_layers_are_refused() -> None:
    with pytest.raises(ssm.ArgumentError, match=r"^back: expected d_input 2 \(as ahead\), got 3"):
        ssm.Bidirectional(ssm.RealSSM(2, 5, 3), ssm.RealSSM(3, 5, 3))
    with pytest.raises(ssm.ArgumentError, match=r"^back: expected d_output 3"):
        ssm.Bidirectional(ssm.RealSSM(2, 5, 3), ssm.RealSSM(2, 5, 1), merge="sum")
    with pytest.raises(ssm.ArgumentError, match=r"^ahead: expected a layer of stablessm, got Linear"):
        ssm.Bidirectional(torch.nn.Linear(2, 2))
    with pytest.raises(ssm.ArgumentError, match=r"^merge: expected 'concat' or 'sum', got 'mean'"):
        make(merge="mean")


def test_states_that_are_no_pair_are_named() -> None:
    model, x = make(), torch.randn(2, 6, 2, dtype=torch.float64)
    for state in (torch.zeros(2, 5, dtype=torch.float64), (None,)):
        with pytest.raises(ssm.ArgumentError, match=r"^state: expected the pair that forward or step returned, got"):
            model(x, state)
    _, pair = model(x)
    for wrong in ((pair[0], None), (None, pair[1])):
        with pytest.raises(ssm.ArgumentError, match=r"^state: expected shape \(5,\), got shape \(2, 5\)"):
            model(x[0], wrong)
    torch.testing.assert_close(model(x, list(pair))[0], model(x, pair)[0])
