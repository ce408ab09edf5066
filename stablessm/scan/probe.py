"""Runs a small scan to test whether a backend works on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from stablessm._checked import checked
from stablessm.scan import backends
from stablessm.scan.linear import linear_scan


@dataclass(frozen=True)
class Probe:
    """The result of :func:`probe`.

    ``ran`` is True if the backend computed correct numbers on this machine. ``detail`` states the numerical error, or
    the reason why the backend did not run.
    """

    ran: bool
    detail: str


@checked
def probe(backend: str) -> Probe:
    """Run a small scan and its gradient on ``backend``, and compare the numbers with the float64 reference.

    >>> probe("reference").ran
    True
    """
    reason = backends.why_not(backend)
    if reason is not None:
        return Probe(False, reason)
    device = "cpu"
    if backend == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        if not torch.cuda.is_available():
            return Probe(False, "needs a CUDA device")
        device = "cuda"
    generator = torch.Generator().manual_seed(0)
    decay, drive = torch.rand(8, generator=generator), torch.randn(2, 40, 8, generator=generator)
    truth = _values_and_gradients(decay.double(), drive.double(), "reference")
    try:
        ours = _values_and_gradients(decay.to(device), drive.to(device), backend)
    except Exception as error:
        return Probe(False, f"failed: {type(error).__name__}: {error}")
    errors = [((u.cpu() - v).abs().max() / v.abs().max()).item() for u, v in zip(ours, truth, strict=True)]
    return Probe(max(errors) < 1e-5, f"on {device}: relative error {max(errors):.0e} against the float64 reference")


def _values_and_gradients(decay: torch.Tensor, drive: torch.Tensor, backend: str) -> tuple[torch.Tensor, ...]:
    decay, drive = decay.requires_grad_(), drive.requires_grad_()
    states = linear_scan(decay, drive, backend=backend)
    return states.detach(), *torch.autograd.grad(states.square().sum(), (decay, drive))
