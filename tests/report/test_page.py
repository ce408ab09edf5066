"""The report as text: what is in it, that it is escaped, and that broken folders leave the rest standing."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from report_runs import CLAIMS, write_run
from typer.testing import CliRunner

from stablessm import ArgumentError
from stablessm.cli.report import report as report_command
from stablessm.report import folder as run_folder
from stablessm.report import page
from stablessm.report.runs import collect

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> {{main}} \" ' & \u2028"


class Structure(HTMLParser):
    """Which elements open, the text outside scripts, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "link"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, text: str) -> None:
        if not {"script", "style"} & set(self.stack):
            self.words.append(text)

    def ids(self) -> list[str]:
        return [found["id"] or "" for _, found in self.tags if "id" in found]


def made(folder: Path) -> tuple[str, Structure]:
    collection = collect([folder])
    text = page.render(collection)
    structure = Structure(text)
    assert not structure.stack
    assert len(set(structure.ids())) == len(structure.ids())
    return text, structure


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
        found["download"]: found.get("href") for tag, found in structure.tags if tag == "a" and "download" in found
    }
    assert set(files) == {f"ia-fig1-{n}" for n in ("curves.svg", "curves.npz", "record.json", "metrics.jsonl")}
    _, encoded = (files["ia-fig1-curves.npz"] or "").split(",")
    assert base64.b64decode(encoded) == (tmp_path / "run" / "curves.npz").read_bytes()
    assert text.count("plotly.js v") == 1
    assert "default-src 'none'" in text
    links = [found["href"] for tag, found in structure.tags if found.get("href", "").startswith("#")]
    assert {link[1:] for link in links} <= set(structure.ids())
    assert all("alt" in found for tag, found in structure.tags if tag == "img")


def test_figure_data_is_the_same_numbers(tmp_path: Path) -> None:
    write_run(tmp_path)
    text, _ = made(tmp_path)
    block = re.search(r'<script type="application/json" id="run-ia-fig1-smoke\.1-data">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    assert json.loads(block[1]) == json.loads((tmp_path / "curves.json").read_text(encoding="utf-8"))


def test_everything_is_escaped(tmp_path: Path) -> None:
    claims = [{"statement": NASTY, "paper": NASTY, "ours": NASTY, "verdict": NASTY, "why": NASTY}]
    keys = ("title", "question", "source", "claim", "size", "status", "command", "commit", "date")
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
    write_run(tmp_path / "f", "ia-fig10", source="paper 000, figure 10")
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
    assert "plotly.js v" not in text, "a page without plots does not carry plotly"


def test_large_arrays_are_named_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "EMBEDDED", 400)
    write_run(tmp_path)
    _, structure = made(tmp_path)
    assert "ia-fig1-curves.npz" not in [found.get("download") for _, found in structure.tags]
    assert str(tmp_path / "curves.npz") in "".join(structure.words)
    damage(tmp_path, "curves.npz")
    assert [problem.reason[:10] for problem in collect([tmp_path]).problems] == ["curves.npz"]


def test_many_arrays_are_folded(tmp_path: Path) -> None:
    names = [f"part{number}.npz" for number in range(9)]
    write_run(tmp_path, arrays=names)
    for name in names:
        shutil.copy(tmp_path / "curves.npz", tmp_path / name)
    _, structure = made(tmp_path)
    assert {f"ia-fig1-{name}" for name in names} < {found.get("download") for _, found in structure.tags}
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
    monkeypatch.setattr(page, "render", lambda collection: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write(out, [tmp_path])
    assert out.read_text(encoding="utf-8") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]
    with pytest.raises(ArgumentError, match=r"out: expected a file name that ends in \.html"):
        page.write(tmp_path / "report.txt", [tmp_path])


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(report_command)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    write_run(tmp_path / "run", figures=["gone"])
    out = tmp_path / "report.html"
    result = CliRunner().invoke(app, [str(tmp_path), str(tmp_path / "typo"), "--out", str(out), "--open"])
    assert result.exit_code == 0
    assert f"written: {out} (runs: 1; claims: 1 reproduced, 1 partly, 1 not reproduced)" in result.stdout
    assert f"could not be read: {tmp_path / 'typo'}: no such folder" in result.stderr
    assert "gone.json: no such file" in result.stderr
    assert opened == [out.as_uri()]
    assert CliRunner().invoke(app, ["--out", str(tmp_path / "report")]).exit_code == 2
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "record.json").write_text('{"kind": "measure"}', encoding="utf-8")
    result = CliRunner().invoke(app, [str(tmp_path), "--out", str(out)])
    assert "measured" not in result.stderr  # it has a page of its own
    for name in ("typo", "measured"):
        result = CliRunner().invoke(app, [str(tmp_path / name), "--out", str(tmp_path / "none.html")])
        assert result.exit_code == 2
        assert f"runs: expected folders with a run, got {tmp_path / name}" in result.stderr
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
