"""Compiled CPU kernels: a call processes a range of work units (such as vectors of channels) on several threads.

A kernel is ``void kernel(const int64 *fields, int64 first, int64 last)``, compiled at its first use. It processes the
work units first … last-1; ``fields[0]`` is the number of all units, and the other ``fields`` are the kernel's
arguments. Nothing is cached on disk, because compilation takes only a fraction of a second. Every process gives bitwise
identical results.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from llvmlite import ir

from stablessm import _fork
from stablessm.llvm import threads
from stablessm.llvm.compiler import MachineCode
from stablessm.llvm.emitter import I64

Spec = TypeVar("Spec", bound=Hashable)


def kernel_entry(
    name: str, fields: Sequence[str], pointers: Mapping[str, ir.Type]
) -> tuple[ir.IRBuilder, dict[str, ir.Value], ir.Value, ir.Value]:
    """Create an empty kernel in a new LLVM module; return its builder, its fields by name, and its arguments first and
    last.

    The kernel has to process the work units first … last - 1. A field that is named in ``pointers`` is the address of
    elements of the type ``pointers[field]``. Any other field is a whole number.
    """
    signature = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64])
    function = ir.Function(ir.Module(), signature, name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    start, first, last = function.args
    values = {}
    for i, field in enumerate(fields):
        place = builder.gep(start, [I64(i)])
        if field in pointers:
            place = builder.bitcast(place, pointers[field].as_pointer().as_pointer())
        values[field] = builder.load(place)
    return builder, values, first, last


def add_team_member(kernel: ir.Function) -> ir.Function:
    """Add a function to the module of a kernel that calls the kernel for one thread's share of the work units, and
    return this function, which every OpenMP thread runs.
    """
    module = kernel.module
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64.as_pointer()]), f"{kernel.name}_member")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    ask = ir.FunctionType(ir.IntType(32), [])
    names = ("omp_get_thread_num", "omp_get_num_threads")
    known = [module.globals.get(name) or ir.Function(module, ask, name) for name in names]
    number, count = (builder.zext(builder.call(function, []), I64) for function in known)
    tiles = builder.load(builder.gep(function.args[0], [I64(0)]))
    first, last = (builder.sdiv(builder.mul(tiles, edge), count) for edge in (number, builder.add(number, I64(1))))
    builder.call(kernel, [function.args[0], first, last])
    builder.ret_void()
    return function


class Kernel:
    """A kernel compiled for this machine, which runs without holding the GIL."""

    def __init__(self, function: ir.Function) -> None:
        names = [function.name, *([add_team_member(function).name] if threads.team() is not None else [])]
        self._code = MachineCode(function.module, names, threads.symbols())
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._range = prototype(self._code.address(function.name))
        self._member = self._code.address(names[-1])

    def __call__(self, names: Sequence[str], values: Mapping[str, int], tiles: int, workers: int) -> None:
        """Run the kernel for all its work units on at most ``workers`` threads; ``tiles`` is the number of work units.

        ``names`` are the names of the kernel's fields in order, and ``values`` the values of the fields by name; fields
        without a value are 0.
        """
        fields = struct.pack("q" * len(names), *[values.get(name, 0) for name in names])
        workers = min(workers, tiles)
        if workers <= 1:
            self._range(fields, 0, tiles)
        elif (team := threads.team_to_join()) is not None:
            team.parallel(self._member, fields, workers, 0)
        else:
            threads.in_ranges(lambda first, last: self._range(fields, first, last), tiles, workers)


_compiled: dict[tuple[Callable[..., ir.Function], Hashable], Kernel] = {}


def compiled(build: Callable[[Spec], ir.Function], spec: Spec) -> Kernel:
    """Return the compiled kernel that ``build(spec)`` emits; the first call with these arguments compiles it."""
    kernel = _compiled.get((build, spec))
    if kernel is None:
        with _fork.compiling:  # another thread may have compiled the kernel meanwhile
            kernel = _compiled.get((build, spec)) or Kernel(build(spec))
            _compiled[build, spec] = kernel
    return kernel
