"""Report on the modes of all recurrences of a model: time scales, relative gradients and distances to instability."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm._checked import Positive, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm._renamed import module_names
from stablessm.reparam import Reparameterization

if TYPE_CHECKING:
    from rich.table import Table

DRAWS = 32
"""Number of random initializations that are drawn to determine the usual range of eigenvalues."""


def recurrent_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (name, module) for every module of a model that lists ``recurrent_parameters``.

    A compiled module is skipped, because it has all attributes of the module that was compiled: this module would be
    yielded twice.
    """
    for name, module in model.named_modules():
        if getattr(module, "recurrent_parameters", ()) and "_orig_mod" not in module._modules:
            yield name, module


def mapped_weight(module: Any) -> str | None:
    """Return the name of the weight w of a module with a scalar map λ = f(w); None without a scalar map."""
    names = getattr(module, "recurrent_parameters", ())
    return names[0] if names and isinstance(getattr(module, "map", None), Reparameterization) else None


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return |numerator| / |denominator|, with 0/0 = 0."""
    a, b = numerator.abs(), denominator.abs()
    return (a / b).masked_fill((a == 0) & (b == 0), 0)


@final
@dataclass(frozen=True, repr=False)
class Mode(Result):
    """One mode of a recurrence: its eigenvalue, time scale, gradient scale and distance to instability."""

    module: str
    index: tuple[int, ...]
    eigenvalue: complex
    time_scale: float
    gradient_scale: float
    gradient_over_weight: float
    distance: float
    growth: float

    @property
    def unstable(self) -> bool:
        """Return True if the mode is unstable, which means that its state grows from sample to sample."""
        return self.growth > 0

    def __str__(self) -> str:
        where = ", ".join(map(str, self.index)) + (f" of {self.module!r}" if self.module else "")
        fate = f"grows by e^{self.growth:.3g} per sample" if self.unstable else f"time scale {self.time_scale:.4g}"
        return f"mode {where}: λ = {_number(self.eigenvalue)}, {fate}, distance to the boundary {self.distance:.3g}"


@final
@dataclass(frozen=True, repr=False)
class Initialization(Result):
    """The result of :meth:`ModeReport.intact`; ``bool`` of it is True if all eigenvalues are as the layers initialized
    them.
    """

    findings: tuple[str, ...]
    """Differences from the initialization, one sentence per module."""

    def __bool__(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        if not self.findings:
            return "initialization intact"
        cause = (
            "Before training this means that something overwrote the weights, often model.apply(init_weights); "
            "leave out modules with `recurrent_parameters`, or call their reset_parameters() afterwards."
        )
        return "\n".join(["initialization not intact:", *(f"  {finding}" for finding in self.findings), cause])


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class ModeReport(Result):
    """A report on all modes of a model; entry i of every array belongs to mode i."""

    module: np.ndarray
    """Qualified name of the module; empty for the model itself."""
    index: tuple[tuple[int, ...], ...]
    """Index of the mode in ``eigenvalues()`` of the module."""
    eigenvalue: np.ndarray
    """Eigenvalue λ, complex."""
    time_scale: np.ndarray
    """Time in which the mode decays by e: -1/Re λ or -dt/log|λ|, in the unit of dt; infinite if it does not decay."""
    gradient_scale: np.ndarray
    """Gradient scale G(w) = |f'(w)|/f(w)², or |f'(w)|/(1 - |f(w)|)² in discrete time; NaN without a scalar map."""
    gradient_over_weight: np.ndarray
    """Ratio G(w)/|w|, the gradient scale relative to the weight (StableSSM eq. 11); 0/0 is 0."""
    distance: np.ndarray
    """Distance of λ from the stability boundary: -Re λ, or 1 - |λ| in discrete time."""
    growth: np.ndarray
    """Logarithm of the growth factor per sample: Re λ times the step, log|λ|, or log|1 + dt λ| for Euler steps."""
    dt: float | None
    _modules: Mapping[str, Any] = field(repr=False)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Mode:
        numbers = (self.time_scale, self.gradient_scale, self.gradient_over_weight, self.distance, self.growth)
        values = (float(column[i]) for column in numbers)
        return Mode(str(self.module[i]), self.index[i], complex(self.eigenvalue[i]), *values)

    @property
    def rows(self) -> list[Mode]:
        """Return a list of all modes."""
        return [self[i] for i in range(len(self))]

    def intact(self, expected: Tensor | Mapping[str, Tensor] | None = None) -> Initialization:
        """Check, before training, that the eigenvalues are as the layers initialized them.

        Re λ, Im λ, |λ| and 1/time scale are compared, each sorted. The expected values come from
        ``reset_parameters()`` of a copy of each module, under several seeds. If all seeds agree, the initialization is
        deterministic, and the values must agree up to rounding. Otherwise two things are checked: the values must lie
        in the range of the values drawn (enlarged by a tenth), and their spread must be at least a third of the
        smallest spread drawn. Wrong values in the right range therefore pass.

        Args:
            expected: Eigenvalues to compare with instead: a tensor for a single module, or a mapping from module names.

        >>> import stablessm as ssm
        >>> model = nn.Sequential(nn.Linear(2, 2), ssm.LRU(2, 16, 2))
        >>> bool(report_modes(model).intact())
        True
        >>> for parameter in model.parameters():                               # as many wrappers do
        ...     _ = nn.init.normal_(parameter, std=0.02)
        >>> bool(report_modes(model).intact())
        False
        """
        given = self._expected(expected)
        findings: list[str] = []
        for name, module in self._modules.items():
            if given is None:
                starts = _drawn(name, module, self.dt)
            elif name in given:
                lam, shape = given[name].detach().cpu().to(torch.complex128), module.eigenvalues().shape
                if lam.shape not in (shape, shape[-1:]):
                    raise ArgumentError("expected", f"shape {tuple(shape)} for {name!r}", f"shape {tuple(lam.shape)}")
                starts = [_of_eigenvalues(lam.expand(shape).numpy().ravel())]
            else:
                continue
            now, coarsest = _marginals(self, name), max(torch.finfo(p.dtype).eps for p in module.parameters())
            tolerance = max(1e-3, math.sqrt(coarsest))
            problems = ((key, _compare(now[key], [start[key] for start in starts], tolerance)) for key in starts[0])
            findings += [f"{name or 'the model'}: {key} {problem}" for key, problem in problems if problem][:1]
        return Initialization(tuple(findings))

    def _expected(self, expected: Tensor | Mapping[str, Tensor] | None) -> Mapping[str, Tensor] | None:
        if isinstance(expected, Tensor):
            if len(self._modules) > 1:
                raise ArgumentError("expected", f"a mapping with keys {', '.join(self._modules)}", "a tensor")
            return dict.fromkeys(self._modules, expected)
        unknown = set(expected or ()) - set(self._modules)
        if unknown:
            raise ArgumentError("expected", f"keys among {', '.join(self._modules)}", ", ".join(sorted(unknown)))
        return expected

    def table(self, top: int = 3) -> Table:
        """Return a table of the ``top`` slowest, fastest and steepest (largest G/|w|) modes, unstable modes first."""
        from rich.table import Table
        from rich.text import Text

        chosen: dict[int, str] = {}
        for label, key in (
            ("unstable", np.where(self.growth > 0, -self.growth, np.inf)),
            ("slowest", -self.time_scale),
            ("steepest", -self.gradient_over_weight),
            ("fastest", self.time_scale),
        ):
            for i in np.argsort(key, kind="stable")[:top]:
                if key[i] < np.inf:
                    chosen.setdefault(int(i), label)
        table = Table(title=self._summary())
        for column in ("module", "mode", "λ", "|λ|", "time scale", "G(w)", "G(w)/|w|", "distance", ""):
            table.add_column(column, justify="left" if column in ("module", "") else "right", no_wrap=True)
        for i, label in chosen.items():
            mode = self[i]
            numbers = (abs(mode.eigenvalue), mode.time_scale, mode.gradient_scale, mode.gradient_over_weight)
            cells = ("" if math.isnan(number) else f"{number:.4g}" for number in (*numbers, mode.distance))
            index = ", ".join(map(str, mode.index))
            module = Text(mode.module)  # a string would be read as markup
            table.add_row(module, index, _number(mode.eigenvalue), *cells, "unstable" if mode.unstable else label)
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=StringIO(), width=160)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get().rstrip()

    def _summary(self) -> str:
        low, high = self.time_scale.min(), self.time_scale.max()
        unstable = int((self.growth > 0).sum())
        places = f"{len(self._modules)} module{'s' if len(self._modules) > 1 else ''}"
        return f"{len(self)} modes in {places}: time scales {low:.4g} to {high:.4g}, {unstable} unstable"


@torch.no_grad()
@checked
def report_modes(model: nn.Module, dt: Positive | None = None) -> ModeReport:
    """Return a report on every mode of a layer, or of all layers in a model.

    The report includes every module that lists ``recurrent_parameters`` and has ``eigenvalues()``; the gradient scale
    G(w) also requires a scalar ``map``. For a recurrence with an activation, the eigenvalues are those of its matrix W.
    If the decay depends on the input, the time scales are those for a zero input.

    Args:
        model: Any module.
        dt: Time between samples (default: the module's ``dt``, or 1, so that the time scales of an LRU or an S4D, whose
            channels have steps of their own, are in samples).

    >>> import stablessm as ssm
    >>> layer = ssm.RealSSM(1, 3, 1, map="best", dt=0.1, eigenvalues=torch.tensor([-1.0, -0.1, -0.01]))
    >>> report = report_modes(layer)
    >>> report.time_scale.round(4).tolist(), report.gradient_over_weight.round(4).tolist()
    ([1.0, 10.0, 100.0], [2.0, 2.0, 2.0])
    """
    modules = {name: module for name, module in recurrent_modules(model) if hasattr(module, "eigenvalues")}
    if not modules:
        expected = "a module with `recurrent_parameters` and `eigenvalues()` in it"
        raise ArgumentError("model", expected, type(model).__name__)
    columns = [_columns(module, dt) for module in modules.values()]
    names = np.repeat(list(modules), [column[0].size for column in columns])
    index = tuple(i for lam, *_ in columns for i in np.ndindex(lam.shape))
    lam, time_scale, scale, relative, distance, growth = (
        np.concatenate([array.ravel() for array in arrays]) for arrays in zip(*columns, strict=True)
    )
    return ModeReport(names, index, lam, time_scale, scale, relative, distance, growth, dt, modules)


def _columns(module: Any, dt: float | None) -> tuple[np.ndarray, ...]:
    """Return six arrays with an entry for each mode of a module, as in :class:`ModeReport`.

    These are ``eigenvalue``, ``time_scale``, ``gradient_scale``, ``gradient_over_weight``, ``distance`` and ``growth``.
    """
    lam = module.eigenvalues().detach().cpu().to(torch.complex128)
    map = getattr(module, "map", None)
    continuous = getattr(module, "time", getattr(map, "time", "continuous")) == "continuous"
    if isinstance(map, Reparameterization):  # its distances have no cancellation
        w = getattr(module, module.recurrent_parameters[0]).detach().cpu().double()
        distance, scale = map.distance(w), map.gradient_scale(w)
        relative = ratio(scale, w)
    else:
        distance = -lam.real if continuous else 1 - lam.abs()
        scale = relative = torch.full_like(distance, math.nan)
    own = getattr(module, "dt", 1.0)
    step = module.log_dt.detach().cpu().double().exp()[:, None] if hasattr(module, "log_dt") else own
    if hasattr(module, "decays"):  # the input sets the decay: the time scale is that of a zero input
        decay = -module.decays(module.gate.new_zeros(1, 1, module.d_input))[0, 0].cpu().double().log()
    else:
        decay = distance * step if continuous else -torch.log1p(-distance)
    time_scale = torch.where(decay <= 0, math.inf, (own if dt is None else dt) / decay)
    growth = (1 + step * lam).abs().log() if getattr(module, "solver", None) == "euler" else -decay
    return tuple(column.numpy() for column in (lam, time_scale, scale, relative, distance, growth))


def _marginals(report: ModeReport, name: str) -> dict[str, np.ndarray]:
    mine = report.module == name
    with np.errstate(divide="ignore"):  # λ = 0 in discrete time
        return _of_eigenvalues(report.eigenvalue[mine]) | {"1/time scale": np.sort(1 / report.time_scale[mine])}


def _of_eigenvalues(lam: np.ndarray) -> dict[str, np.ndarray]:
    return {"Re λ": np.sort(lam.real), "Im λ": np.sort(lam.imag), "|λ|": np.sort(np.abs(lam))}


def _drawn(name: str, module: Any, dt: float | None) -> list[dict[str, np.ndarray]]:
    """Return the eigenvalues and time scales of a module after ``reset_parameters``, one dictionary for each seed.

    A dictionary has sorted arrays of Re λ, Im λ, |λ| and 1/time scale.
    """
    if not hasattr(module, "reset_parameters"):
        got = f"none, and {type(module).__name__} has no reset_parameters()"
        raise ArgumentError("expected", f"the eigenvalues of {name!r}", got)
    fresh, draws = copy.deepcopy(module).cpu(), []
    with torch.random.fork_rng(devices=[]):
        for seed in range(DRAWS):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would change the generator of the GPU, too
            fresh.reset_parameters()
            draws.append(_marginals(report_modes(fresh, dt), ""))
            if seed == 1 and all(_same(draws[0][key], draws[1][key], 1e-3) for key in draws[0]):
                break
    return draws


def _same(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    # The eigenvalues of a dense matrix carry the rounding of the largest of them.
    return np.allclose(a, b, rtol=tolerance, atol=1e-5 * float(np.abs(b).max()))


def _compare(now: np.ndarray, draws: list[np.ndarray], tolerance: float) -> str:
    """Return a text that describes how the numbers ``now`` differ from their initial values; "" if they do not differ.

    ``draws`` contains the initial values for several seeds. All arrays are sorted.
    """
    found = f"is {now[0]:.4g} to {now[-1]:.4g}"
    low, high = min(draw[0] for draw in draws), max(draw[-1] for draw in draws)
    if all(_same(draw, draws[0], tolerance) for draw in draws):
        return "" if _same(now, draws[0], tolerance) else f"{found}, the start has {low:.4g} to {high:.4g}"
    margin = (high - low) / 10
    if not (now[0] >= low - margin and now[-1] <= high + margin):  # also for NaN
        return f"{found}, random starts lie in {low:.4g} to {high:.4g}"
    if now.std() < min(draw.std() for draw in draws) / 3:
        return f"{found}, random starts are spread over {low:.4g} to {high:.4g}"
    return ""


def _number(z: complex) -> str:
    return f"{z.real:.4g}" if z.imag == 0 else f"{z.real:.4g}{z.imag:+.4g}i"


__getattr__ = module_names(__name__, "Initialisation")
