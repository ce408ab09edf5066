"""Hints for error messages about paths that do not exist. This module does not import torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

_WHERE = ("runs", "runs/train", "runs/fit", "runs/measure")
"""Folders to which commands write, in which a bare name is also looked for."""


def did_you_mean(path: Path, fits: Callable[[Path], bool] = Path.exists) -> str:
    """Return ``"; did you mean OTHER?"`` for the path of a file or folder that exists, that ``fits``, and that has a
    similar name; or an empty text.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "load.csv").write_text("1")
    ...     did_you_mean(Path(folder) / "laod.csv").endswith("load.csv?"), did_you_mean(Path(folder) / "x")
    (True, '')
    """
    found = _near(path, fits)
    return "" if found is None else f"; did you mean {found}?"


def _near(path: Path, fits: Callable[[Path], bool]) -> Path | None:
    """Return a path with a similar name that exists, or None. Every part of the path may be mistyped."""
    parent = path.parent if path.parent.is_dir() or path.parent == path else _near(path.parent, Path.is_dir)
    if parent is None or fits(parent / path.name):
        return parent and parent / path.name
    folders = [parent, *(map(Path, _WHERE) if path == Path(path.name) else ())]
    found = [child for folder in folders if folder.is_dir() for child in sorted(folder.iterdir()) if fits(child)]
    known = {child.name.lower(): child for child in reversed(found) if not child.name.startswith(".")}
    near = difflib.get_close_matches(path.name.lower(), known, 1)
    return known[near[0]] if near else None
