"""``stablessm report``: the runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Run folders, or folders with such below; results and runs by default."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write one HTML file with the claims, plots, settings and downloads of every run. It needs no network.

    Examples:

      stablessm report

      stablessm report results runs/ia-fig1 --out report.html --open
    """
    from stablessm._errors import ArgumentError
    from stablessm.report import front, page

    try:
        found = page.write(out, runs)
    except (ArgumentError, OSError) as error:
        typer.secho(f"cannot write the report: {error}", fg="red", err=True)
        raise typer.Exit(2) from error
    for problem in found.problems:
        typer.secho(f"could not be read: {problem.where}: {problem.reason}", fg="red", err=True)
    verdicts = ", ".join(f"{count} {verdict or 'without verdict'}" for verdict, count in front.counts(found).items())
    typer.echo(f"written: {out} (runs: {len(found.runs)}{'; claims: ' if verdicts else ''}{verdicts})")
    if show:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
