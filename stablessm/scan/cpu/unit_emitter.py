"""The :class:`UnitEmitter`, from which the kernels of gated and selective layers are built: addresses, resets and loops
of one work unit.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from stablessm.llvm.emitter import I64, Arithmetic, Emitter
from stablessm.llvm.vector_functions import VectorMath


class UnitEmitter:
    """Emits instructions that process one sequence of the batch, with the channels in SIMD vectors of ``lanes``
    numbers.

    ``fields`` are the kernel's arguments by name. The fields ``NAME_batch`` and ``NAME_time`` are the strides of the
    array NAME, which has the shape (batch, time, …).
    """

    def __init__(self, builder: ir.IRBuilder, spec: Arithmetic, lanes: int, fields: dict[str, ir.Value]) -> None:
        self.emit, self.b, self.fields, self.lanes = Emitter(builder, spec), builder, fields, lanes
        self.math = VectorMath(self.emit, lanes)
        self.batch = I64(0)

    def repeat(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Emit a loop whose body is ``body(i)``, for i in range(count)."""
        self.emit.repeat(count, body)

    def step_of(self, name: str, t: ir.Value) -> ir.Value:
        """Return the address of step t of this sequence in the array ``name``, which has the shape (batch, time, …)."""
        emit, f = self.emit, self.fields
        return emit.at(f[name], emit.times(self.batch, f[f"{name}_batch"]), emit.times(t, f[f"{name}_time"]))

    def restarts(self, t: ir.Value) -> ir.Value:
        """Emit code that tests whether step t has a reset, and return the condition."""
        b = self.b
        given = b.icmp_signed("!=", b.ptrtoint(self.fields["reset"], I64), I64(0))
        with b.if_else(given) as (yes, no):
            with yes:
                cut, here = b.icmp_signed("!=", b.load(self.step_of("reset", t)), ir.IntType(8)(0)), b.block
            with no:
                there = b.block
        found = b.phi(ir.IntType(1))
        found.add_incoming(cut, here)
        found.add_incoming(ir.IntType(1)(0), there)
        return found

    def all(self, value: float) -> ir.Constant:
        """Return a vector whose elements all equal ``value``."""
        return self.emit.constant(self.lanes, (value,))

    def zero(self) -> ir.Constant:
        """Return a vector of zeros."""
        return self.all(0.0)
