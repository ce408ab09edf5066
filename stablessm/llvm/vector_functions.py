"""Activation functions as vector instructions, accurate to a few rounding errors in float32 and float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from stablessm.llvm.emitter import Emitter

_LOG2_HIGH = {False: 0.693359375, True: 6.93147180369123816490e-01}
_LOG2_LOW = {False: -2.12194440e-4, True: 1.90821492927058770002e-10}
"""ln 2 as a sum of two numbers, the first with trailing zeros, so that x - n ln 2 is exact."""
_LARGEST = {False: 87.0, True: 708.0}
"""Largest argument for which exp(x) and exp(-x) are normal numbers."""
_TERMS = {False: 7, True: 14}
"""Number of terms of the series of e^r - 1 for |r| ≤ ln 2 / 2; the next term is below a rounding error."""
_LOG_TERMS = {False: 7, True: 16}
"""Number of terms of the series of artanh(s) after the first, for s ≤ 1/3."""
_ERFC_TERMS = {False: 13, True: 27}


class VectorMath:
    """Emits mathematical functions of one vector; the names of the methods are those in ``program.FUNCTIONS``.

    Every function of NaN is NaN.
    """

    def __init__(self, emit: Emitter, lanes: int) -> None:
        self._emit, self._lanes, self._double = emit, lanes, emit.size == 8

    def relu(self, z: ir.Value) -> ir.Value:
        """Emit code for max(z, 0)."""
        return self._select(self._less(z, 0.0), self._all(0.0), z)

    def hardtanh(self, z: ir.Value) -> ir.Value:
        """Emit code for z limited to the range from -1 to 1."""
        return self.between(z, -1.0, 1.0)

    def tanh(self, z: ir.Value) -> ir.Value:
        """Emit code for tanh(z), computed as -e / (2 + e) with e = exp(-2|z|) - 1 and the sign of z."""
        b = self._emit.builder
        e = self._expm1(b.fmul(self._call("fabs", z), self._all(-2.0)))
        return self._call("copysign", b.fdiv(e, b.fadd(e, self._all(2.0))), z)

    def sigmoid(self, z: ir.Value) -> ir.Value:
        """Emit code for the sigmoid of z: 1 / (1 + e) if z ≥ 0, otherwise e / (1 + e), with e = exp(-|z|)."""
        b = self._emit.builder
        e = self._exp(b.fneg(self._call("fabs", z)))
        return b.fdiv(self._select(self._less(z, 0.0), e, self._all(1.0)), b.fadd(e, self._all(1.0)))

    def silu(self, z: ir.Value) -> ir.Value:
        """Emit code for z sigmoid(z)."""
        return self._emit.builder.fmul(z, self.sigmoid(z))

    def gelu(self, z: ir.Value) -> ir.Value:
        """Emit code for GELU(z): z - z q if z ≥ 0, otherwise z q, with the normal tail q = erfc(|z| / √2) / 2."""
        b = self._emit.builder
        u = b.fmul(self._call("fabs", z), self._all(math.sqrt(0.5)))
        t = b.fdiv(b.fsub(u, self._all(_MAP)), b.fadd(u, self._all(_MAP)))
        scaled = b.fdiv(self._chebyshev(_erfc_series(_ERFC_TERMS[self._double]), t), self._fma(u, 2.0, 1.0))
        tail = b.fmul(z, b.fmul(self._exp(b.fneg(b.fmul(u, u))), b.fmul(scaled, self._all(0.5))))
        return self._select(self._less(z, 0.0), tail, b.fsub(z, tail))

    def phi(self, z: ir.Value) -> ir.Value:
        """Emit code for (e^z - 1) / z, or 1 for z = 0."""
        zero = self._emit.builder.fcmp_ordered("==", z, self._all(0.0))
        ratio = self._emit.builder.fdiv(self._expm1(z), self._select(zero, self._all(1.0), z))
        return self._select(zero, self._all(1.0), ratio)

    def relu_slope(self, z: ir.Value) -> ir.Value:
        """Emit code for the derivative of ReLU: 1 where z > 0, else 0."""
        return self._select(self._less(self._all(0.0), z), self._all(1.0), self._all(0.0))

    def hardtanh_slope(self, z: ir.Value) -> ir.Value:
        """Emit code for the derivative of hardtanh: 1 where |z| < 1, else 0."""
        return self._select(self._less(self._call("fabs", z), 1.0), self._all(1.0), self._all(0.0))

    def tanh_slope(self, z: ir.Value) -> ir.Value:
        """Emit code for the derivative of tanh, 1 - tanh(z)²."""
        b, value = self._emit.builder, self.tanh(z)
        return b.fsub(self._all(1.0), b.fmul(value, value))

    def sigmoid_slope(self, z: ir.Value) -> ir.Value:
        """Emit code for the derivative of the sigmoid, sigmoid(z) sigmoid(-z)."""
        b = self._emit.builder
        return b.fmul(self.sigmoid(z), self.sigmoid(b.fneg(z)))

    def rsqrt(self, z: ir.Value) -> ir.Value:
        """Emit code for 1 / √z."""
        return self.reciprocal(self._call("sqrt", z))

    def reciprocal(self, z: ir.Value) -> ir.Value:
        """Emit code for 1 / z."""
        return self._emit.builder.fdiv(self._all(1.0), z)

    def softplus(self, z: ir.Value) -> ir.Value:
        """Emit code for softplus(z), computed as max(z, 0) + log(1 + e) with e = exp(-|z|)."""
        b = self._emit.builder
        tail = self._log1p(self._exp(b.fneg(self._call("fabs", z))))
        return b.fadd(self._select(self._less(z, 0.0), self._all(0.0), z), tail)

    def expm1(self, z: ir.Value) -> ir.Value:
        """Emit code for e^z - 1, accurate also for small z."""
        return self._expm1(z)

    def sqrt(self, z: ir.Value) -> ir.Value:
        """Emit code for √z."""
        return self._call("sqrt", z)

    def negative(self, z: ir.Value) -> ir.Value:
        """Emit code for min(z, -eps/2), where eps is the machine epsilon, so that 1 + z is below 1 after rounding."""
        largest = self._all(-(2.0 ** (-53 if self._double else -24)))
        return self._select(self._less(largest, z), largest, z)

    def _log1p(self, z: ir.Value) -> ir.Value:
        """Emit code for log(1 + z) for 0 ≤ z ≤ 1, computed as the series of 2 artanh(s) with s = z / (2 + z) ≤ 1/3."""
        b = self._emit.builder
        s = b.fdiv(z, b.fadd(z, self._all(2.0)))
        square, total = b.fmul(s, s), self._all(0.0)
        for k in range(_LOG_TERMS[self._double], 0, -1):
            total = self._emit.multiply_add(total, square, self._all(2 / (2 * k + 1)))
        return self._emit.multiply_add(b.fmul(total, square), s, b.fadd(s, s))

    def exp(self, z: ir.Value) -> ir.Value:
        """Emit code for e^z."""
        return self._exp(z)

    def _exp(self, z: ir.Value) -> ir.Value:
        small, power = self._reduced(z)
        return self._emit.multiply_add(small, power, power)

    def _expm1(self, z: ir.Value) -> ir.Value:
        small, power = self._reduced(z)
        return self._emit.multiply_add(small, power, self._emit.builder.fsub(power, self._all(1.0)))

    def _reduced(self, z: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Emit code for e^r - 1 and 2^n, where z = n ln 2 + r with a whole number n and |r| ≤ ln 2 / 2."""
        b, bits = self._emit.builder, 64 if self._double else 32
        z = self.between(z, -_LARGEST[self._double], _LARGEST[self._double])
        n = self._nearest(b.fmul(z, self._all(math.log2(math.e))))
        r = self._emit.multiply_add(n, self._all(-_LOG2_HIGH[self._double]), z)
        r = self._emit.multiply_add(n, self._all(-_LOG2_LOW[self._double]), r)
        total = self._all(0.0)
        for k in range(_TERMS[self._double], 1, -1):
            total = self._emit.multiply_add(total, r, self._all(1 / math.factorial(k)))
        small = self._emit.multiply_add(b.fmul(total, r), r, r)
        whole = ir.VectorType(ir.IntType(bits), self._lanes)
        bias, shift = (1023, 52) if self._double else (127, 23)  # bias of exponents, and their lowest bit
        exponent = b.add(b.fptosi(n, whole), ir.Constant(whole, [bias] * self._lanes))
        return small, b.bitcast(b.shl(exponent, ir.Constant(whole, [shift] * self._lanes)), z.type)

    def _nearest(self, z: ir.Value) -> ir.Value:
        """Emit code for the whole number nearest to a small z.

        The code adds a large number to z and subtracts it again, which rounds z. It does not use a rounding
        instruction, because on old processors LLVM would replace the instruction by a call of the C library.
        """
        b, large = self._emit.builder, self._all(1.5 * 2.0 ** (52 if self._double else 23))  # too large for a fraction
        return b.fsub(b.fadd(z, large), large)

    def _chebyshev(self, coefficients: Sequence[float], t: ir.Value) -> ir.Value:
        """Emit code for the Chebyshev series Σ c_k T_k(t), by Clenshaw's recurrence."""
        b, twice = self._emit.builder, self._emit.builder.fadd(t, t)
        one, two = self._all(0.0), self._all(0.0)
        for c in reversed(coefficients[1:]):
            one, two = self._emit.multiply_add(twice, one, b.fsub(self._all(c), two)), one
        return self._emit.multiply_add(t, one, b.fsub(self._all(coefficients[0]), two))

    def _fma(self, u: ir.Value, v: float, w: float) -> ir.Value:
        return self._emit.multiply_add(u, self._all(v), self._all(w))

    def between(self, z: ir.Value, low: float, high: float) -> ir.Value:
        """Emit code for z limited to the range from ``low`` to ``high``."""
        z = self._select(self._less(z, low), self._all(low), z)
        return self._select(self._less(self._all(high), z), self._all(high), z)

    def _less(self, u: ir.Value, v: ir.Value | float) -> ir.Value:
        return self._emit.builder.fcmp_ordered("<", u, self._all(v) if isinstance(v, float) else v)

    def _select(self, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        return self._emit.builder.select(condition, yes, no)

    def _all(self, value: float) -> ir.Constant:
        return self._emit.constant(self._lanes, (value if self._double else float(np.float32(value)),))

    def _call(self, name: str, *arguments: ir.Value) -> ir.Value:
        kind, module = arguments[0].type, self._emit.builder.module
        full = f"llvm.{name}.v{self._lanes}f{64 if self._double else 32}"
        known = module.globals.get(full)
        function = known or ir.Function(module, ir.FunctionType(kind, [kind] * len(arguments)), full)
        return self._emit.builder.call(function, arguments)


_MAP = 3.75
"""t = (u - 3.75) / (u + 3.75) maps u ≥ 0 to [-1, 1) such that the series converges fast (Shepherd and Laframboise)."""


@cache
def _erfc_series(terms: int) -> tuple[float, ...]:
    """Return the first ``terms`` Chebyshev coefficients of (1 + 2u) e^{u²} erfc(u).

    The variable of the Chebyshev polynomials is t = (u - 3.75) / (u + 3.75).
    """
    from scipy import special

    def scaled(t: Any) -> Any:
        u = _MAP * (1 + t) / (1 - t)
        return (1 + 2 * u) * special.erfcx(u)

    return tuple(np.polynomial.chebyshev.chebinterpolate(scaled, terms - 1).tolist())
