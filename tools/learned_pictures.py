"""Draw the pictures of docs/learned.md from the committed records.

./dev pages        # writes docs/assets/learned-*.svg
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stablessm.report.figure import Figure, Panel

PICTURES = {
    "perturbation": "st-fig1/large/perturbation-1000.json",
    "descent": "st-appendix/paper/appendix.json",
    "rates": "st-rates/paper/losses.json",
}
"""Figures of records, by the name of the picture."""


def pictures(root: Path) -> dict[Path, bytes]:
    """Return the pictures by their path."""
    return {
        root / "docs" / "assets" / f"learned-{name}.svg": lines(Figure.load(root / "results" / path))
        for name, path in PICTURES.items()
    }


def lines(figure: Figure) -> bytes:
    """Return the figure without its points, which are in the report."""
    panels = [
        replace(panel, series=[one for one in panel.series if one.style != "points"])
        for panel in figure.panels
        if isinstance(panel, Panel)
    ]
    return replace(figure, panels=panels).pictures("svg")["svg"]


def main(root: Path = Path()) -> None:
    """Write the pictures."""
    for path, content in pictures(root).items():
        path.write_bytes(content)


if __name__ == "__main__":
    main()
