"""Running a model on a task's batches, and scoring it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError
from stablessm.tasks.base import Batch, Split, Task


def apply(model: Any, batch: Batch, *, autocast: bool = False) -> Tensor:
    """What a model says of a batch, in float32 or better; of a layer's ``(output, state)`` the output."""
    padded = {} if batch.lengths is None else {"lengths": batch.lengths}
    with torch.autocast(batch.inputs.device.type, torch.bfloat16, enabled=autocast):
        output = model(batch.inputs, **padded)
    output = output[0] if isinstance(output, tuple) else output
    return cast(Tensor, output.to(torch.promote_types(output.dtype, torch.float32)))


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Task, split: Split = "test", batch_size: int = 64, *, autocast: bool = False
) -> dict[str, float]:
    """The task's metric and loss over a whole split: the same whatever the batch size, but for rounding.

    The model runs where its parameters are, in evaluation mode; its mode is left as it was.

    >>> import stablessm as ssm
    >>> data = {"inputs": torch.randn(40, 8, 1), "targets": torch.randn(40, 8, 1)}
    >>> scores = evaluate(ssm.RealSSM(1, 4, 1), ssm.tasks.get("arrays", **data), "test")
    >>> sorted(scores)
    ['examples', 'loss', 'mse']
    """
    device = next(model.parameters()).device
    task, before = task.to(device), model.training
    batches = task.steps(split, batch_size)
    if not batches:
        raise ArgumentError("split", f"one that task {task.name} has", repr(split))
    total = torch.zeros(3, dtype=torch.float64, device=device)  # metric, loss, and how many they are sums over
    examples = 0
    model.eval()
    try:
        for index in range(batches):
            batch = task.batch(split, batch_size, seed=0, epoch=0, index=index)
            output = apply(model, batch, autocast=autocast)
            metric, count = task.score(output, batch)
            total += torch.stack([metric, task.loss(output, batch).double() * count, count])
            examples += len(batch)
    finally:
        model.train(before)
    metric, loss, count = total.tolist()
    return {task.metric: metric / count, "loss": loss / count, "examples": examples}
