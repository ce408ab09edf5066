"""The public names are there, and come only when they are asked for."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import public_defaults
import pytest

import stablessm

RELEASED = (Path(__file__).parent / "names_of_0_1.txt").read_text(encoding="utf-8").split()
"""Every public name of version 0.1, with its package."""


def test_the_names_of_the_last_release_are_there():
    places = [name.rpartition(".") for name in RELEASED]
    missing = [f"{home}.{name}" for home, _, name in places if not hasattr(importlib.import_module(home), name)]
    assert len(RELEASED) > 200
    assert not missing


def test_the_defaults_of_everything_public_are_those_listed():
    listed = public_defaults.PATH.read_text(encoding="utf-8").splitlines()
    found = public_defaults.lines()
    assert sorted(set(found) - set(listed)) == sorted(set(listed) - set(found)) == [], (
        "meant? python tests/public_defaults.py"
    )


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
