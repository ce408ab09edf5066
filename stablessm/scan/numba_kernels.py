"""CPU scan kernels: serial in time, SIMD over channels, states kept in registers.

The kernels are written as LLVM instructions and compiled by llvmlite, the compiler numba stands on, because two
things that decide their speed cannot be said in numba's Python: vectors that live in registers from one time step
to the next, and stores that bypass the cache (a state is written once and not read again here, so fetching its
cache line first would cost a third of the memory traffic). One kernel compiles in a fraction of a second, so nothing is
cached on disk and a fresh process gives the same bits as an old one.

A *tile* is 128 bytes of neighbouring channels of one sequence; a kernel walks a range of tiles. Complex numbers stay
interleaved (re, im), as PyTorch stores them.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llvmlite import binding as llvm
from llvmlite import ir

from stablessm.scan import threads

VECTOR_BYTES = 64
TILE_VECTORS = 2
TILE_BYTES = VECTOR_BYTES * TILE_VECTORS

I64 = ir.IntType(64)


class Spec(NamedTuple):
    """What a kernel is compiled for."""

    backward: bool
    double: bool
    complex: bool
    per_step: bool
    """decay changes with time (otherwise it is loaded once and its gradient summed in registers)"""
    reset: bool
    stream: bool
    """stores bypass the cache; every stored row must start on a VECTOR_BYTES boundary"""


FORWARD_FIELDS = (
    "tiles", "steps", "channels",
    "decay", "decay_batch", "decay_time",
    "drive", "drive_batch", "drive_time",
    "initial", "initial_batch",
    "reset", "reset_batch", "reset_time",
    "states", "states_batch", "states_time",
)  # fmt: skip
BACKWARD_FIELDS = (
    "tiles", "steps", "channels",
    "decay", "decay_batch", "decay_time",
    "grad", "grad_batch", "grad_time",
    "initial", "initial_batch",
    "reset", "reset_batch", "reset_time",
    "states", "states_batch", "states_time",
    "d_drive", "d_drive_batch", "d_drive_time",
    "d_decay", "d_decay_batch", "d_decay_time",
    "d_initial", "d_initial_batch",
)  # fmt: skip
"""A kernel's arguments: counts (of all tiles, of steps, of scalars in a row), addresses, strides in bytes."""


class _Emitter:
    """The instruction builder, with vector arithmetic for real and interleaved complex numbers."""

    def __init__(self, builder: ir.IRBuilder, spec: Spec) -> None:
        self.builder, self.spec = builder, spec
        self.scalar = ir.DoubleType() if spec.double else ir.FloatType()
        self.size = 8 if spec.double else 4

    def vector(self, lanes: int) -> ir.VectorType:
        return ir.VectorType(self.scalar, lanes)

    def constant(self, lanes: int, values: Sequence[float]) -> ir.Constant:
        return ir.Constant(self.vector(lanes), [values[i % len(values)] for i in range(lanes)])

    def load(self, address: ir.Value, lanes: int) -> ir.Value:
        loaded = self.builder.load(self.builder.inttoptr(address, self.vector(lanes).as_pointer()))
        loaded.align = self.size
        return loaded

    def store(self, value: ir.Value, address: ir.Value) -> None:
        lanes = value.type.count
        stored = self.builder.store(value, self.builder.inttoptr(address, self.vector(lanes).as_pointer()))
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
        signs = self.constant(lanes, (1.0, -1.0) if conjugate else (-1.0, 1.0))
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


class _Tile:
    """One tile of one sequence: where its rows start, and the vectors that make a row."""

    def __init__(
        self, emit: _Emitter, fields: dict[str, ir.Value], batch: ir.Value, column: ir.Value, widths: list[int]
    ) -> None:
        self.emit, self.fields, self.widths = emit, fields, widths
        self._batch, self._column = batch, column

    def address(self, array: str, step: ir.Value | None = None, *, column: bool = True) -> ir.Value:
        """Where this tile's row of ``array`` is, at ``step`` (in the order the scan walks)."""
        add, mul = self.emit.builder.add, self.emit.builder.mul
        at = add(self.fields[array], mul(self._batch, self.fields[f"{array}_batch"]))
        if step is not None:
            at = add(at, mul(step, self.fields[f"{array}_time"]))
        return add(at, mul(self._column, I64(self.emit.size))) if column else at

    def load(self, array: str, step: ir.Value | None = None) -> list[ir.Value]:
        at, offset, row = self.address(array, step), 0, []
        for lanes in self.widths:
            row.append(self.emit.load(self.emit.builder.add(at, I64(offset)), lanes))
            offset += lanes * self.emit.size
        return row

    def store(self, row: list[ir.Value], array: str, step: ir.Value | None = None) -> None:
        at, offset = self.address(array, step), 0
        for value in row:
            self.emit.store(value, self.emit.builder.add(at, I64(offset)))
            offset += value.type.count * self.emit.size

    def zeros(self) -> list[ir.Value]:
        return [self.emit.constant(lanes, (0.0,)) for lanes in self.widths]

    def unless_reset(self, row: list[ir.Value], step: ir.Value) -> list[ir.Value]:
        """The row, or zeros where the scan restarts at ``step`` (a choice, not a product: 0 · NaN is NaN)."""
        if not self.emit.spec.reset:
            return row
        builder = self.emit.builder
        flag = builder.inttoptr(self.address("reset", step, column=False), ir.IntType(8).as_pointer())
        keep = builder.icmp_signed("==", builder.load(flag), ir.IntType(8)(0))
        return [builder.select(keep, u, zero) for u, zero in zip(row, self.zeros(), strict=True)]


def _forward(tile: _Tile) -> None:
    """h = a h + x."""
    emit = tile.emit
    constant = None if emit.spec.per_step else tile.load("decay")

    def step(t: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        decay, drive = constant or tile.load("decay", t), tile.load("drive", t)
        carried = tile.unless_reset(state, t)
        state = [emit.product(h, a, plus=x) for h, a, x in zip(carried, decay, drive, strict=True)]
        tile.store(state, "states", t)
        return state

    emit.loop(tile.fields["steps"], tile.load("initial"), step)


def _backward(tile: _Tile) -> None:
    """λ = g + carry; dx = λ; da += λ conj(h before); carry = conj(a) λ, from the last step to the first.

    A per-channel decay sums its gradient over time with Kahan's compensation, so that float32 stays accurate
    over any length without a second pass.
    """
    emit, builder, rows = tile.emit, tile.emit.builder, len(tile.widths)
    constant = None if emit.spec.per_step else tile.load("decay")

    def step(t: ir.Value, carried: list[ir.Value], before: list[ir.Value]) -> list[ir.Value]:
        carry, total, lost = carried[:rows], carried[rows : 2 * rows], carried[2 * rows :]
        decay, grad = constant or tile.load("decay", t), tile.load("grad", t)
        adjoint = [builder.fadd(g, c) for g, c in zip(grad, carry, strict=True)]
        tile.store(adjoint, "d_drive", t)
        zeros = tile.zeros()
        d_decay = [emit.product(u, h, z, conjugate=True) for u, h, z in zip(adjoint, before, zeros, strict=True)]
        d_decay = tile.unless_reset(d_decay, t)
        if emit.spec.per_step:
            tile.store(d_decay, "d_decay", t)
        else:
            pairs = [_kahan(builder, *args) for args in zip(total, lost, d_decay, strict=True)]
            total, lost = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        carry = [emit.product(u, a, z, conjugate=True) for u, a, z in zip(adjoint, decay, zeros, strict=True)]
        return [*tile.unless_reset(carry, t), *total, *lost]

    last = builder.sub(tile.fields["steps"], I64(1))

    def from_the_end(i: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        t = builder.sub(last, i)
        return step(t, carried, tile.load("states", builder.sub(t, I64(1))))

    start = [*tile.zeros(), *([] if emit.spec.per_step else [*tile.zeros(), *tile.zeros()])]
    carried = step(I64(0), emit.loop(last, start, from_the_end), tile.load("initial"))
    tile.store(carried[:rows], "d_initial")
    if not emit.spec.per_step:
        tile.store(carried[rows : 2 * rows], "d_decay")


def _kahan(builder: ir.IRBuilder, total: ir.Value, lost: ir.Value, term: ir.Value) -> tuple[ir.Value, ir.Value]:
    corrected = builder.fsub(term, lost)
    new = builder.fadd(total, corrected)
    return new, builder.fsub(builder.fsub(new, total), corrected)


def _build(spec: Spec) -> ir.Module:
    """void kernel(const int64 *fields, int64 first_tile, int64 last_tile)."""
    module = ir.Module()
    signature = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64])
    function = ir.Function(module, signature, _name(spec))
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    pointer, first, last = function.args
    names = BACKWARD_FIELDS if spec.backward else FORWARD_FIELDS
    fields = {name: builder.load(builder.gep(pointer, [I64(i)])) for i, name in enumerate(names)}
    emit = _Emitter(builder, spec)
    tile_lanes, lanes = TILE_BYTES // emit.size, VECTOR_BYTES // emit.size
    tiles = builder.sdiv(builder.add(fields["channels"], I64(tile_lanes - 1)), I64(tile_lanes))

    def one_tile(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        unit = builder.add(first, i)
        batch = builder.sdiv(unit, tiles)
        column = builder.mul(builder.srem(unit, tiles), I64(tile_lanes))
        rest = builder.sub(fields["channels"], column)
        with builder.if_else(builder.icmp_signed(">=", rest, I64(tile_lanes))) as (whole, partial):
            with whole:
                _emit_tile(emit, fields, batch, column, [lanes] * TILE_VECTORS)
            with partial:  # the last channels, by the bits of their number: 21 = 16 + 4 + 1
                width = tile_lanes // 2
                while width:
                    with builder.if_then(builder.icmp_signed("!=", builder.and_(rest, I64(width)), I64(0))):
                        done = builder.and_(rest, I64(-2 * width))
                        widths = [min(width, lanes)] * max(1, width // lanes)
                        _emit_tile(emit, fields, batch, builder.add(column, done), widths)
                    width //= 2
                    if spec.complex and width == 1:
                        break
        return []

    emit.loop(builder.sub(last, first), [], one_tile)
    builder.fence("seq_cst")  # stores that bypass the cache are not ordered otherwise
    builder.ret_void()
    _add_team_member(module, function)
    return module


def _add_team_member(module: ir.Module, kernel: ir.Function) -> None:
    """void member(const int64 *fields): the share of all tiles that falls to the calling OpenMP thread."""
    team = threads.team()
    if team is None:
        return
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64.as_pointer()]), f"{kernel.name}_member")
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


def _emit_tile(
    emit: _Emitter, fields: dict[str, ir.Value], batch: ir.Value, column: ir.Value, widths: list[int]
) -> None:
    (_backward if emit.spec.backward else _forward)(_Tile(emit, fields, batch, column, widths))


def _name(spec: Spec) -> str:
    return "scan_" + "".join(str(int(flag)) for flag in spec)


class Kernel:
    """A kernel compiled for this machine. Calling it does not hold the GIL."""

    def __init__(self, spec: Spec) -> None:
        engine, machine = _engine()
        module = llvm.parse_assembly(str(_build(spec)))
        module.verify()
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
        passes.getModulePassManager().run(module, passes)
        engine.add_module(module)
        engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._range = prototype(engine.get_function_address(_name(spec)))
        self._member = engine.get_function_address(f"{_name(spec)}_member")

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
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine), machine


_compiled: dict[Spec, Kernel] = {}
_compiling = threading.Lock()


def get_kernel(spec: Spec) -> Kernel:
    """The kernel for ``spec``, compiled the first time it is asked for."""
    kernel = _compiled.get(spec)
    if kernel is None:
        with _compiling:
            kernel = _compiled.get(spec) or Kernel(spec)
            _compiled[spec] = kernel
    return kernel
