"""Measurement of the memory function of any sequence model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from stablessm import _tensors
from stablessm._arguments import real_number
from stablessm._checked import Count, Positive, Seed, Size, checked
from stablessm._errors import ArgumentError
from stablessm._progress import working
from stablessm.instruments import _linear, _supremum, huggingface
from stablessm.instruments._precision import in_double
from stablessm.instruments._recurrences import slowest_rates
from stablessm.instruments._repeatable import NoisyError, alike
from stablessm.instruments.adapters.facts import evaluating, is_transformer, own_step
from stablessm.instruments.curve import MemoryCurve
from stablessm.instruments.systems import System, as_system, seeing_ahead

Norm: TypeAlias = Literal["ball", "plus_one", "unit"]

_WHEN = {
    "prefix": "None without tokens, since the model is not one of Hugging Face's",
    "suffix": "None without tokens",
    "amplitudes": "None without directions",
    **dict.fromkeys(("dt", "unit", "directions", "warm_up", "around"), "None with tokens, for which it has no meaning"),
}

ROUNDING = 8
"""Rounding error of a difference of outputs y, in units of eps · max |y|."""


@checked
def memory_function(
    model: Any,
    horizon: Size,
    *,
    d_input: Size | None = None,
    dt: float | None = None,
    norm: Norm = "ball",
    bound: Positive = 1.0,
    directions: Tensor | None = None,
    amplitudes: Sequence[float] | None = None,
    tokens: Sequence[int] | None = None,
    prefix: Sequence[int] | None = None,
    suffix: Sequence[int] | None = None,
    output: huggingface.Output | None = None,
    warm_up: Count | None = None,
    around: Tensor | np.ndarray | None = None,
    linear: bool | None = None,
    samples: Size = 64,
    ascent: Count = 8,
    unit: str | None = None,
    seed: Seed = 0,
    progress: bool = True,
) -> MemoryCurve:
    """Measure the memory function: how fast the output still changes a time t after a constant input is switched on.

    u^x is the Heaviside input, which is 0 before time 0 and the vector x from then on. H_t(u^x) is the difference
    between the outputs of the model at time t for the input u^x and for zero input (StableSSM section 2.2). B is
    ``bound``. The option ``norm`` chooses one of::

        ball       M(t) = sup over |x|₂ ≤ B of |d/dt H_t(u^x)| / B          IAT eq. 6
        plus_one   M(t) = sup over x ≠ 0 of |d/dt H_t(u^x)| / (|x|_∞ + 1)   StableSSM eq. 5
        unit       M(t) = max over i of |d/dt H_t(u^x)| with x = e_i        SSM-UA eq. 9

    For a linear model, M(t) = |ρ(t)| is the norm of its kernel (IAT eq. 5). In this case M(t) is measured as the
    response to an impulse, which avoids the cancellation of a difference, and the curve is ``exact``.

    For any other model the supremum is found by a search and is a lower bound. The search tries inputs of every size
    from 1e-6 B to B in many directions. It also tries the best inputs of the model linearized at rest (by forward
    differentiation, if the model supports it and has at most ``samples`` input channels), and improves the best inputs
    by ascent. The search covers the first 16384 steps; later steps are measured with the few inputs that were best in
    the second half of these steps. A search runs on a copy of the model in float64 if the model has at most 2²⁶ weights
    and can compute in float64.

    A model that carries its state runs in chunks, so that the memory in use does not grow with the horizon, except for
    the curve itself. A callable without a state runs over the whole horizon at once.

    The derivative d/dt is the difference quotient of the sampled output, (y[k] - y[k-1]) / dt. For a linear layer in
    continuous time with ``layer.step(x, state, dt=…)`` it is exact, and the direct term D x, an impulse, is left out.

    Args:
        model: One of our layers or models, ``torch.nn.RNN``, ``GRU`` or ``LSTM``, a Hugging Face model, or any callable
            from (batch, time, d_input) to (batch, time, d_output). A model with one output per sequence,
            (batch, d_output), is run on every beginning of the input. A model that looks ahead gets as much input after
            the horizon as before it, or three times as much (at least 256 steps) if it looks further ahead.
        horizon: Number of steps to look back.
        d_input: Number of input channels (default: the model's).
        dt: Time between samples (default: the model's, or 1).
        norm: Normalization of M, one of the three above.
        bound: Largest size B of the inputs; for ``plus_one``, sizes up to a hundred times ``bound`` are tried.
        directions: Directions (n, d_input) of the inputs to measure instead of searching; ``by_input`` of the result
            has the curve of each.
        amplitudes: Sizes of the inputs in these directions (default: ``bound``).
        tokens: Token ids to measure, for a Hugging Face model, or for any callable from ids (batch, time) to outputs.
            The input is a single token, repeated after the prefix (IAT appendix B), and M is |y[k] - y[k-1]|. Without
            tokens, the input of a Hugging Face model is a vector that is added to the embedding of the last token of
            the prefix.
        prefix: Token ids before the tokens (default: the begin token of a Hugging Face model).
        suffix: Token ids after every beginning of the input, such as BERT's [SEP], for a model with one output per
            sequence.
        output: Output of a Hugging Face model: ``logits``, ``hidden``, or a function of the model's output.
        warm_up: Number of steps without input before time 0 (default: 0; 1 if the model looks ahead, since its output
            then moves before time 0; 16 in embedding space, and if the output for a constant input changes only if
            other inputs came before, as in attention without positions).
        around: Inputs (time, d_input) around which the memory is measured, instead of around zero input. They start
            ``warm_up`` steps before time 0. The input x is then added at time 0 only, and M(t) dt is the change of the
            output. For a linear model this is the same as above; for any other model it is the effect of the input of
            one step on later outputs.
        linear: Whether the model is linear and time-invariant (default: found by a test).
        samples: Number of random inputs that the search tries over all steps. Four times as many run until the
            response has decayed, and eight times as many for 16 steps. With several input channels the negative of
            each input is tried as well.
        ascent: Largest number of ascent steps (0: no ascent).
        unit: Name of the unit of time.
        seed: Seed of the search.
        progress: Whether a long search shows a progress bar.

    >>> import stablessm as ssm
    >>> layer = ssm.RealSSM(1, 2, 1, eigenvalues=torch.tensor([-0.5, -2.0]), map="exp", dt=0.1).double()
    >>> curve = memory_function(layer, 200)
    >>> kernel = layer.kernel(0.1 * torch.arange(200, dtype=torch.float64))[:, 0, 0].detach()
    >>> curve.exact, bool(np.allclose(curve.value, abs(kernel)))
    (True, True)
    """
    transformer = is_transformer(model)
    unused: dict[str, Any] = {"suffix": suffix} if transformer else {"prefix": prefix, "suffix": suffix}
    if tokens is not None:
        unused = {"dt": dt, "unit": unit, "directions": directions, "warm_up": warm_up, "around": around}
    _refuse(unused if directions is not None else unused | {"amplitudes": amplitudes})
    if tokens is not None:
        return _of_tokens(model, horizon, tokens, prefix, suffix, output, progress)

    def run_by(module: Any) -> System:
        if transformer:
            return huggingface.embedding_system(module, output, prefix)
        return as_system(module, d_input=d_input, output=output)

    system, warm_up = _from_rest(run_by(model), horizon, warm_up, around is None)
    step = time_step(model, dt)
    facts: dict[str, Any] = {"norm": norm, "bound": bound, "dt": step, "unit": unit or default_unit(system, step)}
    time, searched = np.arange(horizon) * step, directions is None
    with evaluating(model), torch.no_grad(), working("memory_function", progress) as tell:
        system = system.with_callback(tell)
        if searched and linear is not False and around is None:
            gain = _linear.gain(system, horizon, step, norm, bound, warm_up, assume=linear is True)
            if gain is not None:
                floor = 4 * torch.finfo(gain.dtype).eps * float(gain.value.max())
                facts |= {"exact": gain.proved, "note": "impulse response"}
                return finite_curve(time, gain.value, gain.maximizer, floor, **facts)
        found: dict[str, Any] = {"ahead": system.ahead, "streams": system.streams}
        system = in_double(system, lambda copied: replace(run_by(copied).with_callback(tell), **found))
        system = system if around is None else _around(system, around, horizon + warm_up + system.ahead)
        search = _supremum.Search(system, horizon, step, norm, bound, warm_up, brief=around is not None)
        points = None
        if directions is not None:
            points = _given(directions, amplitudes, system, norm, bound)
            facts["by_input"] = search.rows(points).numpy()
            facts["inputs"] = tuple(str([round(v, 6) for v in point.tolist()]) for point in points)
        elif norm == "unit":
            points = torch.eye(system.d_input, dtype=system.dtype, device=system.device)
            search.evaluate(points, horizon)
        else:
            search.run(samples, ascent, seed)
        if searched and not system.streams:
            _confirm(search)
        facts |= {"exact": norm == "unit" and searched, "note": search.note}
        curve = finite_curve(time, search.value, search.maximizer, ROUNDING * search.rounding, **facts)
        return curve if around is not None else replace(curve, slowest=slowest_rates(search, points))


def _confirm(search: _supremum.Search) -> None:
    """Measure the inputs with the largest values again, and raise a NoisyError if the values have changed.

    Changed values show that the model draws random numbers, but so rarely that earlier tests did not see them. No error
    is raised in two cases. First, a tiny change of the inputs changes the values as much: the model then amplifies
    rounding errors. Second, runs of the same lengths as in the search give the same values: the outputs then depend on
    where the input ends.
    """
    value, best, lengths = torch.from_numpy(search.value.copy()), search.best.clone(), search.lengths.clone()
    late = torch.unique(best[value > 8 * search.rounding], dim=0, return_counts=True)
    points = torch.cat([best[value.argmax()][None], late[0][late[1].topk(min(7, len(late[0]))).indices]])
    size, same = float(value.max()), (best[None] == points[:, None]).all(-1)

    def change(again: Tensor, known: Tensor) -> float:
        """Return the largest difference between ``again`` and the earlier values, or 0 if rounding explains it.

        Only values where the mask ``known`` is True are compared.
        """
        largest = float(torch.where(known[:, : again.shape[1]], (again - value[: again.shape[1]]).abs(), 0).max())
        return largest if largest > 1e-6 * size + 1e4 * search.rounding else 0.0

    again = search.rows(search.own(points))
    if not (off := change(again, same)):
        return
    moved = search.rows(search.own(points * (1 + 1e3 * torch.finfo(search.system.dtype).eps)))
    if float((moved - again).abs().max()) > off / 100:
        return
    runs = {int(length): same & (lengths == length) for length in lengths[same.any(0)].unique()}
    off = max(change(search.rows(search.own(points), length), known) for length, known in runs.items())
    if off:
        raise NoisyError(off * search.dt, "rare random numbers of its own, or a state kept between calls")


def _around(system: System, inputs: Tensor | np.ndarray, steps: int) -> System:
    """Return a system that runs the model on its input plus the given fixed inputs (T, d_input), to measure the memory
    around these inputs.
    """
    base = _tensors.as_tensor(inputs).detach().to(system.device, system.dtype)
    base = base[:, None] if base.dim() == 1 else base
    if base.dim() != 2 or base.shape[1] != system.d_input or len(base) < steps:
        expected = f"at least {steps} steps (horizon and warm_up), {system.d_input} channels"
        raise ArgumentError("around", expected, f"shape {tuple(base.shape)}")
    if not bool(base.isfinite().all()):
        raise ArgumentError("around", "finite numbers", "NaN or infinity")

    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        at, held = (0, None) if state is None else state
        y, held = system.call(x + base[at : at + x.shape[1]], held)
        return y, (at + x.shape[1], held)

    return replace(system, call=call)


def _refuse(unused: dict[str, Any]) -> None:
    for name, value in unused.items():
        if value is not None:
            raise ArgumentError(name, _WHEN[name], value)


def _from_rest(system: System, horizon: int, warm_up: int | None, alone: bool) -> tuple[System, int]:
    """Return the system with its attribute ``ahead`` set (see :func:`seeing_ahead`), and the number of warm-up steps.

    The warm-up steps are steps without input before time 0: the given number, or the default of the model. ``alone`` is
    False if the memory is measured around other inputs, which come before time 0.
    """
    if warm_up is not None:
        return seeing_ahead(system, horizon + warm_up), warm_up
    steps = huggingface.WARM_UP if system.input == "embedding" or (alone and _compares(system)) else 0
    system = seeing_ahead(system, horizon + steps)
    return system, max(steps, int(system.ahead > 0))


def _compares(system: System) -> bool:
    """Return True if the output for a constant input changes only if other inputs came before, as in attention.

    >>> _compares(as_system(lambda x: x.cumsum(1) / torch.ones_like(x).cumsum(1), d_input=1))
    True
    """
    if system.streams:
        return False
    x = torch.linspace(-1, 1.5, system.d_input, dtype=system.dtype, device=system.device)[None, None]

    def drive(start: int, stop: int) -> Tensor:
        return x * (torch.arange(start, stop, device=x.device) >= 0)[:, None]

    with evaluating(system.model), torch.no_grad():
        both = [torch.cat(list(system.outputs(drive, -steps, 8)), 1)[:, -8:] for steps in (0, huggingface.WARM_UP)]
    alone, after = (alike(y, y[:, :1], y) for y in both)
    return alone and not after


def _of_tokens(
    model: Any,
    horizon: int,
    tokens: Sequence[int],
    prefix: Sequence[int] | None,
    suffix: Sequence[int] | None,
    output: Any,
    progress: bool,
) -> MemoryCurve:
    start = huggingface.neutral_prefix(model, prefix)
    tokens = huggingface.checked_tokens(model, "tokens", tokens)
    words = torch.tensor(tokens)[:, None]
    system = huggingface.token_system(model, output)
    system = seeing_ahead(system, len(start) + horizon) if suffix is None else huggingface.closed(system, suffix)
    beginning = torch.tensor(start).expand(len(words), -1)

    def drive(first: int, last: int) -> Tensor:
        before = beginning[:, len(start) + min(first, 0) : len(start) + min(last, 0)]
        held = words.expand(-1, max(0, last - max(first, 0)))
        return torch.cat([before, held], 1)[..., None].to(system.device)

    with evaluating(model), torch.no_grad(), working("memory_function", progress) as tell:
        y = torch.cat(list(system.with_callback(tell).outputs(drive, -len(start), horizon)), 1)[:, -horizon - 1 :]
    rows = torch.linalg.vector_norm(y.double().diff(dim=1), dim=-1).cpu().numpy()
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    eps = max(torch.finfo(dtype).eps for dtype in (y.dtype, *(w.dtype for w in weights if w.is_floating_point())))
    floor = ROUNDING * eps * float(torch.linalg.vector_norm(y.double(), dim=-1).max())
    value, best = rows.max(0), rows.argmax(0)
    names = tuple(str(token) for token in tokens)
    return finite_curve(
        np.arange(horizon) * 1.0, value, words[torch.from_numpy(best)].double().numpy(), floor, exact=True,
        norm="unit", bound=1.0, dt=1.0, unit="tokens", note="a repeated token", inputs=names, by_input=rows,
    )  # fmt: skip


def finite_curve(time: np.ndarray, value: Any, maximizer: Any, floor: float, **facts: Any) -> MemoryCurve:
    """Create the memory curve, or raise an error that states the first step at which the curve is not finite."""
    value = np.asarray(value, dtype=np.float64)
    maximizer = None if maximizer is None else np.asarray(maximizer, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(value))
    if len(bad):
        raise _supremum.not_finite(int(bad[0]))
    return MemoryCurve(time, value, maximizer=maximizer, floor=floor, **facts)


def _given(directions: Tensor, amplitudes: Sequence[float] | None, system: System, norm: str, bound: float) -> Tensor:
    directions = _tensors.as_tensor(directions, dtype=system.dtype, device=system.device)
    if directions.dim() != 2 or directions.shape[1] != system.d_input or not len(directions):
        raise ArgumentError("directions", f"shape (n, {system.d_input})", f"shape {tuple(directions.shape)}")
    length = torch.linalg.vector_norm(directions, dim=1, keepdim=True)
    usable = (length > 0) & length.isfinite()
    if not bool(usable.all()):
        raise ArgumentError("directions", "finite vectors other than 0", f"one of length {float(length[~usable][0]):g}")
    sizes = torch.tensor([bound] if amplitudes is None else list(amplitudes), dtype=system.dtype, device=system.device)
    if not len(sizes) or not bool((sizes > 0).all()) or (norm == "ball" and bool((sizes > bound * (1 + 1e-9)).any())):
        raise ArgumentError("amplitudes", f"positive numbers up to bound = {bound}", amplitudes)
    return (directions / length)[:, None].mul(sizes[:, None]).flatten(0, 1)


def time_step(model: Any, dt: float | None) -> float:
    """Return the time between samples: the model's own time step, otherwise ``dt``, otherwise 1."""
    own = own_step(model)
    if dt is None:
        return 1.0 if own is None else own
    dt = real_number("dt", dt, 0)
    if own is not None and not math.isclose(own, dt, rel_tol=1e-9):
        raise ArgumentError("dt", f"{own:g} (the model's own), or None", dt)
    return dt


def default_unit(system: System, step: float) -> str:
    """Return the default name of the unit of time of a memory curve, such as ``steps`` or ``tokens``."""
    if system.input == "embedding":
        return "tokens"
    return "steps" if step == 1 and own_step(system.model) is None else "time"
