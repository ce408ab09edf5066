"""Running a model on a task's batches, and scoring it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError
from stablessm.tasks.base import Batch, Split, Task
from stablessm.training.ranks import Ranks


def apply(model: Any, batch: Batch, *, autocast: bool = False) -> Tensor:
    """What a model says of a batch, in float32 or better; of a layer's ``(output, state)`` the output."""
    given = {name: value for name in ("lengths", "reset") if (value := getattr(batch, name)) is not None}
    with torch.autocast(batch.inputs.device.type, torch.bfloat16, enabled=autocast):
        output = model(batch.inputs, **given)
    output = output[0] if isinstance(output, tuple) else output
    return cast(Tensor, output.to(torch.promote_types(output.dtype, torch.float32)))


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: Split = "test",
    batch_size: int = 64,
    *,
    autocast: bool = False,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """The task's metric and loss over a whole split: the same whatever the batch size, but for rounding.

    The model runs where its parameters are, in evaluation mode; its mode is left as it was. ``ranks``
    (``stablessm.training.joined``): each process takes its rows of every batch, and all get the scores of all.

    >>> import stablessm as ssm
    >>> data = {"inputs": torch.randn(40, 8, 1), "targets": torch.randn(40, 8, 1)}
    >>> scores = evaluate(ssm.RealSSM(1, 4, 1), ssm.tasks.get("arrays", **data), "test")
    >>> sorted(scores)
    ['examples', 'loss', 'mse']
    """
    device, ranks = next(model.parameters()).device, ranks or Ranks()
    task, before = task.to(device), model.training
    batches = task.steps(split, batch_size)
    if not batches:
        raise ArgumentError("split", f"one that task {task.name} has", repr(split))
    total = torch.zeros(4, dtype=torch.float64, device=device)  # metric, loss, how many they are sums over, examples
    model.eval()
    try:
        for index in range(batches):
            rows = min(batch_size, task.sizes[split] - index * batch_size)
            spare = ranks.rank >= rows  # too few for all ranks: it runs along, since a model in shards needs everyone
            part = (0, rows) if spare else (ranks.rank, min(ranks.size, rows))
            batch = task.batch(split, batch_size, seed=0, epoch=0, index=index, part=part)
            output = apply(model, batch, autocast=autocast)
            if spare:
                continue
            metric, count = task.score(output, batch)
            loss = metric if task.metric == "nats" else task.loss(output, batch).double() * count
            loss = torch.where(count > 0, loss, 0)  # a part may be all padding
            total += torch.stack([metric, loss, count, torch.full_like(count, len(batch))])
    finally:
        model.train(before)
    metric, loss, count, examples = ranks.sum(total).tolist()
    derived = {"perplexity": float(np.exp(metric / count))} if task.metric == "nats" else {}
    return {task.metric: metric / count, **derived, "loss": loss / count, "examples": int(examples)}
