"""Builds an experiment from the README.md of its folder, which states the experiment's id, title, question, claim and
source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from stablessm._errors import ArgumentError
from stablessm.experiments.frame.base import Claim, Experiment, Size
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stages import Stages
from stablessm.report.figure import Figure

C = TypeVar("C")
Figures: TypeAlias = Iterable[Figure]
Claims: TypeAlias = Iterable[Claim]

_HEAD = re.compile(
    r"# (?P<id>[\w-]+): (?P<title>[^\n]+)\n\n\*\*Question\.\*\* (?P<question>.+?)\n\n"
    r"\*\*Claim\*\* \((?P<source>.+?)\)\. (?P<claim>.+?)(?:\n\n|\s*\Z)",
    re.DOTALL,
)


def described(
    file: str,
    run: Callable[[C, Run], None],
    figures: Callable[[C, Stages], Figures],
    claims: Callable[[C, Stages], Claims],
    *,
    minutes: tuple[float, ...],
    smoke: C,
    reduced: C | None = None,
    paper: C | None = None,
    large: C | None = None,
    jobs: Callable[[C], Mapping[str, Callable[[Run], object]]] | None = None,
) -> Experiment[C]:
    """Return the experiment that the README.md in the folder of ``file`` describes.

    Args:
        file: ``__file__`` of the module that defines the experiment.
        run, figures, claims, jobs: The fields of the same names of the returned
            :class:`~stablessm.experiments.frame.Experiment`.
        minutes: Number of minutes that each size takes on two cores (``large``: on one GPU), in the order smoke,
            reduced, paper, large. Sizes that the experiment does not have are omitted.
        smoke: Config with which the experiment takes seconds.
        reduced: Config of a size that is smaller than ``paper`` but large enough for verdicts.
        paper: Config of the published size.
        large: Config of a larger size, for a GPU.

    >>> from stablessm.experiments import catalog
    >>> catalog.get("ia-fig3").claim
    'Only teachers with exponentially decaying memory.'
    """
    readme = Path(file).with_name("README.md")
    found = _HEAD.match(readme.read_text(encoding="utf-8")) if readme.is_file() else None
    if found is None:
        expected = "# ID: TITLE, **Question.** …, **Claim** (SOURCE). … (or write Experiment(…) in place of described)"
        raise ArgumentError(str(readme), expected, "another beginning" if readme.is_file() else "no such file")
    sizes: dict[Size, C | None] = {"smoke": smoke, "reduced": reduced, "paper": paper, "large": large}
    configs = {size: config for size, config in sizes.items() if config is not None}
    return Experiment(
        **{name: " ".join(text.split()) for name, text in found.groupdict().items()},
        configs=configs,
        minutes=dict(zip(configs, minutes, strict=True)),
        run=run,
        figures=lambda config, stages: list(figures(config, stages)),
        claims=lambda config, stages: list(claims(config, stages)),
        jobs=jobs,
        readme=readme,
    )
