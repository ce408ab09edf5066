"""Draw docstrings, help texts and sentences of the documentation at random, for a reader who judges their clarity.

python tools/sample_sentences.py --seed 1                            # 50 docstrings, 30 help texts, 30 doc sentences
python tools/sample_sentences.py --docstrings 10 --under stablessm/scan
"""

from __future__ import annotations

import argparse
import ast
import inspect
import random
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
Sample = tuple[str, str]
"""Where a text is, and the text."""


def signature(node: ast.AST, owner: str = "") -> str:
    """Return what comes before a docstring, without decorators: ``def Pool.take(self, size: int) -> bytes``."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"def {owner}{node.name}({ast.unparse(node.args)}){returns}"
    if isinstance(node, ast.ClassDef):
        return f"class {owner}{node.name}({', '.join(map(ast.unparse, node.bases))})"
    return "module"


def docstrings(root: Path, under: str = "stablessm") -> Iterator[Sample]:
    """Yield every docstring below a folder; its place is the file, the line and the signature, as ``help`` shows it."""
    for path in sorted((root / under).rglob("*.py")):
        place = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        owners = {child: f"{node.name}." for node in classes for child in node.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield f"{place}:{getattr(node, 'lineno', 1)} {signature(node, owners.get(node, ''))}", text


def help_texts() -> Iterator[Sample]:
    """Yield the help of every command, and every help text of an option or argument once."""
    from typer.main import get_command

    from stablessm.cli import app

    group, seen = get_command(app), set()
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        yield f"stablessm {name}", inspect.cleandoc(command.help or "").split("\n\n")[0]
        for parameter in command.params:
            if not getattr(parameter, "hidden", False) and parameter.help not in seen:
                seen.add(parameter.help)
                yield f"stablessm {name} {parameter.opts[0]}", str(parameter.help)


def doc_sentences(root: Path) -> Iterator[Sample]:
    """Yield the sentences of README.md and docs/, without code, tables, headings and generated pages."""
    for path in sorted([root / "README.md", *(root / "docs").rglob("*.md")]):
        if "claims" in path.parts or path.stem == "claims":
            continue
        text = re.sub(r"```.*?```", "\n\n", path.read_text(encoding="utf-8"), flags=re.S)
        for paragraph in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", text):
            if paragraph.lstrip().startswith(("#", "|", "<", "!", ":::", "---")):
                continue
            for sentence in re.split(r"(?<=[.?!])(?<! [A-Z]\.)\s+(?=[A-Z`*])", " ".join(paragraph.split())):
                if len(sentence.split()) > 3:
                    yield path.relative_to(root).as_posix(), sentence.removeprefix("- ")


def draw(kinds: dict[str, tuple[list[Sample], int]], seed: int) -> dict[str, list[Sample]]:
    """Return the given number of texts of each kind, without repetition; the same seed draws the same texts.

    >>> draw({"letters": ([("here", letter) for letter in "abc"], 2)}, seed=0)
    {'letters': [('here', 'b'), ('here', 'c')]}
    """
    generator = random.Random(seed)
    return {kind: generator.sample(texts, min(count, len(texts))) for kind, (texts, count) in kinds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docstrings", type=int, default=50)
    parser.add_argument("--help-texts", type=int, default=30)
    parser.add_argument("--doc-sentences", type=int, default=30)
    parser.add_argument("--under", default="stablessm", help="folder of the docstrings")
    given = parser.parse_args()
    kinds = {
        "docstrings": (list(docstrings(ROOT, given.under)), given.docstrings),
        "help texts": (list(help_texts()), given.help_texts),
        "sentences of the documentation": (list(doc_sentences(ROOT)), given.doc_sentences),
    }
    for kind, samples in draw(kinds, given.seed).items():
        print(f"\n{kind} (seed {given.seed})")
        for number, (where, text) in enumerate(samples, 1):
            print(f"{number:>3}. [{where}]\n{textwrap.indent(text, '     ')}")


if __name__ == "__main__":
    main()
