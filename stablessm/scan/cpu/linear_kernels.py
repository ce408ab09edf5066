"""CPU kernels of the linear scan: a loop over time, channels in SIMD vectors, states in registers.

The kernels are written as LLVM instructions and compiled by llvmlite, because Python cannot express two things that
determine their speed: vectors that stay in registers from one time step to the next, and stores that bypass the cache.
(A kernel writes a state once and does not read it again, so fetching its cache line first would add a third to the
memory traffic.)

A *tile* is 128 bytes of neighboring channels of one sequence. A kernel computes a range of tiles. Complex numbers are
interleaved (re, im), as PyTorch stores them.

Arrays of float32 are widened to float64 when they are loaded, and results are rounded once, when they are stored. A
float32 state with |decay| near 1 would accumulate the rounding errors of all steps. The wider arithmetic costs little,
because a scan is limited by memory bandwidth.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from llvmlite import ir

from stablessm.llvm.emitter import I64, VECTOR_BYTES, Emitter
from stablessm.llvm.kernel import kernel_entry, over_units

TILE_VECTORS = 2
TILE_BYTES = VECTOR_BYTES * TILE_VECTORS
PREFETCH_STEPS = 16


class Spec(NamedTuple):
    """The options of a CPU kernel of the linear scan, which are compiled into the kernel as constants."""

    backward: bool
    double: bool
    complex: bool
    per_step: bool
    """True if the decay depends on time. Otherwise it is loaded once and its gradient is summed in registers."""
    reset: bool
    stream: bool
    """True if stores bypass the cache. Every stored row must start at a multiple of VECTOR_BYTES."""
    prefetch: bool
    """True if inputs are prefetched PREFETCH_STEPS steps ahead."""


class _Tile:
    """One tile, which is 128 bytes of neighboring channels of one sequence.

    The methods return the addresses of rows, and emit operations on rows. A row is the tile's numbers at one time step.
    """

    def __init__(
        self, emit: Emitter[Spec], fields: dict[str, ir.Value], batch: ir.Value, column: ir.Value, widths: list[int]
    ) -> None:
        self.emit, self.fields, self.widths = emit, fields, widths
        self._batch, self._column = batch, column

    def row(self, array: str, step: ir.Value | None = None, column: ir.Value | int = 0) -> ir.Value:
        """Return the address of element ``column`` of this sequence in the array with the name ``array``.

        ``step`` is the time step; None stands for an array without a time dimension.
        """
        emit, fields = self.emit, self.fields
        terms = [emit.times(self._batch, fields[f"{array}_batch"]), column]
        if step is not None:
            terms.append(emit.times(step, fields[f"{array}_time"]))
        return emit.at(fields[array], *terms)

    def vectors(self, array: str, step: ir.Value | None = None) -> list[ir.Value]:
        """Return the addresses of the vectors that make up the tile's row of the array with the name ``array``."""
        row = self.row(array, step, self._column)
        return [self.emit.at(row, start) for start in itertools.accumulate([0, *self.widths[:-1]])]

    def load(self, array: str, step: ir.Value | None = None) -> list[ir.Value]:
        """Emit code that loads the tile's row of the array ``array`` at the time step ``step``; return the row in
        float64.
        """
        vectors = zip(self.vectors(array, step), self.widths, strict=True)
        row = [self.emit.load(place, lanes) for place, lanes in vectors]
        return row if self.emit.spec.double else [self.emit.builder.fpext(u, _wide(u.type.count)) for u in row]

    def prefetch(self, array: str, step: ir.Value) -> None:
        """Emit code that prefetches the tile's row of the array ``array`` at the time step ``step`` + PREFETCH_STEPS.

        A prefetch past the last row has no effect.
        """
        for vector in self.vectors(array, self.emit.builder.add(step, I64(PREFETCH_STEPS))):
            self.emit.prefetch(vector)

    def store(self, row: list[ir.Value], array: str, step: ir.Value | None = None) -> None:
        """Emit code that stores ``row`` as the tile's row of the array ``array``, rounded to the dtype of the array."""
        places = self.vectors(array, step)
        for value, place in zip(row, places, strict=True):
            narrow = self.emit.vector(value.type.count)
            wide = place.type.pointee == ir.DoubleType()
            self.emit.store(value if wide else self.emit.builder.fptrunc(value, narrow), place)

    def zeros(self) -> list[ir.Value]:
        """Return a row of float64 zeros."""
        return [ir.Constant(_wide(lanes), None) for lanes in self.widths]

    def unless_reset(self, row: list[ir.Value], step: ir.Value) -> list[ir.Value]:
        """Emit code that replaces a row by zeros if ``step`` has a reset; return the resulting row.

        The code selects zeros instead of multiplying by zero, because 0 · NaN is NaN.
        """
        if not self.emit.spec.reset:
            return row
        builder = self.emit.builder
        keep = builder.icmp_signed("==", builder.load(self.row("reset", step)), ir.IntType(8)(0))
        return [builder.select(keep, u, zero) for u, zero in zip(row, self.zeros(), strict=True)]


def _wide(lanes: int) -> ir.VectorType:
    return ir.VectorType(ir.DoubleType(), lanes)


def _forward(tile: _Tile) -> None:
    """Emit code for the forward loop h = a h + x over all time steps, with the decay a and the drive x."""
    emit = tile.emit
    constant = None if emit.spec.per_step else tile.load("decay")

    def step(t: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        decay, drive = constant or tile.load("decay", t), tile.load("drive", t)
        if emit.spec.prefetch:
            for array in ("decay", "drive") if emit.spec.per_step else ("drive",):
                tile.prefetch(array, t)
        carried, decay = tile.unless_reset(state, t), tile.unless_reset(decay, t)
        state = [emit.product(h, a, plus=x) for h, a, x in zip(carried, decay, drive, strict=True)]
        tile.store(state, "states", t)
        return state

    emit.loop(tile.fields["steps"], tile.load("initial"), step)


def _backward(tile: _Tile) -> None:
    """Emit code for the backward loop λ = g + carry; dx = λ; da += λ conj(h[t-1]); carry = conj(a) λ.

    a is the decay, x the drive, and h[t] a state. g is the gradient of the loss with respect to the output h[t] alone.
    ``carry`` is the gradient that comes from later steps, because h[t] also affects all later states. λ is the sum of
    both.
    """
    emit, builder, rows = tile.emit, tile.emit.builder, len(tile.widths)
    constant = None if emit.spec.per_step else tile.load("decay")

    def step(t: ir.Value, carried: list[ir.Value], before: list[ir.Value]) -> list[ir.Value]:
        carry, total = carried[:rows], carried[rows:]
        decay, grad = constant or tile.load("decay", t), tile.load("grad", t)
        adjoint = [builder.fadd(g, c) for g, c in zip(grad, carry, strict=True)]
        tile.store(adjoint, "d_drive", t)
        zeros = tile.zeros()
        d_decay = [emit.product(u, h, z, conjugate=True) for u, h, z in zip(adjoint, before, zeros, strict=True)]
        d_decay = tile.unless_reset(d_decay, t)
        if emit.spec.per_step:
            tile.store(d_decay, "d_decay", t)
        else:
            total = [builder.fadd(u, v) for u, v in zip(total, d_decay, strict=True)]
        carry = [emit.product(u, a, z, conjugate=True) for u, a, z in zip(adjoint, decay, zeros, strict=True)]
        return [*tile.unless_reset(carry, t), *total]

    last = builder.sub(tile.fields["steps"], I64(1))

    def from_the_end(i: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        t = builder.sub(last, i)
        return step(t, carried, tile.load("states", builder.sub(t, I64(1))))

    start = [*tile.zeros(), *([] if emit.spec.per_step else tile.zeros())]
    carried = step(I64(0), emit.loop(last, start, from_the_end), tile.load("initial"))
    tile.store(carried[:rows], "d_initial")
    if not emit.spec.per_step:
        tile.store(carried[rows:], "d_decay")


def _pointers(spec: Spec) -> dict[str, ir.Type]:
    """Return the LLVM element type of each array that the kernel receives.

    Sums over time are float64, because terms may cancel when these sums are added over the batch.
    """
    scalar = ir.DoubleType() if spec.double else ir.FloatType()
    arrays = ("decay", "drive", "grad", "initial", "states", "d_drive", "d_initial")
    return dict.fromkeys(arrays, scalar) | {
        "reset": ir.IntType(8),
        "d_decay": scalar if spec.per_step else ir.DoubleType(),
    }


def build(spec: Spec) -> ir.Function:
    """Return the LLVM function of the kernel, which computes a range of tiles (vectors of channels of one sequence)."""
    builder, fields = kernel_entry(_pointers(spec))
    emit = Emitter(builder, spec)
    tile_lanes, lanes = TILE_BYTES // emit.size, VECTOR_BYTES // emit.size
    tiles = builder.sdiv(builder.add(fields["channels"], I64(tile_lanes - 1)), I64(tile_lanes))

    def one_tile(unit: ir.Value) -> None:
        batch = builder.sdiv(unit, tiles)
        column = builder.mul(builder.srem(unit, tiles), I64(tile_lanes))
        rest = builder.sub(fields["channels"], column)
        with builder.if_else(builder.icmp_signed(">=", rest, I64(tile_lanes))) as (whole, partial):
            with whole:
                _emit_tile(emit, fields, batch, column, [lanes] * TILE_VECTORS)
            with partial:  # the last channels, by the binary digits of their number: 21 = 16 + 4 + 1
                width = tile_lanes // 2
                while width:
                    with builder.if_then(builder.icmp_signed("!=", builder.and_(rest, I64(width)), I64(0))):
                        done = builder.and_(rest, I64(-2 * width))
                        widths = [min(width, lanes)] * max(1, width // lanes)
                        _emit_tile(emit, fields, batch, builder.add(column, done), widths)
                    width //= 2
                    if spec.complex and width == 1:
                        break

    return over_units(emit, one_tile, fence=spec.stream)


def _emit_tile(
    emit: Emitter[Spec], fields: dict[str, ir.Value], batch: ir.Value, column: ir.Value, widths: list[int]
) -> None:
    (_backward if emit.spec.backward else _forward)(_Tile(emit, fields, batch, column, widths))
