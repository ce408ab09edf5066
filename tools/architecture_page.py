"""Generate parts of docs/architecture.md: the import table, the drawing, and the path of a layer's forward pass.

./dev pages        # bring docs/architecture.md and docs/assets/architecture.svg up to date
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any

from marked import replaced

ROOT = Path(__file__).parent.parent
ROOMS = {
    "cli": "one file per command",
    "sweeps": "experiments as jobs",
    "experiments": "figures and tables of papers",
    "bench": "speed and accuracy",
    "training": "the step loop",
    "streaming": "compiled single steps",
    "parallel": "sequences split over ranks",
    "tasks": "data, loss, metric",
    "report": "HTML from run folders",
    "constructions": "weights without training",
    "targets": "maps with known memory",
    "models": "networks of layers",
    "layers": "recurrent layers",
    "instruments": "measure any model",
    "reparam": "weights to eigenvalues",
    "scan": "the recurrence and its backends",
    "reconstruction": "past inputs from a state",
    "llvm": "compiled CPU kernels",
    "record": "reading and writing files",
}
"""Contents of each package."""
FILES = {
    "layers/base.py": "checks the input, lengths, resets and state",
    "layers/diagonal.py": "maps the weights to eigenvalues, discretizes, computes the drive",
    "layers/mapped.py": "scans the drive with the decays",
    "scan/linear.py": "public function: checks shapes, chooses the backend",
    "scan/linear_op.py": "the operator and its derivatives",
    "scan/dispatch.py": "enters the operator through PyTorch's dispatcher or autograd",
    "scan/cpu/linear.py": "lays out the arguments of the kernel",
    "llvm/kernel.py": "the compiled kernel as a Python callable",
    "llvm/threads.py": "divides channels among threads",
    "_fork.py": "says whether this process may use its OpenMP threads",
}
"""Role of each file in the forward pass of a layer."""


def contracts(kind: str) -> list[dict[str, Any]]:
    """Return import-linter's contracts of this type."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return [each for each in tomllib.loads(text)["tool"]["importlinter"]["contracts"] if each["type"] == kind]


def levels() -> list[list[str]]:
    """Return the packages of each level, the highest level first."""
    (contract,) = contracts("layers")
    return [[name.strip(" ()") for name in level.split("|")] for level in contract["layers"]]


def forbidden(package: str) -> set[str]:
    """Return the packages of lower levels that this package must not import."""
    found = [each for each in contracts("forbidden") if f"stablessm.{package}" in each["source_modules"]]
    return {name.removeprefix("stablessm.") for each in found for name in each["forbidden_modules"]}


def import_table() -> str:
    """Return a table with the packages that each package may import."""
    rows, found = [], levels()
    for number, level in enumerate(found):
        below = [name for names in found[number + 1 :] for name in names if not name.startswith("_")]
        for name in level:
            if not name.startswith("_"):
                may = [f"`{each}`" for each in below if each not in forbidden(name)]
                rows.append(f"| `{name}` | {ROOMS[name]} | {', '.join(may) or 'private helper modules'} |")
    return "\n".join(["| package | contents | may import |", "|---|---|---|", *rows])


def drawing() -> str:
    """Return a drawing of the levels as rows of boxes."""
    rows = [[name for name in level if not name.startswith("_")] for level in levels()]
    rows = [row for row in rows if row]
    width, box, step = 780, 34, 48
    height = step * len(rows) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="11" role="img"><title>Packages of stablessm by level; imports only go down</title>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, row in enumerate(rows):
        each, top = (width - 10) / len(row), 10 + number * step
        for place, name in enumerate(row):
            x = 10 + place * each
            middle = x + (each - 10) / 2
            parts.append(
                f'<rect x="{x:.0f}" y="{top}" width="{each - 10:.0f}" height="{box}" rx="4" fill="#e8f1ed"'
                f' stroke="#0b6e4f"/><text x="{middle:.0f}" y="{top + 15}" text-anchor="middle" font-weight="bold">'
                f'{name}</text><text x="{middle:.0f}" y="{top + 28}" text-anchor="middle">{escape(ROOMS[name])}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def hops() -> list[str]:
    """Return our files on the deepest call stack of a forward pass of ``LRU`` on a CPU, outermost first."""
    import torch

    import stablessm as ssm

    torch.set_num_threads(2)
    layer, x = ssm.LRU(4, 8, 4), torch.randn(8, 4000, 4)  # large enough for two threads
    layer(x)  # compiles
    return deepest(lambda: layer(x))


def deepest(call: Callable[[], object]) -> list[str]:
    """Return our files on the deepest stack of a call; a file that calls itself is listed once."""
    found: list[str] = []

    def look(frame: FrameType | None, event: str, _: object) -> None:
        nonlocal found
        files: list[str] = []
        while frame is not None and event == "call":
            path = Path(frame.f_code.co_filename)
            if "stablessm" in path.parts and path.suffix == ".py" and "tools" not in path.parts[-2:]:
                file = path.relative_to(next(p for p in path.parents if p.name == "stablessm")).as_posix()
                files += [file] if files[-1:] != [file] else []
            frame = frame.f_back
        if len(files) > len(found):
            found = files[::-1]

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def forward_path() -> str:
    """Return the files of a forward pass, each with a description."""
    return "\n".join(f"{number}. `{file}`: {FILES[file]}" for number, file in enumerate(hops(), start=1))


SECTIONS = {"imports": import_table, "forward": forward_path}


def updated(page: str) -> str:
    """Return the page with new text between its marks."""
    for name, text in SECTIONS.items():
        page = replaced(page, name, f"\n\n{text()}\n\n")
    return page


def main() -> None:
    page = ROOT / "docs" / "architecture.md"
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs" / "assets" / "architecture.svg").write_text(drawing(), encoding="utf-8")


if __name__ == "__main__":
    main()
