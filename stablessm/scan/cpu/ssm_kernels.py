"""CPU kernels of the fused layer: time in chunks, channels in SIMD vectors; states are not stored in memory.

With tables of the powers of the decay a, L steps (a *chunk*) that start from the state h need no recurrence:

    y[t] = Σ_{s ≤ t} k[t-s] x[s] + Σ_i out[t, i] h[i]                 k[j] = Re Σ C a^j B, plus D at j = 0
    h'   = a^L h + Σ_s into[s] x[s]                                   into[s] = B a^(L-1-s),  out[t] = C a^(t+1)

Computing a chunk by these sums takes a third less time than the recurrence. For every channel, the sums are products of
small matrices. A vector holds the same entry of these matrices for neighboring channels, VECTOR_BYTES in total. Four
whole chunks (a *block*) are computed together, so that an entry of a table is loaded once for four uses. States are
carried from block to block in float64; within a block, rounding errors of float32 stay small. The backward pass visits
the blocks from the last to the first, recomputes the states of a block from the checkpoint before it, and sums the
gradients of the *tables*. :mod:`.ssm_tables` computes the gradients of decay, B and C from the gradients of the tables.

States are processed as ``PARTS`` real numbers: two complex numbers (re, im, re, im) or four real numbers. A *tile* is
one vector of channels.

The field ``states`` of a kernel counts groups of PARTS numbers, and ``cells`` the blocks of a sequence without resets.
A unit is one tile of one group of sequences. ``blocks`` lists (first step, number of steps, 1 if the scan restarts
here); the blocks of sequence b start at ``rows[b]``. The arrays consist of vectors of channels; the arrays on the right
are float64:

    into, out    (tiles, states, L, PARTS)              | powers       (tiles, states, L + 2, PARTS): a^0 … a^L, a^(4 L)
    kernel       (tiles, L)                             | carry        (batch, tiles, states, PARTS): h, or its adjoint
    checkpoints  (batch, cells, tiles, states, PARTS)   | d_kernel     (units, L)
    d_tables     (units, 2, states, L, PARTS)           | d_powers     (units, states, L + 1, PARTS)
                                                        | d_tables_wide as d_tables
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from stablessm.llvm.emitter import I64
from stablessm.llvm.kernel import kernel_entry, over_units
from stablessm.scan.cpu.chunk_emitter import CHUNKS, PARTS, ChunkEmitter, Row, Rows, Spec, types

FLUSH = 32
"""Number of blocks, a power of two, after which sums in float32 are added to the sums in float64."""


class _Block:
    """One block of time steps of one tile (a vector of channels): the addresses of its rows and of its tables."""

    def __init__(self, code: ChunkEmitter, unit: ir.Value, tile: ir.Value, batch: ir.Value, block: ir.Value) -> None:
        self.code, self.unit, self.tile, self.batch = code, unit, tile, batch
        length = code.spec.length
        entry = code.times(block, 3)
        self.first, self.steps, restarts = (
            code.builder.load(code.at(code.fields["blocks"], entry, i)) for i in range(3)
        )
        self.fresh = code.builder.icmp_signed("!=", restarts, I64(0))
        self.whole = code.builder.icmp_signed("==", self.steps, I64(code.steps))
        self.chunks = code.builder.sdiv(code.sum(self.steps, length - 1), I64(length))
        self.kernel = code.at(code.fields["kernel"], code.times(tile, length))

    def steps_of(self, chunk: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the number of steps in a chunk, and the number of vectors to skip at the start of the table ``into``.

        The second number is 0 if the chunk has L steps.
        """
        builder, length = self.code.builder, self.code.spec.length
        left = builder.sub(self.steps, self.code.times(chunk, length))
        steps = builder.select(builder.icmp_signed("<", left, I64(length)), left, I64(length))
        return steps, self.code.times(builder.sub(I64(length), steps), PARTS)

    def rows(self, array: str) -> Rows:
        """Return the rows of this block in the array ``array``, which is x, y, d_x or d_y."""
        code, fields = self.code, self.code.fields
        stride, column = fields[f"{array}_time"], code.times(self.tile, code.lanes)
        sequence = code.times(self.batch, fields[f"{array}_batch"])
        start = code.at(fields[array], sequence, column, code.times(self.first, stride))
        return Rows(start, stride, code.builder.sub(fields["channels"], column), self.steps)

    def clear(self, buffer: ir.Value) -> None:
        """Emit code that fills the last chunk of a buffer with zeros, because the sequence may end
        within this chunk.
        """
        length = self.code.spec.length
        last = self.code.times(self.code.builder.sub(self.chunks, I64(1)), length)
        self.code.store(self.code.zeros(length), self.code.at(buffer, last))


class _State:
    """A group of states, stored as PARTS real numbers per channel, during one block of time steps.

    The attributes are the addresses of the tables of the states, and of their values at the start of the block.
    """

    def __init__(self, block: _Block, state: ir.Value) -> None:
        code, fields, length = block.code, block.code.fields, block.code.spec.length
        self.code = code
        here = code.sum(code.times(block.tile, fields["states"]), state)
        self.into, self.out = (code.entry(name, here, length) for name in ("into", "out"))
        self._powers = code.entry("powers", here, length + 2)
        one_cell = code.times(fields["tiles"], fields["states"])
        self.carry = code.entry("carry", code.sum(code.times(block.batch, one_cell), here))
        cell = code.sum(code.times(block.batch, fields["cells"]), code.builder.sdiv(block.first, I64(code.steps)))
        self.checkpoint = code.entry("checkpoints", code.sum(code.times(cell, one_cell), here))
        if code.spec.backward:
            table = code.times(block.unit, 2, fields["states"])
            self.d_into = code.entry("d_tables", code.sum(table, state), length)
            self.d_out = code.entry("d_tables", code.sum(table, fields["states"], state), length)
            unit = code.sum(code.times(block.unit, fields["states"]), state)
            self._d_powers = code.entry("d_powers", unit, length + 1)

    def power(self, exponent: ir.Value | int) -> Row:
        """Return a power of the decay in float64: a**exponent for exponents from 0 to L.

        The exponent L + 1 has a special meaning: it selects a**(CHUNKS L), the product of the decays of a whole block.
        """
        return self.code.load(self.code.at(self._powers, self.code.times(exponent, PARTS)), PARTS)

    def add_to_power(self, gradient: Row, exponent: ir.Value | int) -> None:
        """Emit code that adds a term to the gradient with respect to a**exponent, where a is the decay."""
        self.code.add(gradient, self.code.at(self._d_powers, self.code.times(exponent, PARTS)))


def _running(code: ChunkEmitter, step: Row, start: Row, inputs: list[Row], *, conjugate: bool = False) -> list[Row]:
    """Emit code for the state before each chunk of a block; return these states.

    The recurrence is h = step · h + input, with h = ``start`` before the first chunk. With ``conjugate``, the factor is
    conj(step).
    """
    states = [start]
    for given in inputs[:-1]:
        states.append(code.product(step, states[-1], given, conjugate=conjugate))
    return states


def _jump(code: ChunkEmitter, state: _State, before: Row, inputs: list[Row], *, conjugate: bool = False) -> None:
    """Emit code that computes the state after a whole block from the state ``before``, and stores the result.

    With ``conjugate``, the code does the same with the gradient of the state. The code computes in float64, except for
    the contribution of the inputs, which is summed in the dtype of the kernel.
    """
    length = code.spec.length
    step = code.round(state.power(length))
    added = inputs[0]
    for given in inputs[1:]:
        added = code.product(step, added, given, conjugate=conjugate)
    after = code.product(state.power(length + 1), before, code.widen(added), conjugate=conjugate)
    code.store(after, state.carry)


class _Buffers(NamedTuple):
    """Addresses of the stack buffers of one block: its inputs, its results, and the state before each chunk."""

    x: ir.Value
    result: ir.Value
    """y or d_x."""
    d_y: ir.Value | None = None
    kept: ir.Value | None = None


def _forward(block: _Block, rows: _Buffers) -> None:
    code, builder, length = block.code, block.code.builder, block.code.spec.length
    x, y = rows.x, rows.result
    code.read(block.rows("x"), x)

    def inside(c: ir.Value) -> None:
        first = code.times(c, length)
        code.convolve(code.at(x, first), block.kernel, code.at(y, first), transposed=False)

    code.emit.repeat(block.chunks, inside)

    def across(i: ir.Value) -> None:
        state = _State(block, i)
        with builder.if_else(block.fresh) as (restart, go_on):
            with restart:
                code.store(code.widen(code.zeros(PARTS)), state.carry)
            with go_on:
                code.store(code.round(code.load(state.carry, PARTS)), state.checkpoint)

        def chunk(c: ir.Value) -> None:
            first, (steps, missing) = code.times(c, length), block.steps_of(c)
            before = code.load(state.carry, PARTS)
            (given,) = code.project(code.at(x, first), code.at(state.into, missing), steps, 1)
            code.expand([code.round(before)], state.out, steps, code.at(y, first))
            code.store(code.product(state.power(steps), before, code.widen(given)), state.carry)

        with builder.if_else(block.whole) as (whole, partial):
            with whole:
                before = code.load(state.carry, PARTS)
                inputs = code.project(x, state.into, I64(length), CHUNKS)
                states = _running(code, code.round(state.power(length)), code.round(before), inputs)
                _jump(code, state, before, inputs)
                code.expand(states, state.out, I64(length), y)
            with partial:
                code.emit.repeat(block.chunks, chunk)

    code.emit.repeat(code.fields["states"], across)
    code.write(block.rows("y"), y)


def _backward(block: _Block, rows: _Buffers) -> None:
    code, builder = block.code, block.code.builder
    for array, buffer in (("x", rows.x), ("d_y", rows.d_y)):
        block.clear(buffer)
        code.read(block.rows(array), buffer)
    _inside_back(block, rows)

    def across(i: ir.Value) -> None:
        state, zeros = _State(block, i), code.zeros(PARTS)
        kept_before = code.load(state.checkpoint, PARTS)
        before = [builder.select(block.fresh, zero, h) for zero, h in zip(zeros, kept_before, strict=True)]
        with builder.if_else(block.whole) as (whole, partial):
            with whole:
                _whole_back(code, rows, state, before)
            with partial:
                _chunks_back(block, rows, state, before)
        with builder.if_then(block.fresh):  # no gradient passes a restart
            code.store(code.widen(zeros), state.carry)

    code.emit.repeat(code.fields["states"], across)
    code.write(block.rows("d_x"), rows.result)


def _inside_back(block: _Block, rows: _Buffers) -> None:
    """Emit code for those terms of the gradients of x and of the kernel k in which input and output are in the same
    chunk.
    """
    code, builder, length = block.code, block.code.builder, block.code.spec.length

    def inside(c: ir.Value, sums: Row) -> Row:
        first, (steps, _) = code.times(c, length), block.steps_of(c)
        there = code.at(rows.d_y, first), block.kernel, code.at(rows.result, first)
        with builder.if_else(builder.icmp_signed("==", steps, I64(length))) as (whole, partial):
            with whole:
                code.convolve(*there, transposed=True)
            with partial:
                code.convolve_back(*there, steps)
        return code.correlate(code.at(rows.x, first), code.at(rows.d_y, first), sums)

    d_kernel = code.emit.loop(block.chunks, code.zeros(length), inside)
    code.add(d_kernel, code.at(code.fields["d_kernel"], code.times(block.unit, length)))


def _whole_back(code: ChunkEmitter, rows: _Buffers, state: _State, before: Row) -> None:
    """Emit code for the part of the gradients that passes from chunk to chunk through the states.

    The code computes all chunks of a full block at once.
    """
    length = code.spec.length
    step = code.round(state.power(length))
    states = _running(code, step, before, code.project(rows.x, state.into, I64(length), CHUNKS))
    code.gather(states, rows.d_y, I64(length), state.d_out)
    inputs = code.project(rows.d_y, state.out, I64(length), CHUNKS)[::-1]
    after = code.load(state.carry, PARTS)
    adjoints = _running(code, step, code.round(after), inputs, conjugate=True)[::-1]
    _jump(code, state, after, inputs, conjugate=True)
    code.expand(adjoints, state.into, I64(length), rows.result)
    code.gather(adjoints, rows.x, I64(length), state.d_into)
    d_power = code.zeros(PARTS)
    for h, adjoint in zip(states, adjoints, strict=True):
        d_power = code.product(h, adjoint, d_power, conjugate=True)
    state.add_to_power(d_power, length)


def _chunks_back(block: _Block, rows: _Buffers, state: _State, before: Row) -> None:
    """Emit code for the part of the gradients that passes from chunk to chunk through the states.

    The code computes one chunk after the other, also if the block is not full.
    """
    code, builder, length = block.code, block.code.builder, block.code.spec.length

    def kept(c: ir.Value) -> ir.Value:
        return code.at(rows.kept, code.times(c, PARTS))

    def again(c: ir.Value, now: Row) -> Row:
        """Emit code that stores the state before chunk c, and return the state after chunk c."""
        code.store(code.round(now), kept(c))
        steps, missing = block.steps_of(c)
        (given,) = code.project(code.at(rows.x, code.times(c, length)), code.at(state.into, missing), steps, 1)
        return code.product(state.power(steps), now, code.widen(given))

    def back(j: ir.Value) -> None:
        c = builder.sub(builder.sub(block.chunks, I64(1)), j)
        first, (steps, missing) = code.times(c, length), block.steps_of(c)
        x, d_y, d_x = (code.at(buffer, first) for buffer in (rows.x, rows.d_y, rows.result))
        h, after = code.load(kept(c), PARTS), code.load(state.carry, PARTS)
        adjoint = code.round(after)
        (given,) = code.project(d_y, state.out, steps, 1)
        code.store(code.product(state.power(steps), after, code.widen(given), conjugate=True), state.carry)
        code.gather([h], d_y, steps, state.d_out)
        code.expand([adjoint], code.at(state.into, missing), steps, d_x)
        code.gather([adjoint], x, steps, code.at(state.d_into, missing))
        state.add_to_power(code.product(h, adjoint, code.zeros(PARTS), conjugate=True), steps)

    code.emit.loop(block.chunks, code.widen(before), again)
    code.emit.repeat(block.chunks, back)


def _clear(code: ChunkEmitter, unit: ir.Value) -> None:
    """Emit code that sets all gradient sums of a work unit (one tile of one group of sequences) to zero.

    The thread that later adds to these sums runs the code.
    """
    length, states = code.spec.length, code.fields["states"]
    table = code.times(states, 2 * length * PARTS)
    vectors = {"d_tables": table, "d_tables_wide": table, "d_kernel": I64(length)}
    vectors["d_powers"] = code.times(states, (length + 1) * PARTS)
    for array, count in vectors.items():
        start = code.at(code.fields[array], code.times(unit, count))
        zeros = code.zeros(1) if start.type.pointee == code.types.vector else code.widen(code.zeros(1))

        def one(i: ir.Value, start: ir.Value = start, zeros: Row = zeros) -> None:
            code.store(zeros, code.at(start, i))

        code.emit.repeat(count, one)


def _flush(code: ChunkEmitter, unit: ir.Value) -> None:
    """Emit code that adds the float32 gradient sums of a work unit to its float64 sums, and then sets the float32 sums
    to zero.
    """
    count = code.times(code.fields["states"], 2 * code.spec.length * PARTS)

    def one(i: ir.Value) -> None:
        narrow, wide = (
            code.at(code.fields[name], code.times(unit, count), i) for name in ("d_tables", "d_tables_wide")
        )
        code.add(code.load(narrow), wide)
        code.store(code.zeros(1), narrow)

    code.emit.repeat(count, one)


def _pointers(spec: Spec) -> dict[str, ir.Type]:
    """Return the LLVM element type of each array that the kernel receives."""
    kinds = types(spec)
    scalars, counts = ("x", "y", "d_y", "d_x"), ("rows", "blocks")
    vectors = ("into", "out", "kernel", "checkpoints", "d_tables")
    wide = ("powers", "carry", "d_tables_wide", "d_kernel", "d_powers")
    held = ((scalars, kinds.scalar), (counts, I64), (vectors, kinds.vector), (wide, kinds.wide))
    return {name: kind for names, kind in held for name in names}


def build(spec: Spec) -> ir.Function:
    """Return the LLVM function of the kernel, which computes a range of work units.

    Each work unit is one tile (a vector of channels) of all sequences in one group, over all blocks of time.
    """
    builder, fields = kernel_entry(_pointers(spec))
    code = ChunkEmitter(builder, spec, fields)
    sizes = (code.steps, code.steps, code.steps, CHUNKS * PARTS) if spec.backward else (code.steps, code.steps)
    buffers = _Buffers(*(code.buffer(vectors) for vectors in sizes))

    def one_unit(unit: ir.Value) -> None:
        tile, group = builder.srem(unit, fields["tiles"]), builder.sdiv(unit, fields["tiles"])
        start, end = (
            builder.sdiv(code.times(edge, fields["batch"]), fields["groups"]) for edge in (group, code.sum(group, 1))
        )

        def one_sequence(j: ir.Value) -> None:
            batch = code.sum(start, j)
            head, tail = (builder.load(code.at(fields["rows"], batch, i)) for i in (0, 1))

            def one_block(k: ir.Value) -> None:
                number = builder.sub(builder.sub(tail, I64(1)), k) if spec.backward else code.sum(head, k)
                (_backward if spec.backward else _forward)(_Block(code, unit, tile, batch, number), buffers)
                if spec.backward and not spec.double:
                    with builder.if_then(builder.icmp_signed("==", builder.and_(number, I64(FLUSH - 1)), I64(0))):
                        _flush(code, unit)

            code.emit.repeat(builder.sub(tail, head), one_block)

        if spec.backward:
            _clear(code, unit)
        code.emit.repeat(builder.sub(end, start), one_sequence)
        if spec.backward and not spec.double:
            _flush(code, unit)

    return over_units(code.emit, one_unit, fence=spec.stream)
