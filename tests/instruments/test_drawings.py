"""Drawings, compared with those that somebody looked at."""

from __future__ import annotations

import json

import drawings
import pytest

EXPECTED = json.loads(drawings.PATH.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", drawings.DRAWN)
def test_the_drawing_is_the_one_that_was_looked_at(name):
    assert json.loads(json.dumps(drawings.described(drawings.DRAWN[name]()))) == EXPECTED[name]
