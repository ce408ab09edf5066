"""Every example in the documentation runs, so that none can rot.

Fences marked ``python`` are executed, those marked ``pycon`` are also compared with the output they show; the blocks of
one file share one namespace, from top to bottom. Other fences (``sh``, ``text``) are left alone.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

from stablessm import models, reparam, tasks

ROOT = Path(__file__).parent.parent
PAGES = [page for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md") for page in sorted(ROOT.glob(pattern))]
FENCE = re.compile(r"^```(python|pycon)[^\n]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str, int]]:
    """Language, source and number of lines above, of each block that runs."""
    return [(match[1], match[2], text.count("\n", 0, match.start(2))) for match in FENCE.finditer(text)]


def run_session(source: str, namespace: dict[str, Any], page: Path, above: int) -> None:
    parsed = doctest.DocTestParser().get_doctest(source, namespace, page.name, str(page), above)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    failed, _ = runner.run(parsed, out=report.append, clear_globs=False)
    assert not failed, "".join(report)
    namespace.update(parsed.globs)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = (reparam.registry, "_factories"), (models.mixers, "_factories"), (tasks.registry, "TASKS")
    for module, table in tables:  # an example may register a map, a mixer or a task
        monkeypatch.setattr(module, table, dict(getattr(module, table)))
    monkeypatch.chdir(tmp_path)  # and write a file
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for language, source, above in blocks(page.read_text(encoding="utf-8")):
        if language == "pycon":
            run_session(source, namespace, page, above)
        else:
            # As many empty lines as stand above the block: a traceback then names the line of the page.
            exec(compile("\n" * above + source, str(page), "exec"), namespace)


def test_blocks_are_found() -> None:
    text = "a\n```python\nx = 1\n```\n```sh\nls\n```\n```pycon\n>>> x\n1\n```\n"
    assert blocks(text) == [("python", "x = 1\n", 2), ("pycon", ">>> x\n1\n", 8)]


def test_a_wrong_output_fails() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run_session(">>> 1 + 1\n3\n", {}, ROOT / "README.md", 0)
