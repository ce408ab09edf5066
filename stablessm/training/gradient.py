"""Strategies: classes that compute the loss and the gradient of a training step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.tasks.base import Batch, Task
from stablessm.training.carry import Carry
from stablessm.training.config import TrainingConfig
from stablessm.training.divergence import Watch
from stablessm.training.evaluate import apply
from stablessm.training.nested import State
from stablessm.training.ranks import Ranks
from stablessm.training.replayed import Replayed
from stablessm.training.trainee import Carrying, Trainee

Passes: TypeAlias = tuple[Tensor, Sequence[Tensor | None]]
"""A loss and its gradients with respect to the parameters."""
_SEEDS = 2**31
_DROPOUT = 1 << 62
"""Offset that separates the seeds of dropout from the seeds with which tasks order their data."""
_APART = 0x9E3779B97F4A7C15
"""Difference between the random seeds of consecutive ranks."""


class Strategy(ABC):
    """The base class of strategies. A strategy computes the loss and the gradient of a training step, for one model or
    for several models.
    """

    @abstractmethod
    def compute(self, step: int) -> Tensor:
        """Compute the gradient of a step, store it in ``grad`` of the parameters, and return the loss (for several
        models, one loss per model).
        """

    def settle(self, bad: Tensor) -> None:  # noqa: B027 (most strategies keep nothing)
        """Store the carried state after this step for the next step, unless ``bad`` is 1 (the step diverged)."""

    def updated(self) -> None:  # noqa: B027
        """Update values that depend on the weights, such as buffers; called after every update by the optimizer."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to store in a checkpoint, by name."""
        return {}

    def facts(self) -> Any:
        """Return the plain values that a checkpoint stores for this strategy, in addition to :meth:`tensors`."""
        return None

    def restore(self, facts: Any, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Restore the state of the strategy from a checkpoint."""


@final
class Objective(Strategy):
    """A strategy for any loss function of one model, or of several models whose losses are independent.

    Args:
        loss: Function from the tensors of a batch to the loss, or to (loss, other numbers for the hooks).
        batch: Function from the number of a step to the tensors of its batch. It must return the same tensors, and set
            the same random state, at every call with the same number.
        parameters: Parameters whose gradients a CUDA graph computes; required with ``graph``.
        graph: Capture the forward and backward pass as a CUDA graph. The loss must not copy values to the host.
        generator: Random generator that the loss draws from (default: the generator of the device).
    """

    def __init__(
        self,
        loss: Callable[..., Tensor | tuple[Tensor, Tensor]],
        batch: Callable[[int], Sequence[Tensor]],
        parameters: Iterable[Tensor] = (),
        *,
        graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        self.loss, self.batch, self.parameters, self.generator = loss, batch, list(parameters), generator
        self.noted: Tensor | None = None
        """The other numbers that ``loss`` returned for the last step."""
        self.graph = graph
        self._replayed: Replayed[Passes] | None = None

    def compute(self, step: int) -> Tensor:
        """Compute the losses of all models, store their gradients in ``grad`` of the parameters, and
        return the losses.
        """
        arguments = self.batch(step)
        if not self.graph:
            return descend(self._noting(*arguments))
        if self._replayed is None:
            both = _both_passes(lambda *tensors: [self._noting(*tensors)], self.parameters)
            self._replayed = Replayed(both, arguments, (), self.generator)
            arguments = self.batch(step)
        return _replay(self._replayed, arguments, self.parameters)

    def _noting(self, *arguments: Tensor) -> Tensor:
        found = self.loss(*arguments)
        loss, self.noted = found if isinstance(found, tuple) else (found, None)
        return loss


@final
class Gradient(Strategy):
    """The strategy for one model on a task; each rank computes the gradient of its rows of the batch.

    Args:
        trainee: The model to train.
        task: The task to train on.
        config: The settings of the training run.
        epoch: Number of steps per epoch.
        watch: Detector of divergence, which receives the initial loss at step 0.
        ranks: The processes that train together.
    """

    def __init__(
        self, trainee: Trainee, task: Task, config: TrainingConfig, epoch: int, watch: Watch, ranks: Ranks
    ) -> None:
        require_parts(task, config, ranks.size)
        if config.graph and ranks.size > 1:
            raise ArgumentError("graph", "one process", ranks.size)
        if config.state_noise is not None and not task.carries:
            raise ArgumentError("state_noise", "None, or a task with carry=True", config.state_noise)
        if config.graph and task.carries:
            raise ArgumentError("graph", "a task that does not carry the state", task.name)
        self.trainee, self.task, self.config, self.ranks = trainee, task, config, ranks
        self.epoch, self.watch = epoch, watch
        self.carry = Carry(config.batch_size, ranks, config.state_noise)
        self._graph: Replayed[Passes] | None = None

    def compute(self, step: int) -> Tensor:
        """Compute the mean loss over all batches and ranks of a step, store its gradient in ``grad``,
        and return the loss.

        The mean is over the scored positions, so that long sequences count more than short sequences, as in one large
        batch.
        """
        self.seed(step, self.ranks.rank)
        self.carry.begin(anew=step % self.epoch == 0)
        batches = [self.batch(step, i, self.ranks.part) for i in range(self.config.accumulate)]
        if self.config.graph and step > 0:
            return self._replayed(step, batches)
        return self._launched(step, batches)

    def _launched(self, step: int, batches: Sequence[Batch]) -> Tensor:
        """Compute the loss and the gradient of a step in the usual way, without a CUDA graph."""
        count = self._count(batches)
        # the loss and, at step 0, the loss of zero outputs
        values = torch.zeros(2, dtype=torch.float64, device=self.task.device)
        for i, batch in enumerate(batches):
            with self.trainee.accumulating() if i + 1 < len(batches) else nullcontext():
                output = self._output(self.trainee.runner, batch, self.carry)
                loss = part_of_loss(self.task, output, batch, count)
                descend(loss * self.ranks.size)  # ranks average their gradients
            silent = part_of_loss(self.task, torch.zeros_like(output), batch, count) if step == 0 else loss
            values += torch.stack([loss.detach(), silent.detach()])
        loss, silent = self.ranks.sum(values)
        if step == 0:
            self.watch.start(torch.maximum(loss, silent), self.config.explode)
        return loss

    def _replayed(self, step: int, batches: Sequence[Batch]) -> Tensor:
        """Compute the loss and the gradient of a step by replaying a CUDA graph, which the first call captures. If the
        batches have other shapes than the captured batches, compute the step without the graph.
        """
        names = [name for name, value in vars(batches[0]).items() if value is not None]
        arguments = [getattr(batch, name) for batch in batches for name in names]
        parameters = [parameter for parameter in self.trainee.trained.parameters() if parameter.requires_grad]
        total = self._count(batches)
        arguments += [] if total is None else [total]

        def losses(*tensors: Tensor) -> Iterator[Tensor]:
            count = None if total is None else tensors[-1]
            for first in range(0, len(names) * len(batches), len(names)):
                batch = Batch(**dict(zip(names, tensors[first:], strict=False)))
                yield part_of_loss(self.task, self._output(self.trainee.runner, batch, self.carry), batch, count)

        if self._graph is None:
            if "lengths" in names:
                raise ArgumentError("graph", "sequences of one length", f"{self.task.name}, which pads them")
            try:
                both = _both_passes(losses, parameters)
                self._graph = Replayed(both, arguments, self.trainee.trained.buffers())
            except RuntimeError as error:
                raise ArgumentError("graph", "a model that never waits for the device", f"'{error}'") from error
            self.seed(step, self.ranks.rank)
        if not self._graph.fits(arguments):
            return self._launched(step, batches)
        return _replay(self._graph, arguments, parameters)

    def settle(self, bad: Tensor) -> None:
        """Store the carried state after this step for the next step, or keep the state before this step if ``bad`` is 1
        (the step diverged).
        """
        self.carry.settle(bad)

    def updated(self) -> None:
        """Copy the buffers of the model from rank 0 to all ranks."""
        self.ranks.share(self.trainee.trained, buffers_only=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state carried between batches by name, to be stored in a checkpoint."""
        return self.carry.tensors()

    def facts(self) -> Any:
        """Return the structure of the state carried between batches, to be stored in a checkpoint."""
        return self.carry.form()

    def restore(self, facts: Any, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state carried between batches from a checkpoint."""
        self.carry.restore(facts, tensors, self.task.device)

    def replay(self, step: int, carried: State = None) -> None:
        """Compute the gradients of a step again in the caller's unsharded model, to find the cause of a divergence.

        The gradients of the parts of all ranks are computed one after the other.

        For a task that carries its state, ``carried`` is the state of all ranks from which the step started (the result
        of :meth:`.Carry.everyone`).
        """
        model = self.trainee.model
        device, runner = next(model.parameters()).device, Carrying(model) if self.task.carries else model
        places = [(rank, i) for rank in range(self.ranks.size) for i in range(self.config.accumulate)]
        batches = [self.batch(step, i, (rank, self.ranks.size)).to(device) for rank, i in places]
        count = count_of(self.task, batches) if len(batches) > 1 else None
        for (rank, i), batch in zip(places, batches, strict=True):
            if i == 0:
                self.seed(step, rank)
                carry = self.carry.of_rank(carried, rank, device)
                carry.begin(anew=step % self.epoch == 0)
            descend(part_of_loss(self.task, self._output(runner, batch, carry), batch, count))

    def _output(self, runner: Any, batch: Batch, carry: Carry) -> Tensor:
        if self.task.carries:
            return carry.run(runner, batch, autocast=self.config.autocast)
        return apply(runner, batch, autocast=self.config.autocast)

    def _count(self, batches: Sequence[Batch]) -> Tensor | None:
        """Return the number of scored positions of a step over all ranks; None if the step consists of one batch on one
        rank, so that the number is not needed.
        """
        alone = self.config.accumulate * self.ranks.size == 1
        return None if alone else self.ranks.sum(count_of(self.task, batches))

    def seed(self, step: int, rank: int = 0) -> None:
        """Seed the random generators for a step, differently on every rank."""
        seed = _DROPOUT + (self.config.seed % _SEEDS) * _SEEDS + step
        torch.manual_seed((seed + rank * _APART) % 2**63)

    def batch(self, step: int, i: int, part: tuple[int, int] = (0, 1)) -> Batch:
        """Return batch number i of a step, or the given part of this batch."""
        epoch, index = divmod(step, self.epoch)
        at, size, seed = index * self.config.accumulate + i, self.config.batch_size, self.config.seed
        return self.task.batch("train", size, seed=seed, epoch=epoch, index=at, part=part)


def descend(loss: Tensor) -> Tensor:
    """Run the backward pass of a loss, and return the loss without its graph. If ``loss`` contains several losses, the
    backward pass is that of their sum.
    """
    loss.sum().backward()
    return loss.detach()


def _both_passes(losses: Callable[..., Iterable[Tensor]], parameters: Sequence[Tensor]) -> Callable[..., Passes]:
    """Return a function that computes the sum of the losses that ``losses(*tensors)`` yields, and the gradients of this
    sum with respect to ``parameters``.

    The backward pass of each loss runs before the next loss is computed, which saves memory.
    """

    def both(*tensors: Tensor) -> Passes:
        total, sums = None, list[Tensor | None]([None] * len(parameters))
        for loss in losses(*tensors):
            found = torch.autograd.grad(loss.sum(), parameters, allow_unused=True)
            sums = [_sum(old, new) for old, new in zip(sums, found, strict=True)]
            total = _sum(total, loss.detach())
        assert total is not None
        return total, _apart(sums)

    return both


def _replay(graph: Replayed[Passes], arguments: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """Replay a captured CUDA graph, store the gradients that the graph computed in the parameters, and return the
    loss.
    """
    loss, gradients = graph(*arguments)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return loss.clone()  # the next replay overwrites it, and the host may read it later


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def _apart(gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the gradients as contiguous tensors that do not share memory, so that they can be clipped in place.

    >>> a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    >>> same, apart = (f(torch.autograd.grad((a + b).prod(), (a, b))) for f in (tuple, _apart))
    >>> same[0].data_ptr() == same[1].data_ptr(), apart[0].data_ptr() == apart[1].data_ptr()
    (True, False)
    """
    found, taken = list[Tensor | None](), set[int]()
    for gradient in gradients:
        own = gradient if gradient is None else gradient.contiguous()
        if own is not None:
            own = own.clone() if own.untyped_storage().data_ptr() in taken else own
            taken.add(own.untyped_storage().data_ptr())
        found.append(own)
    return found


def require_parts(task: Task, config: TrainingConfig, ranks: int) -> None:
    """Raise an error if the settings divide a step among several batches or ranks, but the task has no methods to add
    up the losses of the parts.
    """
    if config.batch_size < ranks:
        raise ArgumentError("batch_size", f"at least one sequence for each of {ranks} ranks", config.batch_size)
    own = [name for name in ("loss", "total_loss", "count") if getattr(type(task), name) is not getattr(Task, name)]
    missing = {"total_loss", "count"} - set(own)
    if own and missing and config.accumulate * ranks > 1:
        expected = f"a task that also defines {' and '.join(sorted(missing))}, to be trained with accumulate or ranks"
        raise ArgumentError("task", expected, f"{type(task).__name__}, which overrides only {' and '.join(own)}")


def count_of(task: Task, batches: Iterable[Batch]) -> Tensor:
    """Return the total number of scored positions of several batches."""
    return torch.stack([task.count(batch) for batch in batches]).sum()


def part_of_loss(task: Task, output: Tensor, batch: Batch, count: Tensor | None) -> Tensor:
    """Return the contribution of one batch to the mean loss of a step: the summed loss of the batch divided by
    ``count``, the number of scored positions in all batches of the step.

    With ``count=None``, the batch is the whole step.
    """
    return task.loss(output, batch) if count is None else task.total_loss(output, batch)[0] / count
