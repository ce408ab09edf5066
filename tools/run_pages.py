"""Run the examples of documentation pages, and draw the pictures of the tutorials.

./dev pages        # draws docs/tutorials/pictures again

The fences of a page run from top to bottom, in one namespace and one empty folder:

- ``python`` is executed;
- ``pycon`` is executed and compared with the output that it shows (``...`` stands for anything);
- ``console`` runs its lines ``$ stablessm ...`` and compares what they print; ``$ pip install -e .`` makes the package
  of the folder known without installing it;
- any fence with ``title="FILE"`` is written to that file instead.

Other fences (``sh``, ``text``) are left alone. In tutorials, numbers with a decimal point may differ by 10 % from the
output that is shown: training and searches round differently on other machines. A picture that a page shows from
``pictures/`` is saved by the code of that page under the same file name.
"""

from __future__ import annotations

import contextlib
import doctest
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
DECIMAL = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
PICTURE = re.compile(r"!\[[^\]]*\]\(pictures/([^)]+\.svg)\)")
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "stablessm", "figure.figsize": (6.4, 3.6),
    "figure.constrained_layout.use": True, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False, "savefig.facecolor": "white",
}  # fmt: skip


class Checker(doctest.OutputChecker):
    """Compares outputs; numbers with a decimal point may differ by the relative ``tolerance``."""

    def __init__(self, tolerance: float = 0.0) -> None:
        self.tolerance = tolerance

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Return whether the output equals the expected output."""
        return super().check_output(want, got, optionflags) or self._close(
            " ".join(want.split()), " ".join(got.split())
        )

    def _close(self, want: str, got: str) -> bool:
        """Return whether the texts between the ellipses of ``want`` follow each other in ``got``, numbers aside."""
        texts, end = [text.strip() for text in want.split("...")], 0
        for number, text in enumerate(texts):
            pattern = f"({DECIMAL.pattern})".join(map(re.escape, DECIMAL.split(text)))
            pattern += r"\Z" if number == len(texts) - 1 else ""
            places = range(end, len(got) + 1) if number else (0,)
            matches = (match for place in places if (match := re.compile(pattern).match(got, place)))
            match = next((match for match in matches if self._equal(DECIMAL.findall(text), match.groups())), None)
            if match is None:
                return False
            end = match.end()
        return True

    def _equal(self, wanted: Iterable[str], found: Iterable[str]) -> bool:
        """Return whether the numbers are equal up to the tolerance."""
        return all(math.isclose(float(a), float(b), rel_tol=self.tolerance) for a, b in zip(wanted, found, strict=True))


class Block(NamedTuple):
    """A fence that runs, or is written to the file of that name."""

    language: str
    source: str
    above: int
    """Number of lines of the page above the source."""
    file: str | None = None


def blocks(text: str) -> list[Block]:
    """Return the fences of a page that run or are written to a file, in order."""
    found = []
    for match in FENCE.finditer(text):
        title = TITLE.search(match[2])
        if title or match[1] in RUNNERS:
            above = text.count("\n", 0, match.start(3))
            found.append(Block(match[1], match[3], above, title[1] if title else None))
    return found


def pictures(page: Path) -> list[str]:
    """Return the file names of the pictures that a page has to draw: none, unless it is a tutorial."""
    return PICTURE.findall(page.read_text(encoding="utf-8")) if page.parent == TUTORIALS else []


def checker(page: Path) -> Checker:
    """Return the checker that compares the outputs of a page."""
    return Checker(0.1 if page.parent == TUTORIALS else 0.0)


def run_page(page: Path) -> None:
    """Run a page in the current folder."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.source, encoding="utf-8")
        else:
            RUNNERS[block.language](block, namespace, page)


def execute(block: Block, namespace: dict[str, Any], page: Path) -> None:
    """Run a block of Python."""
    # Empty lines in place of the text above the block, so that a traceback has the line number of the page.
    exec(compile("\n" * block.above + block.source, str(page), "exec"), namespace)


def run_session(block: Block, namespace: dict[str, Any], page: Path) -> None:
    """Run a Python session and compare its output."""
    parsed = doctest.DocTestParser().get_doctest(block.source, namespace, page.name, str(page), block.above)
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(checker(page), optionflags=FLAGS).run(
        parsed, out=report.append, clear_globs=False
    )
    assert not failed, "".join(report)
    namespace.update(parsed.globs)


def run_console(block: Block, namespace: dict[str, Any], page: Path) -> None:
    """Run the commands of a terminal session and compare what they print."""
    for part in re.split(r"^\$ ", block.source, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.replace("\\\n", " ").partition("\n")
        got = run_command(shlex.split(command))
        example = doctest.Example(command, wanted)
        if wanted.strip() and not checker(page).check_output(wanted, got, FLAGS):
            difference = checker(page).output_difference(example, got, FLAGS)
            raise AssertionError(f"{page}, below line {block.above}: $ {command}\n{difference}")


def run_command(words: list[str]) -> str:
    """Run a command of the command line in this process and return what it prints."""
    if words == ["pip", "install", "-e", "."]:
        return install(Path())
    if words[0] != "stablessm":
        raise AssertionError(f"a console fence runs stablessm alone; this is for a sh fence: {' '.join(words)}")
    from typer.testing import CliRunner

    from stablessm.cli import app

    done = CliRunner().invoke(app, words[1:], env={"COLUMNS": "100"}, prog_name="stablessm")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, f"{' '.join(words)} exits with {done.exit_code}:\n{done.output}"
    return done.output


def install(folder: Path) -> str:
    """Do what ``pip install -e`` does for imports and entry points: a folder on the path with a ``dist-info``."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    info.joinpath("METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in names.items())])
        for group, names in project.get("entry-points", {}).items()
    ]
    info.joinpath("entry_points.txt").write_text("\n\n".join(groups), encoding="utf-8")
    sys.path.insert(0, str(folder.resolve()))
    return ""


@contextlib.contextmanager
def workshop(folder: Path) -> Iterator[None]:
    """Make the folder current, with the style of the pictures; afterward restore the path, modules and figures."""
    import matplotlib
    import matplotlib.pyplot as plt

    path, modules = list(sys.path), set(sys.modules)
    matplotlib.use("Agg")
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in an SVG file
    sys.path.insert(0, str(folder))  # as in an interactive Python
    try:
        with contextlib.chdir(folder), matplotlib.rc_context(STYLE):
            yield
    finally:
        plt.close("all")
        del os.environ["SOURCE_DATE_EPOCH"]
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if (file := getattr(sys.modules[name], "__file__", None)) and Path(file).is_relative_to(folder.resolve()):
                del sys.modules[name]


RUNNERS = {"python": execute, "pycon": run_session, "console": run_console}


def main() -> None:
    """Run every tutorial that shows pictures and keep what it draws."""
    for page in sorted(TUTORIALS.glob("*.md")):
        if not (names := pictures(page)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            with workshop(Path(folder)):
                run_page(page)
            (TUTORIALS / "pictures").mkdir(exist_ok=True)
            for name in names:
                shutil.copyfile(Path(folder) / name, TUTORIALS / "pictures" / name)
        print(f"{page.name}: {', '.join(names)}")


if __name__ == "__main__":
    main()
