"""What may be split and what may not; one rank is the whole."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import draw, draw_decay
from ssm_cases import draw_layer
from torch import nn

import stablessm as ssm
from stablessm import models, parallel
from stablessm.constructions import from_convolution


def test_one_rank_is_the_whole() -> None:
    model = models.SequenceClassifier(5, vocab_size=5, per_step=True, mixer="hyena-lru", d_model=6, d_state=4)
    tokens = torch.randint(0, 5, (2, 30))
    truth = model(tokens)
    with parallel.sequence_parallel(model):
        assert torch.allclose(model(tokens), truth, atol=1e-6)


RESETS = {None: None, 1: torch.arange(7) == 3, 2: torch.eye(7, dtype=torch.bool)[2:4]}
CASES = {
    "dtype": st.sampled_from([torch.float64, torch.complex128]), "initial": st.booleans(),
    "reset": st.sampled_from(list(RESETS)), "seed": st.integers(0, 2**31),
}  # fmt: skip


@settings(max_examples=15)
@given(shape=st.sampled_from([(3,), (7, 3), (2, 7, 3)]), **CASES)
def test_a_scan_on_one_rank_is_the_scan(shape, dtype, initial, reset, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = [draw_decay(shape, dtype, generator), draw((2, 7, 3), dtype, generator)]
    tensors += [draw((2, 3), dtype, generator)] if initial else []
    found = parallel.sequence_scan(*tensors, reset=RESETS[reset])
    torch.testing.assert_close(found, ssm.linear_scan(*tensors, reset=RESETS[reset], backend="reference"))


@settings(max_examples=15)
@given(skip=st.booleans(), lengths=st.sampled_from([None, (7, 0), (3, 5)]), **CASES)
def test_a_fused_scan_on_one_rank_is_the_scan(skip, lengths, dtype, initial, reset, seed) -> None:
    tensors, _ = draw_layer(dtype, 2, 7, 3, 2, skip=skip, initial=initial, seed=seed)
    options = {"reset": RESETS[reset], "lengths": None if lengths is None else torch.tensor(lengths)}
    found = parallel.sequence_ssm_scan(*tensors, **options)
    torch.testing.assert_close(found, ssm.ssm_scan(*tensors, **options, backend="reference"))


def test_the_place_among_ranks_is_that_of_the_group_or_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    group = object()
    monkeypatch.setattr(dist, "get_rank", lambda asked=None: 1 if asked is group else 2)
    monkeypatch.setattr(dist, "get_world_size", lambda asked=None: 3 if asked is group else 4)
    for available, begun, place in ((True, True, (2, 4)), (True, False, (0, 1)), (False, True, (0, 1))):
        monkeypatch.setattr(dist, "is_available", lambda found=available: found)
        monkeypatch.setattr(dist, "is_initialized", lambda found=begun: found)
        assert parallel.carry.place() == place
        assert parallel.carry.place(group) == (1, 3)
    monkeypatch.setattr(dist, "is_available", lambda: True)
    assert [parallel.own_steps(8), parallel.own_steps(9, group)] == [slice(4, 6), slice(3, 6)]


def test_a_wrong_state_or_input_is_named() -> None:
    layer, x = ssm.LRU(2, 3, 2), torch.randn(4, 9, 2)
    with parallel.sequence_parallel(layer):
        for state in (torch.zeros(3, 3) + 0j, torch.zeros(4, 2) + 0j, "state"):
            with pytest.raises(ssm.ArgumentError, match=r"^state: expected"):
                layer(x, state)
        with pytest.raises(ssm.ArgumentError, match=r"^x: expected"):
            layer(torch.tensor(1.0))


def test_a_call_by_name_is_the_same() -> None:
    layer, x = ssm.LRU(2, 3, 2), torch.randn(1, 9, 2)
    state = torch.randn(1, 3) + 0j
    truth = layer(x, state, reset=torch.arange(9) == 4)[0]
    with parallel.sequence_parallel(layer):
        assert torch.allclose(layer(x=x, state=state, reset=torch.arange(9) == 4)[0], truth, atol=1e-6)
        with pytest.raises(ssm.ArgumentError, match="the rest by name, got 3"):
            layer(x, state, torch.arange(9) == 4)


def test_hooks_leave_when_asked_and_survive_a_copy() -> None:
    layer = ssm.S4D(2, 3)
    handle = parallel.sequence_parallel(layer)
    assert len(copy.deepcopy(layer)._forward_pre_hooks) == 1
    handle.remove()
    assert not layer._forward_pre_hooks


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (ssm.Bidirectional(ssm.LRU(2, 3, 2)), "Bidirectional"),
        (ssm.ContinuousRNN(2, 3, 2), "ContinuousRNN"),
        (nn.Sequential(nn.LSTM(2, 3)), "LSTM"),
        (models.SequenceStack(models.StackConfig(d_input=2, norm="batch")), "BatchNorm"),
        (models.SequenceClassifier(3, d_input=2), "per_step"),
        (models.SequenceClassifier(3, d_input=2, pool="last"), "per_step"),
        (from_convolution(0.9 ** torch.arange(40.0)[None], head=3), "joined"),
        (nn.Linear(2, 3), "recurrent layer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_split_is_refused(model: nn.Module, word: str) -> None:
    with pytest.raises(ssm.ArgumentError, match=word):
        parallel.sequence_parallel(model)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_layer_of_yours_can_be_taught() -> None:
    class Sum(nn.Module):
        """y[t] = state + x[0] + … + x[t]."""

        def initial_state(self, batch: int) -> torch.Tensor:
            return torch.zeros(batch, 1)

        def forward(self, x: torch.Tensor, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
            y = x.cumsum(1) + (self.initial_state(len(x)) if state is None else state)[:, None]
            return y, y[:, -1]

    with pytest.raises(ssm.ArgumentError, match="Sum"):
        parallel.sequence_parallel(Sum())

    @parallel.incoming_state.register(Sum)
    def _(module: Sum, x: torch.Tensor, state: torch.Tensor | None, group: object) -> torch.Tensor:
        total = x.sum(1)
        return parallel.incoming(parallel.Affine(torch.ones_like(total), total), state, group)

    with parallel.sequence_parallel(model := Sum()):
        y, _ = model(torch.ones(1, 4, 1), torch.full((1, 1), 10.0))
    assert y.flatten().tolist() == [11.0, 12.0, 13.0, 14.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    decay, drive = torch.full((4,), 0.999), torch.rand(2, 500, 4, dtype=torch.float64)
    truth = ssm.linear_scan(decay.double(), drive.to(dtype).double())
    found = parallel.sequence_scan(decay, drive.to(dtype))
    assert found.dtype == dtype
    assert torch.allclose(found.double(), truth, rtol=0.005)


def test_wrong_arguments_name_themselves() -> None:
    with pytest.raises(ssm.ArgumentError, match="decay"):
        parallel.sequence_scan(torch.ones(3), torch.ones(1, 2, 4))
    with pytest.raises(ssm.ArgumentError, match="steps"):
        parallel.own_steps(-1)


def test_the_backend_is_that_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import stablessm.parallel.scan as module

    asked = []
    for name in ("linear_scan", "ssm_scan"):
        unchanged = getattr(module, name)

        def noted(*args: Any, unchanged: Any = unchanged, **options: Any) -> Any:
            asked.append(options["backend"])
            return unchanged(*args, **options)

        monkeypatch.setattr(module, name, noted)
    for backend in ("reference", "auto"):
        asked.clear()
        ssm.parallel.sequence_scan(torch.rand(2), torch.randn(1, 3, 2), backend=backend)
        one = torch.rand(2, 3)
        ssm.parallel.sequence_ssm_scan(torch.randn(1, 4, 2), torch.rand(2, 3), one, one, backend=backend)
        assert asked == [backend] * 4
