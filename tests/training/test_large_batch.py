"""A step of several batches has the loss and the gradient of one large batch, whatever the lengths and weights."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from training_task import SCORED, Ragged, Reader, loss_and_gradient

from stablessm.training import TrainingConfig, gradient
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Gradient
from stablessm.training.ranks import Ranks
from stablessm.training.replicas import Replica, Replicas
from stablessm.training.stack import Stack
from stablessm.training.trainee import trainee

CPU = torch.device("cpu")
kinds = {"kind": st.sampled_from(["values", "classes"]), "scored": st.sampled_from(SCORED)}


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(2, 5), st.fixed_dictionaries(kinds))
@example(5, 1, 16, {"kind": "values", "scored": "lengths"})
@settings(max_examples=25)
def test_accumulated_batches_are_one_large_batch(seed, batch_size, accumulate, options):
    parts = loss_and_gradient(seed, batch_size, accumulate, Ranks(), **options)
    whole = loss_and_gradient(seed, batch_size * accumulate, 1, Ranks(), **options)
    np.testing.assert_allclose(parts, whole, rtol=1e-11, atol=1e-13)


def test_batches_of_other_lengths_do_not_weigh_the_same():
    """The mean of the batches' means is another number: the test above can fail."""
    task = Ragged(5, rows=16)
    torch.manual_seed(5)
    model = Reader(task)
    batches = [task.batch("train", 1, seed=5, index=i) for i in range(16)]
    means = [task.loss(model(batch.inputs, lengths=batch.lengths), batch).item() for batch in batches]
    assert abs(np.mean(means) / loss_and_gradient(5, 1, 16, Ranks())[0] - 1) > 0.01


def replicated(seed, batch_size, accumulate, **options):
    """Loss and gradients of two replicas of the same model, on other batches."""
    task = Ragged(seed, rows=batch_size * accumulate, **options)
    torch.manual_seed(seed)
    model = Reader(task)
    twin = Reader(task)
    twin.load_state_dict(model.state_dict())
    stack, watch, each = Stack([model, twin], CPU), Watch(CPU, 2), []
    for i in range(2):
        config = TrainingConfig(batch_size=batch_size, accumulate=accumulate, seed=seed + i, device="cpu")
        each.append(Gradient(Replica(stack, i), task, config, 1, watch, Ranks()))
    loss = Replicas(stack, each, watch).compute(0)
    grads = [p.grad.flatten(1) for p in stack.parameters()]
    return torch.cat([loss[:, None], *grads], 1), watch.limit


@pytest.mark.parametrize("scored", SCORED)
@pytest.mark.parametrize("seed", range(3))
def test_replicas_accumulate_the_same_way(seed, scored):
    parts, limits = replicated(seed, 2, 3, scored=scored)
    whole, expected = replicated(seed, 6, 1, scored=scored)
    torch.testing.assert_close(parts, whole, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(limits, expected)
    torch.testing.assert_close(parts[0], torch.tensor(loss_and_gradient(seed, 2, 3, Ranks(), scored=scored)).double())


@pytest.mark.parametrize("scored", SCORED)
def test_a_step_that_is_done_again_has_the_gradient_of_the_large_batch(scored):
    task, config = Ragged(3, rows=12, scored=scored), TrainingConfig(batch_size=4, accumulate=3, device="cpu")
    model = Reader(task)
    computed = Gradient(trainee(model, config, CPU, Ranks()), task, config, 1, Watch(CPU), Ranks())
    computed.compute(0)
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    computed.replay(0)
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)


@pytest.mark.parametrize("seed", range(3))
def test_the_number_of_scored_positions_is_that_of_the_loss(seed):
    for scored in SCORED:
        for kind in ("values", "classes"):
            task = Ragged(seed, rows=9, kind=kind, scored=scored)
            batch = task.batch("train", 9)
            output = torch.zeros(9, *([7] if task.outputs.per_step else []), task.outputs.size, dtype=torch.float64)
            assert task.count(batch).item() == pytest.approx(task.total_loss(output, batch)[1].item())
            assert gradient.count_of(task, [batch, batch]).item() == pytest.approx(2 * task.count(batch).item())
