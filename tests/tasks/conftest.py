"""Data folders of their own for tests that spoil files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import task_data


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every data file, small, made once; do not change them."""
    folder = tmp_path_factory.mktemp("data")
    task_data.fill(folder)
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, which STABLESSM_DATA names."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    return tmp_path
