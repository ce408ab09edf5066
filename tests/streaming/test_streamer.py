"""A streamer gives the numbers of the forward pass, keeps its state, and allocates nothing."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_parameters import randomized
from streaming_models import MODELS, forward, make, relative_error, width
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError, BackendUnavailableError, Streamer
from stablessm.streaming import operation_code
from stablessm.streaming import streamer as streamer_module
from stablessm.streaming.freeze import freeze
from stablessm.streaming.program import FUNCTIONS, Program
from stablessm.streaming.streamer import _runner

BACKENDS = ("compiled", "numpy")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def stepped(streamer: Streamer, x: Tensor) -> Tensor:
    return torch.stack([streamer(x_t).clone() for x_t in x.unbind(1)], 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("name", "odd"), [(name, i % 2) for i, name in enumerate(MODELS)])
def test_steps_and_blocks_give_the_numbers_of_forward(name, odd, dtype, backend):
    model = make(name, dtype)
    batch, steps = ((1, 70), (3, 40))[odd ^ (dtype == torch.float64)]  # each model and each dtype with both
    x = torch.randn(batch, steps, width(model), dtype=dtype)
    y = forward(model, x)
    streamer = Streamer(model, batch, backend=backend)
    assert streamer.backend == backend
    assert relative_error(stepped(streamer, x), y) <= TOLERANCE[dtype]
    streamer.reset()
    first, second = streamer.run(x[:, :25]), streamer.run(x[:, 25:])
    assert relative_error(torch.cat([first, second], 1), y) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("batch", [1, 3])
def test_large_products_have_the_same_bits_on_any_number_of_threads(batch, dtype, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(ssm.LRU(5, 200, 150), nn.Linear(150, 300), ssm.MinGRU(300, 33)).to(dtype)
    x = 1e-30 * torch.randn(batch, 20, 5, dtype=dtype)
    truth = stepped(Streamer(model, batch), x)
    monkeypatch.setattr(operation_code, "PARALLEL_BYTES", 0)
    shared = Streamer(model, batch)
    for count in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        for run in (lambda: stepped(shared, x), lambda: shared.run(x)):
            shared.reset()
            assert torch.equal(run(), truth)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layer", [ssm.RealSSM(3, 64, 2), ssm.LRU(3, 64, 2, r_max=0.9999), ssm.S4D(5, 16)], ids=str)
def test_ten_thousand_steps(layer, dtype, backend):
    layer = randomized(layer).to(dtype)
    x = torch.randn(1, 10_000, layer.d_input, dtype=dtype)
    streamer = Streamer(layer, backend=backend)
    y = torch.from_numpy(np.stack([streamer(x_t).copy() for x_t in x[0].numpy()]))
    assert relative_error(y, forward(layer, x)[0]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("complex", [False, True])
def test_slow_modes_keep_no_rounding_errors(complex):
    slow = torch.linspace(1 - 1e-3, 1 - 1e-6, 16, dtype=torch.float64)
    if complex:
        layer = ssm.LRU(1, 16, 1, eigenvalues=torch.polar(slow, torch.arange(16.0, dtype=torch.float64)), mode="scan")
    else:
        layer = ssm.RealSSM(1, 16, 1, eigenvalues=slow, time="discrete", mode="scan")
    with torch.no_grad():
        layer.C.abs_()
    decay = layer._discretize(None)[0].to(torch.complex128 if complex else torch.float64)
    assert decay.abs().max() < 1
    x = torch.randn(1, 300_000, 1)
    drive = torch.view_as_complex(layer.B[..., 0].double()) if complex else layer.B[:, 0].double()
    drive = layer._discretize(None)[1].double() * drive
    states = ssm.linear_scan(decay, x.double() * drive)
    weights = torch.view_as_complex(layer.C[0].double()) if complex else layer.C[0].double()
    y = (states @ weights.to(states.dtype)).real + (0 if layer.D is None else layer.D.double() * x[..., 0].double())
    assert relative_error(Streamer(layer).run(x)[..., 0].double(), y.detach()) <= 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_the_state_is_the_models_own(name):
    model = make(name, torch.float64)
    x = torch.randn(2, 40, width(model), dtype=torch.float64)
    streamers = [Streamer(model, 2, backend=backend) for backend in BACKENDS]
    for streamer, other in (streamers, streamers[::-1]):
        streamer.reset()
        streamer.run(x[:, :25])
        state = streamer.state
        if not isinstance(model, nn.Sequential):
            with torch.no_grad():
                mine = getattr(model, "sequence", model)(x[:, :25])[1]
            for ours, theirs in zip(_leaves(state), _leaves(mine), strict=True):
                assert ours.dtype == theirs.dtype
                assert relative_error(ours, theirs) <= 1e-12
        other.state = state
        rest = streamer.run(x[:, 25:])
        assert relative_error(other.run(x[:, 25:]), rest) <= 1e-12
        other.reset()
        assert relative_error(other.run(x), forward(model, x)) <= 1e-12
        own = zip(_leaves(state), _leaves(streamer.state), strict=True)
        assert not all(torch.equal(*pair) for pair in own)  # a copy


def _leaves(state):
    if isinstance(state, tuple):
        return [leaf for part in state for leaf in _leaves(part)]
    return [] if state is None else [state]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_tokens_stream_as_a_language_model_steps(dtype, backend):
    torch.manual_seed(0)
    model = randomized(ssm.models.LanguageModel(11, d_model=8, n_layers=1, d_state=4)).to(dtype).eval()
    tokens = torch.randint(0, 11, (2, 60))
    y, streamer = forward(model, tokens), Streamer(model, 2, backend=backend)
    assert relative_error(stepped(streamer, tokens), y) <= TOLERANCE[dtype]
    streamer.reset()
    first, second = streamer.run(tokens[:, :20]), torch.from_numpy(streamer.run(tokens[:, 20:].numpy()))
    assert relative_error(torch.cat([first, second], 1), y) <= TOLERANCE[dtype]
    with torch.no_grad():
        (((tail, inner),), pooled) = model.sequence(tokens)[1]
    (((ours, state),), nothing) = streamer.state
    assert relative_error(ours, tail) <= TOLERANCE[dtype]
    assert relative_error(state, inner) <= TOLERANCE[dtype]
    assert nothing == pooled == ()


@settings(max_examples=8)
@given(
    d_input=st.integers(1, 40), d_state=st.integers(1, 40), d_output=st.integers(1, 140), batch=st.integers(1, 3),
    double=st.booleans(), complex=st.booleans(),
)  # fmt: skip
def test_any_size(d_input, d_state, d_output, batch, double, complex):
    torch.manual_seed(0)
    dtype = torch.float64 if double else torch.float32
    layer = randomized((ssm.LRU if complex else ssm.RealSSM)(d_input, d_state, d_output, skip=True)).to(dtype)
    x = torch.randn(batch, 12, d_input, dtype=dtype)
    assert relative_error(Streamer(layer, batch).run(x), forward(layer, x)) <= TOLERANCE[dtype]


@settings(max_examples=5)
@given(channels=st.integers(1, 40), states=st.integers(1, 9), batch=st.integers(1, 3), double=st.booleans())
def test_any_number_of_channels(channels, states, batch, double):
    torch.manual_seed(0)
    dtype = torch.float64 if double else torch.float32
    layer = randomized(ssm.S4D(channels, states)).to(dtype)
    x = torch.randn(batch, 12, channels, dtype=dtype)
    assert relative_error(Streamer(layer, batch).run(x), forward(layer, x)) <= TOLERANCE[dtype]


@settings(max_examples=8)
@given(
    d_input=st.integers(1, 9), d_model=st.integers(1, 20), mixer=st.sampled_from(["s4d", "lru", "hyena-real"]),
    norm=st.sampled_from(["layer", "batch", "none"]), prenorm=st.booleans(), gate=st.booleans(), mlp=st.integers(0, 2),
    pool=st.sampled_from(["mean", "last"]), per_step=st.booleans(), backend=st.sampled_from(BACKENDS),
)  # fmt: skip
def test_any_network(d_input, d_model, backend, **options):
    torch.manual_seed(0)
    model = ssm.models.SequenceClassifier(3, d_input=d_input, d_model=d_model, n_layers=1, d_state=3, **options)
    model, x = randomized(model).double().eval(), torch.randn(2, 9, d_input, dtype=torch.float64)
    assert relative_error(Streamer(model, 2, backend=backend).run(x), forward(model, x)) <= 1e-12


def test_arrays_give_arrays_and_tensors_tensors():
    layer = make("lru")
    streamer, x = Streamer(layer), torch.randn(1, 3)
    y = layer.step(x)[0].detach()
    for x_t, shape in ((x, (1, 5)), (x[0], (5,)), (x.numpy(), (1, 5)), (x[0].numpy(), (5,)), (x.double(), (1, 5))):
        streamer.reset()
        y_t = streamer(x_t)
        assert type(y_t) is type(x_t)
        assert tuple(y_t.shape) == shape
        assert np.allclose(np.asarray(y_t).reshape(y.shape), y.numpy(), atol=1e-6)
    assert isinstance(streamer.run(np.zeros((1, 4, 3))), np.ndarray)


def test_the_output_buffer_is_used_again():
    streamer, x = Streamer(make("lru")), np.ones(3, np.float32)
    assert streamer(x) is streamer(x)
    out = np.empty((1, 7, 5), np.float32)
    assert streamer.run(np.ones((1, 7, 3), np.float32), out) is out
    assert np.isfinite(out).all()


@pytest.mark.parametrize("name", ["real", "lru", "s4d", "rnn-tanh", "rnn-diagonal-sigmoid", "two layers"])
def test_nothing_is_allocated_in_a_compiled_step(name):
    model = make(name)
    streamer, x = Streamer(model, backend="compiled"), np.ones(width(model), np.float32)
    for _ in range(10):
        streamer(x)
    tracemalloc.start()
    try:
        for _ in range(200):
            streamer(x)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1000, f"{peak} bytes"


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_those_of_pytorch(function, double):
    from stablessm.streaming.step_module import TORCH

    dtype = torch.float64 if double else torch.float32
    tiny = torch.tensor([0.0, 1e-30, 1e-8, 1e-4, 0.01, 0.1])
    z = torch.cat([torch.linspace(-40, 40, 801), torch.linspace(-2, 2, 801), tiny, -tiny]).to(dtype)
    z = z[z > 0] if function in ("rsqrt", "reciprocal", "sqrt") else z
    truth = TORCH.functions[function](z if function == "negative" else z.double()).double()
    for backend in BACKENDS:
        program = Program(len(z), dtype)
        program.output = program.pointwise(0, function)
        runner = _runner(program, 1, backend)
        runner.x[...] = z.numpy()
        runner.step()
        error = (torch.from_numpy(runner.y[0]).double() - truth).abs()
        size = 1.0 if function in ("gelu", "tanh_slope") else truth.abs()  # PyTorch's own tails of these cancel
        assert bool((error <= 8 * torch.finfo(dtype).eps * size + 1e-37).all()), backend


@pytest.mark.parametrize("backend", BACKENDS)
def test_not_a_number_stays_one(backend):
    model = nn.Sequential(ssm.RealSSM(1, 2, 3), nn.GELU(), nn.Tanh(), nn.Sigmoid(), nn.ReLU(), nn.Hardtanh())
    streamer = Streamer(model, backend=backend)
    assert np.isnan(streamer(np.array([np.nan], np.float32))).all()
    streamer.reset()
    assert np.isfinite(streamer(np.array([1.0], np.float32))).all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("backend", BACKENDS)
def test_infinity_stays_where_it_is(backend):
    model = nn.Sequential(nn.Linear(2, 3), nn.Hardtanh(), ssm.RealSSM(3, 5, 3))
    streamer, x = Streamer(model, backend=backend), torch.tensor([[[np.inf, 0.0]]])
    assert relative_error(streamer.run(x), forward(model, x)) <= 1e-5


def test_states_that_fade_become_zero_and_not_denormal_numbers():
    layer = ssm.RealSSM(1, 8, 1, eigenvalues=torch.full((8,), 0.6), time="discrete")
    x = torch.cat([torch.ones(1, 20, 1), torch.zeros(1, 185, 1)], 1)  # 0.6^185 is about 1e-41
    streamer = Streamer(layer)
    streamer.run(x)
    assert not streamer.state.any()  # silence is as fast as sound
    with torch.no_grad():
        assert layer(x)[1].all()  # a state with denormal numbers
    assert np.float32(1e-30) * np.float32(1e-10) > 0  # others compute with them as before


def test_weights_are_frozen():
    layer = make("lru")
    streamer, x = Streamer(layer), np.ones(3, np.float32)
    before = streamer(x).copy()
    with torch.no_grad():
        layer.C.zero_()
    streamer.reset()
    assert np.array_equal(streamer(x), before)


def test_streamers_in_threads():
    layer, results = make("lru"), {}
    x = torch.randn(1, 500, 3)
    streamers = [Streamer(layer) for _ in range(4)]

    def work(k):
        results[k] = stepped(streamers[k], x)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[k], results[0]) for k in range(4))


def test_its_code_goes_when_it_does():
    streamer = Streamer(make("lru"))
    engine = weakref.ref(streamer._runner._code._library)
    del streamer
    gc.collect()
    assert engine() is None


def test_without_llvmlite(monkeypatch):
    monkeypatch.setattr(streamer_module, "why_not", lambda name: "llvmlite is not installed (pip install llvmlite)")
    assert Streamer(make("lru")).backend == "numpy"
    with pytest.raises(BackendUnavailableError, match="pip install llvmlite"):
        Streamer(make("lru"), backend="compiled")


def test_identity_products_are_left_out():
    program = freeze(ssm.models.LinearRNNMLP(1, 4, 1, hidden=(8,)))
    assert len(program.slots) == 1
    layer = ssm.RealSSM(2, 2, 2, time="discrete", bias=False)
    with torch.no_grad():
        for matrix in (layer.B, layer.C):
            matrix.copy_(torch.eye(2))
    assert [type(op).__name__ for op in freeze(layer).operations] == ["Scale"]
    for backend in BACKENDS:  # the output is the state then, and a caller may write into it
        streamer, x = Streamer(layer, backend=backend), np.ones((1, 2), np.float32)
        first = streamer(x).copy()
        streamer(x)[...] = 100.0
        streamer.reset()
        assert np.array_equal(streamer(x), first)
        assert np.array_equal(x, np.ones((1, 2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Streamer(ssm.Bidirectional(ssm.LRU(1, 2, 1))), "model: expected a model that reads.*got Bidir"),
        (lambda: Streamer(nn.Linear(2, 2)), "model: expected at least one layer with a state, got Linear"),
        (lambda: Streamer(nn.ReLU()), "model: expected a module with parameters, got ReLU"),
        (lambda: Streamer("lru"), "model: expected a module with parameters, got str"),
        (lambda: Streamer(nn.Sequential(ssm.LRU(1, 2, 1), nn.LSTM(1, 1))), "got LSTM"),
        (lambda: Streamer(ssm.LRU(1, 2, 1).bfloat16()), "model: expected parameters in float32 or float64"),
        (lambda: Streamer(nn.Sequential(ssm.LRU(1, 2, 1), nn.Linear(1, 1).double())), "model: .* one dtype"),
        (lambda: Streamer(ssm.ContinuousRNN(1, 2, 1, solver="exponential")), "a matrix exponential at every step"),
        (lambda: Streamer(nn.Sequential(ssm.LRU(1, 2, 3), ssm.S4D(4))), "model: expected .* 3 inputs, got 4"),
        (lambda: Streamer(nn.Sequential(ssm.LRU(1, 2, 3), nn.Linear(4, 1))), "model: expected .* 3 inputs, got 4"),
        (lambda: Streamer(nn.Sequential(ssm.LRU(1, 2, 3), nn.GELU("tanh"))), "GELU without approximation"),
        (lambda: Streamer(nn.Sequential(ssm.LRU(1, 2, 3), nn.Hardtanh(0, 6))), "Hardtanh from -1 to 1"),
        (lambda: Streamer(ssm.LRU(1, 2, 1), 0), "batch: expected a whole number, at least 1"),
        (lambda: Streamer(ssm.LRU(1, 2, 1), backend="c"), "backend: expected one of 'auto'"),
        (lambda: Streamer(ssm.LRU(3, 2, 1))(np.ones(2)), r"x_t: expected .*shape \(1, 3\) or \(3,\), got shape \(2,\)"),
        (lambda: Streamer(ssm.LRU(3, 2, 1), 2)(np.ones(3)), r"x_t: expected .*shape \(2, 3\), got shape \(3,\)"),
        (lambda: Streamer(ssm.LRU(1, 2, 1))([1.0]), "x_t: expected an array or tensor .* got list"),
        (lambda: Streamer(ssm.LRU(3, 2, 1)).run(np.ones((1, 3))), r"x: expected .*\(1, time, 3\), got shape \(1, 3\)"),
        (lambda: Streamer(ssm.LRU(1, 2, 1)).run(np.ones((1, 4, 1)), np.ones((1, 4, 1))), "out: expected .*float32"),
        (lambda: _of_tokens()(np.ones(1)), "x_t: expected tokens, whole numbers from 0 to 4, got float64"),
        (lambda: _of_tokens()(np.array([-1])), "x_t: expected tokens from 0 to 4, got -1 to -1"),
        (lambda: _of_tokens().run(np.array([[0, 5]])), "x: expected tokens from 0 to 4, got 0 to 5"),
        (lambda: _of_tokens().run(np.array([0])), r"x: expected .*shape \(1, time\), got shape \(1,\)"),
        (lambda: Streamer(nn.Sequential(nn.Linear(4, 4), _tokens())), "expected a model of tokens as the first module"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def _tokens() -> nn.Module:
    return ssm.models.SequenceClassifier(2, vocab_size=5, d_model=4, d_state=2, n_layers=1)


def _of_tokens() -> Streamer:
    return Streamer(_tokens(), backend="numpy")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_channel_whose_step_is_nothing(backend):
    """Its gain is zero, which the compiled code divides by."""
    layer = make("s4d")
    with torch.no_grad():
        layer.log_dt[3] = -300.0
    streamer, x = Streamer(layer, backend=backend), torch.randn(1, 20, layer.d_input)
    streamer.reset()
    assert relative_error(streamer.run(x), forward(layer, x)) <= 1e-5


def test_a_wrong_state_is_refused():
    streamer = Streamer(ssm.RealSSM(1, 4, 1))
    for state, message in ((torch.zeros(1, 5), r"shape \(1, 4\)"), (torch.zeros(1, 4) + 0j, "real numbers")):
        with pytest.raises(ArgumentError, match=f"state: expected {message}"):
            streamer.state = state


def test_repr():
    assert repr(Streamer(ssm.LRU(3, 2, 1))) == "Streamer(d_input=3, d_output=1, batch=1, float32, compiled)"
