"""``stablessm demo``: the stability demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run and the report.")] = Path("runs"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again instead of going on.")] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A few seconds instead of two minutes, to try it out.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Train a direct and three stable models on a long memory, measure them, and write an HTML report.

    Example: stablessm demo --open
    """
    from stablessm.cli.run import show_claims
    from stablessm.experiments.demo.experiment import EXPERIMENT
    from stablessm.experiments.frame.base import execute
    from stablessm.report import page

    folder, cached = execute(EXPERIMENT, "smoke" if smoke else "paper", out, fresh=fresh)
    show_claims(folder, cached)
    page.write(folder / "report.html", [folder])
    typer.echo(f"the report: {folder / 'report.html'}")
    if show:
        import webbrowser

        webbrowser.open((folder / "report.html").resolve().as_uri())
