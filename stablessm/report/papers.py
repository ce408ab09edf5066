"""The four papers, and their summaries in the first part of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from stablessm.report.claim import Claim, kind, tally
from stablessm.report.folder import Record
from stablessm.report.markup import Html, element
from stablessm.report.section import bar, claim_values, verdict


@final
@dataclass(frozen=True)
class Paper:
    """One paper: its title, its main finding, and the experiment that shows the finding best."""

    key: str
    title: str
    arxiv: str
    finding: str
    lead: str
    """The id of the experiment that is shown with the summary."""
    claim: int = 0
    """Index of its claim that is shown."""
    figure: int = 0
    """Index of its figure that is shown."""
    panels: tuple[int, ...] = (0, 1)
    """The panels of the figure that are shown."""


PAPERS = (
    Paper(
        key="IAT",
        title="Inverse Approximation Theory for Nonlinear Recurrent Neural Networks",
        arxiv="2305.19190",
        finding="A recurrent network can approximate a target stably only if the memory of the target decays "
        "exponentially. For a target with polynomial memory, wider networks tolerate smaller and smaller perturbations "
        "of their weights.",
        lead="ia-fig1",
        claim=1,
        figure=1,
    ),
    Paper(
        key="SSM-UA",
        title="State-space Models with Layer-wise Nonlinearity are Universal Approximators with Exponential Decaying "
        "Memory",
        arxiv="2309.13414",
        finding="Linear recurrences with nonlinearities between the layers can approximate any continuous "
        "sequence-to-sequence map, but their memory still decays exponentially.",
        lead="su-fig5",
        claim=3,
        panels=(0, 3),
    ),
    Paper(
        key="LRU-UA",
        title="On the Universality of Linear Recurrences Followed by Nonlinear Projections",
        arxiv="2307.11888",
        finding="The last state of a linear recurrence holds the whole input sequence if its eigenvalues lie close to "
        "the unit circle. A multilayer perceptron on that state can then compute any function of the sequence.",
        lead="lr-fig2",
        claim=1,
    ),
    Paper(
        key="StableSSM",
        title="StableSSM: Alleviating the Curse of Memory in State-space Models through Stable Reparameterization",
        arxiv="2311.14495",
        finding="If its recurrent weights pass through a stable reparameterization, a state-space model can "
        "approximate targets with polynomial memory stably, and its gradients stay bounded.",
        lead="st-fig1",
    ),
)


def paper_of(run: Record) -> str:
    """Return the key of the paper to which a run belongs, such as ``IAT``; an empty string if it belongs to no paper.

    >>> from pathlib import Path
    >>> paper_of(Record(Path("runs"), "ia-fig1", source="IAT, figure 1")), paper_of(Record(Path("runs"), "mine"))
    ('IAT', '')
    """
    key = run.source.partition(",")[0]
    return key if any(paper.key == key for paper in PAPERS) else ""


def summaries(runs: Sequence[Record], anchors: Mapping[Record, str]) -> Html | None:
    """Return HTML with a summary of each paper that has runs: the number of claims with each verdict, the main finding
    and one figure. Return None if no paper has runs. ``anchors`` maps each run to the id of its section.
    """
    articles = []
    for paper in PAPERS:
        of_paper = [run for run in runs if paper_of(run) == paper.key]
        if of_paper:
            articles.append(_summary(paper, of_paper, anchors))
    return element("div", articles, class_="papers") if articles else None


def _summary(paper: Paper, runs: Sequence[Record], anchors: Mapping[Record, str]) -> Html:
    claims = [claim for run in runs for claim in run.claims]
    lead = next((run for run in runs if run.id == paper.lead), runs[0])
    link = f"https://arxiv.org/abs/{paper.arxiv}"
    about = element(
        "div",
        element("p", element("b", paper.key), element("a", f"arXiv {paper.arxiv}", href=link), class_="eyebrow"),
        element("h2", paper.title),
        element("p", paper.finding, class_="finding"),
        bar(claims),
        element("p", [_count(name, number) for name, number in tally(claims).items()], class_="counts"),
    )
    return element("article", about, _evidence(paper, lead, anchors[lead]), class_="paper")


def _count(name: str, number: int) -> Html:
    return element("span", verdict(Claim("", verdict=name), before=f"{number} "))


def _evidence(paper: Paper, run: Record, anchor: str) -> Html:
    """Return HTML with one claim and one figure of the experiment that shows the paper's finding best. ``anchor`` is
    the id of the section on its run.
    """
    shown = run.claims[min(paper.claim, len(run.claims) - 1) :][:1]
    claims = [
        element("div", element("p", verdict(claim), " ", element("b", claim.statement)), claim_values(claim))
        for claim in shown
    ]
    number = min(paper.figure, len(run.figures) - 1)
    figure = None
    if run.figures:
        where = {"data_figure": f"{anchor}.{number + 1}-data", "data_panels": " ".join(map(str, paper.panels))}
        link = element("a", run.id, href=f"#{anchor}")
        caption = element("figcaption", link, f" {run.title}. ", run.figures[number].caption)
        figure = element("figure", element("div", class_="panels", **where), caption)
    return element(
        "div", element("div", claims, class_=f"key {kind(shown[0])}") if shown else None, figure, class_="evidence"
    )
