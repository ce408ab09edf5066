"""CPU kernels of the fused layer: chunks of time, SIMD over channels, states never stored.

With the powers of the decay tabled once, L steps (a *chunk*) that start from the state h need no recurrence:

    y[t] = Σ_{s ≤ t} k[t-s] x[s] + Σ_i out[t, i] h[i]                 k[j] = Re Σ C a^j B, plus D at j = 0
    h'   = a^L h + Σ_s into[s] x[s]                                   into[s] = B a^(L-1-s),  out[t] = C a^(t+1)

which is a third cheaper than the recurrence step by step, and products of small matrices for every channel: a vector
holds one entry for VECTOR_BYTES of neighbouring channels. Four whole chunks (a *block*) go together, so that an entry
of a table is loaded once for four uses. States are carried from block to block in float64: within a block float32 has
no time to drift. The backward pass walks the blocks from the last to the first, finds the states of a block again from
the one kept before it, and sums the gradients of the *tables*; :mod:`.ssm_tables` makes those of decay, B and C
from them.

A state is ``PARTS`` real numbers at a time: two complex numbers (re, im, re, im) or four real ones. A *tile* is one
vector of channels.
"""

from __future__ import annotations

from llvmlite import ir

from stablessm.llvm.emitter import I64, VECTOR_BYTES
from stablessm.llvm.kernel import Kernel, compiled, kernel_entry
from stablessm.scan.cpu.chunk_emitter import CHUNKS, PARTS, ChunkEmitter, Row, Spec

FLUSH = 32
"""Blocks after which sums in float32 are added to those in float64; a power of two."""

_SHARED = (
    "units", "tiles", "groups", "batch", "channels", "states",
    "rows", "blocks",
    "x", "x_batch", "x_time",
    "into", "out", "kernel", "powers", "carry", "checkpoints", "checkpoints_batch", "checkpoints_time",
)  # fmt: skip
FORWARD_FIELDS = (*_SHARED, "y", "y_batch", "y_time")
BACKWARD_FIELDS = (
    *_SHARED, "d_y", "d_y_batch", "d_y_time", "d_x", "d_x_batch", "d_x_time",
    "d_tables", "d_tables_wide", "d_kernel", "d_powers",
)  # fmt: skip
"""A kernel's arguments: counts (``states``: of PARTS), addresses, strides in bytes.

A unit is one tile of one group of sequences. ``blocks`` lists (first step, steps, restarts here), those of sequence b
from ``rows[b]`` on. Arrays, each in vectors of channels; those after the bar in float64:

    into, out    (tiles, states, L, PARTS)              | powers       (tiles, states, L + 2, PARTS): a^0 … a^L, a^(4 L)
    kernel       (tiles, L)                             | carry        (batch, tiles, states, PARTS): h, or its adjoint
    checkpoints  (batch, time, tiles, states, PARTS)    | d_kernel     (units, L)
    d_tables     (units, 2, states, L, PARTS)           | d_powers     (units, states, L + 1, PARTS)
                                                        | d_tables_wide as d_tables
"""


class _Block:
    """One block of one tile: where its rows and tables are."""

    def __init__(self, code: ChunkEmitter, unit: ir.Value, tile: ir.Value, batch: ir.Value, block: ir.Value) -> None:
        self.code, self.unit, self.tile, self.batch = code, unit, tile, batch
        length = code.spec.length
        entry = code.sum(code.fields["blocks"], code.times(block, 24))
        self.first, self.steps, restarts = (code.load_count(code.sum(entry, 8 * i)) for i in range(3))
        self.fresh = code.builder.icmp_signed("!=", restarts, I64(0))
        self.whole = code.builder.icmp_signed("==", self.steps, I64(code.steps))
        self.chunks = code.builder.sdiv(code.sum(self.steps, length - 1), I64(length))
        self.kernel = code.sum(code.fields["kernel"], code.times(tile, length * VECTOR_BYTES))

    def steps_of(self, chunk: ir.Value) -> tuple[ir.Value, ir.Value]:
        """How many steps a chunk has, and how many bytes of a table its missing steps would take."""
        builder, length = self.code.builder, self.code.spec.length
        left = builder.sub(self.steps, self.code.times(chunk, length))
        steps = builder.select(builder.icmp_signed("<", left, I64(length)), left, I64(length))
        return steps, self.code.times(builder.sub(I64(length), steps), PARTS * VECTOR_BYTES)

    def read(self, array: str, buffer: ir.Value) -> None:
        """The block's rows of an array, into a buffer."""
        self.code.read(*self._rows(array), buffer, self.steps)

    def write(self, buffer: ir.Value, array: str) -> None:
        """A buffer, into the block's rows of an array."""
        self.code.write(*self._rows(array), buffer, self.steps)

    def _rows(self, array: str) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Address, stride, and how many channels are left from the first of this tile on."""
        code, fields = self.code, self.code.fields
        stride = fields[f"{array}_time"]
        column = code.times(self.tile, VECTOR_BYTES)
        start = code.sum(code.times(self.batch, fields[f"{array}_batch"]), code.times(self.first, stride), column)
        left = code.builder.sub(fields["channels"], code.times(self.tile, code.lanes))
        return code.sum(fields[array], start), stride, left

    def clear(self, buffer: ir.Value) -> None:
        """Zeros in the last chunk, which may have steps that the sequence does not have."""
        length = self.code.spec.length
        last = self.code.times(self.code.builder.sub(self.chunks, I64(1)), length * VECTOR_BYTES)
        self.code.store(self.code.zeros(length), self.code.sum(buffer, last))


class _State:
    """PARTS states of a block: their rows of the tables, and the state that is carried."""

    def __init__(self, block: _Block, state: ir.Value) -> None:
        code, fields, length = block.code, block.code.fields, block.code.spec.length
        self.code, self._fields = code, fields
        self._power_bytes = PARTS * code.wide_bytes
        here = code.sum(code.times(block.tile, fields["states"]), state)
        self.into, self.out = (self._row(name, here, length * VECTOR_BYTES) for name in ("into", "out"))
        self._powers = self._row("powers", here, (length + 2) * code.wide_bytes)
        sequence = code.times(block.batch, fields["tiles"], fields["states"])
        self.carry = self._row("carry", code.sum(sequence, here), code.wide_bytes)
        self.checkpoint = code.sum(
            self._row("checkpoints", here, VECTOR_BYTES),
            code.times(block.batch, fields["checkpoints_batch"]),
            code.times(code.builder.sdiv(block.first, I64(code.steps)), fields["checkpoints_time"]),
        )
        if code.spec.backward:
            table = code.times(block.unit, 2, fields["states"])
            self.d_into = self._row("d_tables", code.sum(table, state), length * VECTOR_BYTES)
            self.d_out = self._row("d_tables", code.sum(table, fields["states"], state), length * VECTOR_BYTES)
            unit = code.sum(code.times(block.unit, fields["states"]), state)
            self._d_powers = self._row("d_powers", unit, (length + 1) * code.wide_bytes)

    def _row(self, name: str, index: ir.Value, size: int) -> ir.Value:
        return self.code.sum(self._fields[name], self.code.times(index, PARTS * size))

    def power(self, exponent: ir.Value | int) -> Row:
        """a**exponent, or a**(CHUNKS L) for L + 1, in float64."""
        return self.code.load_wide(self.code.sum(self._powers, self.code.times(exponent, self._power_bytes)), PARTS)

    def add_to_power(self, gradient: Row, exponent: ir.Value | int) -> None:
        """Add to the gradient of a**exponent."""
        self.code.add(gradient, self.code.sum(self._d_powers, self.code.times(exponent, self._power_bytes)))


def _running(code: ChunkEmitter, step: Row, start: Row, inputs: list[Row], *, conjugate: bool = False) -> list[Row]:
    """start, then h = step h + input for each input but the last: what each chunk starts from."""
    states = [start]
    for given in inputs[:-1]:
        states.append(code.product(step, states[-1], given, conjugate=conjugate))
    return states


def _jump(code: ChunkEmitter, state: _State, before: Row, inputs: list[Row], *, conjugate: bool = False) -> None:
    """Carry the state over a whole block, in float64; only what the inputs add is summed in float32."""
    length = code.spec.length
    step = code.round(state.power(length))
    added = inputs[0]
    for given in inputs[1:]:
        added = code.product(step, added, given, conjugate=conjugate)
    after = code.product(state.power(length + 1), before, code.widen(added), conjugate=conjugate)
    code.store_wide(after, state.carry)


def _forward(block: _Block, x: ir.Value, y: ir.Value) -> None:
    code, builder, length = block.code, block.code.builder, block.code.spec.length
    chunk_bytes = length * VECTOR_BYTES
    block.read("x", x)

    def inside(c: ir.Value, _: Row) -> Row:
        offset = code.times(c, chunk_bytes)
        code.convolve(code.sum(x, offset), block.kernel, code.sum(y, offset), transposed=False)
        return []

    code.emit.loop(block.chunks, [], inside)

    def across(i: ir.Value, _: Row) -> Row:
        state = _State(block, i)
        with builder.if_else(block.fresh) as (restart, go_on):
            with restart:
                code.store_wide(code.widen(code.zeros(PARTS)), state.carry)
            with go_on:
                code.store(code.round(code.load_wide(state.carry, PARTS)), state.checkpoint)

        def chunk(c: ir.Value, _: Row) -> Row:
            offset, (steps, missing) = code.times(c, chunk_bytes), block.steps_of(c)
            before = code.load_wide(state.carry, PARTS)
            (given,) = code.project(code.sum(x, offset), code.sum(state.into, missing), steps, 1)
            code.expand([code.round(before)], state.out, steps, code.sum(y, offset))
            code.store_wide(code.product(state.power(steps), before, code.widen(given)), state.carry)
            return []

        with builder.if_else(block.whole) as (whole, partial):
            with whole:
                before = code.load_wide(state.carry, PARTS)
                inputs = code.project(x, state.into, I64(length), CHUNKS)
                states = _running(code, code.round(state.power(length)), code.round(before), inputs)
                _jump(code, state, before, inputs)
                code.expand(states, state.out, I64(length), y)
            with partial:
                code.emit.loop(block.chunks, [], chunk)
        return []

    code.emit.loop(code.fields["states"], [], across)
    block.write(y, "y")


def _backward(block: _Block, x: ir.Value, d_y: ir.Value, d_x: ir.Value, kept: ir.Value) -> None:
    code, builder, length = block.code, block.code.builder, block.code.spec.length
    chunk_bytes, part_bytes = length * VECTOR_BYTES, PARTS * VECTOR_BYTES
    for array, buffer in (("x", x), ("d_y", d_y)):
        block.clear(buffer)
        block.read(array, buffer)

    def inside(c: ir.Value, sums: Row) -> Row:
        offset, (steps, _) = code.times(c, chunk_bytes), block.steps_of(c)
        there = code.sum(d_y, offset), block.kernel, code.sum(d_x, offset)
        with builder.if_else(builder.icmp_signed("==", steps, I64(length))) as (whole, partial):
            with whole:
                code.convolve(*there, transposed=True)
            with partial:
                code.convolve_back(*there, steps)
        return code.correlate(code.sum(x, offset), code.sum(d_y, offset), sums)

    d_kernel = code.emit.loop(block.chunks, code.zeros(length), inside)
    code.add(d_kernel, code.sum(code.fields["d_kernel"], code.times(block.unit, length * code.wide_bytes)))

    def across(i: ir.Value, _: Row) -> Row:
        state = _State(block, i)
        zeros = code.zeros(PARTS)
        kept_before = code.load(state.checkpoint, PARTS)
        before = [builder.select(block.fresh, zero, h) for zero, h in zip(zeros, kept_before, strict=True)]

        def again(c: ir.Value, now: Row) -> Row:
            """The state before each chunk, once more."""
            code.store(code.round(now), code.sum(kept, code.times(c, part_bytes)))
            steps, missing = block.steps_of(c)
            rows = code.sum(x, code.times(c, chunk_bytes))
            (given,) = code.project(rows, code.sum(state.into, missing), steps, 1)
            return code.product(state.power(steps), now, code.widen(given))

        def back(j: ir.Value, _: Row) -> Row:
            c = builder.sub(builder.sub(block.chunks, I64(1)), j)
            offset, (steps, missing) = code.times(c, chunk_bytes), block.steps_of(c)
            h = code.load(code.sum(kept, code.times(c, part_bytes)), PARTS)
            after = code.load_wide(state.carry, PARTS)
            adjoint = code.round(after)
            (given,) = code.project(code.sum(d_y, offset), state.out, steps, 1)
            code.store_wide(code.product(state.power(steps), after, code.widen(given), conjugate=True), state.carry)
            code.gather([h], code.sum(d_y, offset), steps, state.d_out)
            code.expand([adjoint], code.sum(state.into, missing), steps, code.sum(d_x, offset))
            code.gather([adjoint], code.sum(x, offset), steps, code.sum(state.d_into, missing))
            state.add_to_power(code.product(h, adjoint, zeros, conjugate=True), steps)
            return []

        with builder.if_else(block.whole) as (whole, partial):
            with whole:
                step = code.round(state.power(length))
                states = _running(code, step, before, code.project(x, state.into, I64(length), CHUNKS))
                code.gather(states, d_y, I64(length), state.d_out)
                inputs = code.project(d_y, state.out, I64(length), CHUNKS)[::-1]
                after = code.load_wide(state.carry, PARTS)
                adjoints = _running(code, step, code.round(after), inputs, conjugate=True)[::-1]
                _jump(code, state, after, inputs, conjugate=True)
                code.expand(adjoints, state.into, I64(length), d_x)
                code.gather(adjoints, x, I64(length), state.d_into)
                d_power = zeros
                for h, adjoint in zip(states, adjoints, strict=True):
                    d_power = code.product(h, adjoint, d_power, conjugate=True)
                state.add_to_power(d_power, length)
            with partial:
                code.emit.loop(block.chunks, code.widen(before), again)
                code.emit.loop(block.chunks, [], back)
        with builder.if_then(block.fresh):  # nothing goes back past a restart
            code.store_wide(code.widen(zeros), state.carry)
        return []

    code.emit.loop(code.fields["states"], [], across)
    block.write(d_x, "d_x")


def _clear(code: ChunkEmitter, unit: ir.Value) -> None:
    """Zeros in all sums of a unit: its thread will want them in its cache."""
    length, wide = code.spec.length, code.wide_bytes // VECTOR_BYTES
    table, powers = (code.times(code.fields["states"], rows * PARTS) for rows in (2 * length, length + 1))

    def fill(array: str, vectors: ir.Value) -> None:
        def one(i: ir.Value, _: Row) -> Row:
            index = code.sum(code.times(unit, vectors), i)
            code.store(code.zeros(1), code.sum(code.fields[array], code.times(index, VECTOR_BYTES)))
            return []

        code.emit.loop(vectors, [], one)

    fill("d_tables", table)
    fill("d_tables_wide", code.times(table, wide))
    fill("d_kernel", I64(length * wide))
    fill("d_powers", code.times(powers, wide))


def _flush(code: ChunkEmitter, unit: ir.Value) -> None:
    """Add the sums in float32 to those in float64, and start them anew."""
    count = code.times(code.fields["states"], 2 * code.spec.length * PARTS)

    def one(i: ir.Value, _: Row) -> Row:
        index = code.sum(code.times(unit, count), i)
        narrow = code.sum(code.fields["d_tables"], code.times(index, VECTOR_BYTES))
        code.add(code.load(narrow), code.sum(code.fields["d_tables_wide"], code.times(index, code.wide_bytes)))
        code.store(code.zeros(1), narrow)
        return []

    code.emit.loop(count, [], one)


def _build(spec: Spec) -> ir.Function:
    """The kernel, over a range of units: every block of every sequence of a unit, in order or from the last on."""
    name = "ssm_" + "_".join(str(int(option)) for option in spec)
    builder, fields, first, last = kernel_entry(name, BACKWARD_FIELDS if spec.backward else FORWARD_FIELDS)
    code = ChunkEmitter(builder, spec, fields)
    buffers = [code.buffer(code.steps) for _ in range(3 if spec.backward else 2)]
    if spec.backward:
        buffers.append(code.buffer(CHUNKS * PARTS))

    def one_unit(i: ir.Value, _: Row) -> Row:
        unit = code.sum(first, i)
        tile, group = builder.srem(unit, fields["tiles"]), builder.sdiv(unit, fields["tiles"])
        start, end = (
            builder.sdiv(code.times(edge, fields["batch"]), fields["groups"]) for edge in (group, code.sum(group, 1))
        )

        def one_sequence(j: ir.Value, _: Row) -> Row:
            batch = code.sum(start, j)
            row = code.sum(fields["rows"], code.times(batch, 8))
            head, tail = code.load_count(row), code.load_count(code.sum(row, 8))

            def one_block(k: ir.Value, _: Row) -> Row:
                number = builder.sub(builder.sub(tail, I64(1)), k) if spec.backward else code.sum(head, k)
                (_backward if spec.backward else _forward)(_Block(code, unit, tile, batch, number), *buffers)
                if spec.backward and not spec.double:
                    with builder.if_then(builder.icmp_signed("==", builder.and_(number, I64(FLUSH - 1)), I64(0))):
                        _flush(code, unit)
                return []

            code.emit.loop(builder.sub(tail, head), [], one_block)
            return []

        if spec.backward:
            _clear(code, unit)
        code.emit.loop(builder.sub(end, start), [], one_sequence)
        if spec.backward and not spec.double:
            _flush(code, unit)
        return []

    code.emit.loop(builder.sub(last, first), [], one_unit)
    builder.fence("seq_cst")  # stores that bypass the cache are not ordered otherwise
    builder.ret_void()
    return builder.function


def get_kernel(spec: Spec) -> Kernel:
    """The kernel for ``spec``, compiled the first time it is asked for."""
    return compiled(_build, spec)
