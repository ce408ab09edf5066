"""How the loss of a causal model depends on the position and on the number of inputs that the model has seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from stablessm import _tensors
from stablessm._arguments import whole_number
from stablessm._checked import Seed, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm._progress import working
from stablessm.instruments._axes import Axes, axes_or_new
from stablessm.instruments.adapters import as_stateful
from stablessm.instruments.adapters.facts import evaluating, like, own_input_size

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Function from outputs (B, T, …) and targets (B, T, …) to the loss of each step (B, T)."""

Run: TypeAlias = Callable[[Tensor, Any], tuple[Tensor, Any]]

CHUNK = 1024
"""Number of steps that run in one call if the state is carried."""

CAUSAL = 32
"""Number of inputs that test whether a model is causal."""

PER_OCTAVE = 2
"""Number of bins of positions per factor of two."""


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class LengthCurve(Result):
    """The result of :func:`length_curve`: the loss of a model by position in the sequence."""

    _drawn = ("position", "loss")
    position: np.ndarray
    """Last position of each bin (N,), counted from 1."""
    loss: np.ndarray
    """Mean loss in each bin (N,), with the state carried from the first input on."""
    error: np.ndarray
    """Two standard errors of the mean over sequences (N,); nan for a single sequence."""
    restarted: np.ndarray | None
    """Mean loss at the same positions if the model starts again every ``window`` steps (N,); None without a window."""
    window: int | None
    carried: bool
    """Whether the model carried a state; otherwise it ran over whole sequences. A Mamba of ``transformers``, for
    example, loses the last inputs of its convolution between two calls, and then runs over whole sequences.
    """

    @property
    def perplexity(self) -> np.ndarray:
        """Return the perplexity exp(loss) in each bin of positions, for a loss in nats."""
        return np.exp(self.loss)

    def rise(self, after: int) -> float:
        """Return how much the loss rises after a position: the largest later loss minus the loss at the position.

        >>> curve = LengthCurve(np.array([1, 2, 4, 8]), np.array([4.0, 3.0, 2.5, 2.75]), np.zeros(4), None, None, True)
        >>> curve.rise(after=3)
        0.25
        """
        first = int(np.searchsorted(self.position, whole_number("after", after)))
        if first >= len(self.position) - 1:
            raise ArgumentError("after", f"at most {int(self.position[-2]) if len(self.position) > 1 else 0}", after)
        return float(self.loss[first + 1 :].max() - self.loss[first])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the loss against the position."""
        ax = axes_or_new(ax)
        ax.semilogx(self.position, self.loss, label="state carried" if self.carried else "whole sequences")
        if self.restarted is not None:
            ax.semilogx(self.position, self.restarted, label=f"started again every {self.window} steps")
        ax.set(xlabel="position", ylabel="loss")
        ax.legend()
        return ax

    def __str__(self) -> str:
        best = int(np.argmin(self.loss))
        return (
            f"loss {self.loss[0]:.4g} at first, smallest {self.loss[best]:.4g} up to position {self.position[best]}, "
            f"{self.loss[-1]:.4g} at the end ({self.position[-1]})"
        )


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class Remembrance(Result):
    """The result of :func:`effective_remembrance`: how predictions change if the model sees only the latest inputs."""

    _drawn = ("context", "distance")
    context: np.ndarray
    """Number of latest inputs that the model saw (N,)."""
    distance: np.ndarray
    """Mean total variation (0 to 1) between the predictions with these inputs and with all inputs (N,)."""
    loss: np.ndarray
    """Mean loss with these inputs (N,)."""
    full_loss: float
    """Mean loss with all inputs."""
    samples: int
    """Number of predictions."""

    def reach(self, level: float = 0.05) -> int | None:
        """Return the smallest measured context from which on the distance stays below ``level``, or None.

        A context is a number of latest inputs that the model sees.
        """
        below = self.distance < level
        start = len(below) - int(np.argmin(below[::-1])) if not below.all() else 0
        return int(self.context[start]) if start < len(below) else None

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot how far predictions from the latest inputs are from predictions from all inputs, against the number of
        latest inputs.
        """
        ax = axes_or_new(ax)
        ax.loglog(self.context, self.distance, "o-", markersize=3)
        ax.set(xlabel="number of latest inputs", ylabel="total variation from the whole past")
        return ax

    def __str__(self) -> str:
        found = self.reach()
        where = f"from {found} inputs on" if found is not None else f"not with {int(self.context[-1])} inputs"
        return f"predictions within 0.05 of those with the whole past {where} ({self.samples} predictions)"


@torch.no_grad()
@checked
def length_curve(
    model: Any,
    inputs: Tensor | ArrayLike,
    targets: Tensor | ArrayLike | None = None,
    *,
    window: Size | None = None,
    loss: Loss | None = None,
    progress: bool = True,
) -> LengthCurve:
    """Measure the loss of a causal model as a function of the position in the sequence.

    A model that was trained on short sequences may fail on longer ones. The loss of a model that extends to longer
    inputs does not rise after the training length. With ``window``, the loss at the same positions is also measured for
    a model that starts again from its initial state every ``window`` steps.

    Args:
        model: One of our models or layers, a ``torch.nn`` recurrence, a Hugging Face model, or
            ``(x, state) -> (y, state)``; its state is carried. Any other callable runs over whole sequences.
        inputs: Tokens (batch, time) or (time,), or real inputs (batch, time, d_input).
        targets: Targets of each step (default: the next token).
        window: Number of steps after which the model starts again, for comparison.
        loss: Function from outputs and targets to the loss of each step (default: cross-entropy for whole numbers, mean
            square for real ones).
        progress: Whether a long computation shows a progress bar.

    >>> import stablessm as ssm
    >>> model = ssm.LanguageModel(20, d_model=8, n_layers=1, d_state=4)
    >>> curve = length_curve(model, torch.arange(400).view(2, 200) % 20, window=16)
    >>> curve.position[-1], curve.loss.shape == curve.restarted.shape
    (np.int64(199), True)
    """
    x, y, loss = _prepared(inputs, targets, loss)
    with evaluating(model), working("length_curve", progress) as tell:
        run, carries = _runner(model, x)
        y = like(model, y)
        whole = _losses(run, carries, x, y, loss, None, tell)
        again = None if window is None else _losses(run, carries, x, y, loss, window, tell)
    edges = _edges(x.shape[1])
    means = _binned(whole, edges)
    spread = 2 * means.std(0, ddof=1) / math.sqrt(len(means)) if len(means) > 1 else np.full(len(edges) - 1, math.nan)
    return LengthCurve(
        position=edges[1:], loss=means.mean(0), error=spread, window=window, carried=carries,
        restarted=None if again is None else _binned(again, edges).mean(0),
    )  # fmt: skip


@torch.no_grad()
@checked
def effective_remembrance(
    model: Any,
    inputs: Tensor | ArrayLike,
    *,
    contexts: Sequence[int] | None = None,
    samples: Size = 64,
    seed: Seed = 0,
    progress: bool = True,
) -> Remembrance:
    """Measure how much the predictions of a model change if the model sees only the latest inputs (effective
    remembrance).

    At random positions of the inputs, the model predicts the probabilities of the next token twice: from all inputs so
    far (p), and from only the last c inputs, starting in its initial state (q). The distance between the predictions is
    their total variation ½ Σ |p - q|.

    Args:
        model: A causal model from tokens to logits, as for :func:`stablessm.length_curve`.
        inputs: Tokens (batch, time) or (time,).
        contexts: Numbers of latest inputs, in any order (default: powers of two up to half of the time).
        samples: Number of positions.
        seed: Seed of the positions, which are in the second half of the inputs.
        progress: Whether a long computation shows a progress bar.

    >>> import stablessm as ssm
    >>> found = effective_remembrance(ssm.LanguageModel(20, d_model=8, n_layers=1), torch.arange(100) % 20)
    >>> bool((found.distance >= 0).all()), found.context.tolist()
    (True, [1, 2, 4, 8, 16, 32])
    """
    if _tensors.as_tensor(inputs).is_floating_point():
        raise ArgumentError("inputs", "tokens (batch, time), whole numbers", f"{_tensors.as_tensor(inputs).dtype}")
    x, y, loss = _prepared(inputs, None, None)
    length = x.shape[1]
    most = (length + 1) // 2
    chosen = [2**n for n in range(int(math.log2(most)) + 1)] if contexts is None else sorted(set(contexts))
    if not chosen:
        raise ArgumentError("contexts", "at least one number", "none")
    for each in chosen:
        if not 1 <= whole_number("contexts", each) <= most:
            raise ArgumentError("contexts", f"numbers from 1 to {most} (half of the inputs)", each)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, len(x), (samples,), generator=generator)
    ends = torch.randint(max(length // 2, *chosen) - 1, length, (samples,), generator=generator)
    with evaluating(model), working("effective_remembrance", progress) as tell:
        run, carries = _runner(model, x)
        full = _at(run, carries, x, rows, ends, tell)
        distances, losses = [], []
        for count in chosen:
            pieces = torch.stack([x[row, end + 1 - count : end + 1] for row, end in zip(rows, ends, strict=True)])
            parts = [run(piece, None)[0][:, -1].double().cpu() for piece in pieces.split(8)]
            tell()
            logits = torch.cat(parts)
            distances.append(0.5 * (logits.softmax(-1) - full.softmax(-1)).abs().sum(-1).mean())
            losses.append(loss(logits[:, None], y[rows, ends][:, None]).mean())
    target = loss(full[:, None], y[rows, ends][:, None]).mean()
    distance, mean = (np.array([float(value) for value in part]) for part in (distances, losses))
    return Remembrance(np.array(chosen), distance, mean, float(target), samples)


def _prepared(inputs: Any, targets: Any, loss: Loss | None) -> tuple[Tensor, Tensor, Loss]:
    x = _tensors.as_tensor(inputs).detach()
    tokens = not x.is_floating_point()
    x = x.long() if tokens else x
    x = x[None] if x.dim() == (1 if tokens else 2) else x
    if x.dim() != (2 if tokens else 3) or not len(x) or x.shape[1] < 4:
        expected = "tokens (batch, time) or (batch, time, d_input), batch > 0, time > 3"
        raise ArgumentError("inputs", expected, tuple(x.shape))
    if targets is None:
        if not tokens:
            raise ArgumentError("targets", "a target for every step, since the inputs are not tokens", None)
        x, y = x[:, :-1], x[:, 1:]
    else:
        y = _tensors.as_tensor(targets).detach()
        y = y[None] if y.shape[:1] == x.shape[1:2] and y.shape[:2] != x.shape[:2] else y
        if y.shape[:2] != x.shape[:2]:
            raise ArgumentError("targets", f"shape {tuple(x.shape[:2])} or with channels", tuple(y.shape))
        if loss is None and not y.is_floating_point() and int(y.min()) < 0:
            raise ArgumentError("targets", "classes from 0 at every step (pass a loss that masks steps)", int(y.min()))
    return x, y, loss or (_square if y.is_floating_point() else _cross_entropy)


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    classes = int(target.max()) + 1
    if output.dim() != 3 or output.shape[-1] < classes:
        expected = f"logits (batch, time, classes) of at least {classes} classes, since a target is {classes - 1}"
        raise ArgumentError("model", expected, f"outputs of shape {tuple(output.shape)}")
    return F.cross_entropy(output.float().flatten(0, 1), target.flatten().long(), reduction="none").view(target.shape)


def _square(output: Tensor, target: Tensor) -> Tensor:
    target = target.reshape(*output.shape[:2], -1).to(output)
    return (output.reshape(target.shape) - target).square().mean(-1)


def _runner(model: Any, x: Tensor) -> tuple[Run, bool]:
    """Return a function that runs the model, and True if the function carries a state between calls."""
    run, carries = _stateful_or_whole(model, x)
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)

    def reported(x_now: Tensor, state: Any) -> tuple[Tensor, Any]:
        try:
            return run(like(model, x_now), state)
        except IndexError as error:  # embeddings of positions end
            if not isinstance(positions, int) or x.shape[1] <= positions:
                raise
            expected = f"at most {positions} steps, the positions of the model (max_position_embeddings)"
            raise ArgumentError("inputs", expected, x.shape[1]) from error

    return reported, _carries_exactly(reported, carries, x[:8, :CAUSAL])


def _carries_exactly(run: Run, carries: bool, x: Tensor) -> bool:
    """Return True if the outputs for the second half of x are the same in one pass as with the state carried from the
    first half.

    Raise an error if the outputs for the first half change with the second half, or if the outputs have no time axis.
    """
    half = x.shape[1] // 2
    whole, _ = run(x, None)
    first, state = run(x[:, :half], None)
    if whole.dim() < 2 or whole.shape[:2] != x.shape[:2]:
        raise ArgumentError("model", f"an output at every step, {(*x.shape[:2], '...')}", tuple(whole.shape))
    precision = math.sqrt(torch.finfo(whole.dtype).eps) if whole.is_floating_point() else 0.0
    allowed = precision * whole.abs().max()
    change = (whole[:, :half] - first).abs().max()
    if bool(change > allowed):
        got = f"outputs that change by {float(change):.2g} with later inputs or from call to call"
        raise ArgumentError("model", "a causal model without random numbers", got)
    return carries and not bool((whole[:, half:] - run(x[:, half:], state)[0]).abs().max() > allowed)


def _stateful_or_whole(model: Any, x: Tensor) -> tuple[Run, bool]:
    width = 1 if x.dim() == 2 else x.shape[-1]
    try:
        adapter = as_stateful(model, d_input=own_input_size(model) or width)
        adapter.run(like(model, x[:1, :2]), None)
    except ArgumentError as reason:
        if not callable(model):
            raise

        def whole(x: Tensor, state: Any) -> tuple[Tensor, Any]:
            found = model(x)
            found = getattr(found, "logits", found)
            return (found[0] if isinstance(found, tuple) else found), None

        try:
            whole(like(model, x[:1, :3]), None)
        except Exception as error:  # neither way of calling works
            raise reason from error
        return whole, False
    return adapter.run, True


def _losses(
    run: Run, carries: bool, x: Tensor, y: Tensor, loss: Loss, window: int | None, tell: Callable[[], object]
) -> Tensor:
    """Return the loss at each step, (B, T); with ``window``, the state is reset every ``window`` steps.

    ``carries`` states whether ``run`` carries a state. ``tell`` is called after every call of the model, to show
    progress.
    """
    found = []
    for start, output in _outputs(run, carries, x, window, tell):
        found.append(loss(output, y[:, start : start + output.shape[1]]).double().cpu())
    result = torch.cat(found, 1)
    if result.shape != x.shape[:2]:
        raise ArgumentError("loss", f"one value per step, shape {tuple(x.shape[:2])}", f"shape {tuple(result.shape)}")
    return result


def _at(run: Run, carries: bool, x: Tensor, rows: Tensor, ends: Tensor, tell: Callable[[], object]) -> Tensor:
    """Return, for every i, the output of the model for sequence ``rows[i]`` at position ``ends[i]``, in float64.

    The model sees all inputs up to that position. ``tell`` is called after every call of the model, to show progress.
    """
    found: dict[int, Tensor] = {}
    for start, output in _outputs(run, carries, x, None, tell):
        for i in ((ends >= start) & (ends < start + output.shape[1])).nonzero()[:, 0].tolist():
            found[i] = output[int(rows[i]), int(ends[i]) - start].double().cpu()
    return torch.stack([found[i] for i in range(len(ends))])


def _outputs(
    run: Run, carries: bool, x: Tensor, window: int | None, tell: Callable[[], object]
) -> Iterator[tuple[int, Tensor]]:
    """Yield the first step and the outputs of each piece of x; with a window, every piece starts without a state."""
    size, state = window or (CHUNK if carries else x.shape[1]), None
    for start in range(0, x.shape[1], size):
        output, state = run(x[:, start : start + size], None if window else state)
        yield start, output
        tell()


def _edges(length: int) -> np.ndarray:
    """Return the borders of bins of positions in a sequence of the given length; later bins are wider.

    >>> _edges(20).tolist()
    [0, 1, 2, 4, 5, 8, 11, 16, 20]
    """
    count = int(PER_OCTAVE * math.log2(length)) + 1
    inner = np.floor(2 ** (np.arange(count) / PER_OCTAVE)).astype(int)
    return np.unique(np.concatenate([[0], inner[inner < length], [length]]))


def _binned(losses: Tensor, edges: np.ndarray) -> np.ndarray:
    """Return the mean losses (B, N) of N bins of positions, whose borders are ``edges``, from losses (B, T)."""
    sums = np.concatenate([np.zeros((len(losses), 1)), losses.numpy().cumsum(1)], 1)[:, edges]
    return np.diff(sums, axis=1) / np.diff(edges)
