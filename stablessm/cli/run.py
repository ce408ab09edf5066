"""``stablessm run`` and ``stablessm list``: the experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option(help="Folder for run folders.")]


def run(
    ids: Annotated[list[str], typer.Argument(help="Experiments, or 'all'.")],
    size: Annotated[str, typer.Option(help="smoke (seconds) or paper (the published size).")] = "smoke",
    out: Out = Path("runs"),
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: another setting, by name.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again instead of going on.")] = False,
) -> None:
    """Run experiments; a run that was interrupted goes on, one that is complete is not computed again.

    Examples:

      stablessm run ia-fig1

      stablessm run all --size paper --out results

      stablessm run ia-fig5 --set words=fine,awful
    """
    from rich.console import Console

    from stablessm import ArgumentError
    from stablessm.experiments import catalogue
    from stablessm.experiments.base import execute

    console = Console()
    try:
        changes = _changes(settings or [])
        for id in catalogue.IDS if ids == ["all"] else ids:
            experiment: Any = catalogue.get(id)
            folder, cached = execute(experiment, size, out, changes=changes, fresh=fresh)  # type: ignore[arg-type]
            console.print(summary(folder, cached))
            console.print(f"written: {folder}", soft_wrap=True)
    except ArgumentError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here")
        raise typer.Exit(130) from None


def list_experiments(out: Out = Path("runs")) -> None:
    """Show the experiments: id, question, how long they take, and the last verdict.

    Example: stablessm list --out results
    """
    from rich.console import Console
    from rich.table import Table

    from stablessm.experiments import catalogue

    table = Table("id", "source", "question", "smoke / paper", "last verdict")
    for id in catalogue.IDS:
        experiment = catalogue.get(id)
        cost = " / ".join(_duration(experiment.minutes[size]) for size in ("smoke", "paper"))
        table.add_row(id, experiment.source, experiment.question, cost, _last_verdict(out / id))
    Console().print(table)


def summary(folder: Path, cached: bool) -> Any:
    """The claims of a run as a table."""
    from rich.markup import escape
    from rich.table import Table

    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    when = "from an earlier run" if cached else f"{record['wall_time_s']:.0f} s"
    title = f"{record['id']} ({record['source']}, size {record['size']}, {when})"
    table = Table("claim", "paper", "ours", "verdict", title=title, title_justify="left")
    for claim in record["claims"]:
        table.add_row(*(escape(claim[key]) for key in ("statement", "paper", "ours", "verdict")))
    return table


def _changes(settings: list[str]) -> dict[str, str]:
    from stablessm import ArgumentError

    parts = [setting.partition("=") for setting in settings]
    for name, sign, _ in parts:
        if not name or not sign:
            raise ArgumentError("--set", "KEY=VALUE", repr(name))
    return {name.strip(): text for name, _, text in parts}


def _duration(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 1 else f"{minutes:.0f} min"


def _last_verdict(folder: Path) -> str:
    for size in ("paper", "smoke"):
        path = folder / size / "record.json"
        if path.exists():
            try:
                verdicts = [claim["verdict"] for claim in json.loads(path.read_text(encoding="utf-8"))["claims"]]
            except (OSError, ValueError, KeyError, TypeError):
                return f"unreadable ({size})"
            return f"{', '.join(sorted(set(verdicts)))} ({size})"
    return "not run"
