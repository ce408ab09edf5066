"""Matrix products with few rows, y = W x + b: a kernel that reads the weights W once from memory.

A work unit (*tile*) is a group of rows of W. While two rows of x are multiplied with a tile, the next tile is
prefetched; further rows of x find the tile in the cache. The sum of every number of y has one order of its terms, for
any number of threads and any number of rows.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from llvmlite import ir
from torch import Tensor

from stablessm.llvm.emitter import I64, Emitter
from stablessm.llvm.kernel import Kernel, compiled, kernel_entry, over_units
from stablessm.scan.cpu import results
from stablessm.scan.cpu.arguments import address

TILE = 4
"""Rows of W in a tile: enough sums to hide the latency of an addition."""
PAIR = 2
"""Rows of x that are multiplied at once, so that a vector of W is loaded from the cache once for both."""
SERIAL_BYTES = 1 << 18
"""Size of W below which one thread takes less time than waking a second one."""


class Spec(NamedTuple):
    """The options of a kernel: whether it computes in float64, and whether parameters are stored in bfloat16."""

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
    y = results.empty((*x.shape[:-1], weight.size(0)), dtype)
    kernel, values = call(rows, weight, bias, y)
    kernel(values, 1 if weight.nbytes < SERIAL_BYTES else torch.get_num_threads())
    return y if x.dtype == dtype else y.to(x.dtype)


def call(rows: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> tuple[Kernel, dict[str, int]]:
    """Return the call of the kernel that writes W x + b to y, for each row x, as adjacent numbers."""
    outputs, dtype = weight.size(0), weight.dtype
    bias = zero(dtype) if bias is None else bias
    values = {
        "units": -(-outputs // TILE), "rows": rows.size(0), "inputs": weight.size(1), "outputs": outputs,
        "x_row": rows.stride(0), "weight_row": weight.stride(0), "y_row": outputs,
        "bias_step": bias.stride(0),
        "x": address("x", rows), "weight": address("weight", weight), "bias": bias.data_ptr(), "y": y.data_ptr(),
    }  # fmt: skip
    return compiled(build, Spec(dtype == torch.float64, dtype == torch.bfloat16)), values


@functools.cache
def zero(dtype: torch.dtype) -> Tensor:
    """Return the bias of a product that has none, for any number of outputs."""
    return torch.zeros(1, dtype=dtype).expand(2)


def build(spec: Spec) -> ir.Function:
    """Return the LLVM function of the kernel."""
    number = ir.DoubleType() if spec.double else ir.FloatType()
    kept = parameter_type(spec)
    b, f = kernel_entry({"x": number, "weight": kept, "bias": kept, "y": number})
    emit = Emitter(b, spec)
    pairs, ahead = b.sdiv(f["rows"], I64(PAIR)), emit.times(f["weight_row"], TILE)

    def tile(number: ir.Value) -> None:
        outputs = [emit.sum(emit.times(number, TILE), k) for k in range(TILE)]
        end = b.sub(f["outputs"], I64(1))  # the last tile computes the last row again, in place of rows past the end
        outputs = [b.select(b.icmp_signed("<", k, end), k, end) for k in outputs]
        emit.repeat(pairs, lambda i: products(outputs, [emit.sum(emit.times(i, PAIR), k) for k in range(PAIR)]))
        emit.repeat(b.srem(f["rows"], I64(PAIR)), lambda i: products(outputs, [emit.sum(emit.times(pairs, PAIR), i)]))

    def products(outputs: list[ir.Value], rows: list[ir.Value]) -> None:
        xs = [emit.at(f["x"], emit.times(row, f["x_row"])) for row in rows]
        starts = [emit.at(f["weight"], emit.times(k, f["weight_row"])) for k in outputs]

        def terms(place: ir.Value, lanes: int, sums: list[ir.Value]) -> list[ir.Value]:
            inputs = [emit.load(emit.at(x, place), lanes) for x in xs]
            weights = [parameter(emit, emit.at(start, place), lanes) for start in starts]
            for start in starts if len(rows) == PAIR and lanes > 1 else ():  # slows a single row by a tenth
                emit.prefetch(emit.at(start, place, ahead))
            return [
                emit.multiply_add(weights[n // len(rows)], inputs[n % len(rows)], total) for n, total in enumerate(sums)
            ]

        for n, total in enumerate(emit.sums(f["inputs"], TILE * len(rows), terms)):
            bias = parameter(emit, emit.at(f["bias"], emit.times(outputs[n // len(rows)], f["bias_step"])), 1)
            place = emit.at(f["y"], emit.times(rows[n % len(rows)], f["y_row"]), outputs[n // len(rows)])
            emit.store(b.fadd(total, bias), place)

    return over_units(emit, tile)


def parameter_type(spec: Any) -> ir.Type:
    """Return the LLVM type of a stored parameter."""
    return ir.IntType(16) if spec.bfloat16 else ir.DoubleType() if spec.double else ir.FloatType()


def parameter(emit: Emitter[Any], pointer: ir.Value, lanes: int) -> ir.Value:
    """Emit code that loads parameters and, from bfloat16, converts them to float32."""
    if not emit.spec.bfloat16:
        return emit.load(pointer, lanes)
    b, wide = emit.builder, ir.VectorType(ir.IntType(32), lanes)
    loaded = b.load(b.bitcast(pointer, ir.VectorType(ir.IntType(16), lanes).as_pointer()))
    loaded.align = 2
    return b.bitcast(b.shl(b.zext(loaded, wide), ir.Constant(wide, [16] * lanes)), emit.vector(lanes))
