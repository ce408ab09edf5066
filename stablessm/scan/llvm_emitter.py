"""Instructions for CPU kernels, and their compiler: llvmlite, the compiler numba stands on.

A kernel is ``void kernel(const int64 *fields, int64 first, int64 last)``: it works on the units first … last-1 (tiles
of channels) of ``fields[0]``, and finds everything else in ``fields``. One compiles in a fraction of a second, so
nothing is cached on disk and a fresh process gives the same bits as an old one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from llvmlite import binding as llvm
from llvmlite import ir

from stablessm import _fork
from stablessm.scan import threads
from stablessm.scan.target import optimized, target_machine

VECTOR_BYTES = 64

I64 = ir.IntType(64)


class Arithmetic(Protocol):
    """What an emitter must know of a kernel's options."""

    @property
    def double(self) -> bool:
        """float64 rather than float32"""

    @property
    def complex(self) -> bool:
        """Numbers are pairs (re, im), interleaved"""

    @property
    def stream(self) -> bool:
        """Whole vectors are stored past the cache"""


Options = TypeVar("Options", bound=Arithmetic)
Spec = TypeVar("Spec", bound=Hashable)


class Emitter(Generic[Options]):
    """The instruction builder, with vector arithmetic for real and interleaved complex numbers."""

    def __init__(self, builder: ir.IRBuilder, spec: Options) -> None:
        self.builder, self.spec = builder, spec
        self.scalar = ir.DoubleType() if spec.double else ir.FloatType()
        self.size = 8 if spec.double else 4

    def vector(self, lanes: int) -> ir.VectorType:
        """The type."""
        return ir.VectorType(self.scalar, lanes)

    def constant(self, lanes: int, values: Sequence[float]) -> ir.Constant:
        """The values, repeated over all lanes."""
        return ir.Constant(self.vector(lanes), [values[i % len(values)] for i in range(lanes)])

    def load(self, address: ir.Value, lanes: int) -> ir.Value:
        """A vector, from any address that a scalar may have."""
        loaded = self.builder.load(self.builder.inttoptr(address, self.vector(lanes).as_pointer()))
        loaded.align = self.size
        return loaded

    def store(self, value: ir.Value, address: ir.Value) -> None:
        """A vector, past the cache if the options say so."""
        lanes = value.type.count
        stored = self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()))
        stored.align = self.size
        if self.spec.stream and lanes * self.size == VECTOR_BYTES:
            stored.align = VECTOR_BYTES
            one = ir.Constant(ir.IntType(32), 1)
            stored.set_metadata("nontemporal", self.builder.module.add_metadata([one]))

    def multiply_add(self, u: ir.Value, v: ir.Value, w: ir.Value) -> ir.Value:
        """u v + w, rounded once where the machine can."""
        product = self.builder.fmul(u, v, flags=("contract",))
        return self.builder.fadd(product, w, flags=("contract",))

    def product(self, u: ir.Value, v: ir.Value, plus: ir.Value, conjugate: bool = False) -> ir.Value:
        """u v + plus, or u conj(v) + plus."""
        if not self.spec.complex:
            return self.multiply_add(u, v, plus)
        lanes = u.type.count
        real = self._shuffle(v, [i - i % 2 for i in range(lanes)])
        imag = self._shuffle(v, [i - i % 2 + 1 for i in range(lanes)])
        swapped = self._shuffle(u, [i + 1 - 2 * (i % 2) for i in range(lanes)])
        signs = ir.Constant(u.type, [-1.0 if i % 2 == conjugate else 1.0 for i in range(lanes)])
        signed = self.builder.fmul(imag, signs)  # exact; hoisted out of the loop when v is
        return self.multiply_add(swapped, signed, self.multiply_add(u, real, plus))

    def _shuffle(self, u: ir.Value, order: list[int]) -> ir.Value:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
        return self.builder.shuffle_vector(u, u, mask)

    def loop(
        self,
        count: ir.Value,
        carried: list[ir.Value],
        body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
    ) -> list[ir.Value]:
        """for i in range(count): carried = body(i, carried)."""
        builder = self.builder
        before = builder.block
        head, inside, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(I64(0), before)
        phis = [builder.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
        builder.position_at_end(inside)
        results = body(index, list(phis))
        index.add_incoming(builder.add(index, I64(1)), builder.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return list(phis)


def kernel_entry(name: str, fields: Sequence[str]) -> tuple[ir.IRBuilder, dict[str, ir.Value], ir.Value, ir.Value]:
    """An empty kernel in a module of its own: its builder, its fields by name, and its range of units."""
    signature = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64])
    function = ir.Function(ir.Module(), signature, name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    pointer, first, last = function.args
    values = {field: builder.load(builder.gep(pointer, [I64(i)])) for i, field in enumerate(fields)}
    return builder, values, first, last


def _add_team_member(kernel: ir.Function) -> None:
    """void member(const int64 *fields): the share of all tiles that falls to the calling OpenMP thread."""
    team = threads.team()
    if team is None:
        return
    function = ir.Function(kernel.module, ir.FunctionType(ir.VoidType(), [I64.as_pointer()]), f"{kernel.name}_member")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    ask = ir.FunctionType(ir.IntType(32), []).as_pointer()
    number, count = (
        builder.zext(builder.call(builder.inttoptr(I64(address), ask), []), I64)
        for address in (team.thread_number, team.thread_count)
    )
    tiles = builder.load(builder.gep(function.args[0], [I64(0)]))
    first, last = (builder.sdiv(builder.mul(tiles, edge), count) for edge in (number, builder.add(number, I64(1))))
    builder.call(kernel, [function.args[0], first, last])
    builder.ret_void()


class Kernel:
    """A kernel compiled for this machine. Calling it does not hold the GIL."""

    def __init__(self, function: ir.Function) -> None:
        engine, machine = _engine()
        _add_team_member(function)
        engine.add_module(optimized(function.module, machine))
        engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._range = prototype(engine.get_function_address(function.name))
        self._member = engine.get_function_address(f"{function.name}_member")

    def __call__(self, fields: ctypes.Array[ctypes.c_int64], tiles: int, workers: int) -> None:
        """Run over all tiles on as many threads as there are workers."""
        address = ctypes.addressof(fields)
        workers = min(workers, tiles)
        if workers > 1 and (team := threads.team_to_join()) is not None:
            team.parallel(self._member, address, workers, 0)
        else:
            threads.in_ranges(lambda first, last: self._range(address, first, last), tiles, workers)


@functools.cache
def _engine() -> tuple[llvm.ExecutionEngine, llvm.TargetMachine]:
    machine = target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine), machine


_compiled: dict[tuple[Callable[..., ir.Function], Hashable], Kernel] = {}


def compiled(build: Callable[[Spec], ir.Function], spec: Spec) -> Kernel:
    """The kernel that ``build`` writes for ``spec``, compiled the first time it is asked for."""
    kernel = _compiled.get((build, spec))
    if kernel is None:
        with _fork.compiling:
            kernel = _compiled.get((build, spec)) or Kernel(build(spec))
            _compiled[build, spec] = kernel
    return kernel
