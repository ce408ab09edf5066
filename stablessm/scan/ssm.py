"""The public function ``ssm_scan``, which checks and normalizes its arguments and calls a backend: the kernels of a CPU
or GPU, or the reference implementation.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import linear

from stablessm._typing import Lengths
from stablessm.scan import backends
from stablessm.scan.checks import REAL_DTYPE, check_layer, check_reset, check_same_device, checked_lengths
from stablessm.scan.dispatch import exporting
from stablessm.scan.linear import linear_scan
from stablessm.scan.padding import last_state, without_padding
from stablessm.scan.protocol import DiagonalSSM
from stablessm.scan.reference.ssm import by_states
from stablessm.scan.ssm_op import ssm


def ssm_scan(
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    lengths: Lengths = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute a whole diagonal state-space layer, from its input to its output, in one pass over time.

    h[t] = decay · h[t-1] + B x[t],  y[t] = Re(C h[t]) + D x[t], in one of two forms:

    - H channels with N states each (S4D): decay, B and C are (H, N), D is (H,), initial is (B, H, N), and
      y[t] = Re Σ_n C_n h_n[t] + D x[t] for every channel. Only one state in 64 is stored; the backward pass
      recomputes the other states.
    - N states that all read all inputs and add to all outputs (LRU): decay is (N,), B (N, d_in), C (d_out, N), D
      (d_out, d_in), initial (B, N). This form consists of matrix products and :func:`linear_scan`.

    Args:
        x: (B, T, H) or (B, T, d_in), real.
        decay, B, C: real or complex; converted to one dtype, float32 or complex64 at least.
        D: real (default: no direct term).
        initial: the state before the first step (default: zeros).
        reset: (T,) or (B, T), bool. True restarts the recurrence: the step takes nothing from the previous state.
        lengths: (B,) whole numbers: the number of real steps of each right-padded sequence. Padding in x is ignored,
            the output at padded steps is zero, and the returned state is the state after the last real step.
        backend: ``auto`` (chosen by device), or one of :data:`stablessm.scan.NAMES`.

    Returns:
        The output (B, T, H) or (B, T, d_out) in the dtype of x, and the state after the last step.

    float16 and bfloat16 are computed in float32. The result is differentiable in every tensor. The same input gives
    bitwise identical results.

    >>> a, one = torch.tensor([[0.5, 0.25]]), torch.ones(1, 2)
    >>> y, final = ssm_scan(torch.ones(1, 3, 1), a, B=one, C=one)
    >>> y.flatten().tolist(), final.flatten().tolist()
    ([2.0, 2.75, 3.0625], [1.75, 1.3125])
    """
    dense = check_layer(DiagonalSSM(x, decay, B, C, D, initial, reset, None))
    check_reset(reset, *x.shape[:2])
    lengths = checked_lengths(lengths, x)
    check_same_device("x", x, reset=reset, lengths=lengths)
    name = backends.resolve(backend, x.device)
    dtypes = [tensor.dtype for tensor in (decay, B, C, initial) if tensor is not None]
    wide = functools.reduce(torch.promote_types, [*dtypes, x.dtype, torch.float32])
    decay, B, C = (tensor.to(wide) for tensor in (decay, B, C))
    D, initial = (None if D is None else D.to(REAL_DTYPE[wide])), (None if initial is None else initial.to(wide))
    reset = None if reset is None else reset.expand(x.shape[:2])
    layer = DiagonalSSM(x, decay, B, C, D, initial, reset, lengths)
    run = _dense if dense else by_states if name == "reference" or exporting() else ssm
    return run(layer, name)


def _dense(layer: DiagonalSSM, backend: str) -> tuple[Tensor, Tensor]:
    """Compute a layer in which every state reads all inputs and adds to all outputs, by matrix products before and
    after a scan.

    B is (N, d_in) and C is (d_out, N). The results are the output (B, T, d_out) and the last state (B, N).

    A complex matrix product is computed as a real product of twice the size.
    """
    x, decay, B, C, D, initial, reset, lengths = layer
    signal = without_padding(x.to(REAL_DTYPE[decay.dtype]), lengths)
    if decay.is_complex():
        pairs = torch.view_as_real(B.resolve_conj()).transpose(1, 2).flatten(0, 1)
        drive = torch.view_as_complex(linear(signal, pairs).to(signal.dtype).unflatten(-1, (len(decay), 2)))
    else:
        drive = linear(signal, B).to(signal.dtype)
    states = linear_scan(decay, drive, initial, reset=reset, backend=backend)
    if decay.is_complex():  # Re(C h) = Re C · Re h - Im C · Im h
        pairs = torch.view_as_real(C.conj().resolve_conj()).flatten(1)
        y = linear(torch.view_as_real(states.resolve_conj()).flatten(2), pairs)
    else:
        y = linear(states, C)
    if D is not None:
        y = y + linear(signal, D)
    before = decay.new_zeros(x.shape[0], len(decay)) if initial is None else initial
    return without_padding(y, lengths).to(x.dtype), last_state(states, before, lengths)
