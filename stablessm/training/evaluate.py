"""Evaluation of a model on the batches of a task: outputs, loss and metric."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError, quoted
from stablessm.tasks.base import Batch, Split, Task
from stablessm.training.nested import State
from stablessm.training.ranks import Ranks


def apply(model: Any, batch: Batch, *, autocast: bool = False) -> Tensor:
    """Return the output of a model for a batch, in float32 or better. If the model also returns a state, the state is
    dropped.
    """
    output = _called(model, batch, autocast=autocast)
    return _wide(output[0] if isinstance(output, tuple) else output)


def apply_from(sequence: Any, batch: Batch, state: State, *, autocast: bool = False) -> tuple[Tensor, State]:
    """Run ``sequence(x, state, reset=…)`` on a batch from the given state; return the outputs and the final state."""
    output, state = _called(sequence, batch, state, autocast=autocast)
    return _wide(output), state


def sequence_of(model: nn.Module) -> Any:
    """Return a model's method ``sequence(x, state, reset=…) -> (outputs, state)``; raise an error if there is none.

    >>> sequence_of(nn.Linear(1, 1))
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: model: expected a method sequence(x, state, reset=…) -> (outputs, state), for a \
task that carries the state, got Linear
    """
    found = getattr(model, "sequence", None)
    if not callable(found):
        expected = "a method sequence(x, state, reset=…) -> (outputs, state), for a task that carries the state"
        raise ArgumentError("model", expected, type(model).__name__)
    return found


@torch.no_grad()
@checked
def evaluate(
    model: nn.Module,
    task: Task,
    split: Split = "test",
    batch_size: Size = 64,
    *,
    autocast: bool = False,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """Compute the metric and the loss of a model over a whole split of a task.

    The scores do not depend on the batch size, apart from rounding. For a task that carries its state, the state is
    carried through every document of the split. The model runs in evaluation mode on the device of its parameters, and
    then returns to the mode that it had before.

    Args:
        model: The model to evaluate.
        task: The task that provides the data and the metric.
        split: ``train``, ``valid`` or ``test``.
        batch_size: Number of sequences per batch.
        autocast: Compute matrix products in bfloat16.
        ranks: The processes that evaluate together (``stablessm.training.joined``): each computes its rows of every
            batch, and all return the scores of the whole split.

    >>> import stablessm as ssm
    >>> data = {"inputs": torch.randn(40, 8, 1), "targets": torch.randn(40, 8, 1)}
    >>> scores = evaluate(ssm.RealSSM(1, 4, 1), ssm.tasks.get("arrays", **data), "test")
    >>> sorted(scores)
    ['examples', 'loss', 'mse']
    """
    device, ranks = next(model.parameters()).device, ranks or Ranks()
    task = task.to(device)
    total = torch.zeros(4, dtype=torch.float64, device=device)  # sums of metric and loss, scored positions, examples
    read = outputs(model, task, split, batch_size, carry=task.carries, autocast=autocast, ranks=ranks)
    with closing(read):
        for output, batch, counts in read:
            if not counts:
                continue
            metric, count = task.score(output, batch)
            loss = metric if task.metric == "nats" else task.loss(output, batch).double() * count
            loss = torch.where(count > 0, loss, 0)  # a part may contain only padding
            total += torch.stack([metric, loss, count, torch.full_like(count, len(batch))])
    found, loss, count, examples = ranks.sum(total).tolist()
    score = math.nan if math.isnan(loss) else found / count  # an accuracy is finite even where outputs are NaN
    examples = task.sizes[split] if task.carries else examples  # a row (lane) reads many examples
    derived = {"perplexity": float(np.exp(score))} if task.metric == "nats" else {}
    return {task.metric: score, **derived, "loss": loss / count, "examples": int(examples)}


def outputs(
    model: nn.Module,
    task: Task,
    split: Split,
    batch_size: int,
    *,
    carry: bool,
    autocast: bool = False,
    ranks: Ranks | None = None,
) -> Generator[tuple[Tensor, Batch, bool], None, None]:
    """For each batch of a split, yield the model's outputs, the batch, and whether this rank's rows
    count in the scores.

    The model is in evaluation mode until the generator ends. If a batch has fewer rows than there are ranks, the spare
    ranks compute rows of other ranks, which do not count in the scores. Spare ranks cannot be left out, because a model
    in shards needs all ranks.

    Args:
        model: The model.
        task: The task.
        split: The split.
        batch_size: Number of rows per batch, over all ranks.
        carry: If True, carry the state from batch to batch (with the batches of ``Task.lanes``); otherwise every window
            starts without a state.
        autocast: Compute matrix products in bfloat16.
        ranks: The processes that evaluate together (default: one).
    """
    ranks, state = ranks or Ranks(), None
    steps = task.steps(split, batch_size)
    if not steps:
        raise ArgumentError("split", f"a split that task {task.name} has", quoted(split))
    with evaluation_mode(model):
        for batch in task.lanes(split, batch_size) if carry else ():
            part, counts = _part(len(batch), ranks)
            own = batch.rows(part)
            output, state = apply_from(sequence_of(model), own, state, autocast=autocast)
            yield output, own, counts
        for index in range(0 if carry else steps):
            part, counts = _part(min(batch_size, task.sizes[split] - index * batch_size), ranks)
            batch = task.batch(split, batch_size, seed=0, epoch=0, index=index, part=part)
            yield apply(model, batch, autocast=autocast), batch, counts


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode inside a ``with`` block; afterwards, the model has the mode that it had before.
    cuDNN stays on, because nothing is differentiated (see ``evaluating`` in ``instruments.adapters.facts``).

    >>> model = nn.Dropout()
    >>> with evaluation_mode(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)


def _part(rows: int, ranks: Ranks) -> tuple[tuple[int, int], bool]:
    """Return (i, n) and whether this rank's rows count in the scores: of a batch of ``rows`` rows, divided into n
    parts, this rank computes part i.
    """
    spare = ranks.rank >= rows
    return (0, rows) if spare else (ranks.rank, min(ranks.size, rows)), not spare


def _called(call: Any, batch: Batch, *state: State, autocast: bool) -> Any:
    given = {name: value for name in ("lengths", "reset") if (value := getattr(batch, name)) is not None}
    with torch.autocast(batch.inputs.device.type, torch.bfloat16, enabled=bool(autocast)):
        return call(batch.inputs, *state, **given)


def _wide(output: Tensor) -> Tensor:
    return output.to(torch.promote_types(output.dtype, torch.float32))
