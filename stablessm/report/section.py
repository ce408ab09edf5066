"""One run as a section of the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from stablessm.report.claim import VERDICTS, Claim
from stablessm.report.figure import Figure
from stablessm.report.folder import File, Record
from stablessm.report.markup import Html, data_uri, element, join, json_block

_FOLDED = 6


def section(run: Record, anchor: str) -> Html:
    """Question, plots, claims, settings, command and downloads."""
    header = element(
        "header",
        element("p", _eyebrow(run), class_="eyebrow"),
        element("h2", element("a", run.title or run.id, href=f"#{anchor}", class_="self")),
        run.question and element("p", run.question, class_="question"),
        run.claim and element("p", element("b", "Claim "), run.claim, class_="claim"),
    )
    verdicts = element("ul", [_claim(claim) for claim in run.claims], class_="verdicts")
    code = element("pre", element("code", run.command), tabindex=0)
    copy = element("button", "copy", type="button", data_copy=True, aria_label="copy the command")
    return element(
        "section",
        header,
        [_figure(figure, f"{anchor}.{n}") for n, figure in enumerate(run.figures, start=1)],
        run.claims and [element("h3", "Verdicts"), verdicts],
        run.command and [element("h3", "Run it again"), element("div", code, copy, class_="command")],
        element("p", join(_facts(run)), class_="facts"),
        _table("Settings", flat(run.config)),
        *(_table("Computed on", flat(place)) for place in run.computed),
        _table("Figures and claims made on", {**flat(run.hardware), **flat(run.versions)}),
        element("h3", "Downloads"),
        _downloads(run, anchor),
        id=anchor,
        class_="run",
    )


def verdict(claim: Claim) -> Html:
    """The verdict as colour, symbol and word."""
    return element(
        "span",
        element("span", VERDICTS.get(claim.verdict, "–"), aria_hidden="true"),
        " ",
        claim.verdict or "no verdict",
        class_=f"verdict {kind(claim)}",
    )


def kind(claim: Claim) -> str:
    """The verdict as a class name.

    >>> kind(Claim("it decays", verdict="not reproduced")), kind(Claim("it decays", verdict="perhaps"))
    ('not-reproduced', 'unknown')
    """
    return claim.verdict.replace(" ", "-") if claim.verdict in VERDICTS else "unknown"


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A nested table as one, with dotted names.

    >>> flat({"steps": 3, "model": {"map": "best", "widths": [4, 8]}})
    {'steps': '3', 'model.map': 'best', 'model.widths': '[4, 8]'}
    """
    rows: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            rows |= flat(value, f"{prefix}{name}.")
        else:
            rows[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return rows


def duration(seconds: float) -> str:
    """For people.

    >>> duration(0.21), duration(75), duration(3 * 3600 + 240)
    ('0.2 s', '1 min 15 s', '3 h 4 min')
    """
    if not seconds < 1e9:
        return f"{seconds} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: int) -> str:
    """Bytes for people.

    >>> size(300), size(12_345), size(3_200_000)
    ('300 B', '12 kB', '3.2 MB')
    """
    return f"{count} B" if count < 1000 else f"{count / 1000:.0f} kB" if count < 1_000_000 else f"{count / 1e6:.1f} MB"


def _eyebrow(run: Record) -> Html:
    tags = [run.size and element("span", run.size, " size" if run.size in ("paper", "smoke") else "", class_="tag")]
    if run.status != "complete":
        tags.append(element("span", "not finished: ", run.status, class_="tag running"))
    return join([element("b", run.id), element("span", run.source), tags])


def _figure(figure: Figure, anchor: str) -> Html:
    """An interactive figure, and its drawing for the thumbnail, for readers without scripts and for the download."""
    try:
        source = data_uri(figure.pictures("svg")["svg"], "image/svg+xml")
    except Exception:  # a file with an unknown scale, say: the rest of the page stands
        source = None
    return element(
        "figure",
        element("div", class_="panels", data_figure=f"{anchor}-data"),
        source
        and element("img", id=f"{anchor}-img", class_="drawing", src=source, alt=figure.caption, decoding="async"),
        element("figcaption", figure.caption),
        json_block(f"{anchor}-data", figure.to_json()),
        id=anchor,
    )


def _claim(claim: Claim) -> Html:
    values = (("paper", claim.paper), ("ours", claim.ours))
    return element(
        "li",
        element("p", verdict(claim), " ", element("b", claim.statement)),
        element("dl", [element("div", element("dt", name), element("dd", value or "–")) for name, value in values]),
        claim.why and element("p", claim.why, class_="why"),
        class_=kind(claim),
    )


def _facts(run: Record) -> Iterator[Html]:
    facts = {
        "run on": run.date,
        "took": "" if run.wall_time_s is None else duration(run.wall_time_s),
        "commit": run.commit[:10] + (" with changes" if run.commit.endswith("+") else ""),
        "folder": str(run.folder),
    }
    for name, value in facts.items():
        if value:
            yield element("span", f"{name} ", element("b", value))


def _table(title: str, rows: Mapping[str, str]) -> Html | None:
    if not rows:
        return None
    lines = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in rows.items()]
    return element("details", element("summary", title), element("table", element("tbody", lines), class_="settings"))


def _downloads(run: Record, anchor: str) -> list[Html]:
    """Drawings and files; many arrays are folded away."""
    arrays = [file for file in run.files if file.name.endswith(".npz")]
    folded = arrays if len(arrays) > _FOLDED else []
    others = [_file(run, file) for file in run.files if file not in folded]
    lists = [element("ul", *_pictures(run, anchor), others, class_="downloads")]
    if folded:
        summary = element("summary", f"{len(folded)} arrays, {size(sum(file.size for file in folded))}")
        files = element("ul", [_file(run, file) for file in folded], class_="downloads")
        lists.append(element("details", summary, files, class_="arrays"))
    return lists


def _pictures(run: Record, anchor: str) -> Iterator[Html]:
    """The drawings, each of which the page has already: a script copies its address."""
    for n, figure in enumerate(run.figures, start=1):
        name = f"{figure.name}.svg"
        yield element("li", element("a", name, data_href_of=f"{anchor}.{n}-img", download=f"{run.id}-{name}"))


def _file(run: Record, file: File) -> Html:
    if file.content is None:
        note = element("small", size(file.size), " beside the record: ", str(run.folder / file.name))
        return element("li", element("span", file.name, note))
    uri = data_uri(file.content, "application/json" if file.name.endswith(".json") else "application/octet-stream")
    note = element("small", size(file.size))
    return element("li", element("a", file.name, note, href=uri, download=f"{run.id}-{file.name}"))
