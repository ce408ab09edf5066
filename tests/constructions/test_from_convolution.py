"""Long filters as recurrences: the error is what it says, the stream is the convolution, whole models go on talking."""

from __future__ import annotations

import copy

import hyena_model
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import stablessm as ssm
from stablessm.constructions.filters._fit import _faded, _least_squares
from stablessm.constructions.filters.convert import LongFilter, StreamingModel, convert
from stablessm.constructions.filters.from_convolution import from_convolution
from stablessm.constructions.filters.layer import RecurrentConvolution
from stablessm.scan import causal_convolution

F64 = torch.float64
TIME = np.arange(400.0)
SMOOTH = np.stack([(1 + TIME) ** -1.1, np.cos(TIME / 9) * np.exp(-TIME / 40), np.exp(-(((TIME - 90) / 25) ** 2))])


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def convolved(filters: np.ndarray, x: Tensor) -> Tensor:
    """Σ_k filters[c, k] x[t-k, c], by definition, for (B, T, C)."""
    columns = [
        np.stack([np.convolve(row, signal)[: x.shape[1]] for row, signal in zip(filters, batch.T, strict=True)], 1)
        for batch in x.numpy()
    ]
    return torch.from_numpy(np.stack(columns))


@torch.no_grad()
def response(layer: RecurrentConvolution, steps: int) -> np.ndarray:
    """What an impulse in every channel gives: (channels, steps)."""
    x = torch.zeros(1, steps, layer.d_input, dtype=F64)
    x[:, 0] = 1
    return layer(x)[0][0].T.numpy()


@st.composite
def sums(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """A sum of decaying modes on 200 steps, and its order."""
    values, order = np.zeros(200), 0
    for _ in range(draw(st.integers(1, 4))):
        modulus, angle = draw(st.floats(0.3, 0.99)), draw(st.sampled_from([0.0, np.pi, 0.2, 0.7, 1.9]))
        weight, phase = draw(st.floats(0.1, 3)), draw(st.floats(0, 6)) if 0 < angle < np.pi else 0.0
        values += weight * modulus ** np.arange(200) * np.cos(angle * np.arange(200) + phase)
        order += 2 if 0 < angle < np.pi else 1
    return values, order


@settings(max_examples=12)
@given(case=sums(), tol=st.sampled_from([1e-3, 1e-6]), head=st.integers(0, 3))
def test_sums_of_modes_are_found_at_their_order(case: tuple[np.ndarray, int], tol: float, head: int) -> None:
    values, order = case
    layer = from_convolution(values[None], tol=tol, head=head)
    assert layer.orders[0] <= order
    assert layer.error[0] <= tol
    assert not layer.failed


@settings(max_examples=8)
@given(
    mix=st.lists(st.integers(-9, 9), min_size=3, max_size=3).filter(any),
    rough=st.sampled_from([0.0, 1e-6, 1e-2]),
    tol=st.sampled_from([1e-2, 1e-4]),
    finite=st.booleans(),
    dtype=st.sampled_from([torch.float32, F64]),
)
def test_the_stated_error_is_the_error_of_the_stream(
    mix: list[int], rough: float, tol: float, finite: bool, dtype: torch.dtype
) -> None:
    filters = (np.array(mix) @ SMOOTH + rough * noise(400))[None]
    layer = from_convolution(filters, tol=tol, finite=finite, dtype=dtype)
    steps = 1600 if finite else 400
    found = np.abs(response(layer, steps) - np.pad(filters, ((0, 0), (0, steps - 400))))[0]
    rounding = 1e-4 if dtype == torch.float32 else 1e-10  # of the running, where large modes cancel
    size, fit = np.abs(filters).sum(), layer.fits[0]
    assert fit.relative_error == pytest.approx(fit.l1_error / size)
    assert fit.relative_error <= tol
    assert found.sum() <= fit.l1_error + rounding * size
    assert found.max() <= fit.sup_error + rounding * size
    if not finite:  # with a bound on the rest, the error of a finite filter is not attained
        assert fit.l1_error <= found.sum() + rounding * size
        np.testing.assert_allclose(layer.kernel(400).detach().numpy(), response(layer, 400), atol=rounding * size)
    assert bool(fit.reason) == bool(layer.failed) == (fit.taps == 400)


@settings(max_examples=8)
@given(seed=st.integers(0, 99), tol=st.sampled_from([1e-2, 1e-5]))
def test_outputs_differ_by_the_error_times_the_largest_input(seed: int, tol: float) -> None:
    filters = noise(4, 3, seed=seed) @ SMOOTH
    x = torch.from_numpy(noise(2, 400, 4, seed=seed + 1)).clamp(-1, 1)
    layer = from_convolution(filters, tol=tol)
    difference = (layer(x)[0] - convolved(filters, x)).abs().amax((0, 1))
    bound = torch.tensor([fit.l1_error for fit in layer.fits])
    assert bool((difference <= bound + 1e-10).all())


def test_it_streams_the_numbers_of_one_pass() -> None:
    """Fitted, buffered, short and zero filters side by side."""
    filters = np.concatenate([SMOOTH[:, :90], noise(1, 90), np.zeros((1, 90)), np.eye(90)[3:4]])
    layer = from_convolution(filters)
    assert layer.failed == ((3,),)
    assert [fit.taps for fit in layer.fits] == [1, 1, 1, 90, 0, 4]
    assert ssm.check_streaming(layer, length=120).ok
    dense = from_convolution(np.stack([filters[:3], filters[3:]]))
    assert ssm.check_streaming(dense, length=20).ok
    empty, state = layer(torch.zeros(2, 0, 6))
    assert empty.shape == (2, 0, 6)
    torch.testing.assert_close(layer(torch.ones(2, 3, 6), state), layer(torch.ones(2, 3, 6)))


def test_everything_is_made_on_the_device_of_the_layer() -> None:
    layer = from_convolution(SMOOTH[:2, :90]).to("meta")
    x = torch.ones(2, 3, 2, device="meta")
    y, state = layer(x)
    y_t, state = layer.step(x[:, 0], state)
    made = [y, y_t, layer.kernel(9), *(leaf for group in (*state, *layer.initial_state(2)) for leaf in group)]
    assert {leaf.device.type for leaf in made} == {"meta"}


def test_dense_filters_add_up_over_the_inputs() -> None:
    filters = np.stack([SMOOTH, SMOOTH[::-1]])
    x = torch.from_numpy(noise(2, 300, 3))
    layer = from_convolution(filters, tol=1e-8)
    truth = torch.stack([convolved(rows, x).sum(-1) for rows in filters], -1)
    torch.testing.assert_close(layer(x)[0], truth, rtol=0, atol=1e-6)
    assert layer.error.shape == layer.orders.shape == (2, 3)
    short = from_convolution(noise(50, 4, 3))
    assert short.state_size == 3 * 4  # one buffer for each input, not for each filter


def test_what_no_sum_fits_stays_a_buffer_and_is_exact() -> None:
    lag = np.eye(400)[200]
    layer = from_convolution(np.stack([noise(400), lag, SMOOTH[0]]), max_order=40)
    assert layer.failed == ((0,), (1,))
    assert [fit.l1_error for fit in layer.fits[:2]] == [0.0, 0.0]
    assert "at order" in layer.fits[0].reason
    assert layer.state_size >= 400 + 201
    assert layer.fits[2].order > 0


def test_arrays_and_numbers_of_any_kind() -> None:
    expected = from_convolution(SMOOTH[:, ::-1].copy(), tol=1e-3).kernel(400)
    for filters in (SMOOTH[:, ::-1], torch.from_numpy(SMOOTH).flip(1).requires_grad_()):
        layer = from_convolution(filters, tol=np.float32(1e-3), head=np.int64(1), max_order=np.int32(128))
        torch.testing.assert_close(layer.kernel(400), expected)


@settings(max_examples=8)
@given(length=st.integers(33, 90), shape=st.sampled_from([(3,), (3, 1), (1, 3), (9, 2)]), seed=st.integers(0, 99))
def test_no_fit_is_larger_than_a_buffer(length: int, shape: tuple[int, ...], seed: int) -> None:
    filters = (noise(*shape, 3, seed=seed) @ SMOOTH)[..., :length]
    layer = from_convolution(filters, tol=1e-6)
    padded = 2 if len(shape) == 2 else 1  # to the largest of a group: of one input, several
    assert layer.state_size <= padded * length * layer.d_input
    one = from_convolution(0.9 ** np.arange(length)[None])
    assert (one.orders[0], one.state_size) == (1, 3)


def test_a_few_first_taps_of_their_own_are_worth_keeping() -> None:
    """Rough first taps are modes that decay at once, and equal ones: no sum has them."""
    filters = np.exp(-TIME / 60)
    filters[:6] += noise(6)
    whole, split = (from_convolution(filters[None], tol=1e-6, head=head) for head in (0, 6))
    assert split.orders[0] == 1
    assert whole.orders[0] > 1 + 6 or whole.failed
    assert split.state_size < whole.state_size


@given(length=st.integers(1, 60), head=st.integers(0, 60), scale=st.sampled_from([1e-300, 1.0, 1e307]))
@settings(max_examples=12)
def test_filters_of_any_length_and_size(length: int, head: int, scale: float) -> None:
    filters = scale * np.stack([0.9 ** np.arange(length), np.eye(length)[-1]])
    layer = from_convolution(filters, head=head)
    np.testing.assert_allclose(layer.kernel(length).detach().numpy(), filters, rtol=0, atol=1e-4 * 10 * scale)
    assert bool((layer.error <= 1e-4).all())


def test_a_finite_filter_ends_and_another_does_not() -> None:
    constant = np.ones((1, 300))
    free, finite = from_convolution(constant), from_convolution(constant, finite=True)
    assert free.orders[0] == 1
    assert finite.failed
    assert response(free, 600)[0, -1] > 0.9
    assert abs(response(finite, 600)[0, -1]) < 1e-12


@settings(max_examples=4)
@given(
    angles=st.lists(st.floats(0.1, 3.0), min_size=1, max_size=3, unique_by=lambda angle: round(5 * angle)),
    slope=st.floats(0, 1),
    length=st.integers(200, 600),
)
def test_undamped_waves_and_a_ramp_take_their_own_order(angles: list[float], slope: float, length: int) -> None:
    t = np.arange(length)
    values = sum(np.cos(angle * t + 1) for angle in angles) + 1 + slope * t / length
    layer = from_convolution(values[None], tol=1e-5)
    assert layer.orders[0] <= 2 * len(angles) + 2
    assert layer.error[0] <= 1e-5


def test_a_filter_that_has_not_decayed_is_continued_and_faded_out() -> None:
    line, k = 3 - 0.2 * np.arange(40), np.arange(1, 21)
    faded = _faded(line)
    assert faded[:40].tolist() == line.tolist()
    assert faded[40:] == pytest.approx((line[-1] - 0.2 * k) * (1 + np.cos(np.pi * k / 21)) / 2)
    late = np.exp(-(((TIME[:300] - 250) / 30) ** 2))
    layer = from_convolution(np.stack([1.003 ** TIME[:300], late]), tol=1e-6)
    assert layer.orders.tolist() == pytest.approx([24, 45], abs=1)


@pytest.mark.parametrize("finite", [False, True])
def test_the_error_of_a_fit_counts_what_comes_after_a_finite_filter(finite: bool) -> None:
    goal, pair = noise(30), 0.8 * np.exp(0.7j)
    found = _least_squares(goal, np.array([0.9, pair, pair.conjugate()]), finite)
    k = np.arange(2000)[:, None]
    kernel = (np.exp(found.rates * k) @ found.weights).real
    after = (np.abs(found.weights) * np.exp(found.rates.real * k[30:])).sum() if finite else 0.0
    assert found.order == 3
    assert found.error == pytest.approx(np.abs(kernel[:30] - goal).sum() + after)
    assert np.linalg.norm(kernel[:30] - goal) < np.linalg.norm(1.01 * kernel[:30] - goal)


def test_every_mode_is_stable_in_float32_too() -> None:
    growing = np.stack([TIME, 1.01**TIME, np.ones(400), np.sin(TIME)])
    layer = from_convolution(np.concatenate([growing, SMOOTH]), tol=1e-2, dtype=torch.float32)
    assert layer.orders.max() > 0
    for group in layer.groups:
        if group.modes is not None:
            assert bool((group.modes.eigenvalues().exp().abs() < 1).all())
    assert ssm.stability_radius(layer) == float("inf")


def test_arguments_are_checked() -> None:
    for filters, message in (
        (np.ones(5), r"^filters: expected shape \(channels, length\) or \(d_out, d_in, length\), got shape \(5,\)"),
        (np.ones((2, 0)), r"^filters: expected shape"),
        (np.array([[1.0, np.nan]]), r"^filters: expected finite numbers, got nan at \(0, 1\)"),
        (np.ones((1, 4), complex), r"^filters: expected real numbers, got complex128"),
        (torch.ones(1, 4, dtype=torch.cfloat), r"^filters: expected real numbers, got complex64"),
        ([[1.0], [1.0, 2.0]], r"^filters: expected an array of numbers, got list"),
    ):
        with pytest.raises(ssm.ArgumentError, match=message):
            from_convolution(filters)
    for name, value in (
        ("tol", 0.0),
        ("tol", float("nan")),
        ("max_order", 0),
        ("head", -1),
        ("head", True),
        ("dtype", torch.half),
    ):
        with pytest.raises(ssm.ArgumentError, match=f"^{name}: expected"):
            from_convolution(SMOOTH, **{name: value})
    layer = from_convolution(SMOOTH, tol=0.1)
    with pytest.raises(ssm.ArgumentError, match=r"^x: expected real numbers \(batch, time, d_input\) with 3 channels"):
        layer(torch.ones(1, 5, 2))
    with pytest.raises(ssm.ArgumentError, match=r"^state: expected shapes"):
        layer(torch.ones(1, 5, 3), layer.initial_state(2))


# Whole models


def storage(state: object) -> int:
    """Bytes that a state keeps alive."""
    if isinstance(state, Tensor):
        return state.untyped_storage().nbytes()
    return sum(map(storage, state)) if isinstance(state, tuple) else 0


@torch.no_grad()
def talk(model: nn.Module, prompt: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Greedy text by the full convolution, and the logits behind it."""
    tokens = prompt
    for _ in range(steps):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    return tokens[:, prompt.shape[1] :], model(tokens)[:, prompt.shape[1] - 1 : -1]


@torch.no_grad()
def talk_on(model: StreamingModel, prompt: Tensor, steps: int) -> tuple[Tensor, Tensor, list[int]]:
    """The same step by step, and the bytes of the state after each step."""
    logits, state = model(prompt)
    last, tokens, every, bytes_ = logits[:, -1], [], [], []
    for _ in range(steps):
        every.append(last)
        tokens.append(last.argmax(-1))
        last, state = model.step(tokens[-1], state)
        bytes_.append(storage(state))
    return torch.stack(tokens, 1), torch.stack(every, 1), bytes_


def check_conversion(width: int, length: int, training_steps: int, letters: int, steps: int) -> None:
    text = hyena_model.text()
    model = hyena_model.Hyena(width, length=length)
    loss = hyena_model.train(model, text, training_steps)
    assert loss < 0.75 * np.log(hyena_model.VOCABULARY)
    before = copy.deepcopy(model.state_dict())
    prompt = text[None, :20]
    streaming = convert(model, 1e-4, length=length, example=prompt)
    assert not streaming.failed
    assert all(fit.relative_error <= 1e-4 for module in streaming.converted for fit in module.fits)
    assert streaming.report().count("\n") == 3  # two short and two long convolutions
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)

    written, logits = talk(model, prompt, steps)
    streamed, streamed_logits, bytes_ = talk_on(streaming, prompt, steps)
    assert len(written.unique()) >= letters
    assert torch.equal(written, streamed)
    assert (logits - streamed_logits).abs().max() < 1e-3
    assert len(set(bytes_)) == 1
    assert bytes_[0] == 8 * streaming.state_size
    with torch.no_grad():
        fresh = text[None, 1000 : 1000 + length]
        assert (model(fresh) - streaming(fresh)[0]).abs().max() < 1e-3
        coarse = convert(model, 0.3, length=length)
        assert (model(fresh) - coarse(fresh)[0]).abs().max() > 1e-3  # so the line above could fail


def test_a_hyena_goes_on_with_the_same_text() -> None:
    check_conversion(width=8, length=560, training_steps=120, letters=3, steps=150)


@pytest.mark.slow
def test_a_larger_hyena_goes_on_with_the_same_text() -> None:
    check_conversion(width=64, length=1024, training_steps=600, letters=6, steps=500)


class Fixed(nn.Module):
    """A filter module of the contract."""

    def __init__(self, taps: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("taps", torch.from_numpy(taps))

    def filters(self, length: int) -> Tensor:
        return self.taps[:, :length]

    def forward(self, x: Tensor) -> Tensor:
        return causal_convolution(x, self.filters(x.shape[1]).T)


class Causal(nn.Module):
    """A Conv1d as it is used in models: padded on both sides, cut, between (B, T, C)."""

    def __init__(self, conv: nn.Conv1d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.mT)[..., : x.shape[1]].mT


def example(channels: int = 3, steps: int = 60) -> Tensor:
    return torch.from_numpy(noise(2, steps, channels))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 4, "padding": 3, "groups": 3},
        {"kernel_size": 3, "padding": 2},
        {"kernel_size": 3, "padding": 16, "dilation": 8, "bias": False},
        {"kernel_size": 50, "padding": 49, "groups": 3},
    ],
    ids=["short", "dense", "dilated", "long"],
)
def test_convolutions_of_torch(options: dict[str, int]) -> None:
    """Random weights fit no sum, so all of them stay exact."""
    conv = nn.Conv1d(3, 3, **options).to(F64)
    model = nn.Sequential(Causal(conv), nn.Tanh(), Causal(nn.Conv1d(3, 2, 1).to(F64)))
    streaming = convert(model, 1e-4, example=example())
    torch.testing.assert_close(streaming(example())[0], model(example()))
    assert ("buffered" in streaming.report()) == (options["kernel_size"] == 50) == bool(streaming.failed)


def test_a_long_depthwise_convolution_that_decays_is_fitted() -> None:
    conv = nn.Conv1d(3, 3, 400, groups=3, padding=399).to(F64)
    with torch.no_grad():
        conv.weight.copy_(torch.from_numpy(np.exp(-TIME / 20) * np.cos(TIME / 5)).flip(0))
    streaming = convert(Causal(conv), 1e-6, example=example())
    assert [fit.order for fit in streaming.converted[0].fits] == [2, 2, 2]
    x = example(steps=2000)
    assert (streaming(x)[0] - Causal(conv)(x)).abs().max() < 1e-6 * 20 * x.abs().max()


def test_a_filter_that_does_not_fit_falls_back_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3).to(F64), Fixed(np.concatenate([SMOOTH[:2], noise(1, 400)])))
    streaming = convert(model, 1e-6, length=400, example=example())
    assert streaming.failed == (("1", 2),)
    assert "1 buffered (relative error" in streaming.report()
    x = example(steps=400)
    assert (streaming(x)[0] - model(x)).abs().max() < 1e-5 * x.abs().max()


def test_a_module_used_twice_has_two_states() -> None:
    filters = Fixed(SMOOTH)
    model = nn.Sequential(filters, nn.Tanh(), filters)
    streaming = convert(model, 1e-8, length=400, example=example())
    assert len(streaming.converted) == 1
    assert len(streaming(example())[1]) == 2
    torch.testing.assert_close(streaming(example())[0], model(example()), rtol=0, atol=1e-5)
    with pytest.raises(ssm.ArgumentError, match=r"^state: expected more than 1 states"):
        streaming(example(), streaming(example())[1][:1])
    with pytest.raises(ssm.ArgumentError, match=r"^state: expected 2 states \(one for each call\), got 3"):
        streaming(example(), (*streaming(example())[1], None))
    torch.testing.assert_close(streaming.model(example()), streaming(example())[0])  # no state left behind
    assert streaming._tape._after is None  # nor kept alive


class Mixed(nn.Module):
    """Recurrent layers around a filter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.filter = ssm.LRU(3, 4, 3).to(F64), Fixed(SMOOTH)
        self.last = nn.LSTM(3, 3, batch_first=True).to(F64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.filter(self.first(x)[0]))[0]


def test_recurrent_layers_have_their_state_carried() -> None:
    model = Mixed()
    streaming = convert(model, 1e-8, length=400, example=example())
    torch.testing.assert_close(streaming(example())[0], model(example()), rtol=0, atol=1e-5)


class Running(nn.Module):
    """A mean over the past, which no rule knows."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


def test_find_tells_of_other_modules() -> None:
    model = nn.Sequential(Fixed(SMOOTH), Running())
    with pytest.raises(
        ssm.NumericalError, match=r"the output step by step differs by .* Remedy: describe every module"
    ):
        convert(model, 1e-4, length=400, example=example())

    def find(name: str, module: nn.Module) -> LongFilter | None:
        return LongFilter(torch.ones(3, 400), finite=False) if isinstance(module, Running) else None

    streaming = convert(model, 1e-8, length=400, find=find, example=example())
    torch.testing.assert_close(streaming(example())[0], model(example()), rtol=0, atol=1e-4)


class Stretched(nn.Module):
    """Not a filter: its taps depend on the length that is asked for."""

    def filters(self, length: int) -> Tensor:
        return torch.linspace(1, 0, length)[None]


class Doubled(Fixed):
    """Applies something else than its filters."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_the_example_is_compared_with_the_original() -> None:
    with pytest.raises(ssm.NumericalError, match=r"converted model differs by .* from the original"):
        convert(Doubled(SMOOTH), 1e-4, length=400, example=example())
    streaming = convert(Fixed(SMOOTH), 1e-2, length=400, example=example())
    off = (streaming(example())[0] - Fixed(SMOOTH)(example())).abs().max() / Fixed(SMOOTH)(example()).abs().max()
    assert streaming.difference == pytest.approx(off.item())
    assert convert(Fixed(SMOOTH), 1e-2, length=400).difference is None


@pytest.mark.parametrize("training", [False, True])
def test_every_module_keeps_its_mode(training: bool) -> None:
    model = nn.Sequential(nn.Sequential(Fixed(SMOOTH), nn.Dropout()), nn.Identity()).train(training)
    model[1].train(not training)
    streaming = convert(model, 1e-4, length=400, example=example())
    assert [module.training for module in streaming.model[0]] == [training] * 2
    assert (streaming.training, streaming.model.training, streaming.model[1].training) == (
        training,
        training,
        not training,
    )
    assert torch.equal(streaming(example())[0], streaming(example())[0]) == (not training)


class Cut(nn.Module):
    """A Conv1d that is cut by what it pads, and whose attributes are read."""

    def __init__(self, by_padding: bool) -> None:
        super().__init__()
        self.conv, self.by_padding = nn.Conv1d(3, 3, 4, padding=3).to(F64), by_padding

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x.mT.to(self.conv.weight.dtype))
        return y[..., : -self.conv.padding[0] if self.by_padding else x.shape[1]].mT


def test_attributes_of_a_replaced_module_can_be_read() -> None:
    streaming = convert(Cut(by_padding=False), 1e-4, example=example())
    assert [name for name, _ in streaming.named_parameters()] == ["model.conv.bias", "model.conv.layer.groups.0.taps"]
    again = copy.deepcopy(streaming)
    torch.testing.assert_close(again(example())[0], streaming(example())[0])
    with pytest.raises(AttributeError, match="nothing"):
        _ = streaming.model.conv.nothing
    with pytest.raises(
        ssm.ArgumentError, match=r"^model: expected an output \(2, 60, '…'\); cut .* got shape \(2, 57, 3\)"
    ):
        convert(Cut(by_padding=True), 1e-4, example=example())


def test_models_that_cannot_be_converted() -> None:
    with pytest.raises(ssm.ArgumentError, match=r"^model: expected a module with filters\(length\).*got Linear"):
        convert(nn.Linear(2, 2), 1e-4)
    with pytest.raises(ssm.ArgumentError, match=r"^length: expected a number of steps, for the filters of 0"):
        convert(nn.Sequential(Fixed(SMOOTH)), 1e-4)
    with pytest.raises(ssm.ArgumentError, match=r"^0.filters\(500\): expected shape \(channels, 500\)"):
        convert(nn.Sequential(Fixed(SMOOTH)), 1e-4, length=500)
    with pytest.raises(
        ssm.ArgumentError, match=r"^model.filters\(200\): expected the first taps of model.filters\(400\)"
    ):
        convert(Stretched(), 1e-4, length=400)
    with pytest.raises(
        ssm.ArgumentError, match=r"^model: expected a module from .* got Conv1d on \(batch, channel, time"
    ):
        convert(nn.Conv1d(3, 3, 4, padding=3), 1e-4)
    for ahead in (nn.GRU(3, 3, bidirectional=True), ssm.Bidirectional(ssm.LRU(3, 4, 3))):
        with pytest.raises(ssm.ArgumentError, match=rf"no layer that looks ahead, got 1: {type(ahead).__name__}"):
            convert(nn.Sequential(Fixed(SMOOTH), ahead), 1e-4, length=400)
    with pytest.raises(ssm.ArgumentError, match=r"^example: expected an input"):
        convert(Fixed(SMOOTH), 1e-4, length=400, example=torch.zeros(1, 0, 3))
    for options in ({"padding": 0}, {"padding": 1}, {"padding": 2, "stride": 2}, {"padding": 2, "groups": 2}):
        with pytest.raises(ssm.ArgumentError, match=r"^model: expected Conv1d of stride 1.*got 0: Conv1d\(4, 4"):
            convert(nn.Sequential(nn.Conv1d(4, 4, 3, **options)), 1e-4)
