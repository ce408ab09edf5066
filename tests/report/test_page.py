"""The report as text: what is in it, that it is escaped, and that broken folders leave the rest standing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import report_runs
from html_structure import Structure
from report_runs import CLAIMS, write_run
from typer.testing import CliRunner

from stablessm import ArgumentError
from stablessm.cli import app
from stablessm.report import markup, page, section
from stablessm.report.claim import VERDICTS
from stablessm.report.figure import Style
from stablessm.report.papers import PAPERS, paper_of
from stablessm.report.runs import collect

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> {{main}} \" ' & \u2028"


def made(folder: Path) -> tuple[str, Structure]:
    collection = collect([folder])
    text = page.render(collection, folder)
    structure = Structure(text)
    assert not structure.stack
    assert len(set(structure.ids())) == len(structure.ids())
    return text, structure


def test_the_markup_is_the_one_that_was_looked_at(tmp_path: Path) -> None:
    expected = report_runs.PAGE.read_text(encoding="utf-8").splitlines()
    assert report_runs.markup(tmp_path).splitlines() == expected


def test_has_everything(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    text, structure = made(tmp_path)
    words = "".join(structure.words)
    for expected in (
        "Does a longer memory make",
        "Only an exponentially decaying",
        "Perturbation errors as the width grows",
        "stablessm run ia-fig1 --size smoke",
        "target.exponent",
        "2.13.0",
        "x86_64",
        "0123456789",
        "12.5 s",
        "2026-01-31",
        *(value for claim in CLAIMS for value in claim.values()),
    ):
        assert expected in words, expected
    files = {
        found["href"] for tag, found in structure.tags if tag == "a" and not found["href"].startswith(("#", "http"))
    }
    assert files == {"run/curves.npz", "run/record.json", "run/metrics.jsonl"}, "relative to the page"
    assert all((tmp_path / file).is_file() for file in files)
    assert "default-src 'none'" in text
    links = [found["href"] for tag, found in structure.tags if found.get("href", "").startswith("#")]
    assert {link[1:] for link in links} <= set(structure.ids())
    assert "img" not in {tag for tag, _ in structure.tags}, "figures are numbers, not pictures"


def test_the_numbers_are_those_of_the_record(tmp_path: Path) -> None:
    """Every text of the record appears where it belongs, and only there."""
    claims = [
        {"statement": f"s{n}", "paper": f"p{n}", "ours": f"o{n}", "verdict": verdict, "why": f"w{n}"}
        for n, verdict in enumerate((*VERDICTS, ""))
    ]
    computed = [{"machine": "first", "gpu": {"name": "fast"}}, {"machine": "second"}]
    changes = {
        "config": {"a": {"b": [1, "ü"]}, "c": {}}, "versions": {"torch": "9"}, "hardware": {"cores": 3},
        "wall_time_s": 3725, "commit": "abcdef0123456789+", "source": "LRU-UA, figure 3", "size": "smoke",
    }  # fmt: skip
    write_run(tmp_path / "run", claims=claims, computed=computed, figures=["curves", "curves"], **changes)
    text, structure = made(tmp_path)
    rows = re.findall(r'<tr data-verdict="([^"]*)">(.*?)</tr>', text, re.DOTALL)
    cells = [re.findall(r'<td data-label="([^"]*)">(.*?)</td>', row, re.DOTALL) for _, row in rows]
    kinds = [verdict.replace(" ", "-") for verdict in VERDICTS] + ["unknown"]
    assert [kind for kind, _ in rows] == kinds
    for n, row in enumerate(cells):
        found = {label: re.sub("<[^>]*>", "", cell) for label, cell in row}
        said = f"{VERDICTS[claims[n]['verdict']]} {claims[n]['verdict']}" if claims[n]["verdict"] else "– no verdict"
        said += "differences"
        assert found == {"id": "ia-fig1smoke", "claim": f"s{n}", "paper": f"p{n}", "ours": f"o{n}", "verdict": said}
    listed = re.findall(r'<li class="([^"]*)"><p>(.*?)</p><dl>(.*?)</dl><p class="why">(.*?)</p>', text, re.DOTALL)
    assert [(kind, re.sub("<[^>]*>", "", dl), why) for kind, _, dl, why in listed] == [
        (kind, f"paperp{n}ourso{n}", f"w{n}") for n, kind in enumerate(kinds)
    ]
    button = r'<button data-filter="([^"]*)" type="button" aria-pressed="false">.*?<b>(\d+)</b>'
    filters = re.findall(button, text)
    assert filters == [(kind, "1") for kind in kinds]
    shares = re.findall(r'<i class="([^"]*)" style="flex-grow:(\d+)">', text)
    assert shares == 2 * [(kind, "1") for kind in kinds], "in the summary of the paper and above the table"
    tables = re.findall(r"<summary>(.*?)</summary><table.*?>(.*?)</table>", text, re.DOTALL)
    rows = [(title, re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', body)) for title, body in tables]
    assert rows == [
        ("Settings", [("a.b", "[1, &quot;ü&quot;]"), ("c", "{}")]),
        ("Computed on", [("machine", "first"), ("gpu.name", "fast")]),
        ("Computed on", [("machine", "second")]),
        ("Figures and claims made on", [("cores", "3"), ("torch", "9")]),
    ]
    facts = re.findall(r"<span>(run on|took|commit|folder) <b>(.*?)</b></span>", text)
    assert facts == [
        ("run on", "2026-01-31"), ("took", "1 h 2 min"), ("commit", "abcdef0123 with changes"),
        ("folder", str(tmp_path / "run")),
    ]  # fmt: skip
    words = "".join(structure.words)
    assert "1 experiment, 7 claims." in words
    assert "ia-fig1LRU-UA, figure 3smoke size" in words
    dots = {kind: text.count(f'<i class="{kind}"></i>') for kind in kinds}
    assert dots == dict.fromkeys(kinds, 2), "beside the page and on its card"
    hrefs = {found.get("href") for tag, found in structure.tags if tag == "a"}
    assert {"#claims", "#figures", "#run-ia-fig1-smoke"} <= hrefs
    assert "#problems" not in hrefs
    ids = structure.ids()
    assert [name for name in ids if name.startswith("run-")] == [
        "run-ia-fig1-smoke",
        *(f"run-ia-fig1-smoke.{n}{part}" for n in (1, 2) for part in ("", "-data")),
        "run-ia-fig1-smoke.differences",
    ]
    drawn = [found["data-figure"] for _, found in structure.tags if "data-figure" in found]
    assert drawn == [f"run-ia-fig1-smoke.{n}-data" for n in (1, 1, 1, 2)], "summary, thumbnail and section"


def test_deviations_stand_beside_the_verdicts(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "ext-1", source="beyond the papers", deviations="One seed & one width.")
    write_run(tmp_path / "c", "ia-fig2", deviations=None)
    text, _ = made(tmp_path)
    asides = re.findall(r'</ul></div><aside id="([^"]*)" class="differences"><h3>(.*?)</h3>(.*?)</aside></div>', text)
    assert asides == [
        (
            "run-ia-fig1-smoke.differences",
            "Differences from the paper",
            "<p>The paper gives no widths.</p><p>The horizon is ours.</p>",
        ),
        ("run-ext-1-smoke.differences", "Limits", "<p>One seed &amp; one width.</p>"),
    ]  # fmt: skip
    assert text.count('">differences</a>') == 6, "three claims of each run that has some"


def test_summaries_of_papers_open_the_page(tmp_path: Path) -> None:
    verdicts = {"IAT": ["reproduced", "partly", "partly"], "StableSSM": ["not reproduced"], "my work": ["holds"]}
    for key, found in verdicts.items():
        claims = [{"statement": f"{key} {n}", "verdict": verdict} for n, verdict in enumerate(found)]
        write_run(tmp_path / key, f"{key}-1", source=f"{key}, figure 1", claims=claims)
    text, _ = made(tmp_path)
    articles = re.findall(r'<article class="paper">(.*?)</article>', text, re.DOTALL)
    assert len(articles) == 2, "one for each paper that has runs"
    assert text.index("</article>") < text.index('id="claims"')
    counts = [re.findall(r"</span> (\d+ [a-z ]+)</span></span>", article) for article in articles]
    assert counts == [["1 reproduced", "2 partly"], ["1 not reproduced"]]
    assert "IAT 1" in articles[0], "the claim that the paper is about"
    for paper, article in zip((PAPERS[0], PAPERS[3]), articles, strict=True):
        assert paper.title in article
        assert paper.finding in article
        assert f"https://arxiv.org/abs/{paper.arxiv}" in article
        assert article.count("data-figure=") == 1


def test_the_papers_lead_with_experiments_that_exist() -> None:
    results = Path(__file__).parents[2] / "results"
    for paper in PAPERS:
        (run,) = collect([results / paper.lead]).runs
        assert paper_of(run) == paper.key
        assert len(run.claims) > paper.claim
        assert len(run.figures[paper.figure].panels) > max(paper.panels)


def test_the_page_of_all_committed_records_is_small(tmp_path: Path) -> None:
    collection = collect([Path(__file__).parents[2] / "results"])
    assert len(collection.front) > 35
    text = page.render(collection, tmp_path)
    assert len(text.encode()) < 6_000_000
    assert "base64" not in text


def test_a_weaker_run_says_so_and_a_second_one_has_a_place(tmp_path: Path) -> None:
    write_run(tmp_path / "a", size="paper")
    write_run(tmp_path / "b", "ia-fig2", size="paper", status="running")
    write_run(tmp_path / "c", "ia-fig3", size="")
    for name in ("d", "e", "f"):
        write_run(tmp_path / name, "IA fig/4", size="smoke")
    text, structure = made(tmp_path)
    ids = dict(re.findall(r'<td data-label="id"><a href="#([^"]*)">[^<]*</a>(.*?)</td>', text))
    assert ids == {
        "run-ia-fig1-paper": "", "run-ia-fig2-paper": "<small>running</small>", "run-ia-fig3": "",
        "run-ia-fig-4-smoke": "<small>smoke</small>",
    }  # fmt: skip
    assert [name for name in structure.ids() if "~" in name and "." not in name] == [
        "run-ia-fig-4-smoke~2",
        "run-ia-fig-4-smoke~3",
    ]
    words = "".join(structure.words)
    assert "4 experiments, 12 claims." in words
    assert "paper size before smoke size; 2 more below." in words
    assert "not finished: running" in words
    assert words.count("smoke size") == 4, "in the summary and above each run"
    navigation = re.findall(r'<li><a href="#(run-[^"]*)">(.*?)<span>(.*?)</span></a></li>', text)
    assert [(anchor, re.sub("<[^>]*>", "", label)) for anchor, label, _ in navigation[:3]] == [
        ("run-ia-fig-4-smoke", "IA fig/4"),
        ("run-ia-fig-4-smoke~2", "smoke"),
        ("run-ia-fig-4-smoke~3", "smoke"),
    ]


def test_every_class_that_the_style_sheet_knows_is_used(tmp_path: Path) -> None:
    css, *scripts = (
        (Path(page.__file__).parent / "assets" / name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js", "plots.js", "theme.js", "page.html")
    )
    styled = set(
        re.findall(r"\.(-?[a-z][a-z-]*)(?=[^{}]*\{)", re.sub(r"/\*.*?\*/|\{[^{}]*\}", "{", css, flags=re.DOTALL))
    )
    write_run(
        tmp_path / "a", claims=[{"statement": "s", "verdict": verdict, "why": "w"} for verdict in (*VERDICTS, "")]
    )
    write_run(tmp_path / "b", status="running", figures=["gone"], arrays=[f"p{n}.npz" for n in range(7)])
    for n in range(7):
        shutil.copy(tmp_path / "b" / "curves.npz", tmp_path / "b" / f"p{n}.npz")
    _, full = made(tmp_path)
    _, empty = made(tmp_path / "nothing")
    used = {name for each in (full, empty) for _, found in each.tags for name in (found.get("class") or "").split()}
    used |= set(get_args(Style))
    missing = {name for name in styled - used if not any(re.search(rf"\b{name}\b", text) for text in scripts)}
    assert not missing
    assert len(styled & used) > 25


def test_text_that_is_no_unicode_is_written(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", title="here", figures=[]) / "record.json"
    path.write_text(path.read_text(encoding="utf-8").replace("here", r"a\ud800b"), encoding="utf-8")
    page.write(tmp_path / "report.html", [tmp_path])
    assert "a?b" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_data_in_a_page() -> None:
    assert "ü" in markup.json_block("data", {"ü": 1})
    with pytest.raises(ValueError, match="JSON"):
        markup.json_block("data", {"x": float("nan")})


def test_runs_are_in_the_order_that_people_count(tmp_path: Path) -> None:
    sources = {
        "x1": "IAT, figure 9", "x2": "IAT, figure 10", "x3": "StableSSM, table 2", "a1": "beyond the papers; IAT",
        "a0": "", "a10": "beyond the papers", "a9": "beyond the papers",
    }  # fmt: skip
    for id, source in sources.items():
        write_run(tmp_path / id, id, source=source, figures=[])
    assert [run.id for run in collect([tmp_path]).runs] == ["x1", "x2", "x3", "a0", "a9", "a10", "a1"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (59.94, "59.9 s"), (60.0, "1 min 0 s"), (3599.4, "59 min 59 s"), (3600.0, "1 h 0 min"), (90061.0, "25 h 1 min"),
        (float("nan"), "nan s"), (2e9, "2000000000.0 s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, said: str) -> None:
    assert section.duration(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(999, "999 B"), (1000, "1 kB"), (999_400, "999 kB"), (1_000_000, "1.0 MB"), (25_600_000, "25.6 MB")],
)
def test_sizes(count: int, said: str) -> None:
    assert section.size(count) == said


def test_files_are_linked_with_their_sizes(tmp_path: Path) -> None:
    write_run(tmp_path / "a b#")
    (run,) = collect([tmp_path]).runs
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "a b#").iterdir()}
    assert {file.name: file.size for file in run.files} == {
        name: sizes[name] for name in ("record.json", "curves.npz", "metrics.jsonl")
    }
    (tmp_path / "pages").mkdir()
    text = page.render(collect([tmp_path]), tmp_path / "pages")
    assert 'href="../a%20b%23/curves.npz"' in text


def test_what_is_no_text_is_shown_as_json(tmp_path: Path) -> None:
    write_run(tmp_path, title={"ü": 3}, figures=[])
    assert collect([tmp_path]).runs[0].title == '{"ü": 3}'


@pytest.mark.parametrize("count", [6, 7])
def test_more_than_six_arrays_are_folded(tmp_path: Path, count: int) -> None:
    names = [f"part{number}.npz" for number in range(count)]
    write_run(tmp_path, arrays=names, figures=[])
    for name in names:
        shutil.copy(tmp_path / "curves.npz", tmp_path / name)
    text, _ = made(tmp_path)
    assert (f"{count} arrays" in text) == (count == 7)
    assert text.count(".npz</a><small>") == count


def test_figure_data_is_the_same_numbers(tmp_path: Path) -> None:
    write_run(tmp_path)
    text, _ = made(tmp_path)
    block = re.search(r'<script type="application/json" id="run-ia-fig1-smoke\.1-data">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    assert json.loads(block[1]) == json.loads((tmp_path / "curves.json").read_text(encoding="utf-8"))


def test_everything_is_escaped(tmp_path: Path) -> None:
    claims = [{"statement": NASTY, "paper": NASTY, "ours": NASTY, "verdict": NASTY, "why": NASTY}]
    keys = ("title", "question", "source", "claim", "deviations", "size", "status", "command", "commit", "date")
    changes: dict[str, Any] = dict.fromkeys(keys, NASTY)
    tables = {key: {NASTY: NASTY} for key in ("config", "versions", "hardware")}
    write_run(tmp_path / "run", name=NASTY, claims=claims, **changes, **tables)
    figure = json.loads((tmp_path / "run" / "curves.json").read_text(encoding="utf-8"))
    figure["caption"] = figure["panels"][0]["title"] = figure["panels"][0]["series"][0]["name"] = NASTY
    (tmp_path / "run" / "curves.json").write_text(json.dumps(figure), encoding="utf-8")
    text, structure = made(tmp_path)
    _, plain = made(write_run(tmp_path / "plain"))
    assert [tag for tag, _ in structure.tags].count("script") == [tag for tag, _ in plain.tags].count("script")
    assert not [found for _, found in structure.tags if "onerror" in found]
    assert "".join(structure.words).count(NASTY) > 10
    assert "alert(1)</script>" not in text


def test_one_run_of_each_id_on_the_front_page(tmp_path: Path) -> None:
    write_run(tmp_path / "a", size="smoke", date="2026-03-01")
    write_run(tmp_path / "b", size="paper", date="2026-01-01")
    write_run(tmp_path / "c", size="paper", date="2026-02-01")
    write_run(tmp_path / "d", size="paper", date="2026-04-01", status="running")
    write_run(tmp_path / "e", "ext-precision", source="beyond the papers")
    write_run(tmp_path / "f", "ia-fig10", source="IAT, figure 10")
    collection = collect([tmp_path, tmp_path / "a"])
    assert [run.folder.name for run in collection.runs] == ["c", "b", "a", "d", "f", "e"]
    assert [run.folder.name for run in collection.front] == ["c", "f", "e"]
    _, structure = made(tmp_path)
    assert sum(found.get("class") == "run" for _, found in structure.tags) == 6
    assert sum("data-verdict" in found for _, found in structure.tags) == 9


def damage(folder: Path, what: str) -> None:
    path, content = folder / what, (folder / what).read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("what", ["curves.json", "curves.npz"])
@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_a_broken_file_is_named_and_the_rest_shows(tmp_path: Path, what: str, how: str) -> None:
    write_run(tmp_path / "good", "ia-fig2")
    write_run(tmp_path / "bad")
    (tmp_path / "bad" / what).unlink() if how == "missing" else damage(tmp_path / "bad", what)
    (problem,) = collect([tmp_path]).problems
    assert problem.where.endswith("bad")
    assert problem.reason.startswith(what)
    _, structure = made(tmp_path)
    words = "".join(structure.words)
    assert "Could not be read" in words
    assert problem.reason in words
    assert words.count("Only an exponentially decaying") == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "JSONDecodeError"),
        ('{"id": "ia-', "JSONDecodeError"),
        ("[]", "an object was expected"),
        ("{}", "no id"),
        ('{"id": 3}', "no id"),
        (b"\xff\xfe", "UnicodeDecodeError"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_a_broken_record(tmp_path: Path, content: str | bytes, reason: str) -> None:
    write_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "record.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    (problem,) = collect([tmp_path]).problems
    assert problem.where.endswith("bad/record.json")
    assert reason in problem.reason
    assert len(collect([tmp_path]).runs) == 1
    made(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"claims": [{"statement": "x", "verdict": "perhaps"}]}, "claim 1: unknown verdict 'perhaps'"),
        ({"claims": "all"}, "claims: expected a list"),
        ({"claims": ["one"]}, "claim 1: an object was expected"),
        ({"config": [1]}, "config: expected an object"),
        ({"figures": ["../secret"]}, "figures: a file name was expected, not ../secret"),
        ({"arrays": [3]}, "arrays: a file name was expected, not 3"),
        ({"figures": ["gone"]}, "gone.json: no such file"),
    ],
)
def test_wrong_entries_are_named(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    write_run(tmp_path, **changes)
    assert reason in [problem.reason[: len(reason)] for problem in collect([tmp_path]).problems]
    made(tmp_path)


def test_only_the_id_is_needed(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(
        '{"id": "x", "wall_time_s": "nan", "title": 3, "size": null}', encoding="utf-8"
    )
    assert not collect([tmp_path]).problems
    text, _ = made(tmp_path)
    assert "IntersectionObserver" not in text, "a page without plots has no script that draws"


def test_many_arrays_are_folded(tmp_path: Path) -> None:
    names = [f"part{number}.npz" for number in range(9)]
    write_run(tmp_path, arrays=names)
    for name in names:
        shutil.copy(tmp_path / "curves.npz", tmp_path / name)
    _, structure = made(tmp_path)
    assert set(names) < {found.get("href") for _, found in structure.tags}
    assert "9 arrays, 4 kB" in "".join(structure.words)


def test_default_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert collect().problems == ()
    assert "No runs yet" in page.render(collect())
    write_run(tmp_path / "results" / "ia-fig1" / "paper")
    write_run(tmp_path / "runs" / "x")
    write_run(tmp_path / "elsewhere")
    assert len(collect().runs) == 2
    assert len(collect(["elsewhere/record.json"]).runs) == 1


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run")
    out = tmp_path / "report.html"
    page.write(out, [tmp_path])
    first = out.read_text(encoding="utf-8")
    monkeypatch.setattr(page, "render", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write(out, [tmp_path])
    assert out.read_text(encoding="utf-8") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]
    with pytest.raises(ArgumentError, match=r"out: expected a file name that ends in \.html"):
        page.write(tmp_path / "report.txt", [tmp_path])


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    write_run(tmp_path / "run", figures=["gone"])
    out = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path), str(tmp_path / "typo"), "--out", str(out), "--open"])
    assert result.exit_code == 0
    assert f"written: {out} (runs: 1; claims: 1 reproduced, 1 partly, 1 not reproduced)" in result.stdout
    assert f"could not be read: {tmp_path / 'typo'}: no such folder" in result.stderr
    assert "gone.json: no such file" in result.stderr
    assert opened == [out.as_uri()]
    assert CliRunner().invoke(app, ["report", "--out", str(tmp_path / "report")]).exit_code == 2
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "record.json").write_text('{"kind": "measure"}', encoding="utf-8")
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(out)])
    assert "measured" not in result.stderr  # it has a page of its own
    for name in ("typo", "measured"):
        result = CliRunner().invoke(app, ["report", str(tmp_path / name), "--out", str(tmp_path / "none.html")])
        assert result.exit_code == 2
        assert f"RUN: expected folders with a run, got {tmp_path / name}" in result.stderr
    assert not (tmp_path / "none.html").exists()


def test_uses_no_torch() -> None:
    code = """
import sys, types
package = types.ModuleType("stablessm")
package.__path__ = [sys.argv[1]]
sys.modules["stablessm"] = package  # the package itself exports torch modules; the report asks for none of them
sys.modules["torch"] = None
from stablessm.report import page
from stablessm.report.runs import Collection
page.render(Collection())
"""
    source = Path(page.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code, str(source)], check=True)
