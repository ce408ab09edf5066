"""``stablessm report``: the runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stablessm._errors import printable
from stablessm.cli.options import refusing


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
    from stablessm.report import front, page

    with refusing(OSError, cannot="write the report"):
        found = page.write(out, runs)
    for problem in found.problems:
        typer.secho(printable(f"could not be read: {problem.where}: {problem.reason}"), fg="red", err=True)
    verdicts = ", ".join(f"{count} {verdict or 'without verdict'}" for verdict, count in front.counts(found).items())
    typer.echo(f"written: {out} (runs: {len(found.runs)}{'; claims: ' if verdicts else ''}{verdicts})")
    if show:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
