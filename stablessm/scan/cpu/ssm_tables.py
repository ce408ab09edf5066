"""CPU kernels that compute tables for :mod:`.ssm_kernels` from a layer's decay, B, C and D, and their backward pass.

A chunk has L steps. The tables of a state with decay a and weights B and C, computed in float64 and rounded once, are

    power[j] = a^j    into[s] = B a^(L-1-s)    out[t] = C a^(t+1)    kernel[j] = Re Σ C a^j B, plus D at j = 0

A work unit of the kernels is one tile (a vector of channels). The layout of the arrays is described in
:mod:`.ssm_kernels`.

The field ``parameters`` of a kernel holds decay, B and C, and ``results`` their gradients, both as (tiles, states, 3,
PARTS) in float64; ``skip`` is D, (tiles,) in float64. The gradients of a tile's tables are summed over ``groups`` of
sequences.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from stablessm.llvm.emitter import I64
from stablessm.llvm.kernel import kernel_entry, over_units
from stablessm.scan.cpu.chunk_emitter import PARTS, ChunkEmitter, Row, Spec, types


class _Parameters:
    """The decay, B and C of a group of states of a tile, and the addresses of the tables computed from these
    parameters.

    The states are stored as PARTS real numbers per channel.
    """

    def __init__(self, code: ChunkEmitter, tile: ir.Value, state: ir.Value) -> None:
        self.code, fields, length = code, code.fields, code.spec.length
        self.index = code.sum(code.times(tile, fields["states"]), state)
        self.decay, self.B, self.C = (
            code.load(code.entry("parameters", self.index, 3, which), PARTS) for which in range(3)
        )
        self._powers = code.entry("powers", self.index, length + 2)

    def power(self, *exponent: ir.Value | int) -> ir.Value:
        """Return the address of a power of the decay in the table of powers. The exponent is the sum
        of the arguments.
        """
        return self.code.at(self._powers, self.code.times(self.code.sum(*exponent), PARTS))


def _make(code: ChunkEmitter, tile: ir.Value, wide_kernel: ir.Value) -> None:
    """Emit code that computes the tables of one tile.

    ``wide_kernel`` is the address of a buffer of L float64 vectors, in which the table ``kernel`` is summed.
    """
    fields, length = code.fields, code.spec.length
    none = code.widen(code.zeros(PARTS))
    for j in range(length):
        code.store(none[:1], code.at(wide_kernel, j))

    def one_state(state: ir.Value) -> None:
        of = _Parameters(code, tile, state)
        both = code.product(of.B, of.C, none)

        def one_power(j: ir.Value, power: Row) -> Row:
            code.store(power, of.power(j))
            (total,) = code.load(code.at(wide_kernel, j))
            for part in code.real(code.product(both, power, none)):
                total = code.builder.fadd(total, part)
            code.store([total], code.at(wide_kernel, j))
            last = code.builder.sub(I64(length - 1), j)
            after = code.product(of.decay, power, none)
            into, out = code.product(of.B, power, none), code.conjugate(code.product(of.C, after, none))
            for name, row, value in (("into", last, into), ("out", j, out)):
                code.store(code.round(value), code.entry(name, of.index, length, row))
            return after

        power = code.emit.loop(I64(length), code.one(), one_power)
        code.store(power, of.power(length))
        square = code.product(power, power, none)  # CHUNKS = 4 chunks at once
        code.store(code.product(square, square, none), of.power(length + 1))

    code.emit.repeat(fields["states"], one_state)
    for j in range(length):
        (total,) = code.load(code.at(wide_kernel, j))
        if j == 0:
            (skip,) = code.load(code.at(fields["skip"], tile))
            total = code.builder.fadd(total, skip)
        code.store(code.round([total]), code.at(fields["kernel"], code.times(tile, length), j))


def _gradients(code: ChunkEmitter, tile: ir.Value) -> None:
    """Emit code for the gradients da = Σ_j j conj(a^(j-1)) d(a^j) and dB = Σ_j conj(a^j) d(B a^j), and likewise dC.

    Here d(u) is the gradient with respect to u, for example with respect to the entry u = a^j of a table.
    """
    fields, length = code.fields, code.spec.length
    none = code.widen(code.zeros(PARTS))

    def summed(place: Callable[[ir.Value], ir.Value], width: int = PARTS) -> Row:
        """Emit code that sums an array of gradients over all groups of sequences, always in the same order.

        ``place(unit)`` returns the address of the gradients of a work unit, which are ``width`` vectors.
        """

        def one_group(group: ir.Value, total: Row) -> Row:
            unit = code.sum(code.times(group, fields["units"]), tile)
            values = code.load(place(unit), width)
            return [code.builder.fadd(u, v) for u, v in zip(total, values, strict=True)]

        return code.emit.loop(fields["groups"], none[:width], one_group)

    def one_state(state: ir.Value) -> None:
        of = _Parameters(code, tile, state)
        states = fields["states"]

        def times(value: Row, gradient: Row, plus: Row) -> Row:
            return code.product(value, gradient, plus, conjugate=True)

        def one_power(j: ir.Value, carried: Row) -> Row:
            d_decay, d_B, d_C = (carried[i * PARTS : (i + 1) * PARTS] for i in range(3))
            power, after = (code.load(of.power(j, i), PARTS) for i in (0, 1))
            back = code.builder.sub(I64(length - 1), j)
            table, powers = (lambda u: code.times(u, 2, states)), (lambda u: code.sum(code.times(u, states), state))
            d_into = summed(lambda u: code.entry("d_tables", code.sum(table(u), state), length, back))
            d_out = summed(lambda u: code.entry("d_tables", code.sum(table(u), states, state), length, j))
            d_power = summed(lambda u: code.entry("d_powers", powers(u), length + 1, code.sum(j, 1)))
            (d_kernel,) = summed(lambda u: code.at(fields["d_kernel"], code.times(u, length), j), 1)
            d_out, d_kernel = code.conjugate(d_out), code.as_state(d_kernel)
            d_B = times(power, code.product(code.conjugate(of.C), d_kernel, d_into), d_B)
            d_C = times(after, d_out, times(power, code.product(code.conjugate(of.B), d_kernel, none), d_C))
            # the gradients of a^j and of a^(j+1); the derivative of a^j is j a^(j-1)
            earlier = times(of.B, code.product(code.conjugate(of.C), d_kernel, d_into), none)
            later = times(of.C, d_out, d_power)
            index = code.builder.sub(j, code.builder.zext(code.builder.icmp_signed(">", j, I64(0)), I64))
            before = code.load(of.power(index), PARTS)
            d_decay = times(code.scaled(before, j), earlier, d_decay)
            d_decay = times(code.scaled(power, code.sum(j, 1)), later, d_decay)
            return [*d_decay, *d_B, *d_C]

        results = code.emit.loop(I64(length), none * 3, one_power)
        for which in range(3):
            part = results[which * PARTS : (which + 1) * PARTS]
            code.store(part, code.entry("results", of.index, 3, which))

    code.emit.repeat(fields["states"], one_state)


def build(spec: Spec) -> ir.Function:
    """Return the LLVM function of the kernel, which computes the tables of a range of tiles.

    With the option ``backward``, the kernel computes the gradients of the decay, B and C from the gradients of the
    tables.
    """
    wide = ("parameters", "skip", "powers", "d_tables", "d_kernel", "d_powers", "results")
    pointers = dict.fromkeys(wide, types(spec).wide) | dict.fromkeys(("into", "out", "kernel"), types(spec).vector)
    builder, fields = kernel_entry(pointers)
    code = ChunkEmitter(builder, spec, fields)
    room = None if spec.backward else code.buffer(spec.length, types(spec).wide)

    def one_tile(tile: ir.Value) -> None:
        if room is None:
            _gradients(code, tile)
        else:
            _make(code, tile, room)

    return over_units(code.emit, one_tile)
