"""Runs a model on a sequence that is split across ranks, each of which starts from the previous rank's final state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Self, final

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.layers import Bidirectional
from stablessm.layers.mapped import MappedLayer
from stablessm.layers.states import tensors
from stablessm.models import Hyena, SequenceModel
from stablessm.parallel.carry import Affine, Group, incoming
from stablessm.parallel.window import last_inputs
from stablessm.scan.checks import check_tensor

_MIXES_TIME = (
    Bidirectional,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._BatchNorm,
)
"""Modules that use other steps of a sequence in ways that are not supported."""


@singledispatch
def incoming_state(module: nn.Module, x: Tensor, state: Any, group: Group, **options: Any) -> Any:
    """Return the state of a module before this rank's steps x, given the ``state`` before the whole sequence.

    The function supports diagonal and gated layers and the short filter of :class:`~stablessm.models.Hyena`;
    ``incoming_state.register`` adds a layer of your own. ``options`` are the other arguments with which the module is
    called: ``lengths``, ``reset`` and ``dt``.
    """
    raise ArgumentError("module", "a module whose state can be joined across ranks", type(module).__name__)


@incoming_state.register(MappedLayer)
def _(module: MappedLayer, x: Tensor, state: Any, group: Group, **options: Any) -> Tensor:
    check_tensor("x", x)
    state = module._checked_state(state, len(x)) if x.dim() else state
    return incoming(Affine(*module.transition(x, **options)), state, group)


@incoming_state.register(Hyena)
def _(module: Hyena, x: Tensor, state: Any, group: Group, **options: Any) -> tuple[Tensor, Any]:
    tail, inner = module.initial_state(len(x)) if state is None else state
    return incoming(last_inputs(module.projection, x, tail, **options), tail, group), inner


@final
class SequenceParallel:
    """The result of :func:`sequence_parallel`: its method :meth:`remove`, or leaving a ``with`` block, undoes the
    change.
    """

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Undo the change by :func:`sequence_parallel`, so that the model again takes whole sequences."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@checked
def sequence_parallel(model: nn.Module, group: Group = None) -> SequenceParallel:
    """Change a model, in place, so that every rank of ``group`` can call it with its own part of a sequence.

    A hook before the ``forward`` of each recurrence computes the state after the steps of all earlier ranks
    (:func:`incoming_state`). Only numbers of the size of a state are sent; activations stay on their rank. All other
    modules must treat each step separately. Nested models, DDP, FSDP2 and gradient checkpointing are supported.

    Args:
        model: any module made of ``RealSSM``, ``LRU``, ``S4D``, ``Hyena`` and layers that treat steps separately.
        group: the ranks that share a sequence, in the order of their parts (default: all).

    All ranks call the model with the same batch size. Each rank passes its own steps (0 and 1 steps are allowed), and
    the parts of ``reset`` and of a ``dt`` per step that belong to its steps. In ``lengths``, each rank passes how many
    of its own steps are real. Only the first rank's ``state`` is used, and the last rank returns the final state of the
    sequence. Dropout draws one mask per sequence, so all ranks need the same seed. The gradient of the whole sequence
    is the sum of the ranks' gradients.

    >>> import torch
    >>> import stablessm as ssm
    >>> model = ssm.models.SequenceStack(ssm.models.StackConfig(d_input=3, d_model=8, mixer="hyena-real"))
    >>> with sequence_parallel(model):          # without torch.distributed, there is one rank
    ...     y, state = model(torch.randn(2, 100, 3))
    >>> y.shape
    torch.Size([2, 100, 8])
    """
    _check(model)
    known = [module for module in model.modules() if _joins(module)]
    if not known:
        raise ArgumentError("model", "a module with at least one recurrent layer of stablessm", type(model).__name__)
    return SequenceParallel([m.register_forward_pre_hook(_Incoming(group), with_kwargs=True) for m in known])


@final
@dataclass(frozen=True)
class _Incoming:
    """A forward pre-hook that replaces the state argument of a module by the state before this rank's steps."""

    group: Group

    def __call__(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if len(args) > 2:
            raise ArgumentError("model", "x and state as positional arguments, the rest by name", len(args))
        given = dict(zip(("x", "state"), args, strict=False)) | options
        x, state = given.pop("x"), given.pop("state", None)
        return (x, incoming_state(module, x, state, self.group, **given)), given

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a process group cannot be copied, and a copy of the model uses the same one


def _joins(module: nn.Module) -> bool:
    return incoming_state.dispatch(type(module)) is not incoming_state.dispatch(object)


def _check(model: nn.Module) -> None:
    """Raise an error if a module needs steps of other ranks in a way that sequence parallelism does not support."""
    for name, module in model.named_modules():
        where = f"{type(module).__name__}{f' ({name})' if name else ''}"
        if isinstance(module, _MIXES_TIME):
            raise ArgumentError("model", "no module that mixes steps, except causal layers of stablessm", where)
        if isinstance(module, SequenceModel) and not module.config.per_step:
            raise ArgumentError("model", "an output at every step (per_step=True)", where)
        if hasattr(module, "initial_state") and not _joins(module):
            held = sum(leaf.numel() for leaf in tensors(module.initial_state(1)))
            joined = sum(_own_size(part) for part in module.modules() if _joins(part))
            if held != joined:
                raise ArgumentError("model", "states that can be joined across ranks (RealSSM, LRU, S4D, Hyena)", where)


def _own_size(module: Any) -> int:
    """Return the number of values in the state of a module, without the states of those submodules to which
    :func:`sequence_parallel` attaches a hook of their own.
    """
    within = sum(_own_size(part) for part in module.modules() if part is not module and _joins(part))
    return sum(leaf.numel() for leaf in tensors(module.initial_state(1))) - within
