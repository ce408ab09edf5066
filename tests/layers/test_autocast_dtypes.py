"""Under autocast every layer and model returns outputs in the dtype of autocast, whatever the input and the mode."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import stablessm as ssm

LAYERS = {
    "real": lambda mode: ssm.RealSSM(3, 4, 2, mode=mode),
    "real, tanh": lambda mode: ssm.RealSSM(3, 4, 2, activation="tanh", skip=True, mode=mode),
    "lru": lambda mode: ssm.LRU(3, 4, 2, mode=mode),
    "s4d": lambda mode: ssm.S4D(3, 4, mode=mode),
    "rnn": lambda mode: ssm.ContinuousRNN(3, 4, 2, dt=0.1),
    "rnn, diagonal": lambda mode: ssm.ContinuousRNN(3, 4, 2, recurrence="diagonal", map="exp", solver="exponential"),
    "both ways": lambda mode: ssm.Bidirectional(ssm.S4D(3, 4, mode=mode)),
    "both ways, summed": lambda mode: ssm.Bidirectional(ssm.LRU(3, 4, 2, mode=mode), merge="sum"),
    "hyena": lambda mode: ssm.models.Hyena(3, ssm.S4D(3, 4, mode=mode)),
}


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(list(LAYERS)),
    mode=st.sampled_from(["scan", "conv", "auto"]),
    low=st.sampled_from([torch.bfloat16, torch.float16]),
    given_dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    shape=st.tuples(st.integers(1, 3), st.integers(0, 40)),
    backward=st.booleans(),
)
def test_the_output_has_the_dtype_of_autocast(name, mode, low, given_dtype, shape, backward) -> None:
    torch.manual_seed(0)
    layer, x = LAYERS[name](mode), torch.randn(*shape, 3).to(given_dtype)
    with torch.autocast("cpu", dtype=low):
        y, state = layer(x)
        assert y.dtype == low
        assert layer(x, state)[0].dtype == low
        if hasattr(layer, "step"):
            assert layer.step(torch.randn(2, 3).to(given_dtype))[0].dtype == low
    if backward and y.numel():
        y.float().sum().backward()
        grads = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
        assert all(grad.dtype == torch.float32 for grad in grads)


class States(ssm.SequenceLayer):
    """A layer whose readout is its state, which is at least float32."""

    def __init__(self, channels):
        super().__init__(channels, channels, (channels,), complex_state=False)
        self.w = torch.nn.Parameter(torch.full((channels,), 0.5))

    def reset_parameters(self):
        torch.nn.init.constant_(self.w, 0.5)

    def eigenvalues(self):
        return self.w

    def kernel(self, times):
        return torch.diag_embed(self.w ** torch.as_tensor(times)[:, None])

    def _states(self, x, state, reset, dt):
        return ssm.linear_scan(self.w, x, state, reset=reset)

    def _advance(self, x_t, state, dt):
        return self.w * state + x_t

    def _readout(self, states, x):
        return states


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_output_of_an_own_layer_has_the_dtype_of_its_input(dtype):
    layer = States(3).to(dtype)
    y, state = layer(torch.randn(2, 5, 3, dtype=dtype))
    assert y.dtype == layer.step(torch.randn(2, 3, dtype=dtype), state)[0].dtype == dtype
