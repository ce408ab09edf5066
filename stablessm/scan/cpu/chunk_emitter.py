"""Emits the instructions of the fused layer's CPU kernels: products of small matrices, for a vector of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from llvmlite import ir

from stablessm.llvm.emitter import I64, VECTOR_BYTES, Emitter

PARTS = 4
"""Number of real numbers in an entry of a table: two complex or four real states."""
CHUNKS = 4
"""Number of chunks in a block. With this number, CHUNKS × PARTS running sums fill half of the vector registers."""

Row: TypeAlias = list[ir.Value]


class Spec(NamedTuple):
    """The options of a CPU kernel of the fused layer, which are compiled into the kernel as constants."""

    backward: bool
    double: bool
    complex: bool
    length: int
    """L, the number of steps in a chunk."""

    stream: bool = False
    """True if results bypass the cache. Every row must start at a multiple of VECTOR_BYTES."""


class Rows(NamedTuple):
    """The rows of an array that a kernel reads or writes for one tile (a vector of neighboring channels)."""

    start: ir.Value
    """Address of the first scalar."""
    stride: ir.Value
    """Number of scalars from one row to the next."""
    left: ir.Value
    """Number of channels from the first channel of the tile on."""
    count: ir.Value
    """Number of rows."""


class Types(NamedTuple):
    """The LLVM element types of the arrays that a kernel reads and writes."""

    scalar: ir.Type
    vector: ir.VectorType
    """The scalars of neighboring channels, VECTOR_BYTES in total."""
    wide: ir.VectorType
    """The same number of channels in float64."""


def types(spec: Spec) -> Types:
    """Return the LLVM element types of a kernel's arrays."""
    scalar = ir.DoubleType() if spec.double else ir.FloatType()
    lanes = VECTOR_BYTES // (8 if spec.double else 4)
    return Types(scalar, ir.VectorType(scalar, lanes), ir.VectorType(ir.DoubleType(), lanes))


class ChunkEmitter:
    """Emits the vector instructions from which the CPU kernels of the fused layer are composed.

    Every vector holds one number for each of several neighboring channels. A *state* is a row of PARTS such vectors:
    two complex numbers (re, im, re, im) or four real numbers per channel.
    """

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
        """Emit code that allocates a buffer for ``vectors`` vectors on the stack, and return the address of the buffer.

        The stack grows every time the code runs, so the code must not be in a loop.
        """
        room = self.builder.alloca(element or self.types.vector, I64(vectors))
        room.align = VECTOR_BYTES
        return room

    def entry(self, name: str, index: ir.Value, rows: int = 1, row: ir.Value | int = 0) -> ir.Value:
        """Return the address of row ``row`` of entry ``index`` in the array ``name``, whose shape is (entries, rows,
        PARTS).
        """
        return self.at(self.fields[name], self.times(index, PARTS * rows), self.times(row, PARTS))

    def load(self, pointer: ir.Value, count: int = 1) -> Row:
        """Emit code that loads ``count`` consecutive vectors from the address ``pointer``, and return the vectors."""
        emit = self._emitter(pointer)
        return [emit.load(self.at(pointer, i), self.lanes) for i in range(count)]

    def store(self, row: Row, pointer: ir.Value) -> None:
        """Emit code that stores the vectors in ``row`` one after the other, from the address ``pointer`` on."""
        for i, value in enumerate(row):
            self._emitter(pointer).store(value, self.at(pointer, i))

    def _emitter(self, pointer: ir.Value) -> Emitter:
        return self._wide if pointer.type.pointee == self.types.wide else self.emit

    def widen(self, row: Row) -> Row:
        """Return vectors converted to float64."""
        return row if self.spec.double else [self.builder.fpext(u, self.types.wide) for u in row]

    def round(self, row: Row) -> Row:
        """Return float64 vectors rounded to the dtype of the kernel."""
        return row if self.spec.double else [self.builder.fptrunc(u, self.types.vector) for u in row]

    def zeros(self, count: int) -> Row:
        """Return ``count`` vectors of zeros."""
        return [self.emit.constant(self.lanes, (0.0,))] * count

    def add(self, row: Row, pointer: ir.Value) -> None:
        """Emit code that adds the vectors in ``row`` to the float64 sums at the address ``pointer``."""
        sums = self.load(pointer, len(row))
        self.store([self.builder.fadd(u, v) for u, v in zip(sums, self.widen(row), strict=True)], pointer)

    def product(self, u: Row, v: Row, plus: Row, *, conjugate: bool = False) -> Row:
        """Emit code for u v + plus or, with ``conjugate``, conj(u) v + plus; return the result.

        The product is elementwise. u, v and plus are states of PARTS real numbers per channel, which are pairs (re, im)
        if the kernel is complex.
        """
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
        """Return the complex conjugate of a state; a state of real numbers is returned unchanged."""
        return [self.builder.fneg(u) if self.spec.complex and i % 2 else u for i, u in enumerate(state)]

    def real(self, state: Row) -> Row:
        """Return the real parts of a state, whose numbers are stored as pairs (re, im) if the kernel is complex."""
        return state[::2] if self.spec.complex else state

    def as_state(self, value: ir.Value) -> Row:
        """Return a state of PARTS real numbers per channel, in which every real or complex number equals ``value``."""
        zero = ir.Constant(value.type, None)
        return [zero if self.spec.complex and i % 2 else value for i in range(PARTS)]

    def one(self) -> Row:
        """Return a float64 state in which every real or complex number is 1."""
        return self.as_state(self._wide.constant(self.lanes, (1.0,)))

    def scaled(self, state: Row, count: ir.Value) -> Row:
        """Return a float64 state multiplied by the whole number ``count``."""
        number = self.builder.sitofp(count, ir.DoubleType())
        factor = self._everywhere(number, self.types.wide)
        return [self.builder.fmul(u, factor) for u in state]

    # The three products of small matrices. ``table`` is (steps, PARTS); step s of chunk c is row c L + s of ``rows``.

    def project(self, rows: ir.Value, table: ir.Value, count: ir.Value, chunks: int) -> list[Row]:
        """Emit code for the sums Σ_s table[s] rows[c, s] of each chunk c, and return the sums: one state per chunk.

        rows[c, s] is step s of chunk c. The sums are over the steps s < ``count``; ``chunks`` is the number of chunks.
        """

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
        """Emit code that adds Σ_i table[s, i] states[c, i] to rows[c, s], for each state c and all steps s < ``count``.

        states[c] belongs to chunk c, and rows[c, s] is step s of this chunk.
        """

        def step(s: ir.Value) -> None:
            entry = self.load(self.at(table, self.times(s, PARTS)), PARTS)
            for c, state in enumerate(states):
                (value,) = self.load(self._row(rows, c, s))
                for u, h in zip(entry, state, strict=True):
                    value = self.emit.multiply_add(u, h, value)
                self.store([value], self._row(rows, c, s))

        self.emit.repeat(count, step)

    def gather(self, states: list[Row], rows: ir.Value, count: ir.Value, table: ir.Value) -> None:
        """Emit code that adds Σ_c states[c, i] rows[c, s] to table[s, i], for all steps s < ``count``.

        states[c] belongs to chunk c, and rows[c, s] is step s of this chunk.
        """

        def step(s: ir.Value) -> None:
            place = self.at(table, self.times(s, PARTS))
            entry = self.load(place, PARTS)
            for c, state in enumerate(states):
                (value,) = self.load(self._row(rows, c, s))
                entry = [self.emit.multiply_add(h, value, u) for h, u in zip(state, entry, strict=True)]
            self.store(entry, place)

        self.emit.repeat(count, step)

    def _row(self, rows: ir.Value, chunk: int, step: ir.Value) -> ir.Value:
        return self.at(rows, step, chunk * self.spec.length)

    # Inside a chunk: a convolution with the first L numbers of the kernel.

    def convolve(self, rows: ir.Value, kernel: ir.Value, results: ir.Value, *, transposed: bool) -> None:
        """Emit code for the convolution results[t] = Σ_{s ≤ t} kernel[t-s] rows[s], or for its transpose.

        The transposed convolution is results[s] = Σ_{t ≥ s} kernel[t-s] rows[t].
        """
        length = self.spec.length
        sums = self.zeros(length)
        for s in range(length):
            (value,) = self.load(self.at(rows, s))
            for t in range(s + 1) if transposed else range(s, length):
                (weight,) = self.load(self.at(kernel, abs(t - s)))
                sums[t] = self.emit.multiply_add(weight, value, sums[t])
        self.store(sums, results)

    def convolve_back(self, rows: ir.Value, kernel: ir.Value, results: ir.Value, count: ir.Value) -> None:
        """Emit code for the transposed convolution (:meth:`convolve`) of a chunk that has only ``count`` rows.

        The missing rows are skipped. Setting these rows to zero would not be enough: if an entry of the kernel is
        infinite, the product with zero is NaN.
        """

        def result(s: ir.Value) -> None:
            def term(j: ir.Value, total: Row) -> Row:
                (weight,) = self.load(self.at(kernel, j))
                (value,) = self.load(self.at(rows, s, j))
                return [self.emit.multiply_add(weight, value, *total)]

            total = self.emit.loop(self.builder.sub(count, s), self.zeros(1), term)
            self.store(total, self.at(results, s))

        self.emit.repeat(count, result)

    def correlate(self, early: ir.Value, late: ir.Value, sums: Row) -> Row:
        """Emit code that adds the correlations Σ_t late[t] early[t-j] to sums[j] for every lag j, and return the sums.

        ``early`` and ``late`` are addresses of the rows (steps) of a chunk. Rows after the end of a sequence must be
        zeros.
        """
        for t in range(self.spec.length):
            (value,) = self.load(self.at(late, t))
            for j in range(t + 1):
                (other,) = self.load(self.at(early, t - j))
                sums[j] = self.emit.multiply_add(value, other, sums[j])
        return sums

    # Copies of a tile's rows between an array and a buffer. The last tile may have fewer channels than lanes.

    def read(self, rows: Rows, buffer: ir.Value) -> None:
        """Emit code that copies rows of an array to a buffer, and prefetches the rows of the next block.

        The rows are far apart in memory, so the processor does not predict their addresses.
        """
        ahead = self.times(rows.stride, -self.steps if self.spec.backward else self.steps)
        number = ir.IntType(32)
        prefetch = self._intrinsic("llvm.prefetch.p0", ir.VoidType(), [self._pointer, number, number, number])
        vector = self.types.vector
        masked = self._intrinsic(
            f"llvm.masked.load.{self._suffix}", vector, [self._pointer, number, self._mask, vector]
        )
        flags = self._lanes_below(rows.left)

        def row(t: ir.Value, *, whole: bool) -> None:
            outside = self.at(rows.start, self.times(t, rows.stride))
            self.builder.call(prefetch, [self._whole(self.at(outside, ahead)), number(0), number(2), number(1)])
            if whole:
                values = [self.emit.load(outside, self.lanes)]
            else:
                options = [self._whole(outside), number(self.emit.size), flags, *self.zeros(1)]
                values = [self.builder.call(masked, options)]
            self.store(values, self.at(buffer, t))

        self._each_row(row, rows)

    def write(self, rows: Rows, buffer: ir.Value) -> None:
        """Emit code that copies rows from a buffer to an array."""
        number = ir.IntType(32)
        kinds = [self.types.vector, self._pointer, number, self._mask]
        masked = self._intrinsic(f"llvm.masked.store.{self._suffix}", ir.VoidType(), kinds)
        flags = self._lanes_below(rows.left)

        def row(t: ir.Value, *, whole: bool) -> None:
            outside = self.at(rows.start, self.times(t, rows.stride))
            (value,) = self.load(self.at(buffer, t))
            if whole:
                self._past_cache.store(value, outside)
            else:
                self.builder.call(masked, [value, self._whole(outside), number(self.emit.size), flags])

        self._each_row(row, rows)

    def _each_row(self, row: Callable[..., None], rows: Rows) -> None:
        with self.builder.if_else(self.builder.icmp_signed(">=", rows.left, I64(self.lanes))) as (full, partial):
            with full:
                self.emit.repeat(rows.count, lambda t: row(t, whole=True))
            with partial:
                self.emit.repeat(rows.count, lambda t: row(t, whole=False))

    def _lanes_below(self, count: ir.Value) -> ir.Value:
        indices = ir.Constant(ir.VectorType(I64, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", indices, self._everywhere(count, indices.type))

    def _everywhere(self, value: ir.Value, vector: ir.VectorType) -> ir.Value:
        nothing = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(nothing, value, ir.IntType(32)(0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, nothing, order)

    def _whole(self, scalars: ir.Value) -> ir.Value:
        """Return a pointer to a vector of numbers, at the address of ``scalars``, which is a pointer to a single
        number.
        """
        return self.builder.bitcast(scalars, self._pointer)

    def _intrinsic(self, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)
