"""A random linear recurrence and an MLP: one number in every mode, what is trained, and what the state tells."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import stablessm as ssm
from stablessm.models.linear_rnn_mlp import LinearRNNMLP, Units, Whitening
from stablessm.reconstruction import decode

D, N, OUT = 2, 6, 3


def make(seed: int = 0, **options: bool) -> LinearRNNMLP:
    torch.manual_seed(seed)
    return LinearRNNMLP(D, N, OUT, hidden=(16, 8), **options).double()


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=15, deadline=None)
@given(steps=st.integers(0, 30), cut=st.integers(0, 30), seed=st.integers(0, 5), clock=st.booleans())
def test_streaming_and_splitting_change_nothing(steps: int, cut: int, seed: int, clock: bool) -> None:
    model, u, cut = make(seed, clock=clock), noise(2, steps, D, seed=seed), min(cut, steps)
    y, final = model(u)
    assert y.shape == (2, steps, OUT)
    first, state = model(u[:, :cut])
    second, other = model(u[:, cut:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), y)
    torch.testing.assert_close(other, final)
    state, outputs = model.initial_state(2), []
    for u_t in u.unbind(1):
        out, state = model.step(u_t, state)
        outputs.append(out)
    torch.testing.assert_close(state, final)
    if outputs:
        torch.testing.assert_close(torch.stack(outputs, 1), y)


@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=3), clock=st.booleans())
def test_padding_changes_no_real_step(lengths: list[int], clock: bool) -> None:
    model, u = make(clock=clock), noise(len(lengths), 9, D)
    y, final = model(u, lengths=torch.tensor(lengths))
    for i, length in enumerate(lengths):
        alone, last = model(u[i : i + 1, :length])
        torch.testing.assert_close(y[i : i + 1, :length], alone)
        torch.testing.assert_close(final[i : i + 1], last)
        assert not y[i, length:].any()


def test_resets_start_again_and_steps_may_be_uneven() -> None:
    model, u = make(), noise(1, 12, D)
    reset = torch.zeros(12, dtype=torch.bool)
    reset[5] = True
    torch.testing.assert_close(model(u, reset=reset)[0][:, 5:], model(u[:, 5:])[0])
    assert not torch.allclose(model(u, dt=2.0)[0], model(u)[0])
    torch.testing.assert_close(model(u, dt=torch.ones(12))[0], model(u)[0])


def test_the_mlp_sees_the_state_and_is_the_same_at_every_step() -> None:
    model, u = make(), noise(2, 10, D)
    features = model.features(u)
    for k in range(10):
        state = model(u[:, : k + 1])[1]
        torch.testing.assert_close(features[:, k], torch.cat([state.real, state.imag], -1))
        torch.testing.assert_close(model(u)[0][:, k], model.mlp(torch.cat([state.real, state.imag], -1)))


def test_only_the_mlp_learns_when_frozen_and_everything_otherwise() -> None:
    for frozen in (True, False):
        model = make(frozen=frozen)
        before = copy.deepcopy(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        model(noise(2, 10, D))[0].square().mean().backward()
        optimizer.step()
        same = {name: torch.equal(p, before.get_parameter(name)) for name, p in model.named_parameters()}
        assert not any(equal for name, equal in same.items() if name.startswith("mlp.") and "readout" in name)
        assert all(equal is frozen for name, equal in same.items() if name.startswith("recurrence.")), same


def test_inputs_can_be_read_back_from_the_state() -> None:
    model = LinearRNNMLP(1, 24, 1, r_min=0.99, clock=False).double()
    u = noise(1, 20, 1)
    state = model(u)[1]
    B, gain = torch.view_as_complex(model.recurrence.B.mT.contiguous())[:, 0], model.recurrence._discretize(None)[1]
    found = decode(state[0] / (B * gain), model.eigenvalues(), length=20)
    torch.testing.assert_close(found, u[0, :, 0], atol=1e-6, rtol=0)


def test_a_clock_tells_steps_of_an_input_of_zeros() -> None:
    zeros = torch.zeros(1, 50, D, dtype=torch.float64)
    assert not make(clock=False).features(zeros).any()
    features = make(clock=True).features(zeros)[0]
    apart = torch.cdist(features, features) + torch.eye(50, dtype=torch.float64)
    assert float(apart.min()) > 1e-3


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-10, 10), channels=st.integers(1, 4), seed=st.integers(0, 99))
def test_whitening_gives_mean_zero_and_covariance_one(scale: float, shift: float, channels: int, seed: int) -> None:
    samples = shift + scale * noise(50, 3, channels, seed=seed) @ (noise(channels, channels) + 3 * torch.eye(channels))
    whiten, units = Whitening(channels).double(), Units(channels).double()
    whiten.set(samples)
    z = whiten(samples).flatten(0, 1)
    torch.testing.assert_close(z.mean(0), torch.zeros(channels).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(z.mT @ z / len(z), torch.eye(channels).double(), atol=1e-6, rtol=0)
    units.set(samples)
    ones = torch.ones(channels).double()
    torch.testing.assert_close(units(0 * ones), samples.mean((0, 1)))
    torch.testing.assert_close(units(ones) - units(0 * ones), samples.flatten(0, 1).std(0, correction=0))


def test_a_constant_channel_is_left_alone() -> None:
    samples = torch.cat([noise(20, 1), torch.full((20, 1), 7.0)], -1)
    whiten = Whitening(2).double()
    whiten.set(samples)
    assert bool(whiten(samples).isfinite().all())
    assert float(whiten(samples + torch.tensor([0.0, 1e-9])).sub(whiten(samples)).abs().max()) < 1e-4


def test_units_are_set_from_inputs_and_outputs() -> None:
    model, u = make(), noise(4, 30, D)
    y = 5 + 3 * noise(4, 30, OUT, seed=1)
    model.set_units(u, y)
    z = model.mlp.inputs(model.features(u)).flatten(0, 1)
    torch.testing.assert_close(z.mT @ z / len(z), torch.eye(2 * N).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(model.mlp.outputs.shift, y.mean((0, 1)))


@pytest.mark.parametrize("frozen", [True, False])
def test_it_comes_back_from_a_folder_with_its_units(tmp_path: Path, frozen: bool) -> None:
    model, u = make(frozen=frozen, clock=False), noise(3, 20, D)
    model.set_units(u, 5 + noise(3, 20, OUT))
    ssm.save(model, tmp_path / "model")
    again = ssm.load(tmp_path / "model")
    assert again.config == model.config
    assert torch.equal(again(u)[0], model(u)[0])
    kept = [name for name, p in again.named_parameters() if p.requires_grad]
    assert kept == [name for name, p in model.named_parameters() if p.requires_grad]


def test_an_instrument_takes_it() -> None:
    assert ssm.check_streaming(make()).ok


def test_wrong_arguments_are_named() -> None:
    for sizes, name in (
        ((0, 4, 1), "d_input"),
        ((1, 0, 1), "d_state"),
        ((1, 2.5, 1), "d_state"),
        ((1, 4, 0), "d_output"),
    ):
        with pytest.raises(ssm.ArgumentError, match=f"^{name}: expected a whole number, at least 1"):
            LinearRNNMLP(*sizes)
    for hidden in ((), 8, (8, 0), (8.5,), None):
        with pytest.raises(ssm.ArgumentError, match=r"^hidden: expected"):
            LinearRNNMLP(1, 4, 1, hidden=hidden)
    with pytest.raises(ssm.ArgumentError, match="u: expected 2 channels"):
        make()(torch.zeros(1, 5, 3, dtype=torch.float64))
    with pytest.raises(ssm.ArgumentError, match="y: expected finite numbers, shape"):
        make().set_units(noise(1, 5, D), noise(1, 5, OUT + 1))


@pytest.mark.parametrize(
    ("u", "y", "argument"),
    [
        (noise(0, 5, D), None, "u"),
        (noise(2, 0, D), None, "u"),
        (torch.full((1, 5, D), torch.nan).double(), None, "u"),
        (noise(1, 5, D), torch.full((1, 5, OUT), torch.inf).double(), "y"),
    ],
)
def test_units_need_finite_samples_and_some(u: Tensor, y: Tensor | None, argument: str) -> None:
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ssm.ArgumentError, match=f"^{argument}: expected finite numbers"):
        model.set_units(u, y)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for units in (Whitening(D), Units(D)):
        for samples in (torch.zeros(0, D), torch.full((3, D), torch.nan), torch.zeros(3, D + 1), torch.zeros(D)):
            with pytest.raises(ssm.ArgumentError, match=r"^samples: expected"):
                units.set(samples)
