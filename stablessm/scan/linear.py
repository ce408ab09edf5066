"""The public function ``linear_scan``: it checks and normalizes its arguments, and calls the operator."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm.scan import backends, portable
from stablessm.scan.checks import LOW_PRECISION, autocast_enabled, check_all_finite, check_arguments, check_flags
from stablessm.scan.dispatch import exporting
from stablessm.scan.linear_op import in_three, scan
from stablessm.scan.protocol import Recurrence
from stablessm.scan.reference import linear as reference


def linear_scan(
    decay: Tensor,
    drive: Tensor,
    initial: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    reverse: bool = False,
    backend: str = "auto",
    check_finite: bool = False,
) -> Tensor:
    """Compute all states of the linear recurrence h[t] = decay[t] · h[t-1] + drive[t].

    The linear layers of this package compute this recurrence (SSM-UA eq. 1, LRU-UA eq. 2).

    Args:
        decay: (C,), (T, C) or (B, T, C), real or complex.
        drive: (B, T, C). The states have its shape, dtype and device.
        initial: (B, C), the state before the first step (default: zeros).
        reset: (T,) or (B, T), bool. True restarts the recurrence: the step takes nothing from the previous state.
        reverse: run from the last step to the first, h[t] = decay[t] · h[t+1] + drive[t]; ``initial`` is then the state
            after the last step.
        backend: ``auto`` (chosen by device), or one of :data:`stablessm.scan.NAMES`. ``stablessm.scan.resolve`` returns
            the choice without a run.
        check_finite: raise an error if an argument contains NaN or infinity (costs a pass over the data).

    float16 and bfloat16 are computed in float32 and rounded once. Under autocast the scan runs in float32, as
    ``cumsum`` does. The result is differentiable in decay, drive and initial. The same input gives bitwise identical
    results.

    >>> linear_scan(torch.tensor([0.5]), torch.ones(1, 4, 1)).flatten().tolist()
    [1.0, 1.5, 1.75, 1.875]
    """
    check_arguments(decay, drive, initial, reset)
    check_flags(reverse=reverse, check_finite=check_finite)
    if check_finite:
        check_all_finite(decay=decay, drive=drive, initial=initial)
    name = backends.resolve(backend, drive.device)
    if drive.dtype in LOW_PRECISION and autocast_enabled(drive.device.type):
        drive = drive.float()
    if name != "triton":  # the kernels of this backend convert to float32 as they read
        wide = torch.promote_types(drive.dtype, torch.float32)
        decay, initial = decay.to(wide), None if initial is None else initial.to(wide)
    if reset is not None:
        reset = reset.expand(drive.shape[:2])
    if exporting():
        return portable.forward(Recurrence(in_three(decay), initial, reset, reverse), drive)
    if name == "reference":
        return reference.forward(Recurrence(in_three(decay), initial, reset, reverse), drive)
    return scan(decay, drive, initial, reset, reverse, name)
