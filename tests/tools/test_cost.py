"""The cost model: counts that can be counted, limits that are known, and a simulation beside it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from _cost import Machine, Network, Plan, crossing, fastest, longest_context, plans, step_cost
from _cost_simulation import simulated_seconds
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

import stablessm as ssm
from stablessm import models, parallel

NETWORK, MACHINE = Network(), Machine()
powers = st.integers(0, 6).map(lambda k: 2**k)
shared = st.builds(Plan, st.integers(0, 3).map(lambda k: 2**k), powers, st.sampled_from([1, 2, 4, 8]))


@given(st.integers(1, 20), st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(2, 30))
def test_parameters_are_those_of_the_model(d_model: int, n_layers: int, d_state: int, mlp: int, vocab: int) -> None:
    sizes = {"d_model": d_model, "n_layers": n_layers, "d_state": d_state, "mlp": mlp}
    model = models.LanguageModel(vocab, **sizes)
    assert Network(vocab_size=vocab, **sizes).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("split", [False, True])
@given(st.integers(4, 40), st.integers(1, 3), st.integers(4, 40), st.integers(1, 4), st.integers(2, 90))
@settings(max_examples=8)
def test_what_is_kept_is_what_autograd_keeps(
    split: bool, d_model: int, n_layers: int, d_state: int, mlp: int, vocab: int
) -> None:
    sizes = {"d_model": d_model, "n_layers": n_layers, "d_state": d_state, "mlp": mlp}
    model, steps = models.LanguageModel(vocab, **sizes), 300
    tokens, storages = torch.randint(0, vocab, (1, steps)), {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    looking = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with parallel.sequence_parallel(model) if split else nullcontext(), looking:
        loss = cross_entropy(model(tokens)[0], tokens[0])
    kept = sum(storage.nbytes() for start, storage in storages.items() if start not in parameters)
    told = Network(vocab_size=vocab, number=4, **sizes).kept(split=split) * steps
    assert loss.requires_grad
    # beside those: the tokens, a mean and a deviation of every norm, and a few numbers of each eigenvalue
    assert told <= kept <= 1.01 * told + 4 * steps * (4 * n_layers + 8) + 200 * d_state * n_layers


def test_the_default_is_the_size_of_the_paper() -> None:
    assert replace(NETWORK, vocab_size=8192).parameters == models.PRESETS["lm-paper"].parameters


@given(shared, st.integers(10, 20))
def test_more_tokens_cost_more_but_carries_stay(plan: Plan, exponent: int) -> None:
    one, two = (step_cost(NETWORK, MACHINE, plan, steps=2**k, batch=8) for k in (exponent, exponent + 1))
    assert two.compute == pytest.approx(2 * one.compute)
    assert two.memory > one.memory
    assert (two.carries, two.sent, two.gradients) == (one.carries, one.sent, one.gradients)
    assert two.products >= one.products


@given(shared, st.integers(10, 20))
def test_ranks_share_the_work(plan: Plan, exponent: int) -> None:
    alone = step_cost(NETWORK, MACHINE, Plan(), steps=2**exponent, batch=8)
    cost = step_cost(NETWORK, MACHINE, plan, steps=2**exponent, batch=8)
    assert alone.communication == 0
    assert cost.compute * plan.ranks >= 0.99 * alone.compute
    extra = step_cost(NETWORK, MACHINE, replace(plan, tensor=1), steps=2**exponent, batch=8)
    assert extra.compute * plan.data * plan.sequence <= 1.05 * alone.compute  # the second pass is a few per cent


@given(st.integers(0, 10), st.integers(1, 20), st.integers(0, 12))
def test_plans_use_all_ranks_once(ranks: int, steps: int, batch: int) -> None:
    found = plans(2**ranks, steps=2**steps, batch=2**batch)
    assert len(set(found)) == len(found)
    for plan in found:
        assert plan.ranks == 2**ranks
        assert plan.data <= 2**batch
        assert plan.sequence <= 2**steps


def test_where_the_ways_cross() -> None:
    sequence, tensor, machine = Plan(sequence=8), Plan(tensor=8), replace(MACHINE, latencies=(0.0, 0.0))
    steps = crossing(NETWORK, machine, sequence, tensor)
    assert steps is not None

    def seconds(plan: Plan, length: int) -> float:
        return step_cost(NETWORK, machine, plan, steps=length, batch=1).seconds

    assert seconds(sequence, steps) <= seconds(tensor, steps)
    assert seconds(sequence, steps - 1) > seconds(tensor, steps - 1)
    assert crossing(NETWORK, MACHINE, sequence, Plan(data=8), batch=8) is None  # while it fits, the batch is cheaper


def test_a_long_sequence_needs_to_be_shared() -> None:
    one = longest_context(NETWORK, MACHINE, 1)
    assert step_cost(NETWORK, MACHINE, Plan(), steps=one, batch=1).memory <= MACHINE.memory
    assert step_cost(NETWORK, MACHINE, Plan(), steps=one + 1, batch=1).memory > MACHINE.memory
    assert longest_context(NETWORK, MACHINE, 64) > 60 * one
    found = fastest(NETWORK, MACHINE, 16, steps=4 * one, batch=4)
    assert found is not None
    assert found[0].sequence > 1
    assert fastest(NETWORK, MACHINE, 1, steps=one + 1, batch=1) is None
    assert longest_context(replace(NETWORK, recompute=True), MACHINE, 1) > one


def test_too_many_ranks_for_the_batch() -> None:
    with pytest.raises(ssm.ArgumentError, match=r"plan\.data"):
        step_cost(NETWORK, MACHINE, Plan(data=8), steps=100, batch=4)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64, 1000])
def test_the_simulation_waits_as_long_or_less(ranks: int, recompute: bool) -> None:
    network, plan = replace(NETWORK, recompute=recompute), Plan(sequence=ranks)
    told = step_cost(network, MACHINE, plan, steps=2**20, batch=2)
    played = simulated_seconds(network, MACHINE, plan, steps=2**20, batch=2)
    assert 0.45 * told.carries <= played - (told.seconds - told.carries) + 1e-12
    assert played <= told.seconds + 1e-12
    assert simulated_seconds(network, MACHINE, plan, steps=2**20, batch=2, jitter=0.2) > played * 1.001
