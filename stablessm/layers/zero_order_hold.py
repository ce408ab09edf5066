"""The zero-order hold, with derivatives in closed form. On a GPU, each pass (forward or backward) is one kernel.

The factors are a = e^z and g = φ(z) dt, where z = λ dt and φ(z) = (e^z - 1) / z. Their derivatives are

    ∂a/∂λ = dt a,   ∂a/∂dt = λ a,   ∂g/∂λ = dt² φ'(z),   ∂g/∂dt = a,   φ'(z) = (e^z - φ(z)) / z.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.scan import resolve
from stablessm.scan.checks import REAL_DTYPE, check_kinds, check_like, check_tensor
from stablessm.scan.dispatch import exporting, forward_mode, plain, quick
from stablessm.scan.plain_gradients import plain_gradients


def phi(z: Tensor) -> Tensor:
    """Compute φ(z) = (e^z - 1) / z, with φ(0) = 1 and the correct gradient at 0.

    >>> phi(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 1.7183])
    """
    small = z.abs() < torch.finfo(z.dtype).eps ** 0.2  # below this, z⁵/720 is less than a rounding error
    safe = torch.where(small, torch.ones_like(z), z)
    series = 1 + z / 2 * (1 + z / 3 * (1 + z / 4 * (1 + z / 5)))
    return torch.where(small, series, torch.expm1(safe) / safe)


def zero_order_hold(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the factors a = e^{λ dt} and g = (e^{λ dt} - 1) / λ of the zero-order hold.

    The discretization is exact for an input that is constant between samples.

    >>> decay, gain = zero_order_hold(torch.tensor([-1.0, 0.0]), torch.tensor(0.5))
    >>> decay, gain
    (tensor([0.6065, 1.0000]), tensor([0.3935, 0.5000]))
    """
    if dt.dtype == REAL_DTYPE.get(eigenvalues.dtype) and dt.device == eigenvalues.device:
        if torch.compiler.is_compiling():
            if _has_kernel(eigenvalues, dt) and not exporting():
                return hold_op(eigenvalues, dt)
        elif quick(eigenvalues) and plain(dt) and not forward_mode():
            decay, gain = _Hold.apply(eigenvalues, dt)
            return decay, gain
    return plainly(eigenvalues, dt)


def plainly(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the factors a and g of :func:`zero_order_hold` with PyTorch operations, differentiable to any order."""
    z = eigenvalues * dt
    return z.exp(), phi(z) * dt


class _Hold(torch.autograd.Function):
    """The autograd function of the zero-order hold: a Triton kernel where one exists, otherwise PyTorch operations."""

    @staticmethod
    def forward(ctx: Any, eigenvalues: Tensor, dt: Tensor) -> Any:
        ctx.kernel = _has_kernel(eigenvalues, dt)
        if ctx.kernel:
            from stablessm.layers import triton_hold

            ctx.save_for_backward(eigenvalues, dt)
            return triton_hold.forward(eigenvalues, dt)
        decay, gain, *rest = _factors(eigenvalues, dt)
        ctx.save_for_backward(eigenvalues, dt, decay, gain, *rest)
        return decay, gain

    @staticmethod
    def backward(ctx: Any, d_decay: Tensor, d_gain: Tensor) -> tuple[Tensor | None, ...]:
        eigenvalues, dt, *found = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph, the gradient must be differentiable
            return plain_gradients(plainly, (eigenvalues, dt), ctx.needs_input_grad, (d_decay, d_gain))
        if ctx.kernel and plain(d_decay) and plain(d_gain):
            from stablessm.layers import triton_hold

            return triton_hold.backward(eigenvalues, dt, d_decay, d_gain)
        return _gradients(d_decay, d_gain, eigenvalues, dt, *(found or _factors(eigenvalues, dt)))


def _factors(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the factors a and g of the hold, dt in the dtype of λ, and a mask that is True where z = λ dt is small.

    The gradients use dt and the mask. They need φ', which is (e^z - φ)/z. For small z this difference loses digits, so
    where the mask is True, φ' is computed from the series φ'/φ = 1/2 + z/12 - z³/720 + … (Bernoulli numbers), which
    loses none. The limit of the mask is |z|⁴ = 720 ε, where both formulas have the same error. Autograd does not
    differentiate this function, so the unused branch of a ``where`` may divide by 0.
    """
    step = dt.to(eigenvalues.dtype)  # once, because each product of real and complex would convert it again
    z = eigenvalues * step
    eps = torch.finfo(z.dtype).eps
    size = z.abs()
    decay = torch.polar(z.real.exp(), z.imag) if z.is_complex() else z.exp()  # four times faster than a complex exp
    series = torch.addcmul(step, step, z, value=0.5)  # the next term, z²/6, is below a rounding error for |z| < √ε
    gain = torch.where(size < eps**0.5, series, torch.expm1(z) / eigenvalues)
    return decay, gain, step, size < (720 * eps) ** 0.25


def _gradients(
    d_decay: Tensor, d_gain: Tensor, eigenvalues: Tensor, dt: Tensor, *found: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the gradients with respect to the eigenvalues λ and dt, in the shapes of λ and dt.

    ``found`` are the results of :func:`_factors`.
    """
    decay, gain, step, small = found
    z = eigenvalues * step
    series = torch.addcmul(gain * 0.5, gain, z, value=1 / 12)
    slope = torch.where(small, series, (decay * step - gain) / z)  # φ'(z) dt
    by_decay = decay.conj_physical() * d_decay
    d_eigenvalues = step * torch.addcmul(by_decay, slope.conj_physical(), d_gain)
    # Re Σ (conj(λ a) d_a + conj(a) d_g), as products of real numbers
    lam, d_a, a, d_g = (_in_parts(part) for part in (eigenvalues, by_decay, decay, d_gain))
    d_dt = torch.addcmul(lam * d_a, a, d_g).sum_to_size(*dt.shape, 1).squeeze(-1)
    return d_eigenvalues.sum_to_size(eigenvalues.shape), d_dt


def _in_parts(z: Tensor) -> Tensor:
    """Return z as real numbers with a new last dimension, of size 2 (real and imaginary part) if z is
    complex, else 1.
    """
    return torch.view_as_real(z.resolve_conj()) if z.is_complex() else z[..., None]


def _has_kernel(eigenvalues: Tensor, dt: Tensor) -> bool:
    """Return True if the Triton kernel supports these tensors: on a GPU, with one dt per row of λ."""
    rows = dt.shape == (*eigenvalues.shape[:-1], 1) and eigenvalues.numel() > 0 and eigenvalues.dim() > 0
    return rows and resolve("auto", eigenvalues.device) == "triton"


def _check_raw(eigenvalues: Tensor, dt: Tensor) -> None:
    """Raise an error unless the arguments of the operator ``stablessm::hold`` are valid."""
    check_tensor("eigenvalues", eigenvalues)
    check_tensor("dt", dt)
    check_kinds("eigenvalues", eigenvalues=eigenvalues, dt=dt)
    if not _has_kernel(eigenvalues, dt) or eigenvalues.dtype not in REAL_DTYPE:
        expected = (
            f"(…, N) of float32 or better on a GPU, with one dt for each row, shape {(*eigenvalues.shape[:-1], 1)}"
        )
        raise ArgumentError(
            "eigenvalues", expected, f"{eigenvalues.dtype} on {eigenvalues.device}, dt {tuple(dt.shape)}"
        )
    if dt.is_complex():
        raise ArgumentError("dt", "a real dtype", dt.dtype)


@torch.library.custom_op("stablessm::hold", mutates_args=())
def hold_op(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """The operator ``stablessm::hold``: compute the factors a and g of the zero-order hold with the Triton kernel.

    The kernel is called through an operator because ``torch.compile`` does not compile complex numbers.
    """
    from stablessm.layers import triton_hold

    _check_raw(eigenvalues, dt)
    return triton_hold.forward(eigenvalues, dt)


@torch.library.custom_op("stablessm::hold_backward", mutates_args=())
def hold_backward_op(eigenvalues: Tensor, dt: Tensor, d_decay: Tensor, d_gain: Tensor) -> tuple[Tensor, Tensor]:
    """The operator ``stablessm::hold_backward``: compute the gradients of the hold with respect to λ and dt."""
    from stablessm.layers import triton_hold

    _check_raw(eigenvalues, dt)
    for name, gradient in (("d_decay", d_decay), ("d_gain", d_gain)):
        check_like(name, gradient, tuple(eigenvalues.shape), eigenvalues.dtype, eigenvalues.device)
    return triton_hold.backward(eigenvalues, dt, d_decay, d_gain)


@hold_op.register_fake
def _(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    return eigenvalues.new_empty(eigenvalues.shape), eigenvalues.new_empty(eigenvalues.shape)


@hold_backward_op.register_fake
def _(eigenvalues: Tensor, dt: Tensor, d_decay: Tensor, d_gain: Tensor) -> tuple[Tensor, Tensor]:
    return eigenvalues.new_empty(eigenvalues.shape), dt.new_empty(dt.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _back(ctx: Any, d_decay: Tensor, d_gain: Tensor) -> tuple[Tensor, Tensor]:
    return hold_backward_op(*ctx.saved_tensors, d_decay, d_gain)


hold_op.register_autograd(_back, setup_context=_keep)
