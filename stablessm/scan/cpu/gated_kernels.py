"""CPU kernels of gated recurrences: gates and states in one pass over the inputs, with channels in SIMD vectors.

The recurrence with the decay a = 1 + f is h[t] = a h[t-1] + (1 - a) c[t], computed as h[t-1] + f (h[t-1] - c[t]), or
h[t] = a h[t-1] + u[t], computed as h[t-1] + f h[t-1] + u[t]. A *form* (:data:`FORMS`) computes f, and the candidate c
or the drive u, from the inputs of the gates.

A work unit is one group of tiles (vectors of channels) of one sequence. The kernel loops over the time steps and, in
each step, over the tiles of the unit, so that memory is read in order. The last tile ends at the last channel and may
overlap the tile before it, with the same results. The backward pass computes the gates again from their inputs.

The field ``rate`` of a kernel is (channels,), ``initial`` and ``d_initial`` (batch, channels), ``reset`` (batch, time)
bytes or 0, and ``d_rate`` (batch, tiles) vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir

from stablessm.llvm.emitter import I64, VECTOR_BYTES
from stablessm.llvm.kernel import kernel_entry, over_units
from stablessm.scan.cpu.unit_emitter import UnitEmitter


class Spec(NamedTuple):
    """The options of a CPU kernel of the gated recurrence, which are compiled into the kernel as constants."""

    form: str
    backward: bool
    double: bool
    below_one: bool
    complex: bool = False
    stream: bool = False

    @property
    def lanes(self) -> int:
        """Return the number of channels in one SIMD vector of the kernel's dtype."""
        return VECTOR_BYTES // (8 if self.double else 4)


class _Code(UnitEmitter):
    """Emits the address computations and the gate of one tile (a vector of channels) at one time step."""

    def __init__(self, builder: ir.IRBuilder, spec: Spec, fields: dict[str, ir.Value], buffer: ir.Value) -> None:
        super().__init__(builder, spec, spec.lanes, fields)
        self.buffer, self.spec = buffer, spec

    def channel(self, tile: ir.Value) -> ir.Value:
        """Return the index of the first channel of a tile.

        The last tile ends at the last channel, so it may overlap the tile before it.
        """
        first, last = self.emit.times(tile, self.lanes), self.b.sub(self.fields["channels"], I64(self.lanes))
        return self.b.select(self.b.icmp_signed("<", first, last), first, last)

    def at(self, name: str, t: ir.Value, tile: ir.Value, gate: int = 0) -> ir.Value:
        """Return the address of a tile's channels at step t, in the array ``name``: (batch, time, channel), or (batch,
        time, gate, channel) with the index ``gate``.
        """
        gates = self.emit.times(self.fields["channels"], gate)
        return self.emit.at(self.step_of(name, t), gates, self.channel(tile))

    def inputs(self, t: ir.Value, tile: ir.Value) -> list[ir.Value]:
        """Emit code that loads the inputs of all gates and, if the formulas use it, the input of the layer; return all
        of these.
        """
        form = FORMS[self.spec.form]
        found = [self.load(self.at("gates", t, tile, gate)) for gate in range(form.gates)]
        return [*found, self.load(self.at("x", t, tile))] if form.direct else found

    def of_batch(self, name: str, tile: ir.Value) -> ir.Value:
        """Return the address of a tile's channels in the array ``name``, (batch, channel), for this sequence."""
        row = self.emit.times(self.batch, self.fields["channels"])
        return self.emit.at(self.fields[name], row, self.channel(tile))

    def load(self, pointer: ir.Value) -> ir.Value:
        """Emit code that loads one vector of channels from the address ``pointer``, and return the vector."""
        return self.emit.load(pointer, self.lanes)

    def carry(self, tile: ir.Value, which: int = 0) -> ir.Value:
        """Return the address of the buffer on the stack in which a tile carries a vector from one time step to the
        next.

        ``which`` selects one of two buffers: 0 for the state or its gradient, 1 for the gradient of the rate.
        """
        place = self.emit.sum(self.emit.times(tile, 2), which)
        return self.emit.at(self.buffer, self.emit.times(place, self.lanes))


class _Change(NamedTuple):
    """The gate values of one tile (a vector of channels) at one time step, and a function for their gradients."""

    change: ir.Value
    """f = a - 1, before it is limited."""
    candidate: ir.Value | None
    drive: ir.Value | None
    """c or u."""
    pull_back: Callable[[ir.Value, ir.Value], tuple[ir.Value, list[ir.Value]]]
    """Return the gradient of the rate and those of the inputs, from the gradients of f, and of c or u."""


class Form(NamedTuple):
    """The formulas that distinguish one kind of gated layer, such as ``min-gru``, from the other kinds."""

    gates: int
    direct: bool
    """Whether the input of the layer is an argument too."""
    change: Callable[[_Code, ir.Value, list[ir.Value]], _Change]
    """Compute f, and c or u, from the rate and the inputs."""


def _min_gru(code: _Code, rate: ir.Value, inputs: list[ir.Value]) -> _Change:
    """Emit code for the gate of a minGRU: f = a - 1 = exp(rate softplus(z)) - 1, where a is the decay.

    ``inputs`` are z and the candidate.
    """
    b, (z, candidate) = code.b, inputs
    opened = code.math.softplus(z)
    exponent = b.fmul(rate, opened)
    change = code.math.expm1(exponent)

    def pull_back(d_change: ir.Value, d_candidate: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        d_exponent = b.fmul(d_change, code.math.exp(exponent))  # 1 + change would be 0 where the decay is small
        d_z = b.fmul(b.fmul(d_exponent, rate), code.math.sigmoid(z))
        return b.fmul(d_exponent, opened), [d_z, d_candidate]

    return _Change(change, candidate, None, pull_back)


def _min_lstm(code: _Code, rate: ir.Value, inputs: list[ir.Value]) -> _Change:
    """Emit code for the gate of a minLSTM: the gate of a minGRU with z = softplus(-forget) - softplus(-enter).

    ``inputs`` are the input of the forget gate (forget), the input of the input gate (enter) and the candidate.
    """
    b, (forget, enter, candidate) = code.b, inputs
    z = b.fsub(*(code.math.softplus(b.fneg(gate)) for gate in (forget, enter)))
    unit = _min_gru(code, rate, [z, candidate])

    def pull_back(d_change: ir.Value, d_candidate: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        d_rate, (d_z, _) = unit.pull_back(d_change, d_candidate)
        d_forget, d_enter = (b.fmul(d_z, code.math.sigmoid(b.fneg(gate))) for gate in (forget, enter))
        return d_rate, [b.fneg(d_forget), d_enter, d_candidate]

    return unit._replace(pull_back=pull_back)


def _hgrn(code: _Code, rate: ir.Value, inputs: list[ir.Value]) -> _Change:
    """Emit code for the gate of an HGRN: f = a - 1 = rate sigmoid(-z), where a is the decay.

    ``inputs`` are z and v, from which the candidate c = silu(v) is computed.
    """
    b, (z, v) = code.b, inputs
    closed, passed = code.math.sigmoid(b.fneg(z)), code.math.sigmoid(v)
    candidate = b.fmul(v, passed)

    def pull_back(d_change: ir.Value, d_candidate: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        d_rate = b.fmul(d_change, closed)
        slope = code.emit.multiply_add(candidate, code.math.sigmoid(b.fneg(v)), passed)
        d_z = b.fmul(b.fmul(b.fneg(d_rate), rate), code.math.sigmoid(z))
        return d_rate, [d_z, b.fmul(d_candidate, slope)]

    return _Change(b.fmul(rate, closed), candidate, None, pull_back)


def _rg_lru(code: _Code, rate: ir.Value, inputs: list[ir.Value]) -> _Change:
    """Emit code for the gate of an RG-LRU: f = a - 1 = exp(rate sigmoid(z)) - 1, where a is the decay.

    ``inputs`` are z, i and x. The code also computes the drive u = √(1 - a²) sigmoid(i) x, in which 1 - a² is computed
    as -f (2 + f), without cancellation.
    """
    b, (z, i, x) = code.b, inputs
    opened, entered = code.math.sigmoid(z), code.math.sigmoid(i)
    exponent = b.fmul(rate, opened)
    change = code.math.expm1(exponent)
    lost = b.fneg(b.fmul(change, b.fadd(change, code.all(2.0))))
    least = code.all(2.0 ** (-1022 if code.spec.double else -126))
    positive = b.fcmp_ordered(">", lost, least)
    gain, part = code.math.sqrt(b.select(positive, lost, least)), b.fmul(entered, x)

    def pull_back(d_change: ir.Value, d_drive: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
        decay, d_gain = code.math.exp(exponent), b.fmul(d_drive, part)
        by_gain = b.select(positive, b.fdiv(b.fmul(d_gain, decay), gain), code.zero())
        d_rate = b.fmul(b.fmul(b.fsub(d_change, by_gain), decay), opened)
        d_part = b.fmul(d_drive, gain)
        d_z = b.fmul(b.fmul(d_rate, rate), code.math.sigmoid(b.fneg(z)))
        d_i = b.fmul(b.fmul(d_part, part), code.math.sigmoid(b.fneg(i)))
        return d_rate, [d_z, d_i, b.fmul(d_part, entered)]

    return _Change(change, None, b.fmul(gain, part), pull_back)


FORMS = {
    "min-gru": Form(2, False, _min_gru),
    "min-lstm": Form(3, False, _min_lstm),
    "hgrn": Form(2, False, _hgrn),
    "rg-lru": Form(2, True, _rg_lru),
}


def _changed(code: _Code, t: ir.Value, tile: ir.Value) -> tuple[_Change, ir.Value]:
    """Emit code for the gate of a tile at step t. Return the gate values, and f = a - 1, where a is the decay.

    With the option ``below_one``, the returned f is below 0, so that a is below 1.
    """
    rate = code.load(code.emit.at(code.fields["rate"], code.channel(tile)))
    found = FORMS[code.spec.form].change(code, rate, code.inputs(t, tile))
    return found, code.math.negative(found.change) if code.spec.below_one else found.change


def _forward(code: _Code, tile_of: Callable[[ir.Value], ir.Value], tiles: ir.Value) -> None:
    b, emit, f = code.b, code.emit, code.fields
    code.repeat(tiles, lambda i: emit.store(code.load(code.of_batch("initial", tile_of(i))), code.carry(i)))

    def one(t: ir.Value) -> None:
        cut = code.restarts(t)

        def each(i: ir.Value) -> None:
            tile = tile_of(i)
            before = b.select(cut, code.zero(), code.load(code.carry(i)))
            found, change = _changed(code, t, tile)
            if found.candidate is not None:
                after = emit.multiply_add(change, b.fsub(before, found.candidate), before)
            else:
                after = b.fadd(emit.multiply_add(change, before, found.drive), before)
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

        def each(k: ir.Value) -> None:
            i = b.sub(b.sub(tiles, I64(1)), k)  # downwards, as the steps, which caches predict
            tile = tile_of(i)
            earlier = b.select(first, code.of_batch("initial", tile), code.at("states", b.sub(t, I64(1)), tile))
            before = b.select(cut, code.zero(), code.load(earlier))
            found, change = _changed(code, t, tile)
            adjoint = b.fadd(code.load(code.at("grad", t, tile)), code.load(code.carry(i)))
            carried = emit.multiply_add(adjoint, change, adjoint)
            emit.store(b.select(cut, code.zero(), carried), code.carry(i))
            if found.candidate is not None:
                d_change, d_other = b.fmul(adjoint, b.fsub(before, found.candidate)), b.fneg(b.fmul(change, adjoint))
            else:
                d_change, d_other = b.fmul(adjoint, before), adjoint
            d_rate, d_inputs = found.pull_back(d_change, d_other)
            if FORMS[code.spec.form].direct:
                emit.store(d_inputs.pop(), code.at("d_x", t, tile))
            for gate, value in enumerate(d_inputs):
                emit.store(value, code.at("d_gates", t, tile, gate))
            emit.store(b.fadd(code.load(code.carry(i, 1)), d_rate), code.carry(i, 1))

        code.repeat(tiles, each)

    code.repeat(f["steps"], one)

    def store(i: ir.Value) -> None:
        tile = tile_of(i)
        emit.store(code.load(code.carry(i)), code.of_batch("d_initial", tile))
        place = emit.sum(emit.times(code.batch, f["tiles"]), tile)
        emit.store(code.load(code.carry(i, 1)), emit.at(f["d_rate"], emit.times(place, code.lanes)))

    code.repeat(tiles, store)


def build(spec: Spec) -> ir.Function:
    """Return the LLVM function of the kernel, which computes a range of work units.

    Each work unit is one group of tiles (vectors of channels) of one sequence.
    """
    scalar = ir.DoubleType() if spec.double else ir.FloatType()
    arrays = ("rate", "initial", "gates", "x", "states", "grad", "d_gates", "d_x", "d_rate", "d_initial")
    pointers = dict.fromkeys(arrays, scalar) | {"reset": ir.IntType(8)}
    builder, fields = kernel_entry(pointers)
    buffer = builder.alloca(scalar, builder.mul(fields["tiles"], I64(2 * spec.lanes)))
    buffer.align = VECTOR_BYTES
    code = _Code(builder, spec, fields, buffer)

    def one_unit(unit: ir.Value) -> None:
        groups = fields["groups"]
        code.batch, group = builder.sdiv(unit, groups), builder.srem(unit, groups)
        start, end = (
            builder.sdiv(code.emit.times(edge, fields["tiles"]), groups) for edge in (group, code.emit.sum(group, 1))
        )
        run = _backward if spec.backward else _forward
        run(code, lambda k: code.emit.sum(start, k), builder.sub(end, start))

    return over_units(code.emit, one_unit)
