"""Theoretical upper bounds of the perturbation error of linear models with diagonal recurrences."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from stablessm.instruments._function_norms import KernelDistance
from stablessm.instruments._weight_balls import WeightBall
from stablessm.reparam import Reparameterization, _continuous, _discrete

OUR_MAPS = (*_continuous.MAPS, *_discrete.MAPS)
"""Maps whose extrema on an interval are at its ends or at 0, which is not known for other maps."""

CHUNK_ELEMENTS = 2**21
"""Largest number of values of modes (over radii and times) that are computed at once."""


@torch.no_grad()
def modes_of(distance: KernelDistance) -> Modes | None:
    """Return the modes of ``distance.model``; None if its kernel is not a sum of modes of a supported kind."""
    model: Any = distance.model
    if not isinstance(getattr(model, "map", None), OUR_MAPS):
        return None
    names = tuple(next((n for n in both if hasattr(model, n)), "") for both in (("w", "M"), ("B", "U"), ("C",)))
    tensors = [tensor for name in names if isinstance(tensor := getattr(model, name, None), Tensor)]
    if len(tensors) < 3 or not all(bool(tensor.isfinite().all()) for tensor in tensors):
        return None
    if any(tensor.dtype.itemsize < 4 for tensor in tensors):  # a change rounds out of its ball
        return None
    w, B, C, times = (tensor.detach().double() for tensor in (*tensors, distance.times))
    grid: dict[str, Any] = {"times": times, "weights": distance.weights, "dtype": distance.target.dtype}
    found: Modes
    if (w.dim(), B.dim(), C.dim()) == (1, 2, 2):
        found = RealModes(model.map, names, w, C.norm(dim=0), B.norm(dim=1), len(C), B.shape[1], **grid)
        kernel = torch.einsum("on,tn,ni->toi", C, found.values(model.map(w)), B)
    elif (w.dim(), B.dim(), C.dim()) == (1, 3, 3) and hasattr(model, "phase"):
        norms = C.flatten(2).norm(dim=(0, 2)), B.flatten(1).norm(dim=1)
        scaled = bool(getattr(model, "normalize", False))
        found = TurningModes(model.map, names, w, *norms, 2 * len(C), 2 * B.shape[2], **grid, normalized=scaled)
        turned = found.values(model.map(w)) * torch.exp(1j * model.phase.detach().double() * times[:, None])
        readout, inputs = torch.view_as_complex(C.contiguous()), torch.complex(B[:, 0], B[:, 1])
        kernel = torch.einsum("on,tn,ni->toi", readout, turned, inputs).real
    else:
        return None
    theirs = distance.kernel({}).double()
    agree = torch.allclose(kernel, theirs, rtol=1e-2, atol=1e-3 * float(kernel.abs().max()))
    return found if agree else None


@dataclass(frozen=True)
class Modes(ABC):
    """The modes m_n of a model with the kernel Σ_n C_n m_n(t) B_n, at given times; m_n depends only on the
    weight w_n.
    """

    map: Reparameterization
    names: tuple[str, ...]
    """Names of the parameters w, B and C in the model."""
    w: Tensor
    readout: Tensor
    """Norms |C_n| of the columns of C (N,)."""
    drive: Tensor
    """Norms |B_n| of the rows of B (N,)."""
    readout_entries: int
    """Number of real entries of a column of C."""
    drive_entries: int
    """Number of real entries of a row of B."""
    times: Tensor
    weights: Tensor
    dtype: torch.dtype
    """Dtype of the model; the bounds are computed in float64."""

    @abstractmethod
    def values(self, eigenvalues: Tensor) -> Tensor:
        """Return the values (K, …) of all modes at all K times, without the phases e^{ikθ} of oscillating modes.

        ``eigenvalues`` (…) are the real eigenvalues of the modes, or the moduli of complex eigenvalues.
        """

    @abstractmethod
    def _mode_change(self, radii: Tensor, perturbed: AbstractSet[str]) -> Tensor:
        """Return an upper bound (R, N) on the change of each of N modes, for each of R radii.

        The weight of a mode changes by at most the radius, and ``perturbed`` contains the names of the parameters that
        change. The change of mode n is Σ_k q_k |m̃_n(t_k) - m_n(t_k)|, where m̃_n is the mode after the change and q_k
        is the weight of time t_k. The bound is ∞ where the model would overflow.
        """

    def upper(self, base: float, perturbed: AbstractSet[str], ball: WeightBall, radii: np.ndarray) -> np.ndarray:
        """Return an upper bound of the perturbation error at each radius: the unperturbed error ``base`` plus a bound
        on the change of each mode.

        ``perturbed`` contains the names of the parameters that change.

        The modes are bounded one by one, as in StableSSM eq. 60-63, with the exact supremum of ‖e^{λ̃t} - e^{λt}‖ over
        |w̃ - w| ≤ β. If |C_n| and |B_n| grow by at most δ_C and δ_B, mode n changes by at most::

            (|C_n| + δ_C)(|B_n| + δ_B) ‖e^{λ̃t} - e^{λt}‖ + ((|C_n| + δ_C)(|B_n| + δ_B) - |C_n||B_n|) ‖e^{λt}‖
        """
        at_once = max(1, CHUNK_ELEMENTS // (len(self.times) * len(self.w)))
        pieces = torch.as_tensor(radii, device=self.w.device)[:, None].split(at_once)
        return np.concatenate([self._upper(base, perturbed, ball, piece).cpu().numpy() for piece in pieces])

    def _upper(self, base: float, perturbed: AbstractSet[str], ball: WeightBall, radii: Tensor) -> Tensor:
        """Return the results of :meth:`upper` for a part of the radii, which have shape (R, 1), as a tensor (R,)."""
        _, inputs, outputs = self.names
        readout, drive = (  # in order ∞ every entry may change by β
            norm + (math.sqrt(entries) if ball.order == math.inf else 1.0) * radii * (name in perturbed)
            for name, norm, entries in (
                (outputs, self.readout, self.readout_entries),
                (inputs, self.drive, self.drive_entries),
            )
        )
        change = self._mode_change(radii, perturbed)
        size = self.weights @ self.values(self.map(self.w)).abs()
        gain = readout * drive
        bound = gain * change + (gain - self.readout * self.drive) * size
        # The model rounds too: w̃ and f(w̃) by eps, which K steps or an exponent up to 700 multiply; N modes add up.
        rounding = torch.finfo(self.dtype).eps * (len(self.w) + len(self.times) + 1000)
        total = base + (bound + rounding * gain * (change + size)).sum(1)
        largest = torch.finfo(self.dtype).max * min(1.0, float(self.weights.min()))  # beyond, the kernel may overflow
        total = torch.where(total < largest, total, torch.inf)  # NaN, from 0 · ∞, is ∞ too
        return torch.where(radii[:, 0] == 0, base, total)

    def _reachable(self, radii: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest eigenvalue that each of N modes can reach, as two tensors (R, N).

        The weight of a mode may change by at most the radius, for each of R radii.
        """
        nearest_to_0 = self.w.sign() * (self.w.abs() - radii).clamp(min=0)
        reachable = self.map(torch.stack([self.w - radii, self.w + radii, nearest_to_0]))
        return reachable.amin(0), reachable.amax(0)

    def theorem(self, base: float, perturbed: AbstractSet[str], radii: np.ndarray) -> np.ndarray | None:
        """Return the bound of StableSSM theorem 3.3 at each radius; None if the theorem does not apply.

        ``base`` and ``perturbed`` are as for :meth:`upper`.
        """
        return None


@final
@dataclass(frozen=True)
class RealModes(Modes):
    """The modes of a recurrence with real eigenvalues λ = f(w): m(t) = e^{λt}, or λ^k in discrete time."""

    def values(self, eigenvalues: Tensor) -> Tensor:
        """Return the values of the modes with the given eigenvalues λ at all K times, (K, …): e^{λt}, or λ^k in
        discrete time.
        """
        times = self.times.reshape(-1, *(1,) * eigenvalues.dim())
        return eigenvalues**times if self.map.time == "discrete" else (eigenvalues * times).exp()

    def _mode_change(self, radii: Tensor, perturbed: AbstractSet[str]) -> Tensor:
        """Return the largest change of each mode, for each radius β in ``radii``.

        The largest change is the supremum over |w̃ - w| ≤ β of Σ_k q_k |e^{λ̃t_k} - e^{λt_k}| with the weights q_k of
        the times t_k.

        The difference has the same sign for all t and grows with |λ̃ - λ|. The supremum is therefore attained at an end
        of the interval of reachable λ̃. In discrete time this holds if λ̃ and λ have the same sign; otherwise each
        power is bounded separately.
        """
        discrete = self.map.time == "discrete"
        low, high = self._reachable(radii * (self.names[0] in perturbed))
        eigenvalues = self.map(self.w)
        if discrete:  # mirrored where λ < 0, which leaves |λ̃^k - λ^k| as it is
            low, high = torch.where(eigenvalues < 0, torch.stack([-high, -low]), torch.stack([low, high]))
            eigenvalues = eigenvalues.abs()
        modes = self.values(eigenvalues)[:, None]
        up, down = ((self.values(end) - modes).abs() for end in (high, low.clamp(min=0) if discrete else low))
        changes = [up, down]
        if discrete and bool((low < 0).any()):
            changes.append(torch.maximum((self.values(low.clamp(max=0)) - modes).abs(), down) * (low < 0))
        change = torch.stack([torch.einsum("k,krn->rn", self.weights, c) for c in changes]).amax(0)
        peak = torch.stack([c.amax(0) for c in changes]).amax(0) + modes.amax(0)
        return torch.where(peak.to(self.dtype).isinf() | change.isnan(), torch.inf, change)

    def theorem(self, base: float, perturbed: AbstractSet[str], radii: np.ndarray) -> np.ndarray | None:
        """Return the upper bound of StableSSM eq. 65 on the perturbation error at each radius β.

        The bound is E(0) + Σ_n |C_n||B_n| / d_n · g(β), where d_n is |f(w_n)| or, in discrete time, 1 - |f(w_n)|, and g
        is the stability modulus of the map f.

        The result is None if the input weights or the readout are perturbed too.
        """
        if perturbed & set(self.names[1:]):
            return None
        distances = self.map.distance(self.w)
        memory = float((self.readout * self.drive / distances).sum()) if bool((distances > 0).all()) else math.inf
        slack = 1 + self.map.modulus_tolerance
        growth = [slack * self.map.stability_modulus(float(radius)) for radius in radii]
        return np.array([base + memory * g if g else base for g in growth])


@final
@dataclass(frozen=True)
class TurningModes(Modes):
    """The modes of an oscillating recurrence in discrete time (LRU), m_k = γ r^k e^{ikθ} with a modulus r = f(w).

    The factor γ is √(1 - r²) if the model normalizes its inputs, otherwise 1.
    """

    normalized: bool
    """Whether the model normalizes its inputs by γ = √(1 - r²)."""

    def values(self, eigenvalues: Tensor) -> Tensor:
        """Return γ r^k at all times k, as a tensor (K, …), for eigenvalues with the given moduli r."""
        return self._sizes(eigenvalues, self.times.reshape(-1, *(1,) * eigenvalues.dim()))

    def _sizes(self, moduli: Tensor, k: Tensor) -> Tensor:
        gain = (1 - moduli**2).clamp(min=torch.finfo(self.dtype).tiny).sqrt() if self.normalized else 1.0
        return gain * moduli**k

    def _mode_change(self, radii: Tensor, perturbed: AbstractSet[str]) -> Tensor:
        """Return an upper bound of the change of each mode γ r^k e^{ikθ}, summed over all steps k, when r and θ change.

        As a function of r, γ r^k is monotone between the points 0, ±√(k/(k+1)) and ±1. Its extrema are therefore at
        these points, or at an end of the interval of reachable r.
        """
        low, high = self._reachable(radii * (self.names[0] in perturbed))
        moduli = self.map(self.w)
        now = self.values(moduli)[:, None]
        k = self.times.reshape(-1, 1, 1)
        turning = (k / (k + 1)).sqrt()
        places = [low.expand(len(k), -1, -1), high.expand(len(k), -1, -1)]
        places += [place.clamp(low, high) for place in (0 * turning, turning, -turning, 0 * k + 1, 0 * k - 1)]
        sizes = self._sizes(torch.stack(places), k)
        moved = (sizes - now).abs().amax(0)
        turned = now.abs() * (k * radii * ("phase" in perturbed)).clamp(max=2)
        change = torch.einsum("k,krn->rn", self.weights.double(), moved + turned)
        overflows = sizes.abs().amax((0, 1)).to(self.dtype).isinf() | change.isnan()
        return torch.where(overflows, torch.inf, change)
