"""Links of the README and of every page: the file is there, and so is the heading."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

import stablessm

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
REPOSITORY = "https://github.com/stablessm/stablessm"
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)(?: \"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} (.+?)(?: \{#([\w-]+)\})?$", re.MULTILINE)


def prose(text: str) -> str:
    """Return a page without its code."""
    return re.sub(r"`[^`\n]*`", "`", FENCE.sub("", text))


def slug(heading: str) -> str:
    """Return the anchor of a heading, as Python-Markdown makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def anchors(page: Path) -> set[str]:
    """Return the anchors of every heading, and of every object whose docstring is on the page."""
    text = page.read_text(encoding="utf-8")
    found = {given or slug(heading) for heading, given in HEADING.findall(FENCE.sub("", text))}
    return found | set(re.findall(r"^::: (\S+)", text, re.MULTILINE)) | set(re.findall(r'id="([^"]+)"', text))


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere, each with a reason."""
    faults = []
    for link in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if link.startswith((f"{REPOSITORY}/blob/main/", f"{REPOSITORY}/tree/main/")):
            base, link = ROOT, re.sub(r"^.*?/(?:blob|tree)/main/", "", link)
        elif re.match(r"[a-z]+:", link):
            continue
        else:
            base = page.parent
        place, _, anchor = link.partition("#")
        target = base / place if place else page
        if not target.exists():
            faults.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target):
            faults.append(f"{link}: no such heading")
        elif DOCS in page.parents and base == page.parent and DOCS not in target.resolve().parents:
            faults.append(f"{link}: outside docs/, which the site cannot reach; link to {REPOSITORY}/blob/main/…")
    return faults


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# A title, with `code`\n", encoding="utf-8")
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#a-title-with-code) [c](#here) `[d](gone.md)`\n```sh\n[e](gone.md)\n```\n"
        "[f](gone.md) [g](other.md#gone) [h](#gone) [i](https://example.org)\n"
        f"[j]({REPOSITORY}/blob/main/README.md) [k]({REPOSITORY}/blob/main/GONE.md)\n",
        encoding="utf-8",
    )
    found = [fault.partition(":")[0] for fault in broken(page)]
    assert found == ["gone.md", "other.md#gone", "#gone", "GONE.md"]


def test_every_page_is_in_the_navigation() -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    listed = set(re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE))
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} == listed


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    documented = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    modules = {path.stem for path in (DOCS / "api").glob("*.md")}
    assert set(stablessm.__all__) - documented <= modules
