"""``stablessm report``: writes a page about all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from stablessm._errors import ArgumentError, printable
from stablessm.cli.options import argument, option, refusing
from stablessm.cli.output import note


def report(
    runs: list[Path] | None = argument(
        None, "Run folders, or folders above them (default: results and runs, if they exist).", metavar="RUN"
    ),
    out: Path = option(Path("report.html"), "HTML file to write."),
    show: bool = option(False, "Open the report in a browser.", "--open"),
) -> dict[str, Any]:
    """Write an HTML report of all runs.

    The file contains the claims, plots, settings and downloads of every run, and needs no network.

    Examples:

      stablessm report
      stablessm report results runs/ia-fig1 --out report.html --open
    """
    from stablessm.report import front, page
    from stablessm.report.runs import FOLDERS

    with refusing(OSError, cannot="write the report"):
        if not runs and not any(next(Path(folder).rglob("record.json"), None) for folder in FOLDERS):
            expected = "a folder with runs; make one: stablessm run ia-fig1"
            raise ArgumentError("RUN", expected, f"none, and there are no runs in {' or '.join(FOLDERS)}")
        found = page.write(out, runs)
    for problem in found.problems:
        typer.secho(printable(f"could not be read: {problem.where}: {problem.reason}"), fg="red", err=True)
    claims = {verdict or "without verdict": count for verdict, count in front.counts(found).items()}
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in claims.items())
    note(f"written: {out} (runs: {len(found.runs)}{'; claims: ' if verdicts else ''}{verdicts})")
    if show:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return {
        "report": out,
        "runs": len(found.runs),
        "claims": claims,
        "problems": [vars(problem) for problem in found.problems],
    }
