"""A context manager that lets layers compute their discretized eigenvalues once and reuse them for many steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from stablessm.layers.diagonal import DiagonalLayer


@contextmanager
def hold(model: nn.Module) -> Iterator[None]:
    """Compute the discretized eigenvalues of all diagonal layers in ``model`` once, and reuse them inside this context.

    The weights must not change inside the context. Tokens are generated faster inside the context, because the map and
    the discretization are a quarter to half of the operations of a step. Calls with gradients or ``dt`` compute the
    discretized eigenvalues as usual.

    >>> import stablessm as ssm
    >>> layer, x_t = ssm.RealSSM(1, 4, 1), torch.randn(2, 1)
    >>> with hold(layer), torch.no_grad():
    ...     y, state = layer.step(x_t)
    >>> torch.equal(y, layer.step(x_t)[0])
    True
    """
    layers = [layer for layer in model.modules() if isinstance(layer, DiagonalLayer)]
    try:
        with torch.no_grad():
            for layer in layers:
                layer._held = layer._discretize(None)
        yield
    finally:
        for layer in layers:
            layer._held = None  # an outer context loses its cache too, which is slower but correct
