"""``stablessm fit``: replaces a kernel by a sum of exponentials."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, final

import typer

from stablessm._errors import ArgumentError, NumericalError
from stablessm.cli import tables
from stablessm.cli.model_source import SUM
from stablessm.cli.options import argument, grouped, in_options, option, refusing, slug
from stablessm.cli.output import note, waiting

if TYPE_CHECKING:
    import numpy as np

    from stablessm.constructions import ExponentialSum
    from stablessm.report.figure import Scale

DEFAULT_TOL = 1e-6
LONGEST = 1e5
"""Maximum number of steps in an interval, unless --dt is given."""
DENSE = 40_000
"""Maximum number of steps that are all plotted, and number of points of a plot in continuous time."""
POINTS = 400
"""Number of times per two decades of an interval, and number of points of a curve in the plot."""


@final
@dataclass(frozen=True)
class KernelOptions:
    """Command-line options that describe the kernel to fit: formula or file, and times."""

    expression: str | None = argument(None, "Kernel as a formula in t, such as '1/(1+t)**1.1'.")
    horizon: int | None = option(None, "Number of steps of the grid 0, dt, …, horizon·dt.", min=1)
    dt: float | None = option(None, "Time between samples, or time step for an --interval (default: 1).")
    interval: tuple[float, float] | None = option(
        None, "Two times between which to fit, on a logarithmic grid; for kernels that are singular at 0."
    )
    samples: Path | None = option(
        None, "File with samples instead of a formula; each line has a value, or t and a value.", "--from"
    )
    continuous: bool = option(False, "Fit in continuous time, not only at the grid points.")

    @property
    def name(self) -> str:
        """Return the formula of the kernel, or the name of the file with its samples; empty if neither was given."""
        from_file = self.samples.absolute().name if self.samples else ""
        return from_file if self.expression is None else self.expression

    def read(self, *, noisy: bool) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Return times and values of the kernel, for the plot, and the arguments of ``exponential_sum`` that describe
        the kernel.

        ``noisy`` states whether the fit is by least squares (``--norm l2``), which uses standard deviations and weights
        in a file.
        """
        if (self.expression is None) == (self.samples is None):
            got = "neither" if self.samples is None else "both"
            raise ArgumentError("EXPRESSION", "a formula, or samples with --from", got)
        times, values, grid = self._formula() if self.samples is None else self._file(self.samples, noisy)
        return times, values, {"time": "continuous" if self.continuous else "discrete", **grid}

    def _file(self, path: Path, noisy: bool) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        import numpy as np

        from stablessm.cli.samples_source import read_samples

        if self.interval is not None:
            raise ArgumentError("--interval", "a formula", "--from")
        rows = None if self.horizon is None else self.horizon + 1
        found = read_samples(path, rows, None if self.dt is None else self._step(), average=noisy)
        for text in found.notes:
            note(f"{path.name}: {text}")
        grid: dict[str, Any] = {"kernel": found.values, "dt": found.dt}
        if not found.complete:
            grid["times"] = found.times
        if found.dt is None:
            step = _longest_step(float(np.diff(found.times).min()), float(found.times[-1]))
            grid |= {"dt": step, "time": "continuous"}
        counted = {name: column for name in ("noise", "weights") if (column := getattr(found, name)) is not None}
        if counted and not noisy:
            note(f"{path.name}: the column of {', '.join(counted)} is not used; --norm l2 uses it")
        return found.times, found.values, grid | (counted if noisy else {})

    def _formula(self) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Return times and values of the formula, for the plot, and the arguments of ``exponential_sum`` that describe
        the kernel. The plot has fewer times than the fit.
        """
        import numpy as np

        from stablessm.constructions.sums.expression import parse

        kernel = parse(str(self.expression), "EXPRESSION")
        times: np.ndarray
        grid: dict[str, Any]
        if self.interval is not None:
            start, end = self.interval
            if self.horizon is not None:
                raise ArgumentError("--horizon", "no --horizon, because --interval has an end", self.horizon)
            if not 0 < start < end < np.inf:
                raise ArgumentError("--interval", "two positive times, the smaller one first", self.interval)
            times = np.geomspace(start, end, POINTS * max(1, round(np.log10(end / start) / 2)))
            step = _longest_step(start, end) if self.dt is None else self._step()
            grid = {"times": times, "dt": step, "time": "continuous"}
        else:
            if self.horizon is None:
                raise ArgumentError("--horizon", "a number of steps", "none")
            step = self._step()
            times, grid = step * np.arange(min(self.horizon, DENSE) + 1), {"horizon": self.horizon, "dt": step}
            if self.continuous or self.horizon > DENSE:
                end = step * self.horizon
                times = np.union1d(np.linspace(0, end, DENSE), np.geomspace(min(step, end) * 1e-4, end, DENSE // 4))
                times = times if self.continuous else step * np.unique(np.rint(times / step))
        values = kernel(times)
        if not np.isfinite(values).all():
            first = int(np.argmax(~np.isfinite(values)))
            rest = (
                f"; if the kernel is singular only at 0, start later: --interval {times[1]:g} {times[-1]:g}"
                if first == 0
                else ""
            )
            raise ArgumentError("EXPRESSION", f"finite values{rest}", f"{values[first]} at t = {times[first]:g}")
        return times, values, {"kernel": kernel, **grid}

    def _step(self) -> float:
        if self.dt is not None and not 0 < self.dt < math.inf:
            raise ArgumentError("--dt", "a positive number", self.dt)
        return 1.0 if self.dt is None else self.dt


@final
@dataclass(frozen=True)
class SumOptions:
    """Command-line options of the fit: its tolerance or order, and constraints on rates and weights."""

    tol: float | None = option(None, "Largest allowed error, met with as few states as possible (default: 1e-6).")
    order: int | None = option(None, "Number of states, instead of --tol.", min=1)
    real: bool = option(False, "Use real rates only, so that no mode oscillates.")
    positive: bool = option(False, "Use real rates and positive weights only.")
    relative: bool = option(False, "Measure relative instead of absolute errors.")
    norm: str = option(
        "sup",
        "Norm of the error: sup (largest error, for exact kernels) or l2 (least squares, for noise).",
        words=("sup", "l2"),
    )
    noise: float | None = option(None, "Standard deviation of the noise; requires --norm l2 (default: estimated).")
    max_order: int | None = option(None, "Largest number of states to try with --tol.", min=1)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``exponential_sum`` that control the fit: tolerance or order,
        constraints and norm.
        """
        tol = DEFAULT_TOL if self.tol is None and self.norm == "sup" else self.tol
        bound = {"tol": tol} if self.order is None else {"order": self.order}
        noisy = {"norm": self.norm, "noise": self.noise} if self.norm != "sup" or self.noise is not None else {}
        most = {} if self.max_order is None else {"max_order": self.max_order}
        return {**bound, "real": self.real, "positive": self.positive, "relative": self.relative, **noisy, **most}


@grouped
def fit(
    *,
    kernel: KernelOptions,
    wanted: SumOptions,
    out: Path | None = option(None, "Output folder (default: a folder in runs/fit)."),
) -> dict[str, Any]:
    """Replace a kernel by a sum of exponentials.

    The error is measured on the whole grid. The kernel is a formula in t, or samples in a file (--from). Each line of
    the file has a value (spaced by --dt), or t and a value, or t and one value per output; the outputs share their
    rates. Columns named re and im contain one complex value. With --norm l2, a column named noise holds standard
    deviations, and a column named weights holds weights.

    Examples:

      stablessm fit "1/(1+t)**1.1" --horizon 1000 --tol 1e-6
      stablessm fit "exp(-t/50)*cos(t/3)" --horizon 500 --order 2
      stablessm fit "t**-0.4" --interval 1e-4 1e4 --relative --positive
      stablessm fit --from impulse_response.csv --dt 0.01 --out runs/room
      stablessm fit --from measured.csv --norm l2
      stablessm fit "(1+1j*t)**-2" --horizon 400 --dt 0.05 --order 8
    """
    from stablessm import record
    from stablessm.constructions import exponential_sum

    started, how = time.perf_counter(), wanted.arguments()
    config = {**vars(kernel), "from": kernel.samples, **how}
    del config["samples"]
    folder = out or Path("runs") / "fit" / f"{slug(kernel.name, 'kernel')[:60]}-{_fingerprint(config)}"
    try:
        if wanted.order is not None and wanted.tol is not None:
            raise ArgumentError("--tol", "a tolerance or an --order, not both", f"{wanted.tol:g} and {wanted.order}")
        place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        if not place.is_dir() or not os.access(place, os.W_OK):
            raise ArgumentError("--out", "a folder that can be written to", f"{folder}")
        times, values, grid = kernel.read(noisy=wanted.norm == "l2")
        if wanted.noise is not None and {"noise", "weights"} & grid.keys():
            raise ArgumentError(
                "--noise", "no --noise, because the file has standard deviations or weights", wanted.noise
            )
        with waiting(f"fitting {kernel.name}"):
            es = exponential_sum(**how | grid)
    except (ArgumentError, NumericalError) as error:
        _refuse(error, kernel.name, wanted)
    facts = _facts(es)
    tables.show((), _told(facts), title=f"{kernel.name}, {len(times)} times from {times[0]:g} to {times[-1]:g}")
    errors = () if es.rate_errors is None else ("standard error of rate",)
    tables.show(("rate", "time scale", "weight", *errors), _modes(es))
    with refusing(OSError, cannot=f"write to {folder}"):
        figure = _figure(kernel.name, times, values, es, how.get("tol"), wanted.relative)
        figure.save(folder)
        figure.save_pictures(folder)
        es.save(folder / SUM)
        record.write_record(folder, started=started, kind="fit", config=config, results=facts)
    note(f"written: {folder}/record.json, sum.safetensors, sum.csv, fit.json, fit.png, fit.svg")
    parts = {"rates": es.rates, "weights": es.weights}
    return {"folder": folder, **facts, **{name: {"real": z.real, "imag": z.imag} for name, z in parts.items()}}


def _refuse(error: ArgumentError | NumericalError, name: str, wanted: SumOptions) -> NoReturn:
    """Print why the fit of the kernel ``name`` failed and, if known, the best fit that was found; then exit with status
    1 (no fit reached the tolerance) or 2 (a wrong argument).
    """
    typer.secho(f"cannot fit{f' {name}' * bool(name)}: {in_options(error)}", fg="red", err=True)
    best: ExponentialSum | None = getattr(error, "best", None)
    if best is not None:
        tables.show((), _told(_facts(best)), title="best fit that was found")
        reached = best.residual if wanted.norm == "l2" else best.relative_error if wanted.relative else best.error
        typer.echo(f"nothing was written; --order {best.order} or --tol {_round_up(reached):g} gives this")
    raise typer.Exit(1 if isinstance(error, NumericalError) else 2) from error


def _longest_step(shortest: float, end: float) -> float:
    """Return a time step for samples at irregular times: the ``shortest`` time between two samples, or a longer step if
    a decay per step would round to 1 in float32. ``end`` is the time of the last sample.
    """
    return max(shortest, end / LONGEST)


def _facts(es: ExponentialSum) -> dict[str, Any]:
    scales = -1 / es.rates.real
    noisy = {"rms residual": es.residual, "noise (standard deviation)": es.noise} if es.norm == "l2" else {}
    return {
        "order (states)": es.order,
        **noisy,
        "largest error": es.error,
        "largest relative error": es.relative_error,
        "L1 error": es.l1_error,
        "rounding in float64, for inputs up to 1": es.rounding,
        "lower bound of the L1 error at this order": None if math.isnan(es.lower_bound) else es.lower_bound,
        "condition of the modes": es.condition,
        "shortest time scale": float(scales.min()),
        "longest time scale": float(scales.max()),
        "found by": es.method,
        "seconds": es.seconds,
    }


def _told(facts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the rows (name, value) of a table that summarizes the fit; the value None is shown as "unknown"."""
    yield from ((name, "unknown" if value is None else value) for name, value in facts.items())


def _modes(es: ExponentialSum) -> Iterator[tuple[str, ...]]:
    """Yield one table row per exponential term, the slowest term last: the rate, the time scale, the weight (for
    several outputs, the norm of the weights) and, if it is known, the standard error of the rate.
    """
    import numpy as np

    for i in np.argsort(es.rates.real):
        weight = es.weights[i]
        shown = f"{weight:.6g}" if weight.ndim == 0 else f"|{np.linalg.norm(weight):.6g}|"
        error = () if es.rate_errors is None else (f"{es.rate_errors[i]:.2g}",)
        yield f"{es.rates[i]:.6g}", f"{-1 / es.rates[i].real:.4g}", shown, *error


def _figure(
    name: str, times: np.ndarray, values: np.ndarray, es: ExponentialSum, tol: float | None, relative: bool
) -> Any:
    """Return a figure that shows the kernel (``values`` at ``times``), the sum of exponentials, and their difference
    with the tolerance.

    Time is divided into at most POINTS spans, and each curve shows one point per span: the point with the largest
    difference.
    """
    import numpy as np

    from stablessm.report.figure import Figure, Panel, Series

    columns, fitted = (array.reshape(len(times), -1) for array in (values, es(times)))
    entries = [f" {column}" if columns.shape[1] > 1 else "" for column in range(columns.shape[1])]
    off = abs(columns - fitted).max(axis=1) / (abs(columns).max(axis=1) if relative else 1.0)
    wide = times[-1] > 100 * times[1]
    first = times[times > 0][0]
    places = np.where(times > 0, times, first / 2)  # on a logarithmic axis t = 0 is the leftmost point
    cuts = (np.geomspace if wide else np.linspace)(places[0] if wide else times[0], times[-1], POINTS + 1)[:-1]
    spans = np.unique([0, *(1 + np.searchsorted(places[1:], cuts)), len(times)])
    tops = [a + int(off[a:b].argmax()) for a, b in pairwise(spans)]
    x = (places if wide else times)[tops].tolist()
    x_scale: Scale = "log" if wide else "linear"
    if es.is_complex:
        entries = [f"{which} {part}" for part in ("real", "imaginary") for which in entries]
        columns, fitted = (np.concatenate([array.real, array.imag], axis=1) for array in (columns, fitted))
    axis = f"t (0 is drawn at {first / 2:.3g})" if wide and times[0] == 0 else "t"
    kernels = []
    for column, which in enumerate(entries):
        kernels.append(Series(f"kernel{which}", x, columns[tops, column].tolist(), group=f"kernel{which}"))
        kernels.append(Series(f"sum{which}", x, fitted[tops, column].tolist(), "dashed", group=f"sum{which}"))
    y_scale: Scale = "log" if (columns[tops] > 0).all() else "linear"
    errors = [Series("error", x, off[tops].tolist())]
    if tol is not None:
        errors.append(Series("tolerance", [x[0], x[-1]], [tol, tol], "dotted"))
    panels = [
        Panel(name if len(name) < 40 else "kernel", axis, "value", kernels, x_scale, y_scale),
        Panel(f"order {es.order}", axis, "relative error" if relative else "error", errors, x_scale, "log"),
    ]
    return Figure("fit", f"{name} and a sum of exponentials of order {es.order}; its error.", panels)


def _round_up(value: float) -> float:
    """Return a value rounded up to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1) if value > 0 else 1.0
    return float(f"{math.ceil(value / unit) * unit:.1e}")


def _fingerprint(config: dict[str, Any]) -> str:
    """Return a short hash of the options, so that different fits are written to different folders."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:8]
