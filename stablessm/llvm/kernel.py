"""Compiled CPU kernels: a call processes a range of work units (such as vectors of channels) on several threads.

A kernel is ``void kernel(const int64 *fields, int64 first, int64 last)``, compiled at its first use. It processes the
work units first … last-1; ``fields[0]`` is the number of all units, and the other ``fields`` are the kernel's
arguments: counts, addresses and strides. Nothing is cached on disk, because compilation takes only a fraction of a
second. Every process gives bitwise identical results.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar, final

from llvmlite import ir

from stablessm import _fork
from stablessm.llvm import threads
from stablessm.llvm.compiler import MachineCode
from stablessm.llvm.emitter import I64, Emitter

Spec = TypeVar("Spec", bound=Hashable)
_SIGNATURE = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64])


class Fields(dict[str, ir.Value]):
    """The fields of a kernel by name. A field gets its place when the code first uses it; ``units`` is at place 0.

    A field that is named in ``pointers`` is the address of elements of the type ``pointers[field]``. Any other field is
    a whole number.
    """

    def __init__(self, builder: ir.IRBuilder, pointers: Mapping[str, ir.Type]) -> None:
        super().__init__()
        self._builder, self._pointers = builder, pointers
        self["units"]  # reserves place 0

    def __missing__(self, name: str) -> ir.Value:
        b = self._builder
        with b.goto_entry_block():
            place = b.gep(b.function.args[0], [I64(len(self))])
            if name in self._pointers:
                place = b.bitcast(place, self._pointers[name].as_pointer().as_pointer())
            self[name] = b.load(place)
        return self[name]


def kernel_entry(pointers: Mapping[str, ir.Type]) -> tuple[ir.IRBuilder, Fields]:
    """Create an empty kernel in a new LLVM module; return its builder and its fields."""
    function = ir.Function(ir.Module(), _SIGNATURE, "kernel")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    function.fields = Fields(builder, pointers)
    return builder, function.fields


def over_units(emit: Emitter, body: Callable[[ir.Value], None], fence: bool = False) -> ir.Function:
    """Emit the loop of a kernel over its work units, ``body(unit)``, and the end of the kernel; return the kernel.

    ``fence`` orders stores that bypass the cache.
    """
    b, (_, first, last) = emit.builder, emit.builder.function.args
    emit.repeat(b.sub(last, first), lambda i: body(b.add(first, i)))
    if fence:
        b.fence("seq_cst")
    b.ret_void()
    return b.function


def add_team_member(kernel: ir.Function) -> ir.Function:
    """Add a function to the module of a kernel that calls the kernel for one thread's share of the work units, and
    return this function, which every OpenMP thread runs.
    """
    function = ir.Function(kernel.module, ir.FunctionType(ir.VoidType(), [I64.as_pointer()]), f"{kernel.name}_member")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    _call_share(builder, kernel, function.args[0])
    builder.ret_void()
    return function


def _call_share(builder: ir.IRBuilder, kernel: ir.Value, fields: ir.Value) -> None:
    """Emit code that calls a kernel for the share of the current thread in the work units."""
    names = ("omp_get_thread_num", "omp_get_num_threads")
    number, count = (builder.zext(_asked(builder, name, ir.IntType(32)), I64) for name in names)
    tiles = builder.load(fields)
    first, last = (builder.sdiv(builder.mul(tiles, edge), count) for edge in (number, builder.add(number, I64(1))))
    builder.call(kernel, [fields, first, last])


def _asked(builder: ir.IRBuilder, name: str, result: ir.Type) -> ir.Value:
    """Emit code that calls an OpenMP function without arguments, and return its result."""
    module = builder.module
    return builder.call(module.globals.get(name) or ir.Function(module, ir.FunctionType(result, []), name), [])


class Kernel:
    """A kernel compiled for this machine, which runs without holding the GIL."""

    def __init__(self, function: ir.Function) -> None:
        self._code, self.names = MachineCode(function.module, [function.name]), tuple(function.fields)
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.address = self._code.address(function.name)
        """The address of the machine code."""
        self._range = prototype(self.address)

    def __call__(self, values: Mapping[str, int], workers: int) -> None:
        """Run the kernel on at most ``workers`` threads; ``values`` are its fields by name, with the number of work
        units in ``units``.
        """
        workers = min(workers, values["units"])
        if workers > 1 and threads.team_to_join() is not None:
            Sequence([(self, values)])(workers)
        else:
            fields = struct.pack(f"{len(self.names)}q", *[values.get(name, 0) for name in self.names])
            self.run(fields, values["units"], workers)

    def run(self, fields: bytes | int, units: int, workers: int) -> None:
        """Run the kernel for all work units, without OpenMP; ``fields`` is the memory of the fields."""
        if min(workers, units) <= 1:
            self._range(fields, 0, units)
        else:
            threads.in_ranges(lambda first, last: self._range(fields, first, last), units, workers)


@final
class Sequence:
    """Kernels that run in order on the same threads, each after all work units of the kernel before.

    Args:
        calls: the kernels, each with its fields by name.
    """

    def __init__(self, calls: Iterable[tuple[Kernel, Mapping[str, int]]]) -> None:
        self._calls = list(calls)
        self.places: dict[str, int] = {}
        """Where the table contains a field that only one of the kernels has."""
        entries: list[int] = []
        fields: list[int] = []
        for kernel, values in self._calls:
            start = 2 * len(self._calls) + len(fields)
            entries += [kernel.address, start]
            fields += [values.get(name, 0) for name in kernel.names]
            self.places.update((name, start + i) for i, name in enumerate(kernel.names))
        self.table = (ctypes.c_int64 * (len(entries) + len(fields)))(*entries, *fields)
        """The address of each kernel and the place of its fields, and then all fields."""

    def __call__(self, workers: int) -> None:
        """Run the kernels on at most ``workers`` threads."""
        team = threads.team_to_join()
        if team is not None and workers > 1:
            team.parallel(_sequence(len(self._calls)), self.table, workers, 0)
            return
        for i, (kernel, values) in enumerate(self._calls):
            kernel.run(ctypes.addressof(self.table) + 8 * self.table[2 * i + 1], values["units"], workers)


@functools.cache
def _sequence(count: int) -> int:
    """Return the address of the function that every OpenMP thread runs on the table of ``count`` kernels."""
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), [I64.as_pointer()]), "sequence")
    builder, table = ir.IRBuilder(function.append_basic_block("entry")), function.args[0]
    for number in range(count):
        if number:
            _asked(builder, "GOMP_barrier", ir.VoidType())
        address, place = (builder.load(builder.gep(table, [I64(2 * number + k)])) for k in range(2))
        _call_share(builder, builder.inttoptr(address, _SIGNATURE.as_pointer()), builder.gep(table, [place]))
    builder.ret_void()
    _kept.append(MachineCode(function.module, [function.name], threads.symbols()))
    return _kept[-1].address(function.name)


_kept: list[MachineCode] = []
_compiled: dict[tuple[Callable[..., ir.Function], Hashable], Kernel] = {}


def compiled(build: Callable[[Spec], ir.Function], spec: Spec) -> Kernel:
    """Return the compiled kernel that ``build(spec)`` emits; the first call with these arguments compiles it."""
    kernel = _compiled.get((build, spec))
    if kernel is None:
        with _fork.compiling:  # another thread may have compiled the kernel meanwhile
            kernel = _compiled.get((build, spec)) or Kernel(build(spec))
            _compiled[build, spec] = kernel
    return kernel
