"""GPU kernels of the selective layer: states in registers, only checkpoints in memory.

A program computes BLOCK channels of one sequence, step after step; the many programs of a layer hide the latency of a
step. The forward pass divides time into cells of CELL steps and stores the state before every cell (a checkpoint). The
backward pass visits the cells from the last to the first: it recomputes the states of a cell from its checkpoint into
scratch memory, and then computes the gradients of the cell. A program sums the gradients of B and C over its channels;
the caller adds the sums of all programs.
"""

# mypy: allow-untyped-defs
# (Triton interprets the annotations of a kernel, so kernels have no type hints except tl.constexpr.)

from __future__ import annotations

import triton
import triton.language as tl

NUMBERS = ("batch", "steps", "channels", "states", "cells", "limit")
"""Arguments on whose values Triton must not specialize the compiled kernels."""


@triton.jit
def _load_and_step(h, x, delta, rates, B, C, reset, row, channel, state, inside, has_state, channels, states, limit,
           RESET: tl.constexpr):  # fmt: skip
    """Load the inputs of one step and compute the step for a block of channels.

    ``row`` is the index of the step, counted over all sequences. ``inside`` and ``has_state`` are masks of the channels
    and states that exist, and ``limit`` is the largest allowed exponent. Return the state before the step, the decay,
    the inputs, and the state after the step.
    """
    step = tl.load(delta + row * channels + channel, inside, 0.0)
    signal = tl.load(x + row * channels + channel, inside, 0.0)
    into = tl.load(B + row * states + state, has_state, 0.0)
    out = tl.load(C + row * states + state, has_state, 0.0)
    if RESET:
        h = tl.where(tl.load(reset + row) != 0, 0.0, h)
    decay = tl.exp(tl.minimum(step[:, None] * rates, limit))
    after = decay * h + (step * signal)[:, None] * into[None, :]
    return h, decay, step, signal, into, out, after


@triton.jit(do_not_specialize=NUMBERS)
def selective_forward_kernel(
    x, delta, A, B, C, initial, reset, ends, y, final, checkpoints, batch, steps, channels, states, cells, limit,
    RESET: tl.constexpr, CELL: tl.constexpr, BLOCK: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Compute the output, the final state, and checkpoints: the state before every cell of CELL steps.

    ``ends`` are the numbers of real steps of the sequences, and ``limit`` is the largest allowed exponent.
    """
    sequence = (tl.program_id(0) % batch).to(tl.int64)
    channel = tl.program_id(0) // batch * BLOCK + tl.arange(0, BLOCK)
    state = tl.arange(0, STATES)
    inside, has_state = channel < channels, state < states
    both = inside[:, None] & has_state[None, :]
    place = channel[:, None] * states + state[None, :]
    rates = tl.load(A + place, both, 0.0)
    h = tl.load(initial + sequence * channels * states + place, both, 0.0)
    end = tl.load(ends + sequence)
    for t in range(steps):
        if t % CELL == 0:
            tl.store(checkpoints + (sequence * cells + t // CELL) * channels * states + place, h, both)
        row = sequence * steps + t
        _, _, _, _, _, out, after = _load_and_step(
            h, x, delta, rates, B, C, reset, row, channel, state, inside, has_state, channels, states, limit, RESET
        )
        real = t < end
        h = tl.where(real, after, h)
        tl.store(y + row * channels + channel, tl.where(real, tl.sum(after * out[None, :], 1), 0.0), inside)
    tl.store(final + sequence * channels * states + place, h, both)


@triton.jit(do_not_specialize=NUMBERS)
def selective_backward_kernel(
    x, delta, A, B, C, reset, ends, checkpoints, d_y, d_final, scratch, d_x, d_delta, d_A, d_B, d_C, d_initial,
    batch, steps, channels, states, cells, limit,
    RESET: tl.constexpr, CELL: tl.constexpr, BLOCK: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients ``d_…`` of x, delta, A, B, C and the initial state. For A, B and C, these are partial sums,
    which the caller adds up. ``scratch`` has room for the states of a cell; see the forward kernel for the rest.
    """
    sequence, block = (tl.program_id(0) % batch).to(tl.int64), (tl.program_id(0) // batch).to(tl.int64)
    channel = block * BLOCK + tl.arange(0, BLOCK)
    state = tl.arange(0, STATES)
    inside, has_state = channel < channels, state < states
    both = inside[:, None] & has_state[None, :]
    place = channel[:, None] * states + state[None, :]
    own = sequence * channels * states + place
    local = tl.arange(0, BLOCK)[:, None] * STATES + state[None, :]
    room = scratch + tl.program_id(0).to(tl.int64) * CELL * BLOCK * STATES
    rates = tl.load(A + place, both, 0.0)
    carry = tl.load(d_final + own, both, 0.0)
    total = tl.zeros([BLOCK, STATES], rates.dtype)
    end = tl.load(ends + sequence)
    for k in range(cells):
        first = (cells - 1 - k) * CELL
        h = tl.load(checkpoints + (sequence * cells + cells - 1 - k) * channels * states + place, both, 0.0)
        for i in range(CELL):
            row = sequence * steps + tl.minimum(first + i, steps - 1)
            tl.store(room + i * BLOCK * STATES + local, h)
            _, _, _, _, _, _, after = _load_and_step(
                h, x, delta, rates, B, C, reset, row, channel, state, inside, has_state, channels, states, limit, RESET
            )
            h = tl.where(first + i < end, after, h)
        tl.debug_barrier()
        for j in range(CELL):
            t = first + CELL - 1 - j
            row = sequence * steps + tl.minimum(t, steps - 1)
            real = t < end
            h = tl.load(room + (CELL - 1 - j) * BLOCK * STATES + local)
            before, decay, step, signal, into, out, after = _load_and_step(
                h, x, delta, rates, B, C, reset, row, channel, state, inside, has_state, channels, states, limit, RESET
            )
            grad = tl.load(d_y + row * channels + channel, inside & real, 0.0)
            adjoint = carry + grad[:, None] * out[None, :]
            carried = adjoint * decay
            exponent = carried * before
            drive = tl.sum(adjoint * into[None, :], 1)
            there = inside & (t < steps)
            tl.store(d_x + row * channels + channel, tl.where(real, drive * step, 0.0), there)
            slope = drive * signal + tl.sum(exponent * rates, 1)
            tl.store(d_delta + row * channels + channel, tl.where(real, slope, 0.0), there)
            sums = (block * batch * steps + row) * states + state
            kept = has_state & (t < steps)
            tl.store(d_B + sums, tl.where(real, tl.sum(adjoint * (step * signal)[:, None], 0), 0.0), kept)
            tl.store(d_C + sums, tl.where(real, tl.sum(grad[:, None] * after, 0), 0.0), kept)
            total += tl.where(real, exponent * step[:, None], 0.0)
            if RESET:
                carried = tl.where(tl.load(reset + row) != 0, 0.0, carried)
            carry = tl.where(real, carried, carry)
        tl.debug_barrier()
    tl.store(d_A + own, total, both)
    tl.store(d_initial + own, carry, both)
