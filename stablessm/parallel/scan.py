"""The linear scan and the fused layer over a sequence that is split across ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm._typing import Lengths
from stablessm.parallel.carry import Affine, Group, incoming
from stablessm.scan import linear_scan, ssm_scan
from stablessm.scan.checks import check_arguments
from stablessm.scan.decay_product import decay_product
from stablessm.scan.padding import last_state


def sequence_scan(
    decay: Tensor,
    drive: Tensor,
    initial: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    group: Group = None,
    backend: str = "auto",
) -> Tensor:
    """Compute this rank's part of :func:`stablessm.linear_scan` over a sequence split across the ranks of ``group``.

    Each rank computes the states h⁰ of its own steps from the state zero. In ⌈log₂ ranks⌉ rounds, the ranks exchange
    products of decays and last states, from which each rank computes its incoming state h_in. Each rank then adds the
    effect of h_in: h[t] = h⁰[t] + (a[0] … a[t]) · h_in. Gradients are exchanged in the opposite direction.

    Args:
        decay: (C,), (T, C) or (B, T, C), where T is the number of steps of this rank. T may differ between ranks and
            may be 0 or 1.
        drive: (B, T, C), with the same B and C on all ranks.
        initial: (B, C), the state before the first step of the first rank; ignored on other ranks.
        reset: (T,) or (B, T), bool, of this rank's steps.
        group: the ranks, in the order of their parts.
        backend: as for ``linear_scan``.

    Every rank must call this function. The backward pass communicates too, so either all ranks use the result in their
    loss, or none. Each rank gets its own part of a gradient; sum the parts over ranks for a ``decay`` (C,) that all
    ranks share. A rank sends 2 B C numbers per round, and stores the states and the products of decays: (T, C), or (B,
    T, C) if decay or reset differ within the batch. float16 and bfloat16 are computed in float32.

    >>> sequence_scan(torch.tensor([0.5]), torch.ones(1, 4, 1)).flatten().tolist()          # one rank
    [1.0, 1.5, 1.75, 1.875]
    """
    check_arguments(decay, drive, initial, reset)
    batch, steps, channels = drive.shape
    wide = drive.to(torch.promote_types(drive.dtype, torch.float32))
    decay = decay.to(wide.dtype)
    shared = decay.dim() < 3 and (reset is None or reset.dim() == 1)
    ones = wide.new_ones(1 if shared else batch, channels)
    products = linear_scan(decay, wide.new_zeros(len(ones), steps, channels), ones, reset=reset, backend=backend)
    states = linear_scan(decay, wide, reset=reset, backend=backend)
    factor = last_state(products, ones, None).expand(batch, channels)
    before = incoming(Affine(factor, last_state(states, torch.zeros_like(factor), None)), initial, group)
    return torch.addcmul(states, products, before[:, None]).to(drive.dtype)


def sequence_ssm_scan(
    x: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    lengths: Lengths = None,
    group: Group = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute this rank's part of :func:`stablessm.ssm_scan` over a sequence split across the ranks of ``group``.

    Each rank makes two fused passes over its steps: one from zero, whose final state is sent to later ranks, and one
    from its incoming state. Neither pass stores all states. The arguments are those of ``ssm_scan``; ``reset`` and
    ``lengths`` refer to this rank's steps, and only the first rank's ``initial`` is used. The returned state is the
    state after this rank's last step. Gradients behave as in :func:`sequence_scan`.

    >>> a, one = torch.tensor([[0.5, 0.25]]), torch.ones(1, 2)
    >>> y, final = sequence_ssm_scan(torch.ones(1, 3, 1), a, B=one, C=one)
    >>> y.flatten().tolist(), final.flatten().tolist()
    ([2.0, 2.75, 3.0625], [1.75, 1.3125])
    """
    _, offset = ssm_scan(x, decay, B, C, D, reset=reset, lengths=lengths, backend=backend)
    factor = decay_product(decay.to(offset.dtype), *x.shape[:2], dims=decay.dim(), reset=reset, lengths=lengths)
    before = incoming(Affine(factor, offset), initial, group)
    return ssm_scan(x, decay, B, C, D, before, reset=reset, lengths=lengths, backend=backend)
