"""Generates the LLVM module of a program: functions for one step and for a block of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir

from stablessm.llvm.emitter import I64, Emitter
from stablessm.streaming.memory import Memory
from stablessm.streaming.operation_code import OperationCode, StepArithmetic
from stablessm.streaming.program import Program

_FLUSH_X86, _FLUSH_ARM = 0x8040, 1 << 24
"""Bits of the control register (MXCSR, FPCR) that replace denormal results and inputs by zero."""


def build(program: Program, memory: Memory, x: np.ndarray, y: np.ndarray, triple: str) -> ir.Module:
    """Return an LLVM module with the two functions ``void step()`` and ``void block(x, y, steps)`` of a program.

    ``step`` computes one sample from the array x to the array y, which are arguments of ``build``. ``block`` computes
    several samples from one array (batch, time, size) to another. ``triple`` is LLVM's name of the machine.
    """
    module, arithmetic = ir.Module(), StepArithmetic(memory.dtype.itemsize == 8)
    module.triple = triple
    sample = _sample(module, program, memory)
    x_type, _, y_type, _ = sample.function_type.args
    with _function(module, "step", []) as (builder, _):
        builder.call(sample, [memory.pointer(x), I64(x.shape[1]), memory.pointer(y), I64(y.shape[1])])
    with _function(module, "block", [x_type, y_type, I64]) as (builder, (first_x, first_y, steps)):
        emit = Emitter(builder, arithmetic)
        arrays = [(first_x, x.shape[1]), (first_y, y.shape[1])]

        def one(t: ir.Value) -> None:
            rows = [(emit.at(start, emit.times(t, width)), emit.times(steps, width)) for start, width in arrays]
            builder.call(sample, [part for row in rows for part in row])

        emit.repeat(steps, one)
    return module


@contextmanager
def _function(module: ir.Module, name: str, arguments: list[ir.Type]) -> Iterator[tuple[ir.IRBuilder, Any]]:
    """Return a context in which an LLVM function is emitted; the context gives the function's builder and its
    arguments.

    Denormal numbers count as zero in the function. Without input, a decaying state becomes denormal, and an addition of
    denormal numbers takes a hundred cycles on x86. On Arm processors, denormal numbers are not slow; they count as zero
    there so that Arm and x86 processors give the same numbers.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    restore = _flush(builder)
    yield builder, function.args
    restore()
    builder.ret_void()


def _flush(builder: ir.IRBuilder) -> Callable[[], Any]:
    """Emit code that makes the processor treat denormal numbers as zero, and return a function that emits code to end
    this.
    """
    known = {"x86_64": _flush_x86, "aarch64": _flush_arm, "arm64": _flush_arm}
    return known.get(builder.module.triple.partition("-")[0], lambda _: lambda: None)(builder)


def _flush_x86(builder: ir.IRBuilder) -> Callable[[], Any]:
    """Emit code that makes an x86 processor treat denormal numbers as zero, by changing the control register MXCSR.

    Return a function that emits code to restore the earlier content of the register.
    """
    pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    store, load = (_intrinsic(builder, f"llvm.x86.sse.{name}mxcsr", ir.VoidType(), pointer) for name in ("st", "ld"))
    before, during = builder.alloca(word), builder.alloca(word)
    builder.call(store, [builder.bitcast(before, pointer)])
    builder.store(builder.or_(builder.load(before), word(_FLUSH_X86)), during)
    builder.call(load, [builder.bitcast(during, pointer)])
    return lambda: builder.call(load, [builder.bitcast(before, pointer)])


def _flush_arm(builder: ir.IRBuilder) -> Callable[[], Any]:
    """Emit code that makes an Arm processor treat denormal numbers as zero, by changing the control register FPCR.

    Return a function that emits code to restore the earlier content of the register.
    """
    before = builder.call(_intrinsic(builder, "llvm.aarch64.get.fpcr", I64), [])
    change = _intrinsic(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), I64)
    builder.call(change, [builder.or_(before, I64(_FLUSH_ARM))])
    return lambda: builder.call(change, [before])


def _intrinsic(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def _sample(module: ir.Module, program: Program, memory: Memory) -> ir.Function:
    """Return the LLVM function ``void sample(x, row stride of x, y, row stride of y)``, which computes one step.

    Strides are in elements.
    """
    scalar = ir.DoubleType() if memory.dtype.itemsize == 8 else ir.FloatType()
    row = [scalar.as_pointer(), I64]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [*row, *row]), "sample")
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    code = OperationCode(Emitter(builder, StepArithmetic(memory.dtype.itemsize == 8)), memory, _flush)
    x, x_row, y, y_row = function.args
    at, times, last = code.emit.at, code.emit.times, program.output
    code.rows(lambda row: code.copy(at(x, times(row, x_row)), code.at(0, row), program.sizes[0]))
    for operation in program.operations:
        code.operation(operation)
    code.rows(lambda row: code.copy(code.at(last, row), at(y, times(row, y_row)), program.sizes[last]))
    builder.ret_void()
    return function
