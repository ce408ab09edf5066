"""The perturbation error from above: what theory says for linear models with real modes."""

from __future__ import annotations

import math
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
"""On an interval these have their extrema at its ends or at 0; of another map nobody knows."""

CHUNK_ELEMENTS = 2**21
"""How many values of modes, over radii and times, are computed at once."""


@final
@dataclass(frozen=True)
class RealModes:
    """A model with the kernel ρ̂(t) = Σ_n C_n e^{λ_n t} B_n, λ = f(w) real, on the grid of a ``KernelDistance``."""

    map: Reparameterization
    w: Tensor
    readout: Tensor
    """|C_n|, (N,), with C_n the n-th column."""
    drive: Tensor
    """|B_n|, (N,), with B_n the n-th row."""
    d_output: int
    d_input: int
    times: Tensor
    weights: Tensor
    dtype: torch.dtype
    """That the model computes in; here everything is float64."""

    @classmethod
    @torch.no_grad()
    def of(cls, distance: KernelDistance) -> RealModes | None:
        """The modes of a model that has ``map``, ``w``, ``B`` and ``C`` and the kernel they say; None for others."""
        model: Any = distance.model
        ranks = [getattr(getattr(model, name, None), "ndim", None) for name in ("w", "B", "C")]
        if ranks != [1, 2, 2] or not isinstance(getattr(model, "map", None), OUR_MAPS):
            return None
        if not all(bool(tensor.isfinite().all()) for tensor in (model.w, model.B, model.C)):
            return None
        w, B, C, times = (tensor.detach().double() for tensor in (model.w, model.B, model.C, distance.times))
        norms = C.norm(dim=0), B.norm(dim=1)
        modes = cls(model.map, w, *norms, len(C), B.shape[1], times, distance.weights, distance.target.dtype)
        kernel = torch.einsum("on,tn,ni->toi", C, modes.values(model.map(w)), B)
        theirs = distance.kernel({}).double()
        return modes if torch.allclose(kernel, theirs, rtol=1e-2, atol=1e-3 * float(kernel.abs().max())) else None

    def values(self, eigenvalues: Tensor) -> Tensor:
        """e^{λt}, or λ^k: (K, …)."""
        times = self.times.reshape(-1, *(1,) * eigenvalues.dim())
        return eigenvalues**times if self.map.time == "discrete" else (eigenvalues * times).exp()

    def upper(self, base: float, perturbed: AbstractSet[str], ball: WeightBall, radii: np.ndarray) -> np.ndarray:
        """A bound of the perturbation error at each radius: the distance ``base`` plus what the modes can change by.

        Mode by mode, as in paper 004 eq. 60-63, with the exact supremum of ‖e^{λ̃t} - e^{λt}‖ over |w̃ - w| ≤ β. With
        |C_n|, |B_n| growing by up to δ_C, δ_B a mode changes by at most::

            (|C_n| + δ_C)(|B_n| + δ_B) ‖e^{λ̃t} - e^{λt}‖ + ((|C_n| + δ_C)(|B_n| + δ_B) - |C_n||B_n|) ‖e^{λt}‖
        """
        at_once = max(1, CHUNK_ELEMENTS // (len(self.times) * len(self.w)))
        pieces = torch.as_tensor(radii, device=self.w.device)[:, None].split(at_once)
        return np.concatenate([self._upper(base, perturbed, ball, piece).cpu().numpy() for piece in pieces])

    def _upper(self, base: float, perturbed: AbstractSet[str], ball: WeightBall, radii: Tensor) -> Tensor:
        """``upper`` for radii (R, 1)."""
        entries = {"C": self.d_output, "B": self.d_input}  # of a column, of a row: each may change by β in order ∞
        widest = {name: math.sqrt(entries[name]) if ball.order == math.inf else 1.0 for name in entries}
        readout, drive = (
            norm + widest[name] * radii * (name in perturbed) for name, norm in (("C", self.readout), ("B", self.drive))
        )
        change = self._mode_change(radii * ("w" in perturbed))
        size = self.weights @ self.values(self.map(self.w)).abs()
        gain = readout * drive
        bound = gain * change + (gain - self.readout * self.drive) * size
        # The model rounds too: w̃ and f(w̃) by eps, which K steps or an exponent up to 700 multiply; N modes add up.
        rounding = torch.finfo(self.dtype).eps * (len(self.w) + len(self.times) + 1000)
        total = base + (bound + rounding * gain * (change + size)).sum(1)
        largest = torch.finfo(self.dtype).max * min(1.0, float(self.weights.min()))  # beyond, the kernel may overflow
        total = torch.where(total < largest, total, torch.inf)  # NaN, from 0 · ∞, is ∞ too
        return torch.where(radii[:, 0] == 0, base, total)

    def _mode_change(self, radii: Tensor) -> Tensor:
        """(R, N) sup over |w̃ - w| ≤ β of Σ_k q_k |e^{λ̃t_k} - e^{λt_k}|; ∞ where the model would overflow.

        The difference has one sign for all t and grows with |λ̃ - λ|: the ends of the interval of reachable λ̃ decide.
        In discrete time that holds for λ̃ of λ's own sign; for the other, each power is bounded by itself.
        """
        discrete = self.map.time == "discrete"
        nearest_to_0 = self.w.sign() * (self.w.abs() - radii).clamp(min=0)
        reachable = self.map(torch.stack([self.w - radii, self.w + radii, nearest_to_0]))
        eigenvalues, low, high = self.map(self.w), reachable.amin(0), reachable.amax(0)
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

    def theorem(self, base: float, radii: np.ndarray) -> np.ndarray:
        """E(0) + Σ_n |C_n||B_n| / d_n · g(β), paper 004 eq. 65: d = |f(w)|, or 1 - |f(w)|, and g the map's modulus."""
        distances = self.map.distance(self.w)
        memory = float((self.readout * self.drive / distances).sum()) if bool((distances > 0).all()) else math.inf
        slack = 1 + self.map.modulus_tolerance
        growth = [slack * self.map.stability_modulus(float(radius)) for radius in radii]
        return np.array([base + memory * g if g else base for g in growth])
