"""Griffe extension: doctest examples in docstrings become fenced blocks, which Markdown would take for quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(>>> .*(?:\n(?!\s*\n).+)*)", re.MULTILINE)


class DoctestFences(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one object."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)
