"""Every example in the documentation runs, so that none can rot; ``tools/run_pages.py`` says how."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from run_pages import TUTORIALS, Block, blocks, pictures, run_console, run_page, run_session, workshop

from stablessm import models, reparam, tasks

ROOT = Path(__file__).parent.parent
PAGES = [page for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md") for page in sorted(ROOT.glob(pattern))]


def words(picture: Path) -> set[str]:
    """The words in a drawing: titles, labels and legends, without the numbers on its axes."""
    texts = {
        "".join(text.itertext()).strip() for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    }
    return {text for text in texts if re.search("[a-zA-Z]{2}", text)}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own, at its first forward AD
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = (reparam.registry, "_factories"), (models.mixers, "_factories"), (tasks.registry, "TASKS")
    for module, table in tables:  # an example may register a map, a mixer or a task
        monkeypatch.setattr(module, table, dict(getattr(module, table)))
    with workshop(tmp_path):  # and write a file
        run_page(page)
    for name in pictures(page):
        assert words(tmp_path / name) == words(TUTORIALS / "pictures" / name), "run: ./dev pages"


def test_every_picture_is_shown() -> None:
    shown = {name for page in TUTORIALS.glob("*.md") for name in pictures(page)}
    assert shown == {path.name for path in (TUTORIALS / "pictures").iterdir()}


def test_blocks_are_found() -> None:
    text = 'a\n```python\nx = 1\n```\n```sh\nls\n```\n```pycon\n>>> x\n1\n```\n```toml title="a.toml"\nb = 1\n```\n'
    assert blocks(text) == [
        Block("python", "x = 1\n", 2), Block("pycon", ">>> x\n1\n", 8), Block("toml", "b = 1\n", 12, "a.toml"),
    ]  # fmt: skip


def test_a_wrong_output_fails() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run_session(Block("pycon", ">>> 1 + 1\n3\n", 0), {}, ROOT / "README.md")


def test_decimals_of_a_tutorial_may_differ_by_a_tenth() -> None:
    run_session(Block("pycon", ">>> 7, 1.05\n(7, 1.0)\n", 0), {}, TUTORIALS / "page.md")
    for page, output in (
        (TUTORIALS / "page.md", "(7, 1.2)"),
        (TUTORIALS / "page.md", "(8, 1.0)"),
        (ROOT / "page.md", "(7, 1.0)"),
    ):
        with pytest.raises(AssertionError, match="Expected"):
            run_session(Block("pycon", f">>> 7, 1.05\n{output}\n", 0), {}, page)


@pytest.mark.parametrize("source", ["$ stablessm --version\nanother version\n", "$ stablessm nonsense\n", "$ ls\n"])
def test_a_wrong_command_or_output_fails(source: str) -> None:
    with pytest.raises(AssertionError):
        run_console(Block("console", source, 0), {}, ROOT / "README.md")


def test_commands_run() -> None:
    run_console(Block("console", "$ stablessm --version\n...commit...\n", 0), {}, ROOT / "README.md")
