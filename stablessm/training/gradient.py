"""The loss of a step and its gradient: a function of the weights, the number of the step and the carried state."""

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
"""A loss and its gradients."""
_SEEDS = 2**31
_DROPOUT = 1 << 62
"""Apart from the seeds with which tasks order their data."""
_APART = 0x9E3779B97F4A7C15
"""Between the seeds of ranks."""


class Strategy(ABC):
    """How the gradient of a step is computed: for one model, or for several as one computation."""

    @abstractmethod
    def compute(self, step: int) -> Tensor:
        """Leave the gradient of a step in the parameters, and return the loss: a number, or one for each model."""

    def settle(self, bad: Tensor) -> None:  # noqa: B027 (most strategies keep nothing)
        """Take over what the step left for the next one, unless ``bad`` is 1."""

    def updated(self) -> None:  # noqa: B027
        """The weights have changed."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint has to keep, by name."""
        return {}

    def facts(self) -> Any:
        """Plain values that a checkpoint has to keep."""
        return None

    def restore(self, facts: Any, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Resume from a checkpoint."""


@final
class Objective(Strategy):
    """The gradient of a function, of one model or of several whose losses depend on their own weights alone.

    Args:
        loss: from the tensors of a batch to the loss, or to (loss, other numbers that hooks may want to see).
        batch: from the number of a step to the tensors; the same, and the same random state, whenever it is called.
        parameters: in which a ``graph`` computes gradients.
        graph: both passes as a CUDA graph. Nothing in the loss may come from the host.
        generator: from which the loss draws, if not from the device's own.
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
        """The other numbers of the last step."""
        self.graph = graph
        self._replayed: Replayed[Passes] | None = None

    def compute(self, step: int) -> Tensor:
        """The gradient of the sum: of each model's own loss in its own weights."""
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
    """What a step of training computes, each rank for its rows of the batch.

    Args:
        epoch: steps in one.
        watch: is told what loss is normal, at step 0.
    """

    def __init__(
        self, trainee: Trainee, task: Task, config: TrainingConfig, epoch: int, watch: Watch, ranks: Ranks
    ) -> None:
        if ranks.size > 1:
            _require_parts(task, config.batch_size, ranks.size)
        if config.graph and ranks.size > 1:
            raise ArgumentError("graph", "one process", ranks.size)
        if config.graph and task.carries:
            raise ArgumentError("graph", "a task that carries no state", task.name)
        self.trainee, self.task, self.config, self.ranks = trainee, task, config, ranks
        self.epoch, self.watch, self.carry = epoch, watch, Carry(config.batch_size, ranks)
        self._graph: Replayed[Passes] | None = None

    def compute(self, step: int) -> Tensor:
        """The gradient in the parameters that are trained, averaged over ranks; the loss over the rows of all."""
        self.seed(step, self.ranks.rank)
        self.carry.begin(anew=step % self.epoch == 0)
        batches = [self.batch(step, i, self.ranks.part) for i in range(self.config.accumulate)]
        if self.config.graph and step > 0:
            return self._replayed(step, batches)
        return self._launched(step, batches)

    def _launched(self, step: int, batches: Sequence[Batch]) -> Tensor:
        """Kernel by kernel."""
        total = torch.zeros((), device=self.task.device)
        for i, batch in enumerate(batches):
            last = i + 1 == self.config.accumulate
            with nullcontext() if last else self.trainee.accumulating():
                output = self._output(self.trainee.runner, batch, self.carry)
                loss, value = self._mean_loss(output, batch)
                descend(loss / self.config.accumulate)
            total = total + value / self.config.accumulate
            if step == 0 and i == 0:
                _, silent = self._mean_loss(torch.zeros_like(output), batch)
                self.watch.start(torch.maximum(value, silent), self.config.explode)
        return total

    def _replayed(self, step: int, batches: Sequence[Batch]) -> Tensor:
        """All at once, where the batches have the shapes of the first."""
        names = [name for name, value in vars(batches[0]).items() if value is not None]
        arguments = [getattr(batch, name) for batch in batches for name in names]
        parameters = [parameter for parameter in self.trainee.trained.parameters() if parameter.requires_grad]

        def losses(*tensors: Tensor) -> Iterator[Tensor]:
            for first in range(0, len(tensors), len(names)):
                batch = Batch(**dict(zip(names, tensors[first:], strict=False)))
                yield self.task.loss(self._output(self.trainee.runner, batch, self.carry), batch) / len(batches)

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
        """The state in which the batch ended is carried on."""
        self.carry.settle(bad)

    def updated(self) -> None:
        """Buffers become those of rank 0."""
        self.ranks.share(self.trainee.trained, buffers_only=True)

    def tensors(self) -> dict[str, Tensor]:
        """The state that is carried."""
        return self.carry.tensors()

    def facts(self) -> Any:
        """The form of the state."""
        return self.carry.form()

    def restore(self, facts: Any, tensors: Mapping[str, Tensor]) -> None:
        """The state that was carried."""
        self.carry.restore(facts, tensors, self.task.device)

    def replay(self, step: int, carried: State = None) -> None:
        """The gradient in the caller's model, which is whole: the parts of all ranks one after the other.

        Parts weigh the same here: with padding it is not the exact gradient, but good enough to find a bad value.
        ``carried``: where a state is, ``carry.everyone()`` after that step.
        """
        model = self.trainee.model
        device, runner = next(model.parameters()).device, Carrying(model) if self.task.carries else model
        for rank in range(self.ranks.size):
            self.seed(step, rank)
            carry = self.carry.of_rank(carried, rank, device)
            carry.begin(anew=step % self.epoch == 0)
            for i in range(self.config.accumulate):
                batch = self.batch(step, i, (rank, self.ranks.size)).to(device)
                loss = self.task.loss(self._output(runner, batch, carry), batch)
                descend(loss / self.config.accumulate / self.ranks.size)

    def _output(self, runner: Any, batch: Batch, carry: Carry) -> Tensor:
        if self.task.carries:
            return carry.run(runner, batch, autocast=self.config.autocast)
        return apply(runner, batch, autocast=self.config.autocast)

    def _mean_loss(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Over the rows of all ranks: something whose gradient, averaged over ranks, is its gradient; and its value."""
        if self.ranks.size == 1:
            loss = self.task.loss(output, batch)
            return loss, loss.detach()
        total, count = self.task.total_loss(output, batch)
        totals, counts = self.ranks.sum(torch.stack([total.detach().double(), count.double()]))
        return total * (self.ranks.size / counts), totals / counts

    def seed(self, step: int, rank: int = 0) -> None:
        """Seed what is random in a step: other on every rank."""
        seed = _DROPOUT + (self.config.seed % _SEEDS) * _SEEDS + step
        torch.manual_seed((seed + rank * _APART) % 2**63)

    def batch(self, step: int, i: int, part: tuple[int, int] = (0, 1)) -> Batch:
        """Batch i of the step, or a part of it."""
        epoch, index = divmod(step, self.epoch)
        at, size, seed = index * self.config.accumulate + i, self.config.batch_size, self.config.seed
        return self.task.batch("train", size, seed=seed, epoch=epoch, index=at, part=part)


def descend(loss: Tensor) -> Tensor:
    """Add the gradient of a loss, or of the sum of several, to that of the parameters; return its value."""
    loss.sum().backward()
    return loss.detach()


def _both_passes(losses: Callable[..., Iterable[Tensor]], parameters: Sequence[Tensor]) -> Callable[..., Passes]:
    """Return the function that computes the sum of the losses and its gradients, one loss after the other."""

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
    """Leave the gradients of a graph in the parameters; return the loss."""
    loss, gradients = graph(*arguments)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return loss.clone()  # the next step overwrites it, and a look may be later


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def _apart(gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Each in memory of its own, where it can be clipped in place, and in order, as AdamW has its moments.

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


def _require_parts(task: Task, batch_size: int, ranks: int) -> None:
    """Raise an error where the loss of a batch is not the sum of that of its parts."""
    if batch_size < ranks:
        raise ArgumentError("batch_size", f"a sequence or more for each of {ranks} ranks", batch_size)
    cls = type(task)
    if cls.loss is not Task.loss and cls.total_loss is Task.total_loss:
        expected = "one that says by total_loss how its own loss adds up over ranks"
        raise ArgumentError("task", expected, f"{cls.__name__}, with loss alone")
