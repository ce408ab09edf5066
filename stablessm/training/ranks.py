"""The processes that train one model together, as ``torchrun`` starts them, and their communication."""

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
"""Environment variables that a launcher sets."""


@final
@checked
@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the number of ranks. All ranks must call each method; properties need no other rank.

    >>> alone = Ranks()
    >>> alone.main, alone.part, alone.sum(torch.tensor(3.0)).item(), alone.highest(4, 0)
    (True, (0, 1), 3.0, [4, 0])
    """

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """Whether this is rank 0, the only rank that writes files and output."""
        return self.rank == 0

    @property
    def part(self) -> tuple[int, int]:
        """The part of a batch that belongs to this rank, for ``Task.batch``."""
        return self.rank, self.size

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks: the same bits on each rank."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def highest(self, *numbers: int) -> list[int]:
        """Return the largest value of each number over all ranks; on the host, without waiting for a device."""
        if self.size == 1:
            return list(numbers)
        found = torch.tensor(numbers, dtype=torch.int64, device=_host())
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return [int(number) for number in found.tolist()]

    def gather(self, values: Tensor) -> Tensor:
        """Return the values of all ranks, (ranks, ...), of one shape and dtype; for small tensors on the CPU."""
        if self.size == 1:
            return values[None]
        parts = [torch.empty_like(values, device=_host()) for _ in range(self.size)]
        dist.all_gather(parts, values.to(_host()))
        return torch.stack(parts).cpu()

    def first(self, work: Callable[[], object]) -> None:
        """Call ``work`` on rank 0 while the others wait; if it raises there, all ranks raise."""
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
            raise RuntimeError("rank 0 failed; its output has the error")

    @torch.no_grad()
    def share(self, module: nn.Module, *, buffers_only: bool = False) -> None:
        """Copy the parameters and buffers of rank 0's module to the modules of all ranks."""
        if self.size == 1:
            return
        for tensor in (*(() if buffers_only else module.parameters()), *module.buffers()):
            sent = tensor.detach() if tensor.device.type != "cpu" else tensor.detach().to(_host())
            dist.broadcast(sent, 0)
            tensor.copy_(sent)

    def device(self, chosen: torch.device) -> torch.device:
        """Return the GPU of this rank, where ``cuda`` was chosen."""
        if self.size == 1 or chosen.type != "cuda" or chosen.index is not None:
            return chosen
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", self.rank)))
        if own.index >= torch.cuda.device_count():
            raise ArgumentError("device", f"a GPU for each process here ({torch.cuda.device_count()})", f"{own}")
        torch.cuda.set_device(own)
        return own


def launched() -> Ranks:
    """Return the rank and the number of ranks that a launcher such as ``torchrun`` set; starts no process group."""
    if not all(os.environ.get(name) for name in _LAUNCHED):
        return Ranks()
    return Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes of ``torch.distributed``, which is started if a launcher asks for several processes.

    After an error, the process group is not destroyed: it ends with this process, which ends the wait of the others.

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
    """Return the device for small messages: the CPU, unless the group was started for GPUs alone."""
    return torch.device("cpu" if "gloo" in str(dist.get_backend_config()) else "cuda")
