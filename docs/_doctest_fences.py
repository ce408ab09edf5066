"""Griffe extension: docstrings as Markdown. Doctest examples become fenced blocks, and "text::" becomes "text:"."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(>>> .*(?:\n(?!\s*\n).+)*)", re.MULTILINE)
COLONS = re.compile(r"::$", re.MULTILINE)


class DoctestFences(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            fenced = EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)
            obj.docstring.value = COLONS.sub(":", fenced)
