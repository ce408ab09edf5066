"""The public names are there, and come only when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stablessm


@pytest.mark.parametrize("name", stablessm.__all__)
def test_every_public_name_is_there(name):
    assert getattr(stablessm, name) is not None
    assert name in dir(stablessm)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="nothing_like_this"):
        stablessm.nothing_like_this  # noqa: B018


@pytest.mark.parametrize("module", ["stablessm", "stablessm.report", "stablessm.record", "stablessm.constructions"])
def test_no_torch_where_none_is_needed(module):
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
