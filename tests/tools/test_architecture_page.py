"""docs/architecture.md is what the code does: the import contract, and the files of a forward pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import architecture_page as page

ROOT = Path(__file__).parents[2]
PATH = "import architecture_page as page; print(*page.hops())"


def test_the_page_is_not_stale() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert page.import_table() in text, "run: ./dev pages"
    assert (ROOT / "docs" / "assets" / "architecture.svg").read_text(encoding="utf-8") == page.drawing()


def test_the_forward_path_is_short_and_as_described() -> None:
    command = [sys.executable, "-c", PATH]  # in a process of its own, where no other test has wrapped anything
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}", "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    files = done.stdout.split()
    assert 5 < len(files) <= 12, done.stderr
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = [f"{number}. `{file}`: {page.FILES[file]}" for number, file in enumerate(files, start=1)]
    assert "\n".join(lines) in text, "run: ./dev pages"


def test_every_package_is_in_the_table() -> None:
    rooms = {path.parent.name for path in (ROOT / "stablessm").glob("*/__init__.py")} | {"record"}
    assert rooms == set(page.ROOMS)
