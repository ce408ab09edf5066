"""The CPU kernel of one step of a selective layer, which changes the state in place and reads every array once.

A vector contains states of one channel, and a work unit is one channel of one sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from llvmlite import ir
from torch import Tensor

from stablessm.llvm.emitter import I64, VECTOR_BYTES, Emitter
from stablessm.llvm.kernel import compiled, kernel_entry
from stablessm.llvm.vector_functions import VectorMath
from stablessm.scan.cpu import results
from stablessm.scan.cpu.arguments import address

SERIAL_STATES = 1 << 13
"""Below this number of states one thread takes less time than waking a second one."""
FIELDS = ("units", "channels", "states", "B_row", "C_row", "x", "delta", "rate", "B", "C", "state", "y")
"""The arguments of the kernel: counts, strides of B and C in numbers, and addresses."""


class Spec(NamedTuple):
    """The options of the kernel: whether it computes in float64."""

    double: bool
    complex: bool = False
    stream: bool = False


def step(x: Tensor, delta: Tensor, rate: Tensor, B: Tensor, C: Tensor, state: Tensor) -> Tensor:
    """Replace the state h (B, H, N) by exp(-delta e^rate) h + delta B x; return Σ_n C h of the new state, (B, H).

    x and ``delta`` are (B, H), ``rate`` is (H, N), B and C are (B, N), all float32 or all float64. The state must be
    contiguous.
    """
    dtype = state.dtype
    x, delta, rate, y = x.contiguous(), delta.contiguous(), rate.contiguous(), results.empty(x.shape, dtype)
    B, C = results.rows(B, dtype), results.rows(C, dtype)
    values = {
        "units": x.numel(), "channels": x.size(1), "states": B.size(1), "B_row": B.stride(0), "C_row": C.stride(0),
        "x": x.data_ptr(), "delta": delta.data_ptr(), "rate": address("rate", rate), "B": B.data_ptr(),
        "C": C.data_ptr(), "state": address("state", state), "y": y.data_ptr(),
    }  # fmt: skip
    workers = 1 if state.numel() < SERIAL_STATES else torch.get_num_threads()
    compiled(build, Spec(dtype == torch.float64))(FIELDS, values, values["units"], workers)
    return y


def build(spec: Spec) -> ir.Function:
    """Return the LLVM function of the kernel."""
    number = ir.DoubleType() if spec.double else ir.FloatType()
    b, f, first, last = kernel_entry("selective_step", FIELDS, dict.fromkeys(FIELDS[5:], number))
    emit = Emitter(b, spec)
    width = VECTOR_BYTES // emit.size
    whole, rest = b.sdiv(f["states"], I64(width)), b.srem(f["states"], I64(width))

    def unit(number: ir.Value) -> None:
        unit = b.add(first, number)
        sequence, channel = b.sdiv(unit, f["channels"]), b.srem(unit, f["channels"])
        rows = [emit.at(f[name], emit.times(sequence, f[f"{name}_row"])) for name in "BC"]
        rate, state = (emit.at(f[name], emit.times(k, f["states"])) for name, k in (("rate", channel), ("state", unit)))

        def states(begin: ir.Value, lanes: int, i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            n, math = emit.sum(begin, emit.times(i, lanes)), VectorMath(emit, lanes)
            delta, x = (emit.broadcast(emit.at(f[name], unit), lanes) for name in ("delta", "x"))
            A, before, B, C = (emit.load(emit.at(start, n), lanes) for start in (rate, state, *rows))
            decay = math.exp(b.fneg(b.fmul(delta, math.exp(A))))
            after = emit.multiply_add(decay, before, b.fmul(b.fmul(delta, x), B))
            emit.store(after, emit.at(state, n))
            return [emit.multiply_add(after, C, sums[0])]

        sums = emit.loop(whole, [emit.constant(width, (0.0,))], lambda i, sums: states(I64(0), width, i, sums))
        begin = emit.times(whole, width)
        sums = emit.loop(rest, [emit.total(sums[0])], lambda i, sums: states(begin, 1, i, sums))
        emit.store(sums[0], emit.at(f["y"], unit))

    emit.repeat(b.sub(last, first), unit)
    b.ret_void()
    return b.function
