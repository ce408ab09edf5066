"""A model in training by one or more processes: whole on every process (DDP), or in shards (FSDP2)."""

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
    """A model in training: the model of the caller and, if it is sharded, the sharded copy that is updated.

    Without sharding, both are the same module.
    """

    model: nn.Module
    """Model of the caller, whole and without wrappers."""
    trained: nn.Module
    """Model whose parameters are updated and which is evaluated."""
    runner: Any
    """Callable that a training step runs: the model with its wrappers."""
    sharded = False
    """Whether every rank has only a part of the weights."""

    def accumulating(self) -> AbstractContextManager[object]:
        """Return a context in which backward passes do not exchange gradients between ranks. The first backward pass
        after the context exchanges the accumulated gradients.
        """
        return nullcontext()

    def collect(self) -> None:
        """Copy the weights of the model that training updates (``trained``) into the caller's model (``model``). If
        both are the same module, do nothing.
        """

    def spread(self) -> None:
        """Copy the weights of the caller's model (``model``) into the model that training updates (``trained``). If
        both are the same module, do nothing.
        """

    def changed(self) -> None:
        """Update what depends on the parameters of ``trained``. This method is called after something other than the
        optimizer has changed the parameters, for example an average of the weights.
        """

    def ratios(self) -> GradientOverWeight:
        """Return the gradient-over-weight ratios of the recurrent parameters, after a backward pass."""
        return gradient_over_weight(self.model, recurrent_only=True)


@final
class Carrying(nn.Module):
    """A module whose ``forward`` calls ``sequence`` of a model, because wrappers such as DDP call ``forward``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        sequence_of(model)
        self.model = model

    def forward(self, x: Tensor, state: State, **options: Tensor) -> tuple[Tensor, State]:
        """Return the outputs of the model and its final state."""
        found: tuple[Tensor, State] = sequence_of(self.model)(x, state, **options)
        return found


@final
class Whole(Trainee):
    """A model in training with all weights on every rank; ranks average gradients by ``DistributedDataParallel``."""

    def __init__(self, model: nn.Module, device: torch.device, ranks: Ranks, *, compiled: bool, carries: bool) -> None:
        self.model = self.trained = model.to(device)
        ranks.share(model)
        self.runner = _runner(model, compiled, carries)
        if ranks.size > 1:
            # the loop copies buffers
            options: dict[str, Any] = {"gradient_as_bucket_view": True, "broadcast_buffers": False}
            self.runner = nn.parallel.DistributedDataParallel(self.runner, **options)

    def accumulating(self) -> AbstractContextManager[object]:
        """Return the ``no_sync`` context of DDP, in which gradients are not exchanged between ranks."""
        if isinstance(self.runner, nn.parallel.DistributedDataParallel):
            return self.runner.no_sync()
        return nullcontext()


@final
class Sharded(Trainee):
    """A model in training with sharded weights (FSDP2): every rank stores a part of each parameter and its moments.

    The parameters of a block are gathered while the block runs. A block is an entry of an outermost ``nn.ModuleList``;
    everything outside these entries is one more block. The model of the caller stays on the CPU; it is used to save the
    weights and to find the cause of a divergence. Parameters keep their dtype, because recurrences are not accurate in
    bfloat16; with autocast, the matrix products outside the recurrences run in bfloat16. Gradients are summed over
    ranks and divided into shards after every batch of a step, because unsharded gradients would need as much memory as
    sharding saves.
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
        """Copy the weights of the sharded model into the model of the caller, on every rank; gather one tensor at a
        time.
        """
        own = self.model.state_dict()
        for name, tensor in self.trained.state_dict().items():
            own[name].copy_(whole(tensor))

    @torch.no_grad()
    def spread(self) -> None:
        """Copy the weights of the caller's model into the sharded model; each rank copies its own shards."""
        own = self.model.state_dict()
        for name, tensor in self.trained.state_dict().items():
            tensor.copy_(placed(own[name], tensor))

    def changed(self) -> None:
        """Free the gathered (unsharded) weights that remain after an evaluation, which has no backward pass."""
        from torch.distributed.fsdp import FSDPModule

        for module in self.trained.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @torch.no_grad()
    def ratios(self) -> GradientOverWeight:
        """Return the gradient-over-weight ratios of the recurrent parameters, which are gathered for this purpose."""
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
    """Prepare a model for training on one or several ranks, as ``config.parallel`` requests.

    On a single rank the result is always :class:`Whole`. ``carries`` states whether the task carries the state.
    """
    cls = Sharded if ranks.size > 1 and config.parallel == "fsdp" else Whole
    return cls(model, device, ranks, compiled=config.compile, carries=carries)


def _runner(model: nn.Module, compiled: bool, carries: bool) -> Any:
    runner = Carrying(model) if carries else model
    return torch.compile(runner) if compiled else runner


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor, gathered from its shards on all ranks if it is sharded. All ranks must call this
    function.
    """
    found: Tensor = getattr(tensor, "full_tensor", lambda: tensor)()
    return found


def placed(tensor: Tensor, like: Any) -> Tensor:
    """Move a whole tensor to the device of ``like``, and shard it if ``like`` is sharded."""
    there = tensor.to(like.device)
    if hasattr(like, "placements") and not hasattr(tensor, "placements"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)
    return there


@torch.no_grad()
def load(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the state of a module from tensors that are whole or sharded like the module."""
    own = module.state_dict()
    module.load_state_dict({name: placed(tensor, own[name]) for name, tensor in tensors.items()})


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from _blocks(child)
