"""Emits LLVM instructions for CPU kernels: loops, addresses, and vector arithmetic on real or complex numbers.

Addresses are typed pointers, on which ``getelementptr`` computes in units of their elements. No pointer is made from an
integer, except for addresses from outside the code (:func:`pointer_to`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from llvmlite import ir

VECTOR_BYTES = 64

I64 = ir.IntType(64)


def pointer_to(address: int, element: ir.Type) -> ir.Constant:
    """Return an LLVM pointer constant to elements of the type ``element``, for an address in this process, such as the
    address of a NumPy array.
    """
    return I64(address).inttoptr(element.as_pointer())


class Arithmetic(Protocol):
    """The options that determine the arithmetic of a kernel: the dtype, real or complex, and whether stores bypass the
    cache.
    """

    @property
    def double(self) -> bool:
        """True if numbers are float64, False if they are float32."""

    @property
    def complex(self) -> bool:
        """True if numbers are complex and stored as interleaved pairs (re, im)."""

    @property
    def stream(self) -> bool:
        """True if stores of whole vectors bypass the cache."""


Options = TypeVar("Options", bound=Arithmetic)


class Emitter(Generic[Options]):
    """Emits LLVM instructions: loops, integer arithmetic, and vector arithmetic on real or interleaved
    complex numbers.
    """

    def __init__(self, builder: ir.IRBuilder, spec: Options) -> None:
        self.builder, self.spec = builder, spec
        self.scalar = ir.DoubleType() if spec.double else ir.FloatType()
        self.size = 8 if spec.double else 4

    def vector(self, lanes: int) -> ir.VectorType:
        """Return the LLVM type of a vector with ``lanes`` numbers."""
        return ir.VectorType(self.scalar, lanes)

    def constant(self, lanes: int, values: Sequence[float]) -> ir.Constant:
        """Return a constant vector that repeats ``values`` until all ``lanes`` elements are filled."""
        return ir.Constant(self.vector(lanes), [values[i % len(values)] for i in range(lanes)])

    def sum(self, *terms: ir.Value | int) -> ir.Value:
        """Emit code for the sum of integers, and return the sum."""
        total, *rest = (I64(term) if isinstance(term, int) else term for term in terms)
        for term in rest:
            total = self.builder.add(total, term)
        return total

    def times(self, *factors: ir.Value | int) -> ir.Value:
        """Emit code for the product of integers, and return the product."""
        product, *rest = (I64(factor) if isinstance(factor, int) else factor for factor in factors)
        for factor in rest:
            product = self.builder.mul(product, factor)
        return product

    def at(self, pointer: ir.Value, *terms: ir.Value | int) -> ir.Value:
        """Emit code for the address of the array element with the index Σ ``terms``, and return the address.

        The terms are added to the address in this order. Pass terms that do not change inside a loop first, because
        LLVM can then move their addition out of the loop.
        """
        for term in terms:
            pointer = self.builder.gep(pointer, [I64(term) if isinstance(term, int) else term])
        return pointer

    def load(self, pointer: ir.Value, lanes: int) -> ir.Value:
        """Emit code that loads a vector of ``lanes`` numbers from the address ``pointer``, and return the vector.

        The address must be a multiple of the size of one number. It need not be a multiple of the size of the vector.
        """
        loaded = self.builder.load(self.builder.bitcast(pointer, self.vector(lanes).as_pointer()))
        loaded.align = self.size
        return loaded

    def store(self, value: ir.Value, pointer: ir.Value) -> None:
        """Emit code that stores a vector at the address ``pointer``, bypassing the cache if the option ``stream`` is
        set.
        """
        lanes = value.type.count
        stored = self.builder.store(value, self.builder.bitcast(pointer, value.type.as_pointer()))
        stored.align = self.size
        if self.spec.stream and lanes * self.size == VECTOR_BYTES:
            stored.align = VECTOR_BYTES
            one = ir.Constant(ir.IntType(32), 1)
            stored.set_metadata("nontemporal", self.builder.module.add_metadata([one]))

    def multiply_add(self, u: ir.Value, v: ir.Value, w: ir.Value) -> ir.Value:
        """Emit code for u v + w, as one instruction with a single rounding if the processor has such an instruction."""
        product = self.builder.fmul(u, v, flags=("contract",))
        return self.builder.fadd(product, w, flags=("contract",))

    def product(self, u: ir.Value, v: ir.Value, plus: ir.Value, conjugate: bool = False) -> ir.Value:
        """Emit code for u v + plus or, with ``conjugate``, u conj(v) + plus, for vectors of real or interleaved complex
        numbers.
        """
        if not self.spec.complex:
            return self.multiply_add(u, v, plus)
        lanes = u.type.count
        real = self._shuffle(v, [i - i % 2 for i in range(lanes)])
        imag = self._shuffle(v, [i - i % 2 + 1 for i in range(lanes)])
        swapped = self._shuffle(u, [i + 1 - 2 * (i % 2) for i in range(lanes)])
        signs = ir.Constant(u.type, [-1.0 if i % 2 == conjugate else 1.0 for i in range(lanes)])
        signed = self.builder.fmul(imag, signs)  # exact; LLVM moves it out of a loop in which v is constant
        return self.multiply_add(swapped, signed, self.multiply_add(u, real, plus))

    def broadcast(self, pointer: ir.Value, lanes: int) -> ir.Value:
        """Emit code that loads the number at the address ``pointer``; return a vector of ``lanes`` elements, each of
        which is this number.
        """
        return self.spread(self.load(pointer, 1), lanes)

    def spread(self, number: ir.Value, lanes: int) -> ir.Value:
        """Return a vector of ``lanes`` copies of ``number``, which is a scalar or a vector of one element."""
        one = self.builder.bitcast(number, self.vector(1))
        return self._shuffle(one, [0] * lanes)

    def _shuffle(self, u: ir.Value, order: list[int]) -> ir.Value:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
        return self.builder.shuffle_vector(u, u, mask)

    def total(self, u: ir.Value) -> ir.Value:
        """Emit code for the sum of the elements of a vector, as a vector of one element: halves are added until one
        element is left.
        """
        while half := u.type.count // 2:
            u = self.builder.fadd(self._shuffle(u, [*range(half)]), self._shuffle(u, [*range(half, 2 * half)]))
        return u

    def prefetch(self, pointer: ir.Value) -> None:
        """Emit code that prefetches the line at the address ``pointer`` for reading, into all cache levels.

        A prefetch of an address outside of all arrays has no effect.
        """
        byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        prefetch = self.builder.module.declare_intrinsic("llvm.prefetch", (byte,), signature)
        self.builder.call(prefetch, [self.builder.bitcast(pointer, byte), i32(0), i32(3), i32(1)])

    def sums(
        self, count: ir.Value, number: int, body: Callable[[ir.Value, int, list[ir.Value]], list[ir.Value]]
    ) -> list[ir.Value]:
        """Emit code for ``number`` sums over range(count), first in whole vectors and then one by one; return the sums.

        ``sums = body(i, lanes, sums)`` adds the terms i … i + lanes - 1, with vectors of ``lanes`` elements.
        """
        width = VECTOR_BYTES // self.size
        whole, rest = self.builder.sdiv(count, I64(width)), self.builder.srem(count, I64(width))
        zeros = [self.constant(width, (0.0,))] * number
        totals = self.loop(whole, zeros, lambda i, sums: body(self.times(i, width), width, sums))
        begin = self.times(whole, width)
        totals = [self.total(part) for part in totals]
        return self.loop(rest, totals, lambda i, sums: body(self.sum(begin, i), 1, sums))

    def repeat(self, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """Emit a loop whose body is ``body(i)``, for i in range(count)."""

        def one(i: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            body(i)
            return carried

        self.loop(count, [], one)

    def loop(
        self, count: ir.Value, carried: list[ir.Value], body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]]
    ) -> list[ir.Value]:
        """Emit code for a loop with ``carried = body(i, carried)`` for i in range(count); return the
        last ``carried``.
        """
        builder = self.builder
        before = builder.block
        head, inside, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(I64(0), before)
        phis = [builder.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
        builder.position_at_end(inside)
        results = body(index, list(phis))
        index.add_incoming(builder.add(index, I64(1)), builder.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return list(phis)
