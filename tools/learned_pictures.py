"""Draw the pictures of docs/learned.md from the committed records.

./dev pages        # writes docs/assets/learned-*.svg
"""

from __future__ import annotations

from pathlib import Path

from stablessm.report.figure import Figure

PICTURES = {
    "perturbation": "st-fig1/paper/perturbation-1000.json",
    "descent": "st-appendix/paper/appendix.json",
}
"""Figures of records, by the name of the picture."""


def pictures(root: Path) -> dict[Path, bytes]:
    """Return the pictures by their path."""
    return {
        root / "docs" / "assets" / f"learned-{name}.svg": Figure.load(root / "results" / path).pictures("svg")["svg"]
        for name, path in PICTURES.items()
    }


def main(root: Path = Path()) -> None:
    """Write the pictures."""
    for path, content in pictures(root).items():
        path.write_bytes(content)


if __name__ == "__main__":
    main()
