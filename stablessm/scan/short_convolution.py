"""A causal convolution of each channel with a short filter. The state of the convolution consists of
the last inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from stablessm._typing import Lengths
from stablessm.scan.checks import check_kinds, check_reset, check_shapes, check_tensor, checked_lengths
from stablessm.scan.padding import last_inputs, without_padding


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    lengths: Lengths = None,
) -> tuple[Tensor, Tensor]:
    """Compute y[t] = Σ_j weight[K-1-j] x[t-j] + bias for every channel, with K weights per channel.

    The sum is over j = 0 … K - 1. The state, which is also returned, consists of the last K - 1 inputs.

    Args:
        x: (B, T, H), real.
        weight: (H, K), in the order of ``torch.nn.Conv1d``: the last of the K numbers belongs to the present step.
        bias: (H,) (default: none).
        initial: (B, K - 1, H), the inputs before the first step, oldest first (default: zeros).
        reset: (T,) or (B, T), bool. True starts a new episode: the step uses no earlier input.
        lengths: (B,) whole numbers: the number of real steps of each right-padded sequence. The output at padded steps
            is zero, and the returned state holds the last real inputs.

    Returns:
        The output (B, T, H), and the last K - 1 inputs (B, K - 1, H); inputs before the last episode are zeros.

    >>> y, state = short_convolution(torch.ones(1, 4, 1), torch.ones(1, 3))
    >>> y.flatten().tolist(), state.shape
    ([1.0, 2.0, 3.0, 3.0], torch.Size([1, 2, 1]))
    """
    check_tensor("x", x, 3)
    check_tensor("weight", weight, 2, "(channel, tap)")
    check_kinds("x", x=x, weight=weight, bias=bias, initial=initial)
    (batch, steps, channels), taps = x.shape, weight.shape[1]
    shapes = {"weight": (channels, taps), "bias": (channels,), "initial": (batch, taps - 1, channels)}
    check_shapes(shapes, {"weight": weight, "bias": bias, "initial": initial})
    check_reset(reset, batch, steps)
    lengths = checked_lengths(lengths, x)
    x = without_padding(x, lengths)
    reset = None if reset is None else reset.expand(batch, steps)
    before = x.new_zeros(shapes["initial"]) if initial is None else initial.to(x.dtype)
    y = tap_sum(torch.cat([before, x], 1), weight.mT.flip(0), reset)
    y = y if bias is None else y + bias
    return without_padding(y, lengths), last_inputs(x, before, reset, lengths)


def tap_sum(joined: Tensor, weight: Tensor, reset: Tensor | None = None) -> Tensor:
    """Compute y[t] = Σ_j weight[j] x[t - j], which uses no step before the last reset.

    Args:
        joined: (B, K - 1 + T, …), the K - 1 inputs before the first step, followed by the inputs x of all steps.
        weight: (K, …), the weights of the present step, of the step before it, and so on.
        reset: (B, T), bool. True at the first step of an episode.
    """
    earlier = len(weight) - 1
    steps = joined.shape[1] - earlier
    episode = None if reset is None else pad(reset.cumsum(1), (earlier, 0))
    y = joined[:, earlier:] * weight[0]
    for j in range(1, earlier + 1):
        here = slice(earlier - j, earlier - j + steps)
        past = joined[:, here]
        if episode is not None:
            same = episode[:, here] == episode[:, earlier:]
            past = torch.where(same[..., None], past, torch.zeros_like(past))
        y = torch.addcmul(y, past, weight[j])
    return y
