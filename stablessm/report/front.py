"""The front page: what holds, at a glance, and the way to each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stablessm.report.claim import VERDICTS, Claim
from stablessm.report.folder import Record
from stablessm.report.markup import Html, element
from stablessm.report.runs import Collection, Problem
from stablessm.report.section import kind, verdict


def counts(collection: Collection) -> Counter[str]:
    """How many claims of the front page's runs have each verdict."""
    return Counter(claim.verdict for run in collection.front for claim in run.claims)


def front(collection: Collection, anchors: Mapping[Record, str]) -> Html:
    """Summary, claims, thumbnails, and what could not be read. ``anchors`` names the section of each run."""
    runs = collection.front
    claims = [(run, claim) for run in runs for claim in run.claims]
    return element(
        "section",
        element("p", "stablessm report", class_="eyebrow"),
        element("h1", "The papers’ claims, measured again"),
        _summary(collection, len(claims)) if collection.runs else _nothing(),
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
    """The contents beside the page: one line a run, those of one id under each other."""
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
        text += f" Of each experiment this page shows one run, paper size before smoke; {more} more below."
    return element("p", text, class_="lead")


def _filters(claims: list[Claim]) -> list[Html]:
    """A bar of the shares, and buttons that count the verdicts and filter the table."""
    first = {kind(claim): claim for claim in reversed(claims)}
    number = Counter(kind(claim) for claim in claims)
    kinds = [name for name in (*(v.replace(" ", "-") for v in VERDICTS), "unknown") if name in number]
    bar = [element("i", class_=name, style=f"flex-grow:{number[name]}") for name in kinds]
    shown = {name: verdict(first[name] if name != "unknown" else Claim("", verdict="unknown")) for name in kinds}
    how = {"type": "button", "aria_pressed": "false"}
    buttons = [element("button", shown[name], element("b", number[name]), data_filter=name, **how) for name in kinds]
    return [
        element("div", bar, class_="bar", aria_hidden="true"),
        element("div", buttons, class_="filters", role="group", aria_label="show only one verdict"),
    ]


def _table(rows: list[tuple[str, Record, Claim]]) -> Html:
    head = element("tr", [element("th", name, scope="col") for name in ("id", "claim", "paper", "ours", "verdict")])
    body = [
        element(
            "tr",
            element("td", element("a", run.id, href=f"#{anchor}"), _weaker(run), data_label="id"),
            element("td", claim.statement, data_label="claim"),
            element("td", claim.paper or "–", data_label="paper"),
            element("td", claim.ours or "–", data_label="ours"),
            element("td", verdict(claim), data_label="verdict"),
            data_verdict=kind(claim),
        )
        for anchor, run, claim in rows
    ]
    return element("table", element("thead", head), element("tbody", body), class_="claims")


def _weaker(run: Record) -> Html | None:
    """A verdict of a smaller or unfinished run says so."""
    notes = [run.size] if run.size != "paper" else []
    notes += [run.status] if run.status != "complete" else []
    return element("small", ", ".join(notes)) if any(notes) else None


def _card(run: Record, anchor: str) -> Html:
    """A thumbnail. Its picture is that of the section: a script copies the address, so it is stored once."""
    image = element("img", alt="", hidden=True, loading="lazy", data_src_of=f"{anchor}.1-img") if run.figures else None
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
        element("p", "The rest of the page stands without these.", class_="lead"),
        element("ul", items, class_="problems"),
    ]


def _nothing() -> Html:
    lines = (
        ("stablessm list", "what there is"),
        ("stablessm run ia-fig1 --size smoke", "one experiment in seconds"),
        ("stablessm run ia-fig1 --size paper", "the published size"),
        ("stablessm report", "this page again"),
    )
    lead = element("p", "No runs yet. A report is made of run folders; this makes some:", class_="lead")
    how = [[element("dt", element("code", code)), element("dd", what)] for code, what in lines]
    return element("div", lead, element("dl", how, class_="how"), class_="nothing")


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
