"""``stablessm demo``: runs the stability demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stablessm.cli.options import RESUME, RUNS, option, refusing
from stablessm.cli.output import note


def demo(
    size: str = option(
        "paper",
        "Size: smoke (a version that takes seconds) or paper (the whole demonstration).",
        words=("smoke", "paper"),
    ),
    seed: int = option(0, "Seed of the weights, the data and the perturbations.", min=0),
    out: Path = RUNS,
    fresh: bool = option(False, "Delete the existing run and start again."),
    smoke: bool = option(False, "Old name of --size smoke.", hidden=True),
    show: bool = option(False, "Open the report in a browser.", "--open"),
) -> dict[str, Any]:
    """Train and compare four models with long memory (two minutes).

    The models learn a task with long memory, their weights are perturbed, and an HTML report is written. One model uses
    its recurrent weights directly, the other three use stable reparameterizations.

    Examples:

      stablessm demo --open
      stablessm demo --size smoke       a few seconds, to try it out
      stablessm demo --seed 1 --out runs/demo
    """
    from stablessm.cli.run import show_claims
    from stablessm.experiments.demo.experiment import EXPERIMENT
    from stablessm.experiments.frame.base import execute
    from stablessm.report import page

    chosen: Any = "smoke" if smoke else size
    with refusing(interrupted=RESUME):
        changes = {"seed": str(seed)} if seed else {}
        folder, cached = execute(EXPERIMENT, chosen, out, changes=changes, fresh=fresh)
        claims = show_claims(folder, cached)
        page.write(folder / "report.html", [folder])
    note(f"report: {folder / 'report.html'}")
    if show:
        import webbrowser

        webbrowser.open((folder / "report.html").resolve().as_uri())
    return {"folder": folder, "report": folder / "report.html", "claims": claims}
