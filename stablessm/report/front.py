"""The first part of the report: summaries of the papers, all claims, and links to every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stablessm.report.claim import Claim, kind, tally
from stablessm.report.folder import Record
from stablessm.report.markup import Html, element
from stablessm.report.papers import summaries
from stablessm.report.runs import Collection, Problem
from stablessm.report.section import bar, verdict


def counts(collection: Collection) -> Counter[str]:
    """Count the claims with each verdict, over the runs on the front page."""
    return Counter(claim.verdict for run in collection.front for claim in run.claims)


def front(collection: Collection, anchors: Mapping[Record, str]) -> Html:
    """Return the first part of the report as HTML. ``anchors`` maps each run to the id of its section."""
    runs = collection.front
    claims = [(run, claim) for run in runs for claim in run.claims]
    return element(
        "section",
        element("p", "stablessm report", class_="eyebrow"),
        element("h1", "The papers’ claims, measured again"),
        _summary(collection, len(claims)) if collection.runs else _nothing(),
        summaries(runs, anchors),
        claims
        and [
            element("h2", "Claims", id="claims"),
            _filters([claim for _, claim in claims]),
            _table([(anchors[run], run, claim) for run, claim in claims]),
        ],
        runs
        and [
            element("h2", "Figures", id="figures"),
            element("ul", [element("li", _card(run, anchors[run])) for run in runs], class_="gallery"),
        ],
        _problems(collection.problems),
        class_="front",
    )


def navigation(collection: Collection, anchors: Mapping[Record, str]) -> Html:
    """Return the table of contents as HTML: one line per run, grouped by experiment id. ``anchors`` maps each run to
    the id of its section, to which the line links.
    """
    chosen = set(collection.front)
    lines = []
    for run in collection.runs:
        dots = [element("i", class_=kind(claim)) for claim in run.claims[:8]]
        label = run.id if run in chosen else element("small", run.size or "again")
        lines.append(element("li", element("a", label, element("span", dots), href=f"#{anchors[run]}")))
    return element("nav", lines and element("ol", lines), class_="contents", aria_label="runs")


def _summary(collection: Collection, claims: int) -> Html:
    runs = collection.front
    more = len(collection.runs) - len(runs)
    text = f"{_number(len(runs), 'experiment')}, {_number(claims, 'claim')}."
    if more:
        text += f" This summary has one run of each experiment, paper size before smoke size; {more} more below."
    return element("p", text, class_="lead")


def _filters(claims: list[Claim]) -> list[Html]:
    """Return HTML for a bar that shows the share of each verdict, and for buttons with which a reader filters the table
    of claims by verdict.
    """
    how = {"type": "button", "aria_pressed": "false"}
    buttons = [
        element("button", verdict(claim), element("b", number), data_filter=kind(claim), **how)
        for claim, number in ((Claim("", verdict=name), number) for name, number in tally(claims).items())
    ]
    return [bar(claims), element("div", buttons, class_="filters", role="group", aria_label="Show only one verdict")]


def _table(rows: list[tuple[str, Record, Claim]]) -> Html:
    head = element("tr", [element("th", name, scope="col") for name in ("id", "claim", "paper", "ours", "verdict")])
    body = [
        element(
            "tr",
            element("td", element("a", run.id, href=f"#{anchor}"), _weaker(run), data_label="id"),
            element("td", claim.statement, data_label="claim"),
            element("td", claim.paper or "–", data_label="paper"),
            element("td", claim.ours or "–", data_label="ours"),
            element("td", verdict(claim), _caveat(run, anchor), data_label="verdict"),
            data_verdict=kind(claim),
        )
        for anchor, run, claim in rows
    ]
    return element("table", element("thead", head), element("tbody", body), class_="claims")


def _weaker(run: Record) -> Html | None:
    """Return a note if a verdict comes from an unfinished run, or from a run of a smaller size than the paper's. Return
    None for a complete run of the paper's size.
    """
    notes = [run.size] if run.size != "paper" else []
    notes += [run.status] if run.status != "complete" else []
    return element("small", ", ".join(notes)) if any(notes) else None


def _caveat(run: Record, anchor: str) -> Html | None:
    """Return a link to the text on how a run differs from the paper; the text is also the tooltip of the link. Return
    None if the run has no such text. ``anchor`` is the id of the section on the run.
    """
    if not run.deviations:
        return None
    return element("small", element("a", "differences", href=f"#{anchor}.differences", title=run.deviations))


def _card(run: Record, anchor: str) -> Html:
    """Return HTML for a thumbnail that links to the section of a run, whose id is ``anchor``. A script draws the first
    figure of the run in the thumbnail.
    """
    image = element("span", data_figure=f"{anchor}.1-data", data_thumbnail=True) if run.figures else None
    return element(
        "a",
        element("span", image, class_="thumbnail"),
        element("b", run.id),
        element("span", run.title, class_="title"),
        element("span", [element("i", class_=kind(claim)) for claim in run.claims], class_="dots"),
        href=f"#{anchor}",
    )


def _problems(problems: tuple[Problem, ...]) -> list[Html] | None:
    if not problems:
        return None
    items = [element("li", element("code", problem.where), " ", problem.reason) for problem in problems]
    return [
        element("h2", "Could not be read", id="problems"),
        element("p", "The page shows everything but these files.", class_="lead"),
        element("ul", items, class_="problems"),
    ]


def _nothing() -> Html:
    lines = (
        ("stablessm list", "Lists the experiments."),
        ("stablessm run ia-fig1 --size smoke", "Runs one experiment in seconds."),
        ("stablessm run ia-fig1 --size paper", "Runs it at the published size."),
        ("stablessm report", "Writes this page again."),
    )
    lead = element("p", "No runs yet. A report reads run folders; these commands make some:", class_="lead")
    how = [[element("dt", element("code", code)), element("dd", what)] for code, what in lines]
    return element("div", lead, element("dl", how, class_="how"), class_="nothing")


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
