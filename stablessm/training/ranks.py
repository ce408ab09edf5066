"""The processes (ranks) that train one model together, as started by ``torchrun``, and their communication."""

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
"""Environment variables that a launcher such as ``torchrun`` sets."""


@final
@checked
@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the number of ranks, with methods for their communication.

    Methods must be called on all ranks; properties can be read on any rank.

    >>> alone = Ranks()
    >>> alone.main, alone.part, alone.sum(torch.tensor(3.0)).item(), alone.highest(4, 0)
    (True, (0, 1), 3.0, [4, 0])
    """

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """True on rank 0, the only rank that writes files and output."""
        return self.rank == 0

    @property
    def part(self) -> tuple[int, int]:
        """The part (i, n) of each batch that this rank computes, as an argument of ``Task.batch``."""
        return self.rank, self.size

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks, with exactly the same bits on every rank."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def highest(self, *numbers: int) -> list[int]:
        """Return the maximum over all ranks of each of the given numbers."""
        if self.size == 1:
            return list(numbers)
        found = torch.tensor(numbers, dtype=torch.int64, device=_host())
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return [int(number) for number in found.tolist()]

    def gather(self, values: Tensor) -> Tensor:
        """Collect a small CPU tensor of the same shape and dtype from every rank; return a tensor (ranks, …)."""
        if self.size == 1:
            return values[None]
        parts = [torch.empty_like(values, device=_host()) for _ in range(self.size)]
        dist.all_gather(parts, values.to(_host()))
        return torch.stack(parts).cpu()

    def first(self, work: Callable[[], object]) -> None:
        """Call ``work`` on rank 0 while the other ranks wait; if ``work`` raises an error, all ranks raise an error."""
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
        """Copy the parameters and buffers of a module, or with ``buffers_only`` only its buffers, from rank 0 to all
        ranks.
        """
        if self.size == 1:
            return
        for tensor in (*(() if buffers_only else module.parameters()), *module.buffers()):
            sent = tensor.detach() if tensor.device.type != "cpu" else tensor.detach().to(_host())
            dist.broadcast(sent, 0)
            tensor.copy_(sent)

    def device(self, chosen: torch.device) -> torch.device:
        """Return the device of this rank. If there are several ranks and ``chosen`` is ``cuda`` without a number, this
        is a GPU that no other rank uses; otherwise it is ``chosen``.
        """
        if self.size == 1 or chosen.type != "cuda" or chosen.index is not None:
            return chosen
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", self.rank)))
        if own.index >= torch.cuda.device_count():
            raise ArgumentError("device", f"a GPU for each process here ({torch.cuda.device_count()})", f"{own}")
        torch.cuda.set_device(own)
        return own


def launched() -> Ranks:
    """Return the rank and the number of ranks, which a launcher such as ``torchrun`` sets in environment variables; the
    processes are not connected.
    """
    if not all(os.environ.get(name) for name in _LAUNCHED):
        return Ranks()
    return Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


@contextmanager
def joined() -> Iterator[Ranks]:
    """Return a context that connects the processes started by a launcher such as ``torchrun``, and yields a
    :class:`Ranks`.

    A ``torch.distributed`` process group is started if the launcher started several processes and there is no group
    yet. After an error the group is not destroyed: it ends with this process, so that the other processes stop waiting.

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
    """Return the device on which the ranks exchange small tensors: the CPU, unless the process group supports only
    GPUs.
    """
    return torch.device("cpu" if "gloo" in str(dist.get_backend_config()) else "cuda")
