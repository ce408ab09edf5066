from __future__ import annotations

import contextlib
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_parameters import randomized
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.models import Block, Hyena
from stablessm.models.mixers import mixer_of

D = 6
MIXERS = {
    "s4d": lambda: ssm.S4D(D, 4, map="best"),
    "lru": lambda: ssm.LRU(D, 5, D),
    "real": lambda: ssm.RealSSM(D, 5, D, dt=0.5),
    "rnn": lambda: ssm.ContinuousRNN(D, 5, D, dt=0.1),
    "hyena-s4d": lambda: Hyena(D, ssm.S4D(D, 4)),
    "hyena-real": lambda: Hyena(D, ssm.RealSSM(D, 5, D)),
}
OPTIONS = {
    "pre": {},
    "post": {"prenorm": False},
    "batch": {"norm": "batch"},
    "batch-post-mlp": {"norm": "batch", "prenorm": False, "mlp": 2},
    "bare": {"norm": "none", "gate": False, "activation": "none"},
    "mlp": {"mlp": 3, "activation": "silu"},
}


def make(mixer: str = "s4d", options: str = "pre", **changes: object) -> Block:
    torch.manual_seed(0)
    return randomized(Block(D, MIXERS[mixer](), **(OPTIONS[options] | changes))).double().eval()


def close(ours: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)


def tensors(state: object) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [t for part in state for t in tensors(part)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mixer", ["s4d", "hyena-real"])
def test_forward_and_step_are_one_function(mixer, options):
    assert ssm.check_streaming(make(mixer, options), d_input=D).ok


@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=8)
@given(data=st.data(), steps=st.integers(1, 9))
def test_resets_and_padding_are_those_of_a_layer(mixer, data, steps):
    """Every row, cut at its resets and its end, gives the same numbers alone, a step at a time."""
    block = make(mixer, "mlp")
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, steps), min_size=1, max_size=3)))
    flags = st.lists(st.booleans(), min_size=steps, max_size=steps)
    reset = torch.tensor([data.draw(flags) for _ in lengths])
    x = torch.randn(len(lengths), steps, D, dtype=torch.float64)
    state = tuple(torch.randn_like(t) for t in tensors(block.initial_state(len(lengths))))
    state = state if len(state) > 1 else state[0]
    y, final = block(x, state, lengths=lengths, reset=reset)
    for i, length in enumerate(lengths.tolist()):
        own = [t[i : i + 1] for t in tensors(state)]
        own = tuple(own) if len(own) > 1 else own[0]
        for t in range(length):
            alone, own = block.step(x[i : i + 1, t], None if reset[i, t] else own)
            close(y[i : i + 1, t], alone)
        for ours, truth in zip(tensors(final), tensors(own), strict=True):
            close(ours[i : i + 1], truth)


def test_batch_statistics_leave_padding_out():
    block = make(options="batch").train()
    twin = make(options="batch").train()
    x = torch.randn(2, 10, D, dtype=torch.float64)
    padded = torch.cat([x, torch.full((2, 3, D), 1e3, dtype=torch.float64)], 1)
    close(block(padded, lengths=torch.tensor([10, 10]))[0][:, :10], twin(x)[0])
    close(block.norm.running_var, twin.norm.running_var)
    one = torch.randn(1, 10, D, dtype=torch.float64)
    norm, flat = make(options="batch").train().norm, nn.BatchNorm1d(D).double()
    flat.load_state_dict(norm.state_dict())
    close(norm(one)[0], flat(one[0]))


def test_dropout_spares_no_step_and_leaves_evaluation_alone():
    block = make(options="bare", dropout=0.5).train()
    x = torch.zeros(8, 50, D, dtype=torch.float64)
    block.mixer.forward = lambda x, state, **_: (torch.ones_like(x), state)
    y = block(x)[0]
    assert (y == y[:, :1]).all()
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert (block.eval()(x)[0] == 1).all()


def normalized(norm: nn.Module, x: Tensor) -> Tensor:
    if isinstance(norm, nn.LayerNorm):
        deviation = (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        return (x - x.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias
    if isinstance(norm, nn.BatchNorm1d):
        return (x - norm.running_mean) / (norm.running_var + 1e-5).sqrt() * norm.weight + norm.bias
    return x


@pytest.mark.parametrize("options", OPTIONS)
def test_the_equation(options):
    block = make(options=options)
    x = torch.randn(3, 7, D, dtype=torch.float64)
    before = lambda norm, x: normalized(norm, x) if block.prenorm else x  # noqa: E731
    after = lambda norm, x: x if block.prenorm else normalized(norm, x)  # noqa: E731
    sigma = {"gelu": nn.functional.gelu, "silu": lambda z: z * z.sigmoid(), "none": lambda z: z}[block.activation]
    y = sigma(block.mixer(before(block.norm, x))[0])
    if block.gate is not None:
        a = y @ block.gate.weight.T + block.gate.bias
        y = a[..., :D] * torch.sigmoid(a[..., D:])
    truth = after(block.norm, x + y)
    if block.wide is not None:
        hidden = nn.functional.gelu(before(block.mlp_norm, truth) @ block.wide.weight.T + block.wide.bias)
        truth = after(block.mlp_norm, truth + hidden @ block.narrow.weight.T + block.narrow.bias)
    close(block(x)[0], truth)


def test_hyena_is_its_equation_in_any_state():
    """y = W (q ⊙ m(k ⊙ v)) with a filter of three steps over what came before, too."""
    torch.manual_seed(0)
    hyena = randomized(Hyena(D, ssm.RealSSM(D, 5, D, dt=0.5))).double()
    x = torch.randn(2, 8, D, dtype=torch.float64)
    z = torch.cat(
        [torch.randn(2, 2, 3 * D, dtype=torch.float64), x @ hyena.projection.weight.T + hyena.projection.bias], 1
    )
    q, k, v = (hyena.filter[0] * z[:, 2:] + hyena.filter[1] * z[:, 1:-1] + hyena.filter[2] * z[:, :-2]).chunk(3, -1)
    inner = torch.randn(2, 5, dtype=torch.float64)
    m, last = hyena.inner(k * v, inner)
    y, (tail, final) = hyena(x, (z[:, :2], inner))
    close(y, (q * m) @ hyena.output.weight.T + hyena.output.bias)
    close(tail, z[:, -2:])
    close(final, last)


def test_hyena_can_copy_a_pair():
    """q ⊙ m(k ⊙ v) with the identity for m and v from the step before: products of neighbors, which no sum gives."""
    hyena = Hyena(
        1, ssm.RealSSM(1, 1, 1, time="discrete", map="direct", eigenvalues=torch.zeros(1), bias=False)
    ).double()
    with torch.no_grad():
        hyena.projection.weight.fill_(1.0)
        hyena.projection.bias.zero_()
        hyena.filter.copy_(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
        for weight in (hyena.inner.B, hyena.inner.C, hyena.output.weight):
            weight.fill_(1.0)
        hyena.output.bias.zero_()
    x = torch.randn(1, 9, 1, dtype=torch.float64)
    before = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
    close(hyena(x)[0], x * x * before)


def test_a_mixer_of_yours():
    class Echo(nn.Module):
        """y[t] = x[t] + x[t-1]."""

        def initial_state(self, batch):
            return torch.zeros(batch, D, dtype=torch.float64)

        def forward(self, x, state=None, *, lengths=None, reset=None, dt=None):
            state = self.initial_state(len(x)) if state is None else state
            joined = torch.cat([state[:, None], x], 1)
            return x + joined[:, :-1], joined[:, -1]

        def step(self, x_t, state=None, *, dt=None):
            state = self.initial_state(len(x_t)) if state is None else state
            return x_t + state, x_t

    assert ssm.check_streaming(Block(D, Echo()).double(), d_input=D).ok


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("norm", {"norm": "group"}),
        ("activation", {"activation": "sine"}),
        ("dropout", {"dropout": 1.0}),
        ("mlp", {"mlp": -1}),
    ],
)
def test_bad_options_are_named(argument, options):
    with pytest.raises(ArgumentError, match=f"^{argument}: expected"):
        Block(D, MIXERS["s4d"](), **options)


def test_bad_mixers_are_named():
    with pytest.raises(ArgumentError, match="mixer: expected one of s4d, lru, real"):
        mixer_of("lstm", D, 4)
    with pytest.raises(ArgumentError, match=r"mixer_options: expected options of 'lru'.*dt_min"):
        mixer_of("hyena-lru", D, 4, dt_min=0.1)
    with pytest.raises(ArgumentError, match="map: expected one of"):
        mixer_of("s4d", D, 4, "tanh")
    with pytest.raises(ArgumentError, match="name: expected a new name"):
        ssm.models.register_mixer("s4d", MIXERS["s4d"])


@pytest.mark.parametrize("norm", ["layer", "batch", "none"])
@pytest.mark.parametrize("autocast", [False, True])
def test_an_input_of_another_dtype_is_accepted_or_named(norm, autocast):
    """PyTorch's own error, "mixed dtype", names no argument. Autocast is for modules in float32."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    for own, other in itertools.product(dtypes[:2] if autocast else dtypes, dtypes):
        block = Block(4, ssm.LRU(4, 8, 4), norm=norm, mlp=2).to(own)
        for call, x in ((block, torch.randn(2, 5, 4)), (block.step, torch.randn(2, 4))):
            error = None
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast), contextlib.suppress(ssm.ArgumentError):
                error = "refused"
                call(x.to(other))
                error = None
            assert error is None or own != other
