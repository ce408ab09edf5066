"""CPU kernels of the gated recurrence: gates and states in one pass over the inputs, with channels in SIMD vectors.

h[t] = h[t-1] + f (h[t-1] - c[t]) with f = exp(rate softplus(z[t])) - 1, which is a h[t-1] + (1 - a) c[t] for a = 1 + f.
A *unit* is one sequence and one group of tiles (vectors of channels); its time steps are the outer loop, so that memory
is read in order. The last tile ends at the last channel and may overlap the tile before it, with the same results. The
backward pass computes the gates again from z.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir

from stablessm.llvm.emitter import I64, VECTOR_BYTES, Emitter
from stablessm.llvm.kernel import kernel_entry
from stablessm.llvm.vector_functions import VectorMath

_SHARED = (
    "units", "groups", "tiles", "channels", "steps", "rate", "initial", "reset", "reset_batch", "reset_time",
    "z", "z_batch", "z_time", "c", "c_batch", "c_time", "states", "states_batch", "states_time",
)  # fmt: skip
FORWARD_FIELDS = _SHARED
BACKWARD_FIELDS = (
    *_SHARED, "grad", "grad_batch", "grad_time", "d_z", "d_z_batch", "d_z_time", "d_c", "d_c_batch", "d_c_time",
    "d_rate", "d_initial",
)  # fmt: skip
"""The arguments of a kernel: counts, addresses, and strides in scalars. ``rate`` is (channels,), ``initial`` and
``d_initial`` (batch, channels), ``reset`` (batch, time) bytes or 0, and ``d_rate`` (batch, tiles) vectors."""


class Spec(NamedTuple):
    """The options of a CPU kernel of the gated recurrence."""

    backward: bool
    double: bool
    below_one: bool
    complex: bool = False
    stream: bool = False

    @property
    def lanes(self) -> int:
        """Return the number of channels in a SIMD vector."""
        return VECTOR_BYTES // (8 if self.double else 4)


class _Code:
    """Emits the address computations and the gate of one tile (vector of channels) at one time step."""

    def __init__(self, builder: ir.IRBuilder, spec: Spec, fields: dict[str, ir.Value], buffer: ir.Value) -> None:
        self.emit, self.b, self.fields, self.buffer = Emitter(builder, spec), builder, fields, buffer
        self.lanes, self.math, self.spec = spec.lanes, VectorMath(Emitter(builder, spec), spec.lanes), spec
        self.batch = I64(0)

    def repeat(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Emit a loop whose body is ``body(i)``, for i in range(count)."""

        def one(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            body(i)
            return []

        self.emit.loop(count, [], one)

    def channel(self, tile: ir.Value) -> ir.Value:
        """Return the index of the first channel of a tile; the last tile ends at the last channel."""
        first, last = self.emit.times(tile, self.lanes), self.b.sub(self.fields["channels"], I64(self.lanes))
        return self.b.select(self.b.icmp_signed("<", first, last), first, last)

    def at(self, name: str, t: ir.Value, tile: ir.Value) -> ir.Value:
        """Return the address of a tile's channels at step t, in an array (batch, time, channel)."""
        f, emit = self.fields, self.emit
        start = emit.at(f[name], emit.times(self.batch, f[f"{name}_batch"]), emit.times(t, f[f"{name}_time"]))
        return emit.at(start, self.channel(tile))

    def of_batch(self, name: str, tile: ir.Value) -> ir.Value:
        """Return the address of a tile's channels in an array (batch, channel)."""
        row = self.emit.times(self.batch, self.fields["channels"])
        return self.emit.at(self.fields[name], row, self.channel(tile))

    def load(self, pointer: ir.Value) -> ir.Value:
        """Emit the load of one vector of channels."""
        return self.emit.load(pointer, self.lanes)

    def carry(self, tile: ir.Value, which: int = 0) -> ir.Value:
        """Return the address of a vector that a tile keeps from one time step to the next."""
        place = self.emit.sum(self.emit.times(tile, 2), which)
        return self.emit.at(self.buffer, self.emit.times(place, self.lanes))

    def restarts(self, t: ir.Value) -> ir.Value:
        """Return a condition that is true if a reset makes the state before step t zero."""
        f, b = self.fields, self.b
        given = b.icmp_signed("!=", b.ptrtoint(f["reset"], I64), I64(0))
        with b.if_else(given) as (yes, no):
            with yes:
                place = self.emit.sum(
                    self.emit.times(self.batch, f["reset_batch"]), self.emit.times(t, f["reset_time"])
                )
                cut, here = b.icmp_signed("!=", b.load(self.emit.at(f["reset"], place)), ir.IntType(8)(0)), b.block
            with no:
                there = b.block
        found = b.phi(ir.IntType(1))
        found.add_incoming(cut, here)
        found.add_incoming(ir.IntType(1)(0), there)
        return found

    def gate(self, z: ir.Value, tile: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Emit code for rate, softplus(z) and f = exp(rate softplus(z)) - 1, and return the three values."""
        rate, opened = self.load(self.emit.at(self.fields["rate"], self.channel(tile))), self.math.softplus(z)
        change = self.math.expm1(self.b.fmul(rate, opened))
        return rate, opened, self.math.negative(change) if self.spec.below_one else change

    def zero(self) -> ir.Constant:
        """Return a vector of zeros."""
        return self.emit.constant(self.lanes, (0.0,))


def _forward(code: _Code, tile_of: Callable[[ir.Value], ir.Value], tiles: ir.Value) -> None:
    b, emit, f = code.b, code.emit, code.fields
    code.repeat(tiles, lambda i: emit.store(code.load(code.of_batch("initial", tile_of(i))), code.carry(i)))

    def one(t: ir.Value) -> None:
        cut = code.restarts(t)

        def each(i: ir.Value) -> None:
            tile = tile_of(i)
            z, c = code.load(code.at("z", t, tile)), code.load(code.at("c", t, tile))
            before = b.select(cut, code.zero(), code.load(code.carry(i)))
            _, _, change = code.gate(z, tile)
            after = emit.multiply_add(change, b.fsub(before, c), before)
            emit.store(after, code.carry(i))
            emit.store(after, code.at("states", t, tile))

        code.repeat(tiles, each)

    code.repeat(f["steps"], one)


def _clear(code: _Code, tiles: ir.Value, which: int) -> None:
    code.repeat(tiles, lambda i: code.emit.store(code.zero(), code.carry(i, which)))


def _backward(code: _Code, tile_of: Callable[[ir.Value], ir.Value], tiles: ir.Value) -> None:
    b, emit, f = code.b, code.emit, code.fields
    _clear(code, tiles, 0)  # the gradient of the state, from the later step
    _clear(code, tiles, 1)  # the sum for the gradient of the rate

    def one(k: ir.Value) -> None:
        t = b.sub(b.sub(f["steps"], I64(1)), k)
        cut, first = code.restarts(t), b.icmp_signed("==", t, I64(0))

        def each(i: ir.Value) -> None:
            tile = tile_of(i)
            z, c, grad = (code.load(code.at(name, t, tile)) for name in ("z", "c", "grad"))
            earlier = b.select(first, code.of_batch("initial", tile), code.at("states", b.sub(t, I64(1)), tile))
            before = b.select(cut, code.zero(), code.load(earlier))
            rate, opened, change = code.gate(z, tile)
            adjoint = b.fadd(grad, code.load(code.carry(i)))
            carried = emit.multiply_add(adjoint, change, adjoint)
            emit.store(b.select(cut, code.zero(), carried), code.carry(i))
            emit.store(b.fneg(b.fmul(change, adjoint)), code.at("d_c", t, tile))
            d_exponent = b.fmul(carried, b.fsub(before, c))
            d_z = b.fmul(b.fmul(d_exponent, rate), code.math.sigmoid(z))
            emit.store(d_z, code.at("d_z", t, tile))
            total = code.load(code.carry(i, 1))
            emit.store(emit.multiply_add(d_exponent, opened, total), code.carry(i, 1))

        code.repeat(tiles, each)

    code.repeat(f["steps"], one)

    def store(i: ir.Value) -> None:
        tile = tile_of(i)
        emit.store(code.load(code.carry(i)), code.of_batch("d_initial", tile))
        place = emit.sum(emit.times(code.batch, f["tiles"]), tile)
        emit.store(code.load(code.carry(i, 1)), emit.at(f["d_rate"], emit.times(place, code.lanes)))

    code.repeat(tiles, store)


def build(spec: Spec) -> ir.Function:
    """Return the LLVM function of the kernel, which computes a range of units."""
    names = BACKWARD_FIELDS if spec.backward else FORWARD_FIELDS
    scalar = ir.DoubleType() if spec.double else ir.FloatType()
    arrays = ("rate", "initial", "z", "c", "states", "grad", "d_z", "d_c", "d_rate", "d_initial")
    pointers = dict.fromkeys(arrays, scalar) | {"reset": ir.IntType(8)}
    name = "gated_" + "_".join(str(int(option)) for option in spec)
    builder, fields, first, last = kernel_entry(name, names, pointers)
    buffer = builder.alloca(scalar, builder.mul(fields["tiles"], I64(2 * spec.lanes)))
    buffer.align = VECTOR_BYTES
    code = _Code(builder, spec, fields, buffer)

    def one_unit(i: ir.Value) -> None:
        unit, groups = code.emit.sum(first, i), fields["groups"]
        code.batch, group = builder.sdiv(unit, groups), builder.srem(unit, groups)
        start, end = (
            builder.sdiv(code.emit.times(edge, fields["tiles"]), groups) for edge in (group, code.emit.sum(group, 1))
        )
        run = _backward if spec.backward else _forward
        run(code, lambda k: code.emit.sum(start, k), builder.sub(end, start))

    code.repeat(builder.sub(last, first), one_unit)
    builder.ret_void()
    return builder.function
