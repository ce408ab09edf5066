"""Builds the section of the report that shows one run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stablessm.report.claim import VERDICTS, Claim, kind, tally
from stablessm.report.figure import Figure
from stablessm.report.folder import File, Record
from stablessm.report.markup import Html, element, join, json_block

_FOLDED = 6
_LONG = 420
"""Characters of evidence that a verdict shows without a click."""


def section(run: Record, anchor: str, base: Path) -> Html:
    """Return the section on a run as HTML: question, plots, claims, settings, command and files.

    Args:
        run: The run.
        anchor: The id of the section.
        base: The folder of the page, from which links to the files start.
    """
    header = element(
        "header",
        element("p", _eyebrow(run), class_="eyebrow"),
        element("h2", element("a", run.title or run.id, href=f"#{anchor}", class_="self")),
        run.question and element("p", run.question, class_="question"),
        run.claim and element("p", element("b", "Claim "), run.claim, class_="claim"),
    )
    code = element("pre", element("code", run.command), tabindex=0)
    copy = element("button", "copy", type="button", data_copy=True, aria_label="Copy the command")
    return element(
        "section",
        header,
        [_figure(figure, f"{anchor}.{n}") for n, figure in enumerate(run.figures, start=1)],
        _verdicts(run, anchor),
        run.command and [element("h3", "Run it again"), element("div", code, copy, class_="command")],
        element("p", join(_facts(run)), class_="facts"),
        _table("Settings", flat(run.config)),
        *(_table("Computed on", flat(place)) for place in run.computed),
        _table("Figures and claims made on", {**flat(run.hardware), **flat(run.versions)}),
        element("h3", "Files"),
        _files(run, base),
        id=anchor,
        class_="run",
    )


def verdict(claim: Claim, before: str = "") -> Html:
    """Return HTML for a verdict: a color, a symbol and a word, preceded by the text ``before``."""
    sign = element("span", VERDICTS.get(claim.verdict, "–"), aria_hidden="true")
    return element("span", sign, " ", before, claim.verdict or "no verdict", class_=f"verdict {kind(claim)}")


def bar(claims: Iterable[Claim]) -> Html:
    """Return HTML for a bar that shows the share of each verdict."""
    shares = tally(claims).items()
    parts = [element("i", class_=kind(Claim("", verdict=name)), style=f"flex-grow:{number}") for name, number in shares]
    return element("div", parts, class_="bar", aria_hidden="true")


def claim_values(claim: Claim) -> Html:
    """Return HTML with the paper's value and the measured value of a claim, one below the other."""
    values = (("paper", claim.paper), ("ours", claim.ours))
    return element("dl", [element("div", element("dt", name), element("dd", value or "–")) for name, value in values])


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested dict as a flat dict, with dotted names as keys and all values as text. ``prefix`` is put before
    every name.

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
    """Return a duration as text with a suitable unit.

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
    """Return a number of bytes as text with a suitable unit.

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
    """Return an HTML element that contains the data of a figure; a script draws the figure in it."""
    return element(
        "figure",
        element("div", class_="panels", data_figure=f"{anchor}-data"),
        element("figcaption", figure.caption),
        json_block(f"{anchor}-data", figure.to_json()),
        id=anchor,
    )


def _verdicts(run: Record, anchor: str) -> list[Html] | None:
    """Return HTML with the verdicts of a run. The differences between the experiment and the paper are shown next to
    the verdicts.
    """
    if not run.claims:
        return None
    listed = element("ul", [_claim(claim) for claim in run.claims], class_="verdicts")
    if not run.deviations:
        return [element("h3", "Verdicts"), listed]
    paragraphs = [element("p", text) for text in run.deviations.split("\n\n")]
    title = "Limits" if run.source.startswith("beyond") else "Differences from the paper"
    aside = element("aside", element("h3", title), paragraphs, id=f"{anchor}.differences", class_="differences")
    return [element("div", element("div", element("h3", "Verdicts"), listed), aside, class_="judged")]


def _claim(claim: Claim) -> Html:
    why = None
    if len(claim.why) > _LONG:
        why = element("details", element("summary", "Evidence"), element("p", claim.why, class_="why"))
    elif claim.why:
        why = element("p", claim.why, class_="why")
    statement = element("p", verdict(claim), " ", element("b", claim.statement))
    return element("li", statement, claim_values(claim), why, class_=kind(claim))


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


def _files(run: Record, base: Path) -> list[Html]:
    """Return HTML with links to the files of the run folder; long lists of arrays are collapsed."""
    arrays = [file for file in run.files if file.name.endswith(".npz")]
    folded = arrays if len(arrays) > _FOLDED else []
    others = [_file(run, file, base) for file in run.files if file not in folded]
    lists = [element("ul", others, class_="downloads")]
    if folded:
        summary = element("summary", f"{len(folded)} arrays, {size(sum(file.size for file in folded))}")
        files = element("ul", [_file(run, file, base) for file in folded], class_="downloads")
        lists.append(element("details", summary, files, class_="arrays"))
    return lists


def _file(run: Record, file: File, base: Path) -> Html:
    path = (run.folder / file.name).resolve()
    try:
        link = quote(Path(os.path.relpath(path, base.resolve())).as_posix())
    except ValueError:  # another drive
        link = path.as_uri()
    return element("li", element("a", file.name, href=link), element("small", size(file.size)))
