"""Instructions for the fused layer's CPU kernels: products of small matrices, one for every channel of a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from llvmlite import ir

from stablessm.llvm.emitter import I64, VECTOR_BYTES, Emitter

PARTS = 4
CHUNKS = 4
"""Chunks in a block: CHUNKS × PARTS running sums fill half of the vector registers."""

Row: TypeAlias = list[ir.Value]


class Spec(NamedTuple):
    """What a kernel is compiled for."""

    backward: bool
    double: bool
    complex: bool
    length: int
    """L, steps in a chunk"""

    stream: bool = False
    """results bypass the cache; every row must start on a VECTOR_BYTES boundary"""


class Rows(NamedTuple):
    """Rows of one of the caller's arrays, from a tile's first channel on."""

    start: ir.Value
    """Of scalars"""
    stride: ir.Value
    """Scalars from row to row"""
    left: ir.Value
    """Channels from the tile's first one on"""
    count: ir.Value
    """Rows"""


class Types(NamedTuple):
    """What the arrays of a kernel hold."""

    scalar: ir.Type
    vector: ir.VectorType
    """Scalars of VECTOR_BYTES of neighboring channels"""
    wide: ir.VectorType
    """The same number of channels in float64"""


def types(spec: Spec) -> Types:
    """The types of a kernel."""
    scalar = ir.DoubleType() if spec.double else ir.FloatType()
    lanes = VECTOR_BYTES // (8 if spec.double else 4)
    return Types(scalar, ir.VectorType(scalar, lanes), ir.VectorType(ir.DoubleType(), lanes))


class ChunkEmitter:
    """One kernel being written: vectors of channels, states of PARTS numbers, chunks of L steps."""

    def __init__(self, builder: ir.IRBuilder, spec: Spec, fields: dict[str, ir.Value]) -> None:
        self.builder, self.spec, self.fields = builder, spec, fields
        cached = spec._replace(stream=False)
        self.emit, self._wide = Emitter(builder, cached), Emitter(builder, cached._replace(double=True))
        self._past_cache = Emitter(builder, spec)
        self.sum, self.times, self.at = self.emit.sum, self.emit.times, self.emit.at
        self.types = types(spec)
        self.lanes = self.types.vector.count
        self.steps = CHUNKS * spec.length
        self._pointer, self._mask = self.types.vector.as_pointer(), ir.VectorType(ir.IntType(1), self.lanes)
        self._suffix = f"v{self.lanes}f{8 * self.emit.size}.p0"

    def buffer(self, vectors: int, element: ir.VectorType | None = None) -> ir.Value:
        """The address of room for so many vectors on the stack, which grows each time this runs: not in a loop."""
        room = self.builder.alloca(element or self.types.vector, I64(vectors))
        room.align = VECTOR_BYTES
        return room

    def entry(self, name: str, index: ir.Value, rows: int = 1, row: ir.Value | int = 0) -> ir.Value:
        """Where row ``row`` of entry ``index`` of a field's array (…, rows, PARTS) is."""
        return self.at(self.fields[name], self.times(index, PARTS * rows), self.times(row, PARTS))

    def load(self, pointer: ir.Value, count: int = 1) -> Row:
        """Vectors that follow each other, of the kernel's scalar or of float64, as the pointer says."""
        emit = self._emitter(pointer)
        return [emit.load(self.at(pointer, i), self.lanes) for i in range(count)]

    def store(self, row: Row, pointer: ir.Value) -> None:
        """Vectors, one after the other."""
        for i, value in enumerate(row):
            self._emitter(pointer).store(value, self.at(pointer, i))

    def _emitter(self, pointer: ir.Value) -> Emitter:
        return self._wide if pointer.type.pointee == self.types.wide else self.emit

    def widen(self, row: Row) -> Row:
        """As float64."""
        return row if self.spec.double else [self.builder.fpext(u, self.types.wide) for u in row]

    def round(self, row: Row) -> Row:
        """As the kernel's own scalar."""
        return row if self.spec.double else [self.builder.fptrunc(u, self.types.vector) for u in row]

    def zeros(self, count: int) -> Row:
        """Vectors of zeros."""
        return [self.emit.constant(self.lanes, (0.0,))] * count

    def add(self, row: Row, pointer: ir.Value) -> None:
        """Add to sums in float64."""
        sums = self.load(pointer, len(row))
        self.store([self.builder.fadd(u, v) for u, v in zip(sums, self.widen(row), strict=True)], pointer)

    def product(self, u: Row, v: Row, plus: Row, *, conjugate: bool = False) -> Row:
        """u v + plus, or conj(u) v + plus, for the parts of a state."""
        fma, minus = self.emit.multiply_add, self.builder.fneg
        if not self.spec.complex:
            return [fma(*parts) for parts in zip(u, v, plus, strict=True)]
        result = []
        for i in range(0, PARTS, 2):
            (ur, ui), (vr, vi), (pr, pi) = u[i : i + 2], v[i : i + 2], plus[i : i + 2]
            ui = minus(ui) if conjugate else ui
            result += [fma(ur, vr, fma(minus(ui), vi, pr)), fma(ur, vi, fma(ui, vr, pi))]
        return result

    def conjugate(self, state: Row) -> Row:
        """The complex conjugate of the parts of a state."""
        return [self.builder.fneg(u) if self.spec.complex and i % 2 else u for i, u in enumerate(state)]

    def real(self, state: Row) -> Row:
        """The real parts."""
        return state[::2] if self.spec.complex else state

    def as_state(self, value: ir.Value) -> Row:
        """The parts of a state whose every number is ``value``."""
        zero = ir.Constant(value.type, None)
        return [zero if self.spec.complex and i % 2 else value for i in range(PARTS)]

    def one(self) -> Row:
        """1, in float64."""
        return self.as_state(self._wide.constant(self.lanes, (1.0,)))

    def scaled(self, state: Row, count: ir.Value) -> Row:
        """A state in float64, times a whole number."""
        number = self.builder.sitofp(count, ir.DoubleType())
        factor = self._everywhere(number, self.types.wide)
        return [self.builder.fmul(u, factor) for u in state]

    # The three products of small matrices. ``table`` is (steps, PARTS); step s of chunk c is row c L + s of ``rows``.

    def project(self, rows: ir.Value, table: ir.Value, count: ir.Value, chunks: int) -> list[Row]:
        """Σ_s table[s] rows[c, s], a state for each chunk."""

        def step(s: ir.Value, sums: Row) -> Row:
            entry = self.load(self.at(table, self.times(s, PARTS)), PARTS)
            for c in range(chunks):
                (value,) = self.load(self._row(rows, c, s))
                for i in range(PARTS):
                    sums[c * PARTS + i] = self.emit.multiply_add(entry[i], value, sums[c * PARTS + i])
            return sums

        sums = self.emit.loop(count, self.zeros(chunks * PARTS), step)
        return [sums[c * PARTS : (c + 1) * PARTS] for c in range(chunks)]

    def expand(self, states: list[Row], table: ir.Value, count: ir.Value, rows: ir.Value) -> None:
        """rows[c, s] += Σ_i table[s, i] states[c, i]."""

        def step(s: ir.Value, _: Row) -> Row:
            entry = self.load(self.at(table, self.times(s, PARTS)), PARTS)
            for c, state in enumerate(states):
                (value,) = self.load(self._row(rows, c, s))
                for u, h in zip(entry, state, strict=True):
                    value = self.emit.multiply_add(u, h, value)
                self.store([value], self._row(rows, c, s))
            return []

        self.emit.loop(count, [], step)

    def gather(self, states: list[Row], rows: ir.Value, count: ir.Value, table: ir.Value) -> None:
        """table[s, i] += Σ_c states[c, i] rows[c, s]."""

        def step(s: ir.Value, _: Row) -> Row:
            place = self.at(table, self.times(s, PARTS))
            entry = self.load(place, PARTS)
            for c, state in enumerate(states):
                (value,) = self.load(self._row(rows, c, s))
                entry = [self.emit.multiply_add(h, value, u) for h, u in zip(state, entry, strict=True)]
            self.store(entry, place)
            return []

        self.emit.loop(count, [], step)

    def _row(self, rows: ir.Value, chunk: int, step: ir.Value) -> ir.Value:
        return self.at(rows, step, chunk * self.spec.length)

    # Inside a chunk: a convolution with the first L numbers of the kernel.

    def convolve(self, rows: ir.Value, kernel: ir.Value, results: ir.Value, *, transposed: bool) -> None:
        """results[t] = Σ_{s ≤ t} kernel[t-s] rows[s], or results[s] = Σ_{t ≥ s} kernel[t-s] rows[t]."""
        length = self.spec.length
        sums = self.zeros(length)
        for s in range(length):
            (value,) = self.load(self.at(rows, s))
            for t in range(s + 1) if transposed else range(s, length):
                (weight,) = self.load(self.at(kernel, abs(t - s)))
                sums[t] = self.emit.multiply_add(weight, value, sums[t])
        self.store(sums, results)

    def convolve_back(self, rows: ir.Value, kernel: ir.Value, results: ir.Value, count: ir.Value) -> None:
        """The transposed convolution of a chunk's first ``count`` rows.

        Zeros in the other rows would not do: they may meet a number of the kernel that is not finite.
        """

        def result(s: ir.Value, _: Row) -> Row:
            def term(j: ir.Value, total: Row) -> Row:
                (weight,) = self.load(self.at(kernel, j))
                (value,) = self.load(self.at(rows, s, j))
                return [self.emit.multiply_add(weight, value, *total)]

            total = self.emit.loop(self.builder.sub(count, s), self.zeros(1), term)
            self.store(total, self.at(results, s))
            return []

        self.emit.loop(count, [], result)

    def correlate(self, early: ir.Value, late: ir.Value, sums: Row) -> Row:
        """sums[j] += Σ_t late[t] early[t-j]. Rows past the end of a sequence are zeros."""
        for t in range(self.spec.length):
            (value,) = self.load(self.at(late, t))
            for j in range(t + 1):
                (other,) = self.load(self.at(early, t - j))
                sums[j] = self.emit.multiply_add(value, other, sums[j])
        return sums

    # Rows of a tile, between the caller's arrays and a buffer. The last tile may have fewer channels than lanes.

    def read(self, rows: Rows, buffer: ir.Value) -> None:
        """Rows of an array into a buffer. The rows of the block to come are asked for: they are far apart in memory,
        and the processor does not guess them."""
        ahead = self.times(rows.stride, -self.steps if self.spec.backward else self.steps)
        number = ir.IntType(32)
        prefetch = self._intrinsic("llvm.prefetch.p0", ir.VoidType(), [self._pointer, number, number, number])
        vector = self.types.vector
        masked = self._intrinsic(
            f"llvm.masked.load.{self._suffix}", vector, [self._pointer, number, self._mask, vector]
        )
        flags = self._lanes_below(rows.left)

        def row(t: ir.Value, *, whole: bool) -> Row:
            outside = self.at(rows.start, self.times(t, rows.stride))
            self.builder.call(prefetch, [self._whole(self.at(outside, ahead)), number(0), number(2), number(1)])
            if whole:
                values = [self.emit.load(outside, self.lanes)]
            else:
                options = [self._whole(outside), number(self.emit.size), flags, *self.zeros(1)]
                values = [self.builder.call(masked, options)]
            self.store(values, self.at(buffer, t))
            return []

        self._each_row(row, rows)

    def write(self, rows: Rows, buffer: ir.Value) -> None:
        """Rows of a buffer into an array."""
        number = ir.IntType(32)
        kinds = [self.types.vector, self._pointer, number, self._mask]
        masked = self._intrinsic(f"llvm.masked.store.{self._suffix}", ir.VoidType(), kinds)
        flags = self._lanes_below(rows.left)

        def row(t: ir.Value, *, whole: bool) -> Row:
            outside = self.at(rows.start, self.times(t, rows.stride))
            (value,) = self.load(self.at(buffer, t))
            if whole:
                self._past_cache.store(value, outside)
            else:
                self.builder.call(masked, [value, self._whole(outside), number(self.emit.size), flags])
            return []

        self._each_row(row, rows)

    def _each_row(self, row: Callable[..., Row], rows: Rows) -> None:
        with self.builder.if_else(self.builder.icmp_signed(">=", rows.left, I64(self.lanes))) as (full, partial):
            with full:
                self.emit.loop(rows.count, [], lambda t, _: row(t, whole=True))
            with partial:
                self.emit.loop(rows.count, [], lambda t, _: row(t, whole=False))

    def _lanes_below(self, count: ir.Value) -> ir.Value:
        indices = ir.Constant(ir.VectorType(I64, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", indices, self._everywhere(count, indices.type))

    def _everywhere(self, value: ir.Value, vector: ir.VectorType) -> ir.Value:
        nothing = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(nothing, value, ir.IntType(32)(0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, nothing, order)

    def _whole(self, scalars: ir.Value) -> ir.Value:
        """A pointer to scalars, as one to a vector."""
        return self.builder.bitcast(scalars, self._pointer)

    def _intrinsic(self, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)
