"""The stability radius: the smallest change of the recurrent weights that makes a model unstable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._checked import checked
from stablessm._display import Result
from stablessm._errors import ArgumentError, quoted
from stablessm._typing import Time
from stablessm.instruments._dense import distance_to_instability, square_matrix
from stablessm.instruments.modes import mapped_weight
from stablessm.reparam import Reparameterization
from stablessm.reparam.matrix import MatrixMap


@final
@dataclass(frozen=True, repr=False)
class NearestBoundary(Result):
    """The recurrence of a model that is nearest to instability, and its stability radius."""

    module: str
    """Qualified name of the module; empty for the model itself."""
    mode: tuple[int, ...] | None
    """Index of the weight; None for a dense recurrence, whose modes share one weight."""
    distance: float
    """Stability radius: no smaller change of the weights makes the recurrence unstable."""


@checked
def stability_radius(x: nn.Module | Tensor | np.ndarray, *, time: Time | None = None) -> float:
    """Return the stability radius: the size of the smallest change of the recurrent weights that makes a recurrence
    unstable.

    The radius of a model is the smallest radius of its recurrences (``nearest_boundary`` names the recurrence). A
    recurrence is a module with a ``map`` in continuous or discrete time:

    - A diagonal recurrence has a ``Reparameterization`` of a weight ``w`` or ``M``. Its radius is exact and comes from
      ``boundary_distance`` of the map: min |Re λ| or min (1 - |λ|) for ``direct``, infinite for a stable map. Weights
      that only rotate an eigenvalue (the phase of an LRU, the frequency of S4D) are ignored.
    - A dense recurrence has a ``MatrixMap``. Its radius is the radius of W = ``recurrent_matrix()``. This radius is
      infinite if the map is stable (such as ``project`` with a margin > 0) and W is farther from instability than
      rounding errors can move W, which is n eps ‖W‖. Closer to instability, rounding may have made W unstable; the
      radius is then computed from the W that the map returned, and is 0 if an eigenvalue of W is not stable. For
      ``direct`` the radius is exact. For ``project`` with margin 0 it is a lower bound, because a projection onto a
      convex set does not increase the distance of two matrices: a change of M of Frobenius norm β changes W by at most
      β.

    A map of your own that does not state ``is_stable`` never has an infinite radius. The radius of such a map is found
    by a search over weights of up to 1e6 (:meth:`Reparameterization.boundary_distance`), and is at most the distance to
    the end of this search. If the map jumps, the search finds each interval of unstable weights that is wider than a
    tenth of its distance from the weight.

    The radius concerns λ, not the discretized e^(λ dt). Eigenvalues that are on the boundary in the precision of the
    weight count as unstable, and the radius of an unstable recurrence is 0.

    The radius of a square matrix W, real or complex, is the distance to instability: the 2-norm of the smallest complex
    matrix that makes W unstable if it is added to W. (A real matrix may have to be larger.) It is::

        continuous   min over ω of σ_min(iωI - W)        discrete   min over θ of σ_min(e^(iθ)I - W)

    The returned value is attained at some ω or θ. No value is smaller by more than a fraction of 1e-10, or by more than
    the rounding error of a singular value, n eps (1 + ‖W‖); in continuous time W is first scaled to entries below 2.
    This is guaranteed by the eigenvalues of a Hamiltonian matrix (Byers 1988) and does not rely on samples of ω.

    Args:
        x: A model, or a matrix (tensor or array), which is converted to float64.
        time: Time of a matrix: ``continuous`` (stable for Re λ < 0, the default) or ``discrete`` (|λ| < 1).
            Must be None for a model.

    >>> import stablessm as ssm
    >>> layer = ssm.RealSSM(1, 2, 1, map="direct", eigenvalues=torch.tensor([-0.5, -3.0]))
    >>> stability_radius(layer), stability_radius(layer.with_map("exp"))
    (0.5, inf)
    >>> round(stability_radius(torch.tensor([[-1.0, 10.0], [0.0, -1.0]])), 6)          # not 1: W is not normal
    0.09902
    """
    if isinstance(x, nn.Module):
        if time is not None:
            raise ArgumentError("time", "None with a model, whose maps know their time", quoted(time))
        return nearest_boundary(x).distance
    return distance_to_instability(square_matrix("x", x), time or "continuous")


@checked
def nearest_boundary(model: nn.Module) -> NearestBoundary:
    """Return the recurrence of a model that is nearest to instability.

    >>> import stablessm as ssm
    >>> slow = torch.tensor([-2.0, -0.25])
    >>> model = nn.Sequential(ssm.LRU(1, 4, 1), ssm.RealSSM(1, 2, 1, map="direct", eigenvalues=slow))
    >>> nearest_boundary(model)
    NearestBoundary(module='1', mode=(1,), distance=0.25)
    """
    found = [_boundary(name, module) for name, module in model.named_modules()]
    recurrent = [boundary for boundary in found if boundary is not None]
    if not recurrent:
        expected = (
            "a model with a recurrence: a module whose `map` is a Reparameterization of the first of its "
            "`recurrent_parameters`, or a MatrixMap with a method `recurrent_matrix()`; or pass a square matrix"
        )
        raise ArgumentError("model", expected, type(model).__name__)
    return min(recurrent, key=lambda boundary: boundary.distance)


def _boundary(name: str, module: Any) -> NearestBoundary | None:
    map = getattr(module, "map", None)
    if isinstance(map, MatrixMap):
        held = module.recurrent_matrix()
        W = square_matrix(f"{name}.recurrent_matrix()".lstrip("."), held)
        eps = torch.finfo(held.dtype).eps if map.is_stable else math.inf
        return NearestBoundary(name, None, _dense_radius(W, eps))
    if not isinstance(map, Reparameterization):
        return None
    weight = getattr(module, mapped_weight(module) or "", None)
    if not isinstance(weight, Tensor):  # ignoring it would overestimate the radius
        raise ArgumentError(f"module {name!r}", "a weight first in `recurrent_parameters`", type(module).__name__)
    if not bool(weight.isfinite().all()):
        raise ArgumentError(f"weight of {name!r}", "finite numbers", "NaN or infinity")
    eigenvalues = map(weight.detach())
    inside = eigenvalues < 0 if map.time == "continuous" else eigenvalues.abs() < 1
    distances = torch.where(inside, map.boundary_distance(weight.detach().double()), 0.0)
    mode = torch.unravel_index(distances.argmin(), distances.shape)
    return NearestBoundary(name, tuple(int(index) for index in mode), float(distances.min()))


def _dense_radius(W: Tensor, eps: float) -> float:
    """Return the stability radius of a recurrence with the matrix W.

    The radius is infinite if the map of the recurrence is stable and W is farther from instability than rounding errors
    of the relative size ``eps`` can move W. Otherwise the radius is the distance of W to instability. For a map that is
    not stable, ``eps`` is infinite.
    """
    if not len(W):
        return math.inf
    rounding = len(W) * eps * float(torch.linalg.matrix_norm(W))
    if -float(torch.linalg.eigvalsh((W + W.mH) / 2)[-1]) > rounding:  # a lower bound of the distance
        return math.inf
    distance = distance_to_instability(W, "continuous")
    return math.inf if distance > rounding else distance
