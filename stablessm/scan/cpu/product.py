"""Matrix products with few rows, y = W x + b: a kernel that reads the weights W once from memory.

A work unit (*tile*) is a group of rows of W. While two rows of x are multiplied with a tile, the next tile is
prefetched; further rows of x find the tile in the cache. The sum of every number of y has one order of its terms, for
any number of threads and any number of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from llvmlite import ir
from torch import Tensor

from stablessm.llvm.emitter import I64, VECTOR_BYTES, Emitter
from stablessm.llvm.kernel import compiled, kernel_entry
from stablessm.scan.cpu import results
from stablessm.scan.cpu.arguments import address

TILE = 4
"""Rows of W in a tile: enough sums to hide the latency of an addition."""
PAIR = 2
"""Rows of x that are multiplied at once, so that a vector of W is loaded from the cache once for both."""
SERIAL_BYTES = 1 << 18
"""Size of W below which one thread takes less time than waking a second one."""
FIELDS = (
    "tiles", "rows", "inputs", "outputs", "x", "x_row", "weight", "weight_row", "bias", "bias_step", "y", "y_row"
)  # fmt: skip
"""The arguments of the kernel: counts, addresses, and strides in numbers (``bias_step`` is 0 without a bias)."""
_ZERO = {dtype: torch.zeros(1, dtype=dtype) for dtype in (torch.float32, torch.float64)}


class Spec(NamedTuple):
    """The options of a kernel: the dtype of x, b and y, and whether the weights are stored in bfloat16."""

    double: bool
    bfloat16: bool
    complex: bool = False
    stream: bool = False


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute W x + b (…, d_output) in the dtype of x, for x (…, d_input) and W with adjacent numbers in each row.

    All tensors have one dtype: float32, float64, or bfloat16, which is computed in float32.
    """
    dtype = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    rows = results.rows(x if x.dim() == 2 else x.reshape(-1, weight.size(1)), dtype)
    bias = _ZERO[dtype] if bias is None else bias.to(dtype)
    outputs = weight.size(0)
    y = results.empty((*x.shape[:-1], outputs), dtype)
    values = {
        "tiles": -(-outputs // TILE), "rows": rows.size(0), "inputs": rows.size(1), "outputs": outputs,
        "x_row": rows.stride(0), "weight_row": weight.stride(0), "y_row": outputs,
        "bias_step": bias.stride(0) if bias.size(0) == outputs else 0,
        "x": address("x", rows), "weight": address("weight", weight), "bias": bias.data_ptr(), "y": y.data_ptr(),
    }  # fmt: skip
    workers = 1 if weight.nbytes < SERIAL_BYTES else torch.get_num_threads()
    compiled(build, Spec(dtype == torch.float64, x.dtype != dtype))(FIELDS, values, values["tiles"], workers)
    return y if x.dtype == dtype else y.to(x.dtype)


def build(spec: Spec) -> ir.Function:
    """Return the LLVM function of the kernel."""
    number = ir.DoubleType() if spec.double else ir.FloatType()
    pointers = {"x": number, "weight": ir.IntType(16) if spec.bfloat16 else number, "bias": number, "y": number}
    b, f, first, last = kernel_entry("product", FIELDS, pointers)
    emit = Emitter(b, spec)
    lanes = VECTOR_BYTES // emit.size
    whole, ahead = b.sdiv(f["inputs"], I64(lanes)), emit.times(f["weight_row"], TILE)
    pairs, rest = b.sdiv(f["rows"], I64(PAIR)), b.srem(f["inputs"], I64(lanes))

    def tile(number: ir.Value) -> None:
        outputs = [emit.sum(emit.times(emit.sum(first, number), TILE), k) for k in range(TILE)]
        end = b.sub(f["outputs"], I64(1))  # the last tile computes the last row again, in place of rows past the end
        outputs = [b.select(b.icmp_signed("<", k, end), k, end) for k in outputs]
        emit.repeat(pairs, lambda i: products(outputs, [emit.sum(emit.times(i, PAIR), k) for k in range(PAIR)]))
        emit.repeat(b.srem(f["rows"], I64(PAIR)), lambda i: products(outputs, [emit.sum(emit.times(pairs, PAIR), i)]))

    def products(outputs: list[ir.Value], rows: list[ir.Value]) -> None:
        xs = [emit.at(f["x"], emit.times(row, f["x_row"])) for row in rows]
        starts = [emit.at(f["weight"], emit.times(k, f["weight_row"])) for k in outputs]

        def terms(begin: ir.Value, lanes: int, i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            place = emit.sum(begin, emit.times(i, lanes))
            inputs = [emit.load(emit.at(x, place), lanes) for x in xs]
            weights = [_weights(emit, emit.at(start, place), lanes) for start in starts]
            for start in starts if len(rows) == PAIR and lanes > 1 else ():  # slows a single row by a tenth
                emit.prefetch(emit.at(start, place, ahead))
            return [
                emit.multiply_add(weights[n // len(rows)], inputs[n % len(rows)], total) for n, total in enumerate(sums)
            ]

        zeros = [emit.constant(lanes, (0.0,))] * (TILE * len(rows))
        sums = emit.loop(whole, zeros, lambda i, sums: terms(I64(0), lanes, i, sums))
        begin = emit.times(whole, lanes)
        sums = emit.loop(rest, [emit.total(z) for z in sums], lambda i, sums: terms(begin, 1, i, sums))
        for n, total in enumerate(sums):
            bias = emit.load(emit.at(f["bias"], emit.times(outputs[n // len(rows)], f["bias_step"])), 1)
            place = emit.at(f["y"], emit.times(rows[n % len(rows)], f["y_row"]), outputs[n // len(rows)])
            emit.store(b.fadd(total, bias), place)

    emit.repeat(b.sub(last, first), tile)
    b.ret_void()
    return b.function


def _weights(emit: Emitter[Spec], pointer: ir.Value, lanes: int) -> ir.Value:
    """Emit code that loads weights and, from bfloat16, converts them to float32."""
    if not emit.spec.bfloat16:
        return emit.load(pointer, lanes)
    b, wide = emit.builder, ir.VectorType(ir.IntType(32), lanes)
    loaded = b.load(b.bitcast(pointer, ir.VectorType(ir.IntType(16), lanes).as_pointer()))
    loaded.align = 2
    return b.bitcast(b.shl(b.zext(loaded, wide), ir.Constant(wide, [16] * lanes)), emit.vector(lanes))
