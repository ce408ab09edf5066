"""CPU kernels around those of :mod:`.ssm_kernels`: the tables they need, and gradients from those of the tables.

With a, B and C of a state, all in float64 and rounded once:

    power[j] = a^j    into[s] = B a^(L-1-s)    out[t] = C a^(t+1)    kernel[j] = Re Σ C a^j B, plus D at j = 0

A unit is one tile (a vector of channels); arrays are laid out as that module says.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from stablessm.llvm.emitter import I64, VECTOR_BYTES
from stablessm.llvm.kernel import Kernel, compiled, kernel_entry
from stablessm.scan.cpu.chunk_emitter import PARTS, ChunkEmitter, Row, Spec

MAKE_FIELDS = ("units", "states", "parameters", "skip", "into", "out", "kernel", "powers")
GRADIENT_FIELDS = ("units", "states", "parameters", "groups", "powers", "d_tables", "d_kernel", "d_powers", "results")
"""A kernel's arguments. ``parameters`` and ``results`` are (tiles, states, 3, PARTS) in float64: decay, B and C, or
their gradients; ``skip`` is D (tiles,) in float64. The gradients of a tile's tables are summed over ``groups`` of
sequences."""


class _Parameters:
    """decay, B and C of PARTS states of a tile, and the addresses of their tables."""

    def __init__(self, code: ChunkEmitter, tile: ir.Value, state: ir.Value) -> None:
        self.code, fields, length = code, code.fields, code.spec.length
        self.index = code.sum(code.times(tile, fields["states"]), state)
        self.bytes = PARTS * code.wide_bytes
        self.decay, self.B, self.C = (
            code.load_wide(self.wide_row("parameters", self.index, 3, which), PARTS) for which in range(3)
        )
        self.powers = self.wide_row("powers", self.index, length + 2)

    def wide_row(self, name: str, index: ir.Value, rows: int, row: ir.Value | int = 0) -> ir.Value:
        """Where row ``row`` of entry ``index`` of an array (…, rows, PARTS) of float64 is."""
        code = self.code
        return code.sum(code.fields[name], code.times(code.sum(code.times(index, rows), row), self.bytes))


def _make(code: ChunkEmitter, tile: ir.Value, wide_kernel: ir.Value) -> None:
    """The tables; ``wide_kernel`` is room for L vectors of float64."""
    fields, length = code.fields, code.spec.length
    none = code.widen(code.zeros(PARTS))
    for j in range(length):
        code.store_wide(none[:1], code.sum(wide_kernel, j * code.wide_bytes))

    def one_state(state: ir.Value, _: Row) -> Row:
        of = _Parameters(code, tile, state)
        both = code.product(of.B, of.C, none)

        def one_power(j: ir.Value, power: Row) -> Row:
            code.store_wide(power, code.sum(of.powers, code.times(j, of.bytes)))
            at = code.sum(wide_kernel, code.times(j, code.wide_bytes))
            (total,) = code.load_wide(at)
            for part in code.real(code.product(both, power, none)):
                total = code.builder.fadd(total, part)
            code.store_wide([total], at)
            first = code.times(of.index, length)
            last = code.sum(first, code.builder.sub(I64(length - 1), j))
            after = code.product(of.decay, power, none)
            into, out = code.product(of.B, power, none), code.conjugate(code.product(of.C, after, none))
            for name, row, value in (("into", last, into), ("out", code.sum(first, j), out)):
                code.store(code.round(value), code.sum(fields[name], code.times(row, PARTS * VECTOR_BYTES)))
            return after

        power = code.emit.loop(I64(length), code.one(), one_power)
        code.store_wide(power, code.sum(of.powers, length * of.bytes))
        square = code.product(power, power, none)  # CHUNKS = 4 chunks at once
        code.store_wide(code.product(square, square, none), code.sum(of.powers, (length + 1) * of.bytes))
        return []

    code.emit.loop(fields["states"], [], one_state)
    for j in range(length):
        (total,) = code.load_wide(code.sum(wide_kernel, j * code.wide_bytes))
        if j == 0:
            (skip,) = code.load_wide(code.sum(fields["skip"], code.times(tile, code.wide_bytes)))
            total = code.builder.fadd(total, skip)
        at = code.sum(fields["kernel"], code.times(code.sum(code.times(tile, length), j), VECTOR_BYTES))
        code.store(code.round([total]), at)


def _gradients(code: ChunkEmitter, tile: ir.Value) -> None:
    """With d = dL/d: dB = Σ_j conj(a^j) d(B a^j) and so on; da = Σ_j j conj(a^(j-1)) d(a^j)."""
    fields, length = code.fields, code.spec.length
    none = code.widen(code.zeros(PARTS))

    def summed(address: Callable[[ir.Value], ir.Value], width: int) -> Row:
        """Over the groups of sequences, in their order."""

        def one_group(group: ir.Value, total: Row) -> Row:
            unit = code.sum(code.times(group, fields["units"]), tile)
            values = code.load_wide(address(unit), width)
            return [code.builder.fadd(u, v) for u, v in zip(total, values, strict=True)]

        return code.emit.loop(fields["groups"], none[:width], one_group)

    def one_state(state: ir.Value, _: Row) -> Row:
        of = _Parameters(code, tile, state)
        states = fields["states"]

        def times(value: Row, gradient: Row, plus: Row) -> Row:
            return code.product(value, gradient, plus, conjugate=True)

        def one_power(j: ir.Value, carried: Row) -> Row:
            d_decay, d_B, d_C = (carried[i * PARTS : (i + 1) * PARTS] for i in range(3))
            power, after = (
                code.load_wide(code.sum(of.powers, code.times(code.sum(j, i), of.bytes)), PARTS) for i in (0, 1)
            )
            back = code.builder.sub(I64(length - 1), j)
            d_into = summed(
                lambda u: of.wide_row("d_tables", code.sum(code.times(u, 2, states), state), length, back), PARTS
            )
            d_out = summed(
                lambda u: of.wide_row("d_tables", code.sum(code.times(u, 2, states), states, state), length, j), PARTS
            )
            d_power = summed(
                lambda u: of.wide_row("d_powers", code.sum(code.times(u, states), state), length + 1, code.sum(j, 1)),
                PARTS,
            )
            (d_kernel,) = summed(
                lambda u: code.sum(fields["d_kernel"], code.times(code.sum(code.times(u, length), j), code.wide_bytes)),
                1,
            )
            d_out, d_kernel = code.conjugate(d_out), code.as_state(d_kernel)
            d_B = times(power, code.product(code.conjugate(of.C), d_kernel, d_into), d_B)
            d_C = times(after, d_out, times(power, code.product(code.conjugate(of.B), d_kernel, none), d_C))
            # of a^j and of a^(j+1); the first counts j times a^(j-1)
            earlier = times(of.B, code.product(code.conjugate(of.C), d_kernel, d_into), none)
            later = times(of.C, d_out, d_power)
            index = code.builder.sub(j, code.builder.zext(code.builder.icmp_signed(">", j, I64(0)), I64))
            before = code.load_wide(code.sum(of.powers, code.times(index, of.bytes)), PARTS)
            d_decay = times(code.scaled(before, j), earlier, d_decay)
            d_decay = times(code.scaled(power, code.sum(j, 1)), later, d_decay)
            return [*d_decay, *d_B, *d_C]

        results = code.emit.loop(I64(length), none * 3, one_power)
        for which in range(3):
            part = results[which * PARTS : (which + 1) * PARTS]
            code.store_wide(part, of.wide_row("results", of.index, 3, which))
        return []

    code.emit.loop(fields["states"], [], one_state)


def _build(spec: Spec) -> ir.Function:
    """The kernel, over a range of tiles."""
    name = "ssm_tables_" + "_".join(str(int(option)) for option in spec)
    builder, fields, first, last = kernel_entry(name, GRADIENT_FIELDS if spec.backward else MAKE_FIELDS)
    code = ChunkEmitter(builder, spec, fields)
    room = None if spec.backward else code.buffer(2 * spec.length)

    def one_tile(i: ir.Value, _: Row) -> Row:
        tile = code.sum(first, i)
        if room is None:
            _gradients(code, tile)
        else:
            _make(code, tile, room)
        return []

    code.emit.loop(builder.sub(last, first), [], one_tile)
    builder.ret_void()
    return builder.function


def get_kernel(spec: Spec) -> Kernel:
    """The kernel for ``spec``, compiled the first time it is asked for."""
    return compiled(_build, spec)
