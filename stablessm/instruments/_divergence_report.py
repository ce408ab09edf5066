"""The report on a divergence: where it began, its cause, and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from stablessm._checked import checked
from stablessm._display import Result
from stablessm._errors import NumericalError
from stablessm.instruments._first_cause import Cause
from stablessm.instruments.modes import Mode

Phase: TypeAlias = Literal["parameter", "input", "forward", "gradient"]

_REMEDY: dict[Phase, str] = {
    "parameter": "the previous update broke the parameter: clip gradients, lower the learning rate, or give the "
    "recurrent parameters a learning rate of their own (stablessm.param_groups); if there was no update, check the "
    "initialization or the checkpoint",
    "input": "clean the data; values that pad a sequence belong outside it (lengths=)",
    "forward": "check the size of the inputs: normalize them, lower the learning rate, or leave float16",
    "gradient": "look for an operation with an infinite slope (sqrt, log, norm or division at 0) and add an epsilon "
    "inside it; or clip gradients",
}
_CAUSES: dict[Cause, tuple[str, str]] = {
    "masked softmax": (
        "a softmax over nothing but -∞",
        "every row of an attention mask must leave at least one position visible (its own, or a padding token); or "
        "replace the outputs of fully masked rows by 0 with torch.where",
    ),
    "log": (
        "the logarithm of 0 or of a negative number",
        "clamp the argument (clamp(min=1e-12)) or use log_softmax, logsigmoid or log1p, which do not reach 0",
    ),
    "division": (
        "a division by 0, or a mean or a variance of too few values",
        "add an epsilon to the denominator, or skip empty and constant inputs",
    ),
    "domain": (
        "a root, a power or another function of a number outside its domain",
        "clamp the argument to the domain of the function",
    ),
    "exp": ("an exponential that overflows", "subtract the maximum first (softmax, logsumexp) or clamp the exponent"),
    "infinity": (
        "∞ - ∞ or 0 · ∞",
        "mask with a large finite number (torch.finfo(x.dtype).min) instead of -∞, or with torch.where",
    ),
    "slope": (
        "a function at a point where its slope is infinite, such as a root at 0 or eigenvectors of equal eigenvalues",
        "add an epsilon inside the function, clamp its argument, or move equal eigenvalues apart; torch.where after it "
        "does not help",
    ),
    "recurrent weight": (
        "a recurrent weight outside the stable region",
        "scale it to a spectral radius of at most 1 (nn.init.orthogonal_, weight decay), use tanh instead of relu, or "
        "use a layer with a stable map (stablessm.LRU, stablessm.RealSSM); if it grew in training, lower the learning "
        "rate",
    ),
    "index": (
        "an index outside the table of an embedding",
        "set num_embeddings to at least the largest index plus 1 (the whole vocabulary, with special tokens), and map "
        "unknown or negative indices to an index of the table",
    ),
    "overflow": ("finite numbers whose sum or product overflows", _REMEDY["forward"]),
    "loss": (
        "the loss, which is computed outside the model from finite outputs",
        "check the targets and the weights of the loss for NaN and infinity, and the loss for an operation with an "
        "infinite slope (sqrt, log, norm or division at 0)",
    ),
}
_BUFFER = (
    "set the buffer to finite values (reset_running_stats() for running means), and clean the data: one batch with NaN "
    "or infinity spoils running statistics; if the buffer was loaded, check the checkpoint"
)
_STABLE = (
    "use a stable map ('best' or 'exp', for a matrix 'skew_minus_psd'), which no weight makes unstable; or a "
    "smaller dt under Euler"
)


@final
@dataclass(frozen=True, repr=False)
class Divergence(Result):
    """A report on the first tensor that diverged, in the order of computation."""

    phase: Phase
    """``parameter``: a parameter or buffer was bad before it was used. ``input``: the input of the model was bad.
    ``forward``: a bad value was computed from good values. ``gradient``: the same in the backward pass."""
    module: str
    """Qualified name of the module; empty for the model itself."""
    kind: str
    """Class of the module."""
    tensor: str
    """Name of the tensor: ``output[0]``, ``parameter w``, …"""
    value: float
    """Modulus of the first bad entry of the tensor; an index has its sign."""
    index: tuple[int, ...]
    """Index of this entry, which is the earliest in time (for a gradient the latest, since gradients flow backward)."""
    batch: int | None
    time: int | None
    channel: int | None
    """``index`` as (batch, time, channel), if the tensor is a sequence."""
    mode: Mode | None
    """The unstable recurrent mode that most likely diverged: a mode of the module, or, if the module has no unstable
    mode, a mode anywhere in the model. For an entry of the weights of a recurrence, the mode of this entry."""
    cause: Cause | None = None
    """Kind of the operation that produced the first bad number, found by running the module again."""
    weight: str | None = None
    """Qualified name of the unstable recurrent weight, if ``cause`` is the weight of a recurrence without modes."""
    radius: float | None = None
    """Spectral radius of the matrix ``weight``; for a weight that is not a square matrix, the factor by which
    the values grew with each product."""

    @property
    def remedy(self) -> str:
        """Return advice on how to avoid this divergence."""
        if self.mode is not None and self.mode.unstable and self.cause in (None, "recurrent weight"):
            return _STABLE
        if self.tensor.startswith("buffer"):
            return _BUFFER
        return _REMEDY[self.phase] if self.cause is None else _CAUSES[self.cause][1]

    def __str__(self) -> str:
        where = f"index {self.index}"
        if self.time is not None:
            where = f"batch {self.batch}, time {self.time}, channel {self.channel}"
        place = f"{self.module!r} ({self.kind})" if self.module else f"the model ({self.kind})"
        blame = "" if self.mode is None else f"; the entry belongs to {self.mode}"
        if self.mode is not None and self.mode.unstable:
            blame = f"; most to blame: {self.mode}, unstable"
        cause = "" if self.cause is None else f"; cause: {_CAUSES[self.cause][0]}"
        radius = "" if self.weight is None else f" ({self.weight}, growth factor {self.radius:.3g} per step)"
        return f"{self.phase}: {self.value:.3g} in {self.tensor} of {place} at {where}{blame}{cause}{radius}"


@final
class DivergenceError(NumericalError):
    """Raised when a value diverges; ``report`` is a :class:`Divergence`."""

    @checked
    def __init__(self, report: Divergence) -> None:
        super().__init__(str(report), report.remedy)
        self.report = report
