"""What a user would write for h[t] = a[t] h[t-1] + x[t] if we did not exist: each peer's best public form.

A contender is ``(forward, both)``: two calls without arguments. ``forward`` returns the states, ``both`` the states
and the gradients of a and x for a given gradient of the states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import stablessm as ssm

Contender = tuple[Callable[[], Any], Callable[[], Any]]


def torch_contender(run: Callable[[Tensor, Tensor], Tensor], a: Tensor, x: Tensor, g: Tensor) -> Contender:
    a_leaf, x_leaf = a.clone().requires_grad_(), x.clone().requires_grad_()

    @torch.no_grad()
    def forward() -> Tensor:
        return run(a, x)

    def both() -> tuple[Tensor, ...]:
        states = run(a_leaf, x_leaf)
        return states.detach(), *torch.autograd.grad(states, (a_leaf, x_leaf), g)

    return forward, both


def fft(a: Tensor, x: Tensor) -> Tensor:
    """Convolution with a**t, as S4D trains; a per channel only."""
    steps = x.shape[1]
    kernel = a ** torch.arange(steps, device=x.device, dtype=x.real.dtype)[:, None]
    transform, inverse = (torch.fft.fft, torch.fft.ifft) if x.is_complex() else (torch.fft.rfft, torch.fft.irfft)
    return inverse(transform(x, 2 * steps, dim=1) * transform(kernel, 2 * steps, dim=0), 2 * steps, dim=1)[:, :steps]


def mambapy_pscan(a: Tensor, x: Tensor) -> Tensor:
    from mambapy.pscan import pscan

    return pscan(a.expand(x.shape).unsqueeze(-1), x.unsqueeze(-1)).squeeze(-1)


def jax_contenders(a: Tensor, x: Tensor, g: Tensor) -> dict[str, Contender]:
    import jax
    import jax.numpy as jnp

    per_step = a.dim() > 1
    A, X, G = (jnp.asarray(tensor.cpu().numpy()) for tensor in (a, x, g))

    def lax_scan(a: Any, x: Any) -> Any:
        over_time = jnp.swapaxes(x, 0, 1)
        initial = jnp.zeros_like(over_time[0])
        if per_step:
            sequence = (jnp.swapaxes(a, 0, 1), over_time)
            states = jax.lax.scan(lambda h, ax: (ax[0] * h + ax[1],) * 2, initial, sequence)[1]
        else:
            states = jax.lax.scan(lambda h, u: (a * h + u,) * 2, initial, over_time)[1]
        return jnp.swapaxes(states, 0, 1)

    def associative(a: Any, x: Any) -> Any:
        join = lambda left, right: (right[0] * left[0], right[0] * left[1] + right[1])  # noqa: E731
        return jax.lax.associative_scan(join, (jnp.broadcast_to(a, x.shape), x), axis=1)[1]

    def contender(run: Callable[[Any, Any], Any]) -> Contender:
        forward = jax.jit(run)

        @jax.jit
        def both(a: Any, x: Any, g: Any) -> Any:
            states, pull_back = jax.vjp(run, a, x)
            # JAX's gradient is conjugate to PyTorch's
            return (states, *(jnp.conj(d) for d in pull_back(jnp.conj(g)))) if x.dtype == jnp.complex64 else (
                states, *pull_back(g)
            )  # fmt: skip

        return lambda: forward(A, X), lambda: both(A, X, G)

    found = {"jax associative_scan": contender(associative)}
    # On a GPU lax.scan launches a kernel a step and takes hundreds of milliseconds: nobody would pick it.
    return found if x.is_cuda else {"jax lax.scan": contender(lax_scan)} | found


def contenders(a: Tensor, x: Tensor, g: Tensor, *, ours: str, loop: bool) -> dict[str, Contender]:
    """Ours first, then every peer that is installed."""

    def scan(backend: str) -> Contender:
        return torch_contender(lambda a, x: ssm.linear_scan(a, x, backend=backend), a, x, g)

    found = {"stablessm": scan(ours)}
    if loop:
        found["torch loop"] = scan("reference")
    try:
        found |= jax_contenders(a, x, g)
    except ImportError:
        print("(jax is not installed)")
    if x.device.type == "cpu":
        try:
            import mambapy.pscan  # noqa: F401

            found["mambapy pscan"] = torch_contender(mambapy_pscan, a, x, g)
        except ImportError:
            print("(mambapy is not installed)")
    if a.dim() == 1:
        found["torch FFT convolution"] = torch_contender(fft, a, x, g)
    return found
