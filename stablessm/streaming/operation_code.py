"""Generates LLVM instructions for the operations of a program, with all sizes and addresses as constants.

A matrix product keeps a tile of outputs in registers and loops over the inputs. The weights are stored in the order in
which they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from stablessm.llvm import threads
from stablessm.llvm.emitter import I64, Emitter, pointer_to
from stablessm.llvm.kernel import add_team_member
from stablessm.llvm.vector_functions import VectorMath
from stablessm.streaming import program as ops
from stablessm.streaming.memory import Memory
from stablessm.streaming.program import Affine, Channels, Operation, Taps

TILE_VECTORS = 4
"""Number of output vectors of a product that are accumulated together: enough to hide the latency of an addition, and
few enough for 16 registers."""
PARALLEL_BYTES = 1 << 18
"""Size of the weights of a product above which several threads compute it."""
SUM_BLOCK = 32
"""Number of terms that are summed separately before they are added to the total, which reduces rounding errors."""


class StepArithmetic(NamedTuple):
    """The arithmetic options of a program's machine code: float64 or float32 (``double``). Numbers are real, and stores
    do not bypass the cache.
    """

    double: bool
    complex: bool = False
    stream: bool = False


class OperationCode:
    """Emits the machine code of a program's operations on the arrays in ``memory``, for every sequence of the batch."""

    def __init__(self, emit: Emitter, memory: Memory, flush: Callable[[ir.IRBuilder], Callable[[], Any]]) -> None:
        self.emit, self.builder, self.memory, self.lanes, self._flush = emit, emit.builder, memory, memory.lanes, flush
        self.wide = Emitter(emit.builder, StepArithmetic(double=True))
        self.math = VectorMath(emit, memory.lanes)

    def operation(self, operation: Operation) -> None:
        """Emit code for one operation of the program."""
        vector, multiply_add = self.memory.vector, self.emit.multiply_add
        match operation:
            case Affine():
                self._affine(operation)
            case Channels():
                self._channels(operation)
            case ops.Rotate(real, imag, decay, drive_real, drive_imag):
                parts = [vector(decay.real), vector(decay.imag)]
                self._recur([real, imag], [drive_real, drive_imag], parts, self._complex_step)
            case ops.Gate(state, decay, drive):
                self._recur([state], [decay, drive], [], lambda h, a, u: [self.wide.multiply_add(h, a, u)])
            case ops.Scale(out, source, factor, plus):
                sources, constants = ([plus], []) if isinstance(plus, int) else ([], [vector(plus)])
                numbers = [*constants, vector(factor)]
                if out == source:
                    self._recur([out], sources, numbers, lambda h, u, a: [self.wide.multiply_add(h, a, u)])
                else:
                    self._each([source, *sources], numbers, [out], lambda z, p, f: [multiply_add(z, f, p)])
            case Taps():
                self._taps(operation)
            case ops.Product(out, left, right):
                self._each([left, right], [], [out], lambda u, v: [self.builder.fmul(u, v)])
            case ops.Slice(out, source, start, stop):
                self.rows(
                    lambda row: self.copy(self.emit.at(self.at(source, row), start), self.at(out, row), stop - start)
                )
            case ops.Spread():
                self.rows(lambda row: self._spread(operation, row))
            case ops.Fold():
                self.rows(lambda row: self._fold(operation, row))
            case ops.Pointwise(out, source, function):
                self._each([source], [], [out], lambda z: [getattr(self.math, function)(z)])

    def rows(self, body: Callable[[ir.Value], None]) -> None:
        """Emit a loop over the sequences of the batch, whose body is ``body(sequence)``."""
        self._repeat(self.memory.batch, body)

    def at(self, value: int, row: ir.Value) -> ir.Value:
        """Return the address of the value with a given index, for one sequence of the batch."""
        return self._row(self.memory.values[value], row)

    def _row(self, array: np.ndarray, row: ir.Value) -> ir.Value:
        """Return the address of one sequence's row of an array."""
        return self.emit.at(self.memory.pointer(array), self.emit.times(row, array.strides[0] // array.itemsize))

    def copy(self, source: ir.Value, target: ir.Value, size: int) -> None:
        """Emit code that copies ``size`` elements from the address ``source`` to the address ``target``.

        Only one of the two arrays is padded.
        """
        whole = size // self.lanes * self.lanes
        for first, count, lanes in ((0, whole // self.lanes, self.lanes), (whole, size - whole, 1)):

            def one(i: ir.Value, first: int = first, lanes: int = lanes) -> None:
                index = self.emit.sum(self.emit.times(i, lanes), first)
                self.emit.store(self.emit.load(self.emit.at(source, index), lanes), self.emit.at(target, index))

            self._repeat(count, one)

    def _repeat(self, count: int, body: Callable[[ir.Value], None]) -> None:
        self.emit.repeat(I64(count), body)

    def _vector(self, start: ir.Value, *number: ir.Value | int) -> ir.Value:
        """Return the address of one vector in the array of vectors at the address ``start``.

        The index of the vector is the sum of the arguments in ``number``.
        """
        return self.emit.at(start, *(self.emit.times(part, self.lanes) for part in number))

    def _load(self, start: ir.Value, *number: ir.Value | int) -> ir.Value:
        """Emit code that loads one vector from the array of vectors at the address ``start``, and return the vector.

        The index of the vector is the sum of the arguments in ``number``.
        """
        return self.emit.load(self._vector(start, *number), self.lanes)

    def _each(
        self, sources: list[int], constants: list[ir.Constant], outs: list[int], body: Callable[..., list[ir.Value]]
    ) -> None:
        """Emit a loop over the vectors of arrays, which computes outs = body(*sources, *constants).

        ``sources`` and ``outs`` are indices of values, and ``constants`` are addresses.
        """

        def row(index: ir.Value) -> None:
            starts = [*(self.at(value, index) for value in sources), *constants]
            ends = [self.at(value, index) for value in outs]

            def one(i: ir.Value) -> None:
                results = body(*(self._load(start, i) for start in starts))
                for result, end in zip(results, ends, strict=True):
                    self.emit.store(result, self._vector(end, i))

            self._repeat(self.memory.values[outs[0]].shape[1] // self.lanes, one)

        self.rows(row)

    def _recur(
        self, states: list[int], sources: list[int], constants: list[ir.Constant], body: Callable[..., list[ir.Value]]
    ) -> None:
        """Emit code for the recurrence states = body(*states, *sources, *constants), computed in float64.

        ``states`` and ``sources`` are indices of values, and ``constants`` are addresses. The new states are stored
        twice: in float64 for the next step, and rounded to the dtype of the program.
        """

        def row(index: ir.Value) -> None:
            exact = [self._row(self.memory.wide[value], index) for value in states]
            rounded = [self.at(value, index) for value in states]
            starts = [*(self.at(value, index) for value in sources), *constants]

            def one(i: ir.Value) -> None:
                before = [self.wide.load(self._vector(start, i), self.lanes) for start in exact]
                after = body(*before, *(self._widened(self._load(start, i)) for start in starts))
                for h, start, value in zip(after, exact, rounded, strict=True):
                    self.wide.store(h, self._vector(start, i))
                    self.emit.store(self._rounded(h), self._vector(value, i))

            self._repeat(self.memory.values[states[0]].shape[1] // self.lanes, one)

        self.rows(row)

    def _widened(self, z: ir.Value) -> ir.Value:
        return z if self.emit.size == 8 else self.builder.fpext(z, self.wide.vector(self.lanes))

    def _rounded(self, z: ir.Value) -> ir.Value:
        return z if self.emit.size == 8 else self.builder.fptrunc(z, self.emit.vector(self.lanes))

    def _complex_step(
        self, u: ir.Value, v: ir.Value, x: ir.Value, y: ir.Value, a: ir.Value, b: ir.Value
    ) -> list[ir.Value]:
        """Emit code for the complex number (a + ib)(u + iv) + (x + iy); return its real and imaginary parts."""
        multiply_add, negative = self.wide.multiply_add, self.builder.fneg(b)
        return [multiply_add(a, u, multiply_add(negative, v, x)), multiply_add(a, v, multiply_add(b, u, y))]

    def _channels(self, op: Channels) -> None:
        """Emit code for a diagonal recurrence (:class:`.Channels`) as a loop over vectors of channels.

        The loop updates state after state and sums the outputs in registers.
        """
        b, emit, (H, N) = self.builder, self.emit, op.decay.shape
        weights = (op.weights.astype(np.complex128) * op.gain).astype(op.weights.dtype)
        numbers = np.zeros((self.memory.padded(H), N, 4), self.memory.dtype)
        numbers[:H] = np.stack([op.decay.real, op.decay.imag, weights.real, weights.imag], -1)
        packed = self.memory.constant(numbers.reshape(-1, self.lanes, N, 4).transpose(0, 2, 3, 1))
        skip, states = self.memory.vector(op.skip), self.memory.channel_states(op)
        zero, nothing = (emitter.constant(self.lanes, (0.0,)) for emitter in (emit, self.wide))

        def row(index: ir.Value) -> None:
            first = self._row(states, index)

            def channels(i: ir.Value) -> None:
                x = self._load(self.at(op.source, index), i)
                drive = self._widened(x)

                def mode(n: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                    place = emit.sum(emit.times(i, N), n)
                    here = [self._vector(first, emit.times(place, 2), k) for k in range(2)]
                    u, v = (self.wide.load(part, self.lanes) for part in here)
                    a_real, a_imag, c_real, c_imag = (self._load(packed, emit.times(place, 4), k) for k in range(4))
                    u, v = self._complex_step(u, v, drive, nothing, self._widened(a_real), self._widened(a_imag))
                    self.wide.store(u, here[0])
                    self.wide.store(v, here[1])
                    u, v = self._rounded(u), self._rounded(v)
                    return [emit.multiply_add(c_real, u, sums[0]), emit.multiply_add(c_imag, v, sums[1])]

                real, imag = emit.loop(I64(N), [zero, zero], mode)
                direct = emit.multiply_add(x, self._load(skip, i), real)
                emit.store(b.fsub(direct, imag), self._vector(self.at(op.out, index), i))

            self._repeat(self.memory.padded(H) // self.lanes, channels)

        self.rows(row)

    def _spread(self, op: ops.Spread, row: ir.Value) -> None:
        """Emit code that repeats each element ``op.each`` times and then the whole array ``op.whole`` times
        (:class:`.Spread`).

        ``row`` is the index of the sequence.
        """
        emit, size = self.emit, self.memory.size(op.source)
        source, out = self.at(op.source, row), self.at(op.out, row)

        def one(k: ir.Value, i: ir.Value) -> None:
            value = emit.load(emit.at(source, i), 1)
            first = emit.at(out, emit.times(emit.sum(emit.times(k, size), i), op.each))
            self._repeat(op.each, lambda j: emit.store(value, emit.at(first, j)))

        self._repeat(op.whole, lambda k: self._repeat(size, lambda i: one(k, i)))

    def _fold(self, op: ops.Fold, row: ir.Value) -> None:
        emit, source, out = self.emit, self.at(op.source, row), self.at(op.out, row)

        def one(i: ir.Value) -> None:
            first = emit.at(source, emit.times(i, op.width))

            def more(j: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                return [self.builder.fadd(sums[0], emit.load(emit.at(first, j), 1))]

            (total,) = emit.loop(I64(op.width), [emit.constant(1, (0.0,))], more)
            emit.store(total, emit.at(out, i))

        self._repeat(self.memory.size(op.out), one)

    def _taps(self, op: Taps) -> None:
        """Emit code for a bank of short filters (:class:`.Taps`) as a loop over vectors of filters.

        The loop shifts the delay line by one and sums the weighted inputs.
        """
        emit, (H, K) = self.emit, op.taps.shape
        line = self.memory.delay_line(op)
        ordered = np.zeros((self.memory.padded(H), K), self.memory.dtype)
        ordered[:H] = op.taps[:, ::-1]  # the oldest input that has a tap comes first
        weights = self.memory.constant(ordered.reshape(line.shape[1], self.lanes, K).swapaxes(1, 2))

        def row(index: ir.Value) -> None:
            start = self._row(line, index)

            def filters(i: ir.Value) -> None:
                new, block = self._load(self.at(op.source, index), i), emit.times(i, K)
                first, taps = self._vector(start, block), self._vector(weights, block)
                oldest = self._load(first, 0)

                def one(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                    moved = self._load(first, k, 1)
                    emit.store(moved, self._vector(first, k))
                    return [emit.multiply_add(self._load(taps, k), moved, sums[0])]

                (total,) = emit.loop(I64(K - 1), [emit.constant(self.lanes, (0.0,))], one)
                emit.store(new, self._vector(first, K - 1))
                total = emit.multiply_add(self._load(taps, K - 1), new, total)
                for value, result in ((op.out, total), (op.oldest, oldest)):
                    emit.store(result, self._vector(self.at(value, index), i))

            self._repeat(line.shape[1], filters)

        self.rows(row)

    def _affine(self, op: Affine) -> None:
        whole, rest = divmod(self.memory.values[op.out].shape[1] // self.lanes, TILE_VECTORS)
        self._tiles(op, 0, whole, TILE_VECTORS)
        if rest:
            self._tiles(op, whole * TILE_VECTORS, 1, rest)

    def _tiles(self, op: Affine, first: int, tiles: int, width: int) -> None:
        """Emit code for a part of the output of a matrix product: ``tiles`` tiles of ``width`` vectors each.

        The first tile begins at vector ``first`` of the output.
        """
        if not tiles:
            return
        emit, unroll = self.emit, TILE_VECTORS // width
        begin, end = first * self.lanes, (first + tiles * width) * self.lanes
        packed = []
        for weights in op.weights:
            part = np.zeros((end - begin, weights.shape[1]), self.memory.dtype)
            part[: len(weights) - begin] = weights[begin:end]
            ordered = part.reshape(tiles, width * self.lanes, -1).transpose(0, 2, 1)
            packed.append((self.memory.constant(ordered), weights.shape[1]))
        bias = self.memory.vector(op.bias[begin:end])
        zero = self.emit.constant(self.lanes, (0.0,))

        def tile(i: ir.Value, row: ir.Value) -> None:
            place = emit.times(i, width)
            sums = [self._load(bias, place, k) for k in range(width)]
            sums += [zero] * (width * (unroll - 1))
            for source, (start, inputs) in zip(op.sources, packed, strict=True):
                weights = self._vector(start, emit.times(place, inputs))
                sums = self._summed(self.at(source, row), weights, inputs, width, sums)
            for k in range(width):
                total = sums[k]
                for other in sums[k + width :: width]:
                    total = self.builder.fadd(total, other)
                emit.store(total, self._vector(self.at(op.out, row), place, first + k))

        large = sum(array.nbytes for array in op.weights) >= PARALLEL_BYTES
        share = self._share if large and threads.team() is not None else self._repeat
        share(tiles, lambda i: self.rows(lambda row: tile(i, row)))

    def _share(self, count: int, body: Callable[[ir.Value], None]) -> None:
        """Emit a loop whose body is ``body(i)``, for i in range(count). Every thread runs a part of the loop.

        The number of threads is in the memory of the program.
        """
        b, before = self.builder, self.builder.block
        module, fields = b.module, I64.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [fields, I64, I64])
        function = ir.Function(module, kind, f"shared_{len(module.globals)}")
        b.position_at_end(function.append_basic_block("entry"))
        restore, (_, first, last) = self._flush(b), function.args
        self.emit.repeat(b.sub(last, first), lambda i: body(b.add(first, i)))
        restore()
        b.ret_void()
        b.position_at_end(before)
        counts = ir.GlobalVariable(module, I64, f"{function.name}_count")
        counts.initializer = I64(count)
        member, word = add_team_member(function), ir.IntType(32)
        start = ir.FunctionType(ir.VoidType(), [member.type, fields, word, word])
        parallel = module.globals.get("GOMP_parallel") or ir.Function(module, start, "GOMP_parallel")
        workers = b.load(pointer_to(self.memory.workers.ctypes.data, word))
        with b.if_else(b.icmp_signed(">", workers, word(1))) as (several, one):
            with several:
                b.call(parallel, [member, counts, workers, word(0)])
            with one:
                b.call(function, [counts, I64(0), I64(count)])

    def _summed(
        self, x: ir.Value, weights: ir.Value, inputs: int, width: int, totals: list[ir.Value]
    ) -> list[ir.Value]:
        """Emit code that adds Σ_j weights_j x_j to ``totals``, for ``width`` vectors of outputs; return the sums.

        The sum is over ``inputs`` numbers x_j. If ``width`` is less than TILE_VECTORS, the code processes several
        inputs at once. Padding after the last input is not read, because it may be infinite, and infinity times zero is
        NaN.
        """
        b, emit, unroll = self.builder, self.emit, TILE_VECTORS // width

        def some(first: ir.Value, count: int, at_once: int, totals: list[ir.Value]) -> list[ir.Value]:
            """Emit code that adds the weighted inputs from input ``first`` on to the sums; return the sums.

            There are ``count`` rounds, and each round adds ``at_once`` inputs.
            """

            def one(j: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                results = []
                for k, total in enumerate(sums):
                    number, part = emit.sum(first, emit.times(j, at_once)), k // width
                    vector = self._load(weights, emit.times(number, width), part * width + k % width)
                    value = emit.broadcast(emit.at(x, number, part), self.lanes)
                    results.append(emit.multiply_add(vector, value, total))
                return results

            changed, kept = totals[: at_once * width], totals[at_once * width :]
            zeros = [self.emit.constant(self.lanes, (0.0,))] * len(changed)
            parts = self.emit.loop(I64(count), zeros, one)
            return [*(b.fadd(total, part) for total, part in zip(changed, parts, strict=True)), *kept]

        groups, single = divmod(inputs, unroll)
        whole, rest = divmod(groups, SUM_BLOCK)
        block = SUM_BLOCK * unroll
        totals = self.emit.loop(I64(whole), totals, lambda i, sums: some(b.mul(i, I64(block)), SUM_BLOCK, unroll, sums))
        totals = some(I64(whole * block), rest, unroll, totals)
        return some(I64(groups * unroll), single, 1, totals)
