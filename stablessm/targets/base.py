"""The base class of targets, which checks shapes and gives the exact memory function where it is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from stablessm import _tensors
from stablessm._checked import Positive, checked
from stablessm._errors import ArgumentError
from stablessm._typing import Sequence
from stablessm.scan.checks import check_tensor


class Target(ABC):
    """A fixed input-output map y(t) = H_t(x) at time steps of ``dt``, from inputs (B, T, d_input) to outputs (B, T,
    d_output).

    A subclass implements ``_respond`` and, if its memory function is known, ``_memory``. Add each new subclass to the
    table ``TARGETS``: the test suite checks all targets in this table. Targets are immutable and have no trainable
    parameters.
    """

    d_input: int
    d_output: int
    dt: float
    """Time between samples, in any unit."""

    has_memory: ClassVar[bool] = True
    """Whether the memory function has a closed form, so that ``memory`` can be called."""

    def __call__(self, x: Sequence) -> Sequence:
        """Return the output (B, T, d_output), with the dtype and the device of the input (B, T, d_input)."""
        check_tensor("x", x, 3)
        if x.shape[-1] != self.d_input:
            raise ArgumentError("x", f"shape (batch, time, {self.d_input})", f"shape {tuple(x.shape)}")
        if not x.is_floating_point() or x.dtype.itemsize < 2:
            raise ArgumentError("x", "a real floating point dtype", x.dtype)
        return self._respond(x)

    @checked
    def memory(self, times: ArrayLike, bound: Positive = 1.0) -> Tensor:
        """Return the exact memory function M(t) at the given times, as a float64 tensor (len(times),).

        M(t) = sup over |x|₂ ≤ bound of |d/dt H_t(u^x)| / bound (IAT eq. 6). H_t(u^x) is the output at time t for the
        input u^x, which is 0 before time 0 and the constant vector x from time 0 on.

        The derivative is the difference quotient of the sampled output, (y[k] - y[k-1]) / dt, as in
        :func:`stablessm.memory_function`. A target without ``has_memory`` raises an ArgumentError.
        """
        if not self.has_memory:
            known = "a target with has_memory; use stablessm.memory_function for others"
            raise ArgumentError("memory", known, type(self).__name__)
        times = _tensors.as_tensor(
            np.asarray(times, np.float64) if not isinstance(times, Tensor) else times.double().cpu()
        )
        if times.dim() != 1 or not bool((times >= 0).all()):
            raise ArgumentError("times", "one dimension and no negative time", f"shape {tuple(times.shape)}")
        return self._memory(times, float(bound))

    @abstractmethod
    def _respond(self, x: Tensor) -> Tensor:
        """Return the output (B, T, d_output) for an input (B, T, d_input) that is already checked."""

    def _memory(self, times: Tensor, bound: float) -> Tensor:
        raise NotImplementedError
