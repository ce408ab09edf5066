"""A model that one or more processes train: whole on every process (DDP), or in shards (FSDP2)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn

from stablessm.instruments import GradientOverWeight, gradient_over_weight
from stablessm.instruments.modes import recurrent_modules
from stablessm.training.config import TrainingConfig
from stablessm.training.evaluate import sequence_of
from stablessm.training.nested import State
from stablessm.training.ranks import Ranks


class Trainee:
    """The caller's model, and the model whose parameters are updated: the same one, unless it is sharded."""

    model: nn.Module
    """The caller's model, whole and without wrappers."""
    trained: nn.Module
    """The model whose parameters are updated and which is evaluated."""
    runner: Any
    """The callable that a training step runs."""
    sharded = False
    """Whether every rank has a part of the weights."""

    def accumulating(self) -> AbstractContextManager[object]:
        """Return a context in which a backward pass need not exchange gradients, because a later one will."""
        return nullcontext()

    def collect(self) -> None:
        """Copy the weights into the caller's model. No-op if it already holds them."""

    def spread(self) -> None:
        """Copy the weights from the caller's model. No-op if they are the same tensors."""

    def changed(self) -> None:
        """Called after the parameters of ``trained`` were changed other than by an optimizer."""

    def ratios(self) -> GradientOverWeight:
        """Return the gradient over weight of the recurrent parameters, after a backward pass."""
        return gradient_over_weight(self.model, recurrent_only=True)


@final
class Carrying(nn.Module):
    """A module whose ``forward`` is ``sequence`` of a model, because wrappers of PyTorch call ``forward``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        sequence_of(model)
        self.model = model

    def forward(self, x: Tensor, state: State, **options: Tensor) -> tuple[Tensor, State]:
        """Return outputs and the final state."""
        found: tuple[Tensor, State] = sequence_of(self.model)(x, state, **options)
        return found


@final
class Whole(Trainee):
    """All weights on every rank; gradients are averaged by ``DistributedDataParallel`` where there are several."""

    def __init__(self, model: nn.Module, device: torch.device, ranks: Ranks, *, compiled: bool, carries: bool) -> None:
        self.model = self.trained = model.to(device)
        ranks.share(model)
        self.runner = _runner(model, compiled, carries)
        if ranks.size > 1:
            # the loop copies buffers
            options: dict[str, Any] = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
            self.runner = nn.parallel.DistributedDataParallel(self.runner, **options)

    def accumulating(self) -> AbstractContextManager[object]:
        """Return DDP's ``no_sync`` context."""
        if isinstance(self.runner, nn.parallel.DistributedDataParallel):
            return self.runner.no_sync()
        return nullcontext()


@final
class Sharded(Trainee):
    """FSDP2: every rank keeps a part of each parameter and of its moments; a block is gathered while it runs.

    A block is an entry of an outermost ``nn.ModuleList``; everything outside blocks is one more block. The caller's
    model stays on the CPU, to be saved or searched for a divergence. Parameters keep their dtype, because recurrences
    are not accurate in bfloat16; autocast shortens the other products. Gradients are reduced to shards after every
    batch of a step, because whole gradients would take the memory that sharding saves.
    """

    sharded = True

    def __init__(self, model: nn.Module, device: torch.device, ranks: Ranks, *, compiled: bool, carries: bool) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        self.model = model.to("cpu")
        ranks.share(model)
        self.trained = copy.deepcopy(model)
        mesh = init_device_mesh(device.type, (ranks.size,))
        for block in _blocks(self.trained):
            fully_shard(block, mesh=mesh)
        fully_shard(self.trained, mesh=mesh)
        if carries:
            register_fsdp_forward_method(self.trained, "sequence")
        self.runner = _runner(self.trained, compiled, carries)

    @torch.no_grad()
    def collect(self) -> None:
        """Gather the weights into the caller's model, one tensor at a time, on every rank."""
        own = self.model.state_dict()
        for name, tensor in self.trained.state_dict().items():
            own[name].copy_(whole(tensor))

    @torch.no_grad()
    def spread(self) -> None:
        """Copy this rank's shards from the caller's model."""
        own = self.model.state_dict()
        for name, tensor in self.trained.state_dict().items():
            tensor.copy_(placed(own[name], tensor))

    def changed(self) -> None:
        """Free the gathered weights that an evaluation, which has no backward pass, leaves behind."""
        from torch.distributed.fsdp import FSDPModule

        for module in self.trained.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @torch.no_grad()
    def ratios(self) -> GradientOverWeight:
        """Return the ratios from whole weights and gradients; only recurrent parameters are gathered."""
        for name, module in recurrent_modules(self.model):
            for own in module.recurrent_parameters:
                parameter, shard = module.get_parameter(own), self.trained.get_submodule(name).get_parameter(own)
                if shard.grad is not None:
                    parameter.copy_(whole(shard))
                    parameter.grad = whole(shard.grad).to(parameter.device)
        found = super().ratios()
        self.model.zero_grad()
        return found


def trainee(
    model: nn.Module, config: TrainingConfig, device: torch.device, ranks: Ranks, *, carries: bool = False
) -> Trainee:
    """Return the trainee for ``config.parallel``; it is whole for one rank. ``carries``: the task carries a state."""
    cls = Sharded if ranks.size > 1 and config.parallel == "fsdp" else Whole
    return cls(model, device, ranks, compiled=config.compile, carries=carries)


def _runner(model: nn.Module, compiled: bool, carries: bool) -> Any:
    runner = Carrying(model) if carries else model
    return torch.compile(runner) if compiled else runner


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor of which every rank may have a shard. All ranks must call it."""
    found: Tensor = getattr(tensor, "full_tensor", lambda: tensor)()
    return found


def placed(tensor: Tensor, like: Any) -> Tensor:
    """Return a tensor, which every rank has, on the device and with the shards (DTensor placements) of ``like``."""
    there = tensor.to(like.device)
    if hasattr(like, "placements") and not hasattr(tensor, "placements"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)
    return there


@torch.no_grad()
def load(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a module's state from tensors that are whole or in the module's shards."""
    own = module.state_dict()
    module.load_state_dict({name: placed(tensor, own[name]) for name, tensor in tensors.items()})


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from _blocks(child)
