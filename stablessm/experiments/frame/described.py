"""Builds an experiment from the README.md of its folder, which states its id, title, question, claim and source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from stablessm._errors import ArgumentError
from stablessm.experiments.frame.base import Claim, Experiment
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stages import Stages
from stablessm.report.figure import Figure

C = TypeVar("C")
Figures: TypeAlias = Iterable[Figure]
Claims: TypeAlias = Iterable[Claim]

_HEAD = re.compile(
    r"# (?P<id>[\w-]+): (?P<title>[^\n]+)\n\n\*\*Question\.\*\* (?P<question>.+?)\n\n"
    r"\*\*Claim\*\* \((?P<source>.+?)\)\. (?P<claim>.+?)\n\n",
    re.DOTALL,
)


def described(
    file: str,
    run: Callable[[C, Run], None],
    figures: Callable[[C, Stages], Figures],
    claims: Callable[[C, Stages], Claims],
    *,
    smoke: C,
    paper: C,
    minutes: tuple[float, float],
    jobs: Callable[[C], Mapping[str, Callable[[Run], object]]] | None = None,
) -> Experiment[C]:
    """Return the experiment that the README.md in the folder of ``file`` describes.

    Args:
        file: ``__file__`` of the module that defines the experiment.
        smoke: Config that takes seconds.
        paper: Config of the published size.
        minutes: Minutes that both sizes take on two cores.

    >>> from stablessm.experiments import catalog
    >>> catalog.get("ia-fig3").claim
    'Only teachers with exponentially decaying memory.'
    """
    readme = Path(file).with_name("README.md")
    found = _HEAD.match(readme.read_text(encoding="utf-8"))
    if found is None:
        raise ArgumentError(str(readme), "# ID: TITLE, **Question.** …, **Claim** (SOURCE). …", "another beginning")
    return Experiment(
        **{name: " ".join(text.split()) for name, text in found.groupdict().items()},
        configs={"smoke": smoke, "paper": paper},
        minutes={"smoke": minutes[0], "paper": minutes[1]},
        run=run,
        figures=lambda config, stages: list(figures(config, stages)),
        claims=lambda config, stages: list(claims(config, stages)),
        jobs=jobs,
        readme=readme,
    )
