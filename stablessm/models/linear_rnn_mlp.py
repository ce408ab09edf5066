"""The model of LRU-UA: a random linear recurrence followed by an MLP at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast, final

import torch
from torch import Tensor, nn

from stablessm._arguments import whole_number
from stablessm._checked import Size, checked
from stablessm._errors import ArgumentError, quoted
from stablessm._typing import Dt, Lengths, Reset, State
from stablessm.layers import LRU
from stablessm.layers.storage import SavedModel, saved
from stablessm.scan.checks import as_lengths, check_signal
from stablessm.scan.padding import without_padding

_FLOOR = 1e-4
"""Directions whose standard deviation is below this share of the largest are not scaled up further."""


class _Measured(nn.Module):
    """The base class of modules that store the mean and the standard deviation of each channel of some samples. The
    stored numbers are not trained.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))

    def set(self, samples: Tensor) -> Tensor:
        """Store the mean and deviation of samples (…, channels); return the standardized samples as rows
        (n, channels).
        """
        flat = rows(samples, len(self.shift))
        shift, scale = moments(flat)
        self.shift.copy_(shift)
        self.scale.copy_(scale)
        return (flat - shift) / scale


@final
class Whitening(_Measured):
    """The map z ↦ Wᵀ (z - mean) / deviation, after which samples have mean 0 and covariance 1.

    The matrix W, the mean and the deviation are computed from samples by :meth:`set`, not trained.

    >>> whiten = Whitening(2)
    >>> _ = whiten.set(torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
    >>> whiten(torch.tensor([[2.0, 1.0], [0.0, 1.0]])).abs().sort()[0].tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """

    W: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_buffer("W", torch.eye(channels))

    def set(self, samples: Tensor) -> Tensor:
        """Compute and store the mean, the deviation and the matrix W for samples (…, channels); return the whitened
        samples as rows (n, channels).
        """
        flat = super().set(samples)
        variance, directions = torch.linalg.eigh(flat.mT @ flat / len(flat))
        deviation = variance.clamp(min=0).sqrt()
        white = directions / deviation.clamp(min=_FLOOR * float(deviation.max()) or 1.0)
        self.W.copy_(white)
        return flat @ white

    def forward(self, z: Tensor) -> Tensor:
        """Return the whitened samples Wᵀ (z - mean) / deviation."""
        return ((z - self.shift) / self.scale) @ self.W


@final
class Units(_Measured):
    """The map z ↦ z · scale + shift from standardized values to the units of samples.

    Scale and shift are computed from samples by :meth:`set`, not trained.

    >>> units = Units(2)
    >>> _ = units.set(torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
    >>> units(torch.tensor([1.0, 0.0])).tolist()
    [2.0, 1.0]
    """

    def forward(self, z: Tensor) -> Tensor:
        """Convert standardized values z to the units of the samples, z · scale + shift."""
        return z * self.scale + self.shift


def rows(samples: Tensor, channels: int) -> Tensor:
    """Return samples (…, channels) as rows (n, channels) in float64; raise an error if any is not finite."""
    if samples.dim() < 2 or samples.shape[-1] != channels or not samples.numel():
        raise ArgumentError("samples", f"(…, {channels}), one or more", f"shape {tuple(samples.shape)}")
    if not bool(samples.isfinite().all()):
        raise ArgumentError("samples", "finite numbers", "NaN or infinity")
    return samples.detach().flatten(0, -2).double()


def moments(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of samples (n, channels); the deviation of a constant channel is 1."""
    deviation = samples.std(0, correction=0)
    return samples.mean(0), torch.where(deviation > 0, deviation, 1.0)


def _what(samples: Tensor) -> str:
    return f"shape {tuple(samples.shape)}" + ("" if bool(samples.isfinite().all()) else " with NaN or infinity")


@final
class PointwiseMLP(nn.Module):
    """An MLP φ from features (…, d) to outputs (…, d_output), applied at every step.

    The MLP whitens its features, applies hidden layers with GELU and a linear readout, and converts the result to the
    units of the outputs.

    >>> PointwiseMLP(6, (16, 16), 2)(torch.zeros(4, 10, 6)).shape
    torch.Size([4, 10, 2])
    """

    def __init__(self, d_input: int, hidden: Sequence[int], d_output: int) -> None:
        super().__init__()
        if not isinstance(hidden, Sequence) or not hidden:
            raise ArgumentError("hidden", "one width or more", quoted(hidden))
        widths = (d_input, *(whole_number("hidden", width) for width in hidden))
        self.inputs, self.outputs = Whitening(d_input), Units(d_output)
        self.layers = nn.ModuleList(nn.Linear(m, n) for m, n in pairwise(widths))
        self.readout = nn.Linear(widths[-1], d_output)

    def forward(self, z: Tensor) -> Tensor:
        """Return φ(z), (…, d_output), for features z (…, d)."""
        z = self.inputs(z)
        for layer in self.layers:
            z = nn.functional.gelu(layer(z))
        return self.outputs(self.readout(z))


@dataclass(frozen=True)
class LinearRNNMLPConfig:
    """The constructor arguments of a :class:`LinearRNNMLP`."""

    d_input: int
    d_state: int
    d_output: int
    hidden: tuple[int, ...]
    r_min: float
    r_max: float
    clock: bool
    frozen: bool


@saved
@final
class LinearRNNMLP(SavedModel):
    """A random linear recurrence followed by an MLP φ at every step (LRU-UA eq. 2 and 7, proposition 7).

    y[k] = φ(Re x[k], Im x[k]) with x[k] = Λ x[k-1] + B (1, u[k]), where (1, u[k]) is the input with the additional
    constant 1 (see ``clock``). The recurrence is an :class:`~stablessm.LRU` with random eigenvalues; the MLP is the
    same at every step. The module is called like a layer (``step``, ``lengths``, ``reset``, ``dt``).

    Args:
        d_input, d_state, d_output: sizes; d_state counts complex states.
        hidden: widths of the hidden layers of φ.
        r_min, r_max: radii of the ring from which eigenvalues are drawn.
        clock: whether a constant 1 is added to the input, so that the state encodes the number of the step.
        frozen: if True, only φ is trained and the recurrence stays as drawn; otherwise everything is trained.

    >>> model = LinearRNNMLP(1, 32, 2, hidden=(64,))
    >>> u = torch.randn(4, 100, 1)
    >>> model.set_units(u)
    >>> y, state = model(u)
    >>> y.shape, state.shape, [name for name, p in model.named_parameters() if p.requires_grad][:2]
    (torch.Size([4, 100, 2]), torch.Size([4, 32]), ['mlp.layers.0.weight', 'mlp.layers.0.bias'])
    """

    @checked
    def __init__(
        self,
        d_input: Size,
        d_state: Size,
        d_output: Size,
        *,
        hidden: Sequence[Size] = (512, 512),
        r_min: float = 0.99,
        r_max: float = 1.0,
        clock: bool = True,
        frozen: bool = True,
    ) -> None:
        super().__init__()
        self.d_input, self.d_output, self.clock = d_input, d_output, clock
        self.recurrence = LRU(d_input + clock, d_state, 2 * d_state, r_min=r_min, r_max=r_max, skip=False)
        with torch.no_grad():  # the readout gives all real parts, then all imaginary parts
            self.recurrence.C.zero_()
            parts = torch.arange(d_state)
            self.recurrence.C[parts, parts, 0] = 1.0
            self.recurrence.C[d_state + parts, parts, 1] = -1.0  # Re(-i x) = Im x
        self.recurrence.requires_grad_(not frozen)
        self.mlp = PointwiseMLP(2 * d_state, hidden, d_output)
        self.config = LinearRNNMLPConfig(d_input, d_state, d_output, tuple(hidden), r_min, r_max, clock, frozen)

    def initial_state(self, batch: int) -> State:
        """Return a state of zeros for ``batch`` sequences."""
        return self.recurrence.initial_state(batch)

    def eigenvalues(self) -> Tensor:
        """Return the complex eigenvalues Λ of the recurrence, (d_state,)."""
        return self.recurrence.eigenvalues()

    def features(self, u: Tensor) -> Tensor:
        """Compute the inputs of φ, (B, T, 2 d_state), by the recurrence from inputs u (B, T, d_input) and a state of
        zeros.

        For a frozen recurrence, the features have to be computed only once.
        """
        return cast(Tensor, self.recurrence(self._encoded("u", u, "batch", "time"))[0])

    @checked
    def set_units(self, u: Tensor, y: Tensor | None = None) -> None:
        """Set the whitening and the output units of φ from samples: inputs u (B, T, d_input) and outputs y (B, T,
        d_output).

        Whitening speeds up training: without it, states whose eigenvalues are near a frequency of the input are much
        larger than the other states, and nearly equal to each other. Whitening is linear, so it can be counted as a
        part of the matrix C in LRU-UA, section 2. Samples must be finite and not empty.
        """
        if u.dim() != 3 or not u.numel() or not bool(u.isfinite().all()):
            raise ArgumentError("u", "finite numbers (B, T, d_input), at least one", _what(u))
        if y is not None:
            wanted = (*u.shape[:2], self.d_output)
            if y.shape != wanted or not bool(y.isfinite().all()):
                raise ArgumentError("y", f"finite numbers, shape {wanted}", _what(y))
        with torch.no_grad():
            self.mlp.inputs.set(self.features(u))
            if y is not None:
                self.mlp.outputs.set(y)

    def forward(
        self, u: Tensor, state: State | None = None, *, lengths: Lengths = None, reset: Reset = None, dt: Dt = None
    ) -> tuple[Tensor, State]:
        """Compute the outputs (B, T, d_output) and the final state for inputs u (B, T, d_input).

        The other arguments are those of a layer.
        """
        features, final = self.recurrence(
            self._encoded("u", u, "batch", "time"), state, lengths=lengths, reset=reset, dt=dt
        )
        return without_padding(self.mlp(features), as_lengths(lengths, u.device)), final

    def step(self, u_t: Tensor, state: State | None = None, *, dt: Dt = None) -> tuple[Tensor, State]:
        """Run one step of ``forward``: return the output (B, d_output) for u_t (B, d_input), and the next state."""
        features, state = self.recurrence.step(self._encoded("u_t", u_t, "batch"), state, dt=dt)
        return self.mlp(features), state

    def _encoded(self, name: str, u: Tensor, *letters: str) -> Tensor:
        """Check the input u; return u, with a channel of ones in front if the model has a clock.

        ``name`` is the name of u in error messages, and ``letters`` are the names of its dimensions except the last.
        """
        check_signal(name, u, (*letters, "d_input"), self.d_input, self.recurrence.w, self.recurrence.w)
        return torch.cat([torch.ones_like(u[..., :1]), u], -1) if self.clock else u
