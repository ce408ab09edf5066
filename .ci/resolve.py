"""Check that constraints.txt decides every version that pip installs, from the plain package index alone.

A dry run of pip with every extra, without pip's configuration and without local wheels, must succeed under each of
Python 3.11, 3.12 and 3.13 that this machine has, and every package in its report must be pinned. With every version
pinned, the base package and each extra alone resolve to a part of the same list. The requirements in the report are
then followed for platforms that this machine is not, with their own markers.

Run it with ``./dev resolve``; ``./dev resolve --wheels`` also asks the index for a wheel of every pinned package on
each platform, which downloads some gigabytes where the index does not serve metadata.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as normal

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {
    "Linux x86-64": ("linux", "Linux", "x86_64", "posix"),
    "Linux aarch64": ("linux", "Linux", "aarch64", "posix"),
    "macOS arm64": ("darwin", "Darwin", "arm64", "posix"),
    "Windows x86-64": ("win32", "Windows", "AMD64", "nt"),
}

WHEELS = {
    "Linux aarch64": [f"manylinux_2_{minor}_aarch64" for minor in range(28, 16, -1)] + ["manylinux2014_aarch64"],
    "macOS arm64": ["macosx_14_0_arm64"],
    "Windows x86-64": ["win_amd64"],
}


def main() -> int:
    """Return the number of problems found, after printing each."""
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line
    )
    pins = {normal(name): version for name, version in pins.items()}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    problems: list[str] = []
    packages: dict[str, dict] = {}
    for version in PYTHONS:
        if (python := find_python(version)) is None:
            print(f"Python {version}: not on this machine, not checked")
            continue
        installed = dry_run(python, sorted(extras))
        packages |= installed
        loose = sorted(name for name in installed if name not in pins and name != "stablessm")
        problems += [f"Python {version}: {name} is installed but not pinned in constraints.txt" for name in loose]
        print(f"Python {version}: {len(installed)} packages resolve")
    for (platform, facts), version in itertools.product(PLATFORMS.items(), PYTHONS):
        needs = follow(packages, sorted(extras), environment(version, *facts))
        problems += [f"{platform}, Python {version}: {problem}" for problem in unmet(needs, pins)]
    print(f"markers followed for {', '.join(PLATFORMS)}")
    if "--wheels" in sys.argv:
        problems += [
            problem for platform in WHEELS for problem in missing_wheels(packages, sorted(extras), pins, platform)
        ]
    for problem in sorted(set(problems)):
        print(problem, file=sys.stderr)
    return len(problems)


def find_python(version: str) -> str | None:
    """Return an interpreter of this version that runs: on the path, or one that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(kept.glob(f"{version}.*/bin/python")))]
    for python in filter(None, candidates):
        if subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0:
            return python
    return None


def plain_environment() -> dict[str, str]:
    """Return the variables of this process without what points pip to anything but the plain index."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")}
    return plain | {"PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}


def dry_run(python: str, extras: list[str]) -> dict[str, dict]:
    """Return the metadata of every package that pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = next(Path(folder).glob("*/pip*"))
        report = Path(folder) / "report.json"
        arguments = ["install", "--quiet", "--dry-run", "--report", str(report), f"{ROOT}[{','.join(extras)}]"]
        subprocess.run([str(pip), *arguments], check=True, env=plain_environment())
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {normal(package["metadata"]["name"]): package["metadata"] for package in chosen}


def environment(python: str, sys_platform: str, system: str, machine: str, os_name: str) -> dict[str, str]:
    """Return the values of the markers on a platform."""
    return {
        "implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": os_name,
        "platform_machine": machine, "platform_system": system, "sys_platform": sys_platform,
        "python_version": python, "python_full_version": f"{python}.0", "implementation_version": f"{python}.0",
        "platform_release": "", "platform_version": "",
    }  # fmt: skip


def follow(packages: dict[str, dict], extras: list[str], markers: dict[str, str]) -> list[Requirement]:
    """Return every requirement that stablessm with these extras leads to on a platform."""
    found, seen, todo = [], set(), [("stablessm", extra) for extra in ("", *extras)]
    while todo:
        if (step := todo.pop()) in seen:
            continue
        seen.add(step)
        name, extra = step
        for text in packages.get(name, {}).get("requires_dist", ()):
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({**markers, "extra": extra}):
                found.append(need)
                todo += [(normal(need.name), wanted) for wanted in ("", *need.extras)]
    return found


def unmet(needs: list[Requirement], pins: dict[str, str]) -> list[str]:
    """Return what the pins do not provide."""
    problems = []
    for need in needs:
        pin = pins.get(normal(need.name))
        if pin is None and need.name != "stablessm":
            problems.append(f"{need.name} is required but not pinned in constraints.txt")
        elif pin is not None and not need.specifier.contains(pin, prereleases=True):
            problems.append(f"{need} is required, constraints.txt pins {pin}")
    return problems


def missing_wheels(packages: dict[str, dict], extras: list[str], pins: dict[str, str], platform: str) -> list[str]:
    """Return what pip says where a pinned package has no wheel for a platform, under each Python."""
    problems = []
    for version in PYTHONS:
        needs = {normal(need.name) for need in follow(packages, extras, environment(version, *PLATFORMS[platform]))}
        wanted = [f"{name}=={pins[name]}" for name in sorted(needs - {"stablessm"})]
        tags = [f"--platform={tag}" for tag in WHEELS[platform]]
        with tempfile.TemporaryDirectory() as folder:
            options = ["--dry-run", "--no-deps", "--only-binary=:all:", f"--python-version={version}", *tags]
            command = [sys.executable, "-m", "pip", "install", "--quiet", *options, f"--target={folder}", *wanted]
            found = subprocess.run(command, env=plain_environment(), capture_output=True, text=True)
        if found.returncode:
            problems.append(f"{platform}, Python {version}: {found.stderr.strip()}")
        print(f"{platform}, Python {version}: {len(wanted)} wheels looked up")
    return problems


if __name__ == "__main__":
    sys.exit(min(main(), 1))
