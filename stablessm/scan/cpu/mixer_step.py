"""One step of a Mamba mixer on a CPU, in one call: its matrix products, its convolution and its recurrence.

The kernels run in order on the same threads (:class:`.Sequence`). A work unit of the convolution and of the
recurrence is a block of adjacent channels of one sequence, as many as a vector has elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, final

import torch
from llvmlite import ir
from torch import Tensor

from stablessm.llvm.emitter import I64, VECTOR_BYTES, Emitter
from stablessm.llvm.kernel import Kernel, Sequence, compiled, kernel_entry, over_units
from stablessm.llvm.vector_functions import VectorMath
from stablessm.scan.cpu import product
from stablessm.scan.cpu.product import parameter

Call: TypeAlias = tuple[Kernel, dict[str, int]]


class Spec(NamedTuple):
    """The options of a kernel, which are compiled into the kernel as constants."""

    double: bool
    bfloat16: bool
    """True if parameters are stored in bfloat16."""
    heads: bool
    """True if each head has one rate; False if each channel and state has one."""
    eps: float
    """The number that norms add to the mean square."""
    least: float
    """Lower bound of delta."""
    most: float
    complex: bool = False
    stream: bool = False


class Mixer(NamedTuple):
    """The parameters of a mixer, all contiguous and of one dtype: float32, float64 or bfloat16."""

    in_proj: Tensor
    """The weights of x and the gate or, with heads, of the gate, x, B, C and delta."""
    in_bias: Tensor | None
    conv: Tensor
    conv_bias: Tensor | None
    out_proj: Tensor
    out_bias: Tensor | None
    rate: Tensor
    """log(-A), of shape (channels, states) or (heads,)."""
    D: Tensor
    dt_bias: Tensor
    x_proj: Tensor | None = None
    """The weights of delta, B and C; None with heads."""
    dt_proj: Tensor | None = None
    norms: tuple[Tensor, ...] = ()
    """The weights of the norms of delta, B and C or, with heads, of the output."""


def fits(x: Tensor, mixer: Mixer, tail: Tensor, state: Tensor) -> bool:
    """Return True if all tensors have the dtypes, shapes and memory that :class:`Step` requires."""
    wide = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    kept = [tensor for tensor in (*mixer[:-1], *mixer.norms) if isinstance(tensor, Tensor)]
    for tensor in (tail, state, *kept):
        if tensor.layout != torch.strided or not (tensor.is_cpu and tensor.is_contiguous() and tensor.data_ptr()):
            return False
    if any(tensor.dtype != x.dtype for tensor in kept) or not tail.dtype == state.dtype == wide:
        return False
    (batch, mixing, taps), (outputs, channels), states = tail.shape, mixer.out_proj.shape, state.size(-1)
    heads, rank = mixer.D.size(0), 0 if mixer.dt_proj is None else mixer.dt_proj.size(1)
    groups = (mixing - channels) // (2 * states)
    if rank:
        rate: tuple[int, ...] = (channels, states)
        total, sizes, whole = 2 * channels, [rank, states, states], mixing == channels == heads
    else:
        rate, total, sizes = (heads,), channels + mixing + heads, [channels]
        whole = groups > 0 and mixing == channels + 2 * groups * states and channels % heads == heads % groups == 0
    shapes = (
        (total, x.size(1)), (total,), (mixing, 1, taps), (mixing,), (outputs, channels), (outputs,), rate, (heads,),
        (heads,), (rank + 2 * states, channels), (channels, rank),
    )  # fmt: skip
    whole &= x.size(0) == batch == state.size(0) and state.numel() == batch * channels * states
    whole &= all(weight.numel() >= size for weight, size in zip(mixer.norms, sizes, strict=False))
    found = (getattr(tensor, "shape", shape) for tensor, shape in zip(mixer, shapes, strict=False))
    return wide in (torch.float32, torch.float64) and mixer.dt_bias is not None and whole and (*found,) == shapes


@final
class Step:
    """One step of a mixer for a batch of one size.

    Args:
        x: an input of the step (B, d_input).
        mixer: the parameters, which stay at the same places in memory.
        tail: the last inputs of the convolution (B, its channels, K), contiguous, in float32 or float64.
        state: the state (B, …, states), contiguous and of the same dtype.
        options: ``eps``, ``least`` and ``most`` of the kernels.
    """

    def __init__(
        self, x: Tensor, mixer: Mixer, tail: Tensor, state: Tensor, options: tuple[float, float, float]
    ) -> None:
        dtype, (batch, mixing, taps), states = state.dtype, tail.shape, state.size(-1)
        spec = Spec(dtype == torch.float64, x.dtype == torch.bfloat16, mixer.x_proj is None, *options)
        outputs, channels = mixer.out_proj.shape
        self._x, projected, mixed, inner, delta, self._y = own = [
            torch.empty(batch, size, dtype=dtype)
            for size in (x.size(1), mixer.in_proj.size(0), mixing, channels, channels, outputs)
        ]
        self._kept: list[Any] = [*own, mixer]
        gate, inputs = (projected, projected[:, channels:]) if spec.heads else (projected[:, channels:], projected)
        bias = product.zero(x.dtype) if mixer.conv_bias is None else mixer.conv_bias
        calls = [
            product.call(self._x, mixer.in_proj, mixer.in_bias, projected),
            _call(convolution, spec, mixed, taps=taps, x=inputs, tail=tail, weight=mixer.conv, bias=bias, y=mixed),
        ]
        if mixer.x_proj is None or mixer.dt_proj is None:
            width = (mixing - channels) // 2
            _, B, C = mixed.split((channels, width, width), 1)
            delta = inputs[:, mixing:]
        else:
            given, width = mixed.new_empty(batch, mixer.x_proj.size(0)), states
            parts = _, B, C = given.split((mixer.dt_proj.size(1), states, states), 1)
            calls.append(product.call(mixed, mixer.x_proj, None, given))
            calls += [_norm(spec, part, weight) for part, weight in zip(parts, mixer.norms, strict=False)]
            calls.append(product.call(given, mixer.dt_proj, None, delta))
            self._kept.append(given)
        calls.append(_call(
            recurrence, spec, inner, states=states, head=channels // mixer.D.size(0),
            group=channels * states // width, x=mixed, delta=delta, gate=gate, B=B, C=C, state=state,
            bias=mixer.dt_bias, rate=mixer.rate, D=mixer.D, y=inner,
        ))  # fmt: skip
        calls += [_norm(spec, inner, weight) for weight in mixer.norms if spec.heads]
        self._run = Sequence([*calls, product.call(inner, mixer.out_proj, mixer.out_bias, self._y)])
        self._serial = mixer.in_proj.nbytes < product.SERIAL_BYTES

    def __call__(self, x: Tensor, tail: Tensor, state: Tensor) -> Tensor:
        """Compute the output (B, d_output), and change ``tail`` and ``state`` in place."""
        run, self._x[...] = self._run, x
        run.table[run.places["tail"]], run.table[run.places["state"]] = tail.data_ptr(), state.data_ptr()
        run(1 if self._serial else torch.get_num_threads())
        return self._y.to(x.dtype, copy=True)


def _call(build: Callable[[Spec], ir.Function], spec: Spec, rows: Tensor, **given: Tensor | int) -> Call:
    """Return the call of a kernel for rows of channels; the first stride of each array is a field."""
    (batch, channels), values = rows.shape, {}
    blocks = -(-channels * rows.itemsize // VECTOR_BYTES)
    for name, value in given.items():
        if isinstance(value, int):
            values[name] = value
        else:
            values[name], values[f"{name}_row"] = value.data_ptr(), value.stride(0)
    return compiled(build, spec), {"units": batch * blocks, "blocks": blocks, "channels": channels} | values


def _norm(spec: Spec, x: Tensor, weight: Tensor) -> Call:
    kernel, values = _call(norm, spec, x, x=x, weight=weight)
    return kernel, {**values, "units": x.size(0)}


class _Code(Emitter[Spec]):
    """Emits code for blocks of channels, whose numbers are gathered in buffers of one vector."""

    def __init__(self, spec: Spec) -> None:
        number = ir.DoubleType() if spec.double else ir.FloatType()
        numbers, parameters = ("x", "y", "delta", "gate", "B", "C", "tail", "state"), ("weight", "bias", "rate", "D")
        self._kept = dict.fromkeys(parameters, product.parameter_type(spec))
        builder, self.fields = kernel_entry(dict.fromkeys(numbers, number) | self._kept)
        super().__init__(builder, spec)
        self.lanes = VECTOR_BYTES // self.size
        self.math = VectorMath(self, self.lanes)

    def buffer(self) -> ir.Value:
        """Return the address of a vector of zeros."""
        room = self.builder.alloca(self.scalar, self.lanes)
        self.store(self.constant(self.lanes, (0.0,)), room)
        return room

    def row(self, name: str, number: ir.Value) -> ir.Value:
        """Return the address of a row of an array."""
        return self.at(self.fields[name], self.times(number, self.fields[f"{name}_row"]))

    def number(self, name: str, row: ir.Value, *terms: ir.Value | int) -> ir.Value:
        """Emit code that loads the element Σ ``terms`` of a row, and return a vector of one element."""
        place = self.at(self.row(name, row), *terms)
        return parameter(self, place, 1) if name in self._kept else self.load(place, 1)

    def over_blocks(self, body: Callable[[ir.Value, ir.Value, ir.Value], None]) -> ir.Function:
        """Emit the loop over the blocks, ``body(sequence, first channel, number of channels)``; return the kernel."""
        b, f = self.builder, self.fields

        def unit(unit: ir.Value) -> None:
            begin = self.times(b.srem(unit, f["blocks"]), self.lanes)
            left, most = b.sub(f["channels"], begin), I64(self.lanes)
            body(b.sdiv(unit, f["blocks"]), begin, b.select(b.icmp_signed("<", left, most), left, most))

        return over_units(self, unit)


def convolution(spec: Spec) -> ir.Function:
    """Return the kernel of the convolution, which moves its last inputs by one step, and of SiLU."""
    emit = _Code(spec)
    f, buffer, newest = emit.fields, emit.buffer(), emit.builder.sub(emit.fields["taps"], I64(1))

    def block(sequence: ir.Value, begin: ir.Value, count: ir.Value) -> None:
        def channel(i: ir.Value) -> None:
            c = emit.sum(begin, i)
            past, x = emit.at(emit.row("tail", sequence), emit.times(c, f["taps"])), emit.number("x", sequence, c)

            def tap(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                moved = emit.load(emit.at(past, k, 1), 1)
                emit.store(moved, emit.at(past, k))
                return [emit.multiply_add(emit.number("weight", c, k), moved, sums[0])]

            (total,) = emit.loop(newest, [emit.number("bias", c)], tap)
            emit.store(x, emit.at(past, newest))
            emit.store(emit.multiply_add(emit.number("weight", c, newest), x, total), emit.at(buffer, i))

        emit.repeat(count, channel)
        emit.store(emit.math.silu(emit.load(buffer, emit.lanes)), buffer)
        y = emit.at(emit.row("y", sequence), begin)
        emit.repeat(count, lambda i: emit.store(emit.load(emit.at(buffer, i), 1), emit.at(y, i)))

    return emit.over_blocks(block)


def norm(spec: Spec) -> ir.Function:
    """Return the kernel of a norm, which divides each row of x by its root mean square, in place."""
    emit = _Code(spec)
    b, f = emit.builder, emit.fields

    def row(number: ir.Value) -> None:
        x = emit.row("x", number)

        def squares(i: ir.Value, lanes: int, sums: list[ir.Value]) -> list[ir.Value]:
            value = emit.load(emit.at(x, i), lanes)
            return [emit.multiply_add(value, value, sums[0])]

        def scaled(i: ir.Value, lanes: int, sums: list[ir.Value]) -> list[ir.Value]:
            value = b.fmul(emit.load(emit.at(x, i), lanes), emit.spread(scale, lanes))
            emit.store(b.fmul(value, parameter(emit, emit.at(f["weight"], i), lanes)), emit.at(x, i))
            return sums

        (total,) = emit.sums(f["channels"], 1, squares)
        mean = b.fdiv(total, emit.spread(b.sitofp(f["channels"], emit.scalar), 1))
        scale = VectorMath(emit, 1).rsqrt(b.fadd(mean, emit.constant(1, (spec.eps,))))
        emit.sums(f["channels"], 0, scaled)

    return over_units(emit, row)


def recurrence(spec: Spec) -> ir.Function:
    """Return the kernel of the recurrence h = exp(delta A) h + delta B x, y = (Σ_n C h + D x) silu(gate).

    delta is the softplus of the sum of its input and its bias, between two bounds, and A = -exp(rate).
    """
    emit = _Code(spec)
    b, f, (deltas, gates) = emit.builder, emit.fields, (emit.buffer(), emit.buffer())
    zero = I64(0)

    def block(sequence: ir.Value, begin: ir.Value, count: ir.Value) -> None:
        def read(i: ir.Value) -> None:
            c = emit.sum(begin, i)
            head = b.sdiv(c, f["head"]) if spec.heads else c
            delta = b.fadd(emit.number("delta", sequence, head), emit.number("bias", zero, head))
            emit.store(delta, emit.at(deltas, i))
            emit.store(emit.number("gate", sequence, c), emit.at(gates, i))

        emit.repeat(count, read)
        delta = emit.math.softplus(emit.load(deltas, emit.lanes))
        emit.store(emit.math.between(delta, spec.least, spec.most), deltas)
        emit.store(emit.math.silu(emit.load(gates, emit.lanes)), gates)
        emit.repeat(count, lambda i: channel(sequence, emit.sum(begin, i), i))

    def channel(sequence: ir.Value, c: ir.Value, i: ir.Value) -> None:
        head, group = (b.sdiv(c, f["head"]), b.sdiv(c, f["group"])) if spec.heads else (c, zero)
        state = emit.at(emit.row("state", sequence), emit.times(c, f["states"]))
        B, C = (emit.at(emit.row(name, sequence), emit.times(group, f["states"])) for name in "BC")
        x, delta, rate = emit.number("x", sequence, c), emit.load(emit.at(deltas, i), 1), emit.row("rate", head)
        drive = b.fmul(delta, x)

        def decay(place: ir.Value, lanes: int) -> ir.Value:
            math = VectorMath(emit, lanes)
            return math.exp(b.fneg(b.fmul(emit.spread(delta, lanes), math.exp(parameter(emit, place, lanes)))))

        shared = decay(rate, 1) if spec.heads else None

        def states(n: ir.Value, lanes: int, sums: list[ir.Value]) -> list[ir.Value]:
            kept = decay(emit.at(rate, n), lanes) if shared is None else emit.spread(shared, lanes)
            before, B_n, C_n = (emit.load(emit.at(start, n), lanes) for start in (state, B, C))
            after = emit.multiply_add(kept, before, b.fmul(emit.spread(drive, lanes), B_n))
            emit.store(after, emit.at(state, n))
            return [emit.multiply_add(after, C_n, sums[0])]

        (total,) = emit.sums(f["states"], 1, states)
        total = emit.multiply_add(emit.number("D", zero, head), x, total)
        emit.store(b.fmul(total, emit.load(emit.at(gates, i), 1)), emit.at(emit.row("y", sequence), c))

    return emit.over_blocks(block)
