"""What is built and installed: files, the commit, commands outside of the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "stablessm"
SHOW = "import json; from stablessm import record; print(json.dumps(record.environment()))"


def python(*arguments: str, path: Path, cwd: Path) -> str:
    """Run Python with the package at ``path``; what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "STABLESSM_COMMIT"}
    environment |= {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def repository(folder: Path) -> str:
    """Make a repository with one commit, which knows nothing of us."""
    folder.mkdir()
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_a_copy_below_another_repository_does_not_take_its_commit(tmp_path):
    repository(tmp_path / "theirs")
    site = tmp_path / "theirs" / "site-packages"
    shutil.copytree(PACKAGE, site / "stablessm", ignore=shutil.ignore_patterns("__pycache__", "_build.json"))
    assert json.loads(python("-c", SHOW, path=site, cwd=tmp_path))["commit"] is None
    (site / "stablessm" / "_build.json").write_text('{"commit": "built"}', encoding="utf-8")
    found = json.loads(python("-c", SHOW, path=site, cwd=tmp_path / "theirs"))
    assert found["commit"] == "built"
    assert found["versions"].keys() >= {"python", "stablessm", "torch", "numpy", "llvmlite"}
    assert found["hardware"].keys() >= {"cpu", "threads", "cores"}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """An sdist, and a wheel made of it, of a copy of the tracked files whose repository has one commit."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("built")
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], check=True, capture_output=True, text=True
    ).stdout
    repository(folder / "source")
    for name in filter(None, names.split("\0")):
        if not name.startswith("results/"):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    git = ["git", "-C", str(folder / "source"), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (folder / "commit").write_text(head, encoding="utf-8")
    hook = "import sys, setuptools.build_meta as b; getattr(b, 'build_' + sys.argv[1])(sys.argv[2])"
    python("-c", hook, "sdist", str(folder), path=folder, cwd=folder / "source")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    python("-c", hook, "wheel", str(folder), path=folder, cwd=unpacked)
    return folder


@pytest.mark.slow
def test_files_and_metadata(built):
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True).stdout
    names = {name for name in tracked.splitlines() if not name.startswith(("results/", ".gitignore"))}
    (unpacked,) = (built / "unpacked").iterdir()
    assert names <= {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")}
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        assert {name for name in names if name.startswith("stablessm/")} | {"stablessm/_build.json"} == {
            name for name in wheel.namelist() if name.startswith("stablessm/")
        }
        (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        text = wheel.read(metadata).decode()
    assert "](docs/" not in text
    assert "/raw/main/docs/assets/demo.png)" in text


@pytest.mark.slow
def test_an_installed_wheel_runs_anywhere_and_says_its_commit(built, tmp_path):
    theirs = repository(tmp_path / "theirs")
    site, here = tmp_path / "theirs" / "site-packages", tmp_path / "theirs" / "work"
    pip = [
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(next(built.glob("*.whl"))),
    ]
    python(*pip, path=tmp_path, cwd=tmp_path)
    here.mkdir()
    (here / "text.txt").write_text("the cat sat on the mat\n" * 60, encoding="utf-8")
    for command in (
        "demo --smoke", "fit 1/(1+t)**1.1 --horizon 50 --tol 1e-3 --out fit",
        "train lm -o text=text.txt -o length=16 -o level=char --steps 2 --batch-size 2 --out lm",
        "generate lm the --tokens 3",
        "eval lm --split valid", "measure lm --horizon 8", "run su-depth", "list", "status", "report runs", "env",
    ):  # fmt: skip
        python("-m", "stablessm", *command.split(), path=site, cwd=here)
    ours = (built / "commit").read_text(encoding="utf-8")
    assert ours != theirs
    records = [*here.rglob("record.json")]
    assert len(records) >= 4
    assert {json.loads(path.read_text(encoding="utf-8"))["commit"] for path in records} == {ours}
    assert ours in python("-m", "stablessm", "--version", path=site, cwd=here)
