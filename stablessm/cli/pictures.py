"""Writes the drawings of memory functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stablessm import record

FILES = ("memory.png", "memory.svg", "memory.html")


def save(folder: Path, picture: Any, page: Any) -> None:
    """Write a picture (of Matplotlib) in two formats, and an interactive page (of plotly), to a folder."""
    for name in FILES[:2]:
        with record.atomic(folder / name) as path:
            picture.savefig(path, dpi=120)
    with record.atomic(folder / FILES[2]) as path:
        # self-contained, and without plotly's button that sends the data to its makers
        page.write_html(path, include_plotlyjs=True, config={"showSendToCloud": False, "plotlyServerURL": ""})
