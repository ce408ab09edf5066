"""A causal convolution of each channel with a short filter. The state of the convolution consists of
the last inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from stablessm._errors import ArgumentError
from stablessm._typing import Lengths
from stablessm.scan.checks import check_kinds, check_reset, check_tensor, checked_lengths
from stablessm.scan.padding import without_padding


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
    for name, tensor in (("weight", weight), ("bias", bias), ("initial", initial)):
        if tensor is not None and tensor.shape != shapes[name]:
            raise ArgumentError(name, f"shape {shapes[name]}", f"shape {tuple(tensor.shape)}")
    check_reset(reset, batch, steps)
    lengths = checked_lengths(lengths, x)
    x = without_padding(x, lengths)
    joined = pad(x, (0, 0, taps - 1, 0)) if initial is None else torch.cat([initial.to(x.dtype), x], 1)
    episode = None if reset is None else pad(reset.expand(batch, steps).cumsum(1), (taps - 1, 0))
    y = joined[:, taps - 1 :] * weight[:, -1]
    for j in range(taps - 1):
        past = joined[:, j : j + steps]
        if episode is not None:
            same = episode[:, j : j + steps] == episode[:, taps - 1 :]
            past = torch.where(same[..., None], past, torch.zeros_like(past))
        y = torch.addcmul(y, past, weight[:, j])
    y = y if bias is None else y + bias
    return without_padding(y, lengths), _last_inputs(joined, taps, episode, lengths)


def _last_inputs(joined: Tensor, taps: int, episode: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Return the last K - 1 inputs (B, K - 1, H) of each sequence, with zeros for inputs before the last reset.

    ``joined`` are the K - 1 inputs before the first step, followed by the inputs of all steps. ``taps`` is K.
    ``episode`` is the number of the episode to which each of these inputs belongs; None means that there are no resets.
    """
    batch, total, channels = joined.shape
    steps = total - taps + 1
    if lengths is None and episode is None:
        return joined[:, steps:].clone()
    ends = torch.full((batch,), steps, device=joined.device) if lengths is None else lengths
    where = ends[:, None] + torch.arange(taps - 1, device=joined.device)
    last = joined.gather(1, where[..., None].expand(-1, -1, channels))
    if episode is None:
        return last
    number = episode.gather(1, where)
    present = episode.gather(1, (ends + taps - 2)[:, None].clamp(min=0))  # the episode of the last real step
    return torch.where((number == present)[..., None], last, torch.zeros_like(last))
