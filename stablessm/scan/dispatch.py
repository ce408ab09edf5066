"""Chooses how a scan is called: directly, through an autograd function, or as a PyTorch operator.

The dispatch of an operator costs more than a small scan, so calls outside ``torch.compile``, ``torch.func`` transforms
and dispatch modes call a backend directly. PyTorch has no public function that detects transforms and dispatch modes.
Only this module uses PyTorch's private functions, and only in releases with which they have been tested. In other
releases, every call uses the operator or the autograd function: the results are the same, and small scans are slower.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

R = TypeVar("R")
Tensors: TypeAlias = tuple[Tensor, ...]

OLDEST, NEWEST = (2, 11), (2, 13)
"""Oldest and newest release of PyTorch with which its private functions have been tested."""


class _Private(NamedTuple):
    dispatch_mode: Callable[[], Any]
    """Return the innermost active ``TorchDispatchMode``, or None."""
    transforms_active: Callable[[], bool]
    """Return True inside ``torch.func`` transforms."""
    is_wrapped: Callable[[Tensor], bool]
    """Return True for a tensor that a ``torch.func`` transform has wrapped."""
    is_batched: Callable[[Tensor], bool]
    """Return True for a tensor that the older vmap of ``torch.autograd.functional`` has batched."""
    forward_level: Callable[[], int]
    """Return the number of nested levels of forward-mode differentiation, minus one."""
    raw_stream: Callable[[int], int]
    """Return the handle of the current CUDA stream."""
    mode: type
    """The class ``TorchDispatchMode``."""


def private_functions(version: str) -> _Private | None:
    """Return the private functions of PyTorch that this module uses.

    The result is None if this module has not been tested with PyTorch's release ``version``.

    >>> private_functions("1.0.0") is None
    True
    """
    if not OLDEST <= tuple(int(part) for part in version.split(".")[:2]) <= NEWEST:
        return None
    try:
        from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

        functorch = torch._C._functorch
        return _Private(
            _get_current_dispatch_mode,
            torch._C._are_functorch_transforms_active,
            functorch.is_functorch_wrapped_tensor,
            functorch.is_legacy_batchedtensor,
            lambda: forward_ad._current_level,
            getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream),  # missing in builds without CUDA
            TorchDispatchMode,
        )
    except (ImportError, AttributeError):
        return None


def _public_stream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


_private = private_functions(torch.__version__)

raw_stream: Callable[[int], int] = _public_stream if _private is None else _private.raw_stream
"""Return the handle of the current CUDA stream of a device."""


onednn_linear: Callable[..., Tensor] | None = None
"""Return W x + b, computed by oneDNN; None if PyTorch has no such operator, or on other processors than x86."""
if _private is not None and platform.machine().lower() in ("x86_64", "amd64"):
    onednn_linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


current_device: Callable[[], int] = (
    torch.cuda.current_device if _private is None else getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
)
"""Return the index of the current CUDA device; CUDA must have been started."""


def plain(*tensors: Tensor) -> bool:
    """Return True if a backend may be called with these tensors directly, without PyTorch's dispatcher.

    Return False for tensors that vmap has batched, for subclasses of Tensor, and inside a dispatch mode.
    """
    if _private is None or _private.dispatch_mode() is not None:
        return False
    for tensor in tensors:
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            return False
        if _private.is_wrapped(tensor) or _private.is_batched(tensor):
            return False
    return True


def quick(*tensors: Tensor) -> bool:
    """Return True if all tensors are plain, and no ``torch.compile``, ``torch.func`` or dispatch mode is active.

    If the result is True, a scan of the tensors may call its backend directly.
    """
    if torch.compiler.is_compiling() or _private is None:
        return False
    return not _private.transforms_active() and plain(*tensors)


def forward_mode() -> bool:
    """Return True inside forward-mode differentiation, and in releases of PyTorch where this cannot be determined."""
    return _private is None or _private.forward_level() >= 0


def exporting() -> bool:
    """Return True while ``torch.export`` traces a program.

    In PyTorch 2.11, ``torch.compiler.is_exporting()`` also returns True inside ``torch.compile``. Where possible, this
    function therefore reads PyTorch's private flag, which is True in ``torch.export`` only.
    """
    if _private is None or not hasattr(torch.compiler, "_is_exporting_flag"):
        return torch.compiler.is_exporting()
    return torch.compiler._is_exporting_flag


def copy_all(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy each source tensor to the target tensor at the same position; on a GPU, a few kernels make all copies."""
    written, read = list(targets), list(sources)
    if _private is not None and written:
        torch._foreach_copy_(written, read)
    else:
        for target, source in zip(written, read, strict=True):
            target.copy_(source)


def constant_result(function: Callable[..., R]) -> Callable[..., R]:
    """Mark a function whose result is constant, so that ``torch.compile`` calls it once and inserts the result.

    This decorator sets an attribute that the compiler reads. The public decorator,
    ``torch.compiler.assume_constant_result``, does the same but imports the whole compiler, which takes as long as the
    import of PyTorch.
    """
    if _private is None:
        return torch.compiler.assume_constant_result(function)
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def loop(step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]], states: Tensors, inputs: Tensors) -> Any:
    """Apply (states, outputs) = step(states, inputs) at every time step; return the last states and all outputs.

    Outputs have the shape (B, T, …). ``torch.export`` records one operator that contains the step, for any number of
    steps. ``torch.compile`` leaves the loop out of its graphs, because 100 unrolled steps took minutes to compile.

    Args:
        step: the function to repeat, which may also use other tensors.
        states: (B, …) each, before the first step.
        inputs: (B, T, …) each; at least one, with at least one step.
    """
    if exporting():
        return _exported_loop(step, states, inputs)
    if torch.compiler.is_compiling() and _made_uncompiled_loop():
        return _uncompiled_loop(step, states, inputs)
    return _eager_loop(step, states, inputs)


def _exported_loop(step: Any, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    from torch._higher_order_ops import scan

    def body(states: Tensors, now: Tensors) -> tuple[Tensors, Tensors]:
        after, outputs = step(states, now)
        return tuple(map(_dense, after)), tuple(map(_dense, outputs))  # no two outputs may share memory

    first = tuple(map(_dense, states))  # states before and after a step must have the same strides
    final, outputs = scan(body, first, tuple(value.transpose(0, 1) for value in inputs))
    return final, tuple(output.transpose(0, 1) for output in outputs)


def _dense(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _eager_loop(step: Any, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    rows = []
    for now in zip(*(value.unbind(1) for value in inputs), strict=True):
        states, outputs = step(states, now)
        rows.append(outputs)
    return states, tuple(torch.stack(column, 1) for column in zip(*rows, strict=True))


_uncompiled_loop: Any = None
"""``_eager_loop``, marked so that ``torch.compile`` leaves it out of its graphs."""


@constant_result
def _made_uncompiled_loop() -> bool:
    """Create the function ``_uncompiled_loop`` if it does not exist yet; always return True, for use in a condition.

    The function is created during the first compilation and not earlier, because ``torch.compiler.disable`` imports the
    compiler.
    """
    global _uncompiled_loop
    if _uncompiled_loop is None:
        _uncompiled_loop = torch.compiler.disable(_eager_loop)
    return True


def eager(function: Any) -> Any:
    """Convert an autograd function to PyTorch's older form, which has no ``setup_context`` and can be called faster.

    The result supports only ``plain`` tensors, because ``torch.func`` requires the newer form. PyTorch calls the older
    form without binding arguments by name, which saves a third of the time of a small call.
    """

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            output = function.at_once(*args)
            function.setup_context(ctx, args, output)
            return output

        backward = function.backward
        jvp = function.jvp

    return Eager


class Forms(NamedTuple):
    """The three ways to call one operator; :meth:`choose` selects the fastest way that the tensors allow.

    All three ways compute the same results. They differ in the features of PyTorch that they support, and in the time
    that a call takes.
    """

    operator: Any
    """The operator, for ``torch.compile``, which cannot trace an autograd function that has a ``jvp``."""
    function: Any
    """The autograd function, for ``torch.func``, which ignores derivatives that are registered with an operator. Its
    static method ``at_once`` calls the backend directly."""
    eager: Any
    """The autograd function in the form of :func:`eager`, for plain tensors."""

    def choose(self, at_once: bool, *tensors: Tensor | None) -> Any:
        """Return the function to call for these tensors; ``at_once`` is the result of :func:`quick` for the input
        signal.
        """
        if at_once:
            return self.eager.apply if _differentiated(*tensors) else self.function.at_once
        return self.operator if torch.compiler.is_compiling() else self.function.apply


def _differentiated(*tensors: Tensor | None) -> bool:
    """Return True if a derivative (forward or reverse mode) with respect to one of the tensors may be requested."""
    recorded = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return recorded or forward_mode()


def operation_mode(private: _Private | None = _private) -> type:
    """Return a base class for context managers that intercept every PyTorch operation.

    A subclass defines ``operation(name, function, args, kwargs)``, which runs instead of each operation. Normally, the
    context manager intercepts every operation that PyTorch dispatches. If ``private`` is None (in a release of PyTorch
    whose private functions have not been tested), it intercepts every call of a PyTorch function instead.
    """
    base = TorchFunctionMode if private is None else private.mode

    class OperationMode(base):  # type: ignore[misc, valid-type]
        def operation(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs)

        if private is None:

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return self.operation(func.__name__, func, args, kwargs or {})
        else:

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return self.operation(func.overloadpacket.__name__, func, args, kwargs or {})

    return OperationMode
