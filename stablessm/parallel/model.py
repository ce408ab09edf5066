"""Whole models over a split sequence: every recurrence in them starts from the state that the ranks before leave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Self, final

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.layers import Bidirectional
from stablessm.layers.diagonal import DiagonalLayer
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
"""Modules that look at other steps in ways we do not follow."""


@singledispatch
def incoming_state(module: nn.Module, x: Tensor, state: Any, group: Group, **options: Any) -> Any:
    """Return the state before this rank's steps x, given the state before the whole sequence.

    Known for our diagonal layers and the short filter of :class:`~stablessm.models.Hyena`; teach it a layer of yours
    by ``incoming_state.register``. ``options`` are the other arguments of the call: lengths, reset, dt.
    """
    raise ArgumentError("module", "one whose state can be joined across ranks", type(module).__name__)


@incoming_state.register(DiagonalLayer)
def _(module: DiagonalLayer, x: Tensor, state: Any, group: Group, **options: Any) -> Tensor:
    check_tensor("x", x)
    state = module._checked_state(state, len(x)) if x.dim() else state
    return incoming(Affine(*module.transition(x, **options)), state, group)


@incoming_state.register(Hyena)
def _(module: Hyena, x: Tensor, state: Any, group: Group, **options: Any) -> tuple[Tensor, Any]:
    tail, inner = module.initial_state(len(x)) if state is None else state
    return incoming(last_inputs(module.projection, x, tail, **options), tail, group), inner


@final
class SequenceParallel:
    """A model while it runs over a split sequence; :meth:`remove`, or the end of a ``with``, gives it back."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Undo the change: the model takes whole sequences again."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@checked
def sequence_parallel(model: nn.Module, group: Group = None) -> SequenceParallel:
    """From now on every rank of ``group`` calls ``model`` with its part of the sequence, as if that were all of it.

    Each recurrence in the model first finds the state that the ranks before it leave (:func:`incoming_state`), by hooks
    before its ``forward``: numbers of the size of a state travel, activations stay where they are. Anything else in
    the model treats each step by itself. Works in models of models, under DDP and FSDP2, with gradient checkpointing.

    Args:
        model: any module made of ``RealSSM``, ``LRU``, ``S4D``, ``Hyena`` and layers that do not look at other steps.
        group: the ranks that share a sequence, in the order of their parts; all by default.

    The ranks call the model alike: the same batch size, their own steps (0 and 1 are allowed), their part of ``reset``,
    of a ``dt`` for each step, and of ``lengths`` (clamped). A ``state`` passed in counts on the first rank, and what
    comes out on the last is the sequence's. Dropout draws one mask a sequence: seed all ranks alike. Each rank's
    gradients are its part of a sum.

    >>> import torch
    >>> import stablessm as ssm
    >>> model = ssm.models.SequenceStack(ssm.models.StackConfig(d_input=3, d_model=8, mixer="hyena-real"))
    >>> with sequence_parallel(model):          # one rank, when nothing is distributed
    ...     y, state = model(torch.randn(2, 100, 3))
    >>> y.shape
    torch.Size([2, 100, 8])
    """
    _check(model)
    known = [module for module in model.modules() if _joins(module)]
    if not known:
        raise ArgumentError("model", "one with a recurrence of ours", type(model).__name__)
    return SequenceParallel([m.register_forward_pre_hook(_Incoming(group), with_kwargs=True) for m in known])


@final
@dataclass(frozen=True)
class _Incoming:
    """The hook: exchanges the state that a module is called with."""

    group: Group

    def __call__(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if len(args) > 2:
            raise ArgumentError("model", "calls with x and state in order, the rest by name", f"{len(args)} in order")
        given = dict(zip(("x", "state"), args, strict=False)) | options
        x, state = given.pop("x"), given.pop("state", None)
        return (x, incoming_state(module, x, state, self.group, **given)), given

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a process group cannot be copied, and a copy of the model belongs to the same one


def _joins(module: nn.Module) -> bool:
    return incoming_state.dispatch(type(module)) is not incoming_state.dispatch(object)


def _check(model: nn.Module) -> None:
    """Raise if a module uses other steps of the sequence in a way that is not supported."""
    for name, module in model.named_modules():
        where = f"{type(module).__name__}{f' ({name})' if name else ''}"
        if isinstance(module, _MIXES_TIME):
            raise ArgumentError("model", "no module that mixes or averages steps but our causal layers", where)
        if isinstance(module, SequenceModel) and not module.config.per_step:
            raise ArgumentError("model", "an output at every step (per_step=True)", where)
        if hasattr(module, "initial_state") and not _joins(module):
            held = sum(leaf.numel() for leaf in _leaves(module.initial_state(1)))
            joined = sum(_own_size(part) for part in module.modules() if _joins(part))
            if held != joined:
                raise ArgumentError("model", "states that can be joined across ranks (RealSSM, LRU, S4D, Hyena)", where)


def _own_size(module: Any) -> int:
    """Return the state size of a joining module, without the joining modules inside it."""
    within = sum(_own_size(part) for part in module.modules() if part is not module and _joins(part))
    return sum(leaf.numel() for leaf in _leaves(module.initial_state(1))) - within


def _leaves(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    return [leaf for entry in state or () for leaf in _leaves(entry)]
