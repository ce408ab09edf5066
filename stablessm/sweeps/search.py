"""Searches over settings with Optuna, which stores every trial, so that a search can resume."""

from __future__ import annotations

import datetime
import errno
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

from stablessm import _locks as locks
from stablessm import _progress, record
from stablessm._arguments import whole_number
from stablessm._display import Result
from stablessm._errors import ArgumentError, quoted
from stablessm._optional import require
from stablessm.sweeps.objectives import Objective

Kind: TypeAlias = Literal["float", "log", "int", "choice"]
_EXPECTED = "NAME=log:LOW:HIGH, float:LOW:HIGH, int:LOW:HIGH or choice:A,B,…"
_ABOUT, _FIRST = "stablessm", "first"
_BEGIN = 60.0
"""Seconds after which a trial that has not locked its folder counts as dead."""


@final
@dataclass(frozen=True)
class Range:
    """The range of one setting in a search: bounds, or a list of choices.

    >>> Range.read("--over", "lr=log:1e-4:1e-1")
    Range(name='lr', kind='log', low=0.0001, high=0.1, choices=())
    >>> Range.read("--over", "map=choice:best,exp").choices
    ('best', 'exp')
    """

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @staticmethod
    def read(option: str, text: str) -> Range:
        """Return the range that a text describes, such as ``lr=log:1e-4:1e-1``."""
        match = re.fullmatch(r"\s*([^=\s]+)\s*=\s*(\w+):(.+)", text)
        if match is None or match[2] not in get_args(Kind):
            raise ArgumentError(option, _EXPECTED, quoted(text))
        name, kind, rest = match[1], match[2], match[3]
        if kind == "choice":
            return Range(name, "choice", choices=tuple(part.strip() for part in rest.split(",") if part.strip()))
        number = int if kind == "int" else float
        try:
            low, high = (number(part) for part in rest.split(":"))
        except ValueError as error:
            raise ArgumentError(option, _EXPECTED, quoted(text)) from error
        if not low < high or (kind == "log" and low <= 0):
            raise ArgumentError(option, "LOW below HIGH" + (", both above 0" if kind == "log" else ""), quoted(text))
        return Range(name, kind, low, high)  # type: ignore[arg-type]

    def suggest(self, trial: Any) -> str:
        """Ask Optuna for a value of this setting in its range, and return the value as text."""
        if self.kind == "choice":
            return str(trial.suggest_categorical(self.name, self.choices))
        if self.kind == "int":
            return str(trial.suggest_int(self.name, int(self.low), int(self.high)))
        return repr(trial.suggest_float(self.name, self.low, self.high, log=self.kind == "log"))


def told(values: Mapping[str, Any]) -> str:
    """Format settings and their values as one line of text.

    >>> told({"lr": 0.001234567, "map": "best"})
    'lr=0.001235, map=best'
    """
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


@final
@dataclass(frozen=True, repr=False)
class Found(Result):
    """The best trial of a search so far."""

    trial: int
    value: float
    settings: dict[str, Any]
    folder: Path
    trials: int
    """Number of completed trials."""


def search(
    objective: Objective,
    ranges: Sequence[Range],
    out: Path,
    *,
    trials: int,
    storage: str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Found | None:
    """Try settings until ``trials`` trials are complete; return the best trial, or None if all trials diverged.

    ``ranges`` are the settings that the search varies, and ``out`` is the folder that contains the run folders of the
    trials. Trials are stored in the database ``storage`` (default: a file in ``out``). Several processes, also on
    different machines, share the work if all of them use the same storage and folder. A trial that was killed resumes
    in its folder. The settings that are tried depend only on the seed and the earlier trials, not on interruptions.
    """
    optuna = require("optuna", "search")
    whole_number("--trials", trials)
    if not ranges:
        raise ArgumentError("--over", "at least one range", "none")
    objective.check([one.name for one in ranges])
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    with _in_database(storage or out / "search.db"):
        study = _study(optuna, objective, ranges, out, storage)
        states = optuna.trial.TrialState
        alive = tuple(state for state in states if state != states.FAIL)

        def count() -> int:
            return len(study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED)))

        with _progress.bar(progress, total=trials, initial=count(), desc="trials") as bar:
            while count() < trials:
                _revive(study, out, states)
                trial = study.ask()
                before = sum(one.number < trial.number for one in study.get_trials(deepcopy=False, states=alive))
                study.sampler = optuna.samplers.TPESampler(seed=seed * 100_003 + before)
                place = folder(out, trial)
                with locks.job_lock(place):
                    settings = {one.name: one.suggest(trial) for one in ranges}
                    try:
                        value = objective.value(settings, place)
                    except Exception:
                        study.tell(trial, state=states.FAIL)
                        raise
                    if math.isnan(value):
                        study.tell(trial, state=states.PRUNED)
                    else:
                        study.tell(trial, value)
                bar.update(count() - bar.n)
        return _written(study, out, states)


@contextmanager
def _in_database(place: str | Path) -> Iterator[None]:
    """Return a context that converts errors of the database to errors that name its ``place``."""
    try:
        yield
    except ArgumentError:
        raise
    except Exception as error:  # of SQLAlchemy, or of Optuna because of one of SQLAlchemy
        own = type(error).__module__.startswith("sqlalchemy")
        cause = error if own else error.__cause__
        if not type(cause).__module__.startswith("sqlalchemy"):
            raise
        why = str(cause).partition("\n")[0]
        if type(cause).__name__ == "OperationalError":  # of the disk or the connection
            remedy = "free some space or choose a folder that can be written to"
            raise OSError(errno.EIO, f"{why}; {remedy}", str(place)) from error
        raise record.DamagedFileError(str(place), "a database of Optuna", f"{why}. {record.RESTORE}") from error


def folder(out: Path, trial: Any) -> Path:
    """Return the run folder of a trial; a repeated trial uses the folder of its first attempt."""
    return out / "trials" / f"{trial.user_attrs.get(_FIRST, trial.number):05d}"


def _revive(study: Any, out: Path, states: Any) -> None:
    """Add every trial whose process has died to the queue again, so that the trial is resumed."""
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        place = folder(out, trial)
        old = (datetime.datetime.now() - trial.datetime_start).total_seconds() > _BEGIN
        if locks.running(place) or not (old or (place / locks.JOB).exists()):
            continue
        try:
            study.tell(trial.number, state=states.FAIL)
        except ValueError:
            continue  # another search has already done so
        study.enqueue_trial(trial.params, user_attrs={_FIRST: trial.user_attrs.get(_FIRST, trial.number)})


def _study(optuna: Any, objective: Objective, ranges: Sequence[Range], out: Path, storage: str | None) -> Any:
    over = [asdict(one) for one in ranges]
    about = record.plain({**objective.describe(), "direction": objective.direction, "over": over})
    try:
        kept = optuna.storages.RDBStorage(storage or f"sqlite:///{out.resolve() / 'search.db'}")
    except Exception as error:  # each database raises its own kind
        if storage is None:
            raise
        raise ArgumentError("--storage", "such as sqlite:///search.db", f"{storage!r} ({error})") from error
    study = optuna.create_study(study_name=out.name, storage=kept, direction=objective.direction, load_if_exists=True)
    before = study.user_attrs.get(_ABOUT)
    if before is None:
        study.set_user_attr(_ABOUT, about)
    elif before != about:
        raise ArgumentError(
            "--over", f"the same ranges as the search {out.name} in this storage, or another --out", "another"
        )
    return study


def _written(study: Any, out: Path, states: Any) -> Found | None:
    """Write all trials to ``search.json``, and return the best trial or, if no trial is complete, None."""
    trials = study.get_trials(deepcopy=False)
    rows = [
        {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.value,
            "settings": trial.params,
            "folder": folder(out, trial).relative_to(out).as_posix(),
        }
        for trial in trials
    ]
    complete = [trial for trial in trials if trial.state == states.COMPLETE]
    content = {**study.user_attrs[_ABOUT], "trials": rows}
    record.write_json(out / "search.json", content)
    if not complete:
        return None
    best = study.best_trial
    ended = sum(row["state"] in ("complete", "pruned") for row in rows)
    return Found(best.number, float(best.value), dict(best.params), folder(out, best), ended)
