"""The processes that train one model together, as ``torchrun`` starts them; and what they tell each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.parallel.carry import place

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher sets."""


@final
@checked
@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is. Every method but ``part`` and ``main`` is to be called by all of them.

    >>> alone = Ranks()
    >>> alone.main, alone.part, alone.sum(torch.tensor(3.0)).item(), alone.highest(4, 0)
    (True, (0, 1), 3.0, [4, 0])
    """

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """Whether this is the one that writes and says things."""
        return self.rank == 0

    @property
    def part(self) -> tuple[int, int]:
        """Which rows of a batch are this one's, for ``Task.batch``."""
        return self.rank, self.size

    @checked
    def sum(self, values: Tensor) -> Tensor:
        """Over all ranks: the same bits on each."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def highest(self, *numbers: int) -> list[int]:
        """The largest of each number over all ranks; on the host, so that no device is waited for."""
        if self.size == 1:
            return list(numbers)
        found = torch.tensor(numbers, dtype=torch.int64, device=_host())
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return [int(number) for number in found.tolist()]

    @checked
    def gather(self, values: Tensor) -> Tensor:
        """(ranks, ...): everyone's, of the same shape and dtype, in the order of ranks; for small ones on the CPU."""
        if self.size == 1:
            return values[None]
        parts = [torch.empty_like(values, device=_host()) for _ in range(self.size)]
        dist.all_gather(parts, values.to(_host()))
        return torch.stack(parts).cpu()

    @checked
    def first(self, work: Callable[[], object]) -> None:
        """Rank 0 does it and the others wait; if it fails there, all fail."""
        failure: Exception | None = None
        try:
            if self.main:
                work()
        except Exception as error:
            failure = error
        failed = self.highest(failure is not None)[0]
        if failure is not None:
            raise failure
        if failed:
            raise RuntimeError("rank 0 failed; it says why")

    @torch.no_grad()
    @checked
    def share(self, module: nn.Module, *, buffers_only: bool = False) -> None:
        """Every rank's module gets the parameters and buffers of rank 0's."""
        if self.size == 1:
            return
        for tensor in (*(() if buffers_only else module.parameters()), *module.buffers()):
            sent = tensor.detach() if tensor.device.type != "cpu" else tensor.detach().to(_host())
            dist.broadcast(sent, 0)
            tensor.copy_(sent)

    @checked
    def device(self, chosen: torch.device) -> torch.device:
        """The GPU of this rank, where ``cuda`` was chosen."""
        if self.size == 1 or chosen.type != "cuda" or chosen.index is not None:
            return chosen
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", self.rank)))
        if own.index >= torch.cuda.device_count():
            raise ArgumentError("device", f"a GPU for each process here ({torch.cuda.device_count()})", f"{own}")
        torch.cuda.set_device(own)
        return own


def launched() -> Ranks:
    """Which of how many a launcher such as ``torchrun`` says this is; nobody is told."""
    if not all(os.environ.get(name) for name in _LAUNCHED):
        return Ranks()
    return Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


@contextmanager
def joined() -> Iterator[Ranks]:
    """The processes of ``torch.distributed``, which is started if a launcher asks for more than one.

    An error leaves the group to end with its process: the others may wait for this one, and that tells them.

    >>> with joined() as ranks:
    ...     ranks
    Ranks(rank=0, size=1)
    """
    starts = dist.is_available() and not dist.is_initialized() and launched().size > 1
    if starts:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    yield Ranks(*place())
    if starts:
        dist.destroy_process_group()


def _host() -> torch.device:
    """Where small messages lie: the CPU, unless the group was started for GPUs alone."""
    return torch.device("cpu" if "gloo" in str(dist.get_backend_config()) else "cuda")
