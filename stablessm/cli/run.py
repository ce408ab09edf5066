"""``stablessm run``: runs experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from stablessm._errors import MissingPackageError, printable
from stablessm.cli import tables
from stablessm.cli.engine_options import EngineOptions
from stablessm.cli.list import duration
from stablessm.cli.options import RESUME, RUNS, SIZES, argument, choices, grouped, option, pairs, refusing
from stablessm.cli.output import Unsuccessful, note


def _ids(incomplete: str) -> list[str]:
    """Return the ids of experiments for shell completion."""
    from stablessm.experiments import listing

    return choices(*listing.ids(), "all")(incomplete)


@grouped
def run(
    ids: list[str] = argument(
        ...,
        "Ids of experiments (stablessm list), or all, or module:NAME of your own (executes the module).",
        metavar="ID",
        autocompletion=_ids,
    ),
    size: str = option(
        "smoke",
        "Size: smoke (a small version that takes seconds) or paper (the published size); some experiments also have "
        "reduced (smaller than paper) or large (for a GPU).",
        words=SIZES,
    ),
    out: Path = RUNS,
    settings: list[str] | None = option(None, "Setting to change, as KEY=VALUE; repeatable.", "--set"),
    fresh: bool = option(False, "Delete the existing runs and start again."),
    *,
    engine: EngineOptions,
) -> list[dict[str, Any]]:
    """Run experiments and check the papers' claims.

    An interrupted run resumes, and a complete run is not computed again. The smoke size only shows that everything
    works; the other sizes give verdicts.

    With --jobs or --on, experiments are split into jobs that run in parallel; stablessm status shows their progress.

    Examples:

      stablessm run ia-fig1
      stablessm run ia-fig1 --size paper
      stablessm run all --size paper --out results
      stablessm run ia-fig5 --set words=fine,awful
      stablessm run st-fig1 --size paper --jobs 4 --cpus 2
      stablessm run st-fig1 st-table5 --on ray --address auto --gpus 1
      stablessm run st-fig1 --on slurm --slurm partition=gpu --minutes 240
    """
    from stablessm.sweeps import sweep

    results = []
    with refusing(interrupted=RESUME):
        changes, names = pairs("--set", settings), _all(size) if ids == ["all"] else ids
        chosen = engine.engine()
        swept: Any = _one_by_one if chosen is None else partial(sweep, engine=chosen)
        for result in swept(names, size, out, changes=changes, fresh=fresh):
            for id, error in result.failures.items():
                typer.secho(printable(f"failed: {id}: {error}"), fg="red")
            claims = None if result.failures else show_claims(result.folder, result.cached)
            if not result.failures:
                note(f"written: {result.folder}")
            results.append({**vars(result), "claims": claims})
    if any(result["failures"] for result in results):
        note("the same command computes the failed parts again, and nothing else")
        raise Unsuccessful(results)
    return results


def _all(size: str) -> list[str]:
    """Return the ids of the experiments that have the size ``size``, and print the other ids. If no experiment has this
    size, return all ids.
    """
    from stablessm.experiments import listing

    known = listing.summaries()
    lacking = [id for id in listing.IDS if id in known and size not in known[id].minutes]
    if not lacking or len(lacking) == len(listing.IDS):
        return list(listing.IDS)
    note(f"without the size {size}: {', '.join(lacking)}")
    return [id for id in listing.IDS if id not in lacking]


def _one_by_one(ids: list[str], size: Any, out: Path, *, changes: dict[str, str], fresh: bool) -> Iterator[Any]:
    """Run experiments one after the other in this process, and yield the result of each. If one of several experiments
    cannot run because a package is missing, the other experiments still run.

    ``changes`` are the settings to change, by name.
    """
    from stablessm.experiments import catalog
    from stablessm.experiments.frame.base import execute
    from stablessm.sweeps import Swept

    for id in ids:
        try:
            yield Swept(*execute(catalog.get(id), size, out, changes=changes, fresh=fresh))
        except MissingPackageError as error:
            if len(ids) == 1:
                raise
            yield Swept(out / id / size, failures={id: str(error)})


def show_claims(folder: Path, cached: bool) -> list[dict[str, Any]]:
    """Print the claims of a run and their verdicts as a table; return the claims. ``cached`` states whether the run was
    complete before this command.
    """
    from stablessm import record

    path = folder / "record.json"
    with record.reading(path, "the record of an experiment, or --fresh to start again"):
        found = record.read_json(record.inside(path, folder))
        when = "from an earlier run" if cached else f"{found['wall_time_s']:.0f} s"
        title = f"{found['id']} ({found['source']}, size {found['size']}, {when})"
        judged = any(claim["verdict"] for claim in found["claims"])
        keys = ("statement", "paper", "ours", *(["verdict"] if judged else []))
        rows = [[claim[key] for key in keys] for claim in found["claims"]]
    tables.show(("claim", *keys[1:]), rows, title=title)
    if not judged:
        for line in _why_no_verdict(found):
            note(line)
    return found["claims"]


def _why_no_verdict(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that explain why a run of size smoke has no verdicts, and how to get verdicts; ``found`` is the
    record of the run.
    """
    from stablessm.experiments import listing

    summary = listing.summaries().get(found["id"])
    size = "paper" if summary is None else listing.judged_size(summary.minutes)
    time = "" if summary is None else f" (about {duration(summary.minutes[size])} on two cores)"
    yield "This was a smoke run: everything works, but it is too small to judge the paper's claims."
    yield f"For verdicts{time}: stablessm run {found['id']} --size {size}"
    yield "To see the plots: stablessm report --open"
