"""CPU kernels of the selective layer: channels in SIMD vectors, states in the cache, only checkpoints in memory.

A *unit* is one *tile* (a vector of channels) of one sequence. The N states of a unit are N vectors, which stay in the
cache. The forward pass divides time into *cells* of K steps and stores the state before every cell (a checkpoint). The
backward pass visits the cells from the last to the first: it recomputes the states and decays of a cell from its
checkpoint, and then computes the gradients of the cell.

The gradients of B and C are sums over channels. Each unit sums over the channels of its tile, for ``lanes`` states at
once (:func:`_summed`). The caller adds the sums of the tiles, so that no two units write to the same number.

The field ``ends`` (batch,) of a kernel is the number of real steps of each sequence, and ``reset`` (batch, time) bytes
or 0. ``padded`` is the number of states rounded up to whole vectors. Arrays of vectors: A (tiles, N), state (batch,
tiles, N), checkpoints (batch, cells, tiles, N), d_A (batch, tiles, N). d_B and d_C are (tiles, batch, time, padded).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir

from stablessm.llvm.emitter import I64, VECTOR_BYTES
from stablessm.llvm.kernel import kernel_entry, over_units
from stablessm.scan.cpu.unit_emitter import UnitEmitter


class Spec(NamedTuple):
    """The options of a CPU kernel of the selective layer, which are compiled into the kernel as constants."""

    backward: bool
    double: bool
    below_one: bool
    complex: bool = False
    stream: bool = False

    @property
    def lanes(self) -> int:
        """Return the number of channels in one SIMD vector of the kernel's dtype."""
        return VECTOR_BYTES // (8 if self.double else 4)


class _Unit(UnitEmitter):
    """Emits addresses and the recurrence of one unit: one sequence and one tile (a vector of channels)."""

    def __init__(self, builder: ir.IRBuilder, spec: Spec, fields: dict[str, ir.Value], buffers: dict[str, ir.Value]):
        super().__init__(builder, spec, spec.lanes, fields)
        self.buffers, self.spec, self.tile = buffers, spec, I64(0)

    def vector(self, start: ir.Value, *index: ir.Value | int) -> ir.Value:
        """Return the address of one vector in the array of vectors at the address ``start``.

        The index of the vector is the sum of the numbers in ``index``.
        """
        return self.emit.at(start, self.emit.times(self.emit.sum(*index), self.lanes))

    def load(self, start: ir.Value, *index: ir.Value | int) -> ir.Value:
        """Emit code that loads one vector from the array of vectors at the address ``start``, and return the vector.

        The index of the vector is the sum of the numbers in ``index``.
        """
        return self.emit.load(self.vector(start, *index), self.lanes)

    def buffer(self, name: str, *index: ir.Value | int) -> ir.Value:
        """Return the address of one vector in the stack buffer ``name``.

        The index of the vector is the sum of the numbers in ``index``.
        """
        return self.vector(self.buffers[name], *index)

    def row(self, name: str, t: ir.Value) -> ir.Value:
        """Return the address of this tile's channels at step t, in the array ``name`` (batch, time, channel)."""
        return self.emit.at(self.step_of(name, t), self.emit.times(self.tile, self.lanes))

    def everywhere(self, name: str, t: ir.Value, n: ir.Value) -> ir.Value:
        """Return a vector in which every element is B[t, n] (``name`` "B") or C[t, n] (``name`` "C")."""
        return self.emit.broadcast(self.emit.at(self.step_of(name, t), n), self.lanes)

    def states_of(self, name: str, *index: ir.Value) -> ir.Value:
        """Return the address of this tile's N state vectors in the array ``name``.

        The shape of the array is (batch, tiles, N) or, if ``index`` is the number of a cell, (batch, cells, tiles, N).
        """
        emit, place = self.emit, self.batch
        for size, number in zip(("cells",) * len(index), index, strict=True):
            place = emit.sum(emit.times(place, self.fields[size]), number)
        place = emit.sum(emit.times(place, self.fields["tiles"]), self.tile)
        return self.vector(self.fields[name], emit.times(place, self.fields["states"]))

    def copy_states(self, source: ir.Value, target: ir.Value) -> None:
        """Emit code that copies the N state vectors at the address ``source`` to the address ``target``."""
        self.repeat(self.fields["states"], lambda n: self.emit.store(self.load(source, n), self.vector(target, n)))

    def clear(self, name: str, count: ir.Value) -> None:
        """Emit code that sets the first ``count`` vectors of the buffer ``name`` to zero."""
        self.repeat(count, lambda n: self.emit.store(self.zero(), self.buffer(name, n)))

    def step(self, t: ir.Value, kept: Callable[[ir.Value, ir.Value, ir.Value], None] | None) -> ir.Value:
        """Emit code for h = exp(delta A) h + delta B x for the states in the buffer ``h``, and return Σ_n C h.

        If ``kept`` is given, ``kept(n, before, decay)`` is called for every state n, with the state before the step and
        the decay of the step; the result is then zero.
        """
        emit, b = self.emit, self.b
        A = self.vector(self.fields["A"], emit.times(self.tile, self.fields["states"]))
        delta, x = (emit.load(self.row(name, t), self.lanes) for name in ("delta", "x"))
        drive, cut = b.fmul(delta, x), self.restarts(t)

        def one(n: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            before = b.select(cut, self.zero(), self.load(self.buffers["h"], n))
            exponent = b.fmul(delta, self.load(A, n))
            decay = self.math.exp(self.math.negative(exponent) if self.spec.below_one else exponent)
            if kept is not None:
                kept(n, before, decay)
            after = emit.multiply_add(decay, before, b.fmul(drive, self.everywhere("B", t, n)))
            emit.store(after, self.buffer("h", n))
            return [emit.multiply_add(after, self.everywhere("C", t, n), sums[0])] if kept is None else sums

        (total,) = emit.loop(self.fields["states"], [self.zero()], one)
        return total


def _forward(unit: _Unit) -> None:
    """Emit code for the forward pass of one unit: one sequence and one tile (a vector of channels)."""
    f, b, emit = unit.fields, unit.b, unit.emit
    steps = b.load(emit.at(f["ends"], unit.batch))
    unit.copy_states(unit.states_of("state"), unit.buffers["h"])

    def one(t: ir.Value) -> None:
        with b.if_then(b.icmp_signed("==", b.srem(t, f["cell"]), I64(0))):
            unit.copy_states(unit.buffers["h"], unit.states_of("checkpoints", b.sdiv(t, f["cell"])))
        emit.store(unit.step(t, None), unit.row("y", t))

    unit.repeat(steps, one)
    unit.copy_states(unit.buffers["h"], unit.states_of("state"))


def _backward(unit: _Unit) -> None:
    """Emit code for the backward pass of one unit: one sequence and one tile (a vector of channels).

    Later steps contribute to the gradient with respect to the state; the buffer ``carry`` contains their contribution.
    """
    f, b, emit = unit.fields, unit.b, unit.emit
    steps = b.load(emit.at(f["ends"], unit.batch))
    unit.copy_states(unit.states_of("state"), unit.buffers["carry"])
    cells = b.sdiv(emit.sum(steps, f["cell"], -1), f["cell"])

    def one_cell(k: ir.Value) -> None:
        number = b.sub(b.sub(cells, I64(1)), k)
        first = emit.times(number, f["cell"])
        rest = b.sub(steps, first)
        count = b.select(b.icmp_signed("<", rest, f["cell"]), rest, f["cell"])
        unit.copy_states(unit.states_of("checkpoints", number), unit.buffers["h"])

        def again(i: ir.Value) -> None:
            def keep(n: ir.Value, before: ir.Value, decay: ir.Value) -> None:
                place = emit.sum(emit.times(i, f["states"]), n)
                emit.store(before, unit.buffer("before", place))
                emit.store(decay, unit.buffer("decay", place))

            unit.step(emit.sum(first, i), keep)

        unit.repeat(count, again)
        unit.clear("d_A", f["states"])
        unit.repeat(count, lambda j: _adjoint(unit, first, b.sub(b.sub(count, I64(1)), j)))
        total = unit.states_of("d_A")
        unit.repeat(
            f["states"],
            lambda n: emit.store(b.fadd(unit.load(total, n), unit.load(unit.buffers["d_A"], n)), unit.vector(total, n)),
        )

    unit.repeat(cells, one_cell)
    unit.copy_states(unit.buffers["carry"], unit.states_of("state"))


def _adjoint(unit: _Unit, first: ir.Value, i: ir.Value) -> None:
    """Emit code for the backward pass of one time step.

    The time step is ``first`` + ``i``, where ``first`` is the first step of a cell.
    """
    f, b, emit = unit.fields, unit.b, unit.emit
    t = emit.sum(first, i)
    delta, x, d_y = (emit.load(unit.row(name, t), unit.lanes) for name in ("delta", "x", "d_y"))
    drive, cut = b.fmul(delta, x), unit.restarts(t)
    A = unit.vector(f["A"], emit.times(unit.tile, f["states"]))

    def one(n: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        place = emit.sum(emit.times(i, f["states"]), n)
        before, decay = unit.load(unit.buffers["before"], place), unit.load(unit.buffers["decay"], place)
        B, C = unit.everywhere("B", t, n), unit.everywhere("C", t, n)
        adjoint = emit.multiply_add(d_y, C, unit.load(unit.buffers["carry"], n))
        after = emit.multiply_add(decay, before, b.fmul(drive, B))
        emit.store(b.fmul(adjoint, drive), unit.buffer("d_B", n))
        emit.store(b.fmul(d_y, after), unit.buffer("d_C", n))
        carried = b.fmul(adjoint, decay)
        emit.store(b.select(cut, unit.zero(), carried), unit.buffer("carry", n))
        d_exponent = b.fmul(carried, before)
        d_A = unit.buffer("d_A", n)
        emit.store(emit.multiply_add(d_exponent, delta, emit.load(d_A, unit.lanes)), d_A)
        return [emit.multiply_add(adjoint, B, sums[0]), emit.multiply_add(d_exponent, unit.load(A, n), sums[1])]

    d_drive, d_delta = emit.loop(f["states"], [unit.zero(), unit.zero()], one)
    emit.store(b.fmul(d_drive, delta), unit.row("d_x", t))
    emit.store(emit.multiply_add(d_drive, x, d_delta), unit.row("d_delta", t))
    place = emit.sum(emit.times(unit.tile, f["sums_tile"]), emit.times(unit.batch, f["sums_batch"]))
    place = emit.sum(place, emit.times(t, f["sums_time"]))
    for name in ("d_B", "d_C"):

        def some(k: ir.Value, name: str = name) -> None:
            start = emit.times(k, unit.lanes)
            parts = [unit.load(unit.buffers[name], start, number) for number in range(unit.lanes)]
            emit.store(_summed(b, parts), emit.at(f[name], place, start))

        unit.repeat(b.sdiv(f["padded"], I64(unit.lanes)), some)


def _summed(b: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """Return a vector whose element i is the sum of all elements of ``vectors[i]``.

    The number of vectors must be the number of elements of a vector. In each round, every two neighboring vectors are
    replaced by one vector, which contains the sums of neighboring pairs of elements of the first and then of the second
    vector.
    """
    lanes = len(vectors)
    masks = [ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(side, 2 * lanes, 2))) for side in (0, 1)]
    while len(vectors) > 1:
        vectors = [
            b.fadd(*(b.shuffle_vector(u, v, mask) for mask in masks))
            for u, v in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def build(spec: Spec) -> ir.Function:
    """Return the LLVM function of the kernel, which computes a range of work units.

    Each work unit is one tile (a vector of channels) of one sequence.
    """
    scalar = ir.DoubleType() if spec.double else ir.FloatType()
    arrays = ("x", "delta", "A", "B", "C", "state", "checkpoints", "y", "d_y", "d_x", "d_delta", "d_A", "d_B", "d_C")
    pointers = dict.fromkeys(arrays, scalar) | {"ends": I64, "reset": ir.IntType(8)}
    builder, fields = kernel_entry(pointers)
    states, padded = fields["states"], fields["padded"]
    sizes = {"h": states}
    if spec.backward:
        steps = builder.mul(states, fields["cell"])
        sizes |= {"carry": states, "d_A": states, "d_B": padded, "d_C": padded, "before": steps, "decay": steps}
    buffers = {}
    for name, size in sizes.items():
        buffers[name] = builder.alloca(scalar, builder.mul(size, I64(spec.lanes)))
        buffers[name].align = VECTOR_BYTES
    unit = _Unit(builder, spec, fields, buffers)
    if spec.backward:  # states beyond N have no gradient
        for name in ("d_B", "d_C"):
            unit.clear(name, padded)

    def one_unit(number: ir.Value) -> None:
        unit.batch, unit.tile = builder.sdiv(number, fields["tiles"]), builder.srem(number, fields["tiles"])
        (_backward if spec.backward else _forward)(unit)

    return over_units(unit.emit, one_unit)
